"""Copies of gymnasium environments as one Python environment of several agents."""

from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest

from jaxrl.envs import make_multi_agent, make_multi_host
from jaxrl.envs.multi.copies import Copies, HostCopies
from jaxrl.errors import EnvError, UnknownNameError


def make(num_agents: int, **config: Any) -> Any:
    cls: Any = make_multi_agent("gymnasium:CartPole-v1")
    return cls({"num_agents": num_agents, **config})


def test_each_copy_is_the_environment_itself() -> None:
    env, single = make(2), gymnasium.make("CartPole-v1")
    obs, infos = env.reset(seed=7)
    first, _ = single.reset(seed=7)
    assert list(obs) == [0, 1] == env.possible_agents
    assert infos == {0: {}, 1: {}}
    np.testing.assert_array_equal(obs[0], first)
    assert not np.array_equal(obs[0], obs[1])  # RLlib's copies all begin as the first
    for _ in range(5):
        step, expected = env.step({0: 1, 1: 0}), single.step(1)
        np.testing.assert_array_equal(step[0][0], expected[0])
        assert [part[0] for part in step[1:]] == list(expected[1:])


def test_agents_end_with_their_copies_and_the_episode_with_the_last() -> None:
    made = make_multi_host(make_multi_agent("gymnasium:CartPole-v1"), {"num_agents": 3})
    env = made.make_checked()
    env.reset(seed=0)
    ended: list[str] = []
    while True:
        step = env.step({agent: int(agent) % 2 for agent in env.agents_to_act})
        ended += [name for name in step.present if step.terminated[name]]
        assert step.terminated["__all__"] == (len(ended) == 3)
        if step.is_over:
            break
        assert step.present == tuple(n for n in ("0", "1", "2") if n not in ended or n in step.obs)
    assert sorted(ended) == ["0", "1", "2"]


def test_the_episode_is_truncated_if_no_copy_terminates() -> None:
    cls: Any = make_multi_agent(lambda _: gymnasium.make("CartPole-v1", max_episode_steps=2))
    env = cls({"num_agents": 2})
    env.reset(seed=0)
    env.step({0: 0, 1: 1})
    *_, terminateds, truncateds, _ = env.step({0: 1, 1: 0})
    assert (terminateds["__all__"], truncateds["__all__"]) == (False, True)


def test_a_limit_after_a_copy_has_terminated_is_a_limit() -> None:
    cls: Any = make_multi_agent(lambda _: gymnasium.make("CartPole-v1", max_episode_steps=15))
    env = cls({"num_agents": 2})
    env.reset(seed=0)
    for t in range(15):
        ends = env.step({agent: 1 if agent == 0 else t % 2 for agent in env.agents})[2:4]
        assert not any(flags["__all__"] for flags in ends) or t == 14
    assert [flags["__all__"] for flags in ends] == [False, True]
    assert 0 not in ends[0]  # it had fallen before


def test_the_rest_of_the_config_is_the_environments() -> None:
    cls: Any = make_multi_agent("gymnasium:CartPole-v1")
    with pytest.raises(UnknownNameError, match="takes no argument 'lenght'"):
        cls({"num_agents": 2, "lenght": 1})
    env = cls({"num_agents": 2, "render_mode": "rgb_array"})
    env.reset(seed=0)
    assert env.render().shape == (400, 1200, 3)
    env.close()
    with pytest.raises(EnvError, match="num_agents"):
        cls({"num_agents": 0})


def test_classes_are_of_the_kind_of_what_they_copy() -> None:
    host: Any = make_multi_agent("gymnasium:CartPole-v1")
    assert issubclass(host, HostCopies)
    assert issubclass(make_multi_agent("CartPole-v1"), Copies)
    other = cloudpickle.loads(cloudpickle.dumps(host))
    assert other({"num_agents": 2}).possible_agents == [0, 1]
