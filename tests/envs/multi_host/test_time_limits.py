"""Time limits over environments in turns: last observations of those who wait, or a refusal."""

from typing import Any

import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.envs import make_multi_host
from jaxrl.envs.adapters.pettingzoo import PettingZooEnv
from jaxrl.envs.adapters.precheck import play_randomly, precheck_env, sample_actions
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv
from jaxrl.errors import EnvError
from tests.envs.multi_host.scripted import Turns, at


class Long(Turns):
    num_steps = 50


class Telling(Long):
    def get_final_observation(self, agent_id: Any) -> Any:
        return at(0.5)


def test_who_waits_has_the_last_observation_that_the_environment_tells() -> None:
    env = CheckedMultiAgentEnv(Telling(), max_episode_steps=3)
    env.reset(seed=0)
    for agent in ("0", "1"):
        env.step({agent: 1})
    step = env.step({"0": 1})
    assert step.truncated == {"0": True, "1": True, "__all__": True}
    np.testing.assert_array_equal(step.obs["0"], at(0.5))
    assert not np.array_equal(step.obs["1"], at(0.5))  # whose turn it is has its own
    assert not env.leaves_agents_waiting


def test_who_waits_is_paid_what_it_has_earned_at_the_limit() -> None:
    class Paying(Telling):
        def get_final_reward(self, agent_id: Any) -> float:
            return {"0": 2.0, "1": 4.0}[str(agent_id)]

    env = CheckedMultiAgentEnv(Paying(), max_episode_steps=3)
    plain = CheckedMultiAgentEnv(Telling(), max_episode_steps=3)
    for each in (env, plain):
        each.reset(seed=0)
        for agent in ("0", "1"):
            each.step({agent: 1})
    paid, unpaid = env.step({"0": 1}).reward, plain.step({"0": 1}).reward
    assert paid == {"0": unpaid["0"] + 2.0, "1": unpaid["1"]}  # whose turn it is was paid


def test_a_last_observation_that_is_no_value_of_its_space_is_an_error() -> None:
    class Wrong(Long):
        def get_final_observation(self, agent_id: Any) -> Any:
            return np.zeros(7, np.float32)

    env = CheckedMultiAgentEnv(Wrong(), "Mine", max_episode_steps=2)
    env.reset(seed=0)
    env.step({"0": 1})
    with pytest.raises(EnvError, match=r"Mine: step 2: the observation of agent '1'.*shape"):
        env.step({"1": 1})


@pytest.mark.parametrize("limit", [3, 40])
def test_a_limit_that_is_reached_is_refused_before_the_run_begins(limit: int) -> None:
    config = PPOConfig().environment(Long, max_episode_steps=limit).debugging(loggers=[])
    with pytest.raises(
        EnvError, match=rf"max_episode_steps={limit} truncates .*define get_final_observation"
    ):
        config.build()


def test_other_limits_are_not_refused() -> None:
    for env, limit in ((Turns, 6), (Telling, 3), (Telling, 40)):
        made = make_multi_host(env, max_episode_steps=limit)
        precheck_env(made, EnvContext({}))


def play_to_the_limit(name: str, limit: int, **config: Any) -> Any:
    """Return the last step of a first episode, and all agents."""
    made = make_multi_host(name, config, max_episode_steps=limit)
    env: Any = made.make_checked()
    obs = env.reset(seed=0).obs
    for _ in range(limit):
        step = env.step(sample_actions(env, obs, 1))
        obs = step.obs
    play_randomly(env, 3 * limit, seed=2)
    return step, made


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_tells_last_observations() -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("pettingzoo.classic")
    step, made = play_to_the_limit("pettingzoo:classic/connect_four_v3", 5)
    assert step.truncated == {"player_0": True, "player_1": True, "__all__": True}
    for agent, obs in step.obs.items():
        assert made.observation_spaces[agent].contains(obs)
        assert obs["action_mask"].any()
    mine, theirs = (step.obs[f"player_{i}"]["observation"] for i in range(2))
    np.testing.assert_array_equal(mine[..., 0], theirs[..., 1])
    assert mine.sum() == theirs.sum() == 5


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_pays_who_waits_at_the_limit() -> None:
    """All that the game itself has paid until then."""
    pytest.importorskip("pygame")
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    limit, own = 7, spread.env()
    env = CheckedMultiAgentEnv(PettingZooEnv(spread.env()), max_episode_steps=limit)
    obs = env.reset(seed=0).obs
    own.reset(seed=0)
    paid, earned = dict.fromkeys(own.agents, 0.0), dict.fromkeys(own.agents, 0.0)
    for _ in range(limit):
        step = env.step(dict.fromkeys(obs, 1))
        own.step(1)
        for agent in own.agents:
            paid[agent] += step.reward.get(agent, 0.0)
            earned[agent] += own.rewards[agent]
        obs = {agent: step.obs[agent] for agent, acts in step.acts.items() if acts}
    assert step.truncated["__all__"]
    assert any(earned.values())
    assert paid == pytest.approx(earned)


def test_openspiel_tells_last_observations() -> None:
    pytest.importorskip("pyspiel")
    step, made = play_to_the_limit("openspiel:connect_four", 5, observe="observation")
    assert step.truncated["__all__"]
    assert set(step.obs) == {"0", "1"}
    for agent, obs in step.obs.items():
        assert made.observation_spaces[agent].contains(obs)
        assert obs["action_mask"].any()
