"""Return estimators over trajectories, time on the first axis: `[T]` or `[T, B]`.

Index t is the transition from sₜ₋₁ to sₜ. `v_tm1` is the value of the state acted in, `v_t` that of
its successor, which the caller gives explicitly: at a truncation and at the last row it is the
value of the *final* observation, so every estimator bootstraps there. `terminated` ends the task
(nothing follows): discounts are γₜ = γ (1 − terminatedₜ). `truncated` only ends the recording. A
row with `mask` False is not a transition: its result is 0 and nothing is propagated through it;
None means that every row is one.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_UNROLL = 16  # measured on a CPU: the scan's overhead is a third of that at 1


def gae(
    r_t: Float[Array, " T *B"],
    v_tm1: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
    gamma: float | Float[Array, ""],
    lambda_: float | Float[Array, ""],
) -> Float[Array, " T *B"]:
    """Compute generalized advantages  (Schulman et al. 2016, eq. 16).

        Aₜ = δₜ + γλ Aₜ₊₁,  δₜ = rₜ + γₜ v(sₜ) − v(sₜ₋₁),  γₜ = γ (1 − terminatedₜ)

    The recursion stops at terminations, truncations and masked rows. `advantage + v_tm1` is the
    λ-return.
    """
    _check_rows([r_t, v_tm1, v_t], terminated, truncated, mask)
    chex.assert_rank([gamma, lambda_], 0)
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    keep_t = (~(terminated | truncated)).astype(r_t.dtype)
    delta_t = r_t + discount_t * v_t - v_tm1
    trace_t = gamma * lambda_ * keep_t
    if mask is not None:
        delta_t = jnp.where(mask, delta_t, 0.0)
        trace_t = jnp.where(mask, trace_t, 0.0)
    return _accumulate(delta_t, trace_t)


def lambda_returns(
    r_t: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
    gamma: float | Float[Array, ""],
    lambda_: float | Float[Array, ""],
) -> Float[Array, " T *B"]:
    """Compute λ-returns  (Sutton & Barto, eq. 12.2, recursively).

        Gₜ = rₜ + γₜ ((1 − λ) v(sₜ) + λ Gₜ₊₁),  γₜ = γ (1 − terminatedₜ)

    Where the recording ends (a truncation, the last row, before a masked row) Gₜ₊₁ is v(sₜ).
    """
    _check_rows([r_t, v_t], terminated, truncated, mask)
    chex.assert_rank([gamma, lambda_], 0)
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    is_continued = _is_continued(terminated, truncated, mask)
    lambda_t = lambda_ * is_continued.astype(r_t.dtype)
    now_t = r_t + discount_t * (1.0 - lambda_t) * v_t
    trace_t = discount_t * lambda_t
    if mask is not None:
        now_t = jnp.where(mask, now_t, 0.0)
    return _accumulate(now_t, trace_t)


def discounted_lambda_returns(
    r_t: Float[Array, " T *B"],
    discount_t: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    lambda_: float | Float[Array, ""],
) -> Float[Array, " T *B"]:
    """Compute λ-returns with a discount of each step's own, such as one that is predicted.

    Gₜ = rₜ + γₜ ((1 − λ) v(sₜ) + λ Gₜ₊₁),  and of the last row, Gₜ = rₜ + γₜ v(sₜ)
    """
    chex.assert_equal_shape([r_t, discount_t, v_t])
    chex.assert_rank(lambda_, 0)
    lambda_t = jnp.full_like(r_t, lambda_).at[-1].set(0.0)
    return _accumulate(r_t + discount_t * (1.0 - lambda_t) * v_t, discount_t * lambda_t)


def discounted_returns(
    r_t: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
    gamma: float | Float[Array, ""],
) -> Float[Array, " T *B"]:
    """Compute Gₜ = rₜ + γₜ Gₜ₊₁ up to the end of the recording, where Gₜ₊₁ is v(sₜ).

    Values of zero mean no bootstrap.
    """
    return lambda_returns(r_t, v_t, terminated, truncated, mask, gamma, 1.0)


def n_step_returns(
    r_t: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
    gamma: float | Float[Array, ""],
    n: int,
) -> Float[Array, " T *B"]:
    """Compute Gₜ = Σₖ₌₀ⁿ⁻¹ γᵏ rₜ₊ₖ + γⁿ v(sₜ₊ₙ₋₁)  (Sutton & Barto, eq. 7.1).

    There are fewer steps where the recording ends first, with the value of its last successor, and
    no value after a termination.
    """
    _check_rows([r_t, v_t], terminated, truncated, mask)
    chex.assert_rank(gamma, 0)
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    is_continued = _is_continued(terminated, truncated, mask)
    returns = r_t + discount_t * v_t
    for _ in range(n - 1):
        successor = jnp.concatenate([returns[1:], returns[:1]])  # the last row is never continued
        returns = r_t + discount_t * jnp.where(is_continued, successor, v_t)
    return returns if mask is None else jnp.where(mask, returns, 0.0)


def vtrace(
    r_t: Float[Array, " T *B"],
    v_tm1: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    rho_tm1: Float[Array, " T *B"],
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
    gamma: float | Float[Array, ""],
    lambda_: float | Float[Array, ""] = 1.0,
    clip_rho: float | Float[Array, ""] = 1.0,
    clip_pg_rho: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, " T *B"], Float[Array, " T *B"]]:
    """Compute V-trace targets and advantages (Espeholt et al. 2018, eq. 1 and section 4.2).

        vsₜ − v(sₜ₋₁) = ρ̄ₜ δₜ + γₜ cₜ (vsₜ₊₁ − v(sₜ)),  δₜ = rₜ + γₜ v(sₜ) − v(sₜ₋₁)
        advantageₜ = min(clip_pg_rho, ρₜ) (rₜ + γₜ vsₜ₊₁ − v(sₜ₋₁))

    with ρ̄ = min(clip_rho, ρ) and c = λ min(1, ρ). `rho_tm1` is ρ = π(a|s) / μ(a|s), the ratio of
    the target and the behavior policy. Where the recording ends, vsₜ₊₁ is v(sₜ).
    """
    _check_rows([r_t, v_tm1, v_t, rho_tm1], terminated, truncated, mask)
    chex.assert_rank([gamma, lambda_, clip_rho, clip_pg_rho], 0)
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    is_continued = _is_continued(terminated, truncated, mask)
    error_t = jnp.minimum(clip_rho, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
    trace_t = jnp.where(is_continued, discount_t * lambda_ * jnp.minimum(1.0, rho_tm1), 0.0)
    if mask is not None:
        error_t = jnp.where(mask, error_t, 0.0)
    correction = _accumulate(error_t, trace_t)
    targets = v_tm1 + correction
    successor = jnp.concatenate([targets[1:], v_t[-1:]])
    target_t = jnp.where(is_continued, successor, v_t)
    advantages = jnp.minimum(clip_pg_rho, rho_tm1) * (r_t + discount_t * target_t - v_tm1)
    return targets, advantages if mask is None else jnp.where(mask, advantages, 0.0)


def is_return_known(
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None = None,
) -> Bool[Array, " T *B"]:
    """Return whether a row's whole return lies within the rows, for estimators without values.

    It does where the episode continues to its termination. Where it is truncated the rest of the
    return is unknown, and without a value there is nothing to bootstrap from.
    """
    _check_rows([], terminated, truncated, mask)
    ended = terminated if mask is None else terminated & mask
    is_continued = _is_continued(terminated, truncated, mask)
    known = _accumulate(ended.astype(jnp.float32), is_continued.astype(jnp.float32))
    return known > 0.5


def _check_rows(
    numbers: list[Array], terminated: Array, truncated: Array, mask: Array | None
) -> None:
    """Raise AssertionError unless all are rows `[T, ...]` of one shape, the last three boolean."""
    flags = [terminated, truncated, *([] if mask is None else [mask])]
    chex.assert_equal_shape([*numbers, *flags])
    chex.assert_type([*numbers, *flags], [float] * len(numbers) + [bool] * len(flags))


def _is_continued(
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
) -> Bool[Array, " T *B"]:
    """Return whether the next row continues this row's episode."""
    inside = ~(terminated | truncated)
    next_valid = jnp.ones_like(inside) if mask is None else mask
    next_valid = jnp.concatenate([next_valid[1:], jnp.zeros_like(inside[:1])])
    here_valid = inside if mask is None else inside & mask
    return here_valid & next_valid


def _accumulate(now_t: Float[Array, " T *B"], trace_t: Float[Array, " T *B"]) -> Array:
    """Compute Xₜ = nowₜ + traceₜ Xₜ₊₁ backwards from X_T = 0."""
    step: Callable[..., tuple[Array, Array]] = _accumulate_step
    _, result = jax.lax.scan(
        step, jnp.zeros_like(now_t[0]), (now_t, trace_t), reverse=True, unroll=_UNROLL
    )
    return result


def _accumulate_step(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
    now, trace = row
    value = now + trace * later
    return value, value
