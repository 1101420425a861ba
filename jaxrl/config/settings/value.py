"""Settings of the algorithms that learn action values from replay."""

import dataclasses
from typing import Literal

from jaxrl.config.fields import (
    Schedule,
    count,
    field,
    finite,
    positive,
    unit_interval,
)
from jaxrl.config.settings.replay import OffPolicyTraining


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNTraining(OffPolicyTraining):
    """Settings of DQN and its variants."""

    epsilon: Schedule = field(
        default=[[0, 1.0], [10000, 0.05]],
        sweepable=True,
        check=unit_interval,
        doc="Probability of a random action, or its schedule.",
    )
    epsilon_ladder: float | None = field(
        default=None,
        sweepable=True,
        check=positive,
        doc="Ape-X: the i-th of N environments explores with epsilon ** (1 + epsilon_ladder * i / "
        "(N - 1)), its paper's alpha being 7; None gives all of them the same.",
    )
    double_q: bool = field(
        default=True, doc="The learned network picks the action that the target network values."
    )
    dueling: bool = field(default=True, doc="Values and advantages have heads of their own.")
    num_atoms: int = field(
        default=1,
        check=count,
        doc="C51: above 1, the probabilities of so many returns from v_min to v_max are learned.",
    )
    v_min: float = field(default=-10.0, check=finite, doc="Least return that C51 can represent.")
    v_max: float = field(default=10.0, check=finite, doc="Largest return that C51 can represent.")
    num_quantiles: int = field(
        default=1, check=count, doc="QR-DQN: above 1, so many quantiles are learned."
    )
    noisy: bool = field(
        default=False, doc="Dense layers have learned noise, which explores beside epsilon."
    )
    sigma0: float = field(
        default=0.5, check=positive, doc="First noise of noisy layers, times 1 / sqrt(inputs)."
    )
    td_error_loss_fn: Literal["huber", "mse"] = field(
        default="huber",
        doc="Loss of single values; C51 has the cross-entropy, QR-DQN the Huber loss of quantiles.",
    )
    use_h_function: bool = field(
        default=False,
        doc="Learn rescaled values, h(x) = sign(x) (sqrt(|x| + 1) - 1) + h_function_epsilon x.",
    )
    h_function_epsilon: float = field(
        default=1e-3, check=positive, doc="The linear part of that function."
    )
