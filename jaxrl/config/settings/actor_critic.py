"""Settings of actor-critic algorithms with a replay buffer."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from jaxrl.config.fields import (
    Check,
    Schedule,
    at_least_one,
    count,
    field,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.training import Auto, Training
from jaxrl.config.settings.value import CategoricalValues
from jaxrl.core.hparams import Traced
from jaxrl.errors import ConfigError

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
    """Settings of algorithms with a policy, critics and a replay buffer."""

    renorms_critics: ClassVar[bool] = False
    """True if critics may be renormalized by the moments of the batch."""

    lr: Any = field(
        default=None,
        check=_no_shared_lr,
        doc="Unused, must be None; the learning rates are actor_lr, critic_lr and, with a "
        "temperature, alpha_lr.",
    )
    actor_lr: Traced[Schedule | Callable[[Any], Any]] = field(
        default=3e-5,
        check=non_negative,
        doc="Learning rate of the policy: a number, a schedule [[timestep, value], ...] over "
        "environment steps, or a function of their number.",
    )
    critic_lr: Traced[Schedule | Callable[[Any], Any]] = field(
        default=3e-4,
        check=non_negative,
        doc="Learning rate of the critics, in the same forms as actor_lr.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BootstrappedTraining(ActorCriticTraining):
    """Settings that SAC, TQC, TD3 and DDPG have in common: critics that are bootstrapped from critics."""

    renorms_critics: ClassVar[bool] = True

    use_target_network: bool = field(
        default=True,
        doc="Whether targets are those of slower copies of the networks. False joins each row with what "
        "follows it in one pass through the critics that learn (CrossQ).",
    )
    policy_delay: int = field(
        default=1,
        check=at_least_one,
        doc="Updates of the critics per update of the policy, and of the temperature.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinCritics:
    """Settings of critics with one value each, of which the smallest is used."""

    twin_q: bool = field(
        default=True, doc="Whether to learn two critics and use the smaller value, instead of one."
    )
    num_critics: int | None = field(
        default=None,
        check=count,
        doc="Number of critics, of which the smallest value is used; None is 2 with twin_q, else 1.",
    )
    td_error_loss_fn: TdErrorLoss = field(default="mse", doc=TD_ERROR_LOSS_DOC)

    def resolve_num_critics(self) -> int:
        """Return the number of critics."""
        return self.num_critics or (2 if self.twin_q else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsembleCritics(CategoricalValues, TwinCritics):
    """Settings of critics of which some are drawn for the targets, with one value or C51's atoms."""

    num_target_critics: int | None = field(
        default=None,
        check=count,
        doc="REDQ: number of critics, drawn anew in each update, of which targets use the smallest; the "
        "policy then maximizes the mean of all. None uses all in the targets.",
    )

    @property
    def draws_critics(self) -> bool:
        """Return whether targets are those of some of the critics."""
        return (self.num_target_critics or math.inf) < self.resolve_num_critics()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageWeightedTraining(TwinCritics, ActorCriticTraining):
    """Settings that IQL, AWAC and CRR have in common."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftActorCriticTraining(BootstrappedTraining):
    """Settings that SAC and TQC have in common, with a learned temperature."""

    alpha_lr: Traced[Schedule | Callable[[Any], Any]] = field(
        default=3e-4,
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
class TwinTraining(EnsembleCritics, SoftActorCriticTraining):
    """Settings of SAC and of what follows from it: two or more critics and a temperature."""

    td_error_loss_fn: TdErrorLoss = field(default="huber", doc=TD_ERROR_LOSS_DOC)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3Training(EnsembleCritics, BootstrappedTraining):
    """Settings of Fujimoto et al. 2018; all noise is in units of half the action range."""

    policy_delay: int = field(
        default=2,
        check=at_least_one,
        doc="Updates of the critics per update of the policy and of the target networks.",
    )
    smooth_target_policy: bool = field(
        default=True, doc="Whether to add noise to the actions of the targets."
    )
    target_noise: Traced[float] = field(
        default=0.2,
        check=non_negative,
        doc="Standard deviation of that noise, in units of half the action range.",
    )
    target_noise_clip: Traced[float] = field(
        default=0.5,
        check=non_negative,
        doc="Bound of that noise, in units of half the action range.",
    )
    exploration_noise: Literal["gaussian", "ou"] = field(
        default="gaussian",
        for_number="exploration_sigma",
        doc="Exploration noise on actions: 'gaussian' is independent at every step, 'ou' is an "
        "Ornstein-Uhlenbeck process that starts at 0 in every episode.",
    )
    exploration_sigma: Traced[float] = field(
        default=0.1,
        check=non_negative,
        doc="Standard deviation of the exploration noise's draws.",
    )
    exploration_sigma_max: Traced[float | None] = field(
        default=None,
        check=non_negative,
        doc="The deviation of the last of N environments, and that of the i-th is exploration_sigma + i / (N - "
        "1) (exploration_sigma_max - exploration_sigma). None is exploration_sigma for all.",
    )
    ou_theta: Traced[float] = field(
        default=0.15,
        check=unit_interval,
        doc="Fraction by which the Ornstein-Uhlenbeck process decays at every step.",
    )
    bc_coeff: Traced[float | None] = field(
        default=None,
        check=positive,
        doc="TD3+BC: weight of the values, divided by their mean size, relative to the imitation of "
        "the rows' actions; the paper's alpha is 2.5. None leaves the imitation out.",
    )

    def check_exploration_sigmas(self, num_envs: int) -> None:
        """Check the deviations between which those of a run's environments are spread.

        Raises:
            ConfigError: If there is nothing between them, or nothing to spread them over.
        """
        low, high = self.exploration_sigma, self.exploration_sigma_max
        if high is not None and high < low:
            raise ConfigError(
                f"exploration_sigma_max must be at least exploration_sigma={low}, got {high}."
            )
        if high is not None and num_envs == 1:
            raise ConfigError(
                f"exploration_sigma_max={high} differs between environments, but there is one: raise "
                "num_envs_per_env_runner, or leave it out."
            )


def check_critics(training: Training, default: Training) -> None:
    """Check the settings of critics, if an algorithm has any.

    Args:
        training: Settings of an algorithm.
        default: The algorithm's defaults.

    Raises:
        ConfigError: If settings contradict each other, or have no effect.
    """

    def refuse(name: str, other: str, reason: str) -> None:
        value = vars(training)[name]
        if value != vars(default)[name]:
            raise ConfigError(
                f"{name}={value!r} has no effect with {other}, {reason}: leave one of the two out."
            )

    if isinstance(training, BootstrappedTraining) and not training.use_target_network:
        for name in ("tau", "target_network_update_freq"):
            refuse(name, "use_target_network=False", "where targets have no slower copy")
    if isinstance(training, TwinCritics) and training.num_critics is not None:
        refuse("twin_q", f"num_critics={training.num_critics}", "which is the number of critics")
    if not isinstance(training, EnsembleCritics):
        return
    number, chosen = training.resolve_num_critics(), training.num_target_critics
    if chosen is not None and chosen > number:
        raise ConfigError(
            f"num_target_critics={chosen} cannot be drawn from {number} critics; set num_critics to "
            f"{chosen} or more, or num_target_critics to at most {number}."
        )
    training.check_support()
    if training.num_atoms > 1:
        atoms = f"num_atoms={training.num_atoms}"
        refuse("td_error_loss_fn", atoms, "whose loss is the cross-entropy")
    else:
        for name in ("v_min", "v_max"):
            refuse(name, "num_atoms=1", "which disables C51")
