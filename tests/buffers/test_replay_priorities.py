"""Prioritised replay against a dictionary of priorities, on one device and on several."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from scipy import stats

from jaxrl.buffers.replay import PRIORITY_EPSILON, Prioritization, ReplayState, SampledIndices
from jaxrl.buffers.sum_tree import SumTree
from jaxrl.core.struct import replace
from jaxrl.ops.schedules import Schedule
from tests.buffers.streams import GAMMA, Buffer, Streams, every_place

pytestmark = pytest.mark.allow_key_reuse

ALPHA = 0.7
BETA = [[0, 0.4], [1000, 1.0]]


def prioritized(shape: tuple[int, int, int], **changes: Any) -> Buffer:
    beta = Schedule.from_setting(BETA)
    return Buffer(shape, prioritization=Prioritization(alpha=ALPHA, beta=beta), **changes)


@pytest.fixture(scope="module")
def by_priority() -> Buffer:
    """Two shards of two environments."""
    return prioritized((4, 8, 2), num_shards=2, batch_size=32)


class Ledger:
    """The priorities of the rows as a dictionary, by environment and place."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.of: dict[tuple[int, int], float] = {}
        self.largest = 1.0

    def added(self, streams: Streams, num_steps: int) -> None:
        for env in streams.envs:
            for row_back in range(num_steps):
                place = (streams.added - 1 - row_back) % self.length
                mask = streams.held[env][-1 - row_back].mask
                self.of[env, place] = self.largest**ALPHA if mask else 0.0

    def renewed(self, drawn: SampledIndices, td_error: Any) -> None:
        fresh: dict[tuple[int, int], float] = {}
        for env, place, error in zip(drawn.env, drawn.time, td_error, strict=True):
            if self.of[env, place] > 0.0 and np.isfinite(error):
                priority = abs(float(error)) + PRIORITY_EPSILON
                fresh[env, place] = max(fresh.get((env, place), 0.0), priority**ALPHA)
                self.largest = max(self.largest, priority)
        self.of.update(fresh)

    def table(self, num_envs: int) -> Any:
        values = np.zeros((num_envs, self.length))
        for at, value in self.of.items():
            values[at] = value
        return values


def tree_table(state: ReplayState, num_envs: int, length: int) -> Any:
    assert state.priorities is not None
    nodes = np.asarray(state.priorities.tree.nodes)
    leaves = nodes[:, nodes.shape[1] // 2 :]
    table = leaves[:, : num_envs // nodes.shape[0] * length]
    assert leaves.sum() == table.sum()
    return table.reshape(num_envs, length)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 12))
def test_priorities_are_those_of_a_dictionary(by_priority: Buffer, seed: int, rounds: int) -> None:
    """New rows at the largest until now, drawn ones at |td_error|, the rest as they were."""
    made, rng = by_priority, np.random.default_rng(seed)
    streams, ledger = Streams(4, 8, seed, gaps=0.2), Ledger(8)
    state = made.filled(streams, 0)
    for i in range(rounds):
        state = made.put(state, streams)
        ledger.added(streams, 2)
        np.testing.assert_allclose(tree_table(state, 4, 8), ledger.table(4), rtol=1e-5)
        drawn = jax.tree.map(np.asarray, made.draw(state, seed % 1000 + i, 0.0))
        error = rng.normal(size=32).astype(np.float32) * 3.0
        error[rng.random(32) < 0.1] = np.nan
        # The error of a row is one number, however often the row is drawn.
        index = drawn.env * 8 + drawn.time
        error = error[[np.argmax(index == at) for at in index]]
        priorities = made.update_priorities(state.priorities, drawn, error)
        state = ReplayState(rows=state.rows, priorities=priorities, streams=None)
        ledger.renewed(drawn, error)
        np.testing.assert_allclose(tree_table(state, 4, 8), ledger.table(4), rtol=1e-5)
        np.testing.assert_allclose(priorities.largest, ledger.largest, rtol=1e-6)


