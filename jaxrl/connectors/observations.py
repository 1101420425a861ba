"""Observation connectors without memory: one-hot, flatten and mean-std filter."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import ObservationConnector
from jaxrl.connectors.masks import SeparateMask, beside_mask, observed_space
from jaxrl.connectors.pipelines import ObservationPipeline
from jaxrl.core.types import PyTree
from jaxrl.errors import SpaceError
from jaxrl.ops.statistics import RunningMoments


def flat_size(space: gymnasium.Space[Any], path: str = "obs") -> int:
    """Length of the vector that `flatten` makes of the space; SpaceError names what it cannot."""
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(np.sum(space.nvec))
        case spaces.MultiBinary() | spaces.Box():
            return int(np.prod(space.shape))
        case spaces.Dict():
            return sum(flat_size(sub, f"{path}.{name}") for name, sub in space.spaces.items())
        case spaces.Tuple():
            return sum(flat_size(sub, f"{path}[{i}]") for i, sub in enumerate(space.spaces))
        case _:
            raise SpaceError(
                f"{path}: {type(space).__name__} observations are not supported; use Box, "
                "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
            )


def flatten(space: gymnasium.Space[Any], obs: PyTree) -> Array:
    """One float32 vector per observation: integers one-hot, the rest as it is, in order."""
    match space:
        case spaces.Discrete():
            return jax.nn.one_hot(obs - int(space.start), int(space.n), dtype=jnp.float32)
        case spaces.MultiDiscrete():
            sizes, starts = space.nvec.reshape(-1), space.start.reshape(-1)
            flat = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], -1)
            columns = [
                jax.nn.one_hot(flat[..., i] - int(start), int(n))
                for i, (n, start) in enumerate(zip(sizes, starts, strict=True))
            ]
            return jnp.concatenate(columns, axis=-1)
        case spaces.Dict():
            parts = [flatten(sub, obs[name]) for name, sub in space.spaces.items()]
            return jnp.concatenate(parts, axis=-1)
        case spaces.Tuple():
            parts = [flatten(sub, part) for sub, part in zip(space.spaces, obs, strict=True)]
            return jnp.concatenate(parts, axis=-1)
        case _:
            leading = obs.shape[: obs.ndim - len(space.shape or ())]
            return obs.reshape(*leading, -1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class FlattenObservations(ObservationConnector):
    """Any (nested) space to one float32 vector; integers become one-hot.

    Vectors of float32 and images pass as they are. `space` is filled in when the connector finds
    its place.
    """

    space: gymnasium.Space[Any] | None = None

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "FlattenObservations | None":
        """None where there is nothing to flatten."""
        return None if _is_plain(space) else dataclasses.replace(self, space=space)

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (flat_size(space),), np.float32)

    def __call__(self, state: PyTree, obs: PyTree) -> Array:
        del state
        assert self.space is not None
        return flatten(self.space, obs)


@dataclasses.dataclass(frozen=True)
class MeanStdFilter(ObservationConnector):
    """`(x - mean) / std` with running statistics, clipped to `[-clip, clip]` (RLlib's filter)."""

    clip: float = 10.0

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise SpaceError(
                f'observation_filter="MeanStdFilter" needs real-valued observations, got {space}; '
                'use "NoFilter"'
            )
        return spaces.Box(-self.clip, self.clip, space.shape, np.float32)

    def init(self, space: gymnasium.Space[Any]) -> RunningMoments:
        return RunningMoments.zero(space.shape or ())

    def __call__(self, state: RunningMoments, obs: Array) -> Array:
        return state.normalize(obs, clip=self.clip)

    def update(
        self, state: RunningMoments, obs: Array, mask: Bool[Array, "T B"], axis_name: str | None
    ) -> RunningMoments:
        return state.update(obs, mask, axis_name)


def default_observation_connectors(
    observation_filter: str, action_mask_key: str | None
) -> tuple[ObservationConnector, ...]:
    """Flatten where the module takes no such space, then the filter; neither touches a mask.

    The module finds what the space holds under `action_mask_key` as `obs["action_mask"]`, beside
    one part with everything else.
    """
    connectors: list[ObservationConnector] = []
    if action_mask_key is not None:
        connectors.append(SeparateMask(action_mask_key))
    connectors.append(FlattenObservations())
    if observation_filter == "MeanStdFilter":
        connectors.append(MeanStdFilter())
    return tuple(connectors)


def fitted_observation_pipeline(
    connectors: Sequence[ObservationConnector],
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> ObservationPipeline:
    """The connectors, each fitted to the space before it; those with nothing to do are left out.

    Args:
        connectors: In their order.
        space: The environment's observations.
        action_space: The module's.

    Raises:
        SpaceError: A connector cannot take the space before it, or a part of the last one is not
            supported.
    """
    fitted: list[ObservationConnector] = []
    current, separated = space, False
    for connector in connectors:
        bound = connector.bind(observed_space(current) if separated else current, action_space)
        if bound is None:
            continue
        fitted.append(beside_mask(bound) if separated else bound)
        current = fitted[-1].output_space(current)
        separated = separated or isinstance(bound, SeparateMask)
    flat_size(current)
    return ObservationPipeline(tuple(fitted), space)


def _is_plain(space: gymnasium.Space[Any]) -> bool:
    """Vectors of real numbers and images go to the module as they are."""
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 1 and space.dtype == np.float32)
    )
