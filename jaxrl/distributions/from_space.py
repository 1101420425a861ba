"""Mapping from an action space to its distribution and the inputs that a module must provide."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.spaces import (
    ACTION_SPACE,
    check_supported,
    get_children,
    get_leaf_spaces,
    is_nested,
    map_leaves,
)
from jaxrl.core.types import Key, PyTree, TreeStructure
from jaxrl.distributions.base import (
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    IndependentBernoulli,
    Joint,
    MultiCategorical,
    SquashedGaussian,
    Uniform,
    get_uniform_bounds,
)
from jaxrl.errors import SpaceError

ContinuousFamily: TypeAlias = Literal["gaussian", "squashed", "deterministic", "uniform"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionDistribution:
    """Distribution of the actions of one space.

    Attributes:
        family: Distribution class.
        input_dim: Number of network outputs per action.
        event_shape: Shape of one action.
        maskable: Whether an action mask is supported: of `input_dim` entries, or for a Dict or
            Tuple one of its structure.
        build: Function `(inputs [..., input_dim], mask | None) -> distribution`.
        mask_dim: Number of entries of a mask; None if it is `input_dim`.
        is_exact: Whether entropy and KL are exact.
    """

    family: type[Distribution]
    input_dim: int
    event_shape: tuple[int, ...]
    maskable: bool
    build: Callable[..., Distribution]
    mask_dim: int | None = None
    is_exact: bool = True

    def from_inputs(self, inputs: Float[Array, "*batch n"], mask: PyTree = None) -> Distribution:
        """Build the distribution of a batch of network outputs."""
        return self.build(inputs, mask)

    def sample_noise(self, key: Key) -> PyTree:
        """Draw the noise of one action's sample, which does not depend on network outputs."""
        return self.build(jnp.zeros((self.input_dim,), jnp.float32), None).sample_noise(key)


def make_action_distribution(
    space: gymnasium.Space[Any],
    *,
    continuous: ContinuousFamily = "gaussian",
    log_std_clip: float = 20.0,
) -> ActionDistribution:
    """Return the distribution of an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these,
            whose parts are independent.
        continuous: Distribution of a Box: "gaussian" (unbounded), "squashed" (by tanh into the
            bounds, which must be finite), "deterministic", or "uniform" (within finite bounds).
        log_std_clip: Clamp of the log standard deviation; infinity for none.

    Raises:
        SpaceError: If the space is any other; the message names the unsupported part.
    """
    match space:
        case spaces.Discrete():
            return ActionDistribution(
                family=Categorical,
                input_dim=int(space.n),
                event_shape=(),
                maskable=True,
                build=Categorical.from_inputs,
            )
        case spaces.MultiDiscrete():
            return _multi_categorical(space)
        case spaces.MultiBinary():
            return _multi_binary(space)
        case spaces.Box():
            return _continuous(space, continuous, log_std_clip)
        case spaces.Dict() | spaces.Tuple():
            return _joint(space, continuous, log_std_clip)
        case _:
            raise SpaceError(
                f"The action space {describe_space(space)} is not supported; use Discrete, "
                "MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these."
            )


def get_input_dim(space: gymnasium.Space[Any], *, continuous: ContinuousFamily = "gaussian") -> int:
    """Return the number of network outputs per action that a policy for `space` needs."""
    return make_action_distribution(space, continuous=continuous).input_dim


def get_action_start(space: gymnasium.Space[Any]) -> PyTree:
    """Return the offset from a module's action to one in `space`; 0 for most spaces.

    Modules act in 0 .. n-1, losses and replay keep those numbers, and the last module-to-env
    connector adds `start` of a Discrete or MultiDiscrete space. For a Dict or Tuple the result is a
    tree with the offset of each part.
    """
    match space:
        case spaces.Discrete():
            return int(space.start)
        case spaces.MultiDiscrete():
            start = np.asarray(space.start, np.int32)
            return start if start.any() else 0
        case spaces.Dict() | spaces.Tuple():
            return map_leaves(get_action_start, space)
        case _:
            return 0


def describe_space(space: object, path: str = "") -> str:
    """Describe a space for a message; for a Dict or Tuple, its parts with their paths."""
    match space:
        case spaces.Dict():
            parts = [(f"{path}['{name}']", part) for name, part in space.spaces.items()]
        case spaces.Tuple():
            parts = [(f"{path}[{i}]", part) for i, part in enumerate(space.spaces)]
        case _:
            return f"{path}: {space}" if path else str(space)
    listed = ", ".join(describe_space(part, name) for name, part in parts)
    return listed if path else f"{type(space).__name__} with the parts {listed}"


def _multi_categorical(space: spaces.MultiDiscrete) -> ActionDistribution:
    nvec = np.asarray(space.nvec)
    num_choices = tuple(int(n) for n in nvec.flatten())
    return ActionDistribution(
        family=MultiCategorical,
        input_dim=sum(num_choices),
        event_shape=nvec.shape,
        maskable=True,
        build=partial(
            MultiCategorical.from_inputs, num_choices=num_choices, event_shape=nvec.shape
        ),
    )


def _multi_binary(space: spaces.MultiBinary) -> ActionDistribution:
    shape = tuple(int(n) for n in space.shape)
    return ActionDistribution(
        family=IndependentBernoulli,
        input_dim=2 * int(np.prod(shape)),
        event_shape=shape,
        maskable=True,
        build=partial(IndependentBernoulli.from_inputs, event_shape=shape),
    )


