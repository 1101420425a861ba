"""The server as an ASGI application: routes, authorization, limits, and errors."""

import asyncio
import dataclasses
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from jaxrl.errors import JaxrlError
from jaxrl.serve import wire
from jaxrl.serve.backend import Backend, Json, RequestError, State, get_ignored
from jaxrl.serve.batching import RETRY_AFTER_S, Answer, Batcher, Rows
from jaxrl.serve.metrics import METRICS_TYPE, Metrics
from jaxrl.serve.sessions import Sessions
from jaxrl.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

ACTIONS, SPACES, HEALTH, METRICS, EPISODES = (
    "/v1/actions",
    "/v1/spaces",
    "/healthz",
    "/metrics",
    "/v1/episodes/",
)
MAX_ERROR_LENGTH = 500
BYTES_PER_NUMBER, BYTES_PER_ROW = 32, 1024
"""Upper bounds for JSON: a number with its separators, and names, ids and flags of a row."""
MIN_BODY_BYTES, MAX_BODY_BYTES, MAX_DISCARDED_BYTES = 2**16, 2**26, 2**20
_MAX_REWARD = float(np.finfo(np.float32).max)
_METHODS = {ACTIONS: "POST", SPACES: "GET", HEALTH: "GET", METRICS: "GET", EPISODES: "DELETE"}


@dataclasses.dataclass(frozen=True)
class Response:
    """Status, type and body of a response."""

    body: bytes
    content_type: str = wire.JSON
    status: int = 200
    retry_after_s: int | None = None


