"""The ring of ended episodes and the fault log, against plain loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxrl import PPOConfig
from jaxrl.core.struct import replace
from jaxrl.core.types import Metrics
from jaxrl.envs.vector import NO_FAULT
from jaxrl.metrics import EMPTY_EPISODE_METRICS
from jaxrl.training.episode_stats import (
    EndedEpisode,
    EpisodeRecord,
    EpisodeSums,
    compute_episode_means,
    init_episode_stats,
    init_fault_log,
    push_episodes,
    push_faults,
)
from jaxrl.training.report import (
    add_agents,
    collect_episodes,
    compute_episode_metrics,
    to_host,
)

SHARDS, ENVS, STEPS, SIZE = 2, 6, 5, 4


def records(seed: int, number: int) -> list[EpisodeRecord]:
    """Random rollouts in which about a third of the steps end an episode."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(number):
        shape = (STEPS, ENVS)
        step = np.broadcast_to(np.arange(STEPS)[:, None] + i * STEPS, shape)
        made.append(
            EpisodeRecord(
                ended=jnp.asarray(rng.random(shape) < 0.3),
                episode_return=jnp.asarray(rng.normal(size=shape), jnp.float32),
                episode_length=jnp.asarray(rng.integers(1, 50, shape), jnp.int32),
                env_step=jnp.asarray(step, jnp.uint32),
                fault=jnp.asarray(np.where(rng.random(shape) < 0.05, 1, NO_FAULT), jnp.int32),
            )
        )
    return made


def in_order(record: EpisodeRecord, shard: int) -> list[tuple[float, int, int, int]]:
    """A shard's episodes as (return, length, environment, step), in order of time."""
    per_shard = ENVS // SHARDS
    return [
        (
            float(record.episode_return[t, e]),
            int(record.episode_length[t, e]),
            e,
            int(record.env_step[t, e]),
        )
        for t in range(STEPS)
        for e in range(shard * per_shard, (shard + 1) * per_shard)
        if bool(record.ended[t, e])
    ]


def test_the_ring_holds_the_newest_of_each_shard() -> None:
    ring = init_episode_stats(SHARDS, SIZE)
    index = jnp.arange(ENVS, dtype=jnp.int32)
    seen: list[list[tuple[float, int, int, int]]] = [[] for _ in range(SHARDS)]
    push = jax.jit(push_episodes)
    for i, record in enumerate(records(0, 6)):
        before = np.array(ring.count)
        ring = push(ring, record, index, jnp.uint32(i))
        for shard in range(SHARDS):
            seen[shard] += in_order(record, shard)
            assert int(ring.count[shard]) == len(seen[shard])
            for ordinal in range(max(0, len(seen[shard]) - SIZE), len(seen[shard])):
                place = ordinal % SIZE
                want = seen[shard][ordinal]
                got = (
                    float(ring.episode_return[shard, place]),
                    int(ring.episode_length[shard, place]),
                    int(ring.env_index[shard, place]),
                    int(ring.env_step[shard, place]),
                )
                assert got == want
        episodes, missed = collect_episodes(to_host(ring), before)
        fresh = [len(in_order(record, shard)) for shard in range(SHARDS)]
        assert len(episodes) == sum(min(n, SIZE) for n in fresh)
        assert missed == sum(max(0, n - SIZE) for n in fresh)
        steps = [episode.env_step for episode in episodes]
        assert steps == sorted(steps)


