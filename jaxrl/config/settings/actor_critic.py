"""Settings of actor-critic algorithms with a replay buffer."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import Check, Schedule, field, non_negative, positive
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.training import Auto

TdErrorLoss = Literal["huber", "mse"]
TD_ERROR_LOSS_DOC = (
    "Loss of a TD error e: 'huber' is ½ e² for |e| <= 1 and linear beyond, 'mse' is e²."
)
SAC_REPLAY_BUFFER = {"type": "prioritized", "capacity": 1_000_000, "alpha": 0.6, "beta": 0.4}
"""RLlib's default buffer of SAC, also used for TQC."""
_no_shared_lr = Check(
    "None, since every part has its own learning rate (actor_lr, critic_lr, ...)",
    lambda value: value is None,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCriticTraining(OffPolicyTraining):
    """Settings that SAC, TQC, TD3 and DDPG have in common."""

    lr: Any = field(
        default=None,
        check=_no_shared_lr,
        doc="Unused, must be None; the learning rates are actor_lr, critic_lr and, with a "
        "temperature, alpha_lr.",
    )
    actor_lr: Schedule | Callable[[Any], Any] = field(
        default=3e-5,
        sweepable=True,
        check=non_negative,
        doc="Learning rate of the policy: a number, a schedule [[timestep, value], ...] over "
        "environment steps, or a function of their number.",
    )
    critic_lr: Schedule | Callable[[Any], Any] = field(
        default=3e-4,
        sweepable=True,
        check=non_negative,
        doc="Learning rate of the critics, in the same forms as actor_lr.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftActorCriticTraining(ActorCriticTraining):
    """Settings that SAC and TQC have in common, with a learned temperature."""

    alpha_lr: Schedule | Callable[[Any], Any] = field(
        default=3e-4,
        sweepable=True,
        check=non_negative,
        doc="Learning rate of the temperature; 0 keeps it at initial_alpha.",
    )
    initial_alpha: float = field(
        default=1.0, check=positive, doc="Initial temperature, the weight of the entropy."
    )
    target_entropy: float | Auto = field(
        default="auto",
        doc="Entropy that the temperature is adapted to; 'auto' is -d for a Box with d elements, "
        "and 0.98 log n for n legal actions of a Discrete space.",
    )
