"""R2D2's rescaling of values against rlax."""

import jax.numpy as jnp
import numpy as np
import rlax

from jaxrl.ops.value_losses import signed_hyperbolic, signed_parabolic


def test_rescaling_equals_rlaxs() -> None:
    x = jnp.asarray([-300.0, -1.5, -1e-3, 0.0, 0.2, 7.0, 250.0])
    pair = rlax.SIGNED_HYPERBOLIC_PAIR
    np.testing.assert_allclose(signed_hyperbolic(x, 1e-3), pair.apply(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(signed_parabolic(x, 1e-3), pair.apply_inv(x), rtol=2e-3, atol=1e-3)


def test_unscaling_undoes_it() -> None:
    x = jnp.asarray([-300.0, -1.5, 0.0, 0.2, 7.0, 250.0])
    for epsilon in (1e-3, 1e-2):
        back = signed_parabolic(signed_hyperbolic(x, epsilon), epsilon)
        np.testing.assert_allclose(back, x, rtol=1e-2, atol=1e-3)
