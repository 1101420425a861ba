"""Runs that replay in hindsight, wherever environments and buffers are, and what is refused."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, JaxEnv, RainbowConfig, ReplayBuffer, grid
from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import FrameStacking
from jaxrl.envs import make_multi_agent
from jaxrl.envs.goals import BitFlip
from jaxrl.errors import ConfigError, EnvError
from tests.helpers import assert_close, assert_equal
from tests.replays import replaying


class PaidFlip(BitFlip):
    """Bits whose wrong states cost as much as a parameter says."""

    def __init__(self) -> None:
        super().__init__(4)

    @property
    def default_params(self) -> Any:
        return {"cost": np.asarray(1.0, np.float32)}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, params: Any) -> Any:
        reward, terminated = super().compute_reward(achieved_goal, desired_goal, params)
        return params["cost"] * reward, terminated


def count_wrong(achieved: Any, desired: Any, params: Any) -> Any:
    """Another reward: as many as bits are wrong."""
    del params
    wrong = jnp.sum(achieved != desired)
    return -wrong.astype(jnp.float32), wrong == 0


class HostFlip(gymnasium.Env[Any, Any]):
    """Four bits in Python."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Dict(
        {name: spaces.MultiBinary(4) for name in ("observation", "achieved_goal", "desired_goal")}
    )

    def __init__(self, context: Any = None) -> None:
        del context

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, 4)).astype(np.int8)
        self.num_steps = 0
        return self.observe(), {}

    def observe(self) -> dict[str, np.ndarray]:
        bits = self.bits.copy()
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self.goal}

    def step(self, action: Any) -> Any:
        self.bits[action] ^= 1
        self.num_steps += 1
        wrong = int((self.bits != self.goal).sum())
        return self.observe(), -float(wrong), wrong == 0, self.num_steps == 4, {}


def her(env: Any = PaidFlip, buffer: dict[str, Any] | None = None, **training: Any) -> Any:
    given = {"type": "hindsight", **(buffer or {})}
    return replaying(env, buffer=given, **training).debugging(loggers=[])


def find_replay(config: Any) -> ReplayBuffer:
    replay = assemble(config).train_step.experience
    assert isinstance(replay, ReplayBuffer)
    return replay


def test_every_setting_reaches_the_buffer() -> None:
    replay = find_replay(her())
    hindsight = replay.hindsight
    assert hindsight is not None
    assert (hindsight.goal_fraction, hindsight.horizon, hindsight.strategy) == (0.8, 4, "future")
    assert hindsight.env_params["cost"] == 1.0
    assert replay.prioritization is None  # although DQN's own buffer is prioritized
    given = {"goal_fraction": 0.5, "horizon": 3, "strategy": "final", "alpha": 0.7}
    path = {"type": "HindsightReplayBuffer", "compute_reward": "tests.test_hindsight:count_wrong"}
    replay = find_replay(her(buffer=given | path))
    hindsight, prioritization = replay.hindsight, replay.prioritization
    assert hindsight is not None
    assert (hindsight.goal_fraction, hindsight.horizon, hindsight.strategy) == (0.5, 3, "final")
    assert hindsight.compute_reward is count_wrong
    assert prioritization is not None
    assert prioritization.alpha == 0.7


@pytest.mark.slow
def test_devices_and_a_restored_run_agree(tmp_path: Path) -> None:
    """Two devices sample what one does; a saved run goes on as the one that was not."""
    first, params, path = [], [], ""
    for num_devices in (1, 2):
        config = her(buffer={"alpha": 0.6}, num_steps_sampled_before_learning_starts=80)
        config.learners(num_devices=num_devices, num_shards=2)
        with config.build() as algorithm:
            algorithm.train()
            first.append(jax.device_get(algorithm.state.learner.sgd.params))
            assert int(algorithm.state.progress.updates) == 6
            if num_devices == 2:
                path = algorithm.save(tmp_path)
                algorithm.train()
                params.append(jax.device_get(algorithm.state.learner.sgd.params))
    assert_close(*first)
    with Algorithm.from_checkpoint(path) as restored:
        restored.train()
        params.append(jax.device_get(restored.state.learner.sgd.params))
    assert_equal(*params)


