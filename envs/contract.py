"""Check of the environment contract, without compiling or running anything."""

from collections.abc import Callable

import jax
import numpy as np

from jaxrl.core.types import PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.space_checks import abstract_value, check_space, check_struct
from jaxrl.envs.wrappers import TimeLimit
from jaxrl.errors import TRACING_ERRORS, EnvError, locate_in_user_code, summarize_exception


def check_signatures(made: MadeEnv) -> None:
    """Check spaces, states and time steps against the contract by tracing; nothing is compiled.

    Raises:
        EnvError: If the contract is violated; the message names the first violation and its place.
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
    reset_output = _trace(f"{name}: reset", env.reset, key, made.params)
    if not (isinstance(reset_output, tuple) and len(reset_output) == 2):
        raise EnvError(
            f"{name}: reset must return (state, obs), got {_describe_type(reset_output)}."
        )
    state, obs = reset_output
    check_struct(f"{name}: reset's observation", observation_space, obs)
    _check_no_weak_types(f"{name}: reset's state", state)

    step_output = _trace(f"{name}: step", env.step, key, state, action, made.params)
    if not (
        isinstance(step_output, tuple)
        and len(step_output) == 2
        and isinstance(step_output[1], TimeStep)
    ):
        raise EnvError(
            f"{name}: step must return (state, TimeStep), got {_describe_type(step_output)}."
        )
    next_state, step = step_output
    check_struct(f"{name}: step's observation", observation_space, step.obs)
    _check_reward(f"{name}: the reward", step.reward)
    _check_flag(f"{name}: terminated", step.terminated)
    _check_flag(f"{name}: truncated", step.truncated)
    if not isinstance(step.info, dict):
        raise EnvError(f"{name}: info must be a dictionary, got {_describe_type(step.info)}.")
    _check_same_state(name, state, next_state)
    _check_no_weak_types(f"{name}: step's state", next_state)


def _check_class(env: object, name: str) -> None:
    if not isinstance(env, JaxEnv):
        raise EnvError(f"{name}: expected a JaxEnv, got {env!r}.")
    try:
        hash(env)
    except TypeError as error:
        raise EnvError(
            f"{name}: the environment object must be hashable, since jit caches by it; a class "
            f"that defines __eq__ must define __hash__."
        ) from error


def _trace(label: str, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Return the abstract result of a function; all arguments, including `params`, are traced."""
    try:
        return jax.eval_shape(function, *arguments)
    except TRACING_ERRORS as error:
        raise EnvError(
            f"{label} cannot be traced by jax.jit ({summarize_exception(error)}){locate_in_user_code(error)}."
        ) from error


def _check_reward(label: str, value: object) -> None:
    """Check for one real scalar of any dtype; vectorization casts it to float32."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{label} must be one number, got {_describe_type(value)}.")
    if value.shape != () or value.dtype.kind not in "biuf":
        raise EnvError(f"{label} must be one number, got {value.dtype} of shape {value.shape}.")


def _check_flag(label: str, value: object) -> None:
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{label} must be one bool scalar, got {_describe_type(value)}.")
    if value.shape != () or value.dtype != np.bool_:
        raise EnvError(f"{label} must be a bool scalar, got {value.dtype} of shape {value.shape}.")


def _check_no_weak_types(label: str, tree: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.weak_type:
            raise EnvError(
                f"{label}{jax.tree_util.keystr(path)} is a weakly typed {leaf.dtype}: make it "
                f"jnp.asarray(value, jnp.{leaf.dtype}), or programs compile twice."
            )


def _check_same_state(name: str, first: PyTree, second: PyTree) -> None:
    """Check that both states have the structure, shapes and dtypes that a scan's carry requires."""
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


def _describe_type(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"
