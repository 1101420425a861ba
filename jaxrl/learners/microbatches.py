"""Gradient accumulation: the mean over microbatches equals the mean over all rows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Key, Metrics, Params, PyTree

B = TypeVar("B")
LossFn = Callable[[Params, B, Key], tuple[Float[Array, ""], Metrics]]
Gradients = tuple[tuple[Float[Array, ""], Metrics], Params]
MicrobatchSize = int | Literal["auto"] | None

ROWS_IN_CACHE = 256
"""Number of rows whose activations fit a core's second-level cache, for typical RL networks.

Microbatches of 256 rows are 1.4 times as fast as 4,096 rows at once (docs/performance.md); fewer
rows make slower matrix products.
"""
MIN_MICROBATCHES = 4
"""Smallest number of microbatches of "auto"; with two, the gain depends on the network's size."""


def accumulate_gradients(
    loss_fn: LossFn[B], params: Params, batch: B, key: Key, microbatch_size: MicrobatchSize
) -> Gradients:
    """Compute `jax.value_and_grad(loss_fn, has_aux=True)` over microbatches in sequence.

    The result is the same up to rounding for a loss and metrics that are means over rows. Each
    microbatch has its own key.

    Args:
        loss_fn: Function of parameters, rows and a key.
        params: Parameters to differentiate with respect to.
        batch: Leaves `[N, ...]`, or `[N, L, ...]` of sequences.
        key: Key of losses that draw. Consumed.
        microbatch_size: Setting `microbatch_size`.
    """
    num_rows = jax.tree.leaves(batch)[0].shape[0]
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    num_on_cpu, num_elsewhere = (
        get_num_microbatches(num_rows, microbatch_size, platform) for platform in ("cpu", "another")
    )
    accumulate = partial(_accumulate, grad_fn, num_on_cpu)
    if num_on_cpu == 1:
        return grad_fn(params, batch, key)
    if num_on_cpu == num_elsewhere:
        return accumulate(params, batch, key)
    return jax.lax.platform_dependent(params, batch, key, cpu=accumulate, default=grad_fn)


def get_num_microbatches(num_rows: int, microbatch_size: MicrobatchSize, platform: str) -> int:
    """Return the number of equal microbatches into which a device's rows are split.

    Args:
        num_rows: Rows of a minibatch on the device; a sequence counts as one.
        microbatch_size: Maximum rows of a microbatch; None for all at once. "auto" takes all at once, except
            on a CPU, where it takes microbatches of at most `ROWS_IN_CACHE` rows if there are at
            least `MIN_MICROBATCHES` of them.
        platform: Platform of the device.
    """
    if microbatch_size != "auto":
        return 1 if microbatch_size is None else _fewest_microbatches(num_rows, microbatch_size)
    count = _fewest_microbatches(num_rows, ROWS_IN_CACHE)
    is_worthwhile = count >= MIN_MICROBATCHES and 2 * num_rows // count >= ROWS_IN_CACHE
    return count if platform == "cpu" and is_worthwhile else 1


def _fewest_microbatches(num_rows: int, max_rows: int) -> int:
    """Return the smallest number of equal parts with at most `max_rows` rows each."""
    small_divisors = [n for n in range(1, math.isqrt(num_rows) + 1) if num_rows % n == 0]
    return min(
        n
        for n in (*small_divisors, *(num_rows // n for n in small_divisors))
        if num_rows // n <= max_rows
    )


def _accumulate(
    grad_fn: Callable[..., Gradients],
    num_microbatches: int,
    params: Params,
    batch: PyTree,
    key: Key,
) -> Gradients:
    """Compute the mean of the microbatches' losses, metrics and gradients."""

    def split(x: Array) -> Array:
        return x.reshape((num_microbatches, x.shape[0] // num_microbatches, *x.shape[1:]))

    def add(total: Params, microbatch: tuple[Any, Array]) -> tuple[Params, tuple[Array, Metrics]]:
        rows, i = microbatch
        outputs, grads = grad_fn(params, rows, jax.random.fold_in(key, i))
        return jax.tree.map(jnp.add, total, grads), outputs

    zero = jax.tree.map(jnp.zeros_like, params)
    microbatches = (jax.tree.map(split, batch), jnp.arange(num_microbatches, dtype=jnp.int32))
    total, outputs = jax.lax.scan(add, zero, microbatches)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), outputs)
    return mean, jax.tree.map(lambda x: x / num_microbatches, total)
