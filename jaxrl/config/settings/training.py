"""Groups of settings for the environment, training and module, with RLlib's names."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, cast

from jaxrl.config.coerce import FLOAT32_RANGE, is_outside_float32
from jaxrl.config.fields import (
    Check,
    Schedule,
    count,
    field,
    make_setting_metadata,
    non_negative,
    positive,
    unit_interval,
)
from jaxrl.config.imports import ENV, RL_MODULE, ImportKind
from jaxrl.core.hparams import Hyperparameter, Traced, current_values
from jaxrl.core.types import Progress
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean

Auto = Literal["auto"]
CriticKind = Literal["state", "joint", "agent_specific"]
"""Input of a central critic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """Environment, and the processing of its rewards and actions."""

    env: Any = dataclasses.field(
        default=None,
        kw_only=False,
        metadata=make_setting_metadata(
            doc="Environment: an id ('CartPole-v1', 'gymnax:Breakout-MinAtar'), a name registered "
            "by register_env, a class path 'pkg.mod:Class', a JaxEnv class or instance, or a "
            "function of an EnvContext that returns one.",
            import_path=ENV,
        ),
    )
    env_config: dict[str, Any] = field(
        default={},
        import_path=ImportKind(by_name=True, is_env=True),
        doc="Arguments of the environment's creator, passed as an EnvContext.",
    )
    curriculum: list[dict[str, Any]] | None = field(
        default=None,
        doc="Stages of training, each a task and the criteria that end it: [{'task': {'size': 4}, "
        "'until': {'env_runners/episode_return_mean': 0.9}}, {'task': {'size': 8}}]. A task has "
        "parameters of a JAX environment by name, or is passed to the environment's "
        "set_task(task); `until` has the form of stop criteria, or is a number of environment "
        "steps since the run began.",
    )
    env_task_fn: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function of (train_results, task_settable_env, env_ctx), called after each iteration, "
        "that returns the task of the next one, as in a stage of `curriculum`.",
    )
    observation_space: Any = field(
        default=None, doc="Expected observation space; the environment's own must equal it."
    )
    action_space: Any = field(
        default=None, doc="Expected action space; the environment's own must equal it."
    )
    clip_rewards: bool | float | tuple[float, float] | None = field(
        default=None,
        check=positive,
        doc="Clipping of rewards for training: True takes their sign, a number x clips to [-x, "
        "x], a pair clips to its bounds; None takes the sign for Atari only. Reported returns are "
        "not clipped.",
    )
    action_mask_key: str | None = field(
        default="action_mask",
        doc="Key of the action mask in a Dict observation, with 1 for legal and 0 for illegal "
        "discrete actions (for MultiDiscrete, the masks of all choices in a row); illegal actions "
        "are never taken. None treats every key as an observation.",
    )
    observe_state: bool = field(
        default=False,
        doc="Whether observations of an environment in JAX have its state as the part 'state', which "
        "search begins from; connectors and networks do not see it.",
    )
    normalize_actions: bool = field(
        default=True,
        doc="Whether the policy acts in [-1, 1] where a Box has two finite bounds, to which its "
        "actions are then mapped; they are clipped to single ones.",
    )
    clip_actions: bool = field(
        default=False,
        doc="Whether to clip Box actions to the action space; useful with normalize_actions=False.",
    )
    disable_env_checking: bool = field(
        default=False,
        doc="Whether to skip the check of the environment's types and spaces before training.",
    )
    validate_env: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function of (env, env_context) that raises if the environment is invalid; called for "
        "each environment on the host, and once for a JAX environment.",
    )
    is_atari: bool | None = field(
        default=None,
        doc="Whether the frames and rewards of the environment are preprocessed as for Atari; None "
        "decides by its id.",
    )
    max_episode_steps: int | None = field(
        default=None,
        check=count,
        doc="Number of steps after which episodes are truncated; None keeps the environment's own "
        "limit.",
    )
    reset_mode: Literal["auto", "every_step", "on_demand"] = field(
        default="auto",
        doc="Method of resetting ended episodes in the compiled program, with the same results in "
        "either mode; 'auto' is the environment's preference.",
    )

    def resolve_clip_rewards(
        self, *, is_atari_id: bool
    ) -> bool | float | tuple[float, float] | None:
        """Return the effective value of `clip_rewards`.

        Args:
            is_atari_id: Whether the environment's id is that of an Atari game.
        """
        if self.clip_rewards is not None:
            return self.clip_rewards
        return True if (is_atari_id if self.is_atari is None else self.is_atari) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchUse:
    """Use of a train batch by gradient steps; the defaults are a single step on all of its rows.

    Args:
        num_epochs: Number of passes over the batch.
        minibatch_size: Number of rows per gradient step; None for the whole batch.
        reshuffle: Whether every epoch has minibatches of its own.
        microbatch_size: Maximum number of rows whose gradient a device computes at once; None for
            all rows of a minibatch.
        num_batches: Number of latest train batches that are kept for reuse.
        iterations_per_batch: Number of times that each of them is trained on.
    """

    num_epochs: int = 1
    minibatch_size: int | None = None
    reshuffle: bool = True
    microbatch_size: int | Auto | None = None
    num_batches: int = 1
    iterations_per_batch: int = 1


