"""Reinforcement learning in JAX, with RLlib's API."""

import importlib
from typing import TYPE_CHECKING

from jaxrl import moved

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.algorithms import (
        A2CConfig,
        APPOConfig,
        DDPGConfig,
        DQNConfig,
        IMPALAConfig,
        PGConfig,
        PPOConfig,
        PQNConfig,
        RainbowConfig,
        SACConfig,
        TD3Config,
        TQCConfig,
    )
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.load import load_config
    from jaxrl.config.markers import choice, grid, loguniform, uniform
    from jaxrl.config.pbt import PopulationBasedTraining
    from jaxrl.envs.base import JaxEnv
    from jaxrl.envs.context import EnvContext
    from jaxrl.envs.registry import list_envs, register_env
    from jaxrl.errors import JaxrlError
    from jaxrl.modules.rl_module import RLModule, RLModuleSpec
    from jaxrl.policy.policy import Policy
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials
    from jaxrl.tune import AlgorithmTrainable

    A2C: type[AlgorithmTrainable]
    APPO: type[AlgorithmTrainable]
    DDPG: type[AlgorithmTrainable]
    DQN: type[AlgorithmTrainable]
    IMPALA: type[AlgorithmTrainable]
    PG: type[AlgorithmTrainable]
    PPO: type[AlgorithmTrainable]
    PQN: type[AlgorithmTrainable]
    Rainbow: type[AlgorithmTrainable]
    SAC: type[AlgorithmTrainable]
    TD3: type[AlgorithmTrainable]
    TQC: type[AlgorithmTrainable]

__version__ = "0.1.0"

moved.install_import_hook()

__all__ = [
    "A2CConfig",
    "APPOConfig",
    "Algorithm",
    "AlgorithmConfig",
    "DDPGConfig",
    "DQNConfig",
    "EnvContext",
    "IMPALAConfig",
    "JaxEnv",
    "JaxrlError",
    "PGConfig",
    "PPOConfig",
    "PQNConfig",
    "Policy",
    "Population",
    "PopulationBasedTraining",
    "RLModule",
    "RLModuleSpec",
    "RainbowConfig",
    "SACConfig",
    "TD3Config",
    "TQCConfig",
    "Trials",
    "__version__",
    "choice",
    "grid",
    "list_envs",
    "load_config",
    "loguniform",
    "register_env",
    "uniform",
]

_MODULES = {
    "Algorithm": "jaxrl.algorithm",
    "AlgorithmConfig": "jaxrl.config.base",
    "EnvContext": "jaxrl.envs.context",
    "JaxEnv": "jaxrl.envs.base",
    "JaxrlError": "jaxrl.errors",
    "Policy": "jaxrl.policy.policy",
    "Population": "jaxrl.sweeps.population",
    "Trials": "jaxrl.sweeps.trials",
    "PopulationBasedTraining": "jaxrl.config.pbt",
    **dict.fromkeys(("choice", "grid", "loguniform", "uniform"), "jaxrl.config.markers"),
    "RLModule": "jaxrl.modules.rl_module",
    "RLModuleSpec": "jaxrl.modules.rl_module",
    "list_envs": "jaxrl.envs.registry",
    "load_config": "jaxrl.config.load",
    "register_env": "jaxrl.envs.registry",
}


TRAINABLES = (
    "A2C",
    "APPO",
    "DDPG",
    "DQN",
    "IMPALA",
    "PG",
    "PPO",
    "PQN",
    "Rainbow",
    "SAC",
    "TD3",
    "TQC",
)
"""Names of the algorithms as Trainables of Ray Tune; accessing one of them imports Ray."""
_MODULES.update(dict.fromkeys(TRAINABLES, "jaxrl.tune"))
_MODULES.update(dict.fromkeys((f"{name}Config" for name in TRAINABLES), "jaxrl.algorithms"))


def __getattr__(name: str) -> object:
    """Import a public name on first access (PEP 562), which keeps `import jaxrl` fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'jaxrl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *TRAINABLES})
