"""Noisy networks with factorised Gaussian noise (Fortunato et al. 2018, sections 3 and 3.1).

Noise is data here: a tree of arrays in flax's collection "noise", drawn by `draw_noise`, with rows
of its own for each row of the input. Without it, layers are their mean.
"""

from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.core.types import Key, Params, PyTree
from jaxrl.modules.networks import Initializer

NOISE = "noise"
_SPREAD = "kernel_sigma"
_lecun = nn.initializers.lecun_normal()


class NoisyDense(nn.Module):
    """y = x W + b + f(ε_out) ((x f(ε_in)) W_σ + b_σ)  (eq. 9-11), called as `flax.linen.Dense` is.

    That is a layer with the weights W + W_σ f(ε_in) f(ε_out)ᵀ, different ones for every row, for
    the price of two matrix products. W_σ and b_σ start at sigma0 / sqrt(inputs).
    """

    features: int
    kernel_init: Initializer = _lecun
    bias_init: Initializer = nn.initializers.zeros
    sigma0: float = 0.5

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        size = x.shape[-1]
        spread = nn.initializers.constant(self.sigma0 / np.sqrt(size))
        kernel = self.param("kernel", self.kernel_init, (size, self.features))
        bias = self.param("bias", self.bias_init, (self.features,))
        kernel_sigma = self.param(_SPREAD, spread, (size, self.features))
        bias_sigma = self.param("bias_sigma", spread, (self.features,))
        one = (1,) * (x.ndim - 1)
        y = x @ kernel + bias.reshape(*one, -1)
        if not self.has_variable(NOISE, "inputs"):
            return y
        inputs = cast(Array, self.get_variable(NOISE, "inputs"))
        outputs = cast(Array, self.get_variable(NOISE, "outputs"))
        return y + outputs * ((x * inputs) @ kernel_sigma + bias_sigma.reshape(*one, -1))


def noise_sizes(params: Params) -> dict[str, Any]:
    """How many numbers each noisy layer draws, for its inputs and its outputs.

    Args:
        params: A network's parameters, or their shapes.
    """
    sizes: dict[str, Any] = {}
    for name, part in cast(Mapping[str, Any], params).items():
        if not isinstance(part, Mapping):
            continue
        layer = cast(Mapping[str, Any], part)
        if _SPREAD in layer:
            inputs, outputs = layer[_SPREAD].shape
            sizes[name] = {"inputs": inputs, "outputs": outputs}
        elif below := noise_sizes(layer):
            sizes[name] = below
    return sizes


def draw_noise(sizes: dict[str, Any], key: Key) -> PyTree:
    """The noise of every layer for one row, all in one draw. Consumes the key.

    Args:
        sizes: From `noise_sizes`.
        key: The row's.
    """
    return as_noise(sizes, jax.random.normal(key, (noise_width(sizes),)))


def noise_width(sizes: dict[str, Any]) -> int:
    """Normal draws of one row."""
    return sum(jax.tree.leaves(sizes))


def as_noise(sizes: dict[str, Any], normal: Float[Array, "*batch w"]) -> PyTree:
    """f(ε) for every layer, f(x) = sign(x) sqrt(|x|), from draws with the layers' leading axes."""
    leaves, tree = jax.tree.flatten(sizes)
    scaled = jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
    return tree.unflatten(jnp.split(scaled, np.cumsum(leaves)[:-1].tolist(), axis=-1))