OPTIMIZERS = (
    *("adam", "adamw", "sgd", "rmsprop", "lion", "radam", "nadam", "adabelief", "lamb"),
    "muon",
)
"""Optimizers of optax that `training(optimizer=...)` names."""


def _find_optimizer_problem(setting: object) -> str | None:
    """Return the problem with an optimizer setting as the end of a message, or None if valid."""
    from jaxrl.learners.optimizers import get_optimizer

    if callable(setting):
        return None
    if isinstance(setting, str):
        setting = {"name": setting}
    arguments = dict(cast(Mapping[str, Any], setting))
    name = arguments.pop("name", None)
    if name not in OPTIMIZERS:
        return f" Known are {', '.join(OPTIMIZERS)}.{did_you_mean(name, OPTIMIZERS)}"
    parameters = inspect.signature(get_optimizer(name)).parameters
    known = [p for p in parameters if p != "learning_rate"]
    for argument in arguments:
        if argument not in known:
            hint = did_you_mean(argument, known)
            return f" {name} has no argument '{argument}' (the learning rate is lr).{hint}"
        if is_outside_float32(arguments[argument]):
            return f" {name}'s {argument} must be {FLOAT32_RANGE}."
    return None


optimizer_check = Check(
    requirement="the name of an optimizer, {'name': ..., arguments}, or a function",
    is_satisfied=lambda value: _find_optimizer_problem(value) is None,
    hint=lambda value: _find_optimizer_problem(value) or "",
)


def _find_intrinsic_problem(setting: object) -> str | None:
    """Return the problem with an intrinsic reward as a sentence, or None if it is valid."""
    from jaxrl.connectors.curiosity import find_intrinsic_problem

    return find_intrinsic_problem(setting)


