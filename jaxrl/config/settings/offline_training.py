"""Settings of algorithms that learn from recorded data alone."""

import dataclasses

from jaxrl.config.fields import count, field, non_negative, positive, unit_interval
from jaxrl.config.settings.training import Training


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineTraining(Training):
    """Settings of algorithms that learn from recorded data, without target networks."""

    train_batch_size: int = field(
        default=2000,
        check=count,
        doc="Number of recorded rows per gradient step, over all devices and learners.",
    )


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
        check=non_negative,
        doc="Scale of the advantages in the exponential weights of actions; 0 is behavior cloning, "
        "without a value function. Each value is another program.",
    )
    lambda_: float = field(
        default=1.0,
        check=unit_interval,
        doc="GAE's lambda; must be 1, the return of the whole episode.",
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
        return self.beta > 0.0
