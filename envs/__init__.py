"""Environments: the contract, the registry, wrappers, and built-in tasks."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.envs.adapters.barrier import StepFailedRecreateEnvError
    from jaxrl.envs.adapters.openspiel import OpenSpielEnv
    from jaxrl.envs.adapters.pettingzoo import ParallelPettingZooEnv, PettingZooEnv
    from jaxrl.envs.base import JaxEnv
    from jaxrl.envs.context import EnvContext
    from jaxrl.envs.host import MadeHostEnv
    from jaxrl.envs.multi.base import MultiAgentJaxEnv, MultiStart, MultiStep
    from jaxrl.envs.multi.checked import CheckedMultiAgentEnv
    from jaxrl.envs.multi.copies import make_multi_agent
    from jaxrl.envs.multi.groups import group_agents
    from jaxrl.envs.multi.host_env import MultiAgentEnv
    from jaxrl.envs.multi.host_groups import GroupedAgents
    from jaxrl.envs.multi.host_made import MadeMultiHostEnv
    from jaxrl.envs.multi.made import MadeMultiEnv, MultiTimeLimit
    from jaxrl.envs.registry import (
        MadeEnv,
        list_envs,
        list_multi_envs,
        make,
        make_any,
        make_multi,
        make_multi_host,
        register_env,
    )
    from jaxrl.envs.task_settable import TaskSettableEnv
    from jaxrl.envs.trials import Trials
    from jaxrl.envs.wrappers import TimeLimit

__all__ = [
    "CheckedMultiAgentEnv",
    "EnvContext",
    "GroupedAgents",
    "JaxEnv",
    "MadeEnv",
    "MadeHostEnv",
    "MadeMultiEnv",
    "MadeMultiHostEnv",
    "MultiAgentEnv",
    "MultiAgentJaxEnv",
    "MultiStart",
    "MultiStep",
    "MultiTimeLimit",
    "OpenSpielEnv",
    "ParallelPettingZooEnv",
    "PettingZooEnv",
    "StepFailedRecreateEnvError",
    "TaskSettableEnv",
    "TimeLimit",
    "Trials",
    "group_agents",
    "list_envs",
    "list_multi_envs",
    "make",
    "make_any",
    "make_multi",
    "make_multi_agent",
    "make_multi_host",
    "register_env",
]

_HOME = {
    "CheckedMultiAgentEnv": "jaxrl.envs.multi.checked",
    "EnvContext": "jaxrl.envs.context",
    "GroupedAgents": "jaxrl.envs.multi.host_groups",
    "JaxEnv": "jaxrl.envs.base",
    "MadeEnv": "jaxrl.envs.registry",
    "MadeHostEnv": "jaxrl.envs.host",
    "MadeMultiEnv": "jaxrl.envs.multi.made",
    "MadeMultiHostEnv": "jaxrl.envs.multi.host_made",
    "MultiAgentEnv": "jaxrl.envs.multi.host_env",
    "MultiAgentJaxEnv": "jaxrl.envs.multi.base",
    "MultiStart": "jaxrl.envs.multi.base",
    "MultiStep": "jaxrl.envs.multi.base",
    "MultiTimeLimit": "jaxrl.envs.multi.made",
    "OpenSpielEnv": "jaxrl.envs.adapters.openspiel",
    "ParallelPettingZooEnv": "jaxrl.envs.adapters.pettingzoo",
    "PettingZooEnv": "jaxrl.envs.adapters.pettingzoo",
    "StepFailedRecreateEnvError": "jaxrl.envs.adapters.barrier",
    "TaskSettableEnv": "jaxrl.envs.task_settable",
    "TimeLimit": "jaxrl.envs.wrappers",
    "Trials": "jaxrl.envs.trials",
    "group_agents": "jaxrl.envs.multi.groups",
    "list_envs": "jaxrl.envs.registry",
    "list_multi_envs": "jaxrl.envs.registry",
    "make": "jaxrl.envs.registry",
    "make_any": "jaxrl.envs.registry",
    "make_multi": "jaxrl.envs.registry",
    "make_multi_agent": "jaxrl.envs.multi.copies",
    "make_multi_host": "jaxrl.envs.registry",
    "register_env": "jaxrl.envs.registry",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562).

    The processes of asynchronous vector environments import this package and use few of its names.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'jaxrl.envs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
