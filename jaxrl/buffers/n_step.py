"""N-step returns: discounted rewards of consecutive rows folded into one."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.types import Rollout


def fold_n_steps(
    rows: Rollout,
    env: Int[Array, "*#n"],
    time: Int[Array, "*n"],
    num_following: Int[Array, "*#n"],
    gamma: Float[Array, ""],
    max_steps: Int[Array, "*#n"],
    largest_max_steps: int,
) -> tuple[Float[Array, "*n"], Float[Array, "*n"], Int[Array, "*n"]]:
    """Fold up to n consecutive rows into one.

    Args:
        rows: Ring of rows, `[B, L]`.
        env: Columns of the first rows; all index arguments broadcast against `time`.
        time: Positions of the first rows.
        num_following: Number of rows after each first row that may be added.
        gamma: Discount factor.
        max_steps: Maximum number of steps of each fold.
        largest_max_steps: Largest `max_steps`.

    Returns:
        The sums of discounted rewards, their numbers of steps, and the positions of the last rows.
    """
    length = rows.reward.shape[1]
    continues = jnp.ones(time.shape, jnp.bool_)
    reward = rows.reward[env, time]
    steps = jnp.ones(time.shape, jnp.float32)
    last, discount = time, gamma
    for k in range(1, largest_max_steps):
        ended = rows.terminated[env, last] | rows.truncated[env, last]
        place = (time + k) % length
        is_successor = rows.mask[env, place] & ~rows.is_first[env, place]
        continues = continues & ~ended & is_successor & (k <= num_following) & (k < max_steps)
        reward = reward + jnp.where(continues, discount * rows.reward[env, place], 0.0)
        steps = steps + continues
        last = jnp.where(continues, place, last)
        discount = discount * gamma
    return reward, steps, last
