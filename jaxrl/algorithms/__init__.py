"""Algorithms: every config class by name, imported on first use (PEP 562)."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxrl.compat.imports import refuse_foreign_name
from jaxrl.core.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from jaxrl.algorithms.alpha_zero import AlphaZeroConfig
    from jaxrl.algorithms.appo import APPOConfig
    from jaxrl.algorithms.awac import AWACConfig, CRRConfig
    from jaxrl.algorithms.bandit import BanditLinTSConfig, BanditLinUCBConfig
    from jaxrl.algorithms.cql import CQLConfig
    from jaxrl.algorithms.dqn import (
        ApexDQNConfig,
        DQNConfig,
        R2D2Config,
        RainbowConfig,
        SimpleQConfig,
    )
    from jaxrl.algorithms.dreamer import DreamerV3Config
    from jaxrl.algorithms.dt import DTConfig
    from jaxrl.algorithms.es import ARSConfig, ESConfig
    from jaxrl.algorithms.impala import A3CConfig, IMPALAConfig
    from jaxrl.algorithms.iql import IQLConfig
    from jaxrl.algorithms.maddpg import MADDPGConfig, MATD3Config
    from jaxrl.algorithms.mappo import MAPPOConfig
    from jaxrl.algorithms.marwil import BCConfig, MARWILConfig
    from jaxrl.algorithms.muzero import MuZeroConfig
    from jaxrl.algorithms.ppo import A2CConfig, DDPPOConfig, PGConfig, PPOConfig
    from jaxrl.algorithms.pqn import PQNConfig
    from jaxrl.algorithms.qmix import QMIXConfig, VDNConfig
    from jaxrl.algorithms.random_agent import RandomAgentConfig
    from jaxrl.algorithms.sac import CrossQConfig, REDQConfig, RNNSACConfig, SACConfig
    from jaxrl.algorithms.slate_q import SlateQConfig
    from jaxrl.algorithms.td3 import ApexDDPGConfig, DDPGConfig, TD3Config
    from jaxrl.algorithms.tqc import TQCConfig

__all__ = [
    "A2CConfig",
    "A3CConfig",
    "APPOConfig",
    "ARSConfig",
    "AWACConfig",
    "AlphaZeroConfig",
    "ApexDDPGConfig",
    "ApexDQNConfig",
    "BCConfig",
    "BanditLinTSConfig",
    "BanditLinUCBConfig",
    "CQLConfig",
    "CRRConfig",
    "CrossQConfig",
    "DDPGConfig",
    "DDPPOConfig",
    "DQNConfig",
    "DTConfig",
    "DreamerV3Config",
    "ESConfig",
    "IMPALAConfig",
    "IQLConfig",
    "MADDPGConfig",
    "MAPPOConfig",
    "MARWILConfig",
    "MATD3Config",
    "MuZeroConfig",
    "PGConfig",
    "PPOConfig",
    "PQNConfig",
    "QMIXConfig",
    "R2D2Config",
    "REDQConfig",
    "RNNSACConfig",
    "RainbowConfig",
    "RandomAgentConfig",
    "SACConfig",
    "SimpleQConfig",
    "SlateQConfig",
    "TD3Config",
    "TQCConfig",
    "VDNConfig",
]

_MODULES = {path.partition(":")[2]: path.partition(":")[0] for path, _ in ALGORITHMS.values()}
"""Module of each config class."""


def __getattr__(name: str) -> Any:
    if name in ALGORITHMS:
        config = ALGORITHMS[name].config.partition(":")[2]
        raise ImportError(
            f"jaxrl.algorithms has no {name}: import {config}, whose build() makes the Algorithm."
        )
    if name not in _MODULES:
        refuse_foreign_name("jaxrl.algorithms", name)
        raise AttributeError(f"module 'jaxrl.algorithms' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
