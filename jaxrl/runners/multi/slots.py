"""Rows of agents in the groups of the modules that play them, and the episodes that choose these."""

import functools
import operator
from collections.abc import Callable, Mapping
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
from jaxrl.runners.module_groups import ModuleGroup
from jaxrl.training.agent_rows import AgentRows


class AgentSlots:
    """Places of agents in the rows of groups of modules, `row = env * width of the group + place`.

    Args:
        rows: Agents in the rows of modules.
        groups: Groups of modules.
        get_mapping_fn: Function that returns the user's `policy_mapping_fn`, for agents whose module
            may change; None if there are none. It is called when an episode is made.
        env_index: Indices of the environments within the run.
        vector: Copies of the environment, which know the environment's own ids of agents and, if
            these are those of slots, which modules play them.
    """

    def __init__(
        self,
        rows: AgentRows,
        groups: Mapping[str, ModuleGroup],
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
        self.set_rows(rows, groups)
        self.position = {agent: i for i, agent in enumerate(rows.agents)}
        self._modules: list[dict[str, str]] = [{} for _ in env_index]
        self.episodes = [
            MultiAgentEpisode(agent_to_module_mapping_fn=self._make_choice()) for _ in env_index
        ]

    def set_rows(self, rows: AgentRows, groups: Mapping[str, ModuleGroup]) -> None:
        """Set the rows of modules, which may be more than before; ongoing episodes keep theirs."""
        self.rows, self._groups = rows, groups
        self.members = {
            m: tuple(rows.agents[i] for i in rows.get_positions(m)) for m in rows.modules
        }
        self._players = {
            id_: [(agent, m) for m in group.modules for agent in self.members[m]]
            for id_, group in groups.items()
        }
        """Agent and module of each of a group's places."""
        self._places = {
            (m, agent): (id_, place)
            for id_, players in self._players.items()
            for place, (agent, m) in enumerate(players)
        }
        self._columns = {id_: self._make_columns(group) for id_, group in groups.items()}
        self._positions = {
            id_: np.asarray([i for _, own in columns for i in own], np.int32)
            for id_, columns in self._columns.items()
        }
        order = [m for group in groups.values() for m in group.modules]
        self._is_ordered = order == sorted(order)
        self._found: list[dict[str, tuple[str, int]]] = [{} for _ in self.env_index]

    def _make_columns(self, group: ModuleGroup) -> list[tuple[slice, list[int]]]:
        """Return places of a group with the positions of their agents, none of them twice."""
        positions = [list(self.rows.get_positions(m)) for m in group.modules]
        joined = [i for own in positions for i in own]
        if len(set(joined)) == len(joined):
            return [(slice(0, group.width), joined)]
        starts = range(0, group.width, group.size)
        return [(slice(i, i + group.size), own) for i, own in zip(starts, positions, strict=True)]

    def make_episode(self, row: int) -> MultiAgentEpisode:
        """Make a new episode of an environment, in which modules are chosen anew."""
        self._modules[row], self._found[row] = {}, {}
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
        """Return the group of the module that plays an agent in an episode, and the agent's row."""
        found = self._found[row].get(agent)
        if found is None:
            id_, place = self._places[self.find_module(row, agent), agent]
            found = self._found[row][agent] = id_, row * self._groups[id_].width + place
        return found

    def find_module(self, row: int, agent: str) -> str:
        """Return the module that plays an agent in an environment's episode."""
        module = self._modules[row].get(agent)
        if module is None:
            module = self.rows.mapping[agent]
            if not self._has_slots:
                module = self.episodes[row].module_for(self._get_own_id(row, agent))
            self._modules[row][agent] = module
        return module

    def get_modules(self, row: int) -> dict[AgentID, str]:
        """Return the module of every agent for which one was chosen in the current episode."""
        if self._has_slots:
            return {}  # the episode knows them
        return {self._get_own_id(row, agent): m for agent, m in self._modules[row].items()}

    def get_agent(self, group: str, row: int) -> tuple[int, str]:
        """Return the environment and the agent of a group's row."""
        env, place = divmod(row, self._groups[group].width)
        return env, self._players[group][place][0]

    def split_actions(
        self, actions: dict[str, PyTree], acted: dict[str, Bool[np.ndarray, " R"]]
    ) -> list[dict[str, PyTree]]:
        """Return the actions of each environment's agents that act, in the order of modules.

        Args:
            actions: Actions by group, `[R, ...]`.
            acted: Whether each row's agent acts, by group.
        """
        found: list[list[tuple[str, str, PyTree]]] = [[] for _ in self.env_index]
        for id_, active in acted.items():
            leaves, structure = jax.tree.flatten(actions[id_])
            width, players = self._groups[id_].width, self._players[id_]
            rows = np.flatnonzero(active).tolist()
            is_array = jax.tree_util.treedef_is_leaf(structure)
            for row in rows:
                env, place = divmod(row, width)
                own = leaves[0][row] if is_array else structure.unflatten([x[row] for x in leaves])
                agent, module = players[place]
                found[env].append((module, agent, own))
        if not self._is_ordered:
            for own in found:
                own.sort(key=operator.itemgetter(0))
        return [{agent: action for _, agent, action in own} for own in found]

    def find_actors(self, acted: dict[str, Bool[np.ndarray, " R"]]) -> Bool[np.ndarray, "B A"]:
        """Return which agents acted in each environment, in whatever module."""
        num_envs = len(self.env_index)
        found = np.zeros((num_envs, len(self.position)), np.bool_)
        for id_, active in acted.items():
            by_env = active.reshape(num_envs, -1)
            for places, positions in self._columns[id_]:
                found[:, positions] |= by_env[:, places]
        return found

    def select(self, table: np.ndarray, group: str) -> np.ndarray:
        """Return a group's rows `[R]` of a table `[B, all agents]`."""
        return table.take(self._positions[group], axis=1).reshape(-1)

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
            self._modules[row], self._found[row] = named, {}
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
