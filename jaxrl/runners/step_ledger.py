"""Exact accounting of sampled steps: each received step is counted exactly once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

STALE = "stale"
"""Reason: sampled with outdated weights in a run that trains only on data of the newest."""
TIMEOUT = "timeout"
"""Reason: arrived after other runners had filled its batch."""
NOT_SAVED = "not_in_checkpoint"
"""Reason: queued when the checkpoint was written from which the run was restored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLedger:
    """Lifetime counts of environment steps, with received = trained + discarded + queued.

    `maybe_lost` counts steps that were requested but never received because their runner died: at
    most the fragments that it had in flight. They are not part of the balance.
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

    def receive(self, steps: int) -> "StepLedger":
        """Count a fragment as received and queued."""
        return dataclasses.replace(self, received=self.received + steps, queued=self.queued + steps)

    def train(self, steps: int) -> "StepLedger":
        """Move a queued fragment to the trained steps."""
        return dataclasses.replace(self, queued=self.queued - steps, trained=self.trained + steps)

    def discard(self, steps: int, reason: str) -> "StepLedger":
        """Move a queued fragment to the discarded steps, under the given reason."""
        discarded = {**self.discarded, reason: self.discarded.get(reason, 0) + steps}
        return dataclasses.replace(self, queued=self.queued - steps, discarded=discarded)

    def lose(self, steps: int) -> "StepLedger":
        """Count the requested steps of a runner that died as possibly lost."""
        return dataclasses.replace(self, maybe_lost=self.maybe_lost + steps)

    def get_metrics(self) -> dict[str, Any]:
        """Return the counts under their result keys, for `fault_tolerance`."""
        return {
            "num_env_steps_received_lifetime": self.received,
            "num_env_steps_trained_lifetime": self.trained,
            "num_env_steps_queued": self.queued,
            "num_env_steps_discarded_lifetime": dict(self.discarded),
            "num_env_steps_maybe_lost_lifetime": self.maybe_lost,
        }

    def to_state(self) -> dict[str, Any]:
        """Return the counts as plain data, for a checkpoint."""
        return {**dataclasses.asdict(self), "discarded": dict(self.discarded)}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "StepLedger":
        """Restore saved counts; steps queued at that time are discarded, as they were not saved."""
        ledger = StepLedger(**state)
        return ledger.discard(ledger.queued, NOT_SAVED) if ledger.queued else ledger


class DeliveryError(RuntimeError):
    """Internal error: a fragment was delivered twice, or one is missing."""


def check_delivery(worker_index: int, incarnation: int, last: int, number: int) -> int:
    """Return the number of a runner's fragment after checking that it follows the last one.

    Args:
        worker_index: Index of the runner, for the message.
        incarnation: Number of actors that filled its place before, for the message.
        last: Number of the previous fragment, -1 before the first.
        number: Number of the delivered fragment.

    Raises:
        DeliveryError: If `number` is not `last + 1`.
    """
    if number != last + 1:
        raise DeliveryError(
            f"EnvRunner {worker_index} (start {incarnation}) delivered fragment {number} after "
            f"{last}; fragments must arrive in order and exactly once."
        )
    return number
