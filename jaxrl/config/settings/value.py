"""Settings of value-based algorithms with a replay buffer."""

import dataclasses
from typing import Literal

from jaxrl.config.fields import (
    Schedule,
    count,
    field,
    finite,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.core.hparams import Traced
from jaxrl.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalValues:
    """Settings of values that are distributions of the return over atoms (Bellemare et al. 2017)."""

    num_atoms: int = field(
        default=1,
        check=count,
        doc="Number of atoms of C51, returns from v_min to v_max whose probabilities are learned; "
        "1 disables it.",
    )
    v_min: float = field(default=-10.0, check=finite, doc="Smallest return that C51 can represent.")
    v_max: float = field(default=10.0, check=finite, doc="Largest return that C51 can represent.")

    def check_support(self) -> None:
        """Raise ConfigError if the atoms are in no order."""
        if self.v_min >= self.v_max:
            raise ConfigError(
                f"v_min must be below v_max, got {self.v_min} and {self.v_max}; they bound the "
                "returns of C51."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonGreedyTraining(OffPolicyTraining):
    """Settings of algorithms of action values with a replay buffer, which explore by epsilon."""

    epsilon: Traced[Schedule] = field(
        default=[[0, 1.0], [10000, 0.05]],
        check=unit_interval,
        doc="Probability of a random action, or a schedule of it.",
    )
    epsilon_ladder: Traced[float | None] = field(
        default=None,
        check=positive,
        doc="Ape-X: the i-th of N environments explores with epsilon ** (1 + epsilon_ladder * i / "
        "(N - 1)); the paper's alpha is 7. None uses the same epsilon for all.",
    )
    double_q: bool = field(
        default=True,
        doc="Whether the online network selects the action that the target network evaluates.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNTraining(CategoricalValues, EpsilonGreedyTraining):
    """Settings of DQN and its variants."""

    dueling: bool = field(default=True, doc="Whether values and advantages have separate heads.")
    num_quantiles: int = field(
        default=1, check=count, doc="Number of quantiles of QR-DQN; 1 disables it."
    )
    noisy: bool = field(
        default=False,
        doc="Whether dense layers have learned noise, which explores in addition to epsilon.",
    )
    sigma0: float = field(
        default=0.5,
        check=positive,
        doc="Initial noise of noisy layers, scaled by 1 / sqrt(inputs).",
    )
    td_error_loss_fn: Literal["huber", "mse"] = field(
        default="huber",
        doc="Loss of scalar values; C51 uses the cross-entropy, QR-DQN the quantile Huber loss.",
    )
    use_h_function: bool = field(
        default=False,
        doc="Whether to learn rescaled values, h(x) = sign(x) (sqrt(|x| + 1) - 1) + "
        "h_function_epsilon x.",
    )
    h_function_epsilon: float = field(
        default=1e-3, check=positive, doc="Coefficient of the linear term of use_h_function."
    )
    cql_alpha: float = field(
        default=0.0,
        check=non_negative,
        doc="Weight of CQL's penalty on values of actions that a row does not have, for recorded "
        "data; 0 disables it, and each value is another program.",
    )
    margin_coeff: float = field(
        default=0.0,
        check=non_negative,
        doc="DQfD: weight of a large-margin loss on the recorded rows of input_, whose actions are to "
        "be valued above all others; the paper has 1. 0 disables it, and each value is another program.",
    )
    margin: float = field(
        default=0.8, check=non_negative, doc="Margin of this loss, in units of the return."
    )
