"""Replay of what a runner on the host recorded: the same buffer, the same updates, exact ratios."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithm import Algorithm
from jaxrl.buffers.replay import ReplayBuffer
from tests.helpers import assert_close
from tests.replays import CAPACITY, NUM_ENVS, PRIORITIZED, ROWS, STEPS, replaying
from tests.runners.ray.toys import Toy

pytestmark = pytest.mark.allow_key_reuse


def buffer_of(algorithm: Algorithm) -> Any:
    return jax.device_get(algorithm.state.buffer)


def replay_of(algorithm: Algorithm) -> ReplayBuffer:
    replay = algorithm.learner_group._train_step.experience  # pyright: ignore
    assert isinstance(replay, ReplayBuffer)
    return replay


def test_a_host_run_stores_and_learns_what_the_compiled_one_does() -> None:
    """Up to the first two updates; later ones amplify the rounding."""
    states = []
    for placement in ("in_graph", "host"):
        config = replaying(buffer=PRIORITIZED, n_step=(1, 3)).env_runners(placement=placement)
        config.reporting(min_sample_timesteps_per_iteration=32)
        with config.build() as algorithm:
            result = algorithm.train()
            assert result["learners"]["default_policy"]["num_updates_lifetime"] == 2
            states.append(jax.device_get(algorithm.state))
    compiled, hosted = states
    assert_close(compiled.buffer.rows, hosted.buffer.rows)
    assert_close(compiled.buffer.priorities, hosted.buffer.priorities, rtol=1e-4)
    assert_close(compiled.learner, hosted.learner)
    assert compiled.buffer.streams is None
    np.testing.assert_array_equal(hosted.buffer.streams.env_index, np.arange(NUM_ENVS))
    np.testing.assert_array_equal(hosted.buffer.streams.env_step, np.full(NUM_ENVS, 7))


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A run of an environment that resets itself at the step after an end, and its fragments."""
    folder = str(tmp_path_factory.mktemp("gym"))
    config = replaying("gymnasium:CartPole-v1", buffer={**PRIORITIZED, "capacity": 4096})
    config.env_runners(gym_env_vectorize_mode="vector_entry_point").debugging(results_dir=folder)
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(3)]
        yield algorithm, results


@pytest.mark.slow
def test_statistics_are_those_of_the_episodes_in_the_buffer(gym: Any) -> None:
    algorithm, results = gym
    rows = buffer_of(algorithm).rows
    stored, held = rows.experience, int(rows.current_index)
    ended = (stored.terminated | stored.truncated)[:, :held]
    runners = results[-1]["env_runners"]
    assert runners["num_episodes_lifetime"] == ended.sum()
    assert runners["num_env_steps_sampled_lifetime"] == stored.mask[:, :held].sum()
    lengths = [
        length
        for env in range(NUM_ENVS)
        for length in np.diff(np.flatnonzero(ended[env]), prepend=-1)[1:] - 1
    ]  # without the row of each reset
    assert min(lengths) >= 8
    assert runners["episode_len_max"] <= 200
    assert runners["episode_return_mean"] == runners["episode_len_mean"]


def test_ratios_are_exact_from_the_first_update_on(gym: Any) -> None:
    algorithm, results = gym
    rollouts = int(algorithm.state.progress.train_batches)
    waited = 32 // (NUM_ENVS * STEPS) - 1
    updates = results[-1]["learners"]["default_policy"]["num_updates_lifetime"]
    assert updates == 2 * (rollouts - waited)
    assert updates * ROWS == 4 * NUM_ENVS * STEPS * (rollouts - waited)


