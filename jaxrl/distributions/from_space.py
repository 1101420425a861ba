"""From an action space to its distribution, and to the numbers a module must give it."""

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
    children,
    is_nested,
    leaf_spaces,
    map_leaves,
)
from jaxrl.core.types import Key, PyTree
from jaxrl.distributions.base import (
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from jaxrl.distributions.joint import Bits, Joint
from jaxrl.errors import SpaceError

Continuous: TypeAlias = Literal["gaussian", "squashed", "deterministic"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionDistribution:
    """How the actions of one space are distributed.

    Attributes:
        family: The distribution class.
        input_dim: Numbers per action that a policy network gives.
        event_shape: Shape of one action.
        maskable: Whether an action mask is understood: of `input_dim` entries, or for a Dict or
            Tuple one of its structure.
        build: `(inputs [..., input_dim], mask | None) -> distribution`.
        mask_dim: Entries of a mask, where they are not `input_dim`.
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
        """The distribution of a batch of network outputs."""
        return self.build(inputs, mask)

    def noise(self, key: Key) -> PyTree:
        """What one action's sample draws, before the network's outputs are known."""
        return self.build(jnp.zeros((self.input_dim,), jnp.float32), None).noise(key)


def action_distribution(
    space: gymnasium.Space[Any],
    *,
    continuous: Continuous = "gaussian",
    log_std_clip: float = 20.0,
) -> ActionDistribution:
    """The distribution of an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these,
            whose parts are independent.
        continuous: What a Box is acted in with: "gaussian" (unbounded), "squashed" (tanh into the
            bounds, which must be finite) or "deterministic".
        log_std_clip: Clamp of the log standard deviation; infinity for none.

    Raises:
        SpaceError: For any other space, naming the part that is not supported.
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
            return _bits(space)
        case spaces.Box():
            return _continuous(space, continuous, log_std_clip)
        case spaces.Dict() | spaces.Tuple():
            return _joint(space, continuous, log_std_clip)
        case _:
            raise SpaceError(
                f"The action space {describe_unsupported(space)} is not supported; use Discrete, "
                "MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these."
            )


def required_input_dim(space: gymnasium.Space[Any], *, continuous: Continuous = "gaussian") -> int:
    """Numbers per action that a policy network must give for `space`."""
    return action_distribution(space, continuous=continuous).input_dim


def action_start(space: gymnasium.Space[Any]) -> PyTree:
    """What must be added to a module's action to lie in `space`; 0 for most spaces.

    Of a Dict or Tuple, that of each part.

    Modules act in 0 .. n-1, losses and replay keep those numbers, and the last module-to-env
    connector adds `start` of a Discrete or MultiDiscrete space.
    """
    match space:
        case spaces.Discrete():
            return int(space.start)
        case spaces.MultiDiscrete():
            start = np.asarray(space.start, np.int32)
            return start if start.any() else 0
        case spaces.Dict() | spaces.Tuple():
            return map_leaves(action_start, space)
        case _:
            return 0


def describe_unsupported(space: object, path: str = "") -> str:
    """The space for a message; of a Dict or Tuple, its parts with their paths."""
    match space:
        case spaces.Dict():
            parts = [(f"{path}['{name}']", part) for name, part in space.spaces.items()]
        case spaces.Tuple():
            parts = [(f"{path}[{i}]", part) for i, part in enumerate(space.spaces)]
        case _:
            return f"{path}: {space}" if path else str(space)
    listed = ", ".join(describe_unsupported(part, name) for name, part in parts)
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


def _bits(space: spaces.MultiBinary) -> ActionDistribution:
    shape = tuple(int(n) for n in space.shape)
    return ActionDistribution(
        family=Bits,
        input_dim=2 * int(np.prod(shape)),
        event_shape=shape,
        maskable=True,
        build=partial(Bits.from_inputs, event_shape=shape),
    )


def _joint(
    space: spaces.Dict | spaces.Tuple, continuous: Continuous, log_std_clip: float
) -> ActionDistribution:
    check_supported(space, ACTION_SPACE)
    parts = [
        action_distribution(leaf, continuous=continuous, log_std_clip=log_std_clip)
        for _, leaf in leaf_spaces(space)
    ]
    ends = np.cumsum([part.input_dim for part in parts]).tolist()
    structure = structure_of(space)

    def build(inputs: Float[Array, "*batch n"], mask: PyTree) -> Joint:
        built = [
            part.from_inputs(inputs[..., end - part.input_dim : end], own)
            for part, end, own in zip(parts, ends, masks_of(space, mask), strict=True)
        ]
        return Joint(parts=tuple(built), structure=structure)

    return ActionDistribution(
        family=Joint,
        input_dim=ends[-1],
        event_shape=(),
        maskable=any(part.maskable for part in parts),
        build=build,
    )


def structure_of(space: gymnasium.Space[Any]) -> Any:
    """The tree structure of an action."""
    return jax.tree.structure(map_leaves(lambda leaf: 0, space))


def masks_of(space: gymnasium.Space[Any], mask: PyTree) -> list[Array | None]:
    """The mask of each simple part of an action; None for those that it leaves out."""
    masks: list[Array | None] = []
    for path, _ in leaf_spaces(space):
        own = mask
        for key in path:
            if own is None or (isinstance(own, dict) and key not in own):
                own = None
                break
            own = own[key]
        masks.append(own)
    return masks


def check_mask(mask: gymnasium.Space[Any], space: gymnasium.Space[Any], size: int) -> None:
    """Hold the space of an action mask against that of the actions, part by part.

    A Dict of actions has a Dict of masks, which may leave parts out; a Tuple a Tuple of all.

    Args:
        mask: Of the observation's mask, or of a part of it.
        space: Of what it masks.
        size: Entries that the mask of a simple space must have.

    Raises:
        SpaceError: They do not fit.
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
    parts, masks = dict(children(space)), dict(children(mask)) if is_nested(mask) else {}
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
            needed = action_distribution(simple).input_dim
        check_mask(part, parts[key], needed)


def _continuous(
    space: spaces.Box, continuous: Continuous, log_std_clip: float
) -> ActionDistribution:
    if not np.issubdtype(space.dtype, np.floating):
        raise SpaceError(
            f"The action space {space} holds integers, which no continuous distribution gives; "
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
            low, high = finite_bounds(space)
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
    return ActionDistribution(
        family=family, input_dim=input_dim, event_shape=shape, maskable=False, build=build
    )


def finite_bounds(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The bounds of the flattened action.

    Raises:
        SpaceError: One is infinite, or there is nothing between two.
    """
    low, high = np.asarray(space.low).flatten(), np.asarray(space.high).flatten()
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise SpaceError(
            f"The action space {space} has no finite width in every direction, which a "
            "squashed action needs; give it finite bounds with low < high."
        )
    return tuple(low.tolist()), tuple(high.tolist())
