"""Formulas of value-based learning: values, distributions and quantiles of returns.

Actions, atoms or quantiles are on the last axis unless stated otherwise; all other axes are batch
axes.
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.ops.losses import huber_loss


def batched_index(x: Float[Array, "*n actions"], action: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Return x[a] row by row, of values `[*n, actions]`."""
    chex.assert_rank(x, action.ndim + 1)
    _check_indexed(x, action)
    return jnp.sum(jnp.where(_is_action(x, action), x, 0.0), axis=-1)


def batched_index_rows(
    x: Float[Array, "*n actions m"], action: Int[Array, "*n"]
) -> Float[Array, "*n m"]:
    """Return x[a] row by row, of several numbers per action."""
    chex.assert_rank(x, action.ndim + 2)
    _check_indexed(x, action)
    chosen = _is_action(x[..., 0], action)[..., None]
    return jnp.sum(jnp.where(chosen, x, 0.0), axis=-2)


def _check_indexed(x: Array, action: Array) -> None:
    """Raise AssertionError unless `action` is an integer for each row of `x`."""
    chex.assert_type([x, action], [float, int])
    chex.assert_equal_shape_prefix([x, action], action.ndim)


def _is_action(x: Float[Array, "*n actions"], action: Int[Array, "*n"]) -> Bool[Array, "..."]:
    # Used in a sum against the one-hot: the gradient of a gather is a serial scatter on a CPU.
    return jax.nn.one_hot(action, x.shape[-1], dtype=jnp.bool_)


def categorical_projection(
    reward: Float[Array, "*n"],
    discount: Float[Array, "*n"],
    probs: Float[Array, "*n atoms"],
    support: Float[Array, " atoms"],
) -> Float[Array, "*n atoms"]:
    """Project Φ(r + γ Z), the shifted return distribution, onto the support.

    mᵢ = Σⱼ [1 − |clip(r + γ zⱼ, v_min, v_max) − zᵢ| / Δz]₀¹ pⱼ  (Bellemare et al. 2017, eq. 7; the
    paper's algorithm 1 computes the same by a scatter). No gradient flows.

    Args:
        reward: Sum of discounted rewards until the bootstrap.
        discount: Factor of the return after it, 0 after a termination.
        probs: Probabilities of that return on the support.
        support: Atoms, equally spaced from v_min to v_max.
    """
    chex.assert_type([reward, discount, probs, support], float)
    chex.assert_equal_shape([reward, discount])
    chex.assert_rank([probs, support], [reward.ndim + 1, 1])
    chex.assert_equal_shape_prefix([probs, reward], reward.ndim)
    chex.assert_equal_shape([probs, support], dims=-1)
    one = (1,) * reward.ndim
    low, high = support[0], support[-1]
    spacing = (high - low) / (support.shape[0] - 1)
    z = support.reshape(*one, -1)
    shifted = jnp.clip(reward[..., None] + discount[..., None] * z, low, high)
    distance = jnp.abs(shifted[..., None, :] - z[..., None]) / spacing
    share = jnp.clip(1.0 - distance, 0.0, 1.0)
    return jax.lax.stop_gradient(jnp.sum(share * probs[..., None, :], axis=-1))


def categorical_mean(
    logits: Float[Array, "*n atoms"], support: Float[Array, " atoms"]
) -> Float[Array, "*n"]:
    """Compute Σᵢ pᵢ zᵢ, the expected return of a distribution on the support."""
    chex.assert_equal_shape([logits, support], dims=-1)
    z = support.reshape((1,) * (logits.ndim - 1) + (-1,))
    return jnp.sum(jax.nn.softmax(logits) * z, axis=-1)


def fraction_outside(
    reward: Float[Array, "*n"],
    discount: Float[Array, "*n"],
    probs: Float[Array, "*n atoms"],
    support: Float[Array, " atoms"],
) -> Float[Array, "*n"]:
    """Compute the probability of r + γ Z that `categorical_projection` moves to an end of the support.

    The arguments are the same. What is outside by no more than rounding is inside.
    """
    low, high = support[0], support[-1]
    rounding = 1e-6 * (high - low)
    shifted = reward[..., None] + discount[..., None] * support.reshape((1,) * reward.ndim + (-1,))
    is_outside = (shifted < low - rounding) | (shifted > high + rounding)
    return jnp.sum(jnp.where(is_outside, probs, 0.0), axis=-1)


def cross_entropy(
    logits: Float[Array, "*n atoms"], probs: Float[Array, "*n atoms"]
) -> Float[Array, "*n"]:
    """Compute −Σᵢ mᵢ log pᵢ: KL(m || p), which C51 minimizes, plus the entropy of m."""
    chex.assert_type([logits, probs], float)
    chex.assert_equal_shape([logits, probs])
    return -jnp.sum(probs * jax.nn.log_softmax(logits, axis=-1), axis=-1)


