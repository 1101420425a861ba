"""Elementwise loss formulas, and the masked means that reduce them over a mesh."""

import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree


def clipped_surrogate(
    ratio: Float[Array, "*n"],
    advantage: Float[Array, "*n"],
    clip_param: float | Float[Array, ""],
) -> Float[Array, "*n"]:
    """Compute −min(r A, clip(r, 1 − ε, 1 + ε) A)  (Schulman et al. 2017, eq. 7, negated)."""
    _check_floats(ratio, advantage)
    chex.assert_rank(clip_param, 0)
    clipped = jnp.clip(ratio, 1.0 - clip_param, 1.0 + clip_param)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def clipped_value_loss(
    value: Float[Array, "*n"],
    target: Float[Array, "*n"],
    vf_clip_param: float | Float[Array, ""],
) -> Float[Array, "*n"]:
    """Compute min((v − G)², c).

    As in RLlib, the squared error is clipped, not the change of the value. Where it is clipped the
    gradient is 0; an infinite `vf_clip_param` disables clipping.
    """
    _check_floats(value, target)
    chex.assert_rank(vf_clip_param, 0)
    return jnp.minimum(jnp.square(value - target), vf_clip_param)


def policy_gradient_loss(
    log_prob: Float[Array, "*n"], advantage: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """Compute −log π(a|s) A  (Williams 1992); no gradient flows through the advantage."""
    _check_floats(log_prob, advantage)
    return -log_prob * jax.lax.stop_gradient(advantage)


def exponential_weight(
    advantage: Float[Array, "*n"],
    scale: float | Float[Array, ""],
    limit: float | Float[Array, ""] = math.inf,
) -> Float[Array, "*n"]:
    """Compute min(exp(κ A), limit), the weight of an action that is imitated; no gradient flows.

    Wang et al. 2018, eq. 6; Nair et al. 2020, eq. 13; Kostrikov et al. 2021, eq. 7.

    Args:
        advantage: Advantage A of each action.
        scale: Scale κ; 0 gives all actions the weight 1.
        limit: Largest weight.
    """
    _check_floats(advantage)
    chex.assert_rank([scale, limit], 0)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(scale * advantage), limit))


def huber_loss(
    error: Float[Array, "*n"], delta: float | Float[Array, ""] = 1.0
) -> Float[Array, "*n"]:
    """Compute ½ e² within ±δ, δ (|e| − ½ δ) outside (Huber 1964)."""
    _check_floats(error)
    chex.assert_rank(delta, 0)
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
    """Number of unmasked elements divided by the number of all elements."""


def masked_mean(
    x: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """Compute the mean of the unmasked elements; 0 if there are none.

    With `axis_name` the result is this device's sum divided by the mean number of unmasked elements
    per device. The `pmean` of it over the axis, and of its gradients, is the masked mean over all
    devices, even where they have different numbers of unmasked elements.
    """
    _check_masked(x, mask)
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
    """Compute the moments of the unmasked elements, identical on every device of `axis_name`."""
    _check_masked(x, mask)
    valid = jnp.ones(x.shape, jnp.bool_) if mask is None else mask
    size = jnp.asarray(x.size, x.dtype)
    total, count, size = _sum_over(
        axis_name, jnp.sum(jnp.where(valid, x, 0.0)), jnp.sum(valid.astype(x.dtype)), size
    )
    divisor = jnp.maximum(count, 1.0)
    mean = total / divisor
    (squares,) = _sum_over(axis_name, jnp.sum(jnp.where(valid, jnp.square(x - mean), 0.0)))
    return Moments(mean=mean, std=jnp.sqrt(squares / divisor), count=count, fraction=count / size)


def masked_column_moments(
    x: Float[Array, "N n"], mask: Bool[Array, " N"], axis_name: str | None = None
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Compute mean and population variance of every column over the unmasked rows of all devices.

    Gradients flow through both; their `pmean` over the axis is that of the mean loss of all devices.
    """
    chex.assert_rank([x, mask], [2, 1])
    chex.assert_type([x, mask], [float, bool])
    chex.assert_equal_shape_prefix([x, mask], 1)
    valid = mask[:, None]
    count, total = jnp.sum(mask.astype(x.dtype)), jnp.sum(jnp.where(valid, x, 0.0), axis=0)
    if axis_name is not None:
        count, total = jax.lax.psum((count, total), axis_name)
    divisor = jnp.maximum(count, 1.0)
    mean = total / divisor
    squares = jnp.sum(jnp.where(valid, jnp.square(x - mean[None]), 0.0), axis=0)
    if axis_name is not None:
        squares = jax.lax.psum(squares, axis_name)
    return mean, squares / divisor


def standardize(x: Float[Array, "*n"], moments: Moments) -> Float[Array, "*n"]:
    """Compute (x − mean) / std, with std floored at 1e-4 as in RLlib."""
    _check_floats(x)
    chex.assert_rank([moments.mean, moments.std], 0)
    return (x - moments.mean) / jnp.maximum(moments.std, 1e-4)


def standardize_masked(
    x: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*n"]:
    """Standardize to mean 0 and deviation 1 over the unmasked elements of all devices."""
    return standardize(x, masked_moments(x, mask, axis_name))


def adapt_kl_coeff(
    kl_coeff: Float[Array, ""], kl: Float[Array, ""], kl_target: Float[Array, ""]
) -> Float[Array, ""]:
    """Scale the KL penalty's weight by 1.5 above twice the target, by 0.5 below half of it.

    The rule of Schulman et al. 2017, section 4, with RLlib's constants. A KL of NaN changes
    nothing.
    """
    chex.assert_rank([kl_coeff, kl, kl_target], 0)
    is_high, is_low = kl > 2.0 * kl_target, kl < 0.5 * kl_target
    return kl_coeff * jnp.where(is_high, 1.5, jnp.where(is_low, 0.5, 1.0))


def explained_variance(
    target: Float[Array, "*n"],
    prediction: Float[Array, "*n"],
    mask: Bool[Array, "*n"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """Compute 1 − Var(target − prediction) / Var(target), floored at −1 as in RLlib.

    The result is 0 if the target is constant.
    """
    _check_floats(target, prediction)
    residual = jnp.square(masked_moments(target - prediction, mask, axis_name).std)
    spread = jnp.square(masked_moments(target, mask, axis_name).std)
    explained = 1.0 - residual / jnp.where(spread > 0.0, spread, 1.0)
    return jnp.where(spread > 0.0, jnp.maximum(explained, -1.0), 0.0)


def _check_floats(*numbers: float | Array) -> None:
    """Raise AssertionError unless all are floating and of one shape."""
    chex.assert_type(numbers, float)
    chex.assert_shape(numbers, jnp.shape(numbers[0]))


def _check_masked(x: Array, mask: Array | None) -> None:
    """Raise AssertionError unless `x` is floating, and the mask boolean and of the same shape."""
    chex.assert_type(x, float)
    if mask is not None:
        chex.assert_type(mask, bool)
        chex.assert_equal_shape([x, mask])


def _sum_over(axis_name: str | None, *values: Array) -> tuple[Array, ...]:
    """Sum scalars over the mesh axis in one collective."""
    if axis_name is None:
        return values
    return tuple(jax.lax.psum(jnp.stack(values), axis_name))
