"""The replay buffer against a plain list: what is stored, drawn and folded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxrl.core.struct import replace
from tests.buffers.streams import (
    GAMMA,
    Buffer,
    Streams,
    buffer,
    every_place,
    observation,
    stored_places,
)

pytestmark = pytest.mark.allow_key_reuse

# Environments, rows of each, steps of a rollout.
SHAPES = [(1, 1, 1), (2, 12, 3), (3, 6, 6)]
N_STEPS = [(1, 1), (3, 3), (2, 5)]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 9), st.integers(0, 2**31 - 1))
def test_the_newest_rows_are_held_first_in_first_out(
    shape: tuple[int, int, int], rollouts: int, seed: int
) -> None:
    """Less than full, just full, and wrapped around; in their types."""
    streams = Streams(*shape[:2], seed)
    state = buffer(shape).filled(streams, rollouts)
    assert buffer(shape).size(state) == len(streams.held[0]) == min(streams.added, shape[1])
    stored = jax.tree.map(np.asarray, state.rows.experience)
    assert stored.extras == {}
    assert stored.carry_in is None
    dtypes = {name: stored.obs[name].dtype.name for name in stored.obs}
    assert dtypes == {"image": "uint8", "vector": "float32"}
    for env, place in stored_places(streams):
        _, row = streams.slot(env, place)
        for name in ("reward", "terminated", "truncated", "is_first", "mask"):
            assert getattr(stored, name)[env, place] == np.float32(getattr(row, name))
        assert stored.action[env, place] == row.number % 7
        expected = observation(row.number), observation(row.number, after=True)
        for name in ("image", "vector"):
            np.testing.assert_array_equal(stored.obs[name][env, place], expected[0][name])
            np.testing.assert_array_equal(stored.final_obs[name][env, place], expected[1][name])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SHAPES[:2]),
    st.sampled_from(N_STEPS),
    st.integers(1, 9),
    st.integers(0, 2**31 - 1),
)
def test_folds_end_with_the_episode_before_a_gap_and_with_the_newest_row(
    shape: tuple[int, int, int], n_step: tuple[int, int], rollouts: int, seed: int
) -> None:
    """Every held row's transition is the fold of some allowed number of steps."""
    streams = Streams(*shape[:2], seed)
    made = buffer(shape, n_step=n_step)
    state = made.filled(streams, rollouts)
    batch = jax.tree.map(
        np.asarray,
        made.gather_transitions(
            state, every_place(shape), jnp.float32(GAMMA), made.shards, jax.random.key(seed)
        ),
    )
    assert batch.obs["image"].dtype == batch.next_obs["image"].dtype == np.uint8
    for env, place in stored_places(streams):
        rank, row = streams.slot(env, place)
        i = env * shape[1] + place
        np.testing.assert_array_equal(batch.obs["image"][i], observation(row.number)["image"])
        assert batch.action[i] == row.number % 7
        limits = range(n_step[0], n_step[1] + 1)
        folds = [streams.folded(env, rank, limit, GAMMA) for limit in limits]
        same = [
            np.isclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
            and np.isclose(batch.discount[i], discount, rtol=1e-6)
            and batch.next_obs["vector"][i].tolist() == [last.number, 1.0]
            for reward, discount, last in folds
        ]
        assert any(same)


