"""The groups of settings, with RLlib's names. A setting stands here only if something reads it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import (
    Schedule,
    count,
    field,
    non_negative,
    optimizer_check,
    positive,
    setting_metadata,
    unit_interval,
)
from jaxrl.config.imports import RL_MODULE

Auto = Literal["auto"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """The task, and how rewards and actions are treated on their way."""

    env: Any = dataclasses.field(
        default=None,
        kw_only=False,
        metadata=setting_metadata(
            doc="An id ('CartPole-v1', 'gymnax:Breakout-MinAtar'), a name given to "
            "register_env, a class path 'pkg.mod:Class', a JaxEnv class or instance, or a "
            "function of an EnvContext that returns one."
        ),
    )
    env_config: dict[str, Any] = field(
        default={}, doc="Passed to the environment's creator, as an EnvContext."
    )
    observation_space: Any = field(
        default=None, doc="Declares the observation space; the environment's own must equal it."
    )
    action_space: Any = field(
        default=None, doc="Declares the action space; the environment's own must equal it."
    )
    clip_rewards: bool | float | tuple[float, float] | None = field(
        default=None,
        check=positive,
        doc="True trains on the sign of the reward, a number x on the reward clipped to [-x, x], "
        "a pair on the reward clipped to it; None takes the sign for Atari only. Reported returns "
        "stay unclipped.",
    )
    action_mask_key: str | None = field(
        default="action_mask",
        doc="The part of a Dict observation that says with 0 or 1 which discrete actions are legal "
        "(the choices of a MultiDiscrete action one after another); no other is ever taken. None "
        "observes every part.",
    )
    normalize_actions: bool = field(
        default=True,
        doc="Bounded Box actions are learned in [-1, 1] and mapped to the environment's range.",
    )
    clip_actions: bool = field(
        default=False,
        doc="Clips Box actions into the action space; of use with normalize_actions=False.",
    )
    disable_env_checking: bool = field(
        default=False, doc="Skips the check of the environment's types and spaces before training."
    )
    validate_env: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function of (env, env_context) that raises if the environment is not as it should "
        "be; called with each environment on the host, and once with a JAX environment.",
    )
    is_atari: bool | None = field(
        default=None,
        doc="Whether the environment is treated as an Atari game (its frames and rewards); None "
        "goes by its id.",
    )
    max_episode_steps: int | None = field(
        default=None,
        check=count,
        doc="Truncates episodes after so many steps; None keeps the environment's own limit.",
    )
    reset_mode: Literal["auto", "every_step", "on_demand"] = field(
        default="auto",
        doc="How ended episodes are reset in the compiled program, exactly in either mode; 'auto' "
        "takes what the environment names as its own.",
    )

    def clipping(self, *, atari: bool) -> bool | float | tuple[float, float] | None:
        """What `clip_rewards` comes to.

        Args:
            atari: Whether the environment's id is that of an Atari game.
        """
        if self.clip_rewards is not None:
            return self.clip_rewards
        return True if (atari if self.is_atari is None else self.is_atari) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What every algorithm that learns by gradients has."""

    gamma: float = field(
        default=0.99, sweepable=True, check=unit_interval, doc="Discount of future rewards."
    )
    lr: Schedule | Callable[[Any], Any] = field(
        default=0.001,
        sweepable=True,
        check=non_negative,
        doc="Learning rate, or a schedule [[timestep, value], ...] over environment steps, or a "
        "function of their number, such as an optax schedule (part of the program, not a leaf).",
    )
    grad_clip: float | None = field(
        default=None,
        sweepable=True,
        check=positive,
        doc="Clips gradients as grad_clip_by says; None does not clip.",
    )
    grad_clip_by: Literal["value", "norm", "global_norm"] = field(
        default="global_norm",
        doc="'value' clamps every element, 'norm' scales each tensor to the L2 norm, 'global_norm' "
        "all of them together.",
    )
    train_batch_size: int = field(
        default=32,
        check=count,
        doc="Environment steps per training step, over all devices and learners.",
    )
    train_batch_size_per_learner: int | None = field(
        default=None,
        check=count,
        doc="Environment steps per training step of each learner, in place of train_batch_size, "
        "which is num_learners times as many; None leaves it to train_batch_size.",
    )
    optimizer: str | dict[str, Any] | Callable[..., Any] = field(
        default="adam",
        check=optimizer_check,
        doc="An optax optimiser's name, {'name': 'adam', 'eps': 1e-5}, or a function of the "
        "learning rate that returns an optax transformation.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicyTraining(Training):
    """What algorithms have that learn from one fresh batch; defaults are RLlib's PPO's."""

    num_epochs: int = field(default=30, check=count, doc="Passes over each train batch.")
    minibatch_size: int | None = field(
        default=128,
        check=count,
        doc="Rows of one gradient step; None is the whole train batch. A default adapts to the "
        "nearest divisor of the train batch.",
    )
    microbatch_size: int | Auto | None = field(
        default="auto",
        check=count,
        doc="Rows of a minibatch, at most, whose gradient a device computes at once; the step is "
        "along the mean over all. None takes all rows at once; 'auto' does so on accelerators, and "
        "on a CPU where there are 1024 or more takes 256, which a core's cache holds, unless a trial "
        "on this machine has shown all at once to be faster. A sequence counts once.",
    )
    shuffle_batch_per_epoch: bool = field(
        default=True, doc="Draws new minibatches in every epoch; False repeats the first epoch's."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageTraining(OnPolicyTraining):
    """What algorithms have that learn from advantages."""

    normalize_advantages: bool | Literal["batch", "minibatch"] = field(
        default=True,
        doc="Advantages to mean 0 and deviation 1, over the train batch (True, 'batch') or over "
        "each minibatch ('minibatch').",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLModules:
    """The networks."""

    rl_module_spec: Any = field(
        default=None,
        import_path=RL_MODULE,
        doc="An RLModuleSpec, or an RLModule class, in place of the default module.",
    )
    network: Any = field(
        default=None,
        import_path=True,
        doc="A network in place of the default one's, which gives (action_dist_inputs, value) for "
        "observations: a flax linen module or its class, an nnx.Module class, a function that makes "
        "one of them, or two functions (init, apply). For algorithms with a policy and a value.",
    )
    model_config: Any = field(
        default={},
        doc="A DefaultModelConfig, or a dictionary of its fields, which replace the algorithm's; "
        "a custom module gets the dictionary as it is.",
    )
