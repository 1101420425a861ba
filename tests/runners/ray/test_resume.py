"""Runs on actors that are resumed, or lose an actor, go on; so does what they record."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl import Algorithm, APPOConfig, IMPALAConfig, PPOConfig
from jaxrl.offline.recorded import open_data
from tests.offline.test_recording import check_motion

pytestmark = pytest.mark.ray


def on_actors(config: Any, env: Any, **settings: Any) -> Any:
    """Two actors of one environment each, with fragments of eight steps."""
    config.environment(env, **settings).env_runners(num_env_runners=2, num_envs_per_env_runner=1)
    config.env_runners(rollout_fragment_length=8).rl_module(model_config={"fcnet_hiddens": [8]})
    return config.training(train_batch_size=16).debugging(seed=0)


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig])
def test_an_asynchronous_run_is_resumed_with_its_recording(tmp_path: Path, config: Any) -> None:
    """By a checkpoint from before its first batch, and by a later one."""
    made = on_actors(config(), "gymnasium:CartPole-v1")
    with made.offline_data(output=str(tmp_path / "out")).build() as algorithm:
        first = algorithm.save(tmp_path / "first")
        for _ in range(3):
            algorithm.train()
        second = algorithm.save(tmp_path / "second")
    for path, number in ((second, 4), (first, 1)):  # what was recorded since is removed
        with Algorithm.from_checkpoint(path) as again:
            assert again.train()["training_iteration"] == number
            for _ in range(5):
                again.train()
        assert check_motion(tmp_path / "out") > 0


class Counting(gymnasium.Env[Any, Any]):
    """Observations are the number of steps of an episode of 40; the first actor dies once."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.marker, self.steps = Path(config["marker"]), 0
        self.may_die = config.worker_index == 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.may_die and self.steps == 20 and not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return np.asarray([self.steps], np.float32), 1.0, False, self.steps == 40, {}


def test_a_lost_actor_scrambles_no_recorded_episode(tmp_path: Path) -> None:
    config = on_actors(PPOConfig(), Counting, env_config={"marker": str(tmp_path / "marker")})
    config.training(minibatch_size=16, num_epochs=1).offline_data(output=str(tmp_path / "out"))
    with config.build() as algorithm:
        restarts = 0
        while not restarts or algorithm.iteration < 40:
            restarts = algorithm.train()["fault_tolerance"]["num_env_runner_restarts"]
        for _ in range(5):  # the restarted actor samples in the iteration after
            algorithm.train()
    assert restarts == 1
    parts = list(open_data(str(tmp_path / "out")).iter_parts())
    for part in parts:
        expected = part.t_started + np.arange(len(part) + 1)
        np.testing.assert_array_equal(part.obs[:, 0], expected, err_msg=part.episode_id)
        assert part.truncated == (part.obs[-1, 0] == 40)
    assert any(part.is_cut for part in parts)
    assert sum(part.truncated for part in parts) > 5