def test_numbers_of_steps_are_drawn_evenly_from_their_range() -> None:
    shape = (2, 1024, 8)
    made, streams = buffer(shape, n_step=(2, 5)), Streams(2, 1024, 0, ends=0, gaps=0)
    state = made.filled(streams, 128)
    batch = made.gather_transitions(
        state, every_place(shape), jnp.float32(GAMMA), made.shards, jax.random.key(0)
    )
    steps = np.round(np.log(np.asarray(batch.discount)) / np.log(GAMMA)).astype(int)
    inner = np.arange(2048) % 1024 < 1020
    counts = np.bincount(steps[inner], minlength=6)
    assert counts[:2].sum() == counts[6:].sum() == 0
    assert stats.chisquare(counts[2:]).pvalue > 1e-3


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not() -> None:
    shape = (1, 3, 3)
    made, streams = buffer(shape, n_step=(3, 3)), Streams(1, 3, 0)
    plain = streams.rollout(3)
    flags = jnp.zeros((3, 1), bool)
    for name, discount in [("terminated", 0.0), ("truncated", GAMMA**2), (None, GAMMA**3)]:
        ends = {"terminated": flags, "truncated": flags}
        if name:
            ends[name] = flags.at[1].set(True)
        rollout = replace(
            plain,
            is_first=flags.at[2].set(name is not None),
            mask=~flags,
            reward=jnp.asarray([[1.0], [2.0], [4.0]]),
            **ends,
        )
        env_step = np.arange(3, dtype=np.uint32)[:, None]
        state = made.add(made.filled(streams, 0), rollout, np.zeros(1, np.int32), env_step)
        batch = made.gather_transitions(
            state, every_place(shape), jnp.float32(GAMMA), made.shards, jax.random.key(0)
        )
        last = 2 if name is None else 1
        reward = 1.0 + GAMMA * 2.0 + (name is None) * GAMMA**2 * 4.0
        np.testing.assert_allclose(batch.discount[0], discount, rtol=1e-6)
        np.testing.assert_allclose(batch.reward[0], reward, rtol=1e-6)
        np.testing.assert_array_equal(batch.next_obs["vector"][0], [last, 1.0])
        # The row after the episode's end is another's first; the newest bootstraps after one step.
        np.testing.assert_allclose(batch.discount[2], GAMMA, rtol=1e-6)


@pytest.mark.parametrize("rollouts", [1, 3, 5])
def test_uniform_draws_take_every_held_row_alike(rollouts: int) -> None:
    shape = (2, 12, 3)
    made, streams = buffer(shape, num_shards=2), Streams(2, 12, rollouts)
    state = made.filled(streams, rollouts)
    drawn = jax.tree.map(np.asarray, made.draws(state, 1000, 0))
    counts = np.zeros((2, 12), int)
    np.add.at(counts, (drawn.env.ravel(), drawn.time.ravel()), 1)
    held = np.zeros((2, 12), bool)
    held[tuple(np.asarray(stored_places(streams)).T)] = True
    assert counts[~held].sum() == 0
    assert stats.chisquare(counts[held]).pvalue > 1e-3
    for env, place in stored_places(streams):  # a row that is no transition has no weight
        of_it = (drawn.env == env) & (drawn.time == place)
        assert np.all(drawn.weight[of_it] == streams.slot(env, place)[1].mask)


def test_streams_that_skip_are_not_folded_over() -> None:
    """A new part starts if a column goes on with another environment, or after lost steps."""
    shape = (2, 12, 3)
    made, streams = Buffer(shape, allow_gaps=True, n_step=(3, 3)), Streams(2, 12, 0, ends=0, gaps=0)
    state = made.filled(streams, 0)
    starts = [(0, [0, 1]), (3, [0, 1]), (6, [0, 5]), (10, [0, 5])]
    for first, columns in starts:
        env_step = np.repeat(np.arange(first, first + 3, dtype=np.uint32)[:, None], 2, axis=1)
        rollout = streams.rollout(3)
        state = made.add(state, rollout, np.asarray(columns, np.int32), env_step)
    is_first = np.asarray(state.rows.experience.is_first)
    assert np.flatnonzero(is_first[0]).tolist() == [0, 9]
    assert np.flatnonzero(is_first[1]).tolist() == [0, 6, 9]
    batch = made.gather_transitions(
        state, every_place(shape), jnp.float32(GAMMA), made.shards, jax.random.key(0)
    )
    steps = np.round(np.log(np.asarray(batch.discount)) / np.log(GAMMA)).astype(int)
    assert steps[:12].tolist() == [3, 3, 3, 3, 3, 3, 3, 2, 1, 3, 2, 1]
    assert steps[12:].tolist() == [3, 3, 3, 3, 2, 1, 3, 2, 1, 3, 2, 1]


def test_learning_starts_with_enough_rows() -> None:
    made, streams = Buffer((2, 12, 3), learning_starts=11), Streams(2, 12, 0)
    state = made.filled(streams, 1)
    assert not made.replay.can_learn(state)  # 6 rows
    assert made.replay.can_learn(made.put(state, streams))  # 12
    assert made.replay.min_rows_to_learn == 12
    more_than_fits = Buffer((2, 12, 3), learning_starts=1000).replay
    assert more_than_fits.min_rows_to_learn == 24
    assert not more_than_fits.can_learn(made.filled(Streams(2, 12, 0), 3))
    assert more_than_fits.can_learn(made.filled(Streams(2, 12, 0), 4))
    assert not Buffer((2, 12, 3)).replay.can_learn(made.filled(streams, 0))