class PolicyApp:
    """ASGI application that serves a policy.

    Args:
        backend: Policy.
        settings: Settings of the server.
    """

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self._settings = settings
        self._token = None if settings.token is None else f"Bearer {settings.token}".encode()
        self._sessions = Sessions(settings.max_sessions)
        self.metrics = Metrics()
        self._backend = backend
        self._max_body_bytes = _get_body_limit(backend, settings)
        self._batcher: Batcher | None = None
        self._task: asyncio.Task[None] | None = None
        self._routes: Mapping[str, Callable[[Message, Receive], Awaitable[Response]]] = {
            ACTIONS: self._act,
            SPACES: self._get_spaces,
            HEALTH: self._get_health,
            METRICS: self._get_metrics,
            EPISODES: self._end_episode,
        }
        self._show_policy()

    @property
    def backend(self) -> Backend:
        """Policy that answers new batches."""
        return self._backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        """Replace the policy between two batches; call it in the thread of the event loop.

        Memories of episodes are kept if the new policy's have the same shapes.
        """
        old, new = (
            [(leaf.shape, leaf.dtype) for leaf in b.initial_state()]
            for b in (self._backend, backend)
        )
        if old != new:
            self._sessions.clear()
        self._backend = backend
        self._max_body_bytes = _get_body_limit(backend, self._settings)
        if self._batcher is not None:
            self._batcher.backend = backend
        self._show_policy()

    def _show_policy(self) -> None:
        self.metrics.policy.info({"version": self._backend.version})

    async def start(self) -> None:
        """Start to answer requests, in the running event loop."""
        settings = self._settings
        self._batcher = Batcher(
            self._backend,
            max_batch=settings.max_batch,
            max_wait_s=settings.max_wait_ms / 1000,
            max_waiting=settings.max_waiting,
            observe=self.metrics.batch_rows.observe,
        )
        self._task = asyncio.create_task(self._batcher.run())

    async def stop(self) -> None:
        """Stop answering; requests that wait are refused by 503."""
        batcher, self._batcher = self._batcher, None
        if batcher is not None:
            batcher.refuse_all(_make_unready_error())
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        route = _find_route(scope["path"])
        try:
            response = await self._answer(route, scope, receive)
        except RequestError as error:
            response = _format_error(error, error.status, error.retry_after_s)
        except JaxrlError as error:
            response = _format_error(error, 400)
        except Exception:
            logger.exception("a request failed")
            response = _format_error("The policy failed; the server's log has the reason.", 500)
        self.metrics.count_request(route or "unknown", response.status)
        await _send(response, send)

    async def _answer(self, route: str | None, scope: Message, receive: Receive) -> Response:
        if route is not HEALTH:
            self._authorize(scope)
        if route is None:
            paths = ", ".join(_METHODS)
            raise RequestError(f"There is no {scope['path']!r:.80}; there are {paths}.", 404)
        if scope["method"] != _METHODS[route]:
            raise RequestError(f"{route} takes {_METHODS[route]}, not {scope['method']}.", 405)
        return await self._routes[route](scope, receive)

    def _authorize(self, scope: Message) -> None:
        if self._token is None:
            return
        given = _get_header(scope, b"authorization")
        if not hmac.compare_digest(given, self._token):
            raise RequestError("The request needs the header Authorization: Bearer TOKEN.", 401)

    # --- routes ---

    async def _get_health(self, scope: Message, receive: Receive) -> Response:
        if self._batcher is None or self._task is None or self._task.done():
            raise _make_unready_error()
        return _format_json({"status": "ok"})

    async def _get_spaces(self, scope: Message, receive: Receive) -> Response:
        backend = self._backend
        initial = [{"shape": list(x.shape), "dtype": str(x.dtype)} for x in backend.initial_state()]
        return _format_json(
            {
                **backend.spaces,
                "state": initial,
                "reads": sorted(backend.reads),
                "policy_version": backend.version,
                "max_batch": self._settings.max_batch,
            }
        )

    async def _get_metrics(self, scope: Message, receive: Receive) -> Response:
        self.metrics.sessions.set(len(self._sessions))
        waiting = 0 if self._batcher is None else self._batcher.num_waiting
        self.metrics.waiting.set(waiting)
        return Response(self.metrics.format(), METRICS_TYPE)

    async def _end_episode(self, scope: Message, receive: Receive) -> Response:
        self._sessions.end(scope["path"][len(EPISODES) :])
        return _format_json({"status": "ended"})

    async def _act(self, scope: Message, receive: Receive) -> Response:
        body = await self._read_body(scope, receive)
        started = time.perf_counter()
        content_type = _get_header(scope, b"content-type").split(b";")[0].strip().decode("latin-1")
        backend, batcher = self._backend, self._batcher
        if batcher is None:
            raise _make_unready_error()
        request = wire.parse_request(
            body,
            content_type,
            backend.observation_structure,
            backend.action_structure,
            self._settings.max_batch,
            get_ignored(backend.spaces["observation_space"]),
        )
        with ExitStack() as reserved:
            states = self._get_states(request, backend, reserved)
            rows = _make_rows(request, states, backend, explore=self._settings.explore)
            answer = await batcher.act(rows)
            if request.episode_ids is not None:
                self._store(request.episode_ids, answer)
        self.metrics.actions.inc(len(answer.states))
        self.metrics.latency.observe(time.perf_counter() - started)
        body = wire.format_answer(answer, request, content_type, backend.action_structure)
        return Response(body, content_type)

    # --- parts of a request for actions ---

    async def _read_body(self, scope: Message, receive: Receive) -> bytes:
        """Return the body, of which no more than allowed is ever kept.

        Raises:
            RequestError: If it is too large (413), or does not arrive in time (408).
        """
        limit = self._max_body_bytes
        declared = _get_header(scope, b"content-length")
        is_too_large = declared.isdigit() and int(declared[:20]) > limit
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                body = await _receive_body(receive, 0 if is_too_large else limit)
        except TimeoutError as error:
            raise RequestError("The body did not arrive in time.", 408) from error
        if body is None or is_too_large:
            raise RequestError(f"The body is larger than {limit} bytes.", 413)
        return body

    def _get_states(
        self, request: wire.ActRequest, backend: Backend, reserved: ExitStack
    ) -> list[State | None]:
        """Return the state before each row; None where an episode starts.

        Raises:
            RequestError: If the request has no state that the policy needs, or one too many.
        """
        num = len(request.observations)
        initial = backend.initial_state()
        if request.episode_ids is not None:
            if request.state is not None:
                raise RequestError("state and episode_ids exclude each other: send one of them.")
            starts = request.is_first or [False] * num
            return reserved.enter_context(self._sessions.use(request.episode_ids, starts))
        if request.state is not None:
            return _split_state(request, initial)
        all_start = request.is_first is not None and all(request.is_first)
        if request.is_first is not None and not all_start:
            raise RequestError("is_first=false needs an episode_id or a state.")
        if initial and not request.should_return_state:
            raise RequestError(
                "The policy has a memory: send episode_id, with is_first=true at an episode's "
                "start, or return_state=true and the returned state with the next observation."
            )
        return [None] * num

    def _store(self, episode_ids: Sequence[str], answer: Answer) -> None:
        """Store the states after a request's actions, unless the policy was replaced by another kind."""
        shapes = [leaf.shape for leaf in self._backend.initial_state()]
        for episode_id, state in zip(episode_ids, answer.states, strict=True):
            if [leaf.shape for leaf in state] == shapes:
                self._sessions.store(episode_id, state)


