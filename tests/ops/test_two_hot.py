"""Symmetric logarithms and two-hot distributions against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops import two_hot as ops

NUMBERS = np.float32([-1e12, -345.0, -1.0, -0.3, -0.0, 0.0, 1e-6, 0.5, 1.0, 17.0, 499.0, 4e8, 1e12])


def test_symlog_and_symexp_are_inverse():
    x = np.linspace(-50.0, 50.0, 101).astype(np.float32)
    expected = np.sign(x) * np.log(1.0 + np.abs(np.float64(x)))
    np.testing.assert_allclose(ops.symlog(jnp.asarray(x)), expected, rtol=1e-6)
    np.testing.assert_allclose(ops.symexp(ops.symlog(jnp.asarray(x))), x, rtol=1e-5)
    slope = jax.vmap(jax.grad(ops.symlog))(jnp.asarray(x[x != 0.0]))
    np.testing.assert_allclose(slope, 1.0 / (1.0 + np.abs(x[x != 0.0])), rtol=1e-5)


def test_bins_are_symmetric_and_equally_spaced_in_symlog_space():
    bins = ops.make_symexp_bins(11, 5.0)
    np.testing.assert_allclose(ops.symlog(jnp.asarray(bins)), np.linspace(-5, 5, 11), atol=1e-5)
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert bins[5] == 0.0
    assert ops.make_symexp_bins().shape == (255,)


@pytest.mark.parametrize("number", [2, 1, 10])
def test_a_number_of_bins_without_a_middle_is_refused(number: int):
    with pytest.raises(ValueError, match=f"odd and at least 3, got {number}"):
        ops.make_symexp_bins(number)


def encode_by_loop(x: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """Weights by a search for the bin below."""
    weights = np.zeros((len(x), len(bins)))
    for row, number in enumerate(np.clip(np.float64(x), bins[0], bins[-1])):
        below = min(int(np.searchsorted(bins, number, side="right")) - 1, len(bins) - 2)
        share = (number - bins[below]) / (np.float64(bins[below + 1]) - bins[below])
        weights[row, below], weights[row, below + 1] = 1.0 - share, share
    return weights


@pytest.mark.parametrize("number", [3, 11, 255])
def test_two_bins_have_the_number_as_their_mean(number: int):
    bins = ops.make_symexp_bins(number)
    expected = encode_by_loop(NUMBERS, bins)
    encode = jax.jit(ops.two_hot)
    for weights in (encode(jnp.asarray(NUMBERS), bins), ops.two_hot(jnp.asarray(NUMBERS), bins)):
        np.testing.assert_allclose(weights, expected, atol=1e-5)
        np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, rtol=1e-5)
    ones = ops.two_hot(jnp.asarray(bins), bins)
    np.testing.assert_allclose(ones, np.eye(number), atol=1e-6)
    assert ops.two_hot(jnp.zeros((2, 3)), bins).shape == (2, 3, number)


def test_means_are_of_the_bins_themselves():
    bins = ops.make_symexp_bins(21, 4.0)
    logits = np.random.default_rng(0).normal(size=(7, 21)).astype(np.float32)
    probs = np.exp(np.float64(logits))
    expected = (probs / probs.sum(-1, keepdims=True)) @ np.float64(bins)
    np.testing.assert_allclose(ops.two_hot_mean(jnp.asarray(logits), bins), expected, rtol=1e-4)
    numbers = jnp.asarray([-20.0, 0.0, 0.7, 33.0])
    logits = jnp.log(ops.two_hot(numbers, bins) + 1e-12)
    np.testing.assert_allclose(ops.two_hot_mean(logits, bins), numbers, rtol=1e-4)


def test_the_mean_of_a_symmetric_distribution_is_exactly_zero():
    """The outer bins are 4.9e8, so that a plain sum would be off by far more than a reward."""
    bins = ops.make_symexp_bins()
    half = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
    logits = jnp.asarray(np.concatenate([half[:, :0:-1], half], axis=-1))
    np.testing.assert_array_equal(ops.two_hot_mean(logits, bins), np.zeros(5))


def test_the_loss_is_the_cross_entropy_and_its_targets_have_no_gradient():
    bins = ops.make_symexp_bins(11, 5.0)
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(len(NUMBERS), 11)), jnp.float32)
    log_probs = np.float64(jax.nn.log_softmax(logits))
    expected = -(encode_by_loop(NUMBERS, bins) * log_probs).sum(-1)
    np.testing.assert_allclose(
        ops.two_hot_loss(logits, jnp.asarray(NUMBERS), bins), expected, rtol=1e-4
    )
    moved = jax.grad(lambda x: jnp.sum(ops.two_hot_loss(logits, x, bins)))(jnp.asarray(NUMBERS))
    np.testing.assert_array_equal(moved, np.zeros(len(NUMBERS)))


def test_descending_the_loss_finds_the_mean():
    """The sought mean is that of random numbers, and not the symexp of that of their symlogs."""
    bins = ops.make_symexp_bins(41, 5.0)
    numbers = jnp.asarray([0.0] * 9 + [100.0])
    logits = jnp.zeros((41,))

    @jax.jit
    def descend(logits):
        def loss(logits):
            return jnp.mean(ops.two_hot_loss(jnp.broadcast_to(logits, (10, 41)), numbers, bins))

        return jax.lax.fori_loop(0, 3000, lambda _, x: x - 2.0 * jax.grad(loss)(x), logits)

    np.testing.assert_allclose(ops.two_hot_mean(descend(logits), bins), 10.0, rtol=0.02)
