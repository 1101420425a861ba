"""The time limit, against gymnasium's own wrapper."""

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl.envs import TimeLimit, make
from jaxrl.envs.classic.cartpole import CartPole
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
