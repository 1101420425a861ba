"""The groups of settings around training: evaluation, reports, checkpoints, logs, callbacks."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import (
    Check,
    at_least_one,
    count,
    count_or_zero,
    evaluation_check,
    field,
    non_negative,
    positive,
    setting_metadata,
)
from jaxrl.config.imports import Kind
from jaxrl.config.pbt import PopulationBasedTraining
from jaxrl.config.settings.training import Auto
from jaxrl.core.seeds import SEEDS_IN_WORDS, is_seed

Hook = Callable[..., Any] | list[Callable[..., Any]] | None
LoggerName = Literal["console", "json", "csv", "tensorboard", "wandb"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Runs of the policy apart from training."""

    evaluation_interval: int | None = field(
        default=None,
        check=count_or_zero,
        doc="Evaluates every so many iterations; None or 0 never does.",
    )
    evaluation_duration: int | Auto = field(
        default=10,
        check=count,
        doc="How long one evaluation is, in its unit; 'auto', with evaluation_parallel_to_training, "
        "is as long as the training beside it.",
    )
    evaluation_duration_unit: Literal["episodes", "timesteps"] = field(
        default="episodes", doc="The unit of evaluation_duration."
    )
    evaluation_config: dict[str, Any] | None = field(
        default=None,
        doc="What differs in evaluation, e.g. {'explore': False}: env, env_config, "
        "max_episode_steps, explore and evaluation's own settings. Mind that some tasks are solved "
        "only by a policy that draws its actions.",
    )
    custom_evaluation_function: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        check=evaluation_check,
        doc="A function of (algorithm), or RLlib's (algorithm, eval_workers) with None for the "
        "second, that returns a dictionary of metrics, in place of the built-in evaluation; those "
        "below custom_metrics can be stop criteria.",
    )
    evaluation_num_envs: int | Auto = field(
        default="auto",
        check=count,
        doc="Environments evaluated side by side, each for an equal share of the duration; 'auto' "
        "is the largest divisor of the duration up to a limit.",
    )
    evaluation_num_env_runners: int = field(
        default=0,
        check=count_or_zero,
        doc="Ray actors that only evaluate; 0 evaluates in this process.",
    )
    evaluation_parallel_to_training: bool = field(
        default=False,
        doc="Evaluates while the same iteration trains, with the weights from before it: its "
        "results are an iteration old.",
    )
    evaluation_sample_timeout_s: float = field(
        default=120.0,
        check=positive,
        doc="Seconds after which an evaluation on the host ends with the episodes it has.",
    )
    evaluation_auto_duration_min_env_steps_per_sample: int = field(
        default=100,
        check=count,
        doc="Steps of one request to an evaluation runner, at least, with "
        "evaluation_duration='auto'.",
    )
    evaluation_auto_duration_max_env_steps_per_sample: int = field(
        default=2000,
        check=count,
        doc="Steps of one request to an evaluation runner, at most, with "
        "evaluation_duration='auto'.",
    )
    evaluation_unhealthy_workers_timeout_s: float = field(
        default=0.0,
        check=non_negative,
        doc="Seconds to wait for an evaluation runner to recover when none is healthy.",
    )
    evaluation_error_after_n_consecutive_skips: int | None = field(
        default=None,
        check=at_least_one,
        doc="Raises after so many evaluations in a row that no healthy runner could do; None goes "
        "on without.",
    )
    record_video: bool | int = field(
        default=False,
        check=count_or_zero,
        doc="Writes a video of so many episodes of each evaluation into the run folder; True is "
        "one.",
    )
    always_attach_evaluation_results: bool = field(
        default=True, doc="Repeats the latest evaluation in the results between two evaluations."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultTolerance:
    """What happens when numbers stop being finite, and when a runner or environment fails."""

    on_nonfinite: Literal["rollback", "raise", "skip"] = field(
        default="rollback",
        doc="A non-finite update is always skipped; after nonfinite_updates_tolerance in a row, go "
        "back to the last good parameters, raise, or go on skipping.",
    )
    nonfinite_updates_tolerance: int = field(
        default=10,
        check=count,
        doc="Non-finite updates in a row before on_nonfinite applies.",
    )
    restart_failed_env_runners: bool = field(
        default=True,
        doc="Starts a runner that died or hung again, with its index and the newest weights; an "
        "explicit ignore_env_runner_failures=True takes the place of this default.",
    )
    ignore_env_runner_failures: bool = field(
        default=False,
        doc="Goes on with the other runners when one died or hung, as long as there is one.",
    )
    max_num_env_runner_restarts: int = field(
        default=1000, check=non_negative, doc="How often each runner may be started again."
    )
    delay_between_env_runner_restarts_s: float = field(
        default=60.0,
        check=non_negative,
        doc="The longest wait before a runner is started again: the first time at once, then "
        "after one second, two, four, ... up to this.",
    )
    restart_failed_sub_environments: bool = field(
        default=False,
        doc="An environment that raises is made anew, alone: the others of its runner keep their "
        "episodes. Without it the runner fails.",
    )
    num_consecutive_env_runner_failures_tolerance: int = field(
        default=100,
        check=non_negative,
        doc="Failures of runners without a fragment in between before the run ends.",
    )
    env_runner_health_probe_timeout_s: float = field(
        default=30.0,
        check=positive,
        doc="Seconds that a runner has to answer whether it is there.",
    )
    env_runner_restore_timeout_s: float = field(
        default=1800.0,
        check=positive,
        doc="Seconds that a runner has from its new start to its environments and weights.",
    )

    learner_health_probe_timeout_s: float = field(
        default=60.0,
        check=positive,
        doc="Seconds within which a learner process that is frozen, or on a machine that is gone, ends "
        "the run with an error; one that computes answers meanwhile.",
    )

    @property
    def restarts_env_runners(self) -> bool:
        """What the two settings come to, of which at most one is set to True."""
        return self.restart_failed_env_runners and not self.ignore_env_runner_failures


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
        doc="Training steps are repeated until so many environment steps were trained on; with "
        "replay these are the rows of all updates.",
    )
    min_sample_timesteps_per_iteration: int = field(
        default=0,
        check=non_negative,
        doc="Training steps are repeated until so many environment steps were sampled.",
    )
    metrics_num_episodes_for_smoothing: int = field(
        default=100,
        check=count,
        doc="Episode means are over the last so many episodes; 1 does not smooth.",
    )
    log_gradients: bool = field(
        default=False, doc="Reports the gradient norm of every parameter tensor."
    )