intrinsic_reward_check = Check(
    requirement="'icm', 'rnd', 're3', or {'type': ..., arguments}",
    is_satisfied=lambda value: value is None or _find_intrinsic_problem(value) is None,
    hint=lambda value: f" {_find_intrinsic_problem(value)}",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of all algorithms."""

    gamma: Traced[float] = field(
        default=0.99, check=unit_interval, doc="Discount factor of future rewards."
    )
    lr: Traced[Schedule | Callable[[Any], Any]] = field(
        default=0.001,
        check=non_negative,
        doc="Learning rate: a number, a schedule [[timestep, value], ...] over environment steps, "
        "or a function of their number, such as an optax schedule (a function is not traced, but "
        "part of the program).",
    )
    grad_clip: Traced[float | None] = field(
        default=None,
        check=positive,
        doc="Bound for clipping gradients by grad_clip_by; None disables clipping.",
    )
    grad_clip_by: Literal["value", "norm", "global_norm"] = field(
        default="global_norm",
        doc="Method of clipping gradients: 'value' clips every element, 'norm' the L2 norm of each "
        "tensor, 'global_norm' the L2 norm of all tensors together.",
    )
    train_batch_size: int = field(
        default=32,
        check=count,
        doc="Number of environment steps per training step, over all devices and learners; rounded "
        "to a multiple of the environments of all runners, by at most a tenth.",
    )
    train_batch_size_per_learner: int | None = field(
        default=None,
        check=count,
        doc="Number of environment steps per training step and learner, as an alternative to "
        "train_batch_size, which is num_learners times as large; None uses train_batch_size.",
    )
    optimizer: str | dict[str, Any] | Callable[..., Any] = field(
        default="adam",
        check=optimizer_check,
        doc=f"Optimizer: {', '.join(OPTIMIZERS)} of optax, a dictionary {{'name': 'adam', 'eps': "
        "1e-5}, or a function of the learning rate that returns an optax transformation.",
    )

    intrinsic_reward: str | dict[str, Any] | None = field(
        default=None,
        check=intrinsic_reward_check,
        doc="Bonus for what is new, added to the reward to learn from: 'icm', 'rnd', 're3', or a "
        "dictionary of such a 'type' and its arguments; None for none.",
    )
    intrinsic_reward_coeff: Traced[Schedule | None] = field(
        default=None,
        check=positive,
        doc="Scale of the bonus, in units of the standard deviation of its discounted sum, or its "
        "schedule; None is 1.",
    )

    def at(self, hparams: Mapping[str, Hyperparameter], progress: Progress) -> Self:
        """Return the group with the values of its traced settings at a point of a run.

        Args:
            hparams: Leaves of the learner's state.
            progress: Progress of the run.
        """
        return dataclasses.replace(self, **current_values(hparams, progress))

    def __getitem__(self, name: str) -> Any:
        """Return a setting by its name.

        Raises:
            UnknownNameError: If there is none.
        """
        if name not in (settings := vars(self)):
            raise UnknownNameError(
                f"values has no hyperparameter {name!r}.{did_you_mean(name, settings)} Known: "
                f"{', '.join(sorted(settings))}. One of your own is a field of a config subclass: "
                f"class MyConfig(PPOConfig): {name}: float = 0.1"
            )
        return settings[name]

    @property
    def weights_interval(self) -> int:
        """Number of train batches between broadcasts of the weights that act."""
        return 1

    @property
    def batch_use(self) -> BatchUse:
        """Use of each train batch."""
        return BatchUse()

    @property
    def central_critic(self) -> CriticKind | None:
        """Input of a central critic; None if values are those of the agents' own observations."""
        return None

    @property
    def starts_sequences_at_zero(self) -> bool:
        """Return whether replayed sequences begin with a zero state instead of the stored one."""
        return False

    @property
    def needs_values(self) -> bool:
        """Return whether the module must compute state values."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicyTraining(Training):
    """Settings of on-policy algorithms; the defaults are those of RLlib's PPO."""

    num_epochs: int = field(default=30, check=count, doc="Number of passes over each train batch.")
    minibatch_size: int | None = field(
        default=128,
        check=count,
        doc="Number of rows per gradient step; None is the whole train batch. The default adapts "
        "to the nearest divisor of the train batch; another size continues in the next epoch, as "
        "in RLlib, so that all minibatches are equally large.",
    )
    microbatch_size: int | Auto | None = field(
        default="auto",
        check=count,
        doc="Maximum number of rows of a minibatch whose gradient a device computes at once; "
        "gradients are accumulated to the mean over the minibatch. None takes all rows at once. "
        "'auto' does so on accelerators; on a CPU it is 256 for 1024 or more rows, since those "
        "fit into the cache of a core, unless a measurement on this machine found all rows at "
        "once to be faster. A sequence counts as one row.",
    )
    shuffle_batch_per_epoch: bool = field(
        default=True,
        doc="Whether to shuffle rows into new minibatches in every epoch; False repeats those of "
        "the first epoch.",
    )

    @property
    def batch_use(self) -> BatchUse:
        return BatchUse(
            num_epochs=self.num_epochs,
            minibatch_size=self.minibatch_size,
            reshuffle=self.shuffle_batch_per_epoch,
            microbatch_size=self.microbatch_size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CircularTraining(OnPolicyTraining):
    """Settings of algorithms that may learn from train batches more than once, at random times."""

    circular_buffer_num_batches: int = field(
        default=1,
        check=count,
        doc="Number of latest train batches that are kept for reuse; training starts when more "
        "than half of the buffer is filled.",
    )
    circular_buffer_iterations_per_batch: int = field(
        default=1,
        check=count,
        doc="Number of times that each train batch is trained on, at random times while it is in "
        "the buffer.",
    )

    @property
    def batch_use(self) -> BatchUse:
        return dataclasses.replace(
            super().batch_use,
            num_batches=self.circular_buffer_num_batches,
            iterations_per_batch=self.circular_buffer_iterations_per_batch,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageTraining(OnPolicyTraining):
    """Settings of algorithms with advantage estimates."""

    normalize_advantages: bool | Literal["batch", "minibatch"] = field(
        default=True,
        doc="Whether to normalize advantages to mean 0 and standard deviation 1, over the train "
        "batch (True, 'batch') or each minibatch ('minibatch').",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueTraining(AdvantageTraining):
    """Settings of algorithms whose value loss is bounded."""

    use_critic: bool = field(
        default=True, doc="Whether to learn a value function; without it returns are Monte-Carlo."
    )
    vf_loss_coeff: Traced[float] = field(
        default=1.0, doc="Weight of the value loss.", check=non_negative
    )
    vf_clip_param: Traced[float] = field(
        default=10.0,
        doc="Bound of the squared value error, or of Huber's loss.",
        check=positive,
    )
    huber_delta: Traced[float | None] = field(
        default=None,
        doc="Value error at which the value loss turns from quadratic to linear (Huber): half of the "
        "squared error below it. It is of use with a large vf_clip_param, such as infinity. None is "
        "the squared error.",
        check=positive,
    )
    normalize_values: bool = field(
        default=False,
        doc="Whether values are learned in units of the running mean and standard deviation of their "
        "targets, for returns that are large or whose scale is not known; vf_clip_param and "
        "huber_delta are then in these units.",
    )

    @property
    def needs_values(self) -> bool:
        return self.use_critic

    def check_values(self) -> None:
        """Raise ConfigError if there are settings of values, and none are learned."""
        for name in ("huber_delta", "normalize_values"):
            if not self.use_critic and (value := vars(self)[name]):
                raise ConfigError(
                    f"{name}={value} has no effect with use_critic=False, which learns no values; "
                    "leave it out."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLModuleSettings:
    """Module with the networks."""

    rl_module_spec: Any = field(
        default=None,
        import_path=RL_MODULE,
        doc="RLModuleSpec or RLModule class that replaces the default module.",
    )
    network: Any = field(
        default=None,
        import_path=True,
        doc="Network that replaces the default one and returns (action_dist_inputs, value) for "
        "observations: a flax linen module or its class, an nnx.Module class, a function that "
        "creates one of them, or two functions (init, apply). For algorithms with a policy and a "
        "value function.",
    )
    model_config: Any = field(
        default={},
        doc="DefaultModelConfig, or a dictionary of its fields that override the algorithm's; a "
        "custom module receives the dictionary unchanged.",
    )
