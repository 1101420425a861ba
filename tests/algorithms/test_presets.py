"""RLlib's former algorithms, and others, as presets: what they name is what their config does."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms.dqn import ApexDQNConfig, R2D2Config, SimpleQConfig
from jaxrl.algorithms.impala import A3CConfig
from jaxrl.algorithms.ppo import DDPPOConfig
from jaxrl.algorithms.sac import CrossQConfig, REDQConfig, RNNSACConfig
from jaxrl.algorithms.td3 import ApexDDPGConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.config.base import get_algorithm_config
from jaxrl.core.hparams import current_values

PRESETS = {
    "A3C": A3CConfig,
    "APEX": ApexDQNConfig,
    "APEX_DDPG": ApexDDPGConfig,
    "CrossQ": CrossQConfig,
    "DDPPO": DDPPOConfig,
    "REDQ": REDQConfig,
    "R2D2": R2D2Config,
    "RNNSAC": RNNSACConfig,
    "SimpleQ": SimpleQConfig,
}
CONTINUOUS = ("APEX_DDPG", "CrossQ", "REDQ", "RNNSAC")


@pytest.mark.parametrize("name", PRESETS)
def test_it_is_known_by_its_name(name: str) -> None:
    config = get_algorithm_config(name)
    assert type(config) is PRESETS[name]
    assert config.algo_name == name
    config.environment("Pendulum-v1" if name in CONTINUOUS else "CartPole-v1").validate()
    assert f"{type(config).__name__}, * = set by you" in config.explain()


def trained(config: Any, **settings: Any) -> Any:
    """The learners' metrics of one iteration with small networks and buffers."""
    config.rl_module(model_config={"fcnet_hiddens": [8], **settings.pop("model_config", {})})
    config.update_from_dict(settings).debugging(loggers=[]).learners(num_devices=1)
    with config.build() as algorithm:
        module = algorithm.get_module()
        params = jax.tree.map(np.asarray, algorithm.get_weights()["default_policy"])
        result = algorithm.train()
        after = algorithm.get_weights()["default_policy"]
    changed = [
        not np.array_equal(a, b)
        for a, b in zip(*map(jax.tree.leaves, (params, after)), strict=True)
    ]
    assert any(changed)
    return module, result["learners"]["default_policy"]


SEQUENCES = {
    "num_envs_per_env_runner": 8,
    "rollout_fragment_length": 8,
    "train_batch_size": 64,
    "training_intensity": 2.0,
    "num_steps_sampled_before_learning_starts": 64,
    "min_sample_timesteps_per_iteration": 256,
    "replay_buffer_config": {"type": "uniform", "capacity": 512},
    "model_config": {"max_seq_len": 8, "lstm_cell_size": 4},
}


@pytest.mark.parametrize("name", ["R2D2", "RNNSAC"])
def test_it_remembers_without_being_asked_to(name: str) -> None:
    config = PRESETS[name]().environment("StatelessCartPole-v0")
    config.rl_module(model_config={"lstm_cell_size": 4, "max_seq_len": 8})
    module = assemble(config).module
    assert module.is_stateful
    carry = module.initial_carry(2)
    assert any(leaf.shape == (2, 4) for leaf in jax.tree.leaves(carry))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["R2D2", "RNNSAC"])
def test_what_remembers_learns(name: str) -> None:
    module, metrics = trained(PRESETS[name]().environment("StatelessCartPole-v0"), **SEQUENCES)
    assert module.is_stateful
    assert np.isfinite(metrics["total_loss"])


def test_apex_explores_on_a_ladder() -> None:
    config = ApexDQNConfig().environment("CartPole-v1").debugging(loggers=[])
    config.training(replay_buffer_config={"capacity": 4096}).learners(num_devices=1)
    with config.build() as algorithm:
        module, state = algorithm.get_module(), algorithm.state
        rows, keys = 4000, jax.random.split(jax.random.key(0), 4000)
        forward = jax.jit(module.forward_exploration)
        values = current_values(state.learner.hparams, state.progress)
        obs, draws = np.zeros((rows, 4), np.float32), module.draw(keys)
        greedy = module.forward_inference(state.learner.sgd.params, obs[:1])["actions"][0]
        shares = []
        for index in (0, 31):
            out = forward(
                state.learner.sgd.params,
                obs,
                None,
                values,
                state.progress,
                np.full(rows, index, np.int32),
                draws,
            )
            shares.append(np.mean(np.asarray(out["actions"]) != greedy))
    # Half of the random actions are the greedy one: 0.4 / 2, and 0.4 ** 8 / 2.
    np.testing.assert_allclose(shares, [0.2, 0.0003], atol=0.03)


def test_simple_q_has_no_extension() -> None:
    training = SimpleQConfig().training_settings
    assert not any((training.double_q, training.dueling, training.noisy))
    assert (training.n_step, training.num_atoms) == (1, 1)
    assert training.replay_buffer_config["type"] == "uniform"


def test_a3c_and_ddppo_differ_from_their_base_by_settings_alone() -> None:
    assert A3CConfig().training_settings.vtrace_clip_rho_threshold == 1.0
    assert A3CConfig().training_settings.vtrace_clip_pg_rho_threshold == 1.0
    assert not DDPPOConfig().training_settings.use_kl_loss