def _are_seeds(value: int | list[int] | None) -> bool:
    if isinstance(value, list):
        return bool(value) and len(set(value)) == len(value) and all(map(is_seed, value))
    return value is None or value >= 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """How many runs a config describes: those of all its grid() values, with every seed."""

    seeds: int | list[int] | None = field(
        default=None,
        check=Check(f"at least 1, or a list of different seeds, each {SEEDS_IN_WORDS}", _are_seeds),
        doc="Runs of each point of the sweep: a number, counted from `seed` on, or their seeds; "
        "None is `seed` alone.",
    )
    num_samples: int = field(
        default=1,
        check=count,
        doc="How often uniform(), loguniform() and choice() draw a value, each for a grid.",
    )
    scheduler: PopulationBasedTraining | dict[str, Any] | None = field(
        default=None,
        doc="A PopulationBasedTraining, which lets bad lanes go on as copies of good ones with "
        "other hyperparameters, or a dictionary of its arguments; None leaves lanes alone.",
    )
    max_lanes_per_program: int | None = field(
        default=None,
        check=count,
        doc="Lanes that one program trains at once, at most; more are trained in turns. None is as "
        "many as fit into memory.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When the whole state of a run is saved, and what is kept."""

    checkpoint_frequency: int = field(
        default=0,
        check=count_or_zero,
        doc="Saves every so many iterations of fit(); 0 does not count them.",
    )
    checkpoint_interval_s: float | None = field(
        default=300.0,
        check=positive,
        doc="Saves after the iteration of fit() at which the latest checkpoint is so many seconds old, "
        "or older where saving would take more than a twentieth of the time; None looks at no clock.",
    )
    checkpoint_at_end: bool = field(
        default=True,
        doc="Saves when fit() ends, whatever ended it: an error and Ctrl-C among others.",
    )
    max_to_keep: int | None = field(
        default=3,
        check=count,
        doc="Checkpoints kept in the run folder: the newest or, with a checkpoint_score_attribute, "
        "the best, and always the newest beside them; None keeps all.",
    )
    checkpoint_score_attribute: str | None = field(
        default=None,
        doc="The result key, e.g. 'evaluation/env_runners/episode_return_mean', by which the best "
        "checkpoints are kept; those without it count as the worst.",
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
        check=Check(SEEDS_IN_WORDS, is_seed),
        doc="Seed of every random draw, of 64 bits; the same config and seed give the same run.",
    )
    log_level: Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR"] = field(
        default="WARN",
        doc="Level of jaxrl's Python loggers: INFO says what is built, compiled and saved, DEBUG "
        "the shapes too.",
    )
    log_sys_usage: bool = field(
        default=True, doc="Reports processor, memory and device memory use with each result."
    )
    loggers: list[LoggerName | Any] = field(
        default=["console", "json", "csv", "tensorboard"],
        import_path=Kind(methods=("write", "close")),
        doc="Where results go: names, or objects or classes with the methods write(result) and "
        "close().",
    )
    results_dir: str = field(default="~/jaxrl_results", doc="The folder of all run folders.")
    run_name: str | None = field(
        default=None, doc="Name of the run folder; None makes one of algorithm, environment, time."
    )
    max_retraces: int | None = field(
        default=None,
        check=count_or_zero,
        doc="Raises when a compiled program would be compiled again more often than this, naming "
        "what changed; None does not count.",
    )
    jit: bool = field(
        default=True, doc="False runs operation by operation, for a debugger; very slow."
    )
    compilation_cache_dir: str | None = field(
        default=None,
        doc="Where compiled programs are kept between processes, up to 2 GiB: None is a private "
        "folder of the user (or JAX's own setting), 'off' keeps none; a folder that others can "
        "write to is made private or not used.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Functions of the user's that are called on the way."""

    callbacks_class: Any = dataclasses.field(
        default=None,
        kw_only=False,
        metadata=setting_metadata(
            doc="A Callbacks subclass, or a list of them, called in this order.",
            import_path=Kind(bases=("jaxrl.callbacks:Callbacks",)),
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
    on_environment_created: Hook = field(
        default=None,
        import_path=True,
        doc="Called with each runner's environments, on the host only.",
    )
    on_episode_created: Hook = field(
        default=None, import_path=True, doc="Called before the reset of an episode, on the host."
    )
    on_episode_start: Hook = field(
        default=None, import_path=True, doc="Called after the reset of an episode, on the host."
    )
    on_episode_step: Hook = field(
        default=None, import_path=True, doc="Called after each step of an episode, on the host."
    )
    on_episode_end: Hook = field(
        default=None,
        import_path=True,
        doc="Called for each ended episode, in the compiled program's case after the dispatch.",
    )
    on_sample_end: Hook = field(
        default=None,
        import_path=True,
        doc="Called when a dispatch, or a runner, has gathered its samples.",
    )
    on_env_runners_recreated: Hook = field(
        default=None,
        import_path=True,
        doc="Called when runners that failed have been started again.",
    )
    on_checkpoint_loaded: Hook = field(
        default=None, import_path=True, doc="Called after a checkpoint has been restored."
    )
