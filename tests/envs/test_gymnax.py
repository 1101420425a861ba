"""All working gymnax environments keep our contract, and do what gymnax does."""

import dataclasses
from typing import Any

import gymnasium
import gymnax
import jax
import numpy as np
import pytest

from jaxrl.envs import make
from jaxrl.envs.adapters.gymnax import ENV_IDS, GymnaxEnv
from jaxrl.errors import EnvError

ONE_OF_EACH = (
    *("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite", "FourRooms-misc"),
    *("SimpleBandit-bsuite", "Reacher-misc"),
)
"""Environments of each suite, and of each kind of observation and action."""
MINATAR = [name for name in ENV_IDS if name.endswith("-MinAtar")]


def test_the_list_is_gymnaxs_but_for_the_one_that_downloads() -> None:
    assert set(ENV_IDS) == set(gymnax.registered_envs) - {"MNISTBandit-bsuite"}
    assert len(ENV_IDS) == 25


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("name", ["CartPole-v1", "Breakout-MinAtar", "FrozenLake-misc"])
def test_steps_are_gymnaxs_own(name: str) -> None:
    """Against `step`, which draws a key for the step and one for the reset."""
    theirs, their_params = gymnax.make(name)
    made = make(f"gymnax:{name}")
    their_step, our_step = jax.jit(theirs.step), jax.jit(made.env.step)
    their_obs, their_state = theirs.reset(jax.random.key(3), their_params)
    state, obs = jax.jit(made.env.reset)(jax.random.key(3), made.params)
    np.testing.assert_array_equal(np.asarray(obs), np.asarray(their_obs))
    num_ends = 0
    for index in range(60):
        key = jax.random.fold_in(jax.random.key(4), index)
        action = np.int32(index * 7 % 3 % 2)
        _, their_state, reward, terminated, truncated, info = their_step(
            key, their_state, action, their_params
        )
        state, step = our_step(jax.random.split(key)[0], state, action, made.params)
        final = np.asarray(info["final_observation"])
        np.testing.assert_allclose(np.asarray(step.obs), final, rtol=1e-6, atol=1e-6)
        assert float(step.reward) == float(reward)
        assert bool(step.terminated) == bool(terminated)
        assert bool(step.truncated) == bool(truncated)
        if terminated or truncated:
            num_ends += 1
            state = jax.tree.map(lambda a, b: np.asarray(b, a.dtype), state, their_state)
    assert num_ends > 0


@pytest.mark.parametrize("name", ENV_IDS)
def test_every_parameter_and_the_time_limit_are_set(name: str) -> None:
    made = make(f"gymnax:{name}")
    assert isinstance(made.env, GymnaxEnv)
    fields = [field.name for field in dataclasses.fields(made.params)]
    for field in fields:
        default = np.asarray(vars(made.params)[field])
        value = ~default if default.dtype == bool else (default + 1).astype(default.dtype)
        changed = make(f"gymnax:{name}", {field: value}).params
        np.testing.assert_array_equal(vars(changed)[field], value)
        assert vars(changed)[field].dtype == default.dtype
        others = set(fields) - {field}
        assert all(np.array_equal(vars(changed)[o], vars(made.params)[o]) for o in others)
    assert make(f"gymnax:{name}", max_episode_steps=3).max_episode_steps == 3


def test_another_time_limit_truncates() -> None:
    made = make("gymnax:Pendulum-v1", max_episode_steps=3)
    assert isinstance(made.env, GymnaxEnv)
    state, _ = made.env.reset(jax.random.key(0), made.params)
    flags = []
    for index in range(4):
        key = jax.random.key(index)
        state, step = made.env.step(key, state, np.zeros(1, np.float32), made.params)
        flags.append((bool(step.terminated), bool(step.truncated)))
    assert flags == [(False, False), (False, False), (False, True), (False, True)]


def test_a_parameter_reaches_the_dynamics() -> None:
    step = jax.jit(make("gymnax:CartPole-v1").env.step)
    rewards = []
    for config in ({}, {"force_mag": 1000.0}):
        made = make("gymnax:CartPole-v1", config)
        state, _ = made.env.reset(jax.random.key(0), made.params)
        _, out = step(jax.random.key(1), state, np.int32(1), made.params)
        rewards.append(float(out.obs[1]))
    assert rewards[1] > 50 * rewards[0] > 0


@pytest.mark.parametrize("name", MINATAR)
def test_images_are_bytes(name: str) -> None:
    made = make(f"gymnax:{name}")
    space = made.env.observation_space(made.params)
    assert space == gymnasium.spaces.Box(0, 1, (10, 10, space.shape[-1]), np.uint8)  # pyright: ignore
    assert made.env.reset_mode == "on_demand"
    assert make("gymnax:CartPole-v1").env.reset_mode == "every_step"


def test_integer_observations_and_rewards_are_cast() -> None:
    catch = make("gymnax:Catch-bsuite")
    assert catch.env.observation_space(catch.params).dtype == np.float32
    lake = make("gymnax:FrozenLake-misc")
    assert lake.env.observation_space(lake.params) == gymnasium.spaces.Discrete(16)
    _, obs = jax.eval_shape(lake.env.reset, jax.random.key(0), lake.params)
    assert (obs.dtype, obs.shape) == (np.int32, ())


def test_instances_classes_and_creators_of_gymnax_are_adapted() -> None:
    env, _ = gymnax.make("CartPole-v1")
    assert make(env).env == GymnaxEnv(env)
    assert make(lambda context: env).env == GymnaxEnv(env)
    assert make(type(env)).env == make("gymnax:CartPole-v1").env
    assert hash(GymnaxEnv(env)) == hash(GymnaxEnv(env))


def test_an_unknown_space_is_refused() -> None:
    class Odd:
        n = 3

    class OddEnv(type(gymnax.make("CartPole-v1")[0])):
        def observation_space(self, params: Any) -> Any:
            return Odd()

    made = make(OddEnv())  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvError, match="is not supported"):
        made.env.observation_space(made.params)
