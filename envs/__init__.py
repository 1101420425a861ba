"""Environments: the contract, the registry, wrappers, and jaxrl's own."""

from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.registry import MadeEnv, list_envs, make, register_env
from jaxrl.envs.wrappers import TimeLimit

__all__ = ["EnvContext", "JaxEnv", "MadeEnv", "TimeLimit", "list_envs", "make", "register_env"]
