"""The index bijection: a permutation of every size, and about uniform over keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops.shuffle import draw_shuffle_constants, shuffle_index


def _order(key, size):
    return shuffle_index(draw_shuffle_constants(key), jnp.arange(size, dtype=jnp.uint32), size)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 11, 17, 31, 32, 33, 50, 125, 1000, 4096])
def test_is_a_permutation(size):
    keys = jax.random.split(jax.random.key(size), 5)
    orders = jax.jit(jax.vmap(lambda k: _order(k, size)))(keys)
    assert orders.dtype == jnp.uint32
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(size), (5, 1)))
    if size >= 8:
        assert len({tuple(row) for row in orders.tolist()}) == 5


@pytest.mark.parametrize("size", [125, 128])
def test_parts_make_the_whole_and_jit_and_vmap_agree(size):
    """Minibatches ask for their own positions only."""
    keys = jax.random.split(jax.random.key(0), 3)
    positions = jnp.arange(size, dtype=jnp.uint32)
    parts = jnp.array_split(positions, 4)
    vmapped = jax.vmap(lambda k: _order(k, size))(keys)
    with jax.debug_key_reuse(False):
        constants = [draw_shuffle_constants(key) for key in keys]
    for chosen, expected in zip(constants, vmapped, strict=True):
        pieces = [shuffle_index(chosen, part, size) for part in parts]
        np.testing.assert_array_equal(jnp.concatenate(pieces), expected)
        np.testing.assert_array_equal(
            jax.jit(shuffle_index, static_argnums=2)(chosen, positions, size), expected
        )


@pytest.mark.parametrize("size", [6, 16, 50, 64])
def test_about_uniform_over_keys(size):
    """Elements land evenly, neighbours are split, and ranks do not correlate with the input."""
    num_keys = 100 * size
    keys = jax.random.split(jax.random.key(7), num_keys)
    orders = np.asarray(jax.jit(jax.vmap(lambda k: _order(k, size)))(keys)).astype(int)
    counts = np.stack([np.bincount(orders[:, i], minlength=size) for i in range(size)])
    expected = num_keys / size
    chi2_per_cell = np.square(counts - expected).mean() / expected
    assert 0.6 < chi2_per_cell < 1.5
    # how many of the first half stay there: as in drawing without replacement
    half = size // 2
    stay = (orders[:, :half] < half).sum(axis=1)
    share = half / size
    variance = half * share * (1 - share) * (size - half) / (size - 1)
    assert abs(stay.mean() - half * share) < 6 * np.sqrt(variance / num_keys)
    assert 0.7 < stay.var() / variance < 1.4
    centred = np.arange(size) - (size - 1) / 2
    correlation = (orders - (size - 1) / 2) @ centred / np.square(centred).sum()
    assert 0.6 < np.square(correlation).mean() * (size - 1) < 1.6


def test_refuses_impossible_sizes():
    with pytest.raises(ValueError, match="between 1 and"):
        shuffle_index(draw_shuffle_constants(jax.random.key(0)), jnp.zeros(1, jnp.uint32), 0)
