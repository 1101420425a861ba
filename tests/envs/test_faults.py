"""The injected fault strikes where it is told to, and nowhere else."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.envs import make
from jaxrl.envs.faults import FaultyEnv
from jaxrl.errors import EnvError


def unroll(env_config: dict[str, Any], num_envs: int = 16, num_steps: int = 6) -> Any:
    made = make("jaxrl.envs.faults:FaultyEnv", {"env": "Pendulum-v1", **env_config})

    def one(key: Any, params: Any) -> Any:
        key_reset, key_steps = jax.random.split(key)
        state, _ = made.env.reset(key_reset, params)

        def step(state: Any, key: Any) -> Any:
            return made.env.step(key, state, np.zeros(1, np.float32), params)

        return jax.lax.scan(step, state, jax.random.split(key_steps, num_steps))[1]

    keys = jax.random.split(jax.random.key(0), num_envs)
    return jax.device_get(jax.jit(jax.vmap(one, in_axes=(0, None)))(keys, made.params))


@pytest.mark.parametrize("kind", ["reward", "obs"])
def test_one_step_of_every_episode_is_nan(kind: str) -> None:
    steps = unroll({"kind": kind, "at_step": 4})
    reward_at = np.argwhere(np.isnan(steps.reward))
    obs_at = np.argwhere(np.isnan(steps.obs).any(axis=-1))
    struck, spared = (reward_at, obs_at) if kind == "reward" else (obs_at, reward_at)
    assert len(spared) == 0
    np.testing.assert_array_equal(struck, [[env, 3] for env in range(16)])


def test_a_fraction_of_episodes_breaks() -> None:
    broken = np.isnan(unroll({"at_step": 2, "fraction": 0.3}).reward).any(axis=-1)
    assert 0 < broken.sum() < 12
    assert not np.isnan(unroll({"at_step": 0}).reward).any()


def test_wraps_an_instance_and_keeps_its_parameters() -> None:
    env = FaultyEnv(make("CartPole-v1").env)
    made = make(env, {"at_step": 9})
    assert made.params.at_step == 9
    assert made.params.inner.gravity == np.float32(9.8)
    assert env == FaultyEnv(make("CartPole-v1").env)
    assert hash(env) == hash(FaultyEnv(make("CartPole-v1").env))
    assert env != FaultyEnv(make("CartPole-v1").env, "obs")
    picture = env.render(env.reset(jax.random.key(0), made.params)[0], made.params)
    assert picture.shape == (400, 600, 3)


def test_what_cannot_break_is_refused() -> None:
    with pytest.raises(EnvError, match="kind must be"):
        FaultyEnv("CartPole-v1", "state")  # pyright: ignore[reportArgumentType]
    with pytest.raises(EnvError, match="cannot be NaN"):
        FaultyEnv("gymnax:FrozenLake-misc", "obs")