def _get_body_limit(backend: Backend, settings: ServeSettings) -> int:
    """Return the maximum size of a body: as configured, or what the largest batch needs."""
    if settings.max_body_bytes is not None:
        return settings.max_body_bytes
    numbers = sum(map(_count_numbers, backend.spaces.values()))
    numbers += sum(leaf.size for leaf in backend.initial_state())
    per_row = numbers * BYTES_PER_NUMBER + BYTES_PER_ROW
    return min(MIN_BODY_BYTES + settings.max_batch * per_row, MAX_BODY_BYTES)


def _count_numbers(space: Json) -> int:
    """Return the number of entries of a space's values, from its description."""
    if isinstance(space, Mapping):
        shape = space.get("shape")
        if isinstance(shape, list):
            return int(np.prod(np.asarray(shape, np.int64), dtype=np.int64))
        return _count_numbers(space.get("spaces"))
    if isinstance(space, Sequence) and not isinstance(space, str):
        return sum(_count_numbers(part) for part in space)
    return 0


async def _receive_body(receive: Receive, limit: int) -> bytes | None:
    """Return the body of a request; None if it is larger than the limit.

    The rest of what is too large is discarded, because most clients read no answer while they are
    sending; only so much, beyond which the connection is closed.
    """
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more and size <= limit + MAX_DISCARDED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client closed the connection.", 400)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        has_more = message.get("more_body", False)
        if size > limit:
            parts.clear()
    return b"".join(parts) if size <= limit else None


def _split_state(request: wire.ActRequest, initial: State) -> list[State | None]:
    """Return the rows of a state that the client sent, in the types of the policy's."""
    state = request.state or []
    num = len(request.observations)
    if [leaf.shape[1:] for leaf in state] != [leaf.shape for leaf in initial]:
        raise RequestError(
            f"state must be arrays of the shapes {[leaf.shape for leaf in initial]} for each "
            f"observation, got {[leaf.shape[1:] for leaf in state]}."
        )
    with np.errstate(over="ignore"):
        cast = [leaf.astype(like.dtype) for leaf, like in zip(state, initial, strict=True)]
    if any(leaf.dtype.kind == "f" and not np.isfinite(leaf).all() for leaf in cast):
        raise RequestError("state has NaN or infinite values.")
    starts = request.is_first or [False] * num
    return [None if starts[i] else [leaf[i] for leaf in cast] for i in range(num)]


def _make_rows(
    request: wire.ActRequest, states: list[State | None], backend: Backend, *, explore: bool
) -> Rows:
    """Return the checked rows of a request.

    Raises:
        JaxrlError: If an observation is not in its space, or an input is missing or not used.
    """
    for name in ("prev_reward", "prev_action"):
        if vars(request)[f"{name}s"] is not None and name not in backend.reads:
            raise RequestError(f"{name} has no effect, the policy does not read it: leave it out.")
    rewards = request.prev_rewards
    has_past = any(state is not None for state in states)
    if "prev_reward" in backend.reads and rewards is None and has_past:
        raise RequestError("The policy reads the reward of the previous step: send prev_reward.")
    if rewards is not None and not all(abs(reward) <= _MAX_REWARD for reward in rewards):
        raise RequestError("prev_reward must be a finite number of float32.")
    actions = request.prev_actions
    try:
        observations = [backend.conform(obs) for obs in request.observations]
        if actions is not None:
            actions = [backend.conform_action(action) for action in actions]
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, JaxrlError):
            raise
        raise RequestError(f"A value is not in its space: {error}.") from error
    return Rows(
        observations=observations,
        states=states,
        explore=explore if request.explore is None else request.explore,
        prev_reward=rewards,
        prev_action=actions,
    )


def _make_unready_error() -> RequestError:
    return RequestError("The server is starting or stopping.", 503, RETRY_AFTER_S)


def _find_route(path: str) -> str | None:
    if path in _METHODS and path != EPISODES:
        return next(route for route in _METHODS if route == path)
    return EPISODES if path.startswith(EPISODES) and len(path) > len(EPISODES) else None


def _get_header(scope: Message, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def _format_json(document: object) -> Response:
    return Response(json.dumps(document).encode())


def _format_error(
    error: JaxrlError | str, status: int, retry_after_s: int | None = None
) -> Response:
    text = str(error)  # may contain an observation
    if len(text) > MAX_ERROR_LENGTH:
        text = f"{text[:MAX_ERROR_LENGTH]}..."
    body = json.dumps({"error": text}).encode()
    return Response(body, status=status, retry_after_s=retry_after_s)


async def _send(response: Response, send: Send) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(len(response.body)).encode()),
    ]
    if response.retry_after_s is not None:
        headers.append((b"retry-after", str(response.retry_after_s).encode()))
    if response.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if response.status in (408, 413):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    start = {"type": "http.response.start", "status": response.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body})
