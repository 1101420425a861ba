"""One-hot ids of agents that share a module, in training, acting, checkpoints and exports."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.connectors.agent_ids import AgentIds
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.export.numpy_program import NumpyPolicy
from jaxrl.policy.policy import Policy
from tests.multi_agent.agent_envs import Targets

BOX, MASK = spaces.Box(-2.0, 3.0, (2,), np.float32), spaces.MultiBinary(3)
IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)
AGENTS = ("a", "b", "c")
WIDE = np.array([-2, -2, 0, 0, 0], np.float32), np.array([3, 3, 1, 1, 1], np.float32)


@pytest.mark.parametrize(
    ("observed", "joined"),
    [
        (BOX, None),
        (spaces.Dict(action_mask=MASK, obs=BOX), "obs"),
        (spaces.Dict(action_mask=MASK, x=BOX, y=BOX), "agent_id"),
        (spaces.Dict(x=BOX), "agent_id"),
        (spaces.Dict(action_mask=MASK, image=IMAGE), "agent_id"),
        (spaces.Discrete(4), "agent_id"),
        (IMAGE, "agent_id"),
    ],
)
def test_ids_extend_vectors_and_are_a_part_of_the_rest(observed: Any, joined: str | None) -> None:
    ids = AgentIds(agents=AGENTS, observed=observed, mask_key="action_mask")
    values = [observed.sample() for _ in range(6)]  # two environments of three agents
    rows: PyTree = ids.join_rows(stack(observed, values), np.arange(6) % 3)
    for i, value in enumerate(values):
        one: Any = ids.join_one(AGENTS[i % 3], value)
        assert ids.space.contains(one), (ids.space, one)
        part = one if joined is None else one[joined]
        row = rows[i] if joined is None else rows[joined][i]
        np.testing.assert_array_equal(row, part)
        np.testing.assert_array_equal(part[-3:], np.eye(3)[i % 3])
        if isinstance(observed, spaces.Dict):
            assert set(observed.spaces) <= set(one)
            np.testing.assert_array_equal(one.get("action_mask", 0), value.get("action_mask", 0))
        elif joined is None:
            np.testing.assert_array_equal(part[:-3], value)
        else:
            np.testing.assert_array_equal(one["observations"], value)
    if joined is None:
        np.testing.assert_array_equal((ids.space.low, ids.space.high), WIDE)  # pyright: ignore


def stack(space: Any, values: list[Any]) -> PyTree:
    if isinstance(space, spaces.Dict):
        return {name: jnp.stack([value[name] for value in values]) for name in space.spaces}
    return jnp.stack([jnp.asarray(value) for value in values])


def test_a_part_of_this_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="adds the part 'agent_id' to observations, which have"):
        AgentIds(agents=AGENTS, observed=spaces.Dict(agent_id=BOX), mask_key=None)


class Alike(Targets):
    """Targets whose agents observe the same, so that one module cannot tell them apart."""

    name = "alike"

    def _observe(self, time: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, jnp.stack([time / 8.0, jnp.float32(0)]))


OBS = {agent: np.array([0.5, 0.0], np.float32) for agent in ("a", "b")}


def make_config(**settings: Any) -> PPOConfig:
    config = PPOConfig().environment(Alike).env_runners(num_envs_per_env_runner=16)
    config.training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-2)
    config.rl_module(model_config={"fcnet_hiddens": [16]}).debugging(loggers=[], seed=3)
    return config.multi_agent(**settings)


def test_agents_that_observe_the_same_learn_to_differ(tmp_path: Path) -> None:
    config = make_config(observe_agent_id=True)
    config.evaluation(evaluation_duration=16, evaluation_config={"explore": False})
    with config.build() as algorithm:
        result = algorithm.fit(stop={"training_iteration": 10})
        assert min(result["env_runners"]["agent_episode_returns_mean"].values()) > 6.0
        assert algorithm.evaluate()["env_runners"]["agent_episode_returns_mean"] == {
            "a": 8.0,
            "b": 8.0,
        }
        check_actions(algorithm)
        with pytest.raises(JaxrlError, match=r"obs\['b'\].*shape \(3,\)"):
            algorithm.compute_actions({"b": np.zeros(3)})
        path = algorithm.save(str(tmp_path / "checkpoint"))
        policy = algorithm.get_policy("default_policy", explore=False)
        check_policy(policy)
        folder = Path(algorithm.export(tmp_path / "exported", formats=["numpy"]))
    with Algorithm.from_checkpoint(path) as again:
        check_actions(again)
    exported = NumpyPolicy(folder)
    for i in range(2):
        joined = np.concatenate([OBS["a"], np.eye(2, dtype=np.float32)[i]])
        assert exported.act(joined) == i


def check_actions(algorithm: Algorithm) -> None:
    assert algorithm.compute_actions(OBS, explore=False) == {"a": 0, "b": 1}
    assert algorithm.compute_actions({"b": OBS["b"]}, explore=False) == {"b": 1}
    for i in range(2):  # a module's own observations have the id
        joined = np.concatenate([OBS["a"], np.eye(2, dtype=np.float32)[i]])
        assert algorithm.compute_single_action(joined, explore=False) == i


def check_policy(policy: Policy) -> None:
    joined = np.concatenate([OBS["a"], np.eye(2, dtype=np.float32)[1]])
    assert policy.act(joined) == 1


@pytest.mark.slow
def test_replayed_rows_have_their_ids() -> None:
    config = DQNConfig().environment(Alike).multi_agent(observe_agent_id=True)
    config.env_runners(num_envs_per_env_runner=16).rl_module(model_config={"fcnet_hiddens": [16]})
    config.training(lr=3e-3, gamma=0.5, num_steps_sampled_before_learning_starts=256)
    config.training(epsilon=[[0, 1.0], [4000, 0.05]]).debugging(loggers=[], seed=3)
    with config.build() as algorithm:
        algorithm.fit(stop={"num_env_steps_sampled_lifetime": 12_000})
        check_actions(algorithm)


@pytest.mark.slow
def test_without_ids_they_cannot() -> None:
    with make_config().build() as algorithm:
        result = algorithm.fit(stop={"training_iteration": 10})
    assert sum(result["env_runners"]["agent_episode_returns_mean"].values()) < 9.0


def test_ids_of_modules_that_are_not_shared_are_refused() -> None:
    config = make_config(observe_agent_id=True, mapping={"a": "p0", "b": "p1"})
    with pytest.raises(
        ConfigError, match="observe_agent_id=True has no effect: no module is shared"
    ):
        config.validate()
    single = PPOConfig().environment("CartPole-v1").multi_agent(observe_agent_id=True)
    with pytest.raises(ConfigError, match=r"observe_agent_id=True has no effect: .* single agent"):
        single.validate()