def learned(config: Any) -> Any:
    with config.build() as algorithm:
        algorithm.train()
        return jax.device_get(algorithm.state.learner)


@pytest.mark.slow
def test_runners_and_buffers_on_the_host_learn_the_same() -> None:
    """Up to the first two updates; later ones amplify the rounding."""
    found = []
    for placement, storage in (("in_graph", "device"), ("host", "device"), ("host", "host")):
        config = her(buffer={"storage": storage}).env_runners(placement=placement)
        found.append(learned(config.reporting(min_sample_timesteps_per_iteration=32)))
    for other in found[1:]:
        assert_close(found[0], other)


@pytest.mark.slow
def test_an_environment_in_python_has_its_reward_from_the_config() -> None:
    """It is solved within the iterations that it takes to solve it in JAX."""
    buffer = {"compute_reward": count_wrong, "horizon": 4, "capacity": 4096}
    config = her(HostFlip, buffer, lr=3e-3, epsilon=[[0, 1.0], [2000, 0.05]]).reporting(
        min_sample_timesteps_per_iteration=2048
    )
    with config.build() as algorithm:
        results = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(3)]
    assert results[-1] >= -2.5  # 0 + 1 + 2 + 3 of two wrong bits on average


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_a_lane_recomputes_rewards_with_its_own_parameters() -> None:
    with her().environment(PaidFlip, env_config={"cost": grid([1.0, 3.0])}).build() as sweep:
        assert len(sweep._groups) == 1
        lanes = sweep.train()["lanes"]
        losses = [lanes[i]["learners"]["default_policy"]["qf_mean"] for i in (0, 1)]
    for cost, loss in zip((1.0, 3.0), losses, strict=True):
        with her().environment(PaidFlip, env_config={"cost": cost}).build() as algorithm:
            alone = algorithm.train()["learners"]["default_policy"]["qf_mean"]
        assert loss == pytest.approx(alone, rel=1e-3)
    assert losses[0] != pytest.approx(losses[1], rel=0.1)


@pytest.mark.allow_key_reuse
def test_changed_parameters_change_recomputed_rewards() -> None:
    """Stored rows cost what they did, and those with another goal what they would now."""
    assembly = assemble(her())
    runner, shards = assembly.run, jnp.arange(1, dtype=jnp.int32)
    replay = dataclasses.replace(find_replay(her()), batch_size=256)
    params, key = assembly.jax_env.params, jax.random.key(0)

    @jax.jit
    def sample_rewards(cost: Any) -> Any:
        def add(_: Any, state: Any) -> Any:
            return runner.learning.add_to_buffer(*runner.learning.receive(*runner.collect(state)))

        state = jax.lax.fori_loop(0, 8, add, runner.init(key, params))
        bound = replay.with_env_params({"cost": cost})
        drawn = bound.sample(state.buffer, None, key, shards, state.progress.env_steps)
        return bound.gather_transitions(state.buffer, drawn, jnp.ones(()), shards, key).reward

    for cost, want in ((1.0, {-1.0, 0.0}), (5.0, {-5.0, -1.0, 0.0})):
        assert set(np.asarray(sample_rewards(jnp.float32(cost))).tolist()) == want


class Own(BitFlip):
    """Steps that have rewards of their own."""

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        return BitFlip(self.num_bits).step(key, state, action, params)


class NoMethod(Own):
    """Goals, and nothing that recomputes rewards."""

    compute_reward = JaxEnv.compute_reward


class RewardAlone(Own):
    """As gymnasium-robotics: one number."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, params: Any) -> Any:
        return -jnp.sum(achieved_goal != desired_goal)


class NumpyReward(Own):
    """Not written in JAX."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, params: Any) -> Any:
        return -float(np.linalg.norm(achieved_goal - desired_goal)), False


