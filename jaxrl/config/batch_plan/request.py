"""What a config says about the sizes of a train batch."""

from typing import TYPE_CHECKING

from jaxrl.config.batch_plan.arithmetic import BatchRequest
from jaxrl.config.markers import holds_marker
from jaxrl.config.settings.asynchronous import AsyncTraining
from jaxrl.config.settings.training import OnPolicyTraining
from jaxrl.config.sweep import markers_in
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def batch_request(config: "AlgorithmConfig") -> BatchRequest:
    """The sizes that were set; None where the plan is free to choose.

    Raises:
        ConfigError: The two train batch sizes contradict each other, or one is a search marker.
    """
    refuse_markers(config)
    training, runners = config.training_settings, config.env_runners_settings
    learners = config.learners_settings
    explicit = config.explicit
    on_policy = isinstance(training, OnPolicyTraining)
    size = training.minibatch_size if on_policy else None
    envs, steps, shards = (
        None if value in (None, "auto") else value
        for value in (
            runners.num_envs_per_env_runner,
            runners.rollout_fragment_length,
            learners.num_shards,
        )
    )
    batch = _train_batch_size(config)
    # A length that is only the default gives way to a train batch that was set.
    adapts = batch is not None and "rollout_fragment_length" not in explicit
    again = isinstance(training, AsyncTraining)
    return BatchRequest(
        train_batch_size=batch,
        envs_per_runner=envs,
        rollout_fragment_length=None if adapts else steps,
        default_rollout_fragment_length=steps if adapts else None,
        measures_envs=runners.num_envs_per_env_runner == "auto",
        minibatch_size=size if "minibatch_size" in explicit else None,
        num_shards=shards,
        num_env_runners=max(1, runners.num_env_runners),
        num_learners=max(1, learners.num_learners),
        # Without actors the environments of this process make the whole batch.
        asynchronous=config.is_async and runners.num_env_runners > 0,
        per_learner=training.train_batch_size_per_learner is not None,
        num_epochs=training.num_epochs if on_policy else 1,
        iterations_per_batch=training.circular_buffer_iterations_per_batch if again else 1,
        whole_batch=size is None,
        default_train_batch_size=training.train_batch_size,
        default_minibatch_size=size or training.train_batch_size,
    )


def refuse_markers(config: "AlgorithmConfig") -> None:
    """Raises for values of which one has to be chosen first: by a sweep's lanes, or Ray Tune."""
    if config.sweep_settings.scheduler is not None:
        raise ConfigError(
            "sweep(scheduler=...) compares the lanes of a sweep, and this would be one run: build() "
            "makes a Population; Ray Tune takes a scheduler of its own."
        )
    for name, value in config.items():
        if any(True for _ in markers_in(value)):
            raise ConfigError(
                f"{name} is to be swept, got {value!r}, so this config is of several runs: "
                "build() makes a Population of them, and tune.Tuner(..., param_space=config) trials."
            )
        if holds_marker(value):
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
