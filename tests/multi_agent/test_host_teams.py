"""Teams of Python environments, against the compiled ones step for step, and runs of them."""

import copy
import pickle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm
from jaxrl.config import get_algorithm_config
from jaxrl.config.teams import make_team
from jaxrl.core.spaces import is_same_space
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.groups import group_agents
from jaxrl.envs.multi.host_env import MultiAgentEnv
from jaxrl.envs.multi.host_team import HostTeam
from jaxrl.envs.multi.matrix_games import TwoStepAnd
from jaxrl.errors import ConfigError
from tests.multi_agent.host_envs import Duel, Forgetful
from tests.multi_agent.teams import MixedMotives, Risky
from tests.multi_agent.test_teams import small


class Stepped(MultiAgentEnv):
    """An environment in JAX, stepped from Python; its keys are those of the step's number."""

    of: Any = None

    def __init__(self, config: Any = None) -> None:
        self.inner, self.agents = self.of(), []
        self.params = self.inner.default_params
        self.possible_agents = list(self.inner.possible_agents)
        super().__init__()
        get = self.inner.observation_space, self.inner.action_space
        self.observation_spaces, self.action_spaces = (
            {agent: f(agent, self.params) for agent in self.possible_agents} for f in get
        )
        self.state_space = self.inner.state_space(self.params)
        self._reset = jax.jit(lambda key: self.inner.reset(key, self.params))
        self._step = jax.jit(lambda *args: self.inner.step(*args, self.params))
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.inside, start = self._reset(jax.random.key(0))
        self.time = 0
        return self._show(start.obs, start.acts), {}

    def _show(self, obs: Any, flags: Any) -> Any:
        return {a: jax.tree.map(np.asarray, obs[a]) for a in flags if a[0] != "_" and flags[a]}

    def step(self, action_dict: Any) -> Any:
        blank = {a: space.sample() for a, space in self.action_spaces.items()}
        key = jax.random.key(self.time)
        self.inside, step = self._step(key, self.inside, {**blank, **action_dict})
        self.time += 1
        ends = {a: step.terminated[a] | step.truncated[a] for a in step.acts}
        over = step.terminated["__all__"] | step.truncated["__all__"]
        flags = {a: step.acts[a] | ends[a] | over for a in step.acts}
        terminated, truncated = (
            {a: bool(flag) for a, flag in own.items()} for own in (step.terminated, step.truncated)
        )
        rewards = {a: float(x) for a, x in step.reward.items()}
        return self._show(step.obs, flags), rewards, terminated, truncated, {}

    def state(self) -> Any:
        return jax.tree.map(np.asarray, self.inner.global_state(self.inside, self.params))

    def get_state(self) -> Any:
        return {"time": np.asarray(self.time), "inside": jax.tree.map(np.asarray, self.inside)}

    def set_state(self, state: Any) -> None:
        self.time, self.inside = int(state["time"]), state["inside"]


class SteppedRisky(Stepped):
    of = Risky


class SteppedTwoSteps(Stepped):
    of = TwoStepAnd


class SteppedMotives(Stepped):
    of = MixedMotives


def make_host_team(algo: str, env: Any, **training: Any) -> tuple[MadeHostEnv, HostTeam]:
    """Return the team of a config, and one environment of it."""
    config: Any = get_algorithm_config(algo).environment(env).training(**training)
    made = make_team(config)
    assert isinstance(made, MadeHostEnv)
    env = pickle.loads(pickle.dumps(made.create))(EnvContext({}))
    assert isinstance(env, HostTeam)
    return made, env


@pytest.mark.parametrize(
    ("algo", "env", "extras"),
    [
        ("QMIX", SteppedRisky, {}),
        ("QMIX", SteppedTwoSteps, {"global_state": True}),
        ("VDN", SteppedTwoSteps, {}),
        ("MADDPG", SteppedMotives, {"member_rewards": True}),
    ],
)
def test_steps_are_those_of_the_compiled_team(algo: str, env: Any, extras: Any) -> None:
    """Spaces, observations with masks of members, rewards and ends."""
    members = env.of.possible_agents
    expected: Any = group_agents(env.of(), {"team": members}, member_mask=True, **extras)
    assert isinstance(expected, JaxEnv)
    params = expected.default_params
    made, host = make_host_team(algo, env)
    assert is_same_space(made.observation_space, expected.observation_space(params))
    assert is_same_space(made.action_space, expected.action_space(params))
    rng, count, step = np.random.default_rng(0), 0, jax.jit(expected.step)
    for _ in range(3):
        (obs, _), (state, wanted) = host.reset(seed=1), expected.reset(jax.random.key(0), params)
        jax.tree.map(np.testing.assert_array_equal, obs, wanted)
        over, time = False, 0
        while not over:
            action = made.action_space.sample()
            if "action_mask" in obs:
                legal = obs["action_mask"].reshape(len(members), -1)
                action = np.asarray([rng.choice(np.flatnonzero(own)) for own in legal])
            obs, reward, terminated, truncated, _ = host.step(action)
            state, out = step(jax.random.key(time), state, action, params)
            assert made.observation_space.contains(obs)
            assert jax.tree.structure(obs) == jax.tree.structure(out.obs)
            wanted = dict(out.obs)
            if terminated:  # of which nothing is bootstrapped; some say who would act
                wanted["member_mask"] = np.zeros_like(obs["member_mask"])
            jax.tree.map(np.testing.assert_array_equal, obs, wanted)
            np.testing.assert_allclose(reward, out.reward, rtol=1e-6)
            assert (terminated, truncated) == (bool(out.terminated), bool(out.truncated))
            over, time, count = terminated or truncated, time + 1, count + 1
    assert count >= 3


