"""The groups of settings, with RLlib's names. A setting stands here only if something reads it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import (
    Schedule,
    at_least_one,
    field,
    fraction,
    non_negative,
    positive,
    setting_metadata,
)

Hook = Callable[..., Any] | list[Callable[..., Any]] | None
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
        "a pair on the reward clipped to it; reported returns stay unclipped.",
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
        default=False, doc="Skips the trial step that checks the environment before compiling."
    )
    max_episode_steps: int | None = field(
        default=None,
        check=at_least_one,
        doc="Truncates episodes after so many steps; None keeps the environment's own limit.",
    )
    reset_mode: Literal["auto", "every_step", "on_demand", "pool"] = field(
        default="auto",
        doc="How ended episodes are reset in the compiled program; 'auto' takes what measured "
        "fastest for the environment.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvRunners:
    """How experience is gathered."""

    num_env_runners: int = field(
        default=0,
        check=non_negative,
        doc="Ray actors that step environments; 0, the only value in this version, rolls out "
        "inside the compiled program.",
    )
    num_envs_per_env_runner: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Environments stepped side by side; 'auto' takes the number nearest to 16 that divides "
        "the train batch.",
    )
    rollout_fragment_length: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Steps of each environment per train batch; 'auto' is train_batch_size divided by the "
        "number of environments.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = field(
        default="truncate_episodes",
        doc="'truncate_episodes', the only value in this version, cuts fragments by steps.",
    )
    explore: bool = field(
        default=True, doc="Actions are sampled; False takes the distribution's mode."
    )
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = field(
        default="NoFilter",
        doc="'MeanStdFilter' normalises observations by their running mean and deviation.",
    )
    normalize_rewards: bool = field(
        default=False,
        doc="Divides rewards by the running deviation of the discounted return; reported returns "
        "stay as they are.",
    )
    env_to_module_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function that returns a connector, or a list of them, applied to observations "
        "before the module sees them.",
    )
    module_to_env_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function that returns a connector, or a list of them, applied to actions before "
        "the environment sees them.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What every algorithm that learns by gradients has."""

    gamma: float = field(
        default=0.99, sweepable=True, check=fraction, doc="Discount of future rewards."
    )
    lr: Schedule = field(
        default=0.001,
        sweepable=True,
        check=non_negative,
        doc="Learning rate, or a schedule [[timestep, value], ...] over environment steps.",
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
        check=at_least_one,
        doc="Environment steps per training step, over all devices. RLlib's "
        "train_batch_size_per_learner is understood as the same, there being one learner.",
    )
    optimizer: str | dict[str, Any] | Callable[..., Any] = field(
        default="adam",
        doc="An optax optimiser's name, {'name': 'adam', 'eps': 1e-5}, or a function of the "
        "learning rate that returns an optax transformation.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicyTraining(Training):
    """What algorithms have that learn several epochs from one fresh batch."""

    num_epochs: int = field(default=1, check=at_least_one, doc="Passes over each train batch.")
    minibatch_size: int | None = field(
        default=None,
        check=at_least_one,
        doc="Rows of one gradient step; None is the whole train batch. A default adapts to the "
        "nearest divisor of the train batch.",
    )
    shuffle_batch_per_epoch: bool = field(
        default=True, doc="Draws new minibatches in every epoch; False repeats the first epoch's."
    )
    normalize_advantages: bool | Literal["batch", "minibatch"] = field(
        default=True,
        doc="Advantages to mean 0 and deviation 1, over the train batch (True, 'batch') or over "
        "each minibatch ('minibatch').",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learners:
    """Where gradients are computed."""

    num_learners: int = field(
        default=0,
        check=non_negative,
        doc="Learner processes; 0, the only value in this version, learns in this process.",
    )
    num_devices: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Local devices that share the environments and minibatches; explain() says what "
        "'auto' chose and why. Any number of devices gives the same minibatches.",
    )
    num_shards: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Logical shards of the environments, a multiple of every number of devices the run "
        "shall ever use; 'auto' is the largest of 8, 4, 2, 1 that divides the environments and "
        "the minibatch.",
    )
    learner_class: type[Any] | None = field(
        default=None, import_path=True, doc="A Learner subclass with a custom loss."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLModules:
    """The networks."""

    rl_module_spec: Any = field(
        default=None,
        import_path=True,
        doc="An RLModuleSpec, or an RLModule class, in place of the default module.",
    )
    model_config: Any = field(
        default={},
        doc="A DefaultModelConfig, or a dictionary of its fields, which replace the algorithm's; "
        "a custom module gets the dictionary as it is.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Runs of the policy apart from training."""

    evaluation_interval: int | None = field(
        default=None,
        check=non_negative,
        doc="Evaluates every so many iterations; None or 0 never does.",
    )
    evaluation_duration: int = field(
        default=10, check=at_least_one, doc="How long one evaluation is, in its unit."
    )
    evaluation_duration_unit: Literal["episodes", "timesteps"] = field(
        default="episodes", doc="The unit of evaluation_duration."
    )
    evaluation_config: dict[str, Any] | None = field(
        default=None,
        doc="Settings that differ in evaluation, e.g. {'explore': False}. Mind that some tasks "
        "are solved only by a policy that draws its actions.",
    )
    custom_evaluation_function: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function of the Algorithm that returns a dictionary of metrics, in place of the "
        "built-in evaluation.",
    )
    evaluation_num_envs: int | Auto = field(
        default="auto",
        check=at_least_one,
        doc="Environments evaluated side by side; 'auto' is one per episode, at most 64.",
    )
    always_attach_evaluation_results: bool = field(
        default=True, doc="Repeats the latest evaluation in the results between two evaluations."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultTolerance:
    """What happens when numbers stop being finite."""

    on_nonfinite: Literal["rollback", "raise", "skip"] = field(
        default="rollback",
        doc="A non-finite update is always skipped; after nonfinite_updates_tolerance in a row, go "
        "back to the last good parameters, raise, or go on skipping.",
    )
    nonfinite_updates_tolerance: int = field(
        default=10,
        check=at_least_one,
        doc="Non-finite updates in a row before on_nonfinite applies.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """How long an iteration is and what its result holds."""

    min_time_s_per_iteration: float | None = field(
        default=None,
        check=non_negative,
        doc="Training steps are repeated until an iteration has lasted so many seconds.",
    )
    min_train_timesteps_per_iteration: int = field(
        default=0,
        check=non_negative,
        doc="Training steps are repeated until so many environment steps were trained on.",
    )
    min_sample_timesteps_per_iteration: int = field(
        default=0,
        check=non_negative,
        doc="Training steps are repeated until so many environment steps were sampled.",
    )
    metrics_num_episodes_for_smoothing: int = field(
        default=100,
        check=at_least_one,
        doc="Episode means are over the last so many episodes; 1 does not smooth.",
    )
    log_gradients: bool = field(
        default=False, doc="Reports the gradient norm of every parameter tensor."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When the whole state of a run is saved, and what is kept."""

    checkpoint_frequency: int = field(
        default=0,
        check=non_negative,
        doc="Saves every so many iterations of fit(); 0 does not save on the way.",
    )
    checkpoint_at_end: bool = field(default=True, doc="Saves when fit() ends.")
    max_to_keep: int | None = field(
        default=3,
        check=at_least_one,
        doc="Checkpoints kept in the run folder, the newest and the best; None keeps all.",
    )
    checkpoint_score_attribute: str | None = field(
        default=None,
        doc="The result key, e.g. 'evaluation/env_runners/episode_return_mean', by which the best "
        "checkpoints are kept; None keeps the newest.",
    )
    checkpoint_score_order: Literal["max", "min"] = field(
        default="max", doc="Whether a high or a low score is best."
    )
    async_checkpointing: bool = field(
        default=True, doc="Writes checkpoints in the background while training goes on."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Debugging:
    """Seeds, logs and the compiler."""

    seed: int = field(
        default=0,
        check=non_negative,
        doc="Seed of every random draw; the same config and seed give the same run.",
    )
    log_level: Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR"] = field(
        default="WARN", doc="Level of jaxrl's Python loggers."
    )
    log_sys_usage: bool = field(
        default=True, doc="Reports processor, memory and device memory use with each result."
    )
    loggers: list[Any] = field(
        default=["console", "json", "csv", "tensorboard"],
        doc="Where results go: names out of 'console', 'json', 'csv', 'tensorboard', 'wandb', or "
        "logger objects.",
    )
    results_dir: str = field(default="~/jaxrl_results", doc="The folder of all run folders.")
    run_name: str | None = field(
        default=None, doc="Name of the run folder; None makes one of algorithm, environment, time."
    )
    max_retraces: int | None = field(
        default=None,
        check=non_negative,
        doc="Raises when a compiled program would be compiled again more often than this, naming "
        "what changed; None does not count.",
    )
    jit: bool = field(
        default=True, doc="False runs operation by operation, for a debugger; very slow."
    )
    compilation_cache_dir: str | None = field(
        default="auto",
        doc="Where compiled programs are kept between processes: 'auto' is a private folder of "
        "the user, None keeps none.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Functions of the user's that are called on the way."""

    callbacks_class: Any = dataclasses.field(
        default=None,
        kw_only=False,
        metadata=setting_metadata(
            doc="A Callbacks subclass, or a list of them, called in this order.", import_path=True
        ),
    )
    on_algorithm_init: Hook = field(
        default=None, import_path=True, doc="Called when an Algorithm has been built."
    )
    on_train_result: Hook = field(
        default=None, import_path=True, doc="Called with each result, which it may extend."
    )
    on_evaluate_start: Hook = field(
        default=None, import_path=True, doc="Called before each evaluation."
    )
    on_evaluate_end: Hook = field(
        default=None, import_path=True, doc="Called with the metrics of each evaluation."
    )
    on_episode_end: Hook = field(
        default=None, import_path=True, doc="Called for each ended episode, after the dispatch."
    )
    on_sample_end: Hook = field(
        default=None, import_path=True, doc="Called when a dispatch has gathered its samples."
    )
    on_checkpoint_loaded: Hook = field(
        default=None, import_path=True, doc="Called after a checkpoint has been restored."
    )
