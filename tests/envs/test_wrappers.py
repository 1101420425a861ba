"""The time limit, against gymnasium's own wrapper."""

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl.envs import TimeLimit, make
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.envs.faults import FaultyEnv
from jaxrl.envs.wrappers import TimeLimitState
from jaxrl.errors import EnvError


def test_truncates_at_the_same_steps_as_gymnasium() -> None:
    """A pole that falls at the very limit is both terminated and truncated."""
    actions = [1] * 12
    theirs = gymnasium.make("CartPole-v1").unwrapped
    seen = set()
    made = make("CartPole-v1")
    reset, step = jax.jit(made.env.reset), jax.jit(CartPole().step)
    state, obs = reset(jax.random.key(0), made.params)
    flags = []
    inner = state.inner
    for _ in actions:
        inner, out = step(jax.random.key(1), inner, 1, made.params)
        flags.append(bool(out.terminated))
    falls_at = flags.index(True) + 1
    for limit in (falls_at - 2, falls_at - 1, falls_at, falls_at + 1):
        wrapped = gymnasium.wrappers.TimeLimit(theirs, limit)
        wrapped.reset(seed=0)
        vars(theirs)["state"] = np.asarray(obs, np.float64)
        ours = TimeLimit(CartPole(), limit)
        state, _ = jax.jit(ours.reset)(jax.random.key(0), made.params)
        ours_step = jax.jit(ours.step)
        for action in actions[:falls_at]:
            state, out = ours_step(jax.random.key(1), state, action, made.params)
            _, _, terminated, truncated, _ = wrapped.step(action)
            assert (bool(out.terminated), bool(out.truncated)) == (terminated, truncated)
            seen.add((terminated, truncated))
    assert seen == {(False, False), (False, True), (True, True), (True, False)}


def test_counts_steps_in_its_state() -> None:
    env = TimeLimit(CartPole(), 3)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    assert isinstance(state, TimeLimitState)
    assert state.num_steps.dtype == np.int32
    state, _ = env.step(jax.random.key(1), state, np.int32(0), env.default_params)
    assert int(state.num_steps) == 1


def test_equal_limits_of_one_environment_are_equal() -> None:
    env = CartPole()
    assert TimeLimit(env, 5) == TimeLimit(env, 5)
    assert hash(TimeLimit(env, 5)) == hash(TimeLimit(env, 5))
    assert TimeLimit(env, 5) != TimeLimit(env, 6)
    assert TimeLimit(env, 5) != TimeLimit(CartPole(), 5)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "9"])
def test_a_limit_is_a_positive_integer(limit: object) -> None:
    with pytest.raises(EnvError, match="max_episode_steps must be a positive integer"):
        make("CartPole-v1", max_episode_steps=limit)  # pyright: ignore[reportArgumentType]


# --- the injected fault strikes where it is told to, and nowhere else ---


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
