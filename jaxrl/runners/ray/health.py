"""What is known of each remote runner, and when one that failed is started again."""

import collections
import dataclasses
import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

FIRST_DELAY_S = 1.0
"""The wait before a second restart in a row; it doubles with each further one."""
MAX_REPORTED = 20
"""How many restarts results name, the latest first."""
MAX_DETAIL = 4000
"""Characters of a traceback that are kept, its end."""


class Phase(enum.Enum):
    """Where a remote runner is in its life."""

    STARTING = "starting"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """It owes an answer for longer than sample_timeout_s; others do its share."""
    WAITING = "waiting"
    """It failed and will be started again when its back-off is over."""
    GONE = "gone"
    """It failed and will not be started again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultPolicy:
    """What follows a failure; `fault_tolerance(...)` and the timeouts of `env_runners(...)`."""

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
            restart=faults.restarts_env_runners,
            ignore=faults.ignore_env_runner_failures,
            max_restarts=faults.max_num_env_runner_restarts,
            max_delay_s=faults.delay_between_env_runner_restarts_s,
            failures_tolerance=faults.num_consecutive_env_runner_failures_tolerance,
            sample_timeout_s=runners.sample_timeout_s,
            probe_timeout_s=faults.env_runner_health_probe_timeout_s,
            restore_timeout_s=faults.env_runner_restore_timeout_s,
        )

    def delay(self, failures_in_a_row: int) -> float:
        """Seconds before the next start: none after the first failure, then 1, 2, 4, ... ."""
        if failures_in_a_row <= 1:
            return 0.0
        doublings = min(failures_in_a_row - 2, 60)  # far beyond any limit, and no overflow
        return min(self.max_delay_s, FIRST_DELAY_S * 2.0**doublings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a runner owes: the answer to a call, and the environment steps in it."""

    future: Any
    weights_version: int
    steps: int = 0
    tag: Any = None


@dataclasses.dataclass(kw_only=True, eq=False)
class Member:
    """One place in the group, which keeps its index over all actors that fill it.

    Attributes:
        incarnation: How many actors have filled the place before this one.
        env_steps: Steps that each of its environments may have taken so far, over all actors: a
            new one goes on drawing from there, and repeats nothing.
        started: The future of its start, while STARTING.
        deadline: When a STARTING or SUSPECT one counts as failed, and a WAITING one starts.
        head_since: Since when it owes the oldest of `requests`.
        weights_version: The latest that this actor was sent, -1 for none.
        last_number: Of the latest fragment of this actor, -1 for none.
        failures_in_a_row: Since its latest fragment.
    """

    worker_index: int
    phase: Phase = Phase.GONE
    incarnation: int = -1
    env_steps: int = 0
    handle: Any = None
    started: Any = None
    deadline: float = 0.0
    requests: collections.deque[Request] = dataclasses.field(default_factory=collections.deque)
    head_since: float = 0.0
    weights_version: int = -1
    last_number: int = -1
    failures_in_a_row: int = 0
    restarts: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether it is there and owes nothing."""
        return self.phase is Phase.HEALTHY and not self.requests

    def forget_actor(self) -> None:
        """What held for the actor that is no more."""
        self.handle = self.started = None
        self.requests.clear()
        self.weights_version = self.last_number = -1


class RestartLog:
    """Failures and restarts in sentences with the original tracebacks, the latest first."""

    def __init__(self) -> None:
        self._sentences: collections.deque[str] = collections.deque(maxlen=MAX_REPORTED)

    def add(self, sentence: str, detail: str = "") -> None:
        """Note what happened; of a long traceback its end is kept, where the cause is."""
        self._sentences.appendleft(with_detail(sentence, detail))

    def sentences(self) -> list[str]:
        """The latest first."""
        return list(self._sentences)


def with_detail(sentence: str, detail: str) -> str:
    """A sentence, and below it a traceback's end."""
    detail = detail.strip()
    if len(detail) > MAX_DETAIL:
        detail = f"[...]{detail[-MAX_DETAIL:]}"
    return f"{sentence}\n{detail}" if detail else sentence
