"""Settings of actor-critic algorithms with a replay buffer."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import (
    Check,
    Schedule,
    at_least_one,
    field,
    non_negative,
    positive,
    unit_interval,
)
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
class TwinCritics:
    """Settings of critics with one value each, of which the smallest is used."""

    twin_q: bool = field(
        default=True, doc="Whether to learn two critics and use the smaller value, instead of one."
    )
    td_error_loss_fn: TdErrorLoss = field(default="mse", doc=TD_ERROR_LOSS_DOC)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageWeightedTraining(TwinCritics, ActorCriticTraining):
    """Settings that IQL, AWAC and CRR have in common."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinTraining(TwinCritics, SoftActorCriticTraining):
    """Settings of SAC and of what follows from it: two critics and a temperature."""

    td_error_loss_fn: TdErrorLoss = field(default="huber", doc=TD_ERROR_LOSS_DOC)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3Training(TwinCritics, ActorCriticTraining):
    """Settings of Fujimoto et al. 2018; all noise is in units of half the action range."""

    policy_delay: int = field(
        default=2,
        check=at_least_one,
        doc="Updates of the critics per update of the policy and of the target networks.",
    )
    smooth_target_policy: bool = field(
        default=True, doc="Whether to add noise to the actions of the targets."
    )
    target_noise: float = field(
        default=0.2,
        sweepable=True,
        check=non_negative,
        doc="Standard deviation of that noise, in units of half the action range.",
    )
    target_noise_clip: float = field(
        default=0.5,
        sweepable=True,
        check=non_negative,
        doc="Bound of that noise, in units of half the action range.",
    )
    exploration_noise: Literal["gaussian", "ou"] = field(
        default="gaussian",
        for_number="exploration_sigma",
        doc="Exploration noise on actions: 'gaussian' is independent at every step, 'ou' is an "
        "Ornstein-Uhlenbeck process that starts at 0 in every episode.",
    )
    exploration_sigma: float = field(
        default=0.1,
        sweepable=True,
        check=non_negative,
        doc="Standard deviation of the exploration noise's draws.",
    )
    exploration_sigma_max: float | None = field(
        default=None,
        sweepable=True,
        check=non_negative,
        doc="The deviation of the last of N environments, and that of the i-th is exploration_sigma + i / (N - "
        "1) (exploration_sigma_max - exploration_sigma). None is exploration_sigma for all.",
    )
    ou_theta: float = field(
        default=0.15,
        sweepable=True,
        check=unit_interval,
        doc="Fraction by which the Ornstein-Uhlenbeck process decays at every step.",
    )
    bc_coeff: float | None = field(
        default=None,
        sweepable=True,
        check=positive,
        doc="TD3+BC: weight of the values, divided by their mean size, relative to the imitation of "
        "the rows' actions; the paper's alpha is 2.5. None leaves the imitation out.",
    )
