"""Loss formulas, element by element, and the masked means that reduce them over a mesh."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree


def clipped_surrogate(
    ratio: Float[Array, "*n"],
    advantage: Float[Array, "*n"],
    clip_param: float | Float[Array, ""],
) -> Float[Array, "*n"]:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A)  (Schulman et al. 2017, eq. 7), to be minimised."""
    clipped = jnp.clip(ratio, 1.0 - clip_param, 1.0 + clip_param)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def clipped_value_loss(
    value: Float[Array, "*n"],
    target: Float[Array, "*n"],
    vf_clip_param: float | Float[Array, ""],
) -> Float[Array, "*n"]:
    """min((v − G)², c): RLlib's clip is of the squared error, not of the change of the value.

    Where it clips the gradient is 0; infinity turns it off.
    """
    return jnp.minimum(jnp.square(value - target), vf_clip_param)


def policy_gradient_loss(
    log_prob: Float[Array, "*n"], advantage: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """−log π(a|s) A  (Williams 1992); no gradient passes through the advantage."""
    return -log_prob * jax.lax.stop_gradient(advantage)


def huber_loss(
    error: Float[Array, "*n"], delta: float | Float[Array, ""] = 1.0
) -> Float[Array, "*n"]:
    """½ e² within ±δ, δ (|e| − ½ δ) outside (Huber 1964)."""
    size = jnp.abs(error)
    inside = jnp.minimum(size, delta)
    return inside * (size - 0.5 * inside)


@pytree
class Moments:
    """Mean and (population) standard deviation of the unmasked elements of all devices."""

    mean: Float[Array, ""]
    std: Float[Array, ""]
    count: Float[Array, ""]
    fraction: Float[Array, ""]
    """Unmasked elements over all elements."""


def masked_mean(
    x: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """Σ x over the unmasked elements, over their number; 0 if there are none.

    With `axis_name` the sum is this device's, over the mean number a device has: its `pmean` over
    the axis, and that of its gradients, is the masked mean over all devices, also where they have
    different numbers of unmasked elements.
    """
    if mask is None:
        return jnp.mean(x)
    total = jnp.sum(jnp.where(mask, x, 0.0))
    count = jnp.sum(mask.astype(x.dtype))
    if axis_name is not None:
        count = jax.lax.pmean(count, axis_name)
        return total / jnp.where(count > 0.0, count, 1.0)
    return total / jnp.maximum(count, 1.0)


def masked_moments(
    x: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Moments:
    """Moments of the unmasked elements, the same on every device of `axis_name`."""
    valid = jnp.ones(x.shape, jnp.bool_) if mask is None else mask
    size = jnp.asarray(x.size, x.dtype)
    total, count, size = _sum_over(
        axis_name, jnp.sum(jnp.where(valid, x, 0.0)), jnp.sum(valid.astype(x.dtype)), size
    )
    divisor = jnp.maximum(count, 1.0)
    mean = total / divisor
    (squares,) = _sum_over(axis_name, jnp.sum(jnp.where(valid, jnp.square(x - mean), 0.0)))
    return Moments(mean=mean, std=jnp.sqrt(squares / divisor), count=count, fraction=count / size)


def standardize(x: Float[Array, "*n"], moments: Moments) -> Float[Array, "*n"]:
    """(x − mean) / std, with a floor of 1e-4 under the deviation, as RLlib has it."""
    return (x - moments.mean) / jnp.maximum(moments.std, 1e-4)


def standardized(
    x: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*n"]:
    """Mean 0 and deviation 1 over the unmasked elements of all devices."""
    return standardize(x, masked_moments(x, mask, axis_name))


def adapted_kl_coeff(
    kl_coeff: Float[Array, ""], kl: Float[Array, ""], kl_target: Float[Array, ""]
) -> Float[Array, ""]:
    """The KL penalty's weight: x1.5 above twice the target, x0.5 below half of it.

    Schulman et al. 2017, section 4, with RLlib's numbers. A KL of NaN changes nothing.
    """
    high, low = kl > 2.0 * kl_target, kl < 0.5 * kl_target
    return kl_coeff * jnp.where(high, 1.5, jnp.where(low, 0.5, 1.0))


def explained_variance(
    target: Float[Array, "*n"],
    prediction: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """1 − Var(target − prediction) / Var(target), at least −1 as in RLlib; 0 for a constant."""
    residual = jnp.square(masked_moments(target - prediction, mask, axis_name).std)
    spread = jnp.square(masked_moments(target, mask, axis_name).std)
    explained = 1.0 - residual / jnp.where(spread > 0.0, spread, 1.0)
    return jnp.where(spread > 0.0, jnp.maximum(explained, -1.0), 0.0)


def _sum_over(axis_name: str | None, *values: Array) -> tuple[Array, ...]:
    """Scalars summed over the mesh axis in one collective."""
    if axis_name is None:
        return values
    return tuple(jax.lax.psum(jnp.stack(values), axis_name))
