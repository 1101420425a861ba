"""Convolutions as products against flax's and XLA's: values, gradients, parameters."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.modules import networks
from jaxrl.modules.networks import Conv, convolve_by_matmul, convolve_on_cpu, convolve_with_xla

CASES = [
    ((10, 10, 4), (3, 3), (1, 1), "valid"),
    ((10, 10, 4), (3, 3), (1, 1), "same"),
    ((9, 12, 2), (4, 3), (2, 3), "same"),
    ((9, 12, 2), (4, 3), (2, 3), "valid"),
    ((11, 7, 1), (4, 4), (4, 2), "same"),
]


@pytest.mark.parametrize(("shape", "kernel", "strides", "padding"), CASES)
def test_it_is_flaxs_convolution(shape, kernel, strides, padding):
    """The same parameters from the same key, the same results and gradients."""
    init, normal = jax.nn.initializers.he_normal(), jax.nn.initializers.normal(1.0)
    settings = {"features": 5, "kernel_size": kernel, "strides": strides}
    ours = Conv(**settings, padding=padding, kernel_init=init, bias_init=normal)
    flax = nn.Conv(**settings, padding=padding.upper(), kernel_init=init, bias_init=normal)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, *shape)), jnp.float32)
    params = jax.jit(ours.init)(jax.random.key(1), x.transpose(3, 1, 2, 0))
    jax.tree.map(np.testing.assert_array_equal, params, jax.jit(flax.init)(jax.random.key(1), x))

    def by_ours(params, x):
        return ours.apply(params, x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)

    def of(apply):
        """Results, and gradients for the parameters and the images."""

        def total(params, x):
            y = apply(params, x)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(params, x)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        of(by_ours),
        of(flax.apply),
    )


@pytest.mark.parametrize(("shape", "window", "strides", "padding"), CASES)
def test_both_ways_agree(shape, window, strides, padding):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(*shape[-1:], *shape[:2], 3)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*window, shape[-1], 5)), jnp.float32)
    by_either = [
        jax.jit(partial(convolve, strides=strides, padding=padding.upper()))(x, kernel)
        for convolve in (convolve_by_matmul, convolve_with_xla)
    ]
    np.testing.assert_allclose(*by_either, rtol=1e-4, atol=1e-4)


def test_a_cpu_takes_the_product_unless_it_is_too_large():
    """MinAtar's network makes 36 x 64 numbers of an image."""
    kernel = jax.ShapeDtypeStruct((3, 3, 4, 16), jnp.float32)
    most = networks.MAX_PRODUCT_BYTES // (36 * 64 * 4)

    def primitives(rows):
        x = jax.ShapeDtypeStruct((4, 10, 10, rows), jnp.float32)
        jaxpr = jax.make_jaxpr(lambda x, k: convolve_on_cpu(x, k, (1, 1), "VALID"))(x, kernel)
        return {eqn.primitive.name for eqn in jaxpr.eqns}

    assert "dot_general" in primitives(most)
    assert primitives(most + 1) == {"conv_general_dilated"}


def test_the_platform_decides():
    conv = Conv(
        features=2,
        kernel_size=(3, 3),
        strides=(1, 1),
        padding="same",
        kernel_init=jax.nn.initializers.he_normal(),
        bias_init=jax.nn.initializers.zeros,
    )
    x = jnp.ones((1, 4, 4, 2))
    params = conv.init(jax.random.key(0), x)
    texts = {
        platform: jax.jit(conv.apply)
        .trace(params, x)
        .lower(lowering_platforms=(platform,))
        .as_text()
        for platform in ("cpu", "cuda")
    }
    assert "convolution" not in texts["cpu"]
    assert "dot_general" in texts["cpu"]
    assert "stablehlo.convolution" in texts["cuda"]
    assert "dot_general" not in texts["cuda"]