def test_a_state_that_is_restored_goes_on_exactly() -> None:
    _, host = make_host_team("QMIX", SteppedRisky)
    _, other = make_host_team("QMIX", SteppedRisky)
    host.reset(seed=0)
    for time in range(3):
        host.step(np.full(3, (time + 1) % 3))
    saved: Any = copy.deepcopy(host.get_state())  # pyright: ignore
    other.reset(seed=5)
    other.set_state(saved)  # pyright: ignore
    action = np.full(3, 1)
    np.testing.assert_equal(other.step(action), host.step(action))
    _, forgetful = make_host_team("VDN", Forgetful)
    assert not hasattr(forgetful, "get_state")


def test_members_in_turns_have_their_latest_observations() -> None:
    """A member that waits does not act, and its action is ignored."""
    _, host = make_host_team("VDN", Duel)
    obs, _ = host.reset(seed=0)
    assert obs["member_mask"].tolist() == [1, 0]
    np.testing.assert_array_equal(obs["obs"][1], 0.0)
    first = obs["obs"][0]
    obs, reward, *_ = host.step(np.asarray([int(first[0]), 0]))
    assert reward == 1.0
    assert obs["member_mask"].tolist() == [0, 1]
    np.testing.assert_array_equal(obs["obs"][0], first)
    assert obs["obs"][1][1] == 1.0


def test_no_illegal_action_is_taken_and_the_dead_earn_nothing() -> None:
    with small("QMIX", SteppedRisky, epsilon=0.5).build() as algorithm:
        result = algorithm.train()["env_runners"]
        assert result["episode_return_mean"] == result["episode_return_min"] == 2 * 6 + 3 * 3
        assert result["episode_len_mean"] == Risky.steps
        seen = {"action_mask": np.array([0, 1, 1], np.int8), "seen": np.zeros(2, np.float32)}
        actions = algorithm.compute_actions({"a": seen, "c": seen})
        assert set(actions) == {"a", "c"}
        assert all(int(action) in (1, 2) for action in actions.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env"), [("VDN", SteppedTwoSteps), ("MADDPG", SteppedMotives), ("QMIX", Duel)]
)
def test_runs_resume_exactly(algo: str, env: Any, tmp_path: Path) -> None:
    config = small(algo, env)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path / "saved")
        algorithm.train()
        expected = algorithm.get_weights()
    with Algorithm.from_checkpoint(path) as algorithm:
        algorithm.train()
        jax.tree.map(np.testing.assert_array_equal, algorithm.get_weights(), expected)


def test_what_is_not_finite_masks_the_step() -> None:
    env_config = {"length": 7, "bad_reward_at": 3}
    config = small("VDN", Duel).environment(env_config=env_config, disable_env_checking=True)
    with config.build() as algorithm:
        result = algorithm.train()
    faults = result["fault_tolerance"]
    assert faults["num_nonfinite_env_steps"] == 1
    assert faults["last_nonfinite_env_step"]["what"] == "reward"


class Unnamed(Duel):
    """Agents that are not known before."""

    possible_agents = ()
    agents = ()
    observation_spaces = None
    action_spaces = None

    def get_observation_space(self, agent_id: Any) -> Any:
        return Duel.observation_spaces[agent_id]

    def get_action_space(self, agent_id: Any) -> Any:
        return spaces.Discrete(2)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (lambda: small("QMIX", Unnamed), "possible_agents of .* is not set: set it to the ids"),
        (
            lambda: small("QMIX", Duel).env_runners(num_env_runners=2),
            "num_env_runners=2 is not supported .* a team in Python is stepped .* set 0",
        ),
        (
            lambda: small("QMIX", Duel).env_runners(placement="in_graph"),
            "placement='in_graph' is not supported .* written in Python",
        ),
    ],
)
def test_what_a_team_in_python_does_not_do_is_refused(config: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config().build()


def test_who_is_in_the_team_is_explained() -> None:
    (note,) = [line for line in small("QMIX", SteppedTwoSteps).notes if "one team" in line]
    assert "(agent_0, agent_1)" in note
    assert "its global state" in note