def quantile_huber_loss(
    quantiles: Float[Array, "*n k"],
    target: Float[Array, "*n m"],
    kappa: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*n"]:
    """Compute the quantile Huber loss  (Dabney et al. 2018, eq. 9-10).

    Σᵢ Eⱼ |τᵢ − 1{uᵢⱼ < 0}| L_κ(uᵢⱼ) / κ, uᵢⱼ = target_j − θᵢ.

    Args:
        quantiles: Estimates θᵢ at the midpoints τᵢ = (2 i + 1) / 2 k, i from 0.
        target: Samples of the return, through which no gradient flows.
        kappa: Error at which the loss turns from quadratic to linear.
    """
    chex.assert_type([quantiles, target], float)
    chex.assert_equal_rank([quantiles, target])
    chex.assert_equal_shape_prefix([quantiles, target], quantiles.ndim - 1)
    chex.assert_rank(kappa, 0)
    number = quantiles.shape[-1]
    midpoints = (jnp.arange(number, dtype=quantiles.dtype) + 0.5) / number
    midpoints = midpoints.reshape((1,) * (quantiles.ndim - 1) + (-1, 1))
    error = jax.lax.stop_gradient(target)[..., None, :] - quantiles[..., None]
    weight = jnp.abs(midpoints - (error < 0.0).astype(quantiles.dtype))
    return jnp.sum(jnp.mean(weight * huber_loss(error, kappa) / kappa, axis=-1), axis=-1)


def conservative_gap(
    values: Float[Array, "*n m"],
    value: Float[Array, "*n"],
    temperature: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*n"]:
    """Compute τ log Σⱼ exp(Qⱼ / τ) − Q(s, a), the penalty of CQL  (Kumar et al. 2020, eq. 4).

    Args:
        values: Values Qⱼ of all actions, or Qⱼ − log p(aⱼ) of actions drawn with the density p.
        value: Value Q(s, a) of the row's action.
        temperature: Temperature τ; towards 0 the sum becomes the largest value.
    """
    chex.assert_type([values, value], float)
    chex.assert_rank(values, value.ndim + 1)
    chex.assert_equal_shape_prefix([values, value], value.ndim)
    chex.assert_rank(temperature, 0)
    return temperature * jax.nn.logsumexp(values / temperature, axis=-1) - value


def large_margin(
    values: Float[Array, "*n actions"],
    action: Int[Array, "*n"],
    margin: float | Float[Array, ""],
) -> Float[Array, "*n"]:
    """Compute maxⱼ [Qⱼ + m 1{j ≠ a}] − Q(s, a), DQfD's loss  (Hester et al. 2018, section 4).

    Args:
        values: Values Qⱼ of all actions.
        action: Demonstrated actions a.
        margin: Margin m.
    """
    value = batched_index(values, action)
    chosen = _is_action(values, action)
    return jnp.max(jnp.where(chosen, values, values + margin), axis=-1) - value


def expectile_loss(
    error: Float[Array, "*n"], expectile: float | Float[Array, ""]
) -> Float[Array, "*n"]:
    """Compute |τ − 1{u < 0}| u², minimal at the expectile τ  (Kostrikov et al. 2021, eq. 3).

    Args:
        error: Errors u = target − estimate.
        expectile: Expectile τ: 0.5 gives the mean, and towards 1 the largest target.
    """
    chex.assert_type(error, float)
    chex.assert_rank(expectile, 0)
    return jnp.where(error > 0.0, expectile, 1.0 - expectile) * jnp.square(error)


def signed_hyperbolic(x: Float[Array, "*n"], epsilon: float) -> Float[Array, "*n"]:
    """Compute h(x) = sign(x) (√(|x| + 1) − 1) + ε x  (Pohlen et al. 2018, proposition A.2).

    √(|x| + 1) − 1 = |x| / (√(|x| + 1) + 1), which has no difference of nearly equal numbers.
    """
    chex.assert_type(x, float)
    return x * (1.0 / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + epsilon)


def signed_parabolic(x: Float[Array, "*n"], epsilon: float) -> Float[Array, "*n"]:
    """Compute h⁻¹(x), the inverse of `signed_hyperbolic`  (Pohlen et al. 2018, proposition A.2).

    h⁻¹(x) = sign(x) (z² − 1), z = (r − 1) / 2 ε, r = √(1 + 4 ε (|x| + 1 + ε)), where float32 would
    lose the digits of z. As r = r₀ = 1 + 2 ε at 0 and r − r₀ = 4 ε |x| / (r + r₀), it is computed as
    (z − 1) (z + 1) with z − 1 = 2 |x| (1 − 2 ε / (r + r₀)) / (r + 1).
    """
    chex.assert_type(x, float)
    first = 1.0 + 2.0 * epsilon
    root = jnp.sqrt(1.0 + 4.0 * epsilon * (jnp.abs(x) + 1.0 + epsilon))
    ratio = 2.0 * (1.0 - 2.0 * epsilon / (root + first)) / (root + 1.0)
    return x * ratio * (jnp.abs(x) * ratio + 2.0)
