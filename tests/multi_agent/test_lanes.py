"""Lanes of several agents: each is the run that it would be alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import MAPPOConfig, PopulationBasedTraining, PPOConfig, uniform
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.markers import grid
from jaxrl.sweeps.population import Population
from tests.helpers import assert_close
from tests.multi_agent.agent_envs import Torture
from tests.multi_agent.test_training import MAPPING, make_config, make_replay_config

pytestmark = pytest.mark.allow_key_reuse

THREE = {"a": "p0", "b": "p1", "c": "p0"}
OVERRIDES = {"p1": PPOConfig.overrides(gamma=0.7)}


def make_ppo() -> AlgorithmConfig:
    return make_config(env=Torture, mapping=THREE, algorithm_config_overrides_per_module=OVERRIDES)


def make_dqn() -> AlgorithmConfig:
    config = make_replay_config(env=Torture, mapping=THREE)
    config.training(num_steps_sampled_before_learning_starts=64)
    return config.reporting(min_sample_timesteps_per_iteration=320)


def make_mappo() -> AlgorithmConfig:
    mappo = MAPPOConfig().training(critic_input="joint", minibatch_size=128, num_epochs=2)
    return make_config(mappo, env=Torture, mapping=THREE, observe_agent_id=True)


def get_state(sweep: Population, index: int) -> dict[str, Any]:
    return sweep._runs[index].algorithm.get_state()["train_state"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_ppo, make_dqn, make_mappo], ids=["PPO", "DQN", "MAPPO"])
def test_each_lane_is_the_run_that_it_would_be_alone(make: Any, tmp_path: Path) -> None:
    config = make().debugging(results_dir=str(tmp_path), loggers=["json"])
    config.evaluation(evaluation_interval=1, evaluation_duration=8)
    config.training(lr=grid([1e-3, 1e-2]), gamma=grid([0.9, 0.99])).sweep(seeds=[3, 4])
    with config.build() as sweep:
        assert len(sweep._groups) == 1
        result = sweep.train()
        assert result["num_lanes"] == 8
        lane = sweep.lanes[5]
        alone = lane.config.copy(copy_frozen=False).debugging(seed=lane.seed, loggers=[])
        with alone.learners(num_devices=1).build() as algorithm:
            expected = algorithm.train()
            state = algorithm.get_state()["train_state"]
            assert_close(state, get_state(sweep, 5), rtol=1e-4, atol=1e-5)
        found = result["lanes"][5]
        for name in ("num_agent_steps_sampled_lifetime", "num_module_steps_sampled_lifetime"):
            assert found["env_runners"][name] == expected["env_runners"][name]
        for module in ("p0", "p1"):
            updates = found["learners"][module]["num_updates_lifetime"]
            assert updates == expected["learners"][module]["num_updates_lifetime"] > 0
            gamma = state[f"modules.{module}.learner.hparams.gamma"]
            is_own = make is make_ppo and module == "p1"
            assert gamma == np.float32(0.7 if is_own else lane.values["gamma"])
        names = found["evaluation"]["env_runners"]["agent_episode_returns_mean"].keys()
        assert names == {"a", "b", "c"}
        taken = sweep._groups[0][0].get_state(5, buffer=False)
        assert all(module.buffer == () for module in taken.modules.values())
        path = sweep.save()
        saved = [get_state(sweep, index) for index in range(8)]
    with Population.from_checkpoint(path) as resumed:
        for index in range(8):
            assert_close(saved[index], get_state(resumed, index), rtol=0, atol=0)


@pytest.mark.slow
def test_a_population_copies_all_modules_and_leaves_own_values_alone(tmp_path: Path) -> None:
    """A copied lane has its source's networks, and the new value where a module has none."""
    scheduler = PopulationBasedTraining(
        hyperparam_mutations={"lr": uniform(1e-4, 1e-2)},
        perturbation_interval=1,
        metric="env_runners/episode_return_mean",
    )
    overrides = {"p1": PPOConfig.overrides(lr=2e-3)}
    config = make_config(mapping=MAPPING, algorithm_config_overrides_per_module=overrides)
    config.debugging(results_dir=str(tmp_path), loggers=["json"])
    with config.sweep(seeds=[0, 1, 2, 3], scheduler=scheduler).build() as sweep:
        sweep.train()
        sweep.train()  # copies come before the training of an iteration
        assert sweep.schedule
        exploit = sweep.schedule[0]
        assert exploit.lane != exploit.source
        states = [sweep._runs[index].algorithm.state.modules for index in range(4)]
    lr = float(states[exploit.lane]["p0"].learner.hparams["lr"])
    assert lr == pytest.approx(exploit.new["lr"], rel=1e-6)
    for modules in states:
        assert float(modules["p1"].learner.hparams["lr"]) == np.float32(2e-3)
