"""The hand-written peer does what it is compared for: PPO on gymnasium's CartPole-v1."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers.handwritten_ppo import ppo, tasks
from benchmarks.settings import Setting
from jaxrl.ops import returns
from tests.helpers import slow_but

TINY = Setting(num_envs=8, num_steps=8, num_updates=2)


def test_the_environment_is_gymnasiums() -> None:
    rng = np.random.default_rng(0)
    env = gymnasium.make("CartPole-v1").unwrapped
    states = rng.uniform(-1, 1, size=(300, 4)) * np.array([2.5, 2.0, 0.22, 2.0])
    actions = rng.integers(2, size=300)
    batch = tasks.CartPole(jnp.asarray(states, jnp.float32), jnp.zeros(300, jnp.int32))
    keys = jax.random.split(jax.random.key(0), 300)
    after, reward, ended = jax.jit(jax.vmap(tasks.step))(keys, batch, jnp.asarray(actions))
    env.reset(seed=0)
    num_ended = 0
    for i in range(300):
        env.state, env.steps_beyond_terminated = tuple(states[i]), None
        obs, expected_reward, terminated, _, _ = env.step(int(actions[i]))
        assert bool(ended[i]) == terminated
        assert reward[i] == expected_reward
        num_ended += terminated
        if not terminated:
            np.testing.assert_allclose(after.physics[i], obs, rtol=1e-5, atol=1e-6)
    assert 10 < num_ended < 290


def test_an_episode_ends_at_the_time_limit_and_starts_anew() -> None:
    env = tasks.CartPole(jnp.zeros(4), jnp.asarray(tasks.MAX_EPISODE_STEPS - 1))
    after, _, ended = tasks.step(jax.random.key(0), env, jnp.asarray(1))
    assert bool(ended)
    assert int(after.time) == 0
    assert np.abs(after.physics).max() <= 0.05


def test_gae_is_ours_where_nothing_is_truncated() -> None:
    rng = np.random.default_rng(1)
    reward, value = (jnp.asarray(rng.normal(size=(12, 3)), jnp.float32) for _ in range(2))
    last_value = jnp.asarray(rng.normal(size=3), jnp.float32)
    ended = jnp.asarray(rng.random((12, 3)) < 0.2)
    got = ppo.gae(reward, value, ended, last_value, 0.99, 0.95)
    next_value = jnp.concatenate([value[1:], last_value[None]])
    expected = returns.gae(
        reward, value, next_value, ended, jnp.zeros_like(ended), mask=None, gamma=0.99, lambda_=0.95
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 64, 100, 2048])
def test_the_shuffle_is_a_permutation_that_depends_on_its_key(size: int) -> None:
    noises = [jax.random.bits(jax.random.key(seed), (2, 4), jnp.uint32) for seed in (0, 1)]
    first, second = (ppo.shuffle_index(noise, jnp.arange(size), size) for noise in noises)
    assert sorted(first.tolist()) == list(range(size))
    if size > 7:
        assert first.tolist() != second.tolist() != list(range(size))


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", slow_but(2, of=[None, 2]))
def test_it_learns_in_both_forms(num_devices: int | None) -> None:
    setting = Setting(num_envs=64, num_steps=32, num_updates=60, lr=1e-3)
    mesh = None
    if num_devices is not None:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), (ppo.AXIS,))
    program = ppo.PPO(setting, mesh)
    _, metrics = jax.jit(program.train)(jax.jit(program.init)(jax.random.key(0)))
    assert np.isfinite(metrics.loss).all()
    mean = metrics.return_sum / np.maximum(metrics.num_episodes, 1)
    assert mean[:3].mean() < 40
    assert metrics.return_sum[-15:].sum() / metrics.num_episodes[-15:].sum() > 150


@pytest.mark.slow
def test_devices_agree_after_an_update() -> None:
    """Parameters move, and are the same on every device."""
    mesh = ppo.make_device_mesh(TINY)
    assert mesh.size == 8
    program = ppo.PPO(TINY, mesh)
    before = jax.jit(program.init)(jax.random.key(0))
    after, metrics = jax.jit(program.train)(before)
    assert np.isfinite(metrics.loss).all()
    for leaf, old in zip(
        jax.tree.leaves(after.params), jax.tree.leaves(before.params), strict=True
    ):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert all((shard == shards[0]).all() for shard in shards)
        assert not np.array_equal(leaf, old)
