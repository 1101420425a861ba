"""Algorithms: every config class by name, imported on first use (PEP 562)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.algorithms.appo import APPOConfig
    from jaxrl.algorithms.dqn import DQNConfig, RainbowConfig
    from jaxrl.algorithms.impala import IMPALAConfig
    from jaxrl.algorithms.ppo import A2CConfig, PGConfig, PPOConfig
    from jaxrl.algorithms.pqn import PQNConfig
    from jaxrl.algorithms.sac import SACConfig
    from jaxrl.algorithms.td3 import DDPGConfig, TD3Config
    from jaxrl.algorithms.tqc import TQCConfig

__all__ = [
    "A2CConfig",
    "APPOConfig",
    "DDPGConfig",
    "DQNConfig",
    "IMPALAConfig",
    "PGConfig",
    "PPOConfig",
    "PQNConfig",
    "RainbowConfig",
    "SACConfig",
    "TD3Config",
    "TQCConfig",
]

_HOME = {
    "A2CConfig": "ppo",
    "APPOConfig": "appo",
    "DDPGConfig": "td3",
    "DQNConfig": "dqn",
    "IMPALAConfig": "impala",
    "PGConfig": "ppo",
    "PPOConfig": "ppo",
    "PQNConfig": "pqn",
    "RainbowConfig": "dqn",
    "SACConfig": "sac",
    "TD3Config": "td3",
    "TQCConfig": "tqc",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jaxrl.algorithms' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"jaxrl.algorithms.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
