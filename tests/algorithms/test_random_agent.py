"""RandomAgent: uniformly random and legal on every placement, and nothing is learned."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import HeuristicRLModule, RandomAgentConfig, RandomRLModule, RLModuleSpec, ScriptedModule
from jaxrl.core.types import Columns, Progress
from jaxrl.errors import ConfigError, ModuleError, SpaceError
from tests.helpers import assert_equal, small


def agent(env: str, **settings: Any) -> RandomAgentConfig:
    config = RandomAgentConfig().environment(env).env_runners(num_envs_per_env_runner=8)
    config.training(train_batch_size=800).debugging(loggers=[]).learners(num_devices=1)
    return config.update_from_dict(settings)


def test_legal_actions_are_equally_likely() -> None:
    with agent("CartPole-v1").build() as algorithm:
        algorithm.train()
        obs = np.zeros((2000, 4), np.float32)
        actions = algorithm.compute_actions(obs, explore=False)
    assert abs(np.mean(actions) - 0.5) < 0.05


@pytest.mark.representatives("in_graph")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_no_illegal_action_is_taken(placement: str) -> None:
    with agent("jaxrl:probe-mask-v0", placement=placement).build() as algorithm:
        result = algorithm.train()
    assert result["env_runners"]["episode_return_max"] == 1.0  # an illegal action pays 100


def test_a_box_is_filled_evenly() -> None:
    with agent("Pendulum-v1").build() as algorithm:
        actions = algorithm.compute_actions(np.zeros((4000, 3), np.float32), explore=True)
    assert np.all(np.abs(actions) <= 2.0)
    np.testing.assert_allclose(np.quantile(actions, [0.25, 0.5, 0.75]), [-1, 0, 1], atol=0.15)


def test_all_parts_of_an_action_are_random() -> None:
    with agent("three-parts-v0").build() as algorithm:
        algorithm.train()


def test_actions_are_as_random_without_exploring() -> None:
    module = RandomRLModule(
        observation_space=spaces.Box(-1.0, 1.0, (2,)), action_space=spaces.Box(-2.0, 3.0, (2,))
    )
    draws = module.draw(jax.random.split(jax.random.key(0), 5))
    obs = np.zeros((5, 2), np.float32)
    plain = module.forward_inference({}, obs, draws=draws)
    zero = Progress.zeros()
    exploring = module.forward_exploration({}, obs, None, {}, zero, np.arange(5), draws)
    assert_equal(plain, exploring)
    np.testing.assert_allclose(plain[Columns.ACTION_LOGP], -2 * np.log(5.0), rtol=1e-6)


def test_nothing_is_learned() -> None:
    with agent("CartPole-v1", evaluation_interval=1, evaluation_duration=100).build() as algorithm:
        before = jax.tree.map(np.asarray, algorithm.state.learner)
        result = algorithm.train()
        assert_equal(algorithm.state.learner, before)
    for key in ("env_runners", "evaluation"):
        part = result[key] if key == "env_runners" else result[key]["env_runners"]
        assert 15 < part["episode_return_mean"] < 30  # 22 in expectation


@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"num_epochs": 2}, {"optimizer": "sgd"}])
def test_settings_of_learning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"does not learn, so {next(iter(settings))}="):
        agent("CartPole-v1", **settings).validate()


def test_a_box_without_bounds_is_refused() -> None:
    with pytest.raises(SpaceError, match="infinite bound"):
        RandomRLModule(
            observation_space=spaces.Box(-1.0, 1.0, (2,)),
            action_space=spaces.Box(-np.inf, np.inf, (2,)),
        )


# --- scripts ---


class FollowThePole(ScriptedModule):
    """Push to where the pole falls."""

    def choose_actions(self, obs: Any) -> Any:
        return (obs[:, 2] + obs[:, 3] > 0).astype(jnp.int32)


class WrongShape(ScriptedModule):
    """One action for all."""

    def choose_actions(self, obs: Any) -> Any:
        return jnp.zeros((), jnp.int32)


def scripted(module_class: type[ScriptedModule], **settings: Any) -> RandomAgentConfig:
    config = agent("CartPole-v1", train_batch_size=4000, **settings)
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class))


@pytest.mark.representatives("host")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_script_acts_as_written(placement: str) -> None:
    with scripted(FollowThePole, placement=placement).build() as algorithm:
        result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] > 100  # random actions reach 22
        obs = np.asarray([[0, 0, 0.1, 0.0], [0, 0, -0.1, 0.05]], np.float32)
        for explore in (True, False):
            assert algorithm.compute_actions(obs, explore=explore).tolist() == [1, 0]
            assert algorithm.get_policy(explore=explore).act(obs[0]) == 1


def test_a_wrong_script_is_a_sentence() -> None:
    with pytest.raises(ModuleError, match=r"ScriptedModule must override choose_actions"):
        scripted(ScriptedModule).build()
    with pytest.raises(ModuleError, match=r"must return int32\[2\] for two .*got int32\[\]"):
        scripted(WrongShape).build()
    config = small().rl_module(rl_module_spec=RLModuleSpec(module_class=FollowThePole))
    with pytest.raises(ModuleError, match="FollowThePole has no parameters that PPO could train"):
        config.build()


# --- scripts that remember and draw ---


class Recall(HeuristicRLModule):
    """Answer of probe-recall: the first observation's sign, from a memory of the largest one."""

    def initial_carry(self, batch_size: int) -> Any:
        return jnp.zeros((batch_size,), jnp.float32)

    def act(self, obs: Any, carry: Any, key: Any) -> Any:
        seen = jnp.where(carry == 0.0, obs[0], carry)
        return (seen > 0).astype(jnp.int32), seen


class Coin(HeuristicRLModule):
    """A coin of its own, nothing else."""

    def act(self, obs: Any, carry: Any, key: Any) -> Any:
        return jax.random.bernoulli(key, 0.75).astype(jnp.int32), carry


class Forgetful(Recall):
    """A carry of another type than the initial one."""

    def act(self, obs: Any, carry: Any, key: Any) -> Any:
        return super().act(obs, carry, key)[0], jnp.int32(0)


def with_module(env: str, module_class: type[Any], **settings: Any) -> RandomAgentConfig:
    config = agent(env, **settings)
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class))


@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_heuristic_remembers_within_an_episode_alone(placement: str) -> None:
    with with_module("jaxrl:probe-recall-v0", Recall, placement=placement).build() as algorithm:
        result = algorithm.train()
    assert result["env_runners"]["num_episodes"] > 50
    assert result["env_runners"]["episode_return_min"] == 1.0


def test_a_heuristic_draws_for_every_row() -> None:
    with with_module("CartPole-v1", Coin).build() as algorithm:
        for explore in (True, False):
            actions = algorithm.compute_actions(np.zeros((2000, 4), np.float32), explore=explore)
            assert abs(np.mean(actions) - 0.75) < 0.05


def test_a_wrong_heuristic_is_a_sentence() -> None:
    with pytest.raises(ModuleError, match=r"HeuristicRLModule must override act\(obs, carry, key"):
        with_module("CartPole-v1", HeuristicRLModule).build()
    with pytest.raises(ModuleError, match=r"as carries, got int32\[2\]"):
        with_module("CartPole-v1", Forgetful).build()
    for module_class in (Coin, RandomRLModule):
        config = small().rl_module(rl_module_spec=RLModuleSpec(module_class=module_class))
        name = module_class.__name__
        with pytest.raises(ModuleError, match=f"{name} has no parameters that PPO could train"):
            config.build()
