"""Vectorised environments: keys, auto-reset, final observations and faults."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.types import PyTree
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.envs.registry import make
from jaxrl.envs.vector import NO_FAULT, OBS_FAULT, REWARD_FAULT, VectorEnv, VectorState, VectorStep
from tests.helpers import assert_equal

pytestmark = pytest.mark.allow_key_reuse


def play(
    env_id: str, *, index: np.ndarray, steps: int, mode: str = "every_step", **config: Any
) -> tuple[VectorState, VectorStep, PyTree, VectorState]:
    """`steps` constant actions; states before each step, steps, obs, last state."""
    made = make(env_id, config)
    env = VectorEnv(made.env, mode)  # pyright: ignore[reportArgumentType]

    def run(index: jax.Array) -> Any:
        state = env.reset(jax.random.key(3), index, made.params)

        def body(state: VectorState, _: None) -> Any:
            action = jnp.zeros((index.shape[0],), jnp.int32)
            inputs = jax.tree.map(lambda leaf: leaf[0], env.make_step_inputs(state, 1, made.params))
            new, step = env.step(state, action, inputs, made.params)
            return new, (state, step)

        last, (states, rows) = jax.lax.scan(body, state, None, length=steps)
        return states, rows, last

    states, rows, last = jax.jit(run)(jnp.asarray(index, jnp.int32))
    return states, rows, states.obs, last


def test_the_modes_of_auto_reset_agree_bit_for_bit() -> None:
    index = np.arange(40)
    every = play("CartPole-v1", index=index, steps=60)
    demand = play("CartPole-v1", index=index, steps=60, mode="on_demand")
    assert bool(every[1].ended.any())
    assert_equal(every, demand)


def test_an_environment_does_the_same_in_any_company() -> None:
    together = play("CartPole-v1", index=np.arange(8), steps=40)
    alone = play("CartPole-v1", index=np.array([5]), steps=40)
    np.testing.assert_array_equal(together[2][:, 5], alone[2][:, 0])


def test_final_obs_is_the_successor_and_the_next_row_starts_an_episode() -> None:
    states, steps, obs, _ = play("CartPole-v1", index=np.arange(4), steps=60)
    ended = np.asarray(steps.ended)[:-1]
    final, following = np.asarray(steps.final_obs)[:-1], np.asarray(obs)[1:]
    np.testing.assert_array_equal(final[~ended], following[~ended])
    assert (np.abs(final[ended]) > 0.2).any(axis=-1).all()  # a pole that fell
    assert (np.abs(following[ended]) <= 0.05).all()  # a fresh start
    np.testing.assert_array_equal(np.asarray(states.is_first)[1:], ended)
    assert np.asarray(states.is_first)[0].all()


def test_returns_and_lengths_are_those_of_the_episodes() -> None:
    _, steps, _, _ = play("CartPole-v1", index=np.arange(4), steps=80)
    for env in range(4):
        ends = np.flatnonzero(np.asarray(steps.ended)[:, env])
        lengths = np.diff(np.concatenate([[-1], ends]))
        np.testing.assert_array_equal(np.asarray(steps.episode_length)[ends, env], lengths)
        np.testing.assert_array_equal(np.asarray(steps.episode_return)[ends, env], lengths)


@pytest.mark.parametrize(("kind", "fault"), [("reward", REWARD_FAULT), ("obs", OBS_FAULT)])
def test_a_nan_is_masked_named_and_the_environment_reset(kind: str, fault: int) -> None:
    states, steps, obs, _ = play(
        "jaxrl.envs.faults:FaultyEnv",
        index=np.arange(3),
        steps=12,
        env="CartPole-v1",
        kind=kind,
        at_step=5,
    )
    bad = np.asarray(steps.fault) != NO_FAULT
    assert bad[4].all()
    assert bad.sum() == 2 * 3  # step 5, and step 10: five steps after the reset
    assert (np.asarray(steps.fault)[4] == fault).all()
    assert not np.asarray(steps.mask)[bad].any()
    assert not np.asarray(steps.ended)[bad].any()  # no episode is reported
    assert np.asarray(steps.truncated)[bad].all()
    assert np.asarray(states.is_first)[5].all()
    for tree in (steps, obs):
        assert all(
            np.isfinite(leaf).all()
            for leaf in jax.tree.leaves(jax.device_get(tree))
            if np.issubdtype(leaf.dtype, np.floating)
        )
    np.testing.assert_array_equal(np.asarray(steps.final_obs)[4], np.asarray(obs)[4])


def test_a_reset_to_nan_is_a_fault_of_the_next_step() -> None:
    """Every third reset gives NaN: zeros are shown instead, and the step from them is masked."""
    states, steps, obs, _ = play(
        "tests.runners.test_vector_env:BadReset", index=np.arange(64), steps=6
    )
    faulty = np.asarray(states.faulty)
    assert faulty.any()
    assert not faulty.all()
    assert np.isfinite(np.asarray(obs)).all()
    assert (np.asarray(obs)[faulty] == 0.0).all()
    np.testing.assert_array_equal(np.asarray(steps.mask), ~faulty)
    assert (np.asarray(steps.fault)[faulty] == OBS_FAULT).all()
    assert np.isfinite(np.asarray(steps.final_obs)).all()


class BadReset(CartPole):
    """A third of the resets, by their key, show NaN."""

    max_episode_steps = 2

    def reset(self, key: Any, params: Any) -> Any:
        state, obs = super().reset(key, params)
        bad = jax.random.uniform(jax.random.fold_in(key, 7)) < 1 / 3
        return state, jnp.where(bad, jnp.nan, obs)