def after_one_round(made: Buffer, seed: int, rollouts: int = 5) -> tuple[Streams, ReplayState]:
    """A full buffer with priorities of many sizes."""
    streams = Streams(4, 8, seed, gaps=0.2)
    state = made.filled(streams, rollouts)
    drawn = every_place((4, 8, 2))
    error = np.random.default_rng(seed).exponential(size=32).astype(np.float32)
    weight = np.asarray(state.rows.experience.mask).reshape(-1).astype(np.float32)
    weight *= np.asarray(tree_table(state, 4, 8).reshape(-1) > 0, np.float32)
    drawn = SampledIndices(env=drawn.env, time=drawn.time, weight=weight)
    priorities = made.update_priorities(state.priorities, drawn, error)
    return streams, ReplayState(rows=state.rows, priorities=priorities, streams=None)


def test_draws_by_priority_are_in_proportion_and_shards_have_equal_parts(
    by_priority: Buffer,
) -> None:
    _, state = after_one_round(by_priority, 0)
    priority = tree_table(state, 4, 8)
    drawn = jax.tree.map(np.asarray, by_priority.draws(state, 2000, 0))
    assert np.all(drawn.env[:, :16] < 2)
    assert np.all(drawn.env[:, 16:] >= 2)
    counts = np.zeros((4, 8), int)
    np.add.at(counts, (drawn.env.ravel(), drawn.time.ravel()), 1)
    assert counts[priority == 0.0].sum() == 0
    assert np.all(drawn.weight > 0.0)
    for shard in (slice(0, 2), slice(2, 4)):
        chance, of_shard = priority[shard].astype(np.float64), counts[shard]
        some = chance > 0.0
        expected = chance[some] / chance.sum() * of_shard.sum()
        assert stats.chisquare(of_shard[some], expected).pvalue > 1e-3


@pytest.mark.parametrize("env_steps", [0, 500, 5000])
def test_importance_weights_undo_the_priorities_as_beta_says(
    by_priority: Buffer, env_steps: int
) -> None:
    """w = (M P)^-β over the largest of the draw, P over both shards (Schaul et al. 2016, 3.4)."""
    _, state = after_one_round(by_priority, 1)
    priority = tree_table(state, 4, 8).astype(np.float64)
    chance = np.concatenate([part / part.sum() / 2 for part in (priority[:2], priority[2:])])
    drawn = jax.tree.map(np.asarray, by_priority.draw(state, 3, float(env_steps)))
    beta = np.interp(env_steps, *np.asarray(BETA).T)
    weight = (32 * chance[drawn.env, drawn.time]) ** -beta
    np.testing.assert_allclose(drawn.weight, weight / weight.max(), rtol=1e-4)


def test_a_shard_without_any_transition_weighs_nothing_and_spoils_nothing(
    by_priority: Buffer,
) -> None:
    _, state = after_one_round(by_priority, 2)
    mask = state.rows.experience.mask
    experience = replace(state.rows.experience, mask=mask.at[:2].set(False))
    assert state.priorities is not None
    nodes = state.priorities.tree.nodes.at[0].set(0.0)
    priorities = replace(state.priorities, tree=SumTree(nodes=nodes))
    rows = state.rows.replace(experience=experience)  # type: ignore[attr-defined]
    state = ReplayState(rows=rows, priorities=priorities, streams=None)
    drawn = jax.tree.map(np.asarray, by_priority.draw(state, 0, 0.0))
    assert np.all(drawn.weight[:16] == 0.0)
    assert np.all(drawn.weight[16:] > 0.0)
    assert drawn.weight.max() == 1.0
    after = by_priority.update_priorities(priorities, drawn, np.ones(32, np.float32))
    assert np.all(np.asarray(after.tree.nodes)[0] == 0.0)


