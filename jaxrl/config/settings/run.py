"""Groups of settings around training: evaluation, reporting, checkpoints, sweeps and others."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from jaxrl.config.fields import (
    Check,
    at_least_one,
    count,
    count_or_zero,
    field,
    make_setting_metadata,
    non_negative,
    positive,
)
from jaxrl.config.imports import ImportKind
from jaxrl.config.pbt import PopulationBasedTraining
from jaxrl.config.settings.offline import OfflineEvaluationSettings
from jaxrl.config.settings.training import Auto
from jaxrl.core.jit import is_jit_disabled
from jaxrl.core.seeds import SEED_DESCRIPTION, is_seed
from jaxrl.errors import ConfigError
from jaxrl.metrics import RENAMED_KEYS

LocalLoggerName: TypeAlias = Literal["console", "json", "csv", "tensorboard"]
"""Sinks that only print or write into the run folder, so a config from any source may name them."""
LoggerName: TypeAlias = Literal[LocalLoggerName, "wandb"]

LOCAL_LOGGERS: tuple[str, ...] = get_args(LocalLoggerName)
LOGGERS: tuple[str, ...] = get_args(LoggerName)


Hook = Callable[..., Any] | list[Callable[..., Any]] | None


def count_evaluation_arguments(function: Callable[..., object]) -> int:
    """Return the number of arguments of a custom evaluation function.

    Returns:
        1 for (algorithm), 2 for RLlib's (algorithm, eval_workers), 0 for any other signature.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return 1  # a C function without a signature
    for number in (1, 2):
        try:
            signature.bind(*range(number))
        except TypeError:
            continue
        return number
    return 0


