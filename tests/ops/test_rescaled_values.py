"""R2D2's rescaling of values against rlax and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxrl.ops.value_losses import signed_hyperbolic, signed_parabolic


def test_rescaling_equals_rlaxs() -> None:
    x = jnp.asarray([-300.0, -1.5, -1e-3, 0.0, 0.2, 7.0, 250.0])
    pair = rlax.SIGNED_HYPERBOLIC_PAIR
    np.testing.assert_allclose(signed_hyperbolic(x, 1e-3), pair.apply(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(signed_parabolic(x, 1e-3), pair.apply_inv(x), rtol=2e-3, atol=1e-3)


def rescale(x: np.ndarray, epsilon: float) -> np.ndarray:
    """h in float64, as it is written in the paper."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x


def unscale(x: np.ndarray, epsilon: float) -> np.ndarray:
    """The inverse of h in float64, as it is written in the paper."""
    root = np.sqrt(1 + 4 * epsilon * (np.abs(x) + 1 + epsilon))
    return np.sign(x) * (np.square((root - 1) / (2 * epsilon)) - 1)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 1.0])
def test_float32_keeps_its_digits(epsilon: float) -> None:
    """Values of 0.001 to 1,000,000 of either sign, and 0."""
    size = np.logspace(-3, 6, 4000)
    values = np.concatenate([-size, [0.0], size]).astype(np.float32)
    scaled = rescale(values.astype(np.float64), epsilon)
    np.testing.assert_allclose(signed_hyperbolic(jnp.asarray(values), epsilon), scaled, rtol=5e-7)
    rounded = scaled.astype(np.float32)
    expected = unscale(rounded.astype(np.float64), epsilon)
    np.testing.assert_allclose(signed_parabolic(jnp.asarray(rounded), epsilon), expected, rtol=1e-6)
    slopes = jax.vmap(jax.grad(signed_hyperbolic), (0, None))(jnp.asarray(values), epsilon)
    exact = 0.5 / np.sqrt(np.abs(values.astype(np.float64)) + 1) + epsilon
    np.testing.assert_allclose(slopes, exact, rtol=1e-5)
