"""The environment contract, checked without compiling or running anything."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core.types import PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.space_checks import abstract_value, check_space, check_struct
from jaxrl.envs.wrappers import TimeLimit
from jaxrl.errors import TRACING_ERRORS, EnvError, in_one_line, where_raised


def check_signatures(made: MadeEnv) -> None:
    """Hold the types of everything against the contract by tracing; nothing is compiled.

    Raises:
        EnvError: The first thing that is wrong; one sentence says where and how.
    """
    name = made.id
    _check_class(made.env, name)
    observation_space = made.env.observation_space(made.params)
    action_space = made.env.action_space(made.params)
    check_space(f"{name}: observation_space", observation_space, for_actions=False)
    check_space(f"{name}: action_space", action_space, for_actions=True)
    action = abstract_value(action_space)
    env = made.env.env if isinstance(made.env, TimeLimit) else made.env
    key = jax.eval_shape(lambda: jax.random.key(0))
    first = _trace(f"{name}: reset", env.reset, key, made.params)
    if not (isinstance(first, tuple) and len(first) == 2):
        raise EnvError(f"{name}: reset must return (state, obs), got {_kind(first)}.")
    state, obs = first
    check_struct(f"{name}: reset's observation", observation_space, obs)
    _check_strong(f"{name}: reset's state", state)

    second = _trace(f"{name}: step", env.step, key, state, action, made.params)
    if not (isinstance(second, tuple) and len(second) == 2 and isinstance(second[1], TimeStep)):
        raise EnvError(f"{name}: step must return (state, TimeStep), got {_kind(second)}.")
    next_state, step = second
    check_struct(f"{name}: step's observation", observation_space, step.obs)
    _check_reward(f"{name}: the reward", step.reward)
    _check_flag(f"{name}: terminated", step.terminated)
    _check_flag(f"{name}: truncated", step.truncated)
    if not isinstance(step.info, dict):
        raise EnvError(f"{name}: info must be a dictionary, got {_kind(step.info)}.")
    _check_same_state(name, state, next_state)
    _check_strong(f"{name}: step's state", next_state)


def _check_class(env: object, name: str) -> None:
    if not isinstance(env, JaxEnv):
        raise EnvError(f"{name}: expected a JaxEnv, got {env!r}.")
    try:
        hash(env)
    except TypeError as error:
        raise EnvError(
            f"{name}: the environment object must be hashable, since jit is keyed on it; a class "
            f"that defines __eq__ must define __hash__."
        ) from error


def _trace(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The abstract result of a function whose arguments, `params` included, are all traced."""
    try:
        return jax.eval_shape(function, *arguments)
    except TRACING_ERRORS as error:
        raise EnvError(
            f"{what} cannot be traced by jax.jit ({in_one_line(error)}){where_raised(error)}."
        ) from error


def _check_reward(what: str, value: Any) -> None:
    """One real number of any type: where environments are vectorised it becomes float32."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{what} must be one number, got {_kind(value)}.")
    if value.shape != () or value.dtype.kind not in "biuf":
        raise EnvError(f"{what} must be one number, got {value.dtype} of shape {value.shape}.")


def _check_flag(what: str, value: Any) -> None:
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{what} must be one bool scalar, got {_kind(value)}.")
    if value.shape != () or value.dtype != np.bool_:
        raise EnvError(f"{what} must be a bool scalar, got {value.dtype} of shape {value.shape}.")


def _check_strong(what: str, tree: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.weak_type:
            raise EnvError(
                f"{what}{jax.tree_util.keystr(path)} is a weakly typed {leaf.dtype}: make it "
                f"jnp.asarray(value, jnp.{leaf.dtype}), or programs compile twice."
            )


def _check_same_state(name: str, first: PyTree, second: PyTree) -> None:
    """A scan's carry: the same structure, shapes and dtypes."""
    if jax.tree.structure(first) != jax.tree.structure(second):
        raise EnvError(
            f"{name}: the state's structure differs between reset and step: "
            f"{jax.tree.structure(first)} and {jax.tree.structure(second)}."
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, a), b in pairs:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise EnvError(
                f"{name}: state{jax.tree_util.keystr(path)} is {a.dtype}{list(a.shape)} after a "
                f"reset and {b.dtype}{list(b.shape)} after a step; they must be the same."
            )


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"
