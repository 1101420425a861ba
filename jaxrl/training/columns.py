"""State that connectors keep of each environment, in the order of the columns of a train batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import PyTree
from jaxrl.training.multi_learning import MultiTrainStep
from jaxrl.training.train_state import RolloutBatch, TrainState
from jaxrl.training.train_step import TrainStep


def gather_per_env(
    runner: TrainStep | MultiTrainStep, state: TrainState, data: RolloutBatch
) -> TrainState:
    """Return the state with what connectors keep of each environment in the order of columns."""
    if not isinstance(runner, MultiTrainStep):
        return gather_columns(runner, state, data)
    batches = _split_batch(runner, data)
    modules = {
        m: gather_columns(step, state.modules[m], batches[m]) for m, step in runner.steps.items()
    }
    return dataclasses.replace(state, modules=modules)


def scatter_per_env(
    runner: TrainStep | MultiTrainStep, before: TrainState, state: TrainState, data: RolloutBatch
) -> TrainState:
    """Return the state with what connectors keep of each environment back in place."""
    if not isinstance(runner, MultiTrainStep):
        return scatter_columns(before, state, data)
    batches = _split_batch(runner, data)
    modules = {
        m: scatter_columns(before.modules[m], own, batches[m]) for m, own in state.modules.items()
    }
    return dataclasses.replace(state, modules=modules)


def _split_batch(runner: MultiTrainStep, data: RolloutBatch) -> dict[str, RolloutBatch]:
    """Return the batch of each module."""
    return {m: runner.make_batch(m, data) for m in runner.steps}


def gather_columns(runner: TrainStep, state: TrainState, data: RolloutBatch) -> TrainState:
    """Return the state with the connectors' per-environment state gathered into column order.

    Several columns may belong to one environment if its runner delivered several fragments of the
    batch. Each of them starts from the connector state at the end of the column that precedes it in
    time, so the connectors see the same as with one long fragment. These states are computed by
    fixed-point iteration.
    """
    kept = state.connectors.per_env
    if not jax.tree.leaves(kept):
        return state
    chain = _chain_columns(data)
    links = chain.place.max()
    max_rounds = 2 * len(runner.learner_pipeline.connectors) * links

    def not_converged(carry: _ColumnStarts) -> Bool[Array, ""]:
        return carry.changed & (carry.rounds < max_rounds)

    def propagate(carry: _ColumnStarts) -> _ColumnStarts:
        """Propagate the states by one column.

        Connectors that read other connectors' output may need several rounds per column.
        """
        ends = runner.update_per_env(replace_per_env(state, carry.per_env), data)
        behind = jax.tree.map(lambda x: x[chain.previous], ends)
        starts = where_rows(chain.place > 0, behind, carry.per_env)
        changed = jnp.stack(
            jax.tree.leaves(jax.tree.map(_any_differs, starts, carry.per_env))
        ).any()
        return _ColumnStarts(per_env=starts, rounds=carry.rounds + 1, changed=changed)

    first = _ColumnStarts(
        per_env=jax.tree.map(lambda x: x[data.env_index], kept),
        rounds=jnp.zeros_like(links),
        changed=links > 0,
    )
    return replace_per_env(state, jax.lax.while_loop(not_converged, propagate, first).per_env)


@pytree
class _ColumnStarts:
    """Current estimate of the connector state at the start of each column."""

    per_env: PyTree
    rounds: Int[Array, ""]
    changed: Bool[Array, ""]


def _any_differs(a: Array, b: Array) -> Bool[Array, ""]:
    return ((a != b) & ~((a != a) & (b != b))).any()  # NaN equals NaN


def scatter_columns(before: TrainState, state: TrainState, data: RolloutBatch) -> TrainState:
    """Return the state with the connectors' per-environment state scattered back into place.

    If several columns belong to one environment, the latest one wins.
    """
    kept = before.connectors.per_env
    if not jax.tree.leaves(kept):
        return replace_per_env(state, kept)
    out_of_range = np.iinfo(np.int32).max
    index = jnp.where(_chain_columns(data).is_latest, data.env_index, out_of_range)
    back = jax.tree.map(
        lambda x, new: x.at[index].set(new, mode="drop"), kept, state.connectors.per_env
    )
    return replace_per_env(state, back)


@pytree
class _ColumnChain:
    """Columns of each environment in order of time.

    `place` counts a column's predecessors; `previous` is the index of the latest predecessor, if
    there is one.
    """

    place: Int[Array, " B"]
    previous: Int[Array, " B"]
    is_latest: Bool[Array, " B"]


def _chain_columns(data: RolloutBatch) -> _ColumnChain:
    order = jnp.lexsort((data.record.env_step[0], data.env_index))
    env = data.env_index[order]
    numbers = jnp.arange(len(env), dtype=jnp.int32)
    place = numbers - jnp.searchsorted(env, env).astype(jnp.int32)
    is_latest = jnp.concatenate([env[1:] != env[:-1], jnp.ones((1,), bool)])
    back = jnp.argsort(order)
    return _ColumnChain(
        place=place[back], previous=jnp.roll(order, 1)[back], is_latest=is_latest[back]
    )


def replace_per_env(state: TrainState, per_env: PyTree) -> TrainState:
    """Return a state with another state of the connectors for each environment."""
    connectors = dataclasses.replace(state.connectors, per_env=per_env)
    return dataclasses.replace(state, connectors=connectors)
