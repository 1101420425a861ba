"""From an action space to its distribution, and to the numbers a module must give it."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.core.distributions import (
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from jaxrl.core.types import Key
from jaxrl.errors import SpaceError

Continuous: TypeAlias = Literal["gaussian", "squashed", "deterministic"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionDistribution:
    """How the actions of one space are distributed.

    Attributes:
        family: The distribution class.
        input_dim: Numbers per action that a policy network gives.
        event_shape: Shape of one action.
        maskable: Whether an action mask of `input_dim` entries is understood.
        build: `(inputs [..., input_dim], mask [..., input_dim] | None) -> distribution`.
    """

    family: type[Distribution]
    input_dim: int
    event_shape: tuple[int, ...]
    maskable: bool
    build: Callable[..., Distribution]

    def from_inputs(
        self,
        inputs: Float[Array, "*batch n"],
        mask: Bool[Array, "*batch n"] | None = None,
    ) -> Distribution:
        """The distribution of a batch of network outputs."""
        return self.build(inputs, mask)

    def noise(self, key: Key) -> Array:
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
        space: Discrete, MultiDiscrete or a Box of floats.
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
        case spaces.Box():
            return _continuous(space, continuous, log_std_clip)
        case _:
            raise SpaceError(
                f"The action space {describe_unsupported(space)} is not supported; use Discrete, "
                "MultiDiscrete or a Box of floats."
            )


def required_input_dim(space: gymnasium.Space[Any], *, continuous: Continuous = "gaussian") -> int:
    """Numbers per action that a policy network must give for `space`."""
    return action_distribution(space, continuous=continuous).input_dim


def action_start(space: gymnasium.Space[Any]) -> int | np.ndarray[Any, np.dtype[np.int32]]:
    """What must be added to a module's action to lie in `space`; 0 for most spaces.

    Modules act in 0 .. n-1, losses and replay keep those numbers, and the last module-to-env
    connector adds `start` of a Discrete or MultiDiscrete space.
    """
    match space:
        case spaces.Discrete():
            return int(space.start)
        case spaces.MultiDiscrete():
            start = np.asarray(space.start, np.int32)
            return start if start.any() else 0
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
