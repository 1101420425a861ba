"""Ids of agents that share a module, one-hot beside what each of them observes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.connectors.observations import OBSERVATIONS_KEY
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError

T = TypeVar("T")

AGENT_ID = "agent_id"
"""Name of the id's part of an observation that is no vector."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AgentIds:
    """One-hot ids of the agents of a module, joined to their observations.

    A vector of float32 is extended by the id, also where it is the only part beside an action
    mask. Any other observation becomes a Dict with the part `"agent_id"`. The environment's own
    observation goes in, and what comes out is what the module's connectors receive.

    Attributes:
        agents: Agents of the module, in the order of its rows.
        observed: Observation space of each of them.
        mask_key: Part of a Dict that is an action mask, or None.
    """

    agents: tuple[str, ...]
    observed: gymnasium.Space[Any]
    mask_key: str | None

    def __post_init__(self) -> None:
        """Raise ConfigError if the observation has a part of this name already."""
        if isinstance(self.observed, spaces.Dict) and AGENT_ID in self.observed.spaces:
            raise ConfigError(
                f"observe_agent_id=True adds the part {AGENT_ID!r} to observations, which have one "
                "already: leave it out, or give that part another name."
            )

    @property
    def space(self) -> gymnasium.Space[Any]:
        """Space of an observation with the id."""
        ids = spaces.Box(0.0, 1.0, (len(self.agents),), np.float32)
        joined: PyTree = self._join(self.observed, ids, _extend)
        return spaces.Dict(joined) if isinstance(joined, dict) else joined

    def join_rows(self, obs: PyTree, places: np.ndarray) -> PyTree:
        """Return the observations `[R, ...]` of a module's rows with their agents' ids.

        Args:
            obs: Observations.
            places: Index of each row's agent among the agents, `[R]`.
        """
        ids = jnp.asarray(np.eye(len(self.agents), dtype=np.float32)[places])
        return self._join(obs, ids, _concatenate)

    def join_one(self, agent: str, obs: PyTree) -> PyTree:
        """Return one agent's observation, of NumPy arrays, with its id."""
        ids = np.eye(len(self.agents), dtype=np.float32)[self.agents.index(agent)]
        return self._join(obs, ids, lambda *parts: np.concatenate(parts))

    def _join(self, obs: PyTree, ids: T, extend: Callable[[T, T], T]) -> PyTree:
        """Join values, or spaces, by a function that extends a vector."""
        if _is_vector(self.observed):
            return extend(obs, ids)
        if not isinstance(self.observed, spaces.Dict):
            return {OBSERVATIONS_KEY: obs, AGENT_ID: ids}
        given = set(obs)  # parts that only critics read may be missing
        parts = {name: obs[name] for name in self.observed.spaces if name in given}
        name = self._vector_beside_mask
        return {**parts, AGENT_ID: ids} if name is None else {**parts, name: extend(obs[name], ids)}

    @functools.cached_property
    def _vector_beside_mask(self) -> str | None:
        """Name of the only part beside an action mask, if it is a vector."""
        assert isinstance(self.observed, spaces.Dict)
        parts = dict(self.observed.spaces)
        if self.mask_key is None or parts.pop(self.mask_key, None) is None or len(parts) > 1:
            return None
        return next((name for name, part in parts.items() if _is_vector(part)), None)


def _is_vector(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32


def _extend(space: spaces.Box, ids: spaces.Box) -> spaces.Box:
    low, high = np.append(space.low, ids.low), np.append(space.high, ids.high)
    return spaces.Box(low, high, dtype=np.float32)


def _concatenate(*parts: jax.Array) -> jax.Array:
    return jnp.concatenate(parts, axis=-1)
