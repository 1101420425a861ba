"""Sequences from the replay buffer against a plain list."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxrl import ReplayBuffer
from jaxrl.buffers.replay import PRIORITY_EPSILON, Prioritization, ReplayState, SampledIndices
from jaxrl.buffers.sequence import SequenceReplayBuffer
from jaxrl.core.struct import replace
from jaxrl.errors import ConfigError
from jaxrl.ops.schedules import Schedule
from tests.buffers.streams import Row, Streams, observation

pytestmark = pytest.mark.allow_key_reuse

ALPHA, ETA = 0.6, 0.75
NUM_ENVS, LENGTH = 4, 24


def replay(**changes: Any) -> ReplayBuffer:
    arguments: dict[str, Any] = {
        "length": LENGTH,
        "num_envs": NUM_ENVS,
        "num_shards": 2,
        "batch_size": 16,
        "num_updates": 1,
        "n_step": (1, 1),
        "learning_starts": 0,
    }
    return ReplayBuffer(**(arguments | changes))


class Case:
    """A SequenceReplay with its functions compiled, and the starts that it should know of."""

    def __init__(self, *, steps: int, is_prioritized: bool, **sizes: int) -> None:
        beta = Schedule.from_setting(0.5)
        self.steps = steps
        self.sequences = SequenceReplayBuffer(
            replay=replay(),
            prioritization=Prioritization(alpha=ALPHA, beta=beta) if is_prioritized else None,
            eta=ETA,
            **sizes,
        )
        self.width, self.period = self.sequences.rows_per_sequence, self.sequences.period
        self.add = jax.jit(self.sequences.add)
        self.rows_of = jax.jit(self.sequences.gather_sequences)
        self.prioritize = jax.jit(self.sequences.update_priorities)
        self.draws = jax.jit(self._draws, static_argnums=1)

    def _draws(self, state: ReplayState, num: int, seed: Any) -> SampledIndices:
        shards, steps = jnp.arange(2), jnp.float32(0.0)
        keys = jax.random.split(jax.random.key(seed), num)
        draw = self.sequences.sample
        return jax.vmap(lambda key: draw(state, state.priorities, key, shards, steps))(keys)

    def put(self, state: ReplayState | None, streams: Streams) -> ReplayState:
        rollout = streams.rollout(self.steps)
        state = self.sequences.init(rollout) if state is None else state
        env_step = np.zeros((self.steps, NUM_ENVS), np.uint32)
        return self.add(state, rollout, np.arange(NUM_ENVS, dtype=np.int32), env_step)

    def starts(self, streams: Streams) -> list[int]:
        """The numbers of all steps from which a whole sequence is held."""
        oldest = streams.added - len(streams.held[0])
        last = streams.added - self.width
        return [step for step in range(oldest, last + 1) if step % self.period == 0]

    def rows(self, streams: Streams, env: int, start: int) -> list[Row]:
        first = start - (streams.added - len(streams.held[0]))
        return streams.held[env][first : first + self.width]


SIZES: list[dict[str, Any]] = [
    {"steps": 3, "sequence_length": 5, "burn_in": 0, "period": 1},
    {"steps": 2, "sequence_length": 4, "burn_in": 3, "period": 4},
    {"steps": 24, "sequence_length": 6, "burn_in": 2, "period": 8},
    {"steps": 8, "sequence_length": 21, "burn_in": 1, "period": 3},
    {"steps": 4, "sequence_length": 1, "burn_in": 0, "period": 2},
    {"steps": 3, "sequence_length": 4, "burn_in": 1, "period": 4},
]
UNIFORM = [Case(is_prioritized=False, **SIZES[i]) for i in (0, 1, 3)]
BY_PRIORITY = [Case(is_prioritized=True, **SIZES[i]) for i in (0, 1, 2, 4, 5)]


def held_row(rows: Any, i: int, t: int) -> Row:
    flags = {name: bool(getattr(rows, name)[i, t]) for name in ("terminated", "truncated", "mask")}
    return Row(
        number=int(rows.obs["vector"][i, t, 0]),
        reward=float(rows.reward[i, t]),
        is_first=bool(rows.is_first[i, t]),
        **flags,
    )


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(UNIFORM + BY_PRIORITY), st.integers(1, 20), st.integers(0, 2**31 - 1))
def test_sequences_are_consecutive_rows_and_go_over_no_newest_row(
    case: Case, rollouts: int, seed: int
) -> None:
    streams, state = Streams(NUM_ENVS, LENGTH, seed), None
    for _ in range(min(rollouts, 100 // case.steps)):
        state = case.put(state, streams)
    starts = case.starts(streams)
    drawn = jax.tree.map(lambda x: np.asarray(x)[0], case.draws(state, 1, seed))
    assert case.sequences.count_starts(state) == len(starts)
    assert np.all(drawn.weight > 0.0) if starts else np.all(drawn.weight == 0.0)
    sequences = jax.tree.map(np.asarray, case.rows_of(state, drawn))
    rows, burn_in = sequences.rows, case.sequences.burn_in
    np.testing.assert_array_equal(drawn.learns, sequences.learns[:, burn_in:])
    assert sequences.learns.shape == rows.reward.shape == (16, case.width)
    assert rows.obs["image"].dtype == np.uint8
    if not starts:
        assert not sequences.learns.any()
        return
    for i, env in enumerate(drawn.env):
        assert env // 2 == i // 8  # a shard's part of the draw is of the shard's environments
        start = int(rows.obs["vector"][i, 0, 0]) - env * 100_000
        assert start in starts
        assert drawn.time[i] == start % LENGTH
        expected = case.rows(streams, env, start)
        for t, row in enumerate(expected):
            held = held_row(rows, i, t)
            assert held == replace(row, reward=float(np.float32(row.reward)))
            assert sequences.learns[i, t] == (row.mask and t >= burn_in)
        numbers = np.asarray([row.number for row in expected])
        image = observation(numbers, after=True)["image"]
        np.testing.assert_array_equal(rows.final_obs["image"][i], image)


@pytest.mark.parametrize("case", UNIFORM[:2])
@pytest.mark.parametrize("rollouts", [6, 13])
def test_uniform_draws_take_every_start_alike(case: Case, rollouts: int) -> None:
    streams, state = Streams(NUM_ENVS, LENGTH, 0), None
    for _ in range(rollouts):
        state = case.put(state, streams)
    drawn = jax.tree.map(np.asarray, case.draws(state, 500, 0))
    counts = np.zeros((NUM_ENVS, LENGTH), int)
    np.add.at(counts, (drawn.env.ravel(), drawn.time.ravel()), 1)
    places = np.asarray(case.starts(streams)) % LENGTH
    assert counts[:, places].sum() == counts.sum()
    assert stats.chisquare(counts[:, places].ravel()).pvalue > 1e-3


def table_of(state: ReplayState, case: Case) -> Any:
    """The priorities by environment and place in the storage."""
    assert state.priorities is not None
    nodes = np.asarray(state.priorities.tree.nodes)
    per_env = LENGTH // case.period
    leaves = nodes[:, nodes.shape[1] // 2 :]
    assert not leaves[:, 2 * per_env :].any()
    table = np.zeros((NUM_ENVS, LENGTH))
    table[:, :: case.period] = leaves[:, : 2 * per_env].reshape(NUM_ENVS, per_env)
    return table


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(BY_PRIORITY), st.integers(1, 20), st.integers(0, 2**31 - 1))
def test_priorities_are_those_of_a_dictionary(case: Case, rounds: int, seed: int) -> None:
    """By the number of the step that a sequence starts with: new, renewed, and gone."""
    rng, streams, state = np.random.default_rng(seed), Streams(NUM_ENVS, LENGTH, seed), None
    known: dict[tuple[int, int], float] = {}
    largest = 1.0
    for i in range(rounds):
        state = case.put(state, streams)
        starts = case.starts(streams)
        known = {
            (env, start): known.get((env, start), largest**ALPHA)
            for env in streams.envs
            for start in starts
        }
        expected = np.zeros((NUM_ENVS, LENGTH))
        for (env, start), value in known.items():
            expected[env, start % LENGTH] = value
        np.testing.assert_allclose(table_of(state, case), expected, rtol=1e-5)
        drawn = jax.tree.map(lambda x: np.asarray(x)[0], case.draws(state, 1, seed // 2 + i))
        sequences = jax.tree.map(np.asarray, case.rows_of(state, drawn))
        # One error for each row however often it is drawn, so that no order of duplicates counts.
        scale = 10.0 ** rng.uniform(-2, 2)
        error = (scale * np.sin(sequences.rows.obs["vector"][..., 0])).astype(np.float32)
        if i % 5 == 4:
            error[:] = np.nan
        assert state.priorities is not None
        priorities = case.prioritize(state.priorities, drawn, error[:, case.sequences.burn_in :])
        state = replace(state, priorities=priorities)
        for n, env in enumerate(drawn.env if starts else []):
            learned = np.abs(error[n][sequences.learns[n]])
            if np.isnan(learned).any():
                continue  # keeps its own
            some = learned.size > 0
            mixed = ETA * learned.max() + (1 - ETA) * learned.mean() if some else 0.0
            start = int(sequences.rows.obs["vector"][n, 0, 0]) - env * 100_000
            known[env, start] = (mixed + PRIORITY_EPSILON) ** ALPHA
            largest = max(largest, float(mixed) + PRIORITY_EPSILON)


def test_draws_by_priority_are_in_proportion() -> None:
    case, streams, state = BY_PRIORITY[1], Streams(NUM_ENVS, LENGTH, 0), None
    for _ in range(17):
        state = case.put(state, streams)
    drawn = jax.tree.map(lambda x: np.asarray(x)[0], case.draws(state, 1, 0))
    error = np.random.default_rng(0).exponential(size=16).astype(np.float32)[drawn.env * 4 % 16]
    error = np.repeat(error[:, None] + drawn.time[:, None] % 5, case.width, axis=1)
    priorities = case.prioritize(state.priorities, drawn, error[:, case.sequences.burn_in :])
    state = replace(state, priorities=priorities)
    drawn = jax.tree.map(np.asarray, case.draws(state, 1000, 1))
    counts = np.zeros((NUM_ENVS, LENGTH), int)
    np.add.at(counts, (drawn.env.ravel(), drawn.time.ravel()), 1)
    table = table_of(state, case)
    assert np.unique(table).size > 4
    for shard in (slice(0, 2), slice(2, 4)):
        chance = table[shard][table[shard] > 0] / table[shard].sum()
        assert counts[shard][table[shard] == 0].sum() == 0
        of_shard = counts[shard][table[shard] > 0]
        assert stats.chisquare(of_shard, chance / chance.sum() * 8000).pvalue > 1e-3
    # (M P)^-β over the largest of each draw, M starts, P over both shards.
    share = np.concatenate([table[:2] / table[:2].sum(), table[2:] / table[2:].sum()]) / 2
    weight = share[drawn.env, drawn.time] ** -0.5
    np.testing.assert_allclose(drawn.weight, weight / weight.max(axis=1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("case", [UNIFORM[1], BY_PRIORITY[1]])
def test_a_shard_draws_the_same_alone(case: Case) -> None:
    """As on a device of its own."""
    streams, state = Streams(NUM_ENVS, LENGTH, 0), None
    for _ in range(17):
        state = case.put(state, streams)
    assert state is not None
    steps, key = jnp.float32(0.0), jax.random.key(3)
    draw = jax.jit(case.sequences.sample)
    whole = draw(state, state.priorities, key, jnp.arange(2), steps)
    half = jax.tree.map(lambda x: x[2:] if x.ndim else x, replace(state, priorities=None))
    of_second = jax.tree.map(lambda x: x[1:] if x.ndim else x, state.priorities)
    alone = draw(half, of_second, key, jnp.asarray([1]), steps)
    np.testing.assert_array_equal(alone.env + 2, whole.env[8:])
    np.testing.assert_array_equal(alone.time, whole.time[8:])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence_length": 4, "period": 5}, "period=5 must divide the 24 rows"),
        ({"sequence_length": 20, "burn_in": 5}, "needs 25 rows of each environment"),
        ({"sequence_length": 20, "burn_in": 2, "period": 4}, "the storage has 24"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SequenceReplayBuffer(replay=replay(), **changes)


def test_two_prioritizations_are_refused() -> None:
    prioritization = Prioritization(alpha=1.0, beta=Schedule.from_setting(1.0))
    with pytest.raises(ConfigError, match="priorities of their own"):
        SequenceReplayBuffer(replay=replay(prioritization=prioritization), sequence_length=4)
