"""MuZero: windows, losses and the learned model against hand-worked ones; what broken versions learn."""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy.special import log_softmax, softmax

from jaxrl import JaxEnv, MuZeroConfig, RLModule, TimeStep
from jaxrl.algorithms import muzero
from jaxrl.algorithms.muzero import MuZeroBatch, Windows, make_windows
from jaxrl.assembly.assemble import assemble
from jaxrl.config import get_algorithm_config
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Rollout
from jaxrl.errors import JaxrlError
from jaxrl.modules.latent_planner import BINS, decode
from tests.helpers import assert_close

REWARDS = np.float32([[0.5, 0.0], [0.0, 0.2], [2.0, -1.0]])
"""Rewards of both actions at the root, after action 0, and after action 1."""


@pytree
class Place:
    """Number of the node, 0 to 2."""

    node: Any


class TwoMoves(JaxEnv[Place, None]):
    """Two moves, of which the first that pays at once loses the second's reward."""

    name = "TwoMoves"

    def observation_space(self, params: None) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (3,), np.float32)

    def action_space(self, params: None) -> spaces.Discrete:
        return spaces.Discrete(2)

    @property
    def default_params(self) -> None:
        return None

    def reset(self, key: Any, params: None) -> tuple[Place, Any]:
        node = jnp.zeros((), jnp.int32)
        return Place(node=node), jax.nn.one_hot(node, 3)

    def step(self, key: Any, state: Place, action: Any, params: None) -> tuple[Place, TimeStep]:
        after = Place(node=jnp.where(state.node == 0, 1 + action, 0).astype(jnp.int32))
        return after, TimeStep(
            obs=jax.nn.one_hot(after.node, 3),
            reward=jnp.asarray(REWARDS)[state.node, action],
            terminated=state.node > 0,
            truncated=jnp.zeros((), bool),
            info={},
        )


def config_of(env: Any = TwoMoves, **training: Any) -> MuZeroConfig:
    """16 environments x 8 steps, a small network."""
    config = MuZeroConfig().environment(env)
    config.env_runners(num_envs_per_env_runner=16, rollout_fragment_length=8)
    settings: dict[str, Any] = {
        "train_batch_size": 128,
        "minibatch_size": 32,
        "num_epochs": 4,
        "num_simulations": 6,
        "unroll_steps": 3,
        "lr": 3e-3,
        "epsilon": 0.5,
        "vf_loss_coeff": 1.0,
        "gamma": 0.9,
    }
    config.training(**{**settings, **training})
    config.rl_module(model_config={"fcnet_hiddens": [32]})
    return config.learners(num_devices=1).debugging(loggers=[], seed=1)


# --- windows ---


def recorded(num_steps: int, num_envs: int) -> tuple[Rollout, Any, Any]:
    """Return rows with ends of both kinds and rows that are none, with policies and values."""
    rng, shape = np.random.default_rng(0), (num_steps, num_envs)
    ends = rng.random(shape)
    rollout = Rollout(
        obs=jnp.zeros((*shape, 3)),
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(ends < 0.15),
        truncated=jnp.asarray((ends > 0.15) & (ends < 0.3)),
        final_obs=jnp.zeros((*shape, 3)),
        is_first=jnp.zeros(shape, bool),
        mask=jnp.asarray(rng.random(shape) > 0.1),
        extras={},
    )
    policy = jnp.asarray(rng.dirichlet(np.ones(2), shape), jnp.float32)
    return rollout, policy, jnp.asarray(rng.normal(size=shape), jnp.float32)


def test_windows_are_those_of_a_walk_along_each_row() -> None:
    num_steps, num_envs, number = 12, 9, 4
    rollout, policy, value = recorded(num_steps, num_envs)
    windows = jax.device_get(make_windows(rollout, policy, value, number))
    kinds = set()
    for t in range(num_steps):
        for b in range(num_envs):
            phase = "live" if rollout.mask[t, b] else "unknown"
            for k in range(number + 1):
                if phase == "live" and (t + k >= num_steps or not rollout.mask[t + k, b]):
                    phase = "unknown"
                kinds.add(phase)
                found = jax.tree.map(lambda x: x[t, b, k], windows)  # noqa: B023
                assert found.has_policy == (phase == "live")
                assert found.has_value == (phase in ("live", "over"))
                if phase == "over":
                    assert found.reward == found.value == 0.0
                if phase != "live":
                    continue
                assert found.action == rollout.action[t + k, b]
                assert found.reward == rollout.reward[t + k, b]
                assert found.value == value[t + k, b]
                np.testing.assert_array_equal(found.policy, policy[t + k, b])
                if rollout.terminated[t + k, b]:
                    phase = "over"
                elif rollout.truncated[t + k, b]:
                    phase = "unknown"
    assert kinds == {"live", "over", "unknown"}


