"""Arithmetic of training on recorded data: gradient steps alone."""

import dataclasses
import math
from typing import TYPE_CHECKING

from jaxrl.config.batch_plan.arithmetic import BatchPlan, divisors, find_nearest
from jaxrl.config.batch_plan.on_policy import BatchSizeError
from jaxrl.config.batch_plan.replay import compute_num_rows
from jaxrl.config.modules import get_rows_per_sample
from jaxrl.config.offline import count_source_rows

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MAX_UPDATES_PER_BATCH = 128
"""Maximum number of gradient steps per train batch, between which a run may stop."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflinePlan(BatchPlan):
    """Sizes of one train batch: `num_minibatches` updates of `train_batch_size` recorded rows each.

    An iteration is `batches_per_iteration` train batches.
    """

    batches_per_iteration: int

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps in one iteration."""
        return self.num_minibatches * self.batches_per_iteration

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        return f"{self.updates_per_iteration} updates of {self.train_batch_size} recorded rows"


def make_offline_plan(config: "AlgorithmConfig") -> OfflinePlan:
    """Return the plan of a config that learns from recorded data.

    Raises:
        ConfigError: If sizes are not divisible; the message suggests sizes that are.
    """
    rows = compute_num_rows(config)
    total = config.offline_data_settings.num_updates_per_iteration
    updates = max(n for n in divisors(total) if n <= MAX_UPDATES_PER_BATCH)
    return OfflinePlan(
        num_envs=1,
        rollout_fragment_length=1,
        train_batch_size=rows,
        minibatch_size=rows,
        num_minibatches=updates,
        num_epochs=1,
        num_shards=_choose_num_shards(config, rows),
        envs_per_runner=1,
        batches_per_iteration=total // updates,
    )


def _choose_num_shards(config: "AlgorithmConfig", rows: int) -> int:
    """Return the explicit number of shards, or the largest that fits of 8, 4, 2, 1."""
    length = get_rows_per_sample(config)
    samples = math.gcd(rows, *count_source_rows(config, rows, length).values()) // length
    wanted = config.learners_settings.num_shards
    if wanted == "auto":
        return next(size for size in (8, 4, 2, 1) if samples % size == 0)
    if samples % wanted:
        raise BatchSizeError(
            f"num_shards={wanted} must divide train_batch_size={rows}; set it to "
            f"{find_nearest(divisors(samples), wanted)}."
        )
    return wanted
