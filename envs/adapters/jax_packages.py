"""Values of environments that other packages wrote in JAX: keys as words, strong types."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import PyTree


def call_package(function: Callable[..., Any], *arguments: PyTree) -> Any:
    """Call a function of a package whose shapes mix freely, with keys as words.

    Words are equivalent for `jax.random` but ignored by `jax_debug_key_reuse`: several packages draw
    twice from one key, which is for them to fix.
    """
    plain = [
        jax.random.key_data(x)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        else x
        for x in arguments
    ]
    with jax.numpy_rank_promotion("allow"):
        return function(*plain)


def cast(value: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Convert to a strongly typed array."""
    return jax.lax.convert_element_type(value, dtype)


def find_state_dtypes(
    reset_and_step: Callable[..., tuple[PyTree, PyTree]], *arguments: PyTree
) -> PyTree:
    """Return the structure of a state, with a dtype per leaf that fits both a reset and a step.

    Args:
        reset_and_step: Function of a key and the arguments that returns a reset's state and a
            step's; it is traced and not run.
        *arguments: Arguments after the key.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    first, second = jax.eval_shape(reset_and_step, key, *arguments)
    return jax.tree.map(lambda a, b: jnp.promote_types(a.dtype, b.dtype), first, second)
