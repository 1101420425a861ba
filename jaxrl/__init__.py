"""Reinforcement learning in JAX, with RLlib's API."""

import importlib
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from jaxrl.compat.imports import install_import_hooks, refuse_foreign_name
from jaxrl.core.algorithms import ALGORITHMS, TRAINABLES
from jaxrl.core.version import __version__

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.algorithms import *  # noqa: F403
    from jaxrl.buffers.host import HostReplayBuffer
    from jaxrl.buffers.replay import ReplayBuffer
    from jaxrl.callbacks import Callbacks
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.load import load_config
    from jaxrl.config.markers import choice, grid, loguniform, uniform
    from jaxrl.config.pbt import PopulationBasedTraining
    from jaxrl.config.settings.multi_agent import (
        Draw,
        League,
        PolicySpec,
        PopulationPlay,
        Seats,
        SelfPlay,
    )
    from jaxrl.core.types import TimeStep
    from jaxrl.envs.base import JaxEnv
    from jaxrl.envs.context import EnvContext
    from jaxrl.envs.multi.base import MultiAgentJaxEnv
    from jaxrl.envs.multi.host_env import MultiAgentEnv
    from jaxrl.envs.registry import list_envs, register_env
    from jaxrl.errors import JaxrlError
    from jaxrl.interop.importing import import_weights
    from jaxrl.modules.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec
    from jaxrl.modules.scripted import HeuristicRLModule, RandomRLModule, ScriptedModule
    from jaxrl.offline.writer import EpisodeWriter
    from jaxrl.policy.policy import Policy
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials

install_import_hooks()

_CONFIG_CLASSES = sorted(path.partition(":")[2] for path, _ in ALGORITHMS.values())

__all__ = [  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]
    "Algorithm",
    "AlgorithmConfig",
    "Callbacks",
    "Draw",
    "EnvContext",
    "EpisodeWriter",
    "HeuristicRLModule",
    "HostReplayBuffer",
    "JaxEnv",
    "JaxrlError",
    "League",
    "MultiAgentEnv",
    "MultiAgentJaxEnv",
    "MultiRLModuleSpec",
    "Policy",
    "PolicySpec",
    "Population",
    "PopulationBasedTraining",
    "PopulationPlay",
    "RLModule",
    "RLModuleSpec",
    "RandomRLModule",
    "ReplayBuffer",
    "ScriptedModule",
    "Seats",
    "SelfPlay",
    "TimeStep",
    "Trials",
    "__version__",
    "choice",
    "grid",
    "import_weights",
    "list_envs",
    "load_config",
    "loguniform",
    "register_env",
    "uniform",
    *_CONFIG_CLASSES,
]

_MODULES = {
    "Algorithm": "jaxrl.algorithm",
    "AlgorithmConfig": "jaxrl.config.base",
    "Callbacks": "jaxrl.callbacks",
    "EnvContext": "jaxrl.envs.context",
    "EpisodeWriter": "jaxrl.offline.writer",
    "HeuristicRLModule": "jaxrl.modules.scripted",
    "HostReplayBuffer": "jaxrl.buffers.host",
    "JaxEnv": "jaxrl.envs.base",
    "JaxrlError": "jaxrl.errors",
    "MultiAgentEnv": "jaxrl.envs.multi.host_env",
    "MultiAgentJaxEnv": "jaxrl.envs.multi.base",
    "MultiRLModuleSpec": "jaxrl.modules.rl_module",
    "Policy": "jaxrl.policy.policy",
    **dict.fromkeys(
        ("Draw", "PolicySpec", "Seats", "SelfPlay"), "jaxrl.config.settings.multi_agent"
    ),
    **dict.fromkeys(("League", "PopulationPlay"), "jaxrl.config.settings.multi_agent"),
    "Population": "jaxrl.sweeps.population",
    "TimeStep": "jaxrl.core.types",
    "Trials": "jaxrl.sweeps.trials",
    "PopulationBasedTraining": "jaxrl.config.pbt",
    **dict.fromkeys(("choice", "grid", "loguniform", "uniform"), "jaxrl.config.markers"),
    "RLModule": "jaxrl.modules.rl_module",
    "RLModuleSpec": "jaxrl.modules.rl_module",
    "ReplayBuffer": "jaxrl.buffers.replay",
    "RandomRLModule": "jaxrl.modules.scripted",
    "ScriptedModule": "jaxrl.modules.scripted",
    "import_weights": "jaxrl.interop.importing",
    "list_envs": "jaxrl.envs.registry",
    "load_config": "jaxrl.config.load",
    "register_env": "jaxrl.envs.registry",
}

_MODULES.update(dict.fromkeys(TRAINABLES, "jaxrl.tune"))
_MODULES.update(dict.fromkeys(_CONFIG_CLASSES, "jaxrl.algorithms"))


def __getattr__(name: str) -> Any:
    """Import a public name on first access (PEP 562), which keeps `import jaxrl` fast."""
    if name not in _MODULES:
        is_module = PathFinder.find_spec(f"jaxrl.{name}", globals()["__path__"]) is not None
        if not name.startswith("_") and not is_module:
            refuse_foreign_name("jaxrl", name)
        raise AttributeError(f"module 'jaxrl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *TRAINABLES})
