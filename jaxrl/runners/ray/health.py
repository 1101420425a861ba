"""State of each remote runner, and the policy for restarting failed ones."""

import collections
import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

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
    def from_config(config: "AlgorithmConfig") -> "FaultPolicy":
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

    @property
    def is_idle(self) -> bool:
        """Return whether the member is healthy and has no pending requests."""
        return self.phase is Phase.HEALTHY and not self.requests

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
