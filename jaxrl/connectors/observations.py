"""Observation connectors: one-hot, flatten and mean-std filter."""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import ObservationConnector, ObservationPipeline
from jaxrl.core.rl_module import ACTION_MASK, has_action_mask
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
            sizes = space.nvec.reshape(-1)
            flat = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], -1)
            columns = [jax.nn.one_hot(flat[..., i], int(n)) for i, n in enumerate(sizes)]
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
    """Any (nested) space to one float32 vector; integers become one-hot."""

    space: gymnasium.Space[Any]

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (flat_size(space),), np.float32)

    def __call__(self, state: PyTree, obs: PyTree) -> Array:
        del state
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


def default_observation_pipeline(
    space: gymnasium.Space[Any], observation_filter: str, extra: tuple[ObservationConnector, ...]
) -> ObservationPipeline:
    """The user's connectors, then flatten where the module takes no such space, then the filter."""
    connectors = list(extra)
    space_after = ObservationPipeline(tuple(connectors), space).spaces[-1]
    if not _is_plain(space_after):
        connectors.append(FlattenObservations(space_after))
    if observation_filter == "MeanStdFilter":
        connectors.append(MeanStdFilter())
    pipeline = ObservationPipeline(tuple(connectors), space)
    flat_size(pipeline.spaces[-1])
    return pipeline


def _is_plain(space: gymnasium.Space[Any]) -> bool:
    """Vectors of real numbers and images go to the module as they are, also beside a mask."""
    if has_action_mask(space):
        assert isinstance(space, spaces.Dict)
        return all(_is_plain(sub) for name, sub in space.items() if name != ACTION_MASK)
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 1 and space.dtype == np.float32)
    )
