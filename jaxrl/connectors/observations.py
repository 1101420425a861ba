"""Observation connectors: one-hot, flatten and mean-std filter."""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.base import ObservationConnector
from jaxrl.connectors.masks import BesideMask, SeparateMask, observed_space
from jaxrl.connectors.pipelines import ObservationPipeline
from jaxrl.core.rl_module import ACTION_MASK
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
    space: gymnasium.Space[Any],
    observation_filter: str,
    extra: tuple[ObservationConnector, ...] = (),
    action_mask_key: str | None = ACTION_MASK,
) -> ObservationPipeline:
    """The user's connectors, then flatten where the module takes no such space, then the filter.

    What the space holds under `action_mask_key` is neither flattened nor filtered: the module
    finds it as `obs["action_mask"]`, beside one part with everything else.

    Raises:
        SpaceError: A part of the space is not supported, or there is only a mask.
    """
    connectors = list(extra)
    space_after = ObservationPipeline(tuple(connectors), space).spaces[-1]
    masked = isinstance(space_after, spaces.Dict) and action_mask_key in space_after.spaces
    if masked:
        assert action_mask_key is not None
        _check_more_than_a_mask(space_after, action_mask_key)
        connectors.append(SeparateMask(action_mask_key))
        space_after = observed_space(connectors[-1].output_space(space_after))
    defaults: list[ObservationConnector] = []
    if not _is_plain(space_after):
        defaults.append(FlattenObservations(space_after))
    if observation_filter == "MeanStdFilter":
        defaults.append(MeanStdFilter())
    connectors += [BesideMask(connector) for connector in defaults] if masked else defaults
    pipeline = ObservationPipeline(tuple(connectors), space)
    flat_size(pipeline.spaces[-1])
    return pipeline


def _check_more_than_a_mask(space: gymnasium.Space[Any], action_mask_key: str) -> None:
    if isinstance(space, spaces.Dict) and len(space.spaces) == 1:
        raise SpaceError(
            f"The observation space {space} holds nothing but the mask {action_mask_key!r}; give "
            "the module something to observe beside it, if only a constant."
        )


def _is_plain(space: gymnasium.Space[Any]) -> bool:
    """Vectors of real numbers and images go to the module as they are."""
    return isinstance(space, spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 1 and space.dtype == np.float32)
    )
