"""An environment's parameters while a run goes on: changed without compiling anything again."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import same_space
from jaxrl.core.types import PyTree
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.params import override_params, same_params
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.wrappers import OwnTimeLimit
from jaxrl.errors import EnvError
from jaxrl.training.report import to_host


def changed_params(made: MadeEnv, now: PyTree, params: PyTree, fields: Mapping[str, Any]) -> PyTree:
    """The parameters to go on with, placed and typed as those of now.

    Args:
        made: The environment that the run was built with.
        now: Its parameters now.
        params: All of them; None for those of now.
        fields: Single ones by name, on top.

    Raises:
        UnknownNameError: There is no such parameter.
        EnvError: Another structure, shape or type, or one that changes what is compiled.
    """
    new = to_host(now)
    if params is not None:
        new = same_params(made.id, new, params)
    new = override_params(made.id, new, fields, given_in="set_env_params()")
    _check_what_is_compiled(made, new)
    return jax.tree.map(_placed_like, now, new)


def share_a_program(made: MadeEnv, other: MadeEnv) -> bool:
    """Whether environments differ in nothing but numbers that a program gets as arguments."""
    leaves, structure = jax.tree.flatten(made.params)
    others, other_structure = jax.tree.flatten(other.params)
    if made.env != other.env or structure != other_structure:
        return False
    types, other_types = ([jax.typeof(x) for x in params] for params in (leaves, others))
    return types == other_types and not _compiled_differently(made.env, made.params, other.params)


def _check_what_is_compiled(made: MadeEnv, params: PyTree) -> None:
    for name, built, asked in _compiled_differently(made.env, made.params, params):
        raise EnvError(
            f"set_env_params() would make the {name} of {made.id} {asked}, but the run was "
            f"built with {built}: set such a parameter in env_config."
        )


def _compiled_differently(
    env: JaxEnv[Any, Any], built: PyTree, asked: PyTree
) -> list[tuple[str, Any, Any]]:
    """What follows from an environment's parameters and is part of a program, where it differs."""
    questions: dict[str, tuple[Callable[[PyTree], Any], Callable[[Any, Any], bool]]] = {
        "observation space": (env.observation_space, same_space),
        "action space": (env.action_space, same_space),
    }
    if isinstance(env, OwnTimeLimit):
        questions["time limit"] = (env.time_limit, operator.eq)
    found = [(name, ask(built), ask(asked), same) for name, (ask, same) in questions.items()]
    return [(name, old, new) for name, old, new, same in found if not same(old, new)]


def _placed_like(old: Any, new: Any) -> Any:
    if not isinstance(old, jax.Array):  # not compiled, so nowhere in particular
        return new
    value = np.asarray(new, old.dtype)
    typed = jnp.asarray(value.item()) if old.aval.weak_type else value
    return jax.device_put(typed, old.sharding)
