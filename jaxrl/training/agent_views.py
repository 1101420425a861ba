"""Observations of the agents of a module, and what a central critic sees of all agents."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.config.settings.training import CriticKind
from jaxrl.connectors.agent_ids import AgentIds
from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.spaces import without_parts
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import CentralObs, PyTree, Rollout
from jaxrl.envs.multi.base import Entry
from jaxrl.envs.multi.vector import Flags, MultiVectorState, MultiVectorStep
from jaxrl.training.agent_rows import AgentRows


@pytree
class Scene:
    """Moment of all environments: observations by entry, who is there, and the global state.

    `global_state` is None if environments do not keep it.
    """

    obs: dict[str, PyTree]
    is_there: Flags
    global_state: PyTree

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return next(iter(self.is_there.values())).shape[0]

    @staticmethod
    def before(state: MultiVectorState) -> "Scene":
        """Return the moment at which agents act."""
        is_there = {name: ~first | state.acts[name] for name, first in state.is_first.items()}
        return Scene(obs=state.obs, is_there=is_there, global_state=state.global_state)

    @staticmethod
    def after(step: MultiVectorStep) -> "Scene":
        """Return the moment after a step, before any reset.

        Agents that died are not there, and neither are those that left while others went on. If
        nobody goes on, as at the end of an episode, those who were truncated are still there.
        """
        goes_on = {
            name: step.acts[name] | (present & ~step.terminated[name] & ~step.truncated[name])
            for name, present in step.present.items()
        }
        any_goes_on = jnp.stack(
            [flag.reshape(flag.shape[0], -1).any(axis=1) for flag in goes_on.values()]
        ).any(axis=0)

        def choose(name: str) -> Bool[Array, " B *members"]:
            remains = step.present[name] & ~step.terminated[name]
            nobody_goes_on = ~any_goes_on.reshape(-1, *[1] * (remains.ndim - 1))
            return goes_on[name] | (remains & nobody_goes_on)

        is_there = {name: choose(name) for name in goes_on}
        return Scene(obs=step.final_obs, is_there=is_there, global_state=step.final_global_state)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CriticInputs:
    """Inputs of the central critic of a module, one vector for each of its rows.

    They are the global state ("state"), the observations of all agents ("joint", with zeros for
    those that are not there), or the global state and the row's own observation
    ("agent_specific"). If agents share the module, the row's agent follows one-hot. Vectors are
    flat, with choices one-hot, and action masks left out.

    Attributes:
        kind: What the critic sees.
        rows: Agents and modules.
        module: The module.
        state_space: Space of the global state, None if the environment has none.
        observed: Observation space of every agent.
        mask_key: Part of a Dict that is an action mask, or None.
    """

    kind: CriticKind
    rows: AgentRows
    module: str
    state_space: gymnasium.Space[Any] | None
    observed: Mapping[str, gymnasium.Space[Any]]
    mask_key: str | None

    @property
    def reads_state(self) -> bool:
        """True if the environment's global state is needed."""
        return self.kind != "joint"

    @functools.cached_property
    def _positions(self) -> tuple[int, ...]:
        return self.rows.get_positions(self.module)

    @functools.cached_property
    def _sizes(self) -> tuple[int, ...]:
        """Length of each agent's flat observation, in the order of all agents."""
        return tuple(
            get_flat_size(without_parts(self.observed[agent], [self.mask_key]))
            for agent in self.rows.agents
        )

    @functools.cached_property
    def space(self) -> spaces.Box:
        """Space of the vectors."""
        size = 0 if len(self._positions) == 1 else len(self._positions)
        if self.reads_state:
            assert self.state_space is not None
            size += get_flat_size(self.state_space)
        if self.kind == "joint":
            size += sum(self._sizes)
        if self.kind == "agent_specific":
            size += self._sizes[self._positions[0]]
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def __call__(self, scene: Scene) -> Float[Array, "R n"]:
        """Return the input of each of the module's rows, `[B * agents, n]`."""
        parts: list[Array] = []
        if self.reads_state:
            assert self.state_space is not None
            state = flatten(self.state_space, scene.global_state)
            parts.append(self.rows.repeat(state, self.module))
        if self.kind == "joint":
            parts.append(self._join(scene))
        if self.kind == "agent_specific":
            own = self.rows.gather(scene.obs, self.module)
            space = self.observed[self.rows.agents[self._positions[0]]]
            parts.append(flatten(without_parts(space, [self.mask_key]), own))
        number = len(self._positions)
        if number > 1:
            places = self.rows.get_places(self.module, scene.num_envs)
            parts.append(jnp.asarray(np.eye(number, dtype=np.float32)[places]))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)

    def _join(self, scene: Scene) -> Float[Array, "R n"]:
        """Return the observations of all agents for each row, whose own agent is always there."""
        flat = jnp.concatenate([self._flatten(e, scene.obs) for e in self.rows.entries], axis=-1)
        agents = self.rows.get_cells(self.module, flat.shape[0])[:, 1]
        is_own = np.eye(len(self.rows.agents), dtype=bool)[agents]
        is_there = self.rows.repeat(self.rows.gather_all(scene.is_there), self.module) | is_own
        sizes = np.asarray(self._sizes)
        is_shown = jnp.repeat(is_there, sizes, axis=-1, total_repeat_length=int(sizes.sum()))
        return jnp.where(is_shown, self.rows.repeat(flat, self.module), 0.0)

    def _flatten(self, entry: Entry, obs: Mapping[str, PyTree]) -> Float[Array, "B n"]:
        """Return the flat observations of an entry's agents, one after the other."""
        space = without_parts(self.observed[entry.agents[0]], [self.mask_key])
        flat = flatten(space, obs[entry.key])
        return flat.reshape(flat.shape[0], -1)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AgentView:
    """Observations of the agents of a module, with ids or without, and inputs of their critic.

    Attributes:
        ids: Ids that observations are joined with, or None.
        critic: Inputs of a central critic, or None.
    """

    ids: AgentIds | None = None
    critic: CriticInputs | None = None

    def without_critic(self) -> "AgentView":
        """Return the view of agents that act without being trained."""
        return dataclasses.replace(self, critic=None)

    def observe(self, gathered: PyTree, places: np.ndarray) -> PyTree:
        """Return the observations that the module's agents act on, given the environment's.

        Args:
            gathered: Observations of the module's rows.
            places: Index of each row's agent among the module's.
        """
        return gathered if self.ids is None else self.ids.join_rows(gathered, places)

    def record(self, gathered: PyTree, places: np.ndarray, scene: Scene) -> PyTree:
        """Return the observations that the module learns from."""
        obs = self.observe(gathered, places)
        return obs if self.critic is None else CentralObs(obs=obs, state=self.critic(scene))

    def make_blank(self, obs: PyTree, num_rows: int) -> PyTree:
        """Return all-zero observations to learn from, given those that are acted on."""
        if self.critic is None:
            return obs
        zeros = jnp.zeros((num_rows, *self.critic.space.shape), jnp.float32)
        return CentralObs(obs=obs, state=zeros)


def without_critics(rollout: Rollout) -> Rollout:
    """Return rows with the observations that agents act on, without their recurrent state."""

    def strip(obs: PyTree) -> PyTree:
        return obs.obs if isinstance(obs, CentralObs) else obs

    plain = replace(rollout, obs=strip(rollout.obs), final_obs=strip(rollout.final_obs))
    return replace(plain, carry_in=None)
