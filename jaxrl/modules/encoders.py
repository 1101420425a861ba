"""Observations of several parts: the features of each, side by side."""

import dataclasses
from typing import Any, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.spaces import (
    Choices,
    Leaf,
    Path,
    at_path,
    choices,
    flat,
    leaf_spaces,
    one_hot_entries,
)
from jaxrl.core.types import PyTree, Remembered, Sequence, Successors
from jaxrl.modules.attention import GTrXL
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.modules.networks import MLP, SMALLEST_IMAGE
from jaxrl.modules.recurrent import Memory, make_memory
from jaxrl.modules.unroll import at_rows, swapped

LARGEST_SCALED = 2**16
"""Integers up to it are scaled to [-1, 1]; beyond it, small ones would be lost beside the bound."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Where a part that is taken as numbers lies, its rank, and what it is multiplied with."""

    path: Path
    ndim: int
    scale: float | None


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Where a part that is a choice lies, and among what."""

    path: Path
    among: Choices


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of an observation by how they are encoded."""

    images: tuple[Leaf, ...]
    numbers: tuple[Numbers, ...]
    chosen: tuple[Chosen, ...]


def parts_of(space: gymnasium.Space[object], *, with_images: bool = True) -> Parts:
    """How each part of a space is encoded: as an image, as numbers, or as a choice.

    Args:
        space: Of what is observed.
        with_images: False takes the pixels of images as numbers.
    """
    images: list[Leaf] = []
    numbers: list[Numbers] = []
    chosen: list[Chosen] = []
    for path, leaf in leaf_spaces(space):
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            chosen.append(Chosen(path, choices(leaf)))
        elif with_images and isinstance(leaf, spaces.Box) and is_image(leaf):
            images.append((path, leaf))
        elif np.prod(leaf.shape):
            numbers.append(Numbers(path, len(leaf.shape), _scale(leaf)))
    return Parts(tuple(images), tuple(numbers), tuple(chosen))


def is_image(box: spaces.Box) -> bool:
    """Whether a Box is `[H, W, C]` and large enough for a filter."""
    return len(box.shape) == 3 and min(box.shape[:2]) >= SMALLEST_IMAGE


def _scale(space: spaces.Box | spaces.MultiBinary) -> float | None:
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iu":
        return None
    largest = max(abs(int(space.low.min())), abs(int(space.high.max())))
    return 1.0 / largest if 1 < largest <= LARGEST_SCALED else None


