"""The server as an ASGI application: bodies of requests, routes, authorization, limits, and errors."""

import asyncio
import dataclasses
import functools
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias, cast

import numpy as np
import safetensors
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)
from safetensors.numpy import load, save

from jaxrl.errors import JaxrlError, did_you_mean
from jaxrl.serve.backend import (
    Backend,
    Json,
    RequestError,
    State,
    Structure,
    Value,
    get_ignored,
    join_arrays,
    list_names,
    map_structure,
    split_arrays,
)
from jaxrl.serve.batching import RETRY_AFTER_S, Answer, Batcher, Rows, Sessions
from jaxrl.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

JSON, ARRAYS = "application/json", "application/x-safetensors"
MAX_ID_LENGTH = 256
_HEADER_BYTES = 8
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


METRICS_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_ROWS = tuple(float(2**i) for i in range(13))


class Metrics:
    """Counters of one server, apart from those of others in the process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "jaxrl_serve_requests", "Requests by path and status.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self.actions = Counter("jaxrl_serve_actions", "Actions computed.", registry=registry)
        self.latency = Histogram(
            "jaxrl_serve_request_seconds", "Time from a body's arrival to the answer.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.batch_rows = Histogram(
            "jaxrl_serve_batch_rows", "Rows of a batch.", buckets=_ROWS, registry=registry
        )
        self.waiting = Gauge(
            "jaxrl_serve_waiting_rows", "Rows that wait for a batch.", registry=registry
        )
        self.sessions = Gauge(
            "jaxrl_serve_sessions", "Episodes whose memory is kept.", registry=registry
        )
        self.reloads = Counter(
            "jaxrl_serve_reloads", "Reloads of the policy by outcome.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self.policy = Info("jaxrl_serve_policy", "Policy that is served.", registry=registry)
        self._count = functools.cache(self._requests.labels)

    def count_request(self, path: str, status: int) -> None:
        """Count a request."""
        self._count(path, str(status)).inc()

    def format(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)


_PLURALS = {
    "observation": "observations",
    "episode_id": "episode_ids",
    "prev_reward": "prev_rewards",
    "prev_action": "prev_actions",
}
_OPTIONS = ("explore", "is_first", "state", "return_state")
_FIELDS = (*_PLURALS, *_PLURALS.values(), *_OPTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActRequest:
    """Request for actions, not yet compared with the spaces.

    Args:
        observations: One observation per row.
        is_single: Whether there is one row, without a batch axis.
        is_first: Whether each row starts an episode; None if the request does not say.
        episode_ids: Ids of the episodes; None if the client keeps the states, or needs none.
        state: Leaves of the states, `[n, ...]`; None without.
        should_return_state: Whether to return the states.
        explore: Whether to sample actions; None is as configured.
        prev_rewards: Rewards of the previous steps.
        prev_actions: Environment actions that were executed.
    """

    observations: Sequence[Value]
    is_single: bool
    is_first: Sequence[bool] | None
    episode_ids: Sequence[str] | None
    state: State | None
    should_return_state: bool
    explore: bool | None
    prev_rewards: Sequence[float] | None
    prev_actions: Sequence[Value] | None


def parse_request(
    body: bytes,
    content_type: str,
    observation: Structure,
    action: Structure,
    max_rows: int,
    ignored: Sequence[str] = (),
) -> ActRequest:
    """Parse the body of a request for actions.

    Args:
        body: Body.
        content_type: `JSON` or `ARRAYS`.
        observation: Structure of observations.
        action: Structure of actions.
        max_rows: Maximum number of rows.
        ignored: Names of parts of observations that are dropped where there are arrays of them.

    Raises:
        RequestError: If the body is not of this type, or its fields are unknown or of a wrong type.
    """
    if content_type == JSON:
        fields = _parse_json(body)
    elif content_type == ARRAYS:
        fields = _parse_arrays(body, observation, action, ignored)
    else:
        raise RequestError(f"Content-Type is {content_type!r}; send {JSON} or {ARRAYS}.", 415)
    for name in fields:
        if name not in _FIELDS:
            raise RequestError(f"There is no field {name!r}.{did_you_mean(name, _FIELDS)}")
    return _make_request(fields, max_rows)


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise RequestError("The body is nested too deeply.") from error
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise RequestError("The body must be a JSON object with observations.")
    return cast("dict[str, Any]", fields)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _parse_arrays(
    body: bytes, observation: Structure, action: Structure, ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of arrays: options are JSON under "options" in the metadata."""
    try:
        arrays = load(body)
        size = int.from_bytes(body[:_HEADER_BYTES], "little")
        header = json.loads(body[_HEADER_BYTES : _HEADER_BYTES + size])
        metadata: Mapping[str, str] = header.get("__metadata__", {})
    except (safetensors.SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise RequestError(f"The body is not of the format of safetensors: {error}.") from error
    fields = _parse_json(metadata.get("options", "{}").encode())
    for name in _PLURALS.values():
        if name in fields and name != "episode_ids":
            raise RequestError(f"{name} are arrays of the body, not options.")
    num = _take_tree(arrays, "observations", observation, fields)
    _take_tree(arrays, "prev_actions", action, fields, num)
    dropped = tuple(f"observations.{name}." for name in ignored)
    arrays = {name: x for name, x in arrays.items() if not f"{name}.".startswith(dropped)}
    for name in ("is_first", "prev_rewards"):
        if name in arrays:
            fields[name] = arrays.pop(name).tolist()
    leaves = [name for name in arrays if name.startswith("state.")]
    if leaves:
        fields["state"] = [
            arrays.pop(f"state.{i}") for i in range(len(leaves)) if f"state.{i}" in arrays
        ]
    if arrays:
        known = [*list_names(observation, "observations"), "is_first", "prev_rewards", "state.0"]
        raise RequestError(f"There is no array {min(arrays)!r}.{did_you_mean(min(arrays), known)}")
    return fields


def _take_tree(
    arrays: dict[str, np.ndarray],
    root: str,
    structure: Structure,
    fields: dict[str, Any],
    num: int | None = None,
) -> int | None:
    """Move the arrays of observations or actions to the fields, as rows; return their number."""
    names = list_names(structure, root)
    found = {name: arrays.pop(name) for name in names if name in arrays}
    if not found:
        return None
    lengths = {len(array) if array.ndim else None for array in found.values()}
    if len(found) < len(names) or len(lengths) > 1 or None in lengths:
        raise RequestError(f"{root} must be the arrays {names}, all with the same leading axis.")
    tree = join_arrays(structure, root, found)
    size = len(next(iter(found.values())))
    fields[root] = [map_structure(structure, lambda leaf, i=i: leaf[i], tree) for i in range(size)]
    return size if num is None else num


def _make_request(fields: Mapping[str, Any], max_rows: int) -> ActRequest:
    is_single = "observation" in fields
    if is_single == ("observations" in fields):
        raise RequestError("The body must have either observation, or observations for several.")
    given = dict(fields)
    for single, plural in _PLURALS.items():
        wrong = plural if is_single else single
        if wrong in given:
            other = single if is_single else plural
            raise RequestError(
                f"{wrong} does not go with {'one' if is_single else 'several'} observation(s): use {other}."
            )
        if is_single and single in given:
            given[plural] = [given.pop(single)]
    observations = given["observations"]
    if not isinstance(observations, list) or not observations:
        raise RequestError("observations must be a list of at least one observation.")
    num = len(cast("list[object]", observations))
    if num > max_rows:
        raise RequestError(f"There are {num} observations; send at most {max_rows} at once.", 413)
    is_first = given.get("is_first")
    if isinstance(is_first, bool):
        is_first = [is_first] * num
    return ActRequest(
        observations=cast("list[Value]", observations),
        is_single=is_single,
        is_first=_check_list(is_first, "is_first", bool, num),
        episode_ids=_check_ids(given.get("episode_ids"), num),
        state=_parse_state(given.get("state"), num, is_single=is_single),
        should_return_state=_check_flag(given, "return_state") or "state" in given,
        explore=_check_flag(given, "explore"),
        prev_rewards=_check_list(given.get("prev_rewards"), "prev_rewards", (int, float), num),
        prev_actions=_check_list(given.get("prev_actions"), "prev_actions", object, num),
    )


def _check_flag(fields: Mapping[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {value!r:.80}.")
    return value


def _check_list(
    value: object, name: str, kind: type | tuple[type, ...], num: int
) -> list[Any] | None:
    if value is None:
        return None
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    is_number = kind is not bool and kind is not object
    wrong = [e for e in entries if not isinstance(e, kind) or (is_number and isinstance(e, bool))]
    if len(entries) != num or wrong:
        raise RequestError(f"{name} must have one entry per observation, got {value!r:.80}.")
    return entries


def _check_ids(value: object, num: int) -> list[str] | None:
    ids = _check_list(value, "episode_ids", str, num)
    for episode_id in ids or ():
        if not 0 < len(episode_id) <= MAX_ID_LENGTH:
            raise RequestError(f"An episode id must have 1 to {MAX_ID_LENGTH} characters.")
    return ids


def _parse_state(value: object, num: int, *, is_single: bool) -> State | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise RequestError("state must be a list of arrays, as the previous response has it.")
    try:
        leaves = [np.asarray(leaf) for leaf in cast("list[Any]", value)]
    except ValueError as error:
        raise RequestError("state must be a list of arrays without ragged rows.") from error
    if is_single:
        leaves = [leaf[None] for leaf in leaves]
    if any(leaf.dtype.kind not in "biuf" or leaf.shape[:1] != (num,) for leaf in leaves):
        raise RequestError("Every array of state must be numbers, with one row per observation.")
    return leaves


def format_answer(
    answer: Answer, request: ActRequest, content_type: str, action: Structure
) -> bytes:
    """Return the body of a response.

    Args:
        answer: Actions and states.
        request: Request that is answered.
        content_type: Type of the body, that of the request.
        action: Structure of actions.
    """
    states = _stack_states(answer.states) if request.should_return_state else None
    if content_type == ARRAYS:
        arrays = split_arrays(action, "actions", answer.actions)
        for i, leaf in enumerate(states or ()):
            arrays[f"state.{i}"] = leaf
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return save(arrays, metadata={"policy_version": answer.version})
    document: dict[str, Any] = {"policy_version": answer.version}
    columns = map_structure(action, lambda leaf: leaf.tolist(), answer.actions)
    rows = _split_rows(action, columns, len(answer.states))
    if request.is_single:
        document["action"] = rows[0]
    else:
        document["actions"] = rows
    if states is not None:
        document["state"] = [(leaf[0] if request.is_single else leaf).tolist() for leaf in states]
    return json.dumps(document, separators=(",", ":")).encode()


def _stack_states(states: Sequence[State]) -> State:
    return [np.stack([state[i] for state in states]) for i in range(len(states[0]))]


def _split_rows(structure: Structure, columns: Value, num: int) -> list[Any]:
    if structure is None:
        return cast("list[Any]", columns)
    return [map_structure(structure, lambda leaf, i=i: leaf[i], columns) for i in range(num)]


_METHODS = {ACTIONS: "POST", SPACES: "GET", HEALTH: "GET", METRICS: "GET", EPISODES: "DELETE"}


@dataclasses.dataclass(frozen=True)
class Response:
    """Status, type and body of a response."""

    body: bytes
    content_type: str = JSON
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
        request = parse_request(
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
        body = format_answer(answer, request, content_type, backend.action_structure)
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
        self, request: ActRequest, backend: Backend, reserved: ExitStack
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


def _split_state(request: ActRequest, initial: State) -> list[State | None]:
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
    request: ActRequest, states: list[State | None], backend: Backend, *, explore: bool
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
