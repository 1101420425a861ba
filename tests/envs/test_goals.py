"""Environments with goals: their contracts and rules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import make
from jaxrl.envs.goals import BitFlip, BitFlipParams, PointReach, PointReachParams
from jaxrl.errors import EnvError
from jaxrl.testing import check_env


@pytest.mark.parametrize(
    ("name", "env_config"), [("BitFlip-v0", {"num_bits": 2}), ("PointReach-v0", {"threshold": 0.9})]
)
def test_contract(name: str, env_config: Any) -> None:
    check_env(name, env_config, num_steps=60, check_auto_reset=name != "BitFlip-v0")


def test_bits_are_flipped_until_they_are_the_goal() -> None:
    env, params, key = BitFlip(4), BitFlipParams(), jax.random.key(1)
    state, obs = env.reset(key, params)
    wrong = np.flatnonzero(np.asarray(obs["observation"] != obs["desired_goal"]))
    assert len(wrong) > 1
    for left, bit in zip(range(len(wrong) - 1, -1, -1), wrong, strict=True):
        state, step = env.step(key, state, jnp.int32(bit), params)
        assert (step.reward, step.terminated) == ((0, True) if left == 0 else (-1, False))
        assert (step.obs["achieved_goal"] != step.obs["desired_goal"]).sum() == left
    assert make("BitFlip-v0", {"num_bits": 7}).max_episode_steps == 7
    with pytest.raises(EnvError, match="num_bits=0 must be an integer of at least 1"):
        make("BitFlip-v0", {"num_bits": 0})


def test_a_point_that_brakes_stays_at_the_goal_and_goes_on() -> None:
    env, params = PointReach(), PointReachParams()
    step = jax.jit(env.step)
    state, obs = env.reset(jax.random.key(0), params)
    rewards, start = [], np.asarray(obs["achieved_goal"])
    for _ in range(50):
        away = obs["desired_goal"] - obs["achieved_goal"] - 0.5 * obs["observation"][2:]
        state, out = step(jax.random.key(0), state, 20.0 * away, params)
        obs = out.obs
        rewards.append(float(out.reward))
        assert not out.terminated
    assert np.linalg.norm(start - np.asarray(obs["desired_goal"])) > 0.1
    assert set(rewards) == {-1.0, 0.0}
    assert rewards[-10:] == [0.0] * 10


class Lenient(BitFlip):
    """Steps that end sooner than is recomputed."""

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        after, step = super().step(key, state, action, params)
        return after, replace(step, terminated=jnp.ones((), bool))


def test_rewards_that_are_not_those_of_steps_are_told() -> None:
    with pytest.raises(EnvError, match="gives terminated=False for the goals of a step whose term"):
        check_env(Lenient(), num_steps=4, check_auto_reset=False)
