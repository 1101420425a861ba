"""Observations of several parts: the features of each, side by side."""

import dataclasses

import flax.linen as nn
import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.nested_spaces import Leaf, Path, at_path, leaf_spaces
from jaxrl.core.space_tree import Choices, choices, flat, one_hot_entries
from jaxrl.core.types import PyTree
from jaxrl.modules.networks import MLP, SMALLEST_IMAGE

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
