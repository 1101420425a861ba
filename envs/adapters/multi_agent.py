"""Environments of several agents of other packages, by the prefix of their ids."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.envs.adapters.host_creators import Creator
from jaxrl.envs.adapters.jaxmarl import make_jaxmarl
from jaxrl.envs.adapters.openspiel import find_openspiel
from jaxrl.envs.adapters.pettingzoo import find_pettingzoo, get_package
from jaxrl.envs.adapters.pgx import make_pgx
from jaxrl.envs.multi.base import MultiAgentJaxEnv
from jaxrl.errors import EnvError

Maker = Callable[[str, Mapping[str, Any]], MultiAgentJaxEnv[Any, Any]]

MULTI_ADAPTERS: dict[str, Maker] = {"jaxmarl": make_jaxmarl, "pgx": make_pgx}
"""Functions of an id without its prefix and of the package's arguments, by prefix."""

HOST_ADAPTERS: dict[str, Callable[[str], Creator]] = {
    "openspiel": find_openspiel,
    "pettingzoo": find_pettingzoo,
}
"""Functions of an id without its prefix that return the creator of a Python environment, by prefix."""


def find_host_package(prefix: str, name: str) -> str | None:
    """Return the package that an id imports beside the one of its prefix, None if there is none."""
    return get_package(name) if prefix == "pettingzoo" else None


def make_adapted(
    prefix: str, name: str, arguments: Mapping[str, Any], max_episode_steps: int | None
) -> MultiAgentJaxEnv[Any, Any]:
    """Make an environment of another package; equal arguments give the same object.

    Raises:
        UnknownNameError: If the package has no such environment.
        EnvError: If the package is not installed, or an argument is refused.
    """
    if prefix == "pgx" and max_episode_steps is not None:
        raise EnvError(
            f"max_episode_steps={max_episode_steps} cannot truncate pgx:{name}: pgx makes the "
            "observation of the player whose turn it is alone, so the other has none to bootstrap "
            "from. Leave it out; games of pgx end by their own rules."
        )
    try:
        hash(tuple(arguments.values()))
    except TypeError:
        return MULTI_ADAPTERS[prefix](name, arguments)
    types = tuple(type(value) for value in arguments.values())
    return _make_cached(prefix, name, tuple(arguments.items()), types)


@functools.cache
def _make_cached(
    prefix: str, name: str, arguments: tuple[tuple[str, object], ...], types: tuple[type, ...]
) -> MultiAgentJaxEnv[Any, Any]:
    del types  # which keep True apart from 1 and 1.0
    return MULTI_ADAPTERS[prefix](name, dict(arguments))
