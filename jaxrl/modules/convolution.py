"""Convolutions of images laid out as `[C, H, W, N]`, channels first and the batch last.

On a CPU each is one matrix product with long rows over the batch: the step of a small network takes
a tenth of the time of XLA's own convolutions, whose gradients are slow. On other platforms they are
XLA's.
"""

import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Pair = tuple[int, int]

MAX_PRODUCT_BYTES = 2**28
"""Maximum bytes of the matrix made of an image batch; larger convolutions use XLA's."""


class Conv(nn.Module):
    """Convolution with the parameters of `flax.linen.Conv`, over images `[C, H, W, N]`."""

    features: int
    kernel_size: Pair
    strides: Pair
    padding: str
    kernel_init: Callable[..., Array]
    bias_init: Callable[..., Array]

    @nn.compact
    def __call__(self, x: Float[Array, "c h w n"]) -> Float[Array, "f h2 w2 n"]:
        shape = (*self.kernel_size, x.shape[0], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        options = {"strides": self.strides, "padding": self.padding.upper()}
        y = lax.platform_dependent(
            x,
            kernel,
            cpu=partial(convolve_on_cpu, **options),
            default=partial(convolve_with_xla, **options),
        )
        return y + bias[:, None, None, None]


def convolve_on_cpu(
    x: Float[Array, "c h w n"], kernel: Float[Array, "i j c f"], strides: Pair, padding: str
) -> Float[Array, "f h2 w2 n"]:
    """Convolve by a matrix product, or by XLA if its matrix would be too large.

    A program that is traced for any batch size has the matrix product.
    """
    rows, columns = _output_size(x, kernel, strides, padding)
    size = math.prod(kernel.shape[:3]) * rows * columns * x.shape[3] * x.dtype.itemsize
    is_small = not isinstance(size, int) or size <= MAX_PRODUCT_BYTES  # no int for any batch size
    convolve = convolve_by_matmul if is_small else convolve_with_xla
    return convolve(x, kernel, strides, padding)


def convolve_with_xla(
    x: Float[Array, "c h w n"], kernel: Float[Array, "i j c f"], strides: Pair, padding: str
) -> Float[Array, "f h2 w2 n"]:
    """Convolve with XLA's convolution."""
    layout = ("CHWN", "HWIO", "CHWN")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=layout)


def convolve_by_matmul(
    x: Float[Array, "c h w n"], kernel: Float[Array, "i j c f"], strides: Pair, padding: str
) -> Float[Array, "f h2 w2 n"]:
    """Convolve by one product of the kernel and the patches that it covers."""
    rows, columns = _output_size(x, kernel, strides, padding)
    x = jnp.pad(x, ((0, 0), *_get_padding(x, kernel, strides, padding), (0, 0)))

    def slice_patch_entry(i: int, j: int) -> Array:
        """Slice what the kernel's entry (i, j) covers, `[C, rows, columns, N]`."""
        last = (i + (rows - 1) * strides[0] + 1, j + (columns - 1) * strides[1] + 1)
        return lax.slice(x, (0, i, j, 0), (x.shape[0], *last, x.shape[3]), (1, *strides, 1))

    height, width, _, features = kernel.shape
    patches = jnp.stack([slice_patch_entry(i, j) for i in range(height) for j in range(width)])
    y = kernel.reshape(-1, features).T @ patches.reshape(-1, rows * columns * x.shape[3])
    return y.reshape(features, rows, columns, x.shape[3])


def _output_size(x: Array, kernel: Array, strides: Pair, padding: str) -> Pair:
    """Return the rows and columns of the result."""
    pads = _get_padding(x, kernel, strides, padding)
    rows, columns = (
        (size + sum(pad) - covered) // stride + 1
        for size, pad, covered, stride in zip(
            x.shape[1:3], pads, kernel.shape[:2], strides, strict=True
        )
    )
    return rows, columns


def _get_padding(x: Array, kernel: Array, strides: Pair, padding: str) -> list[Pair]:
    return lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
