"""Joint actions of several choices, numbered in one row, the last choice fastest."""

import dataclasses
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import ActionMask, Key
from jaxrl.distributions.base import Categorical, mask_logits


@dataclasses.dataclass(frozen=True)
class JointActions:
    """Numbers of all combinations of choices; those of a single choice are the choice itself.

    Attributes:
        num_choices: Number of options of each choice.
        event_shape: Shape of an action, () for a Discrete space.
    """

    num_choices: tuple[int, ...]
    event_shape: tuple[int, ...]

    @property
    def number(self) -> int:
        """Number of joint actions."""
        return math.prod(self.num_choices)

    def to_action(self, index: Int[Array, "*batch"]) -> Int[Array, "*batch_and_event"]:
        """Return the actions of numbers."""
        if len(self.num_choices) == 1:
            return index.reshape(*index.shape, *self.event_shape)
        flat = jnp.stack(jnp.unravel_index(index, self.num_choices), axis=-1)
        return flat.reshape(*index.shape, *self.event_shape).astype(jnp.int32)

    def to_index(self, action: Int[Array, "*batch_and_event"]) -> Int[Array, "*batch"]:
        """Return the numbers of actions."""
        batch = action.shape[: action.ndim - len(self.event_shape)]
        choices = jnp.moveaxis(action.reshape(*batch, -1), -1, 0)
        index = jnp.ravel_multi_index(tuple(choices), self.num_choices, mode="clip")
        return index.astype(jnp.int32)

    def combine_logits(
        self, inputs: Float[Array, "*batch m"], mask: ActionMask | None
    ) -> Float[Array, "*batch n"]:
        """Return the logits of joint actions whose choices are independent.

        Args:
            inputs: Concatenated logits of the choices.
            mask: Concatenated masks of the choices; None if all are legal.
        """
        parts = self._split(mask_logits(inputs, mask))
        if len(parts) == 1:
            return parts[0]
        total = jax.nn.log_softmax(parts[0])
        for part in parts[1:]:
            total = total[..., :, None] + jax.nn.log_softmax(part)[..., None, :]
            total = total.reshape(*total.shape[:-2], -1)
        return total

    def combine_mask(self, mask: ActionMask) -> Bool[Array, "*batch n"]:
        """Return which joint actions are legal: those of which every choice is."""
        legal, *others = self._split(mask.astype(bool))
        for part in others:
            legal = legal[..., :, None] & part[..., None, :]
            legal = legal.reshape(*legal.shape[:-2], -1)
        return legal

    def _split(self, row: Array) -> list[Array]:
        if len(self.num_choices) == 1:
            return [row]
        return jnp.split(row, np.cumsum(self.num_choices)[:-1].tolist(), axis=-1)


def find_joint_actions(space: gymnasium.Space[object]) -> JointActions | None:
    """Return the joint actions of a Discrete or MultiDiscrete space; None for others."""
    match space:
        case spaces.Discrete():
            return JointActions((int(space.n),), ())
        case spaces.MultiDiscrete():
            nvec = np.asarray(space.nvec)
            return JointActions(tuple(int(n) for n in nvec.flatten()), nvec.shape)
        case _:
            return None


@pytree
class JointCategorical:
    """Choices of a MultiDiscrete that depend on each other: a logit of each joint action."""

    logits: Float[Array, "*batch n"]
    joint: JointActions = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: ActionMask | None = None,
        *,
        joint: JointActions,
    ) -> "JointCategorical":
        """Build from the logits of joint actions, and the concatenated masks of the choices."""
        legal = None if mask is None else joint.combine_mask(mask)
        return cls(logits=mask_logits(inputs, legal), joint=joint)

    def sample_noise(self, key: Key) -> Float[Array, "*batch n"]:
        return self._choice().sample_noise(key)

    def from_noise(self, noise: Float[Array, "*batch n"]) -> Int[Array, "*batch_and_event"]:
        return self.joint.to_action(self._choice().from_noise(noise))

    def sample(self, key: Key) -> Int[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Int[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        return self._choice().log_prob(self.joint.to_index(action))

    def entropy(self) -> Float[Array, "*batch"]:
        return self._choice().entropy()

    def kl(self, other: "JointCategorical") -> Float[Array, "*batch"]:
        return self._choice().kl(other._choice())

    def mode(self) -> Int[Array, "*batch_and_event"]:
        return self.joint.to_action(self._choice().mode())

    def _choice(self) -> Categorical:
        return Categorical(logits=self.logits)
