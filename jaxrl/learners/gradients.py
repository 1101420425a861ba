"""The gradient step: from a loss, or from microbatches of one, to an update of the parameters."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, Params, PyTree
from jaxrl.errors import LossError

B = TypeVar("B")
LossFn = Callable[[Params, B, Key], tuple[Float[Array, ""], Metrics]]
Gradients = tuple[tuple[Float[Array, ""], Metrics], Params]
MicrobatchSize = int | Literal["auto"] | None

NUM_NONFINITE_UPDATES = "num_nonfinite_updates"

MAX_RAVELED = 2**14
"""Maximum number of parameters that are one vector to their optimizer.

A vector takes a few operations instead of a few for each tensor, but parameters are copied into it
and out of it, which costs more with networks of two layers of 128 units.
Measured: docs/performance.md.
"""


@pytree
class SgdState:
    """Parameters and their optimizer state."""

    params: Params
    opt_state: PyTree


_NUMBERS = (jax.Array, np.ndarray, np.generic, int, float)


def validate_loss(loss_name: str, output: object) -> tuple[Float[Array, ""], Metrics]:
    """Validate the output of a loss: a scalar and a dictionary of numbers.

    Args:
        loss_name: Name of the loss, for the message.
        output: Traced output of the loss.

    Raises:
        LossError: If the output has any other form.
    """
    if not isinstance(output, tuple):
        raise LossError(f"{loss_name} must return (loss, metrics), got a {type(output).__name__}.")
    pair = cast(tuple[Any, ...], output)
    if len(pair) != 2:
        raise LossError(f"{loss_name} must return (loss, metrics), got a tuple of {len(pair)}.")
    loss, metrics = pair
    if not isinstance(loss, jax.Array):
        raise LossError(
            f"{loss_name} must return a loss that is computed from the parameters, got {loss!r}."
        )
    if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise LossError(
            f"{loss_name} returned a loss that is {loss.dtype} of shape {loss.shape}; it must be one "
            "floating number, such as jnp.mean(batch.weight * x)."
        )
    if not isinstance(metrics, dict):
        raise LossError(
            f"{loss_name} must return its metrics as a dictionary, got a {type(metrics).__name__}."
        )
    by_name = cast(dict[Any, Any], metrics)
    for name, value in by_name.items():
        if not isinstance(name, str) or not isinstance(value, _NUMBERS):
            raise LossError(
                f"{loss_name} must return its metrics as numbers by name, got {name!r}: {value!r}."
            )
    return loss, {name: jnp.asarray(value) for name, value in by_name.items()}


def check_scalar_metrics(owner: str, metrics: Mapping[str, Any]) -> None:
    """Raise if a metric is not a scalar.

    Args:
        owner: Owner of the metrics, for the message.
        metrics: Traced metrics by name.

    Raises:
        LossError: If a metric has axes; the message names it.
    """
    for name, value in metrics.items():
        if jnp.shape(value) != ():
            raise LossError(
                f"{owner}'s metric {name!r} has shape {jnp.shape(value)}; a metric is one number, "
                "such as the mean."
            )


def sgd_step(
    loss_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]],
    tx: optax.GradientTransformation,
    state: SgdState,
    axis_name: str | None = None,
    log_gradients: bool = False,
) -> tuple[SgdState, Metrics]:
    """Take one step of `tx` down the gradient of the mean loss over all shards.

    A non-finite loss or gradient (after the reduction, so that all devices agree) leaves
    parameters and optimizer unchanged. The metric `num_nonfinite_updates` is then 1, and the
    others, which may be NaN, are excluded from the means.

    Args:
        loss_fn: Function from parameters to the mean loss of this device's rows, and metrics.
        tx: Optimizer, built from the hyperparameters' current values.
        state: Parameters and optimizer state.
        axis_name: Mesh axis to average gradients over; None on one device.
        log_gradients: Whether to report the L2 norm of every gradient tensor as `grad_norm/<path>`.
    """
    found = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return apply_gradients(found, tx, state, axis_name, log_gradients)


def apply_gradients(
    gradients: Gradients,
    tx: optax.GradientTransformation,
    state: SgdState,
    axis_name: str | None = None,
    log_gradients: bool = False,
) -> tuple[SgdState, Metrics]:
    """Apply gradients that are already computed; otherwise as `sgd_step`.

    Args:
        gradients: Loss, metrics and gradients of this device's rows.
        tx: Optimizer, built from the hyperparameters' current values.
        state: Parameters and optimizer state.
        axis_name: Mesh axis to average gradients over; None on one device.
        log_gradients: Whether to report the L2 norm of every gradient tensor as `grad_norm/<path>`.
    """
    (loss, metrics), grads = gradients
    grads, loss, grad_norm = _reduce_gradients(grads, loss, axis_name)
    if log_gradients:
        metrics = {**metrics, **compute_gradient_norms(grads)}
    is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return select(is_finite, SgdState(params=params, opt_state=opt_state), state), {
        **jax.lax.stop_gradient(metrics),
        "total_loss": loss,
        "grad_norm": grad_norm,
        NUM_NONFINITE_UPDATES: 1.0 - is_finite.astype(jnp.float32),
    }


def _reduce_gradients(
    grads: Params, loss: Float[Array, ""], axis_name: str | None
) -> tuple[Params, Float[Array, ""], Float[Array, ""]]:
    """Average gradients and loss over all shards, and compute the gradients' L2 norm.

    One collective of one vector takes less than one for each tensor, with networks of every measured
    size: docs/performance.md.
    """
    if axis_name is not None:
        flat, unravel = ravel_pytree((grads, loss))
        grads, loss = unravel(jax.lax.pmean(flat, axis_name))
    if not is_raveled(grads):
        return grads, loss, optax.tree.norm(grads)
    flat, unravel = ravel_pytree(grads)
    return unravel(flat), loss, jnp.sqrt(jnp.sum(jnp.square(flat)))


def compute_gradient_norms(grads: PyTree) -> Metrics:
    """Compute the L2 norm of every tensor, as `grad_norm/<path>`."""
    return {
        f"grad_norm/{jax.tree_util.keystr(path, simple=True, separator='.')}": optax.tree.norm(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(grads)[0]
    }


def select(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """Select `new` where the scalar condition holds, else `old`, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def is_raveled(tree: PyTree) -> bool:
    """Return whether an optimizer takes the parameters as one vector."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree)) <= MAX_RAVELED


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
