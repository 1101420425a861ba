"""Calls of all runners: the shares of an evaluation, and what is done to each of them."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.errors import EnvRunnerError
from jaxrl.runners.ray.backend import Raised, RunnerDiedError
from jaxrl.runners.ray.fleet import Fleet
from jaxrl.runners.ray.health import Member, with_detail

CLOSE_TIMEOUT_S = 2.0
"""Environments may take so long to close before their processes are ended."""


class EvaluationRound:
    """Shares of one evaluation, done by the runners while the caller does something else.

    Args:
        fleet: The runners, which do nothing else meanwhile.
        method: Of the runners.
        shares: Keyword arguments of each call.
        on_end: Called when the round is over.
    """

    def __init__(
        self,
        fleet: Fleet,
        method: str,
        shares: Sequence[dict[str, Any]],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._fleet, self._method, self._on_end = fleet, method, on_end
        self._shares = list(shares)
        self._results: dict[int, Any] = {}
        self._hand_out()

    @property
    def is_done(self) -> bool:
        """Whether every share is done, of what was heard so far."""
        return len(self._results) == len(self._shares)

    def collect(self, timeout_s: float = math.inf) -> list[Any]:
        """Results of the shares that are done within the time, in order of the shares.

        Call it again to wait for longer. A share whose runner is late or failed is given to
        another one as well.

        Raises:
            EnvRunnerError: The policy says that a failure ends the run, or no runner is left.
        """
        now = self._fleet.backend.now
        deadline = now() + timeout_s
        while not self.is_done:
            self._fleet.raise_if_lost()
            self._hand_out()
            for arrival in self._fleet.poll(max(0.0, deadline - now())):
                self._take(arrival.tag, arrival.value)
            if now() >= deadline:
                break
        if self.is_done:
            self._on_end()
        return [self._results[place] for place in sorted(self._results)]

    def _take(self, tag: Any, value: Any) -> None:
        """An answer to an earlier round, that was given up, is nothing to this one."""
        if isinstance(tag, _Share) and tag.round is self:
            self._results.setdefault(tag.place, value)

    def _hand_out(self) -> None:
        healthy = self._fleet.healthy()
        under_way = {
            request.tag.place
            for member in healthy
            for request in member.requests
            if isinstance(request.tag, _Share) and request.tag.round is self
        }
        todo = [
            place
            for place in range(len(self._shares))
            if place not in under_way and place not in self._results
        ]
        idle = [member for member in healthy if not member.requests]
        for member, place in zip(idle, todo, strict=False):
            tag = _Share(self, place)
            self._fleet.ask(member, "evaluate", self._method, self._shares[place], tag=tag)


class _Share:
    """Which share of which round was asked for."""

    def __init__(self, of: EvaluationRound, place: int) -> None:
        self.round, self.place = of, place


def ask_all(
    fleet: Fleet, fn: Callable[..., Any], arguments: Sequence[Any] | None = None
) -> dict[int, Any]:
    """What a function of each healthy runner returns, by index.

    It waits behind what a runner does already. One that takes longer than a sample may is left out,
    and so is one that died, of which the policy is told.

    Args:
        fleet: The runners; somebody else may sample with them at the same time.
        fn: Called in the actor with its runner, and with its argument if there are any.
        arguments: One for each runner, in order of their indices.

    Raises:
        EnvRunnerError: The function raised.
    """
    backend, policy = fleet.backend, fleet.policy
    asked: dict[Any, tuple[Member, Any]] = {}
    with fleet.lock:
        for member in fleet.healthy():
            extra = () if arguments is None else (arguments[member.worker_index - 1],)
            future = backend.call(member.handle, "apply", fn, *extra)
            asked[future] = member, member.handle
    deadline = backend.now() + policy.sample_timeout_s + policy.probe_timeout_s
    results: dict[int, Any] = {}
    while asked and (left := deadline - backend.now()) > 0:
        for future in backend.wait(list(asked), left):
            member, handle = asked.pop(future)
            try:
                answer = backend.get(future)
            except RunnerDiedError as error:
                _note_death(fleet, member, handle, error)
                continue
            results[member.worker_index] = _value(answer, member.worker_index)
    return dict(sorted(results.items()))


def _note_death(fleet: Fleet, member: Member, handle: Any, error: RunnerDiedError) -> None:
    """What ends the run by it is raised where the run goes on, not where it was noticed."""
    with fleet.lock, contextlib.suppress(EnvRunnerError):
        if member.handle is handle:
            fleet.fail(member, "died", str(error))


def close_envs(fleet: Fleet) -> None:
    """Let healthy runners close their environments, and wait a moment for it."""
    backend = fleet.backend
    with fleet.lock:
        futures = [backend.call(member.handle, "close") for member in fleet.healthy()]
    deadline = backend.now() + CLOSE_TIMEOUT_S
    while futures and (left := deadline - backend.now()) > 0:
        ready = backend.wait(futures, left)
        futures = [future for future in futures if future not in ready]


def _value(answer: Any, index: int) -> Any:
    if isinstance(answer, Raised):
        sentence = f"EnvRunner {index} raised {answer.sentence.rstrip('.')}."
        raise EnvRunnerError(with_detail(sentence, answer.traceback))
    return answer