def test_rows_that_are_no_transitions_are_not_learned_from(gym: Any) -> None:
    algorithm, _ = gym
    buffer, replay = buffer_of(algorithm), replay_of(algorithm)
    mask, held = buffer.rows.experience.mask, int(buffer.rows.current_index)
    assert 0 < (~mask[:, :held]).sum() < held
    per_shard = NUM_ENVS // replay.num_shards
    nodes = np.asarray(buffer.priorities.tree.nodes)
    leaves = nodes[:, nodes.shape[1] // 2 :][:, : per_shard * replay.length]
    leaves = leaves.reshape(NUM_ENVS, replay.length)
    np.testing.assert_array_equal(leaves > 0.0, mask)
    shards, steps = jnp.arange(replay.num_shards, dtype=jnp.int32), jnp.zeros(())
    sample = jax.jit(
        lambda key: replay.sample(algorithm.state.buffer, buffer.priorities, key, shards, steps)
    )
    drawn = [jax.device_get(sample(key)) for key in jax.random.split(jax.random.key(0), 40)]
    assert all(mask[d.env, d.time].all() and (d.weight > 0.0).all() for d in drawn)


def test_weights_are_published_after_every_train_batch(gym: Any) -> None:
    algorithm, _ = gym
    versions = []
    for _ in range(3):
        fragment = algorithm.env_runner_group.foreach_env_runner(lambda r: r.weights_version)[0]
        versions.append(fragment)
        algorithm._batches_to_run = 1
        algorithm.training_step()
    assert np.diff(versions).tolist() == [1, 1]
    actor = algorithm.learner_group.get_weights(0).actor
    assert_close(actor.params, algorithm.get_weights()["default_policy"])


def folded(algorithm: Algorithm, number: int) -> list[Any]:
    """Transitions of a buffer, undiscounted."""
    replay, state = replay_of(algorithm), algorithm.state.buffer
    shards, steps = jnp.arange(replay.num_shards, dtype=jnp.int32), jnp.zeros(())
    batches = []
    for key in jax.random.split(jax.random.key(1), number):
        draw_key, fold_key = jax.random.split(key)
        drawn = replay.sample(state, state.priorities, draw_key, shards, steps)
        batch = replay.gather_transitions(state, drawn, jnp.ones(()), shards, fold_key)
        batches.append(jax.device_get(batch))
    return batches


def assert_folds_stay_in_their_stream(batches: list[Any], most: int) -> dict[int, int]:
    """Check the folds, and return the number of each length.

    A `Toy` observes where it is and what it counts, and is rewarded with the count's last digit.
    """
    lengths: dict[int, int] = {}
    for batch in batches:
        for obs, following, reward in zip(batch.obs, batch.next_obs, batch.reward, strict=True):
            index, episode, count = np.rint(obs * [100, 100, 1000]).astype(int)
            then = np.rint(following * [100, 100, 1000]).astype(int)
            assert (then[0], then[1]) == (index, episode)
            steps = int(then[2] - count)
            assert 1 <= steps <= most
            assert reward == sum((count + i) % 10 for i in range(1, steps + 1))
            lengths[steps] = lengths.get(steps, 0) + 1
    return lengths


@pytest.mark.slow
def test_steps_that_were_lost_are_not_folded_over() -> None:
    config = replaying(Toy, n_step=3, num_steps_sampled_before_learning_starts=160)
    config.training(replay_buffer_config={"type": "uniform", "capacity": 160})
    with config.build() as algorithm:
        algorithm._batches_to_run = 1
        for number in range(12):
            if number % 3 == 2:  # sampled, and nobody learns of it
                algorithm.env_runner_group.next_batch()
            algorithm.training_step()
        rows = buffer_of(algorithm).rows
        stored, held = rows.experience, int(rows.current_index)
        steps = np.rint(stored.obs[:, :held, 2] * 1000)
        cut = np.diff(steps, axis=1, prepend=-1) > 1
        assert cut.sum() == 4 * NUM_ENVS
        np.testing.assert_array_equal(stored.is_first[:, :held], cut | (steps % 10 == 0))
        lengths = assert_folds_stay_in_their_stream(folded(algorithm, 20), most=3)
        assert set(lengths) == {1, 2, 3}


@pytest.mark.slow
def test_an_environment_with_a_dictionary_of_observations_is_replayed() -> None:
    """Observations of several leaves, images among them, as their types."""
    with replaying(Pictures, buffer=PRIORITIZED).build() as algorithm:
        algorithm.train()
        stored = buffer_of(algorithm).rows.experience.obs
    assert stored["image"].dtype == np.uint8
    assert stored["image"].shape == (NUM_ENVS, CAPACITY // NUM_ENVS, 3, 3, 1)
    assert stored["image"].max() > 1


class Pictures(gymnasium.Env[Any, Any]):
    """A picture and a number."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (3, 3, 1), np.uint8),
            "place": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps % 7 == 0, False, {}


PLACES = {
    "in_graph": {"placement": "in_graph"},
    "host": {"placement": "host"},
    "host_memory": {"placement": "host"},
}


@pytest.mark.representatives("in_graph")
@pytest.mark.parametrize("place", PLACES)
def test_results_tell_of_the_buffer_and_count_its_rows_as_trained(place: str) -> None:
    """The buffer of 80 is full after one iteration of 96 steps, of which 24 are too early."""
    storage = {"storage": "host"} if place == "host_memory" else {}
    config = replaying(buffer={**PRIORITIZED, **storage}).env_runners(**PLACES[place])
    with config.build() as algorithm:
        first, second = algorithm.train(), algorithm.train()
    rows = 4 * (96 - 24)
    assert first["replay_buffer"] == {
        "capacity": 80,
        "num_env_steps_stored": 80,
        "fill": 1.0,
        "num_env_steps_added": 96,
        "num_env_steps_added_lifetime": 96,
        "num_env_steps_sampled": rows,
        "num_env_steps_sampled_lifetime": rows,
    }
    assert second["replay_buffer"]["num_env_steps_sampled"] == 4 * 96
    assert second["replay_buffer"]["num_env_steps_added_lifetime"] == 192
    trained = second["num_env_steps_trained_lifetime"]
    learned = second["learners"]["default_policy"]
    assert trained == rows + 4 * 96 == ROWS * learned["num_updates_lifetime"]
    assert learned["num_module_steps_trained_lifetime"] == trained
    assert second["num_env_steps_sampled_lifetime"] == 192


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_an_iteration_lasts_until_so_many_rows_were_trained_on(placement: Any) -> None:
    config = replaying().env_runners(placement=placement)
    config.reporting(min_sample_timesteps_per_iteration=0, min_train_timesteps_per_iteration=100)
    with config.build() as algorithm:
        first, second = algorithm.train(), algorithm.train()
    # 24 steps are too early, then 4 rollouts of 8 steps with 32 rows each.
    assert first["num_env_steps_sampled_lifetime"] == 24 + 4 * 8
    assert first["num_env_steps_trained_lifetime"] == 4 * 32
    assert second["num_env_steps_trained_lifetime"] == 8 * 32


@pytest.mark.slow
def test_a_buffer_fills_up() -> None:
    config = replaying().reporting(min_sample_timesteps_per_iteration=16)
    with config.build() as algorithm:
        held = [algorithm.train()["replay_buffer"] for _ in range(6)]
    assert [part["num_env_steps_stored"] for part in held] == [16, 32, 48, 64, 80, 80]
    assert [part["fill"] for part in held][:2] == [0.2, 0.4]
