"""Fleet of remote runners: requests, monitoring, failures and restarts.

The module is independent of Ray: a `Backend` provides the actors and the clock, so every order of
events can be simulated. All waiting happens in `poll`, in bounded steps and without the lock.
"""

import dataclasses
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from jaxrl.errors import EnvRunnerError, JaxrlError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.multi.counts import AgentCounts
from jaxrl.runners.ray.backend import Backend, ExceptionInfo, RunnerDiedError
from jaxrl.runners.ray.health import (
    FaultPolicy,
    FleetMember,
    PendingCall,
    Phase,
    RestartLog,
    append_traceback,
)
from jaxrl.runners.ray.kept_params import KeptParams
from jaxrl.runners.step_ledger import StepLedger, check_delivery


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
        self.num_sub_env_restarts = 0
        self.agent_counts: AgentCounts | None = None
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
        raised = [fault for fault in fragment.faults if fault.what == "raised"]
        self.num_sub_env_restarts += len(raised)
        if self.agent_counts is not None:
            self.agent_counts.add(fragment)
            member.num_pending_rows = fragment.num_pending_rows
        for fault in raised:
            if not fault.silent:
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
        if self.agent_counts is not None:
            self.agent_counts.num_agent_steps_lost += member.num_pending_rows
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
