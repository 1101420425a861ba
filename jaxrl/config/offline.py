"""Checks of configs that learn from recorded data."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl.config.settings.offline_data import SAMPLER
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.sweep import is_sweep
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_NO_SAMPLING = "no environment is stepped for training"
_NO_BUFFER = "rows come from the recorded data, not from a replay buffer"
_HOOKS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
    "on_env_runners_recreated",
)
NOT_OFFLINE_SETTINGS: dict[str, str] = {
    **dict.fromkeys(_HOOKS, _NO_SAMPLING),
    **dict.fromkeys(
        (
            "num_env_runners",
            "num_envs_per_env_runner",
            "rollout_fragment_length",
            "batch_mode",
            "env_runner_cls",
            "env_task_fn",
            "curriculum",
            "initial_random_timesteps",
            "min_sample_timesteps_per_iteration",
            "min_train_timesteps_per_iteration",
        ),
        f"{_NO_SAMPLING}; num_updates_per_iteration is the length of an iteration",
    ),
    **dict.fromkeys(
        (
            "replay_buffer_config",
            "num_steps_sampled_before_learning_starts",
            "training_intensity",
            "store_buffer_in_checkpoints",
            "max_buffer_bytes",
            "zero_init_states",
        ),
        _NO_BUFFER,
    ),
    "num_learners": "the data are on the devices of this process",
}
"""Settings that have no effect when a run learns from recorded data, with the reasons."""


def check_offline(config: "AlgorithmConfig") -> None:
    """Check that data are given where they are needed, and settings that need environments are not.

    Raises:
        ConfigError: If a setting contradicts `input_`.
    """
    data = config.offline_data_settings
    _check_output(config)
    if not config.is_offline:
        if config.requires_data:
            raise ConfigError(
                f"{config.algo_name} learns from recorded data: name a folder of them, "
                f"offline_data(input_='path/to/data'), got input_={data.input_!r}."
            )
        _check_unused(config)
        return
    if not (config.requires_data or isinstance(config.training_settings, OffPolicyTraining)):
        raise ConfigError(
            f"input_={data.input_!r} are recorded data, but {config.algo_name} learns from the "
            "newest steps of its own policy: use BC, MARWIL, CQL, or an algorithm with a replay "
            "buffer (DQN, SAC, TD3)."
        )
    placement = config.env_runners_settings.placement
    if placement != "auto":
        raise ConfigError(
            f"placement={placement!r} has no effect with input_={data.input_!r}: {_NO_SAMPLING}; "
            "leave it at 'auto'."
        )
    for name, reason in NOT_OFFLINE_SETTINGS.items():
        if name not in config.explicit or config[name] == type(config)()[name]:
            continue
        raise ConfigError(
            f"'{name}' (got {config[name]!r}) has no effect with input_={data.input_!r}: {reason}."
        )
    evaluation = config.evaluation_settings
    if evaluation.evaluation_interval and not config.has_evaluation_env:
        raise ConfigError(
            f"evaluation_interval={evaluation.evaluation_interval} has no environment to evaluate "
            f"in: give the one of the data, environment(env=...), or leave it out."
        )


def resolve_data_paths(config: "AlgorithmConfig") -> None:
    """Make the paths of recorded data absolute, which are relative to the working directory."""
    data = config.offline_data_settings
    if config.is_offline:
        names = [data.input_] if isinstance(data.input_, str) else data.input_
        absolute = [str(Path(name).expanduser().absolute()) for name in names]
        config.offline_data(input_=absolute[0] if isinstance(data.input_, str) else absolute)
    if data.output is not None:
        config.offline_data(output=str(Path(data.output).expanduser().absolute()))


def _check_output(config: "AlgorithmConfig") -> None:
    """Raise if a run cannot be recorded, or settings of a recording are set without one."""
    data, default = config.offline_data_settings, type(config)().offline_data_settings
    if data.output is None:
        for name in ("output_max_file_size", "output_max_rows_per_file"):
            if name in config.explicit and vars(data)[name] != vars(default)[name]:
                raise ConfigError(
                    f"'{name}' (got {vars(data)[name]!r}) has no effect without a recording: name a "
                    "folder as output, or leave it out."
                )
        return
    compiled = getattr(config.algo_class, "compiled_training_step", None) is not None
    for problem, reason in (
        (config.is_offline, "recorded data are learned from, and nothing is sampled"),
        (is_sweep(config), "lanes of a sweep are not recorded; run them one by one"),
        (
            config.learners_settings.num_learners > 0
            and config.env_runners_settings.num_env_runners == 0,
            "learner processes do not return what they sample; set num_learners=0",
        ),
        (compiled, "an own compiled training step is not recorded; set placement='host'"),
    ):
        if problem:
            raise ConfigError(f"output={data.output!r} cannot be recorded here: {reason}.")


def _check_unused(config: "AlgorithmConfig") -> None:
    """Raise if a setting for recorded data is set, but none are read."""
    data, default = config.offline_data_settings, type(config)().offline_data_settings
    for name in vars(data):
        if name in config.explicit and name != "input_" and _is_input(name):
            if vars(data)[name] == vars(default)[name]:
                continue
            raise ConfigError(
                f"'{name}' (got {vars(data)[name]!r}) has no effect without recorded data: set "
                f"input_, which is {SAMPLER!r}, or leave it out."
            )


def _is_input(name: str) -> bool:
    return not name.startswith("output")
