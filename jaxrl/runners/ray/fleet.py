"""Fleet of remote runners: requests, monitoring, failures and restarts.

The module is independent of Ray: a `Backend` provides the actors and the clock, so every order of
events can be simulated. All waiting happens in `poll`, in bounded steps and without the lock.
"""

import collections
import contextlib
import dataclasses
import enum
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import ray
import ray.exceptions
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, remove_placement_group

from jaxrl.core.types import PyTree
from jaxrl.errors import EnvRunnerError, JaxrlError
from jaxrl.runners.counts import SampleCounts
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.env_runner import RayEnvRunner
from jaxrl.runners.ray.kept_params import KeptParams
from jaxrl.runners.ray.start import Backend, ExceptionInfo, RunnerDiedError, with_placement
from jaxrl.runners.step_ledger import StepLedger, check_delivery

if TYPE_CHECKING:
    from jaxrl.config.config import Config


FIRST_DELAY_S = 1.0
"""Delay before a second consecutive restart; it doubles with each further one."""
MAX_REPORTED_RESTARTS = 20
"""Maximum number of restarts listed in a result, latest first."""
MAX_TRACEBACK_CHARS = 4000
"""Maximum number of characters that are kept from the end of a traceback."""


class Phase(enum.Enum):
    """Phase in the life cycle of a remote runner."""

    STARTING = "starting"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """A reply is overdue by sample_timeout_s; other runners do its share."""
    WAITING = "waiting"
    """It failed and will be restarted after its back-off."""
    GONE = "gone"
    """It failed and will not be restarted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultPolicy:
    """Response to failures, from `fault_tolerance(...)` and the timeouts of `env_runners(...)`."""

    restart: bool
    ignore: bool
    max_restarts: int
    max_delay_s: float
    failures_tolerance: int
    sample_timeout_s: float
    probe_timeout_s: float
    restore_timeout_s: float

    @staticmethod
    def from_config(config: "Config") -> "FaultPolicy":
        faults, runners = config.fault_tolerance_settings, config.env_runners_settings
        return FaultPolicy(
            restart=faults.should_restart_env_runners,
            ignore=faults.ignore_env_runner_failures,
            max_restarts=faults.max_num_env_runner_restarts,
            max_delay_s=faults.delay_between_env_runner_restarts_s,
            failures_tolerance=faults.num_consecutive_env_runner_failures_tolerance,
            sample_timeout_s=runners.sample_timeout_s,
            probe_timeout_s=faults.env_runner_health_probe_timeout_s,
            restore_timeout_s=faults.env_runner_restore_timeout_s,
        )

    def get_restart_delay(self, num_consecutive_failures: int) -> float:
        """Return the seconds before the next start: 0 after the first failure, then 1, 2, 4, ..."""
        if num_consecutive_failures <= 1:
            return 0.0
        doublings = min(num_consecutive_failures - 2, 60)  # far beyond any limit, without overflow
        return min(self.max_delay_s, FIRST_DELAY_S * 2.0**doublings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingCall:
    """Pending call of a runner, with the number of environment steps that its reply contains."""

    future: object
    weights_version: int
    steps: int = 0
    tag: object = None


@dataclasses.dataclass(kw_only=True, eq=False)
class FleetMember:
    """Member of a fleet, whose index is kept by all actors that successively fill its place.

    Attributes:
        incarnation: Number of earlier actors of this member; -1 before the first start.
        env_steps: Upper bound of the steps that each of its environments has taken in all actors.
            The random keys of a new actor start from there, so nothing is sampled twice.
        start_future: Future of the start, while STARTING.
        deadline: Time at which the member fails if STARTING or SUSPECT, or starts if WAITING.
        oldest_request_time: Time since which the oldest of `requests` has been pending.
        weights_version: Version of the latest weights sent to this actor; -1 for none.
        num_published: Number of weights that had been published when it was last called.
        num_published_kept: The same for parameters that are kept apart from the weights.
        last_number: Number of the latest fragment of this actor; -1 for none.
        num_pending_rows: Number of agents' rows that this actor had begun and not completed at the end
            of its latest fragment.
        num_consecutive_failures: Number of failures since the latest reply.
    """

    worker_index: int
    phase: Phase = Phase.GONE
    incarnation: int = -1
    env_steps: int = 0
    handle: object = None
    start_future: object = None
    deadline: float = 0.0
    requests: collections.deque[PendingCall] = dataclasses.field(default_factory=collections.deque)
    oldest_request_time: float = 0.0
    weights_version: int = -1
    num_published: int = 0
    num_published_kept: int = 0
    last_number: int = -1
    num_pending_rows: int = 0
    num_consecutive_failures: int = 0
    num_restarts: int = 0

    def clear_actor(self) -> None:
        """Clear everything that refers to the actor, after it has died."""
        self.handle = self.start_future = None
        self.requests.clear()
        self.weights_version = self.last_number = -1
        self.num_published = self.num_published_kept = self.num_pending_rows = 0


class RestartLog:
    """Log of failures and restarts as messages with the original tracebacks, latest first."""

    def __init__(self) -> None:
        self._messages: collections.deque[str] = collections.deque(maxlen=MAX_REPORTED_RESTARTS)

    def add(self, sentence: str, detail: str = "") -> None:
        """Add a message; only the end of a long traceback is kept, which contains the cause."""
        self._messages.appendleft(append_traceback(sentence, detail))

    def get_messages(self) -> list[str]:
        """Return the messages, latest first."""
        return list(self._messages)


def append_traceback(sentence: str, detail: str) -> str:
    """Append the end of a traceback to a message, on a new line."""
    detail = detail.strip()
    if len(detail) > MAX_TRACEBACK_CHARS:
        detail = f"[...]{detail[-MAX_TRACEBACK_CHARS:]}"
    return f"{sentence}\n{detail}" if detail else sentence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """Reply of a member, with the tag of the request.

    A fragment counts as queued until it is trained on or discarded.
    """

    member: FleetMember
    value: Any
    tag: object = None


class Fleet:
    """Members of a runner group and their pending requests.

    Args:
        backend: Backend that runs the actors.
        policy: Response to failures.
        size: Number of members; their indices start at 1.
        env_id: Name of the environment, for messages.
        fragment_length: Number of steps per environment in a fragment.
        num_envs: Number of environments per member.
    """

    def __init__(
        self,
        backend: Backend,
        policy: FaultPolicy,
        size: int,
        env_id: str,
        fragment_length: int,
        num_envs: int,
    ) -> None:
        self.backend, self.policy, self.env_id = backend, policy, env_id
        self.members = [FleetMember(worker_index=index) for index in range(1, size + 1)]
        self.ledger = StepLedger()
        self.log = RestartLog()
        self.num_restarts = 0
        self.counts = SampleCounts()
        self.busy_s = 0.0
        self.lock = threading.RLock()
        self._fragment_length = fragment_length
        self._steps_per_fragment = fragment_length * num_envs
        self._weights: tuple[int, object] = (-1, None)
        self._kept_params: object = None
        self._num_published = self._num_published_kept = 0
        self.num_kept_params_sent = 0
        """Number of calls that parameters which training does not change were sent with."""
        self._num_consecutive_failures = 0
        self._recreated: list[int] = []
        self._fatal_error: JaxrlError | None = None
        self.has_ended = False
        """Whether the fleet was stopped, or a failure ended the run."""

    # --- members and weights ---

    @property
    def weights_version(self) -> int:
        """Version of the newest weights; -1 before the first."""
        return self._weights[0]

    def get_healthy(self) -> list[FleetMember]:
        """Return the members that reply in time, in order of their indices."""
        return [member for member in self.members if member.phase is Phase.HEALTHY]

    def is_recovering(self, *, until_idle: bool = True) -> bool:
        """Return whether any member is recovering or, by default, has pending requests."""
        if self.has_ended:
            return False
        recovering = (Phase.STARTING, Phase.WAITING, Phase.SUSPECT)
        return any(
            member.phase in recovering or (until_idle and bool(member.requests))
            for member in self.members
        )

    def pop_recreated(self) -> list[int]:
        """Return the indices of the members that were restarted since the last call."""
        with self.lock:
            indices, self._recreated = self._recreated, []
        return indices

    def publish(self, weights: Weights, kept: KeptParams | None = None) -> None:
        """Store weights once for all members, which receive them with their next request.

        Args:
            weights: Weights.
            kept: Parameters that are not among them, because training does not change them; None
                for those that were published last.
        """
        reference = self.backend.put(weights)
        kept_reference = None if kept is None else self.backend.put(kept)
        with self.lock:
            self._weights = (weights.version, reference)
            self._num_published += 1
            if kept is not None:
                self._kept_params = kept_reference
                self._num_published_kept += 1

    # --- requests ---

    def start(self) -> None:
        """Start all members without waiting; `poll` handles the completion."""
        with self.lock:
            for member in self.members:
                self._start(member)

    def wait_until_started(self) -> None:
        """Wait until all members have started.

        Raises:
            EnvRunnerError: If one cannot start or takes longer than env_runner_restore_timeout_s.
        """
        while any(member.phase is Phase.STARTING for member in self.members):
            self.poll(math.inf)

    def request_fragment(self, member: FleetMember) -> None:
        """Request another fragment from a healthy member."""
        self.call(member, "sample", steps=self._steps_per_fragment)

    def call(
        self, member: FleetMember, method: str, *args: object, steps: int = 0, tag: object = None
    ) -> None:
        """Call a method of a healthy member's actor, with the newest weights if it lacks them.

        Args:
            member: Member to call; nothing happens if it has failed in the meantime.
            method: Name of a method whose first arguments are the weights and the parameters that
                are kept apart, each None if the actor is up to date.
            *args: Other arguments of the method.
            steps: Number of environment steps that are lost without a reply.
            tag: Object returned with the reply.
        """
        with self.lock:
            if member.phase is not Phase.HEALTHY:
                return
            if not member.requests:
                member.oldest_request_time = self.backend.now()
            future = self.backend.call(member.handle, method, *self.take_unsent(member), *args)
            member.requests.append(
                PendingCall(
                    future=future, weights_version=member.weights_version, steps=steps, tag=tag
                )
            )

    def take_unsent(self, member: FleetMember) -> tuple[object, object]:
        """Return what a member's next call brings to it; the lock is held.

        Returns:
            The weights, and the parameters that are kept apart, each None if its actor is up to date.
        """
        # The same weights are published again with another task.
        is_new = member.num_published != self._num_published
        is_kept = member.num_published_kept == self._num_published_kept
        member.weights_version = self._weights[0]
        member.num_published = self._num_published
        member.num_published_kept = self._num_published_kept
        self.num_kept_params_sent += not is_kept
        return self._weights[1] if is_new else None, None if is_kept else self._kept_params

    # --- replies ---

    def poll(self, timeout_s: float, max_replies: float = math.inf) -> list[Reply]:
        """Wait for the next event and handle it.

        Args:
            timeout_s: Maximum time to wait; a deadline of a member may end the wait earlier.
            max_replies: Maximum number of replies to take. With 0, only starts are handled and no runner
                counts as late.

        Returns:
            Replies, whose fragments are received in the ledger.

        Raises:
            EnvRunnerError: If a failure ends the run according to the fault policy.
        """
        takes_replies = max_replies > 0
        with self.lock:
            self._start_waiting()
            pending = dict(self._iter_pending(takes_replies))
            deadlines = self._iter_deadlines(takes_replies)
            until = min([timeout_s, *(deadline - self.backend.now() for deadline in deadlines)])
        ready = self.backend.wait(list(pending), max(0.0, until))
        arrivals: list[Reply] = []
        with self.lock:
            if self.has_ended:
                return []
            for future in ready:
                if len(arrivals) < max_replies:
                    arrivals += self._handle_ready(pending[future], future)
            self._check_deadlines(takes_replies)
        return arrivals

    def raise_if_lost(self) -> None:
        """Raise the error that ended the run, or EnvRunnerError if no member is left."""
        if self._fatal_error is not None:
            raise self._fatal_error
        if any(member.phase is not Phase.GONE for member in self.members):
            return
        latest = next(iter(self.log.get_messages()), "")
        raise EnvRunnerError(
            f"All {len(self.members)} EnvRunners of {self.env_id} are lost and none may be "
            f"restarted; set restart_failed_env_runners=True or raise "
            f"max_num_env_runner_restarts. The latest: {latest}"
        )

    def _iter_pending(self, takes_replies: bool) -> Iterator[tuple[object, FleetMember]]:
        for member in self.members:
            if member.phase is Phase.STARTING:
                yield member.start_future, member
            elif takes_replies and member.requests:
                yield member.requests[0].future, member

    def _iter_deadlines(self, takes_replies: bool) -> Iterator[float]:
        for member in self.members:
            if member.phase in (Phase.STARTING, Phase.WAITING) or (
                takes_replies and member.phase is Phase.SUSPECT
            ):
                yield member.deadline
            elif takes_replies and member.phase is Phase.HEALTHY and member.requests:
                yield member.oldest_request_time + self.policy.sample_timeout_s

    def _handle_ready(self, member: FleetMember, future: object) -> list[Reply]:
        """Handle a future that is ready, unless the member no longer expects it."""
        if future is member.start_future:
            self._handle_start(member)
        elif member.requests and future is member.requests[0].future:
            return self._handle_reply(member)
        return []

    def _handle_start(self, member: FleetMember) -> None:
        try:
            raised: ExceptionInfo | None = self.backend.get(member.start_future)
        except RunnerDiedError as error:
            return self.fail(member, "died while it started", str(error))
        if raised is not None:
            return self._fail_raised(member, "cannot start", raised)
        member.start_future = None
        member.phase = Phase.HEALTHY
        if member.incarnation > 0:
            self._recreated.append(member.worker_index)
            self.num_restarts += 1
            member.num_restarts += 1
            self.log.add(f"{self._describe(member)} was restarted (restart {member.num_restarts}).")
        return None

    def _handle_reply(self, member: FleetMember) -> list[Reply]:
        try:
            value = self.backend.get(member.requests[0].future)
        except RunnerDiedError as error:
            self.fail(member, "died", str(error))
            return []
        if isinstance(value, ExceptionInfo):
            self._fail_raised(member, "failed", value)
            return []
        request = member.requests.popleft()
        member.phase = Phase.HEALTHY
        member.oldest_request_time = self.backend.now()
        member.num_consecutive_failures = self._num_consecutive_failures = 0
        if request.steps:
            self._receive(member, value)
        return [Reply(member=member, value=value, tag=request.tag)]

    def _receive(self, member: FleetMember, fragment: Fragment) -> None:
        member.last_number = check_delivery(
            member.worker_index, member.incarnation, member.last_number, fragment.number
        )
        member.env_steps += fragment.rollout.mask.shape[0]
        self.busy_s += fragment.seconds
        self.ledger = self.ledger.receive(fragment.num_env_steps)
        self.counts.add(fragment)
        member.num_pending_rows = fragment.num_pending_rows
        for fault in fragment.faults:
            if fault.what == "raised" and not fault.silent:
                self.log.add(
                    f"EnvRunner {fault.worker_index} restarted its environment {fault.env_index} "
                    f"of {self.env_id}, which raised; the others continued.",
                    fault.detail,
                )

    # --- accounting ---

    def mark_trained(self, fragments: Iterable[Fragment]) -> None:
        """Count queued fragments as trained."""
        with self.lock:
            for fragment in fragments:
                self.ledger = self.ledger.train(fragment.num_env_steps)

    def mark_discarded(self, fragment: Fragment, reason: str) -> None:
        """Count a queued fragment as discarded."""
        with self.lock:
            self.ledger = self.ledger.discard(fragment.num_env_steps, reason)

    def pop_busy_seconds(self) -> float:
        """Return the total sampling time of the fragments received since the last call."""
        with self.lock:
            seconds, self.busy_s = self.busy_s, 0.0
        return seconds

    # --- failures and restarts ---

    def _start(self, member: FleetMember) -> None:
        member.incarnation += 1
        member.phase = Phase.STARTING
        member.deadline = self.backend.now() + self.policy.restore_timeout_s
        member.handle, member.start_future = self.backend.start(
            member.worker_index, member.incarnation, member.env_steps
        )

    def _start_waiting(self) -> None:
        for member in self.members:
            if member.phase is Phase.WAITING and member.deadline <= self.backend.now():
                self._start(member)

    def _check_deadlines(self, takes_replies: bool) -> None:
        """Mark members as failed or suspect whose deadline has passed."""
        now, policy = self.backend.now(), self.policy
        for member in self.members:
            if member.phase is Phase.STARTING and member.deadline <= now:
                self.fail(
                    member,
                    "is not ready env_runner_restore_timeout_s="
                    f"{policy.restore_timeout_s:g} seconds after its start: raise the setting if "
                    "the environment takes so long to make",
                )
            elif takes_replies and member.phase is Phase.SUSPECT and member.deadline <= now:
                self.fail(
                    member,
                    f"hangs: it has not replied for sample_timeout_s={policy.sample_timeout_s:g} "
                    f"and env_runner_health_probe_timeout_s={policy.probe_timeout_s:g} seconds; "
                    "raise sample_timeout_s or lower rollout_fragment_length if it is only slow",
                )
            elif takes_replies and self._is_late(member, now):
                member.phase = Phase.SUSPECT
                member.deadline = now + policy.probe_timeout_s

    def _is_late(self, member: FleetMember, now: float) -> bool:
        is_pending = member.phase is Phase.HEALTHY and bool(member.requests)
        return is_pending and member.oldest_request_time + self.policy.sample_timeout_s <= now

    def _fail_raised(self, member: FleetMember, verb: str, raised: ExceptionInfo) -> None:
        """Handle an exception of user code, which ends the run if a retry is useless."""
        if raised.user_error_class is not None:
            self._end_run(
                raised.user_error_class(f"{self._describe(member)} {verb}: {raised.message}")
            )
        self.fail(member, f"{verb}: {raised.message}", raised.traceback)

    def fail(self, member: FleetMember, what: str, detail: str = "") -> None:
        """Kill a member's actor, count its pending steps as possibly lost, and apply the policy.

        Args:
            member: Failed member.
            what: Predicate of the message, e.g. "died".
            detail: Traceback or other details.

        Raises:
            EnvRunnerError: If neither restart nor ignore is set, the first start failed, or more
                consecutive failures than num_consecutive_env_runner_failures_tolerance occurred.
        """
        policy = self.policy
        message = f"{self._describe(member)} {what.rstrip('.')}."
        is_first_start = member.phase is Phase.STARTING and member.incarnation == 0
        self.backend.kill(member.handle)
        self.ledger = self.ledger.lose(sum(request.steps for request in member.requests))
        self.counts.num_agent_steps_lost += member.num_pending_rows
        member.env_steps += len(member.requests) * self._fragment_length
        member.clear_actor()
        member.phase = Phase.GONE
        self.log.add(message, detail)
        self._num_consecutive_failures += 1
        member.num_consecutive_failures += 1
        reason = "" if is_first_start else self._explain_end()
        if is_first_start or reason:
            self._end_run(EnvRunnerError(append_traceback(f"{message} {reason}".strip(), detail)))
        if policy.restart and member.incarnation < policy.max_restarts:
            member.phase = Phase.WAITING
            member.deadline = self.backend.now() + policy.get_restart_delay(
                member.num_consecutive_failures
            )

    def _explain_end(self) -> str:
        """Return why a failure ends the run under the policy; an empty string if it does not."""
        policy = self.policy
        if not (policy.restart or policy.ignore):
            return (
                "Neither restart_failed_env_runners nor ignore_env_runner_failures is set, so the "
                "run ends."
            )
        if self._num_consecutive_failures > policy.failures_tolerance:
            return (
                f"This is failure {self._num_consecutive_failures} without a fragment in between, "
                "more than num_consecutive_env_runner_failures_tolerance="
                f"{policy.failures_tolerance} allows."
            )
        return ""

    def _end_run(self, error: JaxrlError) -> NoReturn:
        self.has_ended, self._fatal_error = True, self._fatal_error or error
        raise error

    def _describe(self, member: FleetMember) -> str:
        return f"EnvRunner {member.worker_index} (environment {self.env_id})"

    def stop(self) -> None:
        """Kill all actors; safe to call more than once and from a finalizer."""
        with self.lock:
            self.has_ended = True
            for member in self.members:
                if member.handle is not None:
                    self.backend.kill(member.handle)
                member.clear_actor()
                member.phase = Phase.GONE
        self.backend.close()


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


class RayBackend:
    """Backend of Ray actors, each in a new process, never forked from one that has started JAX.

    Args:
        job: Packed job, stored once for all actors.
        options: Ray's options of each actor.
        group: Placement group with a bundle per actor; None for Ray's default placement.
    """

    def __init__(
        self, job: bytes, options: dict[str, Any], placement_group: PlacementGroup | None = None
    ) -> None:
        self._job_ref, self._group = ray.put(job), placement_group
        self._options = options
        self._actor_class: Any = ray.remote(RayEnvRunner)
        self.task: PyTree = None
        """Task that actors start with; None for the one of the job."""

    def set_job(self, job: bytes) -> None:
        """Replace the job of actors that start from now on."""
        self._job_ref = ray.put(job)

    def now(self) -> float:
        return time.monotonic()

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Any, Any]:
        options = with_placement(self._options, self._group, worker_index - 1)
        handle = self._actor_class.options(**options).remote()
        arguments = worker_index, incarnation, env_steps, self.task
        return handle, handle.start.remote(self._job_ref, *arguments)

    def call(
        self, handle: "ActorHandle[RayEnvRunner]", method: str, *args: object
    ) -> "ObjectRef[Any]":
        return getattr(handle, method).remote(*args)

    def put(self, value: Weights | KeptParams) -> "ObjectRef[Any]":
        return ray.put(value)

    def wait(self, futures: "Sequence[ObjectRef[Any]]", timeout_s: float) -> "list[ObjectRef[Any]]":
        if not futures:
            time.sleep(timeout_s)
            return []
        waiting = list(futures)
        timeout = None if timeout_s == float("inf") else timeout_s
        ready, others = ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready and others:
            more, _ = ray.wait(others, num_returns=len(others), timeout=0)
            ready = [*ready, *more]
        return ready

    def get(self, future: "ObjectRef[Any]") -> Any:
        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:  # raised outside of the actor's own handling
            cause = f"{type(error.cause).__name__}: {error.cause}"
            return ExceptionInfo(message=cause, traceback=str(error))
        except ray.exceptions.RayError as error:
            raise RunnerDiedError(" ".join(str(error).split())) from error

    def kill(self, handle: "ActorHandle[RayEnvRunner]") -> None:
        if ray.is_initialized():
            ray.kill(handle)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)