def test_sums_and_smoothing() -> None:
    ring, sums = init_episode_stats(SHARDS, 64), EpisodeSums.empty(SHARDS)
    index = jnp.arange(ENVS, dtype=jnp.int32)
    rows: list[tuple[float, int, int, int]] = []
    for i, record in enumerate(records(1, 4)):
        ring, sums = push_episodes(ring, record, index, jnp.uint32(i)), sums.add(record)
        rows += in_order(record, 0) + in_order(record, 1)
    returns = np.array([row[0] for row in rows])
    lengths = np.array([row[1] for row in rows])
    every = compute_episode_metrics(
        to_host(ring), to_host(sums), smoothing=5
    )  # more ended: all count
    np.testing.assert_allclose(every["episode_return_mean"], returns.mean(), rtol=1e-5)
    np.testing.assert_allclose(every["episode_return_min"], returns.min(), rtol=1e-6)
    np.testing.assert_allclose(every["episode_return_max"], returns.max(), rtol=1e-6)
    assert every["episode_len_min"] == lengths.min()
    assert every["episode_len_max"] == lengths.max()
    quiet = to_host(EpisodeSums.empty(SHARDS))  # none in this iteration: the ring's latest
    latest = sorted(rows, key=lambda row: -row[3])[:10]
    smoothed = compute_episode_metrics(to_host(ring), quiet, smoothing=10)
    oldest = latest[-1][3]
    certain = [row[0] for row in rows if row[3] > oldest]
    assert smoothed["num_episodes"] == 0
    assert len(certain) <= 10
    total = smoothed["episode_return_mean"] * 10 - sum(certain)
    candidates = [row[0] for row in rows if row[3] == oldest]
    assert min(candidates) * (10 - len(certain)) - 1e-4 <= total
    assert total <= max(candidates) * (10 - len(certain)) + 1e-4


@pytest.mark.parametrize("arrived", [0, 2**32 - 15])
def test_the_latest_episodes_are_so_by_time_whatever_their_environments_count(arrived: int) -> None:
    """The first of two environments has ten times as many steps, as complete episodes may have."""
    ring = init_episode_stats(2, 16)
    rows: list[float] = []
    for batch in range(4):
        ended = np.array([[True, False], [True, True], [False, True], [True, True]])
        returns = 10 * batch + np.arange(8, dtype=np.float32).reshape(4, 2)
        step = np.arange(4)[:, None] + 4 * batch
        record = EpisodeRecord(
            ended=jnp.asarray(ended),
            episode_return=jnp.asarray(returns),
            episode_length=jnp.ones((4, 2), jnp.int32),
            env_step=jnp.asarray(np.concatenate([10 * step + 100, step], axis=1), jnp.uint32),
            fault=jnp.full((4, 2), NO_FAULT),
        )
        steps = jnp.uint32((arrived + 8 * batch) % 2**32)
        ring = push_episodes(ring, record, jnp.arange(2, dtype=jnp.int32), steps)
        rows += returns[ended].tolist()
    quiet = to_host(EpisodeSums.empty(2))
    for number in (3, 6, 11):
        found = compute_episode_metrics(to_host(ring), quiet, smoothing=number)
        # both environments end an episode in the last row; the first environment is taken first
        want = [*rows[-2:][:number], *rows[:-2][::-1]][:number]
        np.testing.assert_allclose(found["episode_return_mean"], np.mean(want), rtol=1e-6)
    episodes, _ = collect_episodes(to_host(ring), np.zeros(2, np.uint32))
    assert [episode.episode_return for episode in episodes] == rows


def test_no_episode_means_no_number() -> None:
    ring, sums = to_host(init_episode_stats(SHARDS, SIZE)), to_host(EpisodeSums.empty(SHARDS))
    found = compute_episode_metrics(ring, sums, 100)
    assert (found["num_episodes"], found["num_episodes_lifetime"]) == (0, 0)
    assert {name for name, value in found.items() if np.isnan(value)} == set(EMPTY_EPISODE_METRICS)


def test_the_fault_log_names_the_last_one() -> None:
    log = init_fault_log(SHARDS)
    index = jnp.arange(ENVS, dtype=jnp.int32)
    last: dict[int, tuple[int, int]] = {}
    counts = [0, 0]
    for record in records(2, 5):
        log = push_faults(log, record, index)
        for t in range(STEPS):
            for e in range(ENVS):
                if int(record.fault[t, e]) != NO_FAULT:
                    shard = e // (ENVS // SHARDS)
                    counts[shard] += 1
                    last[shard] = (e, int(record.env_step[t, e]))
    assert sum(counts) > 2
    for shard in range(SHARDS):
        assert int(log.count[shard]) == counts[shard]
        assert (int(log.env_index[shard]), int(log.env_step[shard])) == last[shard]


