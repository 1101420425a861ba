"""One agent on the path of several computes what the path of a single one does, to the bit."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms.appo import APPOConfig
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import A2CConfig, PPOConfig
from jaxrl.algorithms.sac import SACConfig
from jaxrl.config.base import AlgorithmConfig
from jaxrl.core.types import PyTree
from jaxrl.envs.goals import BitFlip
from tests.multi_agent.agent_envs import OneAgent

SIZES: dict[str, Any] = {"train_batch_size": 256, "lr": 1e-3}
MEMORY: dict[str, Any] = {
    "use_lstm": True,
    "lstm_cell_size": 8,
    "max_seq_len": 8,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}


def make_configs() -> dict[str, AlgorithmConfig]:
    ppo = PPOConfig().training(**SIZES, minibatch_size=64, num_epochs=2)
    return {
        "PPO": ppo.copy().env_runners(observation_filter="MeanStdFilter"),
        "memory": ppo.copy().rl_module(model_config=MEMORY),
        "normalized rewards": ppo.copy().env_runners(normalize_rewards=True),
        "A2C": A2CConfig().training(**SIZES),
        "IMPALA": IMPALAConfig().training(**SIZES),
        "APPO": APPOConfig().training(**SIZES),
    }


def make_replay_configs() -> dict[str, AlgorithmConfig]:
    sizes: dict[str, Any] = {
        "train_batch_size": 32,
        "num_steps_sampled_before_learning_starts": 100,
        "training_intensity": 8.0,
    }
    buffer = {"type": "uniform", "capacity": 320}
    dqn = DQNConfig().training(**sizes, replay_buffer_config=buffer, n_step=3)
    dqn.env_runners(rollout_fragment_length=2)
    prioritized = {"type": "prioritized", "capacity": 320}
    hindsight = {
        "type": "hindsight",
        "capacity": 320,
        "horizon": 10,
        "compute_reward": BitFlip().compute_reward,
    }
    sac = SACConfig().training(**sizes, replay_buffer_config=buffer)
    memory = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}
    return {
        "DQN": dqn.copy(),
        "prioritized DQN": dqn.copy().training(replay_buffer_config=prioritized, n_step=(1, 3)),
        "DQN in hindsight": dqn.copy().training(replay_buffer_config=hindsight, n_step=1),
        "DQN with memory": dqn.copy().rl_module(model_config=memory).training(n_step=1),
        "SAC": sac,
        "SAC with filter": sac.copy().env_runners(observation_filter="MeanStdFilter"),
    }


CONFIGS, REPLAY_CONFIGS = make_configs(), make_replay_configs()


def run(config: AlgorithmConfig, env: object, number: int, **env_config: object) -> PyTree:
    config = (
        config.copy()
        .environment(env, env_config=env_config)
        .env_runners(num_envs_per_env_runner=16)
    )
    model = {"fcnet_hiddens": [8], **(config.rl_module_settings.model_config or {})}
    config.rl_module(model_config=model).debugging(seed=3, loggers=[])
    with config.build() as algorithm:
        state, step = algorithm.state, jax.jit(algorithm.runner.step)
    for _ in range(number):
        state, _ = step(state)
    return state


@pytest.mark.representatives("PPO")
@pytest.mark.parametrize("name", list(CONFIGS))
def test_one_agent_is_trained_as_a_single_one(name: str) -> None:
    single = run(CONFIGS[name], "CartPole-v1", 4)
    several = run(CONFIGS[name], OneAgent, 4)
    own = several.modules["default_policy"]
    for part in ("learner", "connectors", "guard", "progress"):
        jax.tree.map(np.testing.assert_array_equal, getattr(single, part), getattr(own, part))
    for ring in (several.ring, own.ring, jax.tree.map(lambda x: x[0], several.agents.ring)):
        jax.tree.map(np.testing.assert_array_equal, single.ring, ring)
    assert int(several.progress.env_steps) == int(single.progress.env_steps) == 1024
    assert int(single.ring.count.sum()) > 0
    # A changed seed must not pass.
    other = jax.tree.leaves(single.learner.sgd.params)[0] + 1e-7
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(other, jax.tree.leaves(own.learner.sgd.params)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REPLAY_CONFIGS))
def test_one_agent_replays_as_a_single_one(name: str) -> None:
    """Also once the buffer is full, and for its rows and priorities."""
    env = "Pendulum-v1" if name.startswith("SAC") else "CartPole-v1"
    env = "BitFlip-v0" if name == "DQN in hindsight" else env
    single = run(REPLAY_CONFIGS[name], env, 24)
    several = run(REPLAY_CONFIGS[name], OneAgent, 24, env_id=env)
    own = several.modules["default_policy"]
    for part in ("learner", "connectors", "guard", "progress", "ring"):
        jax.tree.map(np.testing.assert_array_equal, getattr(single, part), getattr(own, part))
    assert int(own.progress.updates) > 30
    experience = (single.buffer.rows.experience, own.buffer.rows.experience)
    jax.tree.map(np.testing.assert_array_equal, *experience)
    jax.tree.map(np.testing.assert_array_equal, single.buffer.priorities, own.buffer.priorities)
    assert np.asarray(own.buffer.rows.is_full).all()
