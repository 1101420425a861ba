"""Short rows are sorted as NumPy sorts them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops.search import smallest_k


@pytest.mark.parametrize("number", [1, 4, 6])
def test_the_smallest_in_order_with_ties_and_infinities(number: int) -> None:
    x = np.float32([[3, 1, 2, 1, -1, 3], [0, 0, 0, 0, 0, 0], [np.inf, 5, -2, 7, -np.inf, 1]])
    x = np.stack([x, -x])
    expected = np.sort(x, axis=-1)[..., :number]
    for fn in (smallest_k, jax.jit(smallest_k, static_argnums=1)):
        np.testing.assert_array_equal(fn(jnp.asarray(x), number), expected)


def test_random_rows_equal_numpy() -> None:
    x = np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32)
    np.testing.assert_array_equal(smallest_k(jnp.asarray(x), 46), np.sort(x, axis=-1)[:, :46])


def test_what_is_no_number_is_not_hidden() -> None:
    assert jnp.isnan(smallest_k(jnp.asarray([2.0, jnp.nan, 1.0]), 3)).any()
