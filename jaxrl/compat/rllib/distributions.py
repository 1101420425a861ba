"""Action distributions with RLlib's methods, which draw their own randomness."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxrl.core.keys import make_key
from jaxrl.core.types import Key, PyTree
from jaxrl.distributions.base import Distribution
from jaxrl.distributions.from_space import ActionDistribution


@dataclasses.dataclass(frozen=True)
class StatefulDistribution:
    """Distribution of a batch of actions, for code outside of compiled functions.

    Args:
        distribution: The pure distribution.
        keys: Source of keys for samples.
        is_deterministic: Whether samples are the most likely actions.
    """

    distribution: Distribution
    keys: Iterator[Key]
    is_deterministic: bool = False

    def sample(self, *, key: Key | None = None) -> PyTree:
        """Sample one action per batch element; without a key, from the next of the source."""
        if self.is_deterministic:
            return self.distribution.mode()
        return self.distribution.sample(next(self.keys) if key is None else key)

    def rsample(self, *, key: Key | None = None) -> PyTree:
        """Sample as `sample` does, which is differentiable for continuous actions."""
        return self.sample(key=key)

    def to_deterministic(self) -> "StatefulDistribution":
        """Return the distribution whose samples are the most likely actions."""
        return dataclasses.replace(self, is_deterministic=True)

    def deterministic_sample(self) -> PyTree:
        """Return the most likely actions."""
        return self.distribution.mode()

    def logp(self, value: PyTree) -> Float[Array, "*batch"]:
        """Compute the log of the probability (or density) of actions; a list is an array."""
        actions = jax.tree.map(jnp.asarray, value, is_leaf=lambda x: isinstance(x, list))
        return self.distribution.log_prob(actions)

    def entropy(self) -> Float[Array, "*batch"]:
        """Compute the entropy in nats."""
        return self.distribution.entropy()

    def kl(self, other: "StatefulDistribution") -> Float[Array, "*batch"]:
        """Compute KL(self || other) in nats."""
        return self.distribution.kl(other.distribution)


class MaskingModel(Protocol):
    """Model that knows the legal actions of the observations that it computed logits for."""

    @property
    def action_mask(self) -> PyTree: ...


class DistributionClass:
    """Counterpart of RLlib's classes of action distributions: makes distributions from logits.

    Samples without a key are reproducible: they depend on the number of samples drawn before.

    Args:
        distribution: Distribution of the module's action space.
        seed: Seed of the samples.
    """

    def __init__(self, distribution: ActionDistribution, seed: int = 0) -> None:
        self._distribution = distribution
        base = make_key(seed)
        self._keys = (jax.random.fold_in(base, number) for number in itertools.count())

    def from_logits(self, logits: ArrayLike) -> StatefulDistribution:
        """Build the distribution of a module's outputs `action_dist_inputs`, `[*batch, n]`."""
        return self(logits)

    def __call__(
        self, inputs: ArrayLike, model: MaskingModel | None = None
    ) -> StatefulDistribution:
        """Build the distribution of a policy's model as RLlib's older classes do.

        Args:
            inputs: Logits.
            model: Model that returned them, whose observations may have a mask of legal actions.
        """
        mask = None if model is None else model.action_mask
        built = self._distribution.from_inputs(jnp.asarray(inputs, jnp.float32), mask)
        return StatefulDistribution(built, self._keys)

    def required_input_dim(self) -> int:
        """Return the number of network outputs per action."""
        return self._distribution.input_dim
