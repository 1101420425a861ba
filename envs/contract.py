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
    observation_space, action_space = made.env.get_spaces(made.params)
    check_space(f"{name}: observation_space", observation_space)
    check_space(f"{name}: action_space", action_space, for_actions=True)
    action = abstract_value(action_space)
    env = made.env.env if isinstance(made.env, TimeLimit) else made.env
    key = jax.eval_shape(lambda: jax.random.key(0))
    reset_output = trace_abstractly(f"{name}: reset", env.reset, key, made.params)
    if not (isinstance(reset_output, tuple) and len(reset_output) == 2):
        raise EnvError(
            f"{name}: reset must return (state, obs), got {describe_type(reset_output)}."
        )
    state, obs = reset_output
    check_struct(f"{name}: reset's observation", observation_space, obs)
    check_no_weak_types(f"{name}: reset's state", state)

    step_output = trace_abstractly(f"{name}: step", env.step, key, state, action, made.params)
    if not (
        isinstance(step_output, tuple)
        and len(step_output) == 2
        and isinstance(step_output[1], TimeStep)
    ):
        raise EnvError(
            f"{name}: step must return (state, TimeStep), got {describe_type(step_output)}."
        )
    next_state, step = step_output
    check_struct(f"{name}: step's observation", observation_space, step.obs)
    check_reward(f"{name}: the reward", step.reward)
    check_flag(f"{name}: terminated", step.terminated)
    check_flag(f"{name}: truncated", step.truncated)
    if not isinstance(step.info, dict):
        raise EnvError(f"{name}: info must be a dictionary, got {describe_type(step.info)}.")
    check_same_state(name, state, next_state)
    check_no_weak_types(f"{name}: step's state", next_state)


def _check_class(env: object, name: str) -> None:
    if not isinstance(env, JaxEnv):
        raise EnvError(f"{name}: expected a JaxEnv, got {env!r}.")
    check_hashable(env, name)


def check_hashable(env: object, name: str) -> None:
    """Check that programs can be cached by the environment."""
    try:
        hash(env)
    except TypeError as error:
        raise EnvError(
            f"{name}: the environment object must be hashable, since jit caches by it; a class "
            f"that defines __eq__ must define __hash__."
        ) from error


def trace_abstractly(
    label: str,
    function: Callable[..., PyTree],
    *arguments: PyTree,
    trace: Callable[..., PyTree] = jax.eval_shape,
) -> PyTree:
    """Return the abstract result of a function; all arguments, including `params`, are traced."""
    try:
        return trace(function, *arguments)
    except TRACING_ERRORS as error:
        raise EnvError(
            f"{label} cannot be traced by jax.jit ({summarize_exception(error)}){locate_in_user_code(error)}."
        ) from error


def check_reward(label: str, value: object, shape: tuple[int, ...] = ()) -> None:
    """Check for real numbers of any dtype, by default one; vectorization casts them to float32."""
    what = "one number" if shape == () else f"numbers of shape {shape}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{label} must be {what}, got {describe_type(value)}.")
    if value.shape != shape or value.dtype.kind not in "biuf":
        raise EnvError(f"{label} must be {what}, got {value.dtype} of shape {value.shape}.")


def check_flag(label: str, value: object, shape: tuple[int, ...] = ()) -> None:
    """Check for bools, by default one."""
    what = "a bool scalar" if shape == () else f"bool of shape {shape}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{label} must be {what}, got {describe_type(value)}.")
    if value.shape != shape or value.dtype != np.bool_:
        raise EnvError(f"{label} must be {what}, got {value.dtype} of shape {value.shape}.")


def check_no_weak_types(label: str, tree: PyTree) -> None:
    """Check that no leaf has the weak type of a Python number."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.weak_type:
            raise EnvError(
                f"{label}{jax.tree_util.keystr(path)} is a weakly typed {leaf.dtype}: make it "
                f"jnp.asarray(value, jnp.{leaf.dtype}), or programs compile twice."
            )


def check_same_state(name: str, first: PyTree, second: PyTree) -> None:
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


def describe_type(value: object) -> str:
    """Describe the type of a value for messages."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"
