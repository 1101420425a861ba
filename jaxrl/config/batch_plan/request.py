"""Explicit train batch sizes of a config."""

from typing import TYPE_CHECKING

from jaxrl.config.batch_plan.arithmetic import BatchRequest
from jaxrl.config.markers import contains_tune_marker, find_markers
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def make_batch_request(config: "AlgorithmConfig") -> BatchRequest:
    """Return the explicit sizes of a config; None for those that the plan is free to choose.

    Raises:
        ConfigError: If the two train batch sizes contradict each other, or a setting is a marker.
    """
    refuse_markers(config)
    training, runners = config.training_settings, config.env_runners_settings
    learners = config.learners_settings
    explicit = config.explicit
    use = training.batch_use
    size = use.minibatch_size
    envs, steps, shards = (
        None if value in (None, "auto") else value
        for value in (
            runners.num_envs_per_env_runner,
            runners.rollout_fragment_length,
            learners.num_shards,
        )
    )
    batch = _train_batch_size(config)
    # A default length adapts to an explicit train batch size.
    adapts = batch is not None and "rollout_fragment_length" not in explicit
    return BatchRequest(
        train_batch_size=batch,
        envs_per_runner=envs,
        rollout_fragment_length=None if adapts else steps,
        default_rollout_fragment_length=steps if adapts else None,
        is_tuning_num_envs=runners.num_envs_per_env_runner == "auto",
        minibatch_size=size if "minibatch_size" in explicit else None,
        num_shards=shards,
        num_env_runners=max(1, runners.num_env_runners),
        num_learners=max(1, learners.num_learners),
        # Without actors, the environments of this process produce the whole batch.
        is_async=config.is_async and runners.num_env_runners > 0,
        is_per_learner=training.train_batch_size_per_learner is not None,
        num_epochs=use.num_epochs,
        iterations_per_batch=use.iterations_per_batch,
        is_whole_batch=size is None,
        default_train_batch_size=training.train_batch_size,
        default_minibatch_size=size or training.train_batch_size,
    )


def refuse_markers(config: "AlgorithmConfig") -> None:
    """Raise if settings hold search markers, which a sweep or Ray Tune must resolve first."""
    if config.sweep_settings.scheduler is not None:
        raise ConfigError(
            "sweep(scheduler=...) compares the lanes of a sweep, but this would be a single run: "
            "build() makes a Population; Ray Tune has its own schedulers."
        )
    for name, value in config.items():
        if any(True for _ in find_markers(value)):
            raise ConfigError(
                f"{name} is swept, got {value!r}, so this config describes several runs: build() "
                "makes a Population of them, and tune.Tuner(..., param_space=config) trials."
            )
        if contains_tune_marker(value):
            raise ConfigError(
                f"{name} is a search marker, got {value!r}; give the config to "
                "tune.Tuner(..., param_space=config), which tries its values, or set one of them."
            )


def _train_batch_size(config: "AlgorithmConfig") -> int | None:
    training = config.training_settings
    share, whole = training.train_batch_size_per_learner, training.train_batch_size
    learners = max(1, config.learners_settings.num_learners)
    if share is None:
        return whole if "train_batch_size" in config.explicit else None
    if "train_batch_size" in config.explicit and whole != share * learners:
        raise ConfigError(
            f"train_batch_size={whole} is not train_batch_size_per_learner={share} for each of "
            f"{learners} learner{'s' * (learners > 1)}; set only one of them."
        )
    return share * learners
