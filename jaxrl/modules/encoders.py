"""Encoders of observations with several parts, and of recurrent policies."""

import dataclasses
from typing import cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.space_arrays import Choices, flatten_last_axes, get_choices, one_hot_entries
from jaxrl.core.spaces import LeafSpace, SpacePath, get_at_path, get_leaf_spaces
from jaxrl.core.types import ObsSequence, ObsWithCarry, PyTree, SuccessorObs
from jaxrl.modules.attention import GTrXL
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.modules.networks import MIN_IMAGE_SIZE, AnyMLP
from jaxrl.modules.recurrent import RecurrentCore, make_recurrent_core
from jaxrl.modules.unroll import gather_rows, swap_leading_axes

MAX_SCALED_BOUND = 2**16
"""Largest bound of integers that are scaled to [-1, 1]; above it, small ones would vanish."""


@dataclasses.dataclass(frozen=True)
class NumericPart:
    """Path of a part that is encoded as numbers, its rank, and its scale."""

    path: SpacePath
    ndim: int
    scale: float | None


@dataclasses.dataclass(frozen=True)
class ChoicePart:
    """Path of a part that is a discrete choice, and its choices."""

    path: SpacePath
    among: Choices


@dataclasses.dataclass(frozen=True)
class ObsParts:
    """Parts of an observation by kind of encoding."""

    images: tuple[LeafSpace, ...]
    numbers: tuple[NumericPart, ...]
    chosen: tuple[ChoicePart, ...]


def split_obs_parts(space: gymnasium.Space[object], *, with_images: bool = True) -> ObsParts:
    """Split the parts of a space by kind of encoding: as an image, as numbers, or as a choice.

    Args:
        space: Space of the observations.
        with_images: Whether images are encoded as such; otherwise their pixels are numbers.
    """
    images: list[LeafSpace] = []
    numbers: list[NumericPart] = []
    chosen: list[ChoicePart] = []
    for path, leaf in get_leaf_spaces(space):
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            chosen.append(ChoicePart(path, get_choices(leaf)))
        elif with_images and isinstance(leaf, spaces.Box) and is_image(leaf):
            images.append((path, leaf))
        elif np.prod(leaf.shape):
            numbers.append(NumericPart(path, len(leaf.shape), _get_scale(leaf)))
    return ObsParts(tuple(images), tuple(numbers), tuple(chosen))


def is_image(box: spaces.Box) -> bool:
    """Return whether a Box is `[H, W, C]` and large enough for a filter."""
    return len(box.shape) == 3 and min(box.shape[:2]) >= MIN_IMAGE_SIZE


def _get_scale(space: spaces.Box | spaces.MultiBinary) -> float | None:
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iu":
        return None
    largest = max(abs(int(space.low.min())), abs(int(space.high.max())))
    return 1.0 / largest if 1 < largest <= MAX_SCALED_BOUND else None