class MultiInput(nn.Module):
    """Each image by its own encoder, all numbers by one MLP, choices one-hot or embedded.

    Parameters: `images_0`, ... in the order of the parts, `mlp`, and `embedding_0`, ... for each
    entry of each choice, where they are embedded.
    """

    images: tuple[nn.Module, ...]
    image_paths: tuple[Path, ...]
    numbers: tuple[Numbers, ...]
    chosen: tuple[Chosen, ...]
    mlp: MLP
    embedding_size: int | None = None

    @nn.compact
    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        features: list[Array] = []
        for encode, path in zip(self.images, self.image_paths, strict=True):
            features.append(encode(at_path(obs, path)))
        if self.numbers:
            features.append(self.mlp(self._side_by_side(obs)))
        entries = [
            entry
            for part in self.chosen
            for entry in one_hot_entries(part.among, at_path(obs, part.path))
        ]
        if self.embedding_size is not None:
            entries = [self._embedded(i, entry) for i, entry in enumerate(entries)]
        return jnp.concatenate([*features, *entries], axis=-1)

    def _embedded(self, number: int, entry: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        shape = (entry.shape[-1], self.embedding_size)
        # Times the one-hot: the gradient of a gather is a serial scatter on a CPU.
        return entry @ self.param(f"embedding_{number}", nn.initializers.normal(1.0), shape)

    def _side_by_side(self, obs: PyTree) -> Float[Array, "*batch n"]:
        vectors: list[Array] = []
        for part in self.numbers:
            vector = flat(at_path(obs, part.path), part.ndim).astype(jnp.float32)
            vectors.append(vector if part.scale is None else vector * part.scale)
        return jnp.concatenate(vectors, axis=-1)


MEMORY, REMEMBERED, CARRY = "memory", "remembered", "carry"
"""The collections of what is remembered before and after, and the name in both."""


class RecurrentEncoder(nn.Module):
    """The memory of an encoder's features. Parameters: `features`, `memory`.

    Its carry comes as `carry` in the collection "memory", that of an episode's start if there is
    none, and goes to the collection "remembered" if that is mutable: `[N, ...]` after one step,
    `[N, L, ...]` after each row of a sequence.
    """

    features: nn.Module
    memory: Memory

    def __call__(self, obs: Any) -> Float[Array, "*batch n"]:
        """For observations with a past: Remembered, a Sequence or Successors."""
        past: Remembered | Sequence | Successors = obs
        match past:
            case Remembered():
                y, carry = self.memory(self._features(past.obs), self._start(past))
                self._keep(carry)
                return y
            case Sequence():
                y, carries = self._through(past)
                self._keep(carries)
                return y
            case Successors():
                carry = at_rows(self._through(past.sequence)[1], past.after)
                x = self._features(past.obs)
                y, _ = self.memory(x.reshape(-1, x.shape[-1]), carry)
                return y.reshape(*x.shape[:-1], -1)

    def _features(self, obs: PyTree) -> Float[Array, "*batch m"]:
        features: Any = self.features
        return features(obs)

    def _start(self, obs: Remembered | Sequence) -> PyTree:
        if self.has_variable(MEMORY, CARRY):
            return cast(PyTree, self.get_variable(MEMORY, CARRY))
        return self.memory.initial_carry(jax.tree.leaves(obs.obs)[0].shape[0])

    def _keep(self, carry: PyTree) -> None:
        self.sow(REMEMBERED, CARRY, carry, reduce_fn=lambda _, new: new, init_fn=lambda: None)

    def _through(self, sequence: Sequence) -> tuple[Float[Array, "N L n"], PyTree]:
        """The memory's outputs and carries at every row behind the burn-in."""
        carry, is_first, cut = self._start(sequence), sequence.is_first, sequence.burn_in
        if cut:
            head = jax.tree.map(lambda x: x[:, :cut], sequence.obs)
            x = self._features(head)
            _, carries = self.memory.sequence(swapped(x), carry, is_first[:, :cut].T)
            carry = jax.lax.stop_gradient(jax.tree.map(lambda leaf: leaf[-1], carries))
        x = self._features(sequence.rows)
        y, carries = self.memory.sequence(swapped(x), carry, is_first[:, cut:].T)
        return swapped(y), swapped(carries)


def remembered_before(obs: PyTree) -> dict[str, PyTree]:
    """What the observations say is remembered before them, as a collection."""
    if isinstance(obs, Successors):
        obs = obs.sequence
    has_past = isinstance(obs, Remembered | Sequence) and obs.carry is not None
    return {MEMORY: obs.carry} if has_past else {}


def memory_of(config: DefaultModelConfig) -> Memory | None:
    """What an encoder remembers with, as the model settings say; None for nothing."""
    if config.use_attention:
        return GTrXL(
            num_units=config.attention_num_transformer_units,
            dim=config.attention_dim,
            num_heads=config.attention_num_heads,
            head_dim=config.attention_head_dim,
            memory=config.attention_memory_inference,
            position_wise_mlp_dim=config.attention_position_wise_mlp_dim,
            init_gru_gate_bias=config.attention_init_gru_gate_bias,
        )
    if config.use_lstm:
        kind, layers = config.recurrent_layer_type, config.recurrent_num_layers
        return make_memory(kind, config.lstm_cell_size, layers)
    return None
