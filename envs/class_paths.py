"""Environments that are named by their class or creator: checks, names and instances."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping

import gymnasium
from gymnasium.envs.registration import EnvSpec

from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.base import MultiAgentJaxEnv
from jaxrl.errors import EnvError


def check_creator(found: object, path: str) -> object:
    """Return the object of a class path; classes are checked when they are instantiated.

    Raises:
        EnvError: If it is a function that cannot be a creator.
    """
    is_env = isinstance(found, JaxEnv | MultiAgentJaxEnv)
    if isinstance(found, type) or not callable(found) or is_env:
        return found
    named, defined = path.replace(":", "."), str(getattr(found, "__module__", ""))
    roots = {named.split(".")[0], defined.split(".")[0]}
    try:
        takes_context = not inspect.isbuiltin(found) and not roots & sys.stdlib_module_names
        inspect.signature(found).bind(EnvContext())
    except (TypeError, ValueError):
        takes_context = False
    if not takes_context:
        raise EnvError(
            f"{path!r} names {found!r}, which is no environment: a class path names a subclass of "
            "JaxEnv or gymnasium.Env, or a function that takes an EnvContext and returns one."
        )
    return found


def describe_spec(spec: object) -> str:
    """Return the name of an environment for messages."""
    if isinstance(spec, JaxEnv | MultiAgentJaxEnv):
        return spec.name
    if isinstance(spec, gymnasium.Env) and isinstance(spec.spec, EnvSpec):
        return spec.spec.id
    named = spec if isinstance(spec, type) or inspect.isfunction(spec) else type(spec)
    return f"{named.__module__}:{named.__qualname__}"


def get_instance(
    make: Callable[..., object], arguments: Mapping[str, object], *names: str
) -> object:
    """Return the result of a class or a function for these arguments, cached if they are hashable."""
    try:
        hash(tuple(arguments.values()))
    except TypeError:
        return make(*names, **arguments)
    # The types keep True apart from 1 and 1.0.
    types = tuple(type(value) for value in arguments.values())
    return _make_instance(make, names, tuple(arguments.items()), types)


@functools.cache
def _make_instance(
    make: Callable[..., object],
    names: tuple[str, ...],
    arguments: tuple[tuple[str, object], ...],
    types: tuple[type, ...],
) -> object:
    del types
    return make(*names, **dict(arguments))
