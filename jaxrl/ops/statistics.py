"""Running mean and variance of a stream of batches."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.ops.losses import masked_moments


@pytree
class RunningMoments:
    """Count, mean and sum of squared deviations, merged pairwise (Chan et al. 1983, eq. 2.1).

    All are float32: squares are taken around each batch's own mean and merged by ratios of counts,
    so nothing cancels. A batch of n rows contributes until `count` exceeds n · 2²⁴ (3e10 rows for n
    = 2048); from there on the moments no longer change.
    """

    count: Float[Array, ""]
    mean: Float[Array, "*shape"]
    m2: Float[Array, "*shape"]

    @staticmethod
    def zeros(shape: tuple[int, ...]) -> "RunningMoments":
        """Return the moments of an empty stream: mean 0, standard deviation 1."""
        return RunningMoments(
            count=jnp.zeros((), jnp.float32),
            mean=jnp.zeros(shape, jnp.float32),
            m2=jnp.zeros(shape, jnp.float32),
        )

    def update(
        self,
        batch: Float[Array, "*batch_and_shape"],
        mask: Bool[Array, "*batch"] | None = None,
        axis_name: str | None = None,
    ) -> "RunningMoments":
        """Add the unmasked rows of a batch, those of all devices of `axis_name`.

        Masked rows may be non-finite.
        """
        x = batch.astype(jnp.float32)
        batch_ndim = x.ndim - self.mean.ndim
        valid = jnp.ones(x.shape[:batch_ndim], jnp.bool_) if mask is None else mask
        row_valid = valid.reshape(valid.shape + (1,) * self.mean.ndim)
        count = _psum(jnp.sum(valid.astype(jnp.float32)), axis_name)
        total = _psum(_sum_rows(jnp.where(row_valid, x, 0.0), batch_ndim), axis_name)
        mean = total / jnp.maximum(count, 1.0)
        deviation = jnp.where(row_valid, x - _expand_like(mean, x), 0.0)
        m2 = _psum(_sum_rows(jnp.square(deviation), batch_ndim), axis_name)
        return self.merge(RunningMoments(count=count, mean=mean, m2=m2))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """Return the moments of both streams together; either may be empty."""
        count = self.count + other.count
        share = other.count / jnp.maximum(count, 1.0)
        delta = other.mean - self.mean
        return RunningMoments(
            count=count,
            mean=self.mean + delta * share,
            m2=self.m2 + other.m2 + jnp.square(delta) * self.count * share,
        )

    def variance(self) -> Float[Array, "*shape"]:
        """Return the sample variance (over count − 1, as in RLlib's filter).

        It is 1 for fewer than two rows.
        """
        return jnp.where(self.count > 1.0, self.m2 / jnp.maximum(self.count - 1.0, 1.0), 1.0)

    def std(self) -> Float[Array, "*shape"]:
        """Return the square root of `variance`."""
        return jnp.sqrt(self.variance())

    def normalize(
        self, x: Float[Array, "*batch_and_shape"], clip: float = 10.0
    ) -> Float[Array, "*batch_and_shape"]:
        """Compute `(x − mean) / std`, clipped to ±`clip`."""
        # Floored relative to the mean: in a constant entry, rounding of the mean is not signal.
        scale = 1.0 / (self.std() + 1e-5 * jnp.abs(self.mean) + 1e-8)
        x = x.astype(jnp.float32)
        return jnp.clip((x - _expand_like(self.mean, x)) * _expand_like(scale, x), -clip, clip)


@pytree
class DebiasedMoments:
    """Exponentially weighted mean and variance of numbers, free of bias towards their start.

    A batch has the weight 1 − β, and later ones reduce it by β each, divided by the sum of all
    weights: m / d and s / d − (m / d)² of the moving averages m of x, s of x² and d of 1 (van Hasselt
    et al. 2016, section 2.1, and Yu et al. 2021, whose code has β = 0.99999). The variance is merged
    around the batches' own means, so that it does not cancel where the mean is large.
    """

    DECAY: ClassVar[float] = 0.99999

    total_weight: Float[Array, ""]
    mean: Float[Array, ""]
    variance: Float[Array, ""]

    @staticmethod
    def empty() -> "DebiasedMoments":
        """Return the moments of an empty stream: mean 0, variance 1."""
        zero = jnp.zeros((), jnp.float32)
        return DebiasedMoments(total_weight=zero, mean=zero, variance=jnp.ones((), jnp.float32))

    def update(
        self, x: Float[Array, "*batch"], mask: Bool[Array, "*batch"], axis_name: str | None = None
    ) -> "DebiasedMoments":
        """Add the unmasked rows of a batch, those of all devices of `axis_name`, with equal weights.

        A batch that has none, or whose moments are not finite, changes nothing.
        """
        new = masked_moments(x, mask, axis_name)
        total_weight = self.DECAY * self.total_weight + (1.0 - self.DECAY)
        share = (1.0 - self.DECAY) / total_weight
        delta = new.mean - self.mean
        spread = self.variance + share * (jnp.square(new.std) - self.variance)
        after = DebiasedMoments(
            total_weight=total_weight,
            mean=self.mean + share * delta,
            variance=spread + share * (1.0 - share) * jnp.square(delta),
        )
        is_valid = (new.count > 0.0) & jnp.isfinite(after.mean) & jnp.isfinite(after.variance)
        return jax.tree.map(lambda a, b: jnp.where(is_valid, a, b), after, self)

    @property
    def std(self) -> Float[Array, ""]:
        """Square root of the variance, which is at least 0.01 as in the code of Yu et al."""
        return jnp.sqrt(jnp.maximum(self.variance, 1e-2))

    def normalize(self, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Compute (x − mean) / std."""
        return (x - self.mean) / self.std

    def denormalize(self, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Compute x std + mean."""
        return x * self.std + self.mean


def _expand_like(value: Array, x: Array) -> Array:
    """Reshape `value` to as many axes as `x`, with leading axes of size 1."""
    return value.reshape((1,) * (x.ndim - value.ndim) + value.shape)


def _sum_rows(x: Array, batch_ndim: int) -> Array:
    """Sum over the first `batch_ndim` axes, by a matrix product.

    On CPUs, XLA fuses a reduction with what computes its values, and adds them up in an order that
    depends on that. It fuses nothing into a product of matrices, so that two programs have equal sums.
    """
    num_rows, shape = math.prod(x.shape[:batch_ndim]), x.shape[batch_ndim:]
    rows = x.reshape(num_rows, math.prod(shape))
    ones = jnp.ones((num_rows,), x.dtype)
    return jnp.dot(ones, rows, precision=jax.lax.Precision.HIGHEST).reshape(shape)


def _psum(x: Array, axis_name: str | None) -> Array:
    return x if axis_name is None else jax.lax.psum(x, axis_name)
