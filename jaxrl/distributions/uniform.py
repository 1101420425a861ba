"""Uniform distribution over a Box with finite bounds."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import Key
from jaxrl.errors import SpaceError


@pytree
class Uniform:
    """Uniform distribution over a Box; its inputs only set the batch size.

    Directions without width are constants and have no density.
    """

    batch: Float[Array, "*batch"]
    low: tuple[float, ...] = static()
    high: tuple[float, ...] = static()
    event_shape: tuple[int, ...] = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: None = None,
        *,
        low: tuple[float, ...],
        high: tuple[float, ...],
        event_shape: tuple[int, ...],
    ) -> "Uniform":
        batch = jnp.zeros(inputs.shape[:-1], jnp.float32)
        return cls(batch=batch, low=low, high=high, event_shape=event_shape)

    def sample_noise(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return jax.random.uniform(key, self.batch.shape + self.event_shape, jnp.float32)

    def from_noise(
        self, noise: Float[Array, "*batch_and_event"]
    ) -> Float[Array, "*batch_and_event"]:
        low, high = self._bounds
        actions = self._broadcast(low) + noise * self._broadcast(high - low)
        # Rounding may exceed the upper bound by one ulp, which is outside of the space.
        return jnp.minimum(actions, self._broadcast(high))

    def sample(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Float[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        low, high = (self._broadcast(bound) for bound in self._bounds)
        axes = tuple(range(-len(self.event_shape), 0))
        is_inside = jnp.all((action >= low) & (action <= high), axis=axes)
        return jnp.where(is_inside, -self.entropy(), -jnp.inf)

    def entropy(self) -> Float[Array, "*batch"]:
        low, high = self._bounds
        width = high - low
        return self.batch + float(np.sum(np.log(np.where(width > 0.0, width, 1.0))))

    def kl(self, other: "Uniform") -> Float[Array, "*batch"]:
        """Return the divergence from another uniform distribution over the same Box, 0."""
        return jnp.zeros_like(other.batch)

    def mode(self) -> Float[Array, "*batch_and_event"]:
        """Return the center of the Box."""
        low, high = self._bounds
        return self._broadcast((low + high) / 2)

    def _broadcast(self, value: Float[np.ndarray, "*event"]) -> Float[Array, "*batch_and_event"]:
        return jnp.broadcast_to(value, self.batch.shape + self.event_shape)

    @property
    def _bounds(self) -> tuple[Float[np.ndarray, "*event"], Float[np.ndarray, "*event"]]:
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return low.reshape(self.event_shape), high.reshape(self.event_shape)


def get_uniform_bounds(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the bounds of the flattened action.

    Raises:
        SpaceError: If a bound is infinite.
    """
    low, high = (np.asarray(bound, np.float32).flatten() for bound in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise SpaceError(
            f"The action space {space} has an infinite bound, so uniformly random actions are "
            "undefined; give it finite bounds or set initial_random_timesteps=0."
        )
    return tuple(low.tolist()), tuple(high.tolist())
