"""Rows of agents in the modules that play them, with the episodes that choose these modules."""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.config.agent_mapping import accept_worker
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_vector import MultiHostVector
from jaxrl.episodes.multi_agent import MultiAgentEpisode
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.training.agent_rows import AgentRows


class AgentSlots:
    """Places of agents in the rows of modules, `row = env * agents of the module + place`.

    Args:
        rows: Agents in the rows of modules.
        get_mapping_fn: Function that returns the user's `policy_mapping_fn`, for agents whose module
            may change; None if there are none. It is called when an episode is made.
        env_index: Indices of the environments within the run.
        vector: Copies of the environment, which know the environment's own ids of agents and, if
            these are those of slots, which modules play them.
    """

    def __init__(
        self,
        rows: AgentRows,
        get_mapping_fn: Callable[[], Callable[..., Any] | None],
        env_index: np.ndarray,
        vector: MultiHostVector,
    ) -> None:
        self.env_index = env_index
        self._get_mapping_fn, self._get_own_id = get_mapping_fn, vector.get_own_id
        self._vector, self._has_slots = vector, vector.has_slots
        vector.set_episode_maker(
            lambda choose: MultiAgentEpisode(agent_to_module_mapping_fn=choose)
        )
        self.set_rows(rows)
        self.position = {agent: i for i, agent in enumerate(rows.agents)}
        self._modules: list[dict[str, str]] = [{} for _ in env_index]
        self.episodes = [
            MultiAgentEpisode(agent_to_module_mapping_fn=self._make_choice()) for _ in env_index
        ]

    def set_rows(self, rows: AgentRows) -> None:
        """Set the rows of modules, which may be more than before; ongoing episodes keep theirs."""
        self.rows = rows
        self.members = {
            m: tuple(rows.agents[i] for i in rows.get_positions(m)) for m in rows.modules
        }
        self._places = {
            m: {agent: place for place, agent in enumerate(members)}
            for m, members in self.members.items()
        }

    def make_episode(self, row: int) -> MultiAgentEpisode:
        """Make a new episode of an environment, in which modules are chosen anew."""
        self._modules[row] = {}
        if self._has_slots:
            return cast("MultiAgentEpisode", self._vector.get_episode(row))
        return MultiAgentEpisode(agent_to_module_mapping_fn=self._make_choice())

    def _make_choice(self) -> Callable[[AgentID, MultiAgentEpisode], str]:
        """Return the function that chooses modules in an episode that begins now."""
        function = self._get_mapping_fn()
        return functools.partial(self._choose, function and accept_worker(function))

    def begin_episode(self, row: int) -> MultiAgentEpisode:
        """Replace the episode of an environment by a new one."""
        self.episodes[row] = self.make_episode(row)
        return self.episodes[row]

    def set_episode(self, row: int, episode: MultiAgentEpisode) -> None:
        """Replace the episode of an environment by its next chunk."""
        self.episodes[row] = episode
        if self._has_slots:
            self._vector.set_episode(row, episode)

    def find(self, row: int, agent: str) -> tuple[str, int]:
        """Return the module that plays an agent in an episode, and the agent's row there."""
        module = self._modules[row].get(agent)
        if module is None:
            module = self.rows.mapping[agent]
            if not self._has_slots:
                module = self.episodes[row].module_for(self._get_own_id(row, agent))
            self._modules[row][agent] = module
        return module, row * len(self.members[module]) + self._places[module][agent]

    def get_modules(self, row: int) -> dict[AgentID, str]:
        """Return the module of every agent for which one was chosen in the current episode."""
        if self._has_slots:
            return {}  # the episode knows them
        return {self._get_own_id(row, agent): m for agent, m in self._modules[row].items()}

    def get_agent(self, module: str, row: int) -> tuple[int, str]:
        """Return the environment and the agent of a module's row."""
        env, place = divmod(row, len(self.members[module]))
        return env, self.members[module][place]

    def split_actions(
        self, actions: dict[str, PyTree], acted: dict[str, Bool[np.ndarray, " R"]]
    ) -> list[dict[str, PyTree]]:
        """Return the actions of each environment's agents that act.

        Args:
            actions: Actions by module, `[B, agents, ...]`.
            acted: Whether each row's agent acts, by module.
        """
        by_env: list[dict[str, PyTree]] = [{} for _ in self.env_index]
        for m, active in acted.items():
            for row in np.flatnonzero(active):
                env, place = divmod(int(row), len(self.members[m]))
                by_env[env][self.members[m][place]] = jax.tree.map(
                    lambda x, env=env, place=place: x[env, place], actions[m]
                )
        return by_env

    def find_actors(self, acted: dict[str, Bool[np.ndarray, " R"]]) -> Bool[np.ndarray, "B A"]:
        """Return which agents acted in each environment, in whatever module."""
        num_envs = len(self.env_index)
        found = np.zeros((num_envs, len(self.position)), np.bool_)
        for m, active in acted.items():
            found[:, self.rows.get_positions(m)] |= active.reshape(num_envs, -1)
        return found

    def get_state(self) -> np.ndarray:
        """Return the module of each agent, `[B, A]` indices, -1 where none was chosen yet."""
        modules = self.rows.modules
        state = np.full((len(self.env_index), len(self.position)), -1, np.int32)
        for row, chosen in enumerate(self._modules):
            for agent, module in chosen.items():
                state[row, self.position[agent]] = modules.index(module)
        return state

    def set_state(self, state: np.ndarray) -> None:
        """Restore what `get_state` returned, for new objects of the episodes."""
        modules = self.rows.modules
        for row, chosen in enumerate(np.asarray(state)):
            named = {
                agent: modules[chosen[i]] for agent, i in self.position.items() if chosen[i] >= 0
            }
            self._modules[row] = named
            self.episodes[row] = MultiAgentEpisode(
                agent_module_ids=self.get_modules(row),
                agent_to_module_mapping_fn=self._make_choice(),
            )

    def _choose(
        self,
        mapping_fn: Callable[..., Any] | None,
        agent_id: AgentID,
        episode: MultiAgentEpisode,
    ) -> str:
        """Return the module of an agent in a new episode.

        Raises:
            ConfigError: If the user's function returns one in which the agent has no row.
        """
        rows, agent = self.rows, str(agent_id)
        if mapping_fn is None:
            return rows.mapping[agent]
        try:
            module = mapping_fn(agent_id, episode)
        except Exception as error:
            raise ConfigError(
                f"policy_mapping_fn raised {type(error).__name__} for the agent {agent!r}: {error}."
            ) from error
        choices = [m for m, members in self.members.items() if agent in members]
        if module not in choices:
            raise ConfigError(self._describe_stranger(agent, module, choices))
        return module

    def _describe_stranger(self, agent: str, module: object, choices: list[str]) -> str:
        """Return why a module cannot play an agent, and what would let it."""
        found = (
            f"policy_mapping_fn gives the agent {agent!r} the module {module!r}, but it may be played "
            f"by {', '.join(choices)}"
        )
        if module not in self.members:
            return (
                f"{found}: name all of its modules in policies, with the spaces of its agents, or "
                f"mapping={{{agent!r}: [...]}} beside the function."
                f"{did_you_mean(str(module), choices)}"
            )
        mapping = {a: [m for m, own in self.members.items() if a in own] for a in self.position}
        mapping[agent] += [str(module)]
        return (
            f"{found} since the run was built: set mapping={mapping} beside the function, which says "
            "what it chooses from."
        )