evaluation_check = Check(
    requirement="a function of (algorithm) or of (algorithm, eval_workers)",
    is_satisfied=lambda value: value is None or count_evaluation_arguments(value) > 0,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings(OfflineEvaluationSettings):
    """Evaluation of the policy, separate from training."""

    evaluation_interval: int | None = field(
        default=None,
        check=count_or_zero,
        doc="Number of training iterations between evaluations; None or 0 disables evaluation.",
    )
    evaluation_duration: int | Auto = field(
        default=10,
        check=count,
        doc="Duration of an evaluation, in evaluation_duration_unit; 'auto', which requires "
        "evaluation_parallel_to_training, lasts as long as the concurrent training.",
    )
    evaluation_duration_unit: Literal["episodes", "timesteps"] = field(
        default="episodes", doc="Unit of evaluation_duration."
    )
    evaluation_config: dict[str, Any] | None = field(
        default=None,
        doc="Settings that differ in evaluation, e.g. {'explore': False}: env, env_config, "
        "max_episode_steps, explore and those of evaluation(). Note that some tasks require a "
        "policy that samples its actions.",
    )
    custom_evaluation_function: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        check=evaluation_check,
        doc="Function of (algorithm), or of RLlib's (algorithm, eval_workers) with None for the "
        "second, that replaces the built-in evaluation and returns a dictionary of metrics; those "
        "below custom_metrics can be stop criteria.",
    )
    evaluation_num_envs: int | Auto = field(
        default="auto",
        check=count,
        doc="Number of environments that are evaluated in parallel, each for an equal share of the "
        "duration; 'auto' is the largest divisor of the duration up to a limit.",
    )
    evaluation_num_env_runners: int = field(
        default=0,
        check=count_or_zero,
        doc="Number of Ray actors for evaluation alone; 0 evaluates in this process.",
    )
    evaluation_parallel_to_training: bool = field(
        default=False,
        doc="Whether to evaluate concurrently with training, using the weights from before the "
        "iteration, so that evaluation results lag by one iteration.",
    )
    evaluation_sample_timeout_s: float = field(
        default=120.0,
        check=positive,
        doc="Timeout in seconds of an evaluation on the host, which then ends with the episodes "
        "that are complete.",
    )
    evaluation_auto_duration_min_env_steps_per_sample: int = field(
        default=100,
        check=count,
        doc="Minimum number of steps per request to an evaluation runner with "
        "evaluation_duration='auto'.",
    )
    evaluation_auto_duration_max_env_steps_per_sample: int = field(
        default=2000,
        check=count,
        doc="Maximum number of steps per request to an evaluation runner with "
        "evaluation_duration='auto'.",
    )
    evaluation_unhealthy_workers_timeout_s: float = field(
        default=0.0,
        check=non_negative,
        doc="Number of seconds to wait for an evaluation runner to recover when none is healthy.",
    )
    evaluation_error_after_n_consecutive_skips: int | None = field(
        default=None,
        check=at_least_one,
        doc="Number of consecutive evaluations skipped for lack of healthy runners after which an "
        "error is raised; None never raises.",
    )
    record_video: bool | int = field(
        default=False,
        check=count_or_zero,
        doc="Number of episodes of each evaluation to record as videos in the run folder; True "
        "records one.",
    )
    always_attach_evaluation_results: bool = field(
        default=True, doc="Whether results between two evaluations repeat the latest one."
    )

    def is_due(self, iteration: int) -> bool:
        """Return whether an iteration ends with an evaluation."""
        return bool(self.evaluation_interval) and iteration % self.evaluation_interval == 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultToleranceSettings:
    """Handling of non-finite values and of failed runners, environments and learners."""

    on_nonfinite: Literal["rollback", "raise", "skip"] = field(
        default="rollback",
        doc="Action after nonfinite_updates_tolerance consecutive non-finite updates, each of "
        "which is skipped: restore the last good parameters, raise, or continue to skip.",
    )
    nonfinite_updates_tolerance: int = field(
        default=10,
        check=count,
        doc="Number of consecutive non-finite updates before on_nonfinite applies.",
    )
    restart_failed_env_runners: bool = field(
        default=True,
        doc="Whether to restart a runner that died or hung, with its index and the latest "
        "weights; an explicit ignore_env_runner_failures=True overrides this default.",
    )
    ignore_env_runner_failures: bool = field(
        default=False,
        doc="Whether to continue with the remaining runners after one died or hung, as long as "
        "there is one.",
    )
    max_num_env_runner_restarts: int = field(
        default=1000, check=non_negative, doc="Maximum number of restarts per runner."
    )
    delay_between_env_runner_restarts_s: float = field(
        default=60.0,
        check=non_negative,
        doc="Maximum delay in seconds before a runner is restarted: none for the first restart, "
        "then 1, 2, 4, ... up to this.",
    )
    restart_failed_sub_environments: bool = field(
        default=False,
        doc="Whether to recreate an environment that raises, while the others of its runner keep "
        "their episodes; otherwise the runner fails.",
    )
    num_consecutive_env_runner_failures_tolerance: int = field(
        default=100,
        check=non_negative,
        doc="Number of consecutive runner failures, without a fragment in between, before the run "
        "ends.",
    )
    env_runner_health_probe_timeout_s: float = field(
        default=30.0,
        check=positive,
        doc="Timeout in seconds of a runner's health probe.",
    )
    env_runner_restore_timeout_s: float = field(
        default=1800.0,
        check=positive,
        doc="Timeout in seconds of a restarted runner until it has its environments and weights.",
    )

    learner_health_probe_timeout_s: float = field(
        default=60.0,
        check=positive,
        doc="Timeout in seconds of a learner process's health probe, after which the run ends "
        "with an error, e.g. if the process is frozen or its machine is lost; a process that is "
        "computing still answers.",
    )

    @property
    def should_restart_env_runners(self) -> bool:
        """Return whether failed runners are restarted, given both settings; at most one is True."""
        return self.restart_failed_env_runners and not self.ignore_env_runner_failures


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportingSettings:
    """Length of an iteration and content of its result."""

    min_time_s_per_iteration: float | None = field(
        default=None,
        check=non_negative,
        doc="Minimum duration of an iteration in seconds, for which training steps are repeated.",
    )
    min_train_timesteps_per_iteration: int = field(
        default=0,
        check=non_negative,
        doc="Minimum number of environment steps trained on per iteration, for which training "
        "steps are repeated; with replay, these are the rows of all updates.",
    )
    min_sample_timesteps_per_iteration: int = field(
        default=0,
        check=non_negative,
        doc="Minimum number of environment steps sampled per iteration, for which training steps "
        "are repeated.",
    )
    metrics_num_episodes_for_smoothing: int = field(
        default=100,
        check=count,
        doc="Number of latest episodes over which episode metrics are averaged; 1 does not smooth.",
    )
    log_gradients: bool = field(
        default=False, doc="Whether to report the gradient norm of every parameter tensor."
    )


def _are_seeds(value: int | list[int] | None) -> bool:
    if isinstance(value, list):
        return bool(value) and len(set(value)) == len(value) and all(map(is_seed, value))
    return value is None or value >= 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Runs of a sweep: all combinations of its values, each with every seed."""

    seeds: int | list[int] | None = field(
        default=None,
        check=Check(
            f"at least 1, or a list of different seeds, each {SEED_DESCRIPTION}", _are_seeds
        ),
        doc="Seeds for each point of the sweep: a list, or a number of seeds that count up from "
        "`seed`; None is `seed` alone.",
    )
    num_samples: int = field(
        default=1,
        check=count,
        doc="Number of samples of uniform(), loguniform() and choice(), each combined with the "
        "grid.",
    )
    scheduler: PopulationBasedTraining | dict[str, Any] | None = field(
        default=None,
        doc="PopulationBasedTraining, which replaces bad lanes by copies of good ones with other "
        "hyperparameters, or a dictionary of its arguments; None trains lanes independently.",
    )
    max_lanes_per_program: int | None = field(
        default=None,
        check=count,
        doc="Maximum number of lanes that one program trains at once; others take turns. None is "
        "the number that fits into memory.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointingSettings:
    """Saving and retention of checkpoints, which contain the whole state of a run."""

    checkpoint_frequency: int = field(
        default=0,
        check=count_or_zero,
        doc="Number of iterations of fit() between checkpoints; 0 disables saving by iterations.",
    )
    checkpoint_interval_s: float | None = field(
        default=300.0,
        check=positive,
        doc="Number of seconds between checkpoints of fit(), increased if saving would take more "
        "than a twentieth of the time; None disables saving by time.",
    )
    checkpoint_at_end: bool = field(
        default=True,
        doc="Whether to save when fit() ends for any reason, including errors and Ctrl-C.",
    )
    max_to_keep: int | None = field(
        default=3,
        check=count,
        doc="Number of checkpoints kept in the run folder: the newest or, with "
        "checkpoint_score_attribute, the best in addition to the newest; None keeps all.",
    )
    checkpoint_score_attribute: str | None = field(
        default=None,
        doc="Result key that ranks checkpoints, e.g. "
        "'evaluation/env_runners/episode_return_mean'; those without it rank last.",
    )
    checkpoint_score_order: Literal["max", "min"] = field(
        default="max", doc="Whether a high or a low score is better."
    )
    async_checkpointing: bool = field(
        default=True, doc="Whether to write checkpoints in the background while training continues."
    )

    @property
    def score_key(self) -> str | None:
        """Result key of the score, with RLlib's old keys replaced by current ones."""
        key = self.checkpoint_score_attribute
        return None if key is None else RENAMED_KEYS.get(key, key)


