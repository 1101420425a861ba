"""Symmetric logarithms, and numbers as distributions over bins (Hafner et al. 2023).

DreamerV3 (https://arxiv.org/abs/2301.04104) and MuZero predict rewards and values of any scale by a
softmax over bins, whose gradient does not depend on that scale.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def symlog(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Compute sign(x) log(1 + |x|), which is x near 0 and compresses large numbers."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Compute sign(x) (exp|x| − 1), the inverse of `symlog`."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def make_symexp_bins(num_bins: int = 255, limit: float = 20.0) -> np.ndarray:
    """Make bins that are equally spaced in symlog space, and symmetric about 0, `[num_bins]`.

    Args:
        num_bins: Number of bins, odd and at least 3, so that one of them is 0.
        limit: Symlog of the largest bin.

    Raises:
        ValueError: If the number of bins is even or too small.
    """
    if num_bins < 3 or num_bins % 2 == 0:
        raise ValueError(f"num_bins must be odd and at least 3, got {num_bins}.")
    half = np.expm1(np.linspace(0.0, limit, num_bins // 2 + 1))
    return np.concatenate([-half[:0:-1], half]).astype(np.float32)


def two_hot(x: Float[Array, "*n"], bins: Float[Array, " m"]) -> Float[Array, "*n m"]:
    """Encode numbers as weights of the two bins next to them, with the numbers as their means.

    Numbers beyond the first or last bin have all of their weight on it.

    Args:
        x: Numbers.
        bins: Bins in ascending order.
    """
    x = jnp.clip(x, bins[0], bins[-1])[..., None]
    row = (1,) * (x.ndim - 1)
    below = jnp.concatenate([2.0 * bins[:1] - bins[1:2], bins[:-1]]).reshape(*row, -1)
    above = jnp.concatenate([bins[1:], 2.0 * bins[-1:] - bins[-2:-1]]).reshape(*row, -1)
    bins = bins.reshape(*row, -1)
    rising, falling = (x - below) / (bins - below), (above - x) / (above - bins)
    return jnp.clip(jnp.minimum(rising, falling), 0.0, 1.0)


def two_hot_mean(logits: Float[Array, "*n m"], bins: Float[Array, " m"]) -> Float[Array, "*n"]:
    """Compute the means of distributions over bins that are symmetric about 0.

    A bin is added to its mirror image first, so that the mean of a symmetric distribution is exactly 0,
    although its outer bins are large.

    Args:
        logits: Logarithms of the bins' probabilities, up to a constant.
        bins: Bins as of `make_symexp_bins`.
    """
    probs = jax.nn.softmax(logits, axis=-1)
    half = bins.shape[0] // 2
    right, left = probs[..., half + 1 :], probs[..., :half][..., ::-1]
    weights = bins[half + 1 :].reshape(*(1,) * (probs.ndim - 1), -1)
    return jnp.sum((right - left) * weights, axis=-1)


def two_hot_loss(
    logits: Float[Array, "*n m"], x: Float[Array, "*n"], bins: Float[Array, " m"]
) -> Float[Array, "*n"]:
    """Compute the cross-entropy of the two-hot encoding of numbers; they carry no gradient."""
    target = jax.lax.stop_gradient(two_hot(x, bins))
    return -jnp.sum(target * jax.nn.log_softmax(logits, axis=-1), axis=-1)
