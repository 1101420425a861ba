"""Remote runners that are kept going: asked for fragments, watched, given up or started again.

Nothing here knows Ray: actors and clock are a `Backend`'s, so every order of events can be
simulated. All waiting is done in `poll`, in bounded steps and without holding the lock.
"""

import dataclasses
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from jaxrl.errors import EnvRunnerError, JaxrlError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.backend import Backend, Raised, RunnerDiedError
from jaxrl.runners.ray.health import (
    FaultPolicy,
    Member,
    Phase,
    Request,
    RestartLog,
    with_detail,
)
from jaxrl.runners.step_ledger import Ledger, check_delivery


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """What a member answered. A fragment is queued until it is trained on or discarded.

    `tag` is what `ask` was given.
    """

    member: Member
    value: Any
    tag: Any = None


class Fleet:
    """The members of a group and what each owes.

    Args:
        backend: Runs the actors.
        policy: What follows a failure.
        size: How many members; their indices count from 1.
        env_id: For messages.
        fragment_length: Steps of each environment in a fragment.
        num_envs: Environments of each member.
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
        self.members = [Member(worker_index=index) for index in range(1, size + 1)]
        self.ledger = Ledger()
        self.log = RestartLog()
        self.num_restarts = 0
        self.num_sub_env_restarts = 0
        self.busy_s = 0.0
        self.lock = threading.RLock()
        self._fragment_length = fragment_length
        self._steps_per_fragment = fragment_length * num_envs
        self._weights: tuple[int, Any] = (-1, None)
        self._failures_in_a_row = 0
        self._recreated: list[int] = []
        self._ended_by: JaxrlError | None = None
        self.is_over = False
        """Whether it was stopped, or a failure ended the run."""

    # --- what is there ---

    @property
    def weights_version(self) -> int:
        """The newest, -1 before the first."""
        return self._weights[0]

    def healthy(self) -> list[Member]:
        """The members that answer in time, in order of their indices."""
        return [member for member in self.members if member.phase is Phase.HEALTHY]

    def is_unsettled(self, *, at_rest: bool = True) -> bool:
        """Whether waiting may bring a member back, or (`at_rest`) to the end of what it does."""
        if self.is_over:
            return False
        comes_back = (Phase.STARTING, Phase.WAITING, Phase.SUSPECT)
        return any(
            member.phase in comes_back or (at_rest and bool(member.requests))
            for member in self.members
        )

    def take_recreated(self) -> list[int]:
        """The indices of the members that were started again since the last call."""
        with self.lock:
            taken, self._recreated = self._recreated, []
        return taken

    def publish(self, weights: Weights) -> None:
        """Write weights once where all can read them; each gets them with its next request."""
        written = self.backend.put(weights)
        with self.lock:
            self._weights = (weights.version, written)

    # --- asking ---

    def start(self) -> None:
        """Begin to start all members; `poll` notices when they are there."""
        with self.lock:
            for member in self.members:
                self._start(member)

    def wait_until_started(self) -> None:
        """Wait until every member is there.

        Raises:
            EnvRunnerError: One cannot start, or takes longer than env_runner_restore_timeout_s.
        """
        while any(member.phase is Phase.STARTING for member in self.members):
            self.poll(math.inf)

    def request(self, member: Member) -> None:
        """Ask a healthy member for one more fragment."""
        self.ask(member, "sample", steps=self._steps_per_fragment)

    def ask(self, member: Member, method: str, *args: Any, steps: int = 0, tag: Any = None) -> None:
        """Call a method of a healthy member's actor, with the newest weights if it lacks them.

        Args:
            member: One that failed since it was looked at is asked for nothing.
            method: Its first argument are the weights, None for those that the actor has.
            *args: Its other arguments.
            steps: Environment steps that are lost if it does not answer.
            tag: Comes back with the answer.
        """
        with self.lock:
            if member.phase is not Phase.HEALTHY:
                return
            version, written = self._weights
            weights = written if member.weights_version != version else None
            if not member.requests:
                member.head_since = self.backend.now()
            future = self.backend.call(member.handle, method, weights, *args)
            member.weights_version = version
            member.requests.append(
                Request(future=future, weights_version=version, steps=steps, tag=tag)
            )

    # --- hearing ---

    def poll(self, timeout_s: float, most: float = math.inf) -> list[Arrival]:
        """Wait until something happens, and do what follows from it.

        Args:
            timeout_s: Not longer than this; deadlines of members come before it.
            most: So many fragments are taken at most; with 0 only starts are looked at, and no
                runner counts as late.

        Returns:
            What arrived, received in the ledger.

        Raises:
            EnvRunnerError: The policy says that a failure ends the run.
        """
        harvest = most > 0
        with self.lock:
            self._start_waiting()
            watched = dict(self._watched(harvest))
            until = min([timeout_s, *(at - self.backend.now() for at in self._deadlines(harvest))])
        ready = self.backend.wait(list(watched), max(0.0, until))
        arrivals: list[Arrival] = []
        with self.lock:
            if self.is_over:
                return []
            for future in ready:
                if len(arrivals) < most:
                    arrivals += self._hear(watched[future], future)
            self._expire(harvest)
        return arrivals

    def raise_if_lost(self) -> None:
        """Raises what ended the run, or EnvRunnerError when no member is left or comes back."""
        if self._ended_by is not None:
            raise self._ended_by
        if any(member.phase is not Phase.GONE for member in self.members):
            return
        latest = next(iter(self.log.sentences()), "")
        raise EnvRunnerError(
            f"All {len(self.members)} EnvRunners of {self.env_id} are lost and none may be "
            f"started again; set restart_failed_env_runners=True or raise "
            f"max_num_env_runner_restarts. The latest: {latest}"
        )

    def _watched(self, harvest: bool) -> Iterator[tuple[Any, Member]]:
        for member in self.members:
            if member.phase is Phase.STARTING:
                yield member.started, member
            elif harvest and member.requests:
                yield member.requests[0].future, member

    def _deadlines(self, harvest: bool) -> Iterator[float]:
        for member in self.members:
            if member.phase in (Phase.STARTING, Phase.WAITING) or (
                harvest and member.phase is Phase.SUSPECT
            ):
                yield member.deadline
            elif harvest and member.phase is Phase.HEALTHY and member.requests:
                yield member.head_since + self.policy.sample_timeout_s

    def _hear(self, member: Member, future: Any) -> list[Arrival]:
        """Take a future that is ready; a member that changed meanwhile owes it no more."""
        if future is member.started:
            self._take_start(member)
        elif member.requests and future is member.requests[0].future:
            return self._take_answer(member)
        return []

    def _take_start(self, member: Member) -> None:
        try:
            raised: Raised | None = self.backend.get(member.started)
        except RunnerDiedError as error:
            return self.fail(member, "died while it started", str(error))
        if raised is not None:
            return self._fail_raised(member, "cannot start", raised)
        member.started = None
        member.phase = Phase.HEALTHY
        if member.incarnation > 0:
            self._recreated.append(member.worker_index)
            self.num_restarts += 1
            member.restarts += 1
            self.log.add(f"{self._name(member)} was started again (restart {member.restarts}).")
        return None

    def _take_answer(self, member: Member) -> list[Arrival]:
        try:
            value = self.backend.get(member.requests[0].future)
        except RunnerDiedError as error:
            self.fail(member, "died", str(error))
            return []
        if isinstance(value, Raised):
            self._fail_raised(member, "failed", value)
            return []
        request = member.requests.popleft()
        member.phase = Phase.HEALTHY
        member.head_since = self.backend.now()
        member.failures_in_a_row = self._failures_in_a_row = 0
        if request.steps:
            self._receive(member, value)
        return [Arrival(member=member, value=value, tag=request.tag)]

    def _receive(self, member: Member, fragment: Fragment) -> None:
        member.last_number = check_delivery(
            member.worker_index, member.incarnation, member.last_number, fragment.number
        )
        member.env_steps += fragment.rollout.mask.shape[0]
        self.busy_s += fragment.seconds
        self.ledger = self.ledger.receive(fragment.num_env_steps)
        raised = [fault for fault in fragment.faults if fault.what == "raised"]
        self.num_sub_env_restarts += len(raised)
        for fault in raised:
            if not fault.silent:
                self.log.add(
                    f"EnvRunner {fault.worker_index} restarted its environment {fault.env_index} "
                    f"of {self.env_id}, which raised; the others went on.",
                    fault.detail,
                )

    # --- accounts ---

    def train(self, fragments: Iterable[Fragment]) -> None:
        """Fragments that were queued go to the learner."""
        with self.lock:
            for fragment in fragments:
                self.ledger = self.ledger.train(fragment.num_env_steps)

    def discard(self, fragment: Fragment, reason: str) -> None:
        """A fragment that was queued is thrown away."""
        with self.lock:
            self.ledger = self.ledger.discard(fragment.num_env_steps, reason)

    def take_busy_s(self) -> float:
        """Seconds that runners were at work for what arrived since the last call, together."""
        with self.lock:
            taken, self.busy_s = self.busy_s, 0.0
        return taken

    # --- failing and coming back ---

    def _start(self, member: Member) -> None:
        member.incarnation += 1
        member.phase = Phase.STARTING
        member.deadline = self.backend.now() + self.policy.restore_timeout_s
        member.handle, member.started = self.backend.start(
            member.worker_index, member.incarnation, member.env_steps
        )

    def _start_waiting(self) -> None:
        for member in self.members:
            if member.phase is Phase.WAITING and member.deadline <= self.backend.now():
                self._start(member)

    def _expire(self, harvest: bool) -> None:
        """What follows from time alone."""
        now, policy = self.backend.now(), self.policy
        for member in self.members:
            if member.phase is Phase.STARTING and member.deadline <= now:
                self.fail(
                    member,
                    "is not ready env_runner_restore_timeout_s="
                    f"{policy.restore_timeout_s:g} seconds after its start: raise the setting if "
                    "the environment takes so long to make",
                )
            elif harvest and member.phase is Phase.SUSPECT and member.deadline <= now:
                self.fail(
                    member,
                    f"hangs: it has not answered for sample_timeout_s={policy.sample_timeout_s:g} "
                    f"and env_runner_health_probe_timeout_s={policy.probe_timeout_s:g} seconds; "
                    "raise sample_timeout_s or lower rollout_fragment_length if it is only slow",
                )
            elif harvest and self._is_late(member, now):
                member.phase = Phase.SUSPECT
                member.deadline = now + policy.probe_timeout_s

    def _is_late(self, member: Member, now: float) -> bool:
        owes = member.phase is Phase.HEALTHY and bool(member.requests)
        return owes and member.head_since + self.policy.sample_timeout_s <= now

    def _fail_raised(self, member: Member, verb: str, raised: Raised) -> None:
        """An exception of the user's code; one that trying again cannot help ends the run."""
        if raised.refused is not None:
            self._end(raised.refused(f"{self._name(member)} {verb}: {raised.sentence}"))
        self.fail(member, f"{verb}: {raised.sentence}", raised.traceback)

    def fail(self, member: Member, what: str, detail: str = "") -> None:
        """Give an actor up: what it owes may be lost, and the policy says what follows.

        Raises:
            EnvRunnerError: Neither restart nor ignore is set, the first start failed, or failures
                are more in a row than num_consecutive_env_runner_failures_tolerance.
        """
        policy = self.policy
        sentence = f"{self._name(member)} {what.rstrip('.')}."
        is_first_start = member.phase is Phase.STARTING and member.incarnation == 0
        self.backend.kill(member.handle)
        self.ledger = self.ledger.lose(sum(request.steps for request in member.requests))
        member.env_steps += len(member.requests) * self._fragment_length
        member.forget_actor()
        member.phase = Phase.GONE
        self.log.add(sentence, detail)
        self._failures_in_a_row += 1
        member.failures_in_a_row += 1
        why = "" if is_first_start else self._why_over()
        if is_first_start or why:
            self._end(EnvRunnerError(with_detail(f"{sentence} {why}".strip(), detail)))
        if policy.restart and member.incarnation < policy.max_restarts:
            member.phase = Phase.WAITING
            member.deadline = self.backend.now() + policy.delay(member.failures_in_a_row)

    def _why_over(self) -> str:
        """Why the policy lets a failure end the run; an empty string if it does not."""
        policy = self.policy
        if not (policy.restart or policy.ignore):
            return (
                "Neither restart_failed_env_runners nor ignore_env_runner_failures is set, so the "
                "run ends."
            )
        if self._failures_in_a_row > policy.failures_tolerance:
            return (
                f"That is failure {self._failures_in_a_row} without a fragment in between, more "
                "than num_consecutive_env_runner_failures_tolerance="
                f"{policy.failures_tolerance} allows."
            )
        return ""

    def _end(self, error: JaxrlError) -> NoReturn:
        self.is_over, self._ended_by = True, self._ended_by or error
        raise error

    def _name(self, member: Member) -> str:
        return f"EnvRunner {member.worker_index} (environment {self.env_id})"

    def stop(self) -> None:
        """End all actors; may be called twice, and from wherever the group is let go."""
        with self.lock:
            self.is_over = True
            for member in self.members:
                if member.handle is not None:
                    self.backend.kill(member.handle)
                member.forget_actor()
                member.phase = Phase.GONE
        self.backend.close()
