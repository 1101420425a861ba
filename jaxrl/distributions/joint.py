"""Distributions of actions with several parts: bits, and the parts of a Dict or Tuple."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import ActionMask, Key, PyTree, TreeStructure
from jaxrl.distributions.base import Distribution, MultiCategorical


@pytree
class IndependentBernoulli:
    """Independent bits of a `MultiBinary` action, each a choice of two.

    Inputs and masks have two numbers per bit, for 0 and for 1, one bit after another.
    """

    choices: MultiCategorical

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: ActionMask | None = None,
        *,
        event_shape: tuple[int, ...],
    ) -> "IndependentBernoulli":
        num_choices = (2,) * (inputs.shape[-1] // 2)
        choices = MultiCategorical.from_inputs(
            inputs, mask, num_choices=num_choices, event_shape=event_shape
        )
        return cls(choices=choices)

    def sample_noise(self, key: Key) -> Float[Array, "*batch k 2"]:
        return self.choices.sample_noise(key)

    def from_noise(self, noise: Float[Array, "*batch k 2"]) -> Int[Array, "*batch_and_event"]:
        return self.choices.from_noise(noise).astype(jnp.int8)

    def sample(self, key: Key) -> Int[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Int[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        return self.choices.log_prob(action)

    def entropy(self) -> Float[Array, "*batch"]:
        return self.choices.entropy()

    def kl(self, other: "IndependentBernoulli") -> Float[Array, "*batch"]:
        return self.choices.kl(other.choices)

    def mode(self) -> Int[Array, "*batch_and_event"]:
        return self.choices.mode().astype(jnp.int8)


@pytree
class Joint:
    """Independent parts of an action: log-probabilities, entropies and divergences add up.

    `parts` are in the leaf order of `structure`, the tree structure of an action.
    """

    parts: tuple[Distribution, ...]
    structure: TreeStructure = static()

    def sample_noise(self, key: Key) -> tuple[PyTree, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.sample_noise(keys[i]) for i, part in enumerate(self.parts))

    def from_noise(self, noise: tuple[PyTree, ...]) -> PyTree:
        pairs = zip(self.parts, noise, strict=True)
        return self.structure.unflatten([part.from_noise(part_noise) for part, part_noise in pairs])

    def sample(self, key: Key) -> PyTree:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: PyTree) -> Float[Array, "*batch"]:
        pairs = zip(self.parts, self.structure.flatten_up_to(action), strict=True)
        return sum_terms([part.log_prob(value) for part, value in pairs])

    def entropy(self) -> Float[Array, "*batch"]:
        return sum_terms([part.entropy() for part in self.parts])

    def kl(self, other: "Joint") -> Float[Array, "*batch"]:
        pairs = zip(self.parts, other.parts, strict=True)
        return sum_terms([part.kl(other_part) for part, other_part in pairs])

    def mode(self) -> PyTree:
        return self.structure.unflatten([part.mode() for part in self.parts])


def sum_terms(terms: list[Array]) -> Array:
    """Sum at least one term."""
    return sum(terms[1:], terms[0])
