"""Exact accounts of sampled steps: every step that was received is in one place, and only one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

STALE = "stale"
"""Sampled with weights that are no longer the newest, where only the newest may be trained on."""
TIMEOUT = "timeout"
"""Arrived after its batch had been filled by other runners."""
NOT_SAVED = "not_in_checkpoint"
"""Waited in a queue when the checkpoint was written that the run was restored from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """Lifetime counts of environment steps; received = trained + discarded + queued, always.

    `maybe_lost` are steps that were asked for and never received, because their runner died: at
    most the fragments it had in flight. They are no part of the balance.
    """

    received: int = 0
    trained: int = 0
    queued: int = 0
    discarded: Mapping[str, int] = dataclasses.field(default_factory=dict)
    maybe_lost: int = 0

    def __post_init__(self) -> None:
        counts = (self.received, self.trained, self.queued, self.maybe_lost)
        if min(*counts, *self.discarded.values()) < 0:
            raise ValueError(f"A count of steps is negative: {self}.")
        if self.received != self.trained + self.queued + sum(self.discarded.values()):
            raise ValueError(f"The counts of steps do not balance: {self}.")

    def receive(self, steps: int) -> "Ledger":
        """A fragment arrived and waits."""
        return dataclasses.replace(self, received=self.received + steps, queued=self.queued + steps)

    def train(self, steps: int) -> "Ledger":
        """A fragment that waited goes to the learner."""
        return dataclasses.replace(self, queued=self.queued - steps, trained=self.trained + steps)

    def discard(self, steps: int, reason: str) -> "Ledger":
        """A fragment that waited is thrown away."""
        discarded = {**self.discarded, reason: self.discarded.get(reason, 0) + steps}
        return dataclasses.replace(self, queued=self.queued - steps, discarded=discarded)

    def lose(self, steps: int) -> "Ledger":
        """A runner died that had been asked for so many."""
        return dataclasses.replace(self, maybe_lost=self.maybe_lost + steps)

    def metrics(self) -> dict[str, Any]:
        """As results name the counts, below `fault_tolerance`."""
        return {
            "num_env_steps_received_lifetime": self.received,
            "num_env_steps_trained_lifetime": self.trained,
            "num_env_steps_queued": self.queued,
            "num_env_steps_discarded_lifetime": dict(self.discarded),
            "num_env_steps_maybe_lost_lifetime": self.maybe_lost,
        }

    def to_state(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {**dataclasses.asdict(self), "discarded": dict(self.discarded)}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "Ledger":
        """The accounts of a saved run; what was queued then is not in its checkpoint."""
        ledger = Ledger(**state)
        return ledger.discard(ledger.queued, NOT_SAVED) if ledger.queued else ledger


class DeliveryError(RuntimeError):
    """A fragment came twice, or one between two is missing: a fault of this program."""


def check_delivery(worker_index: int, incarnation: int, last: int, number: int) -> int:
    """The number of a runner's fragment, which follows that of its last one (-1 for none yet).

    Raises:
        DeliveryError: It does not.
    """
    if number != last + 1:
        raise DeliveryError(
            f"EnvRunner {worker_index} (start {incarnation}) delivered fragment {number} after "
            f"{last}; fragments must come one by one and once."
        )
    return number
