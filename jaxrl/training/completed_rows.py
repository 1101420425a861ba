"""Transitions of agents that do not act at every step: rows are written when they are complete.

A row of an agent begins when it acts, and is complete after the step at whose end the agent is to
act again, or has ended. Until then it is pending, in the state of the run and across rollouts, so
that turns, joins, deaths and the ends of rollouts lose no row and write none twice. Rewards between
two of an agent's own actions belong to the earlier one; `gamma` discounts per own action.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import PyTree, Rollout


@pytree
class BegunRow:
    """Begun row of each agent, `[R, ...]`; `carry` is the agent's carry before it acted."""

    obs: PyTree
    action: PyTree
    extras: dict[str, PyTree]
    is_first: Bool[Array, " R"]
    carry: PyTree


@pytree
class PendingRows:
    """Rows that are not complete; `begun` and `reward` are valid where `has_row`."""

    has_row: Bool[Array, " R"]
    reward: Float[Array, " R"]
    begun: BegunRow


@pytree
class AgentStep:
    """Meaning of a step of the environments to each agent, `[R, ...]`.

    `ended` is the agent's own end or that of its episode. `acts_next` is whether it acts at the next
    step of the same episode. `final_obs` is its observation after the step, before any reset.
    `is_valid` is False where the step was no transition because something was not finite.
    """

    reward: Float[Array, " R"]
    terminated: Bool[Array, " R"]
    truncated: Bool[Array, " R"]
    ended: Bool[Array, " R"]
    acts_next: Bool[Array, " R"]
    final_obs: PyTree
    is_valid: Bool[Array, " R"]


def make_no_rows(begun: BegunRow) -> PendingRows:
    """Return pending rows of no agent, for rows of these shapes."""
    rows = begun.is_first.shape[0]
    return PendingRows(
        has_row=jnp.zeros((rows,), bool),
        reward=jnp.zeros((rows,), jnp.float32),
        begun=jax.tree.map(jnp.zeros_like, begun),
    )


def complete_rows(
    pending: PendingRows, acts: Bool[Array, " R"], begun: BegunRow, step: AgentStep
) -> tuple[PendingRows, Rollout]:
    """Begin the rows of agents that acted, and complete those that a step completes.

    Between two actions of an agent there is one row, so a step completes at most one row of each.

    Args:
        pending: Rows that were pending before the step.
        acts: Whether each agent acted at this step.
        begun: Rows to begin, used where `acts`.
        step: What the step meant to the agents.

    Returns:
        The rows that are pending after it, and one row of a Rollout `[R, ...]` whose `mask` is True
        where a row was completed.
    """
    current = where_rows(acts, begun, pending.begun)
    has_row = acts | pending.has_row
    reward = jnp.where(acts, 0.0, pending.reward) + step.reward
    is_complete = has_row & step.is_valid & (step.ended | step.acts_next)
    row = Rollout(
        obs=current.obs,
        action=current.action,
        reward=jnp.where(is_complete, reward, 0.0),
        terminated=step.terminated & is_complete,
        truncated=step.truncated & is_complete,
        final_obs=step.final_obs,
        is_first=current.is_first & is_complete,
        mask=is_complete,
        extras=current.extras,
    )
    after = PendingRows(
        has_row=has_row & step.is_valid & ~is_complete,
        reward=jnp.where(is_complete, 0.0, reward),
        begun=current,
    )
    return after, row


def pack_rows(rollout: Rollout) -> Rollout:
    """Move the complete rows of each column `[T, R, ...]` to its front, in their order.

    The row behind the last complete one has that row's `final_obs` as its `obs`, so that its value
    is the bootstrap value; it and all others behind are masked. What follows a rollout then sees
    rows that are consecutive in each agent's own time. Where an episode's last row was dropped (a
    step that was not finite), the one before it becomes truncated, so that nothing runs across.
    """
    num_steps = rollout.mask.shape[0]
    numbers = jnp.cumsum(rollout.mask, axis=0, dtype=jnp.int32)
    steps = jnp.arange(num_steps, dtype=jnp.int32)[:, None]
    columns = jnp.arange(rollout.mask.shape[1], dtype=jnp.int32)[None]
    place = jnp.where(rollout.mask, numbers - 1, num_steps)
    source = (
        jnp.zeros_like(place)
        .at[place, columns]
        .set(jnp.broadcast_to(steps, place.shape), mode="drop")
    )
    is_filled = steps < numbers[-1:]
    rows = jax.tree.map(lambda x: x[source, columns], replace(rollout, carry_in=None))
    is_behind = (steps == numbers[-1:]) & (steps > 0)

    def bootstrap(obs: Array, final_obs: Array) -> Array:
        previous = jnp.concatenate([final_obs[:1], final_obs[:-1]])
        return jnp.where(_expand(is_behind, obs), previous, obs)

    is_first = rows.is_first & is_filled
    is_cut = jnp.concatenate([is_first[1:], jnp.zeros_like(is_first[:1])]) & ~rows.terminated
    return replace(
        rows,
        obs=jax.tree.map(bootstrap, rows.obs, rows.final_obs),
        reward=jnp.where(is_filled, rows.reward, 0.0),
        terminated=rows.terminated & is_filled,
        truncated=(rows.truncated | is_cut) & is_filled,
        is_first=is_first,
        mask=is_filled,
        carry_in=rollout.carry_in,
    )


def _expand(rows: Array, like: Array) -> Array:
    """Give an array `[T, R]` trailing axes of length 1, as many as another has."""
    return rows.reshape(rows.shape + (1,) * (like.ndim - rows.ndim))
