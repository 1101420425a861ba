"""Losses against NumPy and rlax; masked reductions on one device and on a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from jax.sharding import Mesh, PartitionSpec

from jaxrl.ops import losses
from jaxrl.testing import references

N = 64


def _normal(seed, shape=(N,)):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _check(fn, expected, *args):
    """Eager, jitted and vmapped over rows."""
    for result in (fn(*args), jax.jit(fn)(*args), jax.vmap(fn)(*args)):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_clipped_surrogate():
    ratio, advantage = jnp.exp(0.5 * _normal(0)), _normal(1)
    ours = partial(losses.clipped_surrogate, clip_param=0.2)
    _check(ours, references.clipped_surrogate(ratio, advantage, 0.2), ratio, advantage)
    rlax_loss = rlax.clipped_surrogate_pg_loss(ratio, advantage, 0.2)
    np.testing.assert_allclose(jnp.mean(ours(ratio, advantage)), rlax_loss, rtol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.5, 1.0, 0.0), (1.5, -1.0, 1.0), (0.5, 1.0, -1.0), (0.5, -1.0, 0.0), (1.1, 2.0, -2.0)],
)
def test_clipped_surrogate_has_no_gradient_where_it_clips(ratio, advantage, slope):
    grad = jax.grad(losses.clipped_surrogate)(ratio, advantage, 0.2)
    np.testing.assert_allclose(grad, slope, atol=1e-6)


def test_clipped_value_loss_clips_the_squared_error():
    value, target = 3.0 * _normal(2), _normal(3)
    expected = np.minimum((np.asarray(value) - np.asarray(target)) ** 2, 4.0)
    assert (expected == 4.0).any()
    assert (expected < 4.0).any()
    _check(partial(losses.clipped_value_loss, vf_clip_param=4.0), expected, value, target)
    assert jax.grad(losses.clipped_value_loss)(5.0, 0.0, 4.0) == 0.0
    assert losses.clipped_value_loss(jnp.asarray(5.0), jnp.asarray(0.0), jnp.inf) == 25.0


def test_exponential_weight_is_bounded_and_carries_no_gradient():
    advantage = 3.0 * _normal(9)
    expected = np.minimum(np.exp(0.7 * np.asarray(advantage)), 2.5)
    assert 2 < np.sum(expected == 2.5) < N - 2
    _check(partial(losses.exponential_weight, scale=0.7, limit=2.5), expected, advantage)
    unbounded = losses.exponential_weight(jnp.asarray([3.0, -1.0]), 2.0)
    np.testing.assert_allclose(unbounded, np.exp([6.0, -2.0]), rtol=1e-6)
    assert jax.grad(losses.exponential_weight)(1.0, 2.0) == 0.0
    np.testing.assert_array_equal(losses.exponential_weight(jnp.asarray([1e9]), 1.0, 100.0), 100.0)


@pytest.mark.filterwarnings("ignore:Rlax softmax:PendingDeprecationWarning")
def test_policy_gradient_loss():
    log_prob, advantage = -jnp.abs(_normal(4)), _normal(5)
    expected = -np.asarray(log_prob) * np.asarray(advantage)
    _check(losses.policy_gradient_loss, expected, log_prob, advantage)
    logits, actions = _normal(6, (N, 3)), jnp.arange(N) % 3
    chosen = jax.nn.log_softmax(logits)[jnp.arange(N), actions]
    np.testing.assert_allclose(
        jnp.mean(losses.policy_gradient_loss(chosen, advantage)),
        rlax.policy_gradient_loss(logits, actions, advantage, jnp.ones(N)),
        rtol=1e-5,
    )
    assert jax.grad(losses.policy_gradient_loss, argnums=1)(-0.5, 2.0) == 0.0


def test_huber_loss():
    error = 2.0 * _normal(7)
    _check(partial(losses.huber_loss, delta=0.7), rlax.huber_loss(error, 0.7), error)


def test_explained_variance():
    target, noise = _normal(8), 0.3 * _normal(9)
    expected = 1.0 - np.var(noise) / np.var(target)
    np.testing.assert_allclose(
        losses.explained_variance(target, target - noise), expected, rtol=1e-4
    )
    assert losses.explained_variance(target, target) == 1.0
    assert losses.explained_variance(target, -5.0 * target) == -1.0
    assert losses.explained_variance(jnp.ones(4), jnp.arange(4.0)) == 0.0


def test_masked_reductions():
    x, mask = _normal(10, (8, 8)), jnp.asarray(np.random.default_rng(11).random((8, 8)) < 0.4)
    kept = np.asarray(x)[np.asarray(mask)]
    poisoned = jnp.where(mask, x, jnp.nan)
    np.testing.assert_allclose(losses.masked_mean(poisoned, mask), kept.mean(), rtol=1e-5)
    np.testing.assert_allclose(losses.masked_mean(x), np.mean(x), rtol=1e-5)
    moments = losses.masked_moments(poisoned, mask)
    np.testing.assert_allclose(moments.mean, kept.mean(), rtol=1e-5)
    np.testing.assert_allclose(moments.std, kept.std(), rtol=1e-5)
    assert moments.count == kept.size
    np.testing.assert_allclose(moments.fraction, kept.size / 64, rtol=1e-6)


def test_masked_mean_of_nothing_is_zero_with_finite_gradient():
    value, grad = jax.value_and_grad(losses.masked_mean)(jnp.ones(3), jnp.zeros(3, bool))
    assert value == 0.0
    np.testing.assert_array_equal(grad, np.zeros(3))
    assert losses.masked_moments(jnp.ones(3), jnp.zeros(3, bool)).std == 0.0


def test_reductions_over_a_mesh_equal_one_device():
    """Shards have different numbers of unmasked rows, one of them none."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("shard",))
    x = _normal(12)
    mask = jnp.arange(N) % 7 < 3
    mask = mask.at[: N // 4].set(False)

    def local(x, mask):
        mean = jax.lax.pmean(losses.masked_mean(x, mask, "shard"), "shard")
        explained = losses.explained_variance(x, jnp.square(x), mask, "shard")
        return mean, losses.masked_moments(x, mask, "shard"), explained

    spec = PartitionSpec("shard")
    sharded = jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec())
    )
    whole = (
        losses.masked_mean(x, mask),
        losses.masked_moments(x, mask),
        losses.explained_variance(x, jnp.square(x), mask),
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), sharded(x, mask), whole)