# --- losses ---


def two_hot(x: float) -> Any:
    """The weights of the two bins next to symlog(x)."""
    place = np.sign(x) * np.log1p(np.abs(x))
    weights = np.zeros(len(BINS))
    above = int(np.searchsorted(BINS, place))
    share = (place - BINS[above - 1]) / (BINS[above] - BINS[above - 1])
    weights[above - 1], weights[above] = 1 - share, share
    return weights


def make_batch(module: Any, number: int, num_rows: int = 5) -> MuZeroBatch:
    rng, shape = np.random.default_rng(1), (num_rows, number + 1)
    windows = Windows(
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        policy=jnp.asarray(rng.dirichlet(np.ones(2), shape), jnp.float32),
        reward=jnp.asarray(3.0 * rng.normal(size=shape), jnp.float32),
        value=jnp.asarray(9.0 * rng.normal(size=shape), jnp.float32),
        has_policy=jnp.asarray(rng.random(shape) < 0.7),
        has_value=jnp.asarray(rng.random(shape) < 0.7),
    )
    return MuZeroBatch(
        obs=jnp.asarray(rng.normal(size=(num_rows, 3)), jnp.float32),
        windows=windows,
        weight=jnp.asarray(rng.uniform(0.5, 1.5, num_rows), jnp.float32),
    )


@pytest.fixture(name="made")
def fixture_made() -> tuple[Any, Any]:
    """A learner, and parameters of which none is zero."""
    learner: Any = assemble(config_of()).train_step.learner
    params = jax.device_get(learner.module.init(jax.random.key(0)))
    rng = np.random.default_rng(2)
    return learner, jax.tree.map(
        lambda x: jnp.asarray(x + 0.3 * rng.normal(size=x.shape), jnp.float32), params
    )


def test_losses_are_those_of_numpy(made: tuple[Any, Any]) -> None:
    learner, params = made
    module, number = learner.module.inner, learner.settings.unroll_steps
    batch = make_batch(module, number)
    values = dataclasses.replace(learner.settings, vf_loss_coeff=0.25, reward_loss_coeff=2.0)
    total, metrics = learner.compute_loss(params, batch, values, None)
    rows, windows = len(batch.weight), jax.device_get(batch.windows)
    expected = {"policy_loss": 0.0, "vf_loss": 0.0, "reward_loss": 0.0}
    for n in range(rows):
        state = module.represent(params, batch.obs[n : n + 1])
        assert 0.0 <= float(state.min()) < float(state.max()) <= 1.0
        for k in range(number + 1):
            scale = float(batch.weight[n]) / rows * (1.0 if k == 0 else 1 / number)
            logits, value = (np.asarray(x)[0] for x in module.predict(params, state))
            target = windows.policy[n, k]
            if windows.has_policy[n, k]:
                divergence = np.sum(target * (np.log(target) - log_softmax(logits)))
                expected["policy_loss"] += scale * divergence
            if windows.has_value[n, k]:
                loss = -np.sum(two_hot(windows.value[n, k]) * log_softmax(value))
                expected["vf_loss"] += scale * loss
            if k == number:
                break
            state, reward = module.step(params, state, batch.windows.action[n : n + 1, k])
            if windows.has_value[n, k]:
                loss = -np.sum(two_hot(windows.reward[n, k]) * log_softmax(np.asarray(reward)[0]))
                expected["reward_loss"] += float(batch.weight[n]) / rows / number * loss
    assert_close({name: metrics[name] for name in expected}, expected, rtol=1e-4, atol=1e-6)
    parts = expected["policy_loss"] + 0.25 * expected["vf_loss"] + 2.0 * expected["reward_loss"]
    np.testing.assert_allclose(total, parts, rtol=1e-4)