def _compute_means(record: EpisodeRecord, axis_name: str | None) -> Metrics:
    return compute_episode_means(EpisodeSums.empty(1).add(record), axis_name)


@pytest.mark.slow
def test_means_of_a_train_batch_are_the_same_over_devices() -> None:
    record = records(2, 1)[0]
    ended = np.asarray(record.ended)
    means = jax.jit(partial(_compute_means, axis_name=None))(record)
    assert int(means["num_episodes"]) == ended.sum()
    for name, x in (("return", record.episode_return), ("len", record.episode_length)):
        mean = np.asarray(x)[ended].mean()
        np.testing.assert_allclose(means[f"episode_{name}_mean"], mean, rtol=1e-5)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("devices",))
    columns = PartitionSpec(None, "devices")
    divided = jax.shard_map(
        partial(_compute_means, axis_name="devices"),
        mesh=mesh,
        in_specs=columns,
        out_specs=PartitionSpec(),
    )(record)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), divided, means)
    none = _compute_means(replace(record, ended=jnp.zeros_like(record.ended)), None)
    assert int(none["num_episodes"]) == 0
    assert np.isnan(none["episode_return_mean"])
    assert np.isnan(none["episode_len_mean"])


@pytest.mark.slow
def test_a_scanned_run_has_a_learning_curve_and_trains_results_have_none_in_the_learner() -> None:
    config = PPOConfig().environment("jaxrl:probe-obs-action-v0").learners(num_devices=1)
    config.env_runners(num_envs_per_env_runner=4).rl_module(model_config={"fcnet_hiddens": [4]})
    config.training(train_batch_size=16, minibatch_size=16, num_epochs=1)
    with config.debugging(loggers=[]).build() as algo:
        start = jax.jit(algo.runner.init)(jax.random.key(0), algo.env_params)
        scan = jax.jit(
            lambda state: jax.lax.scan(lambda s, _: algo.runner.step(s), state, length=2)
        )
        state, history = scan(start)
        assert history["num_episodes"].tolist() == [16, 16]  # an episode is one step
        returns = np.asarray(state.ring.episode_return).sum() / 32  # places without one hold 0
        np.testing.assert_allclose(history["episode_return_mean"].mean(), returns, rtol=1e-5)
        result = algo.train()
        assert "episode_return_mean" in result["env_runners"]
        assert not {"episode_return_mean", "num_episodes"} & set(
            result["learners"]["default_policy"]
        )


def test_episodes_that_the_rings_of_agents_do_not_cover_are_left_out() -> None:
    """Agent `twice` ends two times in each episode of four steps, `once` with the episode."""
    ends = np.arange(
        3, 24, 4
    )  # 6 episodes; rings of 8 hold all of `once`, and `twice` from step 9 on
    twice = np.sort(np.concatenate([ends - 2, ends]))
    rings = jax.tree.map(
        lambda x: np.zeros((2, *x.shape), x.dtype), to_host(init_episode_stats(1, 8))
    )
    rings = replace(rings, count=np.array([[6], [12]], np.uint32))
    for agent, steps in enumerate((ends, twice)):
        for ordinal, step in enumerate(steps):
            rings.episode_return[agent, 0, ordinal % 8] = step
            rings.episode_length[agent, 0, ordinal % 8] = 2
            rings.env_step[agent, 0, ordinal % 8] = step
    episodes = [EndedEpisode(0.0, 4, 0, int(step)) for step in ends]
    found, left_out = add_agents(episodes, rings, [{"once": "p", "twice": "p"}])
    assert [episode.env_step for episode in found] == list(ends[3:])
    assert left_out == 3
    for episode in found:
        step = episode.env_step
        assert episode.agent_returns == {"once": step, "twice": 2 * step - 2}
