"""Settings of algorithms that learn from recorded data alone."""

import dataclasses

from jaxrl.config.fields import (
    count,
    count_or_zero,
    field,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.replay import BURN_IN_DOC
from jaxrl.config.settings.training import Training
from jaxrl.core.hparams import list_hparams


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineTraining(Training):
    """Settings of algorithms that learn from recorded data, without target networks."""

    train_batch_size: int = field(
        default=2000,
        check=count,
        doc="Number of recorded rows per gradient step, over all devices and learners.",
    )
    burn_in_len: int = field(default=0, check=count_or_zero, doc=BURN_IN_DOC)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BCTraining(OfflineTraining):
    """Settings of behavior cloning."""

    bc_logstd_coeff: float = field(
        default=0.0,
        check=non_negative,
        doc="Weight of the mean log standard deviation of a Box's actions, which is maximized, so "
        "that they stay random; 0 disables it.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MARWILTraining(BCTraining):
    """Settings of Wang et al. 2018; names and defaults are RLlib's."""

    beta: float = field(
        default=1.0,
        sweepable=True,
        off=0.0,
        check=non_negative,
        doc="Scale of the advantages in the exponential weights of actions; 0 is behavior cloning, "
        "without a value function, and another program.",
    )
    lambda_: float = field(
        default=1.0,
        check=unit_interval,
        doc="GAE's lambda. 1 is the return of the whole episode; below it, advantages are computed "
        "within windows of successive rows, the last of which bootstraps. Each value is another "
        "program.",
    )
    window_length: int = field(
        default=100,
        check=count,
        doc="Number of successive rows whose advantages are computed together if lambda_ is below 1; "
        "a module with memory has max_seq_len for it.",
    )
    vf_coeff: float = field(
        default=1.0, sweepable=True, check=non_negative, doc="Weight of the value loss."
    )
    moving_average_sqd_adv_norm_start: float = field(
        default=100.0,
        sweepable=True,
        check=positive,
        doc="Initial moving average of squared advantages, whose root divides the advantages.",
    )
    moving_average_sqd_adv_norm_update_rate: float = field(
        default=1e-8,
        sweepable=True,
        check=unit_interval,
        doc="Weight of a batch's squared advantages in their moving average.",
    )

    @property
    def needs_values(self) -> bool:
        return "beta" in list_hparams(self)  # its number may be one of each lane
