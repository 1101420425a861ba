"""Distributions of actions with several parts: bits, and the parts of a Dict or Tuple."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import Key, PyTree
from jaxrl.distributions.base import MultiCategorical


@pytree
class Bits:
    """Independent bits, those of a `MultiBinary`: a choice of two for each.

    Inputs and masks have two numbers a bit, for 0 and for 1, one bit after another.
    """

    choices: MultiCategorical

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch total"],
        mask: Bool[Array, "*batch total"] | None = None,
        *,
        event_shape: tuple[int, ...],
    ) -> "Bits":
        num_choices = (2,) * (inputs.shape[-1] // 2)
        choices = MultiCategorical.from_inputs(
            inputs, mask, num_choices=num_choices, event_shape=event_shape
        )
        return cls(choices=choices)

    def noise(self, key: Key) -> Float[Array, "*batch k 2"]:
        return self.choices.noise(key)

    def pick(self, noise: Float[Array, "*batch k 2"]) -> Int[Array, "*batch_and_event"]:
        return self.choices.pick(noise).astype(jnp.int8)

    def sample(self, key: Key) -> Int[Array, "*batch_and_event"]:
        return self.pick(self.noise(key))

    def log_prob(self, action: Int[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        return self.choices.log_prob(action)

    def entropy(self) -> Float[Array, "*batch"]:
        return self.choices.entropy()

    def kl(self, other: "Bits") -> Float[Array, "*batch"]:
        return self.choices.kl(other.choices)

    def mode(self) -> Int[Array, "*batch_and_event"]:
        return self.choices.mode().astype(jnp.int8)


@pytree
class Joint:
    """Independent parts of an action: log-probabilities, entropies and divergences add up.

    `parts` are in the order of the leaves of `structure`, that of an action.
    """

    parts: tuple[Any, ...]
    structure: Any = static()

    def noise(self, key: Key) -> tuple[PyTree, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.noise(keys[i]) for i, part in enumerate(self.parts))

    def pick(self, noise: tuple[PyTree, ...]) -> PyTree:
        pairs = zip(self.parts, noise, strict=True)
        return self.structure.unflatten([part.pick(drawn) for part, drawn in pairs])

    def sample(self, key: Key) -> PyTree:
        return self.pick(self.noise(key))

    def log_prob(self, action: PyTree) -> Float[Array, "*batch"]:
        pairs = zip(self.parts, self.structure.flatten_up_to(action), strict=True)
        return total([part.log_prob(own) for part, own in pairs])

    def entropy(self) -> Float[Array, "*batch"]:
        return total([part.entropy() for part in self.parts])

    def kl(self, other: "Joint") -> Float[Array, "*batch"]:
        pairs = zip(self.parts, other.parts, strict=True)
        return total([part.kl(others) for part, others in pairs])

    def mode(self) -> PyTree:
        return self.structure.unflatten([part.mode() for part in self.parts])


def total(terms: list[Array]) -> Array:
    """The sum of at least one term."""
    return sum(terms[1:], terms[0])