class MultiInput(nn.Module):
    """Encoder of several parts: images by one encoder each, all numbers by an MLP, choices one-hot.

    Choices may be embedded instead. Parameters: `images_0`, ... in the order of the parts, `mlp`,
    and `embedding_0`, ... for each entry of each choice, if they are embedded.
    """

    images: tuple[nn.Module, ...]
    image_paths: tuple[SpacePath, ...]
    numbers: tuple[NumericPart, ...]
    chosen: tuple[ChoicePart, ...]
    mlp: AnyMLP
    embedding_size: int | None = None

    @nn.compact
    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        features: list[Array] = []
        for encode, path in zip(self.images, self.image_paths, strict=True):
            features.append(encode(get_at_path(obs, path)))
        if self.numbers:
            features.append(self.mlp(self._concat_numbers(obs)))
        entries = [
            entry
            for part in self.chosen
            for entry in one_hot_entries(part.among, get_at_path(obs, part.path))
        ]
        if self.embedding_size is not None:
            entries = [self._embed(i, entry) for i, entry in enumerate(entries)]
        return jnp.concatenate([*features, *entries], axis=-1)

    def _embed(self, number: int, entry: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        shape = (entry.shape[-1], self.embedding_size)
        # Product with the one-hot: the gradient of a gather is a serial scatter on a CPU.
        return entry @ self.param(
            f"embedding_{number}", nn.initializers.normal(1.0), shape, jnp.float32
        )

    def _concat_numbers(self, obs: PyTree) -> Float[Array, "*batch n"]:
        vectors: list[Array] = []
        for part in self.numbers:
            vector = flatten_last_axes(get_at_path(obs, part.path), part.ndim).astype(jnp.float32)
            vectors.append(vector if part.scale is None else vector * part.scale)
        return jnp.concatenate(vectors, axis=-1)


CARRY_IN, CARRY_OUT, CARRY = "memory", "remembered", "carry"
"""Collections of the carry before and after a forward pass, and its name in both."""


class RecurrentEncoder(nn.Module):
    """Encoder followed by a recurrent core. Parameters: `features`, `memory`.

    The carry is read as `carry` from the collection "memory", and is that of an episode's start if
    it is absent. The new carry is written to the collection "remembered" if that is mutable: `[N,
    ...]` after one step, `[N, L, ...]` after each row of a sequence.
    """

    features: nn.Module
    memory: RecurrentCore

    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        """Encode observations with a carry: `ObsWithCarry`, a `Sequence` or `SuccessorObs`."""
        history: ObsWithCarry | ObsSequence | SuccessorObs = obs
        match history:
            case ObsWithCarry():
                y, carry = self.memory(
                    self._compute_features(history.obs), self._get_carry(history)
                )
                self._sow_carry(carry)
                return y
            case ObsSequence():
                y, carries = self._unroll(history)
                self._sow_carry(carries)
                return y
            case SuccessorObs():
                carry = gather_rows(self._unroll(history.sequence)[1], history.after)
                x = self._compute_features(history.obs)
                y, _ = self.memory(x.reshape(-1, x.shape[-1]), carry)
                return y.reshape(*x.shape[:-1], -1)

    def _compute_features(self, obs: PyTree) -> Float[Array, "*batch m"]:
        return self.features(obs)

    def _get_carry(self, obs: ObsWithCarry | ObsSequence) -> PyTree:
        if self.has_variable(CARRY_IN, CARRY):
            return cast(PyTree, self.get_variable(CARRY_IN, CARRY))
        return self.memory.initial_carry(jax.tree.leaves(obs.obs)[0].shape[0])

    def _sow_carry(self, carry: PyTree) -> None:
        self.sow(CARRY_OUT, CARRY, carry, reduce_fn=lambda _, new: new, init_fn=lambda: None)

    def _unroll(self, sequence: ObsSequence) -> tuple[Float[Array, "N L n"], PyTree]:
        """Compute the core's outputs and carries at every row after the burn-in."""
        carry, is_first, cut = self._get_carry(sequence), sequence.is_first, sequence.burn_in
        if cut:
            head = jax.tree.map(lambda x: x[:, :cut], sequence.obs)
            x = self._compute_features(head)
            _, carries = self.memory.sequence(swap_leading_axes(x), carry, is_first[:, :cut].T)
            carry = jax.lax.stop_gradient(jax.tree.map(lambda leaf: leaf[-1], carries))
        x = self._compute_features(sequence.rows)
        y, carries = self.memory.sequence(swap_leading_axes(x), carry, is_first[:, cut:].T)
        return swap_leading_axes(y), swap_leading_axes(carries)


def get_carry_collection(obs: PyTree) -> dict[str, PyTree]:
    """Return the carry of the observations as a flax collection; empty if there is none."""
    if isinstance(obs, SuccessorObs):
        obs = obs.sequence
    has_past = isinstance(obs, ObsWithCarry | ObsSequence) and obs.carry is not None
    return {CARRY_IN: obs.carry} if has_past else {}


def make_core_from_config(config: DefaultModelConfig) -> RecurrentCore | None:
    """Build the recurrent core of the model settings; None if there is none."""
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
        return make_recurrent_core(kind, config.lstm_cell_size, layers)
    return None