def _are_sinks(loggers: list[object]) -> bool:
    return all(
        isinstance(each, str) or all(hasattr(each, name) for name in ("write", "close"))
        for each in loggers
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebuggingSettings:
    """Seeds, logging and compilation."""

    seed: int | None = field(
        default=0,
        check=Check(SEED_DESCRIPTION, lambda value: value is None or is_seed(value)),
        doc="Seed of all random numbers, of 64 bits; the same config and seed give the same run. "
        "None draws one for each run, which params.json and checkpoints contain.",
    )
    log_level: Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR"] = field(
        default="WARN",
        doc="Level of jaxrl's Python loggers: INFO logs what is built, compiled and saved, DEBUG "
        "also logs shapes.",
    )
    log_sys_usage: bool = field(
        default=True, doc="Whether to report CPU, memory and device memory usage with each result."
    )
    loggers: list[LoggerName | Any] = field(
        default=["console", "json", "csv", "tensorboard"],
        import_path=ImportKind(methods=("write", "close")),
        check=Check("names, or objects or classes with write(result) and close()", _are_sinks),
        doc="Sinks for results: names, or objects or classes with the methods write(result) and "
        "close().",
    )
    results_dir: str = field(default="~/jaxrl_results", doc="Folder that contains the run folders.")
    run_name: str | None = field(
        default=None, doc="Name of the run folder; None combines algorithm, environment and time."
    )
    max_retraces: int | None = field(
        default=None,
        check=count_or_zero,
        doc="Maximum number of recompilations of a program, beyond which an error names what "
        "changed; None is unlimited.",
    )
    jit: bool = field(
        default=True,
        doc="Whether to compile; False runs operation by operation for debugging, very slowly.",
    )
    compilation_cache_dir: str | None = field(
        default=None,
        doc="Folder of the persistent compilation cache, of up to 2 GiB: None is a private folder "
        "of the user (or JAX's own setting), 'off' disables the cache; a folder that other users "
        "can write to is made private or not used.",
    )

    @property
    def compiles(self) -> bool:
        """Value of `jit`, which JAX's own `jax_disable_jit` overrules."""
        return self.jit and not is_jit_disabled()

    @property
    def run_seed(self) -> int:
        """Seed of a run, for which one has been drawn if the setting was None."""
        if self.seed is None:
            raise ConfigError("seed is None: build() draws the seed of a run; set a number.")
        return self.seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallbacksSettings:
    """User functions that are called during training."""

    callbacks_class: Any = dataclasses.field(
        default=None,
        kw_only=False,
        metadata=make_setting_metadata(
            doc="Callbacks subclass, or a list of them, called in this order.",
            import_path=ImportKind(bases=("jaxrl.callbacks:Callbacks",)),
        ),
    )
    on_algorithm_init: Hook = field(
        default=None, import_path=True, doc="Called after an Algorithm has been built."
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
    on_evaluate_offline_start: Hook = field(
        default=None, import_path=True, doc="Called before each evaluation on held-out episodes."
    )
    on_evaluate_offline_end: Hook = field(
        default=None,
        import_path=True,
        doc="Called with the metrics of each evaluation on held-out episodes.",
    )
    on_environment_created: Hook = field(
        default=None,
        import_path=True,
        doc="Called with each runner's environments.",
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
        doc="Called for each ended episode; for in-graph environments, after the dispatch.",
    )
    on_sample_end: Hook = field(
        default=None,
        import_path=True,
        doc="Called after a dispatch or a runner has collected its samples.",
    )
    on_env_runners_recreated: Hook = field(
        default=None,
        import_path=True,
        doc="Called after failed runners have been restarted.",
    )
    on_checkpoint_loaded: Hook = field(
        default=None, import_path=True, doc="Called after a checkpoint has been restored."
    )


WITHOUT_CALLBACKS: Mapping[str, None] = dict.fromkeys(
    setting.name for setting in dataclasses.fields(CallbacksSettings)
)
"""Settings that leave out all callbacks, for what calls none."""
