"""Gradients of a minibatch taken part by part: the mean over parts is that over all rows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Key, Metrics, Params

B = TypeVar("B")
Loss = Callable[[Params, B, Key], tuple[Float[Array, ""], Metrics]]
Gradients = tuple[tuple[Float[Array, ""], Metrics], Params]
Size = int | Literal["auto"] | None

ROWS_IN_CACHE = 256
"""Rows whose activations a core's second-level cache holds, in the networks of this field: parts of
256 make 1.4 times the steps of 4,096 rows at once (docs/performance.md). Fewer rows are slower products."""
MIN_PARTS = 4
"""Fewer parts are not worth it by themselves: with two the network's size decides."""


def gradients(loss_fn: Loss[B], params: Params, batch: B, key: Key, size: Size) -> Gradients:
    """`jax.value_and_grad(loss_fn, has_aux=True)`, over parts of the batch one after another.

    The same up to rounding for a loss and metrics that are means over rows; each part has a key of
    its own.

    Args:
        loss_fn: Of parameters, rows and a key.
        params: What the gradients are taken for.
        batch: Leaves `[N, ...]`, or `[N, L, ...]` of sequences.
        key: For losses that draw. Consumed.
        size: The setting `microbatch_size`.
    """
    num_rows = jax.tree.leaves(batch)[0].shape[0]
    at_once = jax.value_and_grad(loss_fn, has_aux=True)
    parts, anywhere = (num_parts(num_rows, size, platform) for platform in ("cpu", "another"))
    in_parts = partial(_accumulated, at_once, parts)
    if parts == 1:
        return at_once(params, batch, key)
    if parts == anywhere:
        return in_parts(params, batch, key)
    return jax.lax.platform_dependent(params, batch, key, cpu=in_parts, default=at_once)


def num_parts(num_rows: int, size: Size, platform: str) -> int:
    """In how many equal parts the gradient of a device's rows is taken.

    Args:
        num_rows: Rows of a minibatch that the device has; sequences count once each.
        size: Rows of a part, at most; None takes all at once. "auto" takes all at once, but on a
            CPU parts of `ROWS_IN_CACHE` rows, or somewhat fewer, if that makes `MIN_PARTS`.
        platform: What the device is.
    """
    if size != "auto":
        return 1 if size is None else _fewest_parts(num_rows, size)
    parts = _fewest_parts(num_rows, ROWS_IN_CACHE)
    worth_it = parts >= MIN_PARTS and 2 * num_rows // parts >= ROWS_IN_CACHE
    return parts if platform == "cpu" and worth_it else 1


def _fewest_parts(num_rows: int, most: int) -> int:
    """Equal parts of at most so many rows."""
    low = [n for n in range(1, math.isqrt(num_rows) + 1) if num_rows % n == 0]
    return min(n for n in (*low, *(num_rows // n for n in low)) if num_rows // n <= most)


def _accumulated(
    at_once: Callable[..., Gradients], num_parts: int, params: Params, batch: Any, key: Key
) -> Gradients:
    """The mean of the parts' losses, metrics and gradients."""

    def split(x: Array) -> Array:
        return x.reshape((num_parts, x.shape[0] // num_parts, *x.shape[1:]))

    def add(total: Params, part: tuple[Any, Array]) -> tuple[Params, tuple[Array, Metrics]]:
        rows, i = part
        said, grads = at_once(params, rows, jax.random.fold_in(key, i))
        return jax.tree.map(jnp.add, total, grads), said

    zero = jax.tree.map(jnp.zeros_like, params)
    parts = (jax.tree.map(split, batch), jnp.arange(num_parts))
    total, said = jax.lax.scan(add, zero, parts)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), said)
    return mean, jax.tree.map(lambda x: x / num_parts, total)