def _joint(
    space: spaces.Dict | spaces.Tuple, continuous: ContinuousFamily, log_std_clip: float
) -> ActionDistribution:
    check_supported(space, ACTION_SPACE)
    parts = [
        make_action_distribution(leaf, continuous=continuous, log_std_clip=log_std_clip)
        for _, leaf in get_leaf_spaces(space)
    ]
    ends = np.cumsum([part.input_dim for part in parts]).tolist()
    structure = get_action_structure(space)

    def build(inputs: Float[Array, "*batch n"], mask: PyTree) -> Joint:
        built = [
            part.from_inputs(inputs[..., end - part.input_dim : end], part_mask)
            for part, end, part_mask in zip(parts, ends, split_mask(space, mask), strict=True)
        ]
        return Joint(parts=tuple(built), structure=structure)

    return ActionDistribution(
        family=Joint,
        input_dim=ends[-1],
        event_shape=(),
        maskable=any(part.maskable for part in parts),
        build=build,
    )


def get_action_structure(space: gymnasium.Space[Any]) -> TreeStructure:
    """Return the tree structure of an action."""
    return jax.tree.structure(map_leaves(lambda leaf: 0, space))


def split_mask(space: gymnasium.Space[Any], mask: PyTree) -> list[Array | None]:
    """Return the mask of each simple part of an action; None for parts without a mask."""
    masks: list[Array | None] = []
    for path, _ in get_leaf_spaces(space):
        part_mask = mask
        for key in path:
            if part_mask is None or (isinstance(part_mask, dict) and key not in part_mask):
                part_mask = None
                break
            part_mask = part_mask[key]
        masks.append(part_mask)
    return masks


def check_mask(mask: gymnasium.Space[Any], space: gymnasium.Space[Any], size: int) -> None:
    """Raise if the space of an action mask does not fit that of the actions, part by part.

    A Dict of actions has a Dict of masks, which may leave parts out; a Tuple has a Tuple of all.

    Args:
        mask: Space of the observation's mask, or of a part of it.
        space: Space of the actions that it masks.
        size: Number of entries that the mask of a simple space must have.

    Raises:
        SpaceError: If they do not fit.
    """
    if not is_nested(space):
        if isinstance(space, spaces.Box):
            raise SpaceError(
                f"The observation's 'action_mask' cannot mask the action space {space}; masks are "
                "for Discrete, MultiDiscrete and MultiBinary. Set action_mask_key=None to observe "
                "it, or leave the part out of a Dict of masks."
            )
        if mask.shape != (size,):
            raise SpaceError(
                f"The observation's 'action_mask' has the shape {mask.shape}, but the action space "
                f"{space} needs ({size},)."
            )
        return
    parts, masks = dict(get_children(space)), dict(get_children(mask)) if is_nested(mask) else {}
    fits = masks and set(masks) <= set(parts) and type(mask) is type(space)
    if not fits or (isinstance(space, spaces.Tuple) and len(masks) != len(parts)):
        raise SpaceError(
            f"The observation's 'action_mask' is {mask}, but must have the structure of the action "
            f"space {space}: a Dict of masks for parts of a Dict, a Tuple of them for a Tuple."
        )
    for key, part in masks.items():
        simple = None if is_nested(parts[key]) else parts[key]
        needed = 0
        if simple is not None and not isinstance(simple, spaces.Box):
            needed = make_action_distribution(simple).input_dim
        check_mask(part, parts[key], needed)


def _continuous(
    space: spaces.Box, continuous: ContinuousFamily, log_std_clip: float
) -> ActionDistribution:
    if not np.issubdtype(space.dtype, np.floating):
        raise SpaceError(
            f"The action space {space} holds integers, which no continuous distribution returns; "
            "use Discrete or MultiDiscrete, or a Box of dtype float32."
        )
    shape = tuple(int(n) for n in space.shape)
    size = int(np.prod(shape, dtype=np.int64))
    match continuous:
        case "gaussian":
            family, input_dim = DiagGaussian, 2 * size
            build = partial(DiagGaussian.from_inputs, event_shape=shape, log_std_clip=log_std_clip)
        case "squashed":
            family, input_dim = SquashedGaussian, 2 * size
            low, high = get_finite_bounds(space)
            build = partial(
                SquashedGaussian.from_inputs,
                low=low,
                high=high,
                event_shape=shape,
                log_std_clip=log_std_clip,
            )
        case "deterministic":
            family, input_dim = Deterministic, size
            build = partial(Deterministic.from_inputs, event_shape=shape)
        case "uniform":
            family, input_dim = Uniform, size
            low, high = get_uniform_bounds(space)
            build = partial(Uniform.from_inputs, low=low, high=high, event_shape=shape)
    return ActionDistribution(
        family=family, input_dim=input_dim, event_shape=shape, maskable=False, build=build
    )


def get_finite_bounds(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the bounds of the flattened action.

    Raises:
        SpaceError: If a bound is infinite, or low is not below high.
    """
    low, high = np.asarray(space.low).flatten(), np.asarray(space.high).flatten()
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise SpaceError(
            f"The action space {space} has no finite width in every direction, which a "
            "squashed action needs; give it finite bounds with low < high."
        )
    return tuple(low.tolist()), tuple(high.tolist())
