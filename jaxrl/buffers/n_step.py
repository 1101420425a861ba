"""Rewards of consecutive rows folded into one (n-step returns)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.types import Rollout


def folded(
    rows: Rollout,
    env: Int[Array, "*n"],
    time: Int[Array, "*n"],
    following: Int[Array, "*n"],
    gamma: Float[Array, ""],
    limit: Int[Array, "*n"],
    most: int,
) -> tuple[Float[Array, "*n"], Float[Array, "*n"], Int[Array, "*n"]]:
    """The sum of the discounted rewards, of how many steps, and the last of these rows.

    Args:
        rows: A ring of rows, `[B, L]`.
        env: Columns of the first rows; it and the others broadcast against `time`.
        time: Places of the first rows.
        following: How many rows there are after each that may be added.
        gamma: The discount.
        limit: The most steps of each.
        most: The largest limit.
    """
    length = rows.reward.shape[1]
    goes_on = jnp.ones(time.shape, jnp.bool_)
    reward = rows.reward[env, time]
    steps = jnp.ones(time.shape, jnp.float32)
    last, discount = time, gamma
    for k in range(1, most):
        ended = rows.terminated[env, last] | rows.truncated[env, last]
        then = (time + k) % length
        continues = rows.mask[env, then] & ~rows.is_first[env, then]
        goes_on = goes_on & ~ended & continues & (k <= following) & (k < limit)
        reward = reward + jnp.where(goes_on, discount * rows.reward[env, then], 0.0)
        steps = steps + goes_on
        last = jnp.where(goes_on, then, last)
        discount = discount * gamma
    return reward, steps, last
