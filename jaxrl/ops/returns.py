"""Return estimators over trajectories, time on the first axis: `[T]` or `[T, B]`.

`v_tm1` is the value of the state acted in, `v_t` that of its successor, which the caller gives
explicitly: at a truncation and at the last row it is the value of the *final* observation, so
everything bootstraps there. `terminated` ends the task (nothing follows); `truncated` only ends
the recording. A row with `mask` False is no transition: its result is 0 and nothing passes it
(None: every row is one).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_UNROLL = 16  # measured on a CPU: the scan's own cost is a third of it at 1


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
    """Aₜ = δₜ + γλ Aₜ₊₁, δₜ = rₜ + γ v(sₜ) − v(sₜ₋₁)  (Schulman et al. 2016, eq. 16).

    Cut at terminations and truncations, and by masked rows. `advantage + v_tm1` is the
    lambda-return.
    """
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
    """Gₜ = rₜ + γ ((1 − λ) v(sₜ) + λ Gₜ₊₁)  (Sutton & Barto, eq. 12.2, recursively).

    Where the recording ends (a truncation, the last row, before a masked row) Gₜ₊₁ is v(sₜ).
    """
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    goes_on = _goes_on(terminated, truncated, mask)
    lambda_t = lambda_ * goes_on.astype(r_t.dtype)
    now_t = r_t + discount_t * (1.0 - lambda_t) * v_t
    trace_t = discount_t * lambda_t
    if mask is not None:
        now_t = jnp.where(mask, now_t, 0.0)
    return _accumulate(now_t, trace_t)


def discounted_returns(
    r_t: Float[Array, " T *B"],
    v_t: Float[Array, " T *B"],
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
    gamma: float | Float[Array, ""],
) -> Float[Array, " T *B"]:
    """Gₜ = rₜ + γ Gₜ₊₁ to the end of the recording, v(sₜ) from there (zeros: no bootstrap)."""
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
    """Gₜ = Σₖ₌₀ⁿ⁻¹ γᵏ rₜ₊ₖ + γⁿ v(sₜ₊ₙ₋₁)  (Sutton & Barto, eq. 7.1).

    Fewer steps where the recording ends first, with the value of its last successor.
    """
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    goes_on = _goes_on(terminated, truncated, mask)
    returns = r_t + discount_t * v_t
    for _ in range(n - 1):
        successor = jnp.concatenate([returns[1:], returns[:1]])  # the last row never goes on
        returns = r_t + discount_t * jnp.where(goes_on, successor, v_t)
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
    """V-trace targets and policy-gradient advantages (Espeholt et al. 2018, eq. 1 and section 4.2).

    vsₜ − v(sₜ₋₁) = ρ̄ₜ δₜ + γ cₜ (vsₜ₊₁ − v(sₜ)) with ρ̄ = min(clip_rho, ρ), c = λ min(1, ρ);
    advantageₜ = min(clip_pg_rho, ρ) (rₜ + γ vsₜ₊₁ − v(sₜ₋₁)). `rho_tm1` is π(a|s) / μ(a|s), the
    ratio of the target and the behaviour policy.
    """
    discount_t = gamma * (1.0 - terminated.astype(r_t.dtype))
    goes_on = _goes_on(terminated, truncated, mask)
    error_t = jnp.minimum(clip_rho, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
    trace_t = jnp.where(goes_on, discount_t * lambda_ * jnp.minimum(1.0, rho_tm1), 0.0)
    if mask is not None:
        error_t = jnp.where(mask, error_t, 0.0)
    correction = _accumulate(error_t, trace_t)
    targets = v_tm1 + correction
    successor = jnp.concatenate([targets[1:], v_t[-1:]])
    target_t = jnp.where(goes_on, successor, v_t)
    advantages = jnp.minimum(clip_pg_rho, rho_tm1) * (r_t + discount_t * target_t - v_tm1)
    return targets, advantages if mask is None else jnp.where(mask, advantages, 0.0)


def return_is_known(
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None = None,
) -> Bool[Array, " T *B"]:
    """Whether a row's whole return lies within the rows, for estimators without a value function.

    It does where the episode goes on to its termination. Where it is truncated the rest of the
    return is unknown, and without a value there is nothing to bootstrap from.
    """
    ended = terminated if mask is None else terminated & mask
    goes_on = _goes_on(terminated, truncated, mask)
    known = _accumulate(ended.astype(jnp.float32), goes_on.astype(jnp.float32))
    return known > 0.5


def _goes_on(
    terminated: Bool[Array, " T *B"],
    truncated: Bool[Array, " T *B"],
    mask: Bool[Array, " T *B"] | None,
) -> Bool[Array, " T *B"]:
    """Whether the next row continues this one's episode."""
    inside = ~(terminated | truncated)
    next_valid = jnp.ones_like(inside) if mask is None else mask
    next_valid = jnp.concatenate([next_valid[1:], jnp.zeros_like(inside[:1])])
    here_valid = inside if mask is None else inside & mask
    return here_valid & next_valid


def _accumulate(now_t: Float[Array, " T *B"], trace_t: Float[Array, " T *B"]) -> Array:
    """Xₜ = nowₜ + traceₜ Xₜ₊₁ from the end, X_T = 0."""
    step: Callable[..., tuple[Array, Array]] = _accumulate_step
    _, result = jax.lax.scan(
        step, jnp.zeros_like(now_t[0]), (now_t, trace_t), reverse=True, unroll=_UNROLL
    )
    return result


def _accumulate_step(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
    now, trace = row
    value = now + trace * later
    return value, value
