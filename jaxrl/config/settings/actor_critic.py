"""Settings of the algorithms that replay for a policy and for critics of its actions."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import Check, Schedule, field, non_negative, positive
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.training import Auto

TdErrorLoss = Literal["huber", "mse"]
TD_ERROR_LOSS_DOC = (
    "The loss of a TD error e: 'huber' is ½ e² within 1 and linear outside, 'mse' e²."
)
BUFFER_OF_A_MILLION = {"type": "prioritized", "capacity": 1_000_000, "alpha": 0.6, "beta": 0.4}
"""RLlib's, for SAC and TQC."""
_no_common_rate = Check(
    "None, since every part has a rate of its own (actor_lr, critic_lr, ...)",
    lambda value: value is None,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCriticTraining(OffPolicyTraining):
    """What SAC, TQC, TD3 and DDPG have in common."""

    lr: Any = field(
        default=None,
        check=_no_common_rate,
        doc="None: actor_lr, critic_lr and, where there is a temperature, alpha_lr are the rates.",
    )
    actor_lr: Schedule | Callable[[Any], Any] = field(
        default=3e-5,
        sweepable=True,
        check=non_negative,
        doc="Learning rate of the policy, as `lr` elsewhere: a number, a schedule over environment "
        "steps, or a function of them.",
    )
    critic_lr: Schedule | Callable[[Any], Any] = field(
        default=3e-4,
        sweepable=True,
        check=non_negative,
        doc="Learning rate of the critics, likewise.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftTraining(ActorCriticTraining):
    """What SAC and TQC have in common: a temperature that learns."""

    alpha_lr: Schedule | Callable[[Any], Any] = field(
        default=3e-4,
        sweepable=True,
        check=non_negative,
        doc="Learning rate of the temperature; 0 keeps it at initial_alpha.",
    )
    initial_alpha: float = field(
        default=1.0, check=positive, doc="First temperature, the weight of the entropy."
    )
    target_entropy: float | Auto = field(
        default="auto",
        doc="Entropy that the temperature is steered to; 'auto' is -d for d numbers of a Box, and "
        "0.98 log n for n legal actions of a Discrete space.",
    )