def test_emptied_is_as_new_but_what_is_stored_anew() -> None:
    made = prioritized((4, 8, 2), num_shards=2, batch_size=32, allow_gaps=True)
    streams = Streams(4, 8, 0)
    new = made.filled(streams, 0)
    emptied = made.replay.clear(made.filled(streams, 5))
    jax.tree.map(np.testing.assert_array_equal, emptied, new)
    dtypes = [jax.tree.map(lambda x: x.dtype, state) for state in (emptied, new)]
    assert dtypes[0] == dtypes[1]


def rounds_on(num_devices: int) -> tuple[Any, Any, Any]:
    """Five rounds of adding, drawing and renewing, with eight shards on that many devices."""
    made = prioritized((8, 6, 2), num_shards=8, batch_size=32, n_step=(1, 4))
    here = 8 // num_devices
    added = [replace(Streams(8, 6, i).rollout(2), extras={}, carry_in=None) for i in range(5)]
    rollouts = jax.tree.map(lambda *x: jnp.stack(x), *added)
    env_index, env_step = np.arange(8, dtype=np.int32), np.zeros((2, 8), np.uint32)

    def round_of(state: ReplayState, given: Any) -> Any:
        replay, (rollout, key) = made.replay, given
        shards = jax.lax.axis_index("shard") * here + jnp.arange(here)
        columns = rollout.reward.shape[1]
        state = replay.add(state, rollout, env_index[:columns], env_step[:, :columns])
        draw_key, fold_key = jax.random.split(key)
        steps = jnp.float32(100.0)
        drawn = replay.sample(state, state.priorities, draw_key, shards, steps, "shard")
        batch = replay.gather_transitions(state, drawn, jnp.float32(GAMMA), shards, fold_key)
        error = batch.obs["vector"][:, 0] % 13.0
        priorities = replay.update_priorities(state.priorities, drawn, error, "shard")
        return replace(state, priorities=priorities), (drawn, batch)

    def rounds(rollouts: Any, keys: Any) -> Any:
        start = made.replay.init(jax.tree.map(lambda x: x[0], rollouts))
        state, (drawn, batch) = jax.lax.scan(round_of, start, (rollouts, keys))
        table = state.priorities.tree.nodes, state.rows.experience, state.priorities.largest[None]
        return table, drawn, batch

    run = jax.shard_map(
        rounds,
        mesh=Mesh(np.asarray(jax.devices()[:num_devices]), ("shard",)),
        in_specs=(P(None, None, "shard"), P()),
        out_specs=(P("shard"), P(None, "shard"), P(None, "shard")),
        check_vma=False,
    )
    return jax.device_get(jax.jit(run)(rollouts, jax.random.split(jax.random.key(0), 5)))


def test_the_same_rows_are_drawn_on_one_device_and_on_eight() -> None:
    (held, drawn, batch), (held8, drawn8, batch8) = rounds_on(1), rounds_on(8)
    jax.tree.map(np.testing.assert_array_equal, batch8.obs, batch.obs)
    jax.tree.map(np.testing.assert_array_equal, batch8.next_obs, batch.next_obs)
    np.testing.assert_array_equal(drawn8.time, drawn.time)
    assert np.all(drawn.env == np.repeat(np.arange(8), 4)[None])
    assert np.all(drawn8.env == 0)  # counted on each device from its own first
    np.testing.assert_allclose(drawn8.weight, drawn.weight, rtol=1e-6)
    assert np.unique(drawn.weight[-1]).size > 8
    np.testing.assert_allclose(batch8.reward, batch.reward, rtol=1e-6)
    np.testing.assert_allclose(batch8.discount, batch.discount, rtol=1e-6)
    (nodes, rows, largest), (nodes8, rows8, largest8) = held, held8
    jax.tree.map(np.testing.assert_array_equal, rows8, rows)
    np.testing.assert_allclose(nodes8, nodes, rtol=1e-6)
    np.testing.assert_allclose(largest8, np.repeat(largest, 8), rtol=1e-6)
