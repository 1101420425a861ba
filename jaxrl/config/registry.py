"""Algorithms by name; a module is imported when its algorithm is first asked for."""

from typing import TYPE_CHECKING, Any

from jaxrl.config.imports import ALGORITHM_CONFIG, Trust, load_object, only_trusted
from jaxrl.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
from pathlib import Path

import jaxrl

_CONFIGS: dict[str, str] = {
    "PPO": "jaxrl.algorithms.ppo:PPOConfig",
    "A2C": "jaxrl.algorithms.ppo:A2CConfig",
    "PG": "jaxrl.algorithms.ppo:PGConfig",
    "IMPALA": "jaxrl.algorithms.impala:IMPALAConfig",
    "APPO": "jaxrl.algorithms.appo:APPOConfig",
    "DQN": "jaxrl.algorithms.dqn:DQNConfig",
    "Rainbow": "jaxrl.algorithms.dqn:RainbowConfig",
    "PQN": "jaxrl.algorithms.pqn:PQNConfig",
    "SAC": "jaxrl.algorithms.sac:SACConfig",
    "TQC": "jaxrl.algorithms.tqc:TQCConfig",
    "TD3": "jaxrl.algorithms.td3:TD3Config",
    "DDPG": "jaxrl.algorithms.td3:DDPGConfig",
}


def register(name: str, config: str) -> None:
    """Makes `--algo NAME` and `run: NAME` mean the config class at `"module:object"`."""
    _CONFIGS[name] = config


def list_algorithms() -> list[str]:
    """The known names, sorted."""
    return sorted(_CONFIGS)


def get_algorithm_config_class(name: str) -> "type[AlgorithmConfig]":
    """The config class of an algorithm.

    Raises:
        UnknownNameError: Nothing is registered under this name.
    """
    known = {key.lower(): key for key in _CONFIGS}
    if name.lower() not in known:
        raise UnknownNameError(
            f"There is no algorithm '{name}'; known are {', '.join(list_algorithms())}."
            + did_you_mean(name, _CONFIGS)
        )
    with only_trusted(Trust(everything=True)):  # whoever registered it is part of this process
        found: Any = load_object(_CONFIGS[known[name.lower()]], "algo", ALGORITHM_CONFIG)
    return found


def get_algorithm_config(name: str) -> "AlgorithmConfig":
    """A config of an algorithm, with its defaults."""
    return get_algorithm_config_class(name)()


def shipped_configs() -> dict[str, Path]:
    """The files that come with jaxrl by their ids, as in "classic/cartpole-ppo"."""
    root = Path(jaxrl.__file__).parent / "configs"
    return {
        path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.yaml")
    }


def config_file(given: str) -> Path:
    """The file that a path or an id means.

    Raises:
        UnknownNameError: If there is neither such a file nor such an id.
    """
    path = Path(given).expanduser()
    if path.is_file():
        return path
    shipped = shipped_configs()
    name = given.removeprefix("configs/").removesuffix(".yaml")
    if name not in shipped:
        raise UnknownNameError(
            f"There is no config file '{given}', and no shipped config of this name "
            f"('jaxrl list configs' names them).{did_you_mean(name, shipped)}"
        )
    return shipped[name]