class OtherGoals(BitFlip):
    """Desires real numbers, and achieves bits."""

    def observation_space(self, params: Any) -> Any:
        space = super().observation_space(params)
        return spaces.Dict({**space, "desired_goal": spaces.Box(0.0, 1.0, (10,), np.float32)})

    def observe(self, state: Any) -> Any:
        return {**super().observe(state), "desired_goal": state.goal.astype(jnp.float32)}


class Endless(BitFlip):
    """Without a time limit."""

    def __init__(self) -> None:
        super().__init__(4)
        self.max_episode_steps = None


def of_agents(**buffer: Any) -> Any:
    config = her(make_multi_agent(BitFlip()), buffer).environment(env_config={"num_agents": 2})
    return config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent, episode: "p")


STAGE = {"task": {"cost": 1.0}, "until": {"training_iteration": 1}}
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no goals": (
        lambda: her("CartPole-v1"),
        "observations that are a Dict with .* CartPole-v1 has no observation and no achieved_goal",
    ),
    "no method": (
        lambda: her(NoMethod),
        "which .*NoMethod does not define: add the method, or set",
    ),
    "reward alone": (lambda: her(RewardAlone), r"must return \(reward, terminated\), got a Shape"),
    "not in JAX": (lambda: her(NumpyReward), "compute_reward cannot be traced by jax.jit"),
    "on the host": (
        lambda: her(HostFlip, {"horizon": 4}),
        r"HostFlip is not written in JAX: set replay_buffer_config\['compute_reward'\]",
    ),
    "other goals": (lambda: her(OtherGoals), "puts achieved goals in place of desired ones, but"),
    "no time limit": (lambda: her(Endless), r"set replay_buffer_config\['horizon'\] to a number"),
    "several steps": (lambda: her(n_step=3), "reward of single steps, got n_step=3: set n_step=1"),
    "Rainbow's steps": (
        lambda: (
            RainbowConfig()
            .environment("BitFlip-v0")
            .training(replay_buffer_config={"type": "hindsight"})
        ),
        "got n_step=3: set n_step=1",
    ),
    "memory": (
        lambda: her().rl_module(model_config={"use_lstm": True}),
        "draws single transitions, and .* learns from sequences",
    ),
    "stacked frames": (
        lambda: her().env_runners(env_to_module_connector=stack),
        "replaces goals in observations of the environment, and those after FrameStacking",
    ),
    "changed rewards": (
        lambda: her().environment(clip_rewards=True),
        "recomputes rewards as the environment gives them, and ClipRewards would change",
    ),
    "tasks on the host": (
        lambda: (
            her()
            .environment(curriculum=[STAGE, {"task": {"cost": 2.0}}])
            .env_runners(placement="host")
        ),
        "which curriculum=.* changes in the runners alone: set placement='in_graph'",
    ),
    "several agents": (of_agents, "add the method, or set replay_buffer_config"),
    "agents without a limit": (
        lambda: of_agents(compute_reward=count_wrong),
        r"set replay_buffer_config\['horizon'\]",
    ),
    "fraction": (
        lambda: her(buffer={"goal_fraction": 1.5}),
        r"\['goal_fraction'\] must be between",
    ),
    "horizon": (
        lambda: her(buffer={"horizon": 0}),
        r"\['horizon'\] must be a whole number of rows above 0, got 0",
    ),
    "strategy": (
        lambda: her(buffer={"strategy": "futur"}),
        r"\['strategy'\] must be 'future' or 'final', got 'futur'\. Did you mean 'future'",
    ),
    "no function": (
        lambda: her(buffer={"compute_reward": 3}),
        r"\['compute_reward'\] must be a function .* or its import path 'module:name', got 3",
    ),
    "no effect": (
        lambda: her(buffer={"type": "uniform", "goal_fraction": 0.5}),
        r"\['goal_fraction'\]=0.5 has no effect on uniform replay; .* set 'type' to 'hindsight'",
    ),
    "unknown key": (lambda: her(buffer={"horzon": 5}), "Did you mean 'horizon'"),
}


def stack(env: Any) -> Any:
    return FrameStacking(2)


@pytest.mark.parametrize("name", WRONG)
def test_what_hindsight_cannot_do_is_a_sentence(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises((ConfigError, EnvError), match=message):
        make().build()
