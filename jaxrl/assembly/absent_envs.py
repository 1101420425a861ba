"""Descriptions of environments that are not in this process: recorded ones, and simulators."""

from typing import TYPE_CHECKING, NoReturn

from jaxrl.assembly.offline import open_config_data
from jaxrl.envs.adapters.host_spaces import to_runner_space
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.space_checks import check_space
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def make_data_env(config: "AlgorithmConfig") -> MadeHostEnv:
    """Make the description of an environment that only its recorded data are there of."""
    settings = config.environment_settings
    spaces = settings.observation_space, settings.action_space
    if None in spaces:
        data = open_config_data(config)[0]
        spaces = data.observation_space, data.action_space

    def create(context: EnvContext) -> NoReturn:
        raise ConfigError(
            "There is no environment, only its recorded data: name it for evaluation, "
            "environment(env=...)."
        )

    check_space("observation_space", spaces[0])
    check_space("action_space", to_runner_space(spaces[1]))
    return MadeHostEnv(
        id="recorded data",
        create=create,
        observation_space=spaces[0],
        action_space=spaces[1],
        max_episode_steps=None,
        env_config={},
    )


def make_external_env(config: "AlgorithmConfig") -> MadeHostEnv:
    """Make the description of environments in simulators, from the declared spaces."""
    settings = config.environment_settings

    def create(context: EnvContext) -> NoReturn:
        raise ConfigError(
            "The environments are in simulators (placement='external'), and there is none here: "
            "name one for evaluation, evaluation_config={'env': ...}."
        )

    assert settings.observation_space is not None
    assert settings.action_space is not None
    check_space("observation_space", settings.observation_space)
    check_space("action_space", to_runner_space(settings.action_space))
    return MadeHostEnv(
        id="external",
        create=create,
        observation_space=settings.observation_space,
        action_space=settings.action_space,
        max_episode_steps=None,
        env_config={},
    )
