"""Copies of a single-agent environment: each does what it does alone, and ends on its own."""

from typing import Any

import cloudpickle
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import (
    MultiTimeLimit,
    TimeLimit,
    make,
    make_multi,
    make_multi_agent,
    make_multi_host,
)
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.envs.multi.copies import Copies, HostCopies
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import EnvError, UnknownNameError
from tests.envs.test_vectors import run
from tests.helpers import assert_equal


@pytest.mark.allow_key_reuse
def test_one_copy_is_the_environment_itself_to_the_bit() -> None:
    made, single = make_multi("MultiAgentCartPole-v0", {"num_agents": 1}), make("CartPole-v1")
    action, index = jnp.zeros((6,), jnp.int32), np.arange(6)
    vector = MultiVectorEnv(made.env)
    states, steps, _ = run(vector, made.params, {"0": action}, index=index, steps=40)
    alone, rows, _ = run(VectorEnv(single.env), single.params, action, index=index, steps=40)
    assert rows.ended.any()
    assert_equal((states.obs["0"], states.is_first["0"]), (alone.obs, alone.is_first))
    for name in ("reward", "terminated", "truncated", "final_obs"):
        assert_equal(getattr(steps, name)["0"], getattr(rows, name))
    assert_equal(steps.ended, rows.ended)


@pytest.mark.allow_key_reuse
def test_every_copy_does_what_it_does_alone_and_waits_for_the_last() -> None:
    made = make_multi("MultiAgentCartPole-v0", {"num_agents": 3})
    env, params = made.env, made.params
    alone = CartPole()
    key = jax.random.key(5)
    state, start = env.reset(key, params)
    singles = []
    for index in range(3):
        own = key if index == 0 else jax.random.fold_in(key, index)
        singles.append(alone.reset(own, params))
        np.testing.assert_array_equal(singles[index][1], start.obs[str(index)])
    step_env, step_alone = jax.jit(env.step), jax.jit(alone.step)
    copies: list[Any] = [single[0] for single in singles]
    alive, ends = [True] * 3, {}
    for t in range(60):
        actions = {"0": jnp.int32(0), "1": jnp.int32(t % 2), "2": jnp.int32(1)}
        state, step = step_env(jax.random.key(t), state, actions, params)
        for index in range(3):
            name = str(index)
            if not alive[index]:
                assert float(step.reward[name]) >= 0.0
                assert not step.acts[name]
                assert not step.terminated[name]
                continue
            copies[index], single = step_alone(
                jax.random.key(0), copies[index], actions[name], params
            )
            np.testing.assert_allclose(step.obs[name], single.obs, rtol=1e-6)
            assert bool(step.terminated[name]) == bool(single.terminated)
            alive[index] = not single.terminated
            assert bool(step.acts[name]) == alive[index]
            if single.terminated:
                ends[index] = t
        assert bool(step.terminated["__all__"]) == (not any(alive))
        assert not step.truncated["__all__"]
        if not any(alive):
            break
    assert len(set(ends.values())) > 1


@pytest.mark.allow_key_reuse
def test_a_cut_of_all_is_no_termination() -> None:
    made = make_multi(make_multi_agent(TimeLimit(CartPole(), 3)), {"num_agents": 2})
    assert isinstance(made.env, MultiTimeLimit)
    assert made.max_episode_steps == 3
    env = made.env.env
    state, _ = env.reset(jax.random.key(0), made.params)
    for t in range(3):
        actions = {"0": jnp.int32(0), "1": jnp.int32(1)}
        state, step = env.step(jax.random.key(t), state, actions, made.params)
        ends = [bool(step.truncated[name]) for name in ("0", "1", "__all__")]
        assert ends == [t == 2] * 3
        assert not step.terminated["__all__"]


@pytest.mark.allow_key_reuse
def test_settings_are_those_of_the_copied_environment() -> None:
    cls = make_multi_agent("CartPole-v1")
    made = make_multi(cls, {"num_agents": 2, "sutton_barto_reward": True, "gravity": 5.0})
    assert float(made.params.gravity) == 5.0
    state, _ = made.env.reset(jax.random.key(0), made.params)
    actions = {"0": jnp.int32(0), "1": jnp.int32(1)}
    assert made.env.step(jax.random.key(1), state, actions, made.params)[1].reward["1"] == 0.0
    again = make_multi(cls, {"num_agents": 2, "sutton_barto_reward": True})
    assert again.env == made.env  # programs are shared
    assert make_multi(make_multi_agent(CartPole), {"num_agents": 3}).env.possible_agents == (
        "0",
        "1",
        "2",
    )
    with pytest.raises(UnknownNameError, match=r"has no parameter 'gravty'.*Did you mean"):
        make_multi(cls, {"gravty": 1.0})
    with pytest.raises(EnvError, match="num_agents=0 must be an integer of at least 1"):
        make_multi(cls, {"num_agents": 0})
    with pytest.raises(EnvError, match="is stepped in Python: make it with make_multi_host"):
        make_multi(make_multi_agent("gymnasium:CartPole-v1"))


@pytest.mark.allow_key_reuse
def test_pictures_stand_side_by_side_and_those_of_the_ended_are_dimmed() -> None:
    made = make_multi("MultiAgentCartPole-v0")
    state, _ = made.env.reset(jax.random.key(0), made.params)
    picture = made.env.render(state, made.params)
    assert picture.shape == (400, 1200, 3)
    inner = state.inner
    ended = type(inner)(copies=inner.copies, alive=jnp.array([True, False]))
    dimmed = made.env.render(type(state)(inner=ended, num_steps=state.num_steps), made.params)
    np.testing.assert_array_equal(dimmed[:, :600], picture[:, :600])
    assert dimmed[:, 600:].max() < 200


# --- copies of gymnasium environments as one Python environment of several agents ---


def make_host(num_agents: int, **config: Any) -> Any:
    cls: Any = make_multi_agent("gymnasium:CartPole-v1")
    return cls({"num_agents": num_agents, **config})


def test_each_copy_is_the_environment_itself() -> None:
    env, single = make_host(2), gymnasium.make("CartPole-v1")
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
