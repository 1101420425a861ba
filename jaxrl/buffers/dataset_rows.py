"""Recorded rows as they are picked from a dataset, and the transitions that are made of them.

Picking is indexing alone, so that NumPy does it in host memory with the same result as a program on
a device. The arithmetic, which depends on the current discount factor, is `fold_rows`, on the device.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    ObsSequence,
    PyTree,
    ReturnColumns,
    SuccessorObs,
    Transition,
)

AnyArray = Array | np.ndarray


@pytree
class RowEnds:
    """Ends of the parts of rows `[N]`: what is between each row and them, and what comes after.

    `return_to_go` is the discounted sum of the rewards from the row to the end, `num_steps` their
    number.
    """

    return_to_go: Float[Array, " N"]
    num_steps: Int[Array, " N"]
    terminated: Bool[Array, " N"]
    obs: PyTree


@pytree
class PickedRows:
    """Rows `[N]`, or sequences `[N, L]`, with the rewards of up to n steps from each.

    `num_steps` is the number of steps that are one transition, and `next_obs` comes after them;
    `terminated` is whether the last of them ended the task. `sequence` has the observations of
    sequences, `obs` is then empty. `learns` is False where a row is not learned from.
    """

    obs: PyTree
    action: PyTree
    rewards: Float[Array, "*N n"]
    num_steps: Int[Array, "*N"]
    terminated: Bool[Array, "*N"]
    next_obs: PyTree
    learns: Bool[Array, "*N"]
    extras: dict[str, PyTree]
    ends: RowEnds | None = None
    sequence: ObsSequence | None = None


def fold_rows(picked: PickedRows, gamma: Float[Array, ""]) -> Transition:
    """Fold the rewards of each picked row into one transition.

    Sequences for a module without memory become their rows `[N * L]`, but for the extras of where
    parts end, which stay `[N, L]`.
    """
    if picked.sequence is None and picked.learns.ndim == 2:
        picked = _flatten(picked)
    reward, discount = picked.rewards[..., 0], gamma
    for k in range(1, picked.rewards.shape[-1]):
        is_step = picked.num_steps > k
        reward = reward + jnp.where(is_step, discount * picked.rewards[..., k], 0.0)
        discount = discount * gamma
    steps = picked.num_steps.astype(jnp.float32)
    return Transition(
        obs=picked.obs if picked.sequence is None else picked.sequence,
        action=picked.action,
        reward=reward,
        discount=_discount(picked.terminated, gamma**steps),
        next_obs=_get_next_obs(picked),
        weight=picked.learns.astype(jnp.float32),
        extras=picked.extras | _get_return_columns(picked.ends, gamma),
    )


def _flatten(picked: PickedRows) -> PickedRows:
    """Flatten sequences to rows, except the extras with where parts end."""
    ends = {name: picked.extras[name] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)}
    rows = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), picked)
    return replace(rows, extras=rows.extras | ends)


def _get_next_obs(picked: PickedRows) -> PyTree:
    if picked.sequence is None:
        return picked.next_obs
    place = jnp.arange(picked.num_steps.shape[-1], dtype=jnp.int32)[None]
    after = place + picked.num_steps.astype(jnp.int32) - 1
    return SuccessorObs(obs=picked.next_obs, after=after, sequence=picked.sequence)


def _get_return_columns(ends: RowEnds | None, gamma: Float[Array, ""]) -> dict[str, PyTree]:
    """Return the extras of `ReturnColumns`, if the learner needs them."""
    if ends is None:
        return {}
    factor = gamma ** ends.num_steps.astype(jnp.float32)
    return {
        ReturnColumns.RETURN_TO_GO: ends.return_to_go,
        ReturnColumns.END_DISCOUNT: _discount(ends.terminated, factor),
        ReturnColumns.END_OBS: ends.obs,
    }


def _discount(terminated: Bool[Array, "*n"], factor: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the factor of the value of the observation after rows, 0 after a termination."""
    return factor * (1.0 - jnp.asarray(terminated).astype(jnp.float32))


def take_step(picked: PickedRows, step: Int[Array, ""]) -> PickedRows:
    """Return the rows of one of several gradient steps `[U, N, ...]`.

    They are gathered, as from a dataset, and not sliced: what the compiler makes of the arithmetic
    after it, to the last digit, depends on that.
    """
    num_rows = picked.learns.shape[1]
    rows = step * num_rows + jnp.arange(num_rows, dtype=jnp.int32)
    rows = jax.lax.optimization_barrier(rows)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[rows], picked)
