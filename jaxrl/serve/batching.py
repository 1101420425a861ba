"""Micro-batches of requests that wait at the same time, and the memories of their episodes."""

import asyncio
import contextlib
import dataclasses
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from jaxrl.errors import JaxrlError
from jaxrl.serve.backend import Backend, Batch, RequestError, State, Value, map_structure

logger = logging.getLogger(__name__)
RETRY_AFTER_S = 1
"""Seconds after which an overloaded or reloading server is worth another try."""


class Sessions:
    """States of the most recently used episodes.

    Args:
        max_sessions: Number of episodes that are kept; the one unused for longest is dropped.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max = max_sessions
        self._states: OrderedDict[str, State] = OrderedDict()
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return len(self._states)

    @contextlib.contextmanager
    def use(self, ids: Sequence[str], starts: Sequence[bool]) -> Generator[list[State | None]]:
        """Yield the states of episodes, None for those that start, and reserve them meanwhile.

        Args:
            ids: Ids of the episodes.
            starts: Whether each of them starts.

        Raises:
            RequestError: If an episode is unknown (404), is named twice, or another request of it
                is being answered (409).
        """
        for episode_id, start in zip(ids, starts, strict=True):
            if not start and episode_id not in self._states:
                raise RequestError(
                    f"The episode {episode_id!r} is unknown: it was dropped for newer ones, ended, "
                    "or never began; send is_first=true with its first observation.",
                    404,
                )
        if len(set(ids)) < len(ids):
            raise RequestError("An episode id occurs twice in the request.")
        self._check_idle(ids)
        self._busy.update(ids)
        try:
            yield [
                None if start else self._states[episode_id]
                for episode_id, start in zip(ids, starts, strict=True)
            ]
        finally:
            self._busy.difference_update(ids)

    def store(self, episode_id: str, state: State) -> None:
        """Store the state after an action; the episode becomes the most recently used one."""
        self._states[episode_id] = state
        self._states.move_to_end(episode_id)
        while len(self._states) > self._max:
            self._states.popitem(last=False)

    def end(self, episode_id: str) -> None:
        """Forget an episode.

        Raises:
            RequestError: If it is unknown (404), or a request of it is being answered (409).
        """
        self._check_idle([episode_id])
        if self._states.pop(episode_id, None) is None:
            raise RequestError(f"The episode {episode_id!r} is unknown.", 404)

    def _check_idle(self, ids: Sequence[str]) -> None:
        busy = self._busy.intersection(ids)
        if busy:
            raise RequestError(
                f"Another request of the episode {min(busy)!r} is being answered: wait for its "
                "action, which the next observation follows.",
                409,
            )

    def clear(self) -> None:
        """Forget all episodes."""
        self._states.clear()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one request.

    Args:
        observations: Observations that `Backend.conform` returned.
        states: State before each row; None where an episode starts.
        explore: Whether to sample actions.
        prev_reward: Rewards of the previous steps; None if the request has none.
        prev_action: Environment actions that were executed; None for the computed ones.
    """

    observations: Sequence[Value]
    states: Sequence[State | None]
    explore: bool
    prev_reward: Sequence[float] | None = None
    prev_action: Sequence[Value] | None = None

    @property
    def kind(self) -> tuple[bool, bool]:
        """Key of the program that the rows need; only rows of the same kind share a batch."""
        return self.explore, self.prev_action is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Actions `[n, ...]` and the state after each row, with the version of the policy."""

    actions: Value
    states: list[State]
    version: str


Waiting: TypeAlias = tuple[Rows, "asyncio.Future[Answer]"]


class Batcher:
    """Queue of requests, answered in batches by one thread.

    While a batch is computed, requests wait for the next one. A batch is also held back, for at
    most `max_wait_s`, until as many rows wait as the previous one had: clients that take turns
    come back at about the same time, and a single one never waits.

    Args:
        backend: Policy; may be replaced at any time, which takes effect between batches.
        max_batch: Maximum number of rows of a batch.
        max_wait_s: Maximum time that a batch is held back.
        max_waiting: Maximum number of rows that wait.
        observe: Function called with the number of rows of each batch.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_batch: int,
        max_wait_s: float,
        max_waiting: int,
        observe: Callable[[int], None] = lambda num: None,
    ) -> None:
        self.backend = backend
        self._max_batch, self._max_wait_s, self._max_waiting = max_batch, max_wait_s, max_waiting
        self._observe = observe
        self._queues: dict[tuple[bool, bool], deque[Waiting]] = {}
        self._num_waiting = 0
        self._last_size = 1
        self._changed = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="jaxrl-policy")

    @property
    def num_waiting(self) -> int:
        """Number of rows that wait for a batch."""
        return self._num_waiting

    async def act(self, rows: Rows) -> Answer:
        """Compute actions as part of a batch.

        Raises:
            RequestError: If too many rows wait (429), or the policy was replaced by one with another
                kind of memory (409).
        """
        if self._num_waiting + len(rows.observations) > self._max_waiting:
            raise RequestError(
                f"The server is overloaded: {self._num_waiting} observations wait for an action.",
                429,
                RETRY_AFTER_S,
            )
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(rows.kind, deque()).append((rows, future))
        self._num_waiting += len(rows.observations)
        self._changed.set()
        return await future

    def refuse_all(self, error: RequestError) -> None:
        """Answer all requests that wait by an error."""
        for queue in self._queues.values():
            for _, future in queue:
                if not future.done():
                    future.set_exception(error)
        self._queues.clear()
        self._num_waiting = 0

    async def run(self) -> None:
        """Answer requests until the task is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wait_for_rows()
                batch = self._take()
                backend = self.backend  # the one that answers the whole batch
                self._last_size = sum(len(rows.observations) for rows, _ in batch)
                self._observe(self._last_size)
                answers = await loop.run_in_executor(
                    self._executor, _answer_all, backend, [rows for rows, _ in batch]
                )
                for (_, future), answer in zip(batch, answers, strict=True):
                    _resolve(future, answer)
        finally:
            self._executor.shutdown(wait=False)

    async def _wait_for_rows(self) -> None:
        """Wait until a batch is worth its call."""
        while not self._num_waiting:
            self._changed.clear()
            await self._changed.wait()
        expected = min(self._last_size, self._max_batch)
        deadline = asyncio.get_running_loop().time() + self._max_wait_s
        while self._num_waiting < expected:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _take(self) -> list[Waiting]:
        """Take requests of one kind, that which has waited for longest."""
        kind = next(iter(self._queues))
        queue, batch, size = self._queues.pop(kind), list[Waiting](), 0
        while queue and size + len(queue[0][0].observations) <= self._max_batch:
            batch.append(queue.popleft())
            size += len(batch[-1][0].observations)
        if queue:
            self._queues[kind] = queue  # behind the other kinds
        self._num_waiting -= size
        return batch


def _resolve(future: "asyncio.Future[Answer]", answer: Answer | Exception) -> None:
    """Set the result of a request, unless its client is gone."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _answer_all(backend: Backend, requests: Sequence[Rows]) -> list[Answer | Exception]:
    """Answer requests by one batch; a request that fails does so alone."""
    initial = backend.initial_state()
    fitting = [rows for rows in requests if _fits(rows, initial)]
    try:
        answers = iter(_compute(backend, fitting, initial) if fitting else ())
    except Exception as error:
        if len(fitting) > 1:
            return [answer for rows in requests for answer in _answer_all(backend, [rows])]
        if not isinstance(error, JaxrlError):
            logger.exception("the policy failed")
        return [error] * len(requests)
    refusal = RequestError(
        "The policy was replaced by one with another kind of memory: begin the episode again.", 409
    )
    return [next(answers) if _fits(rows, initial) else refusal for rows in requests]


