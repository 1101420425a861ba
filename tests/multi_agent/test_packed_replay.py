"""Replay of rows in each agent's own time, against lists of the rows of a walk."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.buffers.replay import PackedReplayBuffer, Prioritization, ReplayState, SampledIndices
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter
from jaxrl.ops.schedules import Schedule
from tests.multi_agent.test_completed_rows import (
    GAMMA,
    NUM_STEPS,
    Row,
    Streams,
    make_streams,
    record,
    walk_windows,
)

pytestmark = pytest.mark.allow_key_reuse

LENGTH, NUMBER, SHARDS = 12, 24, 4


def make_buffer(**settings: Any) -> PackedReplayBuffer:
    given: dict[str, Any] = {"n_step": (1, 1), "batch_size": 4096, "learning_starts": 1}
    given |= {"length": LENGTH, **settings}
    return PackedReplayBuffer(num_envs=NUMBER, num_shards=SHARDS, num_updates=1, **given)


def fill(
    replay: PackedReplayBuffer, streams: Streams, window: int
) -> tuple[ReplayState, list[list[Row]]]:
    """Return a buffer after all rollouts, and the newest rows of the walk for each column."""
    rollouts = [jax.tree.map(jnp.asarray, rollout) for rollout in record(streams, window)]
    state, add = replay.init(rollouts[0]), jax.jit(replay.add)
    index, step = jnp.arange(NUMBER), jnp.zeros((window, NUMBER), jnp.uint32)
    for rollout in rollouts:
        state = add(state, rollout, index, step)
    held = [
        [row for rows in walk_windows(streams, column, window) for row in rows][-LENGTH:]
        for column in range(NUMBER)
    ]
    return state, held


def find_places(state: ReplayState, held: list[list[Row]]) -> list[tuple[int, int, int]]:
    """Column, rank from the oldest, and position of every row that is held."""
    heads = np.asarray(state.rows.current_index)
    return [
        (column, rank, (int(heads[column]) - len(rows) + rank) % LENGTH)
        for column, rows in enumerate(held)
        for rank in range(len(rows))
    ]


def fold(rows: list[Row], first: int, n_step: int) -> tuple[float, float, float]:
    """Return, discount and last observation of a fold that ends with the episode or the rows."""
    total, last = 0.0, first
    for k in range(n_step):
        if k and (first + k == len(rows) or rows[first + k].is_first):
            break
        last = first + k
        total += GAMMA**k * rows[last].reward
        if rows[last].terminated or rows[last].truncated:
            break
    discount = 0.0 if rows[last].terminated else GAMMA ** (last - first + 1)
    return total, discount, rows[last].final_obs


@pytest.mark.representatives("3", "12")
@pytest.mark.parametrize("window", [1, 3, 12])
def test_columns_hold_and_fold_their_own_newest_rows(window: int) -> None:
    replay = make_buffer(n_step=(3, 3))
    state, held = fill(replay, make_streams(NUMBER, window), window)
    assert {len(rows) for rows in held} > {LENGTH}  # some are full, some are not
    assert replay.size(state).tolist() == [len(rows) for rows in held]
    places = find_places(state, held)
    column, _, time = (jnp.asarray(x, jnp.int32) for x in zip(*places, strict=True))
    indices = SampledIndices(env=column, time=time, weight=jnp.ones(len(places)))
    replay = make_buffer(n_step=(3, 3), batch_size=len(places) * SHARDS)
    shards = jnp.zeros(1, jnp.int32)  # as many numbers of steps as there are rows
    batch = replay.gather_transitions(state, indices, jnp.float32(GAMMA), shards, jax.random.key(0))
    for i, (column, rank, _) in enumerate(places):
        row = held[column][rank]
        assert (batch.obs[i], batch.action[i]) == (row.obs, row.action)
        reward, discount, final_obs = fold(held[column], rank, 3)
        np.testing.assert_allclose(batch.reward[i], reward, atol=1e-5)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-6)
        assert batch.next_obs[i] == final_obs


def draw(replay: PackedReplayBuffer, state: ReplayState, seed: int = 0) -> SampledIndices:
    return jax.jit(replay.sample)(
        state,
        state.priorities,
        jax.random.key(seed),
        jnp.arange(SHARDS, dtype=jnp.int32),
        Counter.zeros(),
    )


def test_uniform_draws_give_every_row_of_a_shard_the_same_chance() -> None:
    replay = make_buffer()
    state, held = fill(replay, make_streams(NUMBER, 5), 3)
    drawn = draw(replay, state)
    assert np.asarray(drawn.weight).all()
    counts = np.zeros((NUMBER, LENGTH), int)
    np.add.at(counts, (np.asarray(drawn.env), np.asarray(drawn.time)), 1)
    places = {(column, time) for column, _, time in find_places(state, held)}
    assert {tuple(place) for place in np.argwhere(counts)} <= places
    share, per_shard = 4096 // SHARDS, NUMBER // SHARDS
    for shard in range(SHARDS):
        own = [p for p in places if p[0] // per_shard == shard]
        assert sum(counts[p] for p in own) == share
        expected = share / len(own)
        statistic = sum((counts[p] - expected) ** 2 / expected for p in own)
        assert statistic < len(own) + 5 * np.sqrt(2 * len(own))


def test_priorities_are_those_of_the_rows_that_are_held() -> None:
    beta = Schedule.from_setting(1.0, name="beta")
    replay = make_buffer(prioritization=Prioritization(alpha=1.0, beta=beta), batch_size=512)
    state, held = fill(replay, make_streams(NUMBER, 6), 3)
    leaves = np.zeros((NUMBER, LENGTH))
    for column, _, time in find_places(state, held):
        leaves[column, time] = 1.0
    tree = state.priorities.tree
    found = np.asarray(tree.nodes)[:, tree.num_leaves :][:, : NUMBER // SHARDS * LENGTH]
    np.testing.assert_array_equal(found.reshape(NUMBER, LENGTH), leaves)
    drawn = draw(replay, state)
    # All priorities are equal: weights are 1 / (number of rows x probability), over their maximum.
    np.testing.assert_allclose(drawn.weight, 1.0, rtol=1e-5)
    errors = jnp.where(jnp.arange(512) % 2 == 0, 3.0, 0.5)
    after = replay.update_priorities(state.priorities, drawn, errors)
    changed = np.asarray(after.tree.nodes)[:, after.tree.num_leaves :]
    assert set(np.unique(changed.round(4))) <= {0.0, 0.5, 1.0, 3.0}
    assert (changed == 3.000001).any() or np.isclose(changed, 3.0, atol=1e-4).any()


def test_updates_begin_when_enough_rows_are_stored_in_all_columns() -> None:
    replay = make_buffer(learning_starts=3 * NUMBER)
    assert replay.min_rows_to_learn == 3 * NUMBER
    streams = make_streams(NUMBER, 9)
    state, add = replay.init(jax.tree.map(jnp.asarray, record(streams, 1)[0])), jax.jit(replay.add)
    index, step, total = jnp.arange(NUMBER), jnp.zeros((1, NUMBER), jnp.uint32), 0
    for rollout in record(streams, 1)[: NUM_STEPS // 2]:
        state = add(state, jax.tree.map(jnp.asarray, rollout), index, step)
        total += int(rollout.mask.sum())
        stored = int(replay.size(state).sum())
        assert stored <= total
        assert bool(replay.can_learn(state)) == (stored >= 3 * NUMBER)
    assert total > 3 * NUMBER


def test_a_shard_without_rows_draws_nothing_to_learn_from() -> None:
    replay = make_buffer(batch_size=64)
    streams = make_streams(NUMBER, 2)
    rollout = jax.tree.map(jnp.asarray, record(streams, NUM_STEPS)[0])
    keep = jnp.arange(NUMBER) >= NUMBER // SHARDS
    state = replay.init(rollout)
    rollout = replace(rollout, mask=rollout.mask & keep[None])
    rollout = jax.tree.map(lambda x: x[:LENGTH], rollout)
    state = replay.add(state, rollout, jnp.arange(NUMBER), jnp.zeros((LENGTH, NUMBER), jnp.uint32))
    weight = np.asarray(draw(replay, state).weight).reshape(SHARDS, -1)
    assert not weight[0].any()
    assert weight[1:].all()


def test_columns_that_do_not_go_on_are_cut_at_their_next_transition() -> None:
    """The rollouts of two windows are lost, and in another one a column is that of another copy."""
    window, lost = 3, (3, 9)
    streams = make_streams(NUMBER, 4)
    rollouts = [jax.tree.map(jnp.asarray, rollout) for rollout in record(streams, window)]
    replay = make_buffer(n_step=(3, 3), allow_gaps=True, length=NUM_STEPS)
    state, add = replay.init(rollouts[0]), jax.jit(replay.add)
    held: list[list[Row]] = [[] for _ in range(NUMBER)]
    windows = [walk_windows(streams, column, window) for column in range(NUMBER)]
    kept = [part for rows in windows for i, part in enumerate(rows) if i not in lost]
    before = sum(row.is_first for part in kept for row in part)
    is_cut = [False] * NUMBER
    for number, rollout in enumerate(rollouts):
        if number in lost:
            is_cut = [True] * NUMBER
            continue
        index = np.arange(NUMBER)
        if number == 6:
            index[0], is_cut[0] = NUMBER, True
        elif number == 7:
            is_cut[0] = True
        steps = np.broadcast_to(number * window + np.arange(window)[:, None], (window, NUMBER))
        state = add(state, rollout, jnp.asarray(index), jnp.asarray(steps, jnp.uint32))
        for column, rows in enumerate(windows):
            here = rows[number]
            if here and is_cut[column]:
                here[0].is_first, is_cut[column] = True, False
            held[column] += here
    total = max(map(len, held))
    stored = np.asarray(state.rows.experience.is_first)[:, :total]
    for column, rows in enumerate(held):
        assert stored[column, : len(rows)].tolist() == [row.is_first for row in rows]
    assert sum(row.is_first for rows in held for row in rows) > before