def test_a_number_is_the_mean_bin() -> None:
    logits = np.random.default_rng(3).normal(size=(4, len(BINS))).astype(np.float32)
    mean = np.sum(softmax(logits, axis=-1) * BINS, axis=-1)
    expected = np.sign(mean) * np.expm1(np.abs(mean))
    np.testing.assert_allclose(decode(jnp.asarray(logits)), expected, rtol=1e-3, atol=1e-5)
    for x in (-300.0, -0.4, 0.0, 1.0, 5000.0):
        certain = jnp.log(jnp.asarray(two_hot(x) + 1e-12, jnp.float32))
        np.testing.assert_allclose(decode(certain), x, rtol=1e-3, atol=1e-5)


def test_half_of_a_gradient_goes_on_from_step_to_step(made: tuple[Any, Any]) -> None:
    """The reward of imagined step k reaches the representation by 1 / 2^k of its gradient."""
    learner, params = made
    module, number = learner.module.inner, learner.settings.unroll_steps
    batch = make_batch(module, number)
    rows, never = jnp.arange(number + 1, dtype=jnp.int32), jnp.zeros((5, number + 1), bool)

    for step in range(number):
        only = jnp.broadcast_to((rows == step)[None], never.shape)
        windows = dataclasses.replace(batch.windows, has_policy=never, has_value=only)
        alone = dataclasses.replace(batch, windows=windows)
        values = dataclasses.replace(learner.settings, vf_loss_coeff=0.0)

        def whole(params: Any, step: int = step) -> Any:
            state = module.represent(params, batch.obs)
            for k in range(step + 1):
                state, reward = module.step(params, state, batch.windows.action[:, k])
            losses = muzero.categorical_loss(reward, batch.windows.reward[:, step])
            return jnp.mean(batch.weight * losses) / number

        found = jax.grad(lambda p: learner.compute_loss(p, alone, values, None)[0])(params)  # noqa: B023
        expected = jax.grad(whole)(params)
        for name in ("encoder", "latent"):
            halves = jax.tree.map(lambda x: x * 0.5**step, expected[name])  # noqa: B023
            assert_close(found[name], halves, rtol=1e-3, atol=1e-6)
            assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(found[name])) > 1e-5


# --- learning ---


def imagine_all(algorithm: Any) -> tuple[Any, Any]:
    """Return the model's rewards of both moves for each pair of them, and the values after them."""
    module: Any = algorithm.get_module()
    module, params = module.inner, algorithm.state.learner.sgd.params
    first, second = jnp.asarray([0, 0, 1, 1]), jnp.asarray([0, 1, 0, 1])
    state = module.represent(params, jnp.tile(jnp.eye(3)[:1], (4, 1)))
    state, reward = module.step(params, state, first)
    state, last = module.step(params, state, second)
    _, value = module.predict(params, state)
    return np.stack([decode(reward), decode(last)]), np.asarray(decode(value))


def train(num_iterations: int = 60) -> tuple[Any, Any, Any]:
    with config_of().build() as algorithm:
        for _ in range(num_iterations):
            algorithm.train()
        rewards, after = imagine_all(algorithm)
        moves = [
            int(algorithm.compute_single_action(obs, explore=False))
            for obs in np.eye(3, dtype=np.float32)[[0, 2]]
        ]
    return rewards, after, moves


@pytest.mark.allow_key_reuse
def test_the_model_is_learned_and_searched() -> None:
    rewards, after, moves = train()
    assert moves == [1, 0]
    expected = np.stack([REWARDS[0].repeat(2), REWARDS[1:].reshape(-1)])
    np.testing.assert_allclose(rewards, expected, atol=0.2)
    np.testing.assert_allclose(after, 0.0, atol=0.2)


def shift_rewards(windows: Windows) -> Windows:
    """Give each step the reward of the one before it."""
    return dataclasses.replace(windows, reward=jnp.roll(windows.reward, 1, axis=2))


def go_on_after_ends(windows: Windows) -> Windows:
    """Take the reward and the value of the next episode's first row for those after an end."""
    is_over = windows.has_value & ~windows.has_policy
    return dataclasses.replace(windows, value=jnp.where(is_over, 2.0, windows.value))


@pytest.mark.slow
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("break_it", [shift_rewards, go_on_after_ends])
def test_broken_windows_are_noticed(break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muzero, "make_windows", lambda *args: break_it(make_windows(*args)))
    with pytest.raises(AssertionError):
        test_the_model_is_learned_and_searched()


