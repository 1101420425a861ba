"""Calls to all runners of a fleet: evaluation rounds and functions applied to each runner."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxrl.errors import EnvRunnerError
from jaxrl.runners.ray.backend import ExceptionInfo, RunnerDiedError
from jaxrl.runners.ray.fleet import Fleet
from jaxrl.runners.ray.health import FleetMember, append_traceback

ValueT = TypeVar("ValueT")

CLOSE_TIMEOUT_S = 2.0
"""Time that environments have to close before their processes are killed."""


class EvaluationRound:
    """Asynchronous evaluation, divided into shares that the runners process.

    Args:
        fleet: Fleet of runners, which must not be used otherwise during the round.
        method: Name of the method of the runners to call.
        shares: Keyword arguments of each call.
        on_end: Function called when the round is complete.
    """

    def __init__(
        self,
        fleet: Fleet,
        method: str,
        shares: Sequence[dict[str, Any]],
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._fleet, self._method, self._on_end = fleet, method, on_done
        self._shares = list(shares)
        self._results: dict[int, Any] = {}
        self._assign_shares()

    @property
    def is_done(self) -> bool:
        """Return whether the results of all shares have been received."""
        return len(self._results) == len(self._shares)

    def collect(self, timeout_s: float = math.inf) -> list[Any]:
        """Return the results that arrive before the timeout, in order of the shares.

        Call it again to wait longer. The share of a late or failed runner is also assigned to
        another runner.

        Raises:
            EnvRunnerError: If a failure ends the run according to the fault policy, or if no runner
                is left.
        """
        now = self._fleet.backend.now
        deadline = now() + timeout_s
        while not self.is_done:
            self._fleet.raise_if_lost()
            self._assign_shares()
            for arrival in self._fleet.poll(max(0.0, deadline - now())):
                self._add_result(arrival.tag, arrival.value)
            if now() >= deadline:
                break
        if self.is_done:
            self._on_end()
        return [self._results[index] for index in sorted(self._results)]

    def _add_result(self, tag: object, value: object) -> None:
        """Store a result, ignoring replies from rounds that were abandoned."""
        if isinstance(tag, _ShareTag) and tag.round is self:
            self._results.setdefault(tag.index, value)

    def _assign_shares(self) -> None:
        healthy = self._fleet.get_healthy()
        pending = {
            request.tag.index
            for member in healthy
            for request in member.requests
            if isinstance(request.tag, _ShareTag) and request.tag.round is self
        }
        todo = [
            index
            for index in range(len(self._shares))
            if index not in pending and index not in self._results
        ]
        idle = [member for member in healthy if not member.requests]
        for member, index in zip(idle, todo, strict=False):
            tag = _ShareTag(self, index)
            self._fleet.call(member, "evaluate", self._method, self._shares[index], tag=tag)


class _ShareTag:
    """Round and index of the share that a request belongs to."""

    def __init__(self, evaluation_round: EvaluationRound, index: int) -> None:
        self.round, self.index = evaluation_round, index


def call_all(
    fleet: Fleet,
    fn: Callable[..., Any],
    arguments: Sequence[Any] | None = None,
    *,
    sends_weights: bool = False,
) -> dict[int, Any]:
    """Call a function on each healthy runner and return the results by runner index.

    The call is queued behind a runner's pending requests. Runners that exceed the sampling timeout
    are left out, and so are runners that died, which are handled by the fault policy.

    Args:
        fleet: Fleet of runners; another thread may sample from it at the same time.
        fn: Function called in the actor with its runner, and with its argument if there are any.
        arguments: One argument per runner, in order of their indices.
        sends_weights: Whether runners have the newest published weights when they are called.

    Raises:
        EnvRunnerError: If the function raised.
    """
    backend, policy = fleet.backend, fleet.policy
    pending: dict[Any, tuple[FleetMember, Any]] = {}
    with fleet.lock:
        for member in fleet.get_healthy():
            extra = () if arguments is None else (arguments[member.worker_index - 1],)
            unsent = fleet.take_unsent(member) if sends_weights else (None, None)
            future = backend.call(member.handle, "apply", *unsent, fn, *extra)
            pending[future] = member, member.handle
    deadline = backend.now() + policy.sample_timeout_s + policy.probe_timeout_s
    results: dict[int, Any] = {}
    while pending and (left := deadline - backend.now()) > 0:
        for future in backend.wait(list(pending), left):
            member, handle = pending.pop(future)
            try:
                reply = backend.get(future)
            except RunnerDiedError as error:
                _record_death(fleet, member, handle, error)
                continue
            results[member.worker_index] = _unwrap(reply, member.worker_index)
    return dict(sorted(results.items()))


def _record_death(
    fleet: Fleet, member: FleetMember, handle: object, error: RunnerDiedError
) -> None:
    """Mark a member as failed; if that ends the run, the error is raised by the next sampling."""
    with fleet.lock, contextlib.suppress(EnvRunnerError):
        if member.handle is handle:
            fleet.fail(member, "died", str(error))


def close_envs(fleet: Fleet) -> None:
    """Close the environments of healthy runners, waiting up to `CLOSE_TIMEOUT_S`."""
    backend = fleet.backend
    with fleet.lock:
        futures = [backend.call(member.handle, "close") for member in fleet.get_healthy()]
    deadline = backend.now() + CLOSE_TIMEOUT_S
    while futures and (left := deadline - backend.now()) > 0:
        ready = backend.wait(futures, left)
        futures = [future for future in futures if future not in ready]


def _unwrap(reply: ValueT | ExceptionInfo, index: int) -> ValueT:
    if isinstance(reply, ExceptionInfo):
        message = f"EnvRunner {index} raised {reply.message.rstrip('.')}."
        raise EnvRunnerError(append_traceback(message, reply.traceback))
    return reply