def _fits(rows: Rows, initial: State) -> bool:
    shapes = [(leaf.shape, leaf.dtype) for leaf in initial]
    return all(
        state is None or [(leaf.shape, leaf.dtype) for leaf in state] == shapes
        for state in rows.states
    )


def _compute(backend: Backend, requests: Sequence[Rows], initial: State) -> list[Answer]:
    states = [state for rows in requests for state in rows.states]
    filled = [initial if state is None else state for state in states]
    leaves = [np.stack([state[i] for state in filled]) for i in range(len(initial))]
    sizes = [len(rows.observations) for rows in requests]
    actions, after = backend.act(
        Batch(
            observations=[obs for rows in requests for obs in rows.observations],
            state=leaves,
            is_first=np.array([state is None for state in states]),
            explore=requests[0].explore,
            prev_reward=np.concatenate([_get_rewards(rows) for rows in requests]),
            prev_action=_get_actions(requests),
        )
    )
    answers: list[Answer] = []
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        answers.append(
            Answer(
                actions=map_structure(backend.action_structure, lambda x, r=rows: x[r], actions),
                # Copies: a view would keep the whole batch in memory.
                states=[[leaf[i].copy() for leaf in after] for i in range(start, start + size)],
                version=backend.version,
            )
        )
        start += size
    return answers


def _get_rewards(rows: Rows) -> np.ndarray:
    """Return the previous rewards, 0 where there are none because episodes start."""
    rewards = rows.prev_reward or [0.0] * len(rows.observations)
    return np.asarray(rewards, np.float32)


def _get_actions(requests: Sequence[Rows]) -> list[Value] | None:
    if requests[0].prev_action is None:
        return None
    return [action for rows in requests for action in rows.prev_action or ()]
