"""Replay fed by actors: Ape-X's ladder, streams that a killed actor cuts, several learners."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.config.load import load_experiment
from jaxrl.core.types import Columns
from tests.helpers import assert_close, assert_equal
from tests.replays import NUM_ENVS, PRIORITIZED, ROWS, STEPS, replaying
from tests.runners.ray.toys import Toy
from tests.runners.test_host_replay import assert_folds_stay_in_their_stream, buffer_of, folded

CONFIGS = Path(__file__).parents[3] / "configs" / "gymnasium"

pytestmark = [pytest.mark.ray, pytest.mark.allow_key_reuse]


def with_actors(env: Any, *, buffer: dict[str, Any], **training: Any) -> Any:
    """Two actors of two environments each."""
    config = replaying(env, buffer=buffer, **training)
    return config.env_runners(num_env_runners=2, num_envs_per_env_runner=NUM_ENVS // 2)


def test_two_actors_feed_one_prioritized_buffer_from_a_ladder_of_epsilons() -> None:
    """The first environment of the first actor explores half of the time, the last one never."""
    config = with_actors(
        "gymnasium:CartPole-v1",
        buffer={**PRIORITIZED, "capacity": 800},
        epsilon=0.5,
        epsilon_ladder=1000.0,
        num_steps_sampled_before_learning_starts=400,
    )
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < 392:
            algorithm._batches_to_run = 1
            algorithm.training_step()
        buffer, params = buffer_of(algorithm), algorithm.get_weights()["default_policy"]
        held = int(buffer.rows.current_index)
        stored = buffer.rows.experience
        module, greedy = algorithm.get_module(), []
        for env in range(NUM_ENVS):
            out = module.forward_train(params, {Columns.OBS: jnp.asarray(stored.obs[env, :held])})
            best = np.argmax(np.asarray(out[Columns.ACTION_DIST_INPUTS]), axis=1)
            greedy.append(float((best == stored.action[env, :held]).mean()))
        np.testing.assert_array_equal(buffer.streams.env_index, np.arange(NUM_ENVS))
        assert 0.6 < greedy[0] < 0.9
        assert greedy[1:] == [1.0] * (NUM_ENVS - 1)
        result = algorithm.train()
        updates = result["learners"]["default_policy"]["num_updates_lifetime"]
        steps = result["num_env_steps_sampled_lifetime"]
        assert updates * ROWS == 4 * (steps - 392)
        assert result["num_env_steps_trained_lifetime"] == updates * ROWS
        assert result["replay_buffer"]["num_env_steps_stored"] == steps
        assert result["replay_buffer"]["num_env_steps_sampled_lifetime"] == updates * ROWS
        after = buffer_of(algorithm)
    assert after.priorities.largest > 1.0
    values = np.asarray(after.priorities.tree.nodes)[:, after.priorities.tree.nodes.shape[1] // 2 :]
    assert len(np.unique(values)) > 100


@pytest.mark.slow
def test_a_killed_actor_cuts_its_streams_and_changes_no_ratio() -> None:
    config = with_actors(
        Toy,
        buffer={**PRIORITIZED, "capacity": 800},
        n_step=3,
        num_steps_sampled_before_learning_starts=0,
    )
    with config.reporting(min_sample_timesteps_per_iteration=32).build() as algorithm:
        algorithm.train()
        group: Any = algorithm.env_runner_group
        for victim in (1, 0):
            before = algorithm.train()["fault_tolerance"]["num_env_runner_restarts"]
            os.kill(group.foreach_env_runner(lambda _: os.getpid())[victim], signal.SIGKILL)
            while (result := algorithm.train())["fault_tolerance"][
                "num_env_runner_restarts"
            ] == before or group.num_healthy_env_runners < 2:
                assert result["training_iteration"] < 500
        result = algorithm.train()
        rollouts = int(algorithm.state.progress.train_batches)
        updates = result["learners"]["default_policy"]["num_updates_lifetime"]
        assert updates == 2 * rollouts
        assert result["num_env_steps_sampled_lifetime"] == NUM_ENVS * STEPS * rollouts
        lengths = assert_folds_stay_in_their_stream(folded(algorithm, 40), most=3)
        assert set(lengths) == {1, 2, 3}
        stored = buffer_of(algorithm).rows.experience
        index = np.rint(stored.obs[..., 0] * 100)[np.asarray(stored.mask)]
        assert set(index) == {10, 11, 20, 21}


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["auto", "host"])
def test_two_learners_with_a_buffer_equal_one(placement: str, tmp_path: Any) -> None:
    states = []
    for number in (2, 0):
        config = replaying(buffer=PRIORITIZED, n_step=(1, 3)).env_runners(placement=placement)
        config.reporting(min_sample_timesteps_per_iteration=32)
        config.learners(num_learners=number, num_shards=2)
        if number:
            config.learners(num_cpus_per_learner=0.5)
        with config.build() as algorithm:
            algorithm.train()
            states.append(jax.device_get(algorithm.state))
            if number:
                saved = algorithm.get_state()
                algorithm.train()
                algorithm.set_state(saved)
                assert_equal(saved["train_state"], algorithm.get_state()["train_state"])
    two, one = states
    assert_close(two.buffer, one.buffer, rtol=1e-4)
    assert_close(two.learner, one.learner)
    assert int(one.progress.updates.low) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole-dqn", "pendulum-sac"])
@pytest.mark.parametrize("num_env_runners", [0, 2])
def test_shipped_files_run_here_and_with_actors(
    name: str, num_env_runners: int, tmp_path: Path
) -> None:
    config: Any = load_experiment(CONFIGS / f"{name}.yaml").config
    config.env_runners(num_env_runners=num_env_runners)
    config.training(num_steps_sampled_before_learning_starts=40)
    config.reporting(min_sample_timesteps_per_iteration=80)
    config.evaluation(evaluation_interval=None)
    with config.debugging(results_dir=str(tmp_path), loggers=["json"]).build() as algorithm:
        result = algorithm.train()
    assert result["num_env_steps_sampled_lifetime"] == 80
    assert result["replay_buffer"]["num_env_steps_stored"] == 80
    assert result["num_env_steps_trained_lifetime"] > 0
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