# --- runs ---


class HostTwoMoves(gymnasium.Env[Any, Any]):
    """The same in Python, with a time limit that is never reached."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(seed=kwargs.get("seed"))
        self.node = 0
        return np.eye(3, dtype=np.float32)[0], {}

    def step(self, action: Any) -> Any:
        reward, over = float(REWARDS[self.node, action]), self.node > 0
        self.node = 0 if over else 1 + int(action)
        return np.eye(3, dtype=np.float32)[self.node], reward, over, False, {}


@pytest.mark.allow_key_reuse
def test_an_environment_in_python_is_learned_too() -> None:
    with config_of(lambda context: HostTwoMoves()).build() as algorithm:
        for _ in range(60):
            result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] > 0.8
        assert int(algorithm.compute_single_action(np.float32([1, 0, 0]), explore=False)) == 1


@pytest.mark.allow_key_reuse
def test_an_evaluation_searches_further() -> None:
    with config_of().build() as algorithm:
        for number in (None, 0, 24):
            planner = None if number is None else {"num_simulations": number}
            result = algorithm.evaluate(planner=planner)["env_runners"]
            assert np.isfinite(result["episode_return_mean"])


@pytest.mark.parametrize("name", ["MuZero", "AlphaZero"])
def test_a_planner_searches_as_in_training_unless_it_says_otherwise(name: str) -> None:
    own = {"type": "gumbel", "value_scale": 0.02, "rescale_values": False}
    config = get_algorithm_config(name).environment("CartPole-v1").training(search=own)
    with config.debugging(loggers=[]).build() as algorithm:

        def search(**planner: Any) -> Any:
            policy = algorithm.get_policy(planner={"num_simulations": 24, **planner})
            module: Any = policy.inference.policy_step.module
            assert module.search.num_simulations == 24
            return module.search.method

        assert search() == search(search=own)
        assert search() != search(search="gumbel")


class Plain(RLModule):
    """Policy and values without a model."""

    def init(self, key: Any) -> Any:
        return {"w": jnp.zeros((4, 2))}

    def _forward(self, params: Any, obs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: obs @ params["w"], Columns.VF_PREDS: obs[..., 0]}


BAD: dict[str, tuple[Any, str]] = {
    "unroll": (
        lambda: config_of(unroll_steps=8),
        "unroll_steps=8 needs rollouts that are longer, but rollout_fragment_length is 8: set it to 9",
    ),
    "agents": (
        lambda: config_of("TicTacToe-v0"),
        "MuZero learns a model for a single agent: use AlphaZero",
    ),
    "state": (
        lambda: config_of().environment(observe_state=True),
        "observe_state=True is for a search in the environment, .* leave it out, or use AlphaZero",
    ),
    "continuous": (
        lambda: config_of("Pendulum-v1"),
        "one of several actions.*use SAC for a Box, and PPO for any",
    ),
    "memory": (
        lambda: config_of().rl_module(model_config={"use_lstm": True}),
        "add a memory, which a search does not carry",
    ),
    "no layer": (
        lambda: config_of().rl_module(model_config={"fcnet_hiddens": []}),
        r"fcnet_hiddens=\[\] leaves no layer for a latent state",
    ),
    "no effect": (
        lambda: config_of().rl_module(model_config={"critic_fcnet_hiddens": [8]}),
        "has no effect on MuZero",
    ),
    "first values": (
        lambda: config_of().rl_module(model_config={"vf_head_kernel_initializer": "zeros"}),
        "vf_head_kernel_initializer='zeros' has no effect on MuZero",
    ),
    "hidden parts": (
        lambda: config_of().rl_module(model_config={"critic_only_observations": ["x"]}),
        "critic_only_observations=.* has no effect on MuZero",
    ),
    "another module": (
        lambda: config_of("CartPole-v1").rl_module(rl_module_spec=Plain),
        "model of a LatentModule, got a Plain: subclass it, or use AlphaZero",
    ),
    "no simulations": (lambda: config_of(num_simulations=0), "num_simulations"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_answered(case: str) -> None:
    make_config, message = BAD[case]
    with pytest.raises(JaxrlError, match=message):
        make_config().build()
