"""Probes of several agents: each has known values, and shows one mistake in how rows are made."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.appo import APPOConfig
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import A2CConfig, PPOConfig
from jaxrl.algorithms.sac import SACConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.config.base import AlgorithmConfig
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.probes import LEGAL, MultiProbe
from jaxrl.envs.registry import make_multi
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, PolicyQModule
from jaxrl.modules.q_network import QModule

GAMMA = 0.8
PROBES = [
    "probe-turns-v0",
    "probe-turns-gamma-v0",
    "probe-cut-v0",
    "probe-death-v0",
    "probe-join-v0",
    "probe-teams-v0",
    "probe-agents-v0",
    "probe-mask-turns-v0",
]
"""Probes whose values are known without memory, without a global state and without an opponent."""


def make_algorithms() -> dict[str, AlgorithmConfig]:
    ppo = PPOConfig().training(lr=3e-3, lambda_=0.95, num_epochs=4, minibatch_size=128)
    return {
        "PPO": ppo.training(vf_clip_param=1e9, entropy_coeff=0.003),
        "A2C": A2CConfig().training(lr=1e-2, entropy_coeff=0.003),
        "IMPALA": IMPALAConfig().training(lr=1e-2, entropy_coeff=0.003),
        "APPO": APPOConfig().training(lr=1e-2, entropy_coeff=0.003),
    }


def make_replay_algorithms() -> dict[str, AlgorithmConfig]:
    """Double DQN with folds of several own steps, and SAC with almost no entropy."""
    sizes: dict[str, Any] = {
        "train_batch_size": 256,
        "num_steps_sampled_before_learning_starts": 256,
        "replay_buffer_config": {"type": "uniform", "capacity": 8192},
        "tau": 0.05,
        "n_step": 2,
    }
    dqn = DQNConfig().training(**sizes, lr=1e-2, target_network_update_freq=0)
    dqn.training(epsilon=[[0, 1.0], [4000, 0.3]])
    sac = SACConfig().training(**sizes, initial_alpha=0.01, target_entropy=0.05)
    return {"DQN": dqn, "SAC": sac.training(actor_lr=3e-3, critic_lr=1e-2, alpha_lr=1e-4)}


def run(
    config: AlgorithmConfig, env: str, batches: int, **model: Any
) -> tuple[MultiProbe, Any, PyTree]:
    """Return the probe, the assembly of a run with a module per agent, and its state."""
    probe = make_multi(f"jaxrl:{env}").env
    base: Any = getattr(probe, "env", probe)
    config = config.copy().environment(f"jaxrl:{env}")
    config.env_runners(num_envs_per_env_runner=16).training(gamma=GAMMA)
    if not isinstance(config, DQNConfig | SACConfig):
        config.training(train_batch_size=512)
    config.rl_module(model_config={"fcnet_hiddens": [16], **model}).debugging(loggers=[], seed=1)
    config.multi_agent(mapping={agent: f"of_{agent}" for agent in probe.possible_agents})
    config.prepare()
    assembly: Any = assemble(config)
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    step = jax.jit(lambda state: runner.step(state)[0], donate_argnums=0)
    for _ in range(batches):
        state = step(state)
    return base, assembly, state


def check(
    probe: Any, assembly: Any, state: PyTree, agents: tuple[str, ...] = (), atol: float = 0.15
) -> None:
    """Compare each module's values and most likely actions with those that are known."""
    for agent, table in probe.value_tables(GAMMA).items():
        if agents and agent not in agents:
            continue
        own = assembly.modules[f"of_{agent}"]
        obs = make_obs(probe, agent, table.obs)
        values, actions = predict(own.module, state.modules[f"of_{agent}"], obs)
        np.testing.assert_allclose(values, table.values, atol=atol, err_msg=agent)
        if "mask" in probe.name:  # every legal action earns 1, in two turns
            assert (np.asarray(state.agents.ring.episode_return) == 2.0).all()
        elif table.actions is not None:
            np.testing.assert_array_equal(actions, table.actions, err_msg=agent)


def predict(module: Any, state: PyTree, obs: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of observations, and the best actions."""
    params = state.learner.sgd.params
    out = module.forward_train(params, {"obs": obs})
    if isinstance(module, PolicyQModule):
        actions = np.asarray(module.policy_dist(params[POLICY], obs).mode())
        q = np.asarray(module.compute_q_values(params[CRITIC], obs)).min(axis=0)
        return q[np.arange(len(actions)), actions], actions
    is_q = isinstance(module, QModule)
    values = module.compute_values(params, obs) if is_q else out["vf_preds"]
    dist = module.action_dist(out["action_dist_inputs"], obs)
    return np.asarray(values), np.asarray(dist.mode())


def make_obs(probe: Any, agent: str, rows: np.ndarray) -> PyTree:
    if "mask" not in probe.name:
        return jnp.asarray(rows)
    index = probe.possible_agents.index(agent)
    return {
        "action_mask": jnp.asarray(LEGAL[index, rows[:, 0].astype(int)]),
        "obs": jnp.asarray(rows),
    }


ALGORITHMS = make_algorithms()


@pytest.mark.representatives("probe-turns-v0-PPO")
@pytest.mark.parametrize("algo", list(ALGORITHMS))
@pytest.mark.parametrize("env", PROBES)
def test_values_and_actions_are_learned(env: str, algo: str) -> None:
    batches = 150 if algo == "PPO" else 400
    check(*run(ALGORITHMS[algo], env, batches), atol=0.15 if algo == "PPO" else 0.25)


REPLAY_ALGORITHMS = make_replay_algorithms()


@pytest.mark.slow
@pytest.mark.parametrize("algo", list(REPLAY_ALGORITHMS))
@pytest.mark.parametrize("env", PROBES)
def test_values_and_actions_are_learned_from_replay(env: str, algo: str) -> None:
    check(*run(REPLAY_ALGORITHMS[algo], env, 1500), atol=0.2)


@pytest.mark.slow
def test_memories_recall_over_the_turns_of_others() -> None:
    memory = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}
    _, _, state = run(ALGORITHMS["PPO"], "probe-recall-turns-v0", 150, **memory)
    returns = np.asarray(state.agents.ring.episode_return).reshape(2, -1)
    assert (returns.mean(axis=1) > 0.8).all()


@pytest.mark.slow
def test_an_opponent_learns_its_own_optimum() -> None:
    check(*run(ALGORITHMS["PPO"], "probe-opponent-v0", 150))
