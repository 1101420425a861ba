"""Layout of agents in the rows of modules: an agent in an environment is a row."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxrl.core.types import Keys, PyTree
from jaxrl.envs.multi.base import Entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """Members of an entry that a module plays."""

    entry: Entry
    members: tuple[int, ...]
    """Indices among the entry's agents."""
    places: tuple[int, ...]
    """Indices among the module's agents."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentRows:
    """Agents of environments and the module of each.

    With a single pattern, the rows of a module are `row = env * number of its agents + place`. With
    several, the environment of index i has the pattern `i % number of patterns`, and a module has a
    row for each of its agents in each environment, in their order. Either way, an environment's
    rows are neighbors, and devices divide them as they divide environments.

    Attributes:
        entries: Entries of the environment's dictionaries.
        patterns: Module of each agent in an environment.
        slots: Agents that each module may play, where that changes from episode to episode: an
            agent then has a row of each of these modules. None if each has its own module.
    """

    entries: tuple[Entry, ...]
    patterns: tuple[Mapping[str, str], ...]
    slots: Mapping[str, tuple[str, ...]] | None = None

    @property
    def may_change(self) -> bool:
        """True if an agent may be played by another module in another episode."""
        return self.slots is not None

    @property
    def mapping(self) -> Mapping[str, str]:
        """Module of each agent in the first environment."""
        return self.patterns[0]

    @functools.cached_property
    def agents(self) -> tuple[str, ...]:
        """All agents, in the order of rows."""
        return tuple(agent for entry in self.entries for agent in entry.agents)

    @functools.cached_property
    def modules(self) -> tuple[str, ...]:
        """All modules that play, sorted."""
        names = {module for own in self.patterns for module in own.values()}
        return tuple(sorted(names if self.slots is None else self.slots))

    @property
    def _is_static(self) -> bool:
        """True if an agent has the same module in every environment."""
        return len(self.patterns) == 1

    @property
    def steps_follow(self) -> bool:
        """True if the numbers of modules' rows follow from those of agents."""
        return self._is_static and self.slots is None

    def _may_play(self, module: str, agent: str, own: Mapping[str, str]) -> bool:
        return own[agent] == module if self.slots is None else agent in self.slots[module]

    def plays(self, module: str, agent: str) -> bool:
        """Return whether a module plays an agent in any environment."""
        return any(self._may_play(module, agent, own) for own in self.patterns)

    def get_positions(self, module: str) -> tuple[int, ...]:
        """Return the indices of a module's agents among all agents."""
        return self._positions.get(module, ())

    @functools.cached_property
    def _positions(self) -> dict[str, tuple[int, ...]]:
        return {
            module: tuple(i for i, agent in enumerate(self.agents) if self.plays(module, agent))
            for module in self.modules
        }

    def get_cells(self, module: str, num_envs: int) -> np.ndarray:
        """Return the environment and the agent of each of a module's rows, int32 `[R, 2]`."""
        table = np.array(
            [[self._may_play(module, agent, own) for agent in self.agents] for own in self.patterns]
        )
        rows = table[np.arange(num_envs) % len(self.patterns)]
        return np.argwhere(rows).astype(np.int32)

    def count_rows(self, module: str, num_envs: int) -> int:
        """Return the number of a module's rows."""
        return len(self.get_cells(module, num_envs))

    def get_places(self, module: str, num_envs: int) -> np.ndarray:
        """Return the index of each row's agent among the module's agents, int32 `[R]`."""
        positions = np.asarray(self.get_positions(module), np.int32)
        return np.searchsorted(positions, self.get_cells(module, num_envs)[:, 1]).astype(np.int32)

    @functools.cached_property
    def _parts(self) -> dict[str, tuple[_Part, ...]]:
        return {module: self._make_parts(module) for module in self.modules}

    def _make_parts(self, module: str) -> tuple[_Part, ...]:
        parts: list[_Part] = []
        first = 0
        for entry in self.entries:
            members = tuple(i for i, a in enumerate(entry.agents) if self.plays(module, a))
            if members:
                places = tuple(range(first, first + len(members)))
                parts.append(_Part(entry=entry, members=members, places=places))
                first += len(members)
        return tuple(parts)

    def gather(self, values: Mapping[str, PyTree], module: str) -> PyTree:
        """Return the rows `[R, ...]` of a module, given the environment's dictionary."""
        columns = [
            jax.tree.map(functools.partial(_select_members, part), values[part.entry.key])
            for part in self._parts[module]
        ]

        def merge(*xs: Array) -> Array:
            joined = _concatenate(xs)
            if self._is_static:
                return _merge_axes(joined)
            envs, _ = self.get_cells(module, joined.shape[0]).T
            return joined[envs, self.get_places(module, joined.shape[0])]

        return jax.tree.map(merge, *columns)

    def gather_all(self, values: Mapping[str, Array]) -> Array:
        """Return numbers or flags of all agents, `[B, agents]`."""
        columns = [
            values[entry.key] if entry.is_kind else values[entry.key][:, None]
            for entry in self.entries
        ]
        return _concatenate(columns)

    def select(self, table: Array, module: str) -> Array:
        """Return a module's rows `[..., R]` of a table `[..., B, all agents]`."""
        if not self._is_static:
            envs, agents = self.get_cells(module, table.shape[-2]).T
            return table[..., envs, agents]
        chosen = table[..., np.asarray(self.get_positions(module), np.int32)]
        return chosen.reshape(*table.shape[:-2], -1)

    def repeat(self, values: Array, module: str) -> Array:
        """Return a value of each environment, `[B, ...]`, for each of a module's rows."""
        if not self._is_static:
            return values[self.get_cells(module, values.shape[0])[:, 0]]
        return jnp.repeat(values, len(self.get_positions(module)), axis=0)

    def number(self, env_index: Int[Array, " B"], module: str) -> Int[Array, " R"]:
        """Return the indices of a module's rows within the run, given those of environments."""
        period = len(self.patterns)
        places = self.get_cells(module, period)
        if self._is_static:
            offsets = jnp.arange(len(places), dtype=env_index.dtype)
            return (env_index[:, None] * len(places) + offsets[None]).reshape(-1)
        cells = self.get_cells(module, env_index.shape[0])
        table = np.zeros((period, len(self.agents)), np.int32)
        table[tuple(places.T)] = np.arange(len(places), dtype=np.int32)
        offsets = table[cells[:, 0] % period, cells[:, 1]]
        return env_index[cells[:, 0]] // period * len(places) + offsets

    def derive_keys(self, keys: Keys, module: str) -> Keys:
        """Return a key of each row, `[T, R]`, given those of environments `[T, B]`.

        An agent's key does not depend on the module that plays it. A single agent has its
        environment's own.
        """
        if len(self.agents) == 1 and self._is_static:
            return keys
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        if not self._is_static:
            envs, agents = self.get_cells(module, keys.shape[1]).T
            by_row = jax.vmap(jax.vmap(jax.random.fold_in), (0, None))
            return by_row(keys[:, envs], jnp.asarray(agents, jnp.uint32))
        positions = jnp.asarray(self.get_positions(module), jnp.uint32)
        for _ in range(2):
            fold = jax.vmap(fold, (0, None))
        return fold(keys, positions).reshape(keys.shape[0], -1)

    def sum_by_agent(self, counts: Array, module: str, num_envs: int) -> Array:
        """Return the sums `[agents]` over a module's rows `[R]`, 0 for agents of other modules."""
        agents = self.get_cells(module, num_envs)[:, 1]
        return jnp.zeros((len(self.agents),), counts.dtype).at[agents].add(counts)

    def scatter(self, rows: Mapping[str, PyTree], num_envs: int) -> dict[str, PyTree]:
        """Return the environment's dictionary, given the rows `[R, ...]` of modules."""
        scatter = self._scatter_entry if self._is_static else self._scatter_by_copy
        return {entry.key: scatter(entry, rows, num_envs) for entry in self.entries}

    def _scatter_entry(self, entry: Entry, rows: Mapping[str, PyTree], num_envs: int) -> PyTree:
        parts = {m: p for m, own in self._parts.items() for p in own if p.entry.key == entry.key}

        def split(module: str, part: _Part, x: Array) -> Array:
            by_env = x.reshape(num_envs, len(self.get_positions(module)), *x.shape[1:])
            return by_env[:, part.places[0] : part.places[-1] + 1]

        columns = [
            jax.tree.map(functools.partial(split, module, part), rows[module])
            for module, part in parts.items()
        ]
        if not entry.is_kind:
            return jax.tree.map(lambda x: x[:, 0], columns[0])
        members = [member for part in parts.values() for member in part.members]
        order = np.argsort(np.asarray(members, np.int32)).astype(np.int32)
        is_sorted = members == sorted(members)

        def join(*xs: Array) -> Array:
            joined = _concatenate(xs)
            return joined if is_sorted else joined[:, order]

        return jax.tree.map(join, *columns)

    def _scatter_by_copy(self, entry: Entry, rows: Mapping[str, PyTree], num_envs: int) -> PyTree:
        """Return the values of an entry whose agents have different modules in environments."""
        modules = [m for m in self.modules if any(self.plays(m, a) for a in entry.agents)]
        source = np.zeros((num_envs, len(self.agents)), np.int32)
        first = 0
        for module in modules:
            envs, agents = self.get_cells(module, num_envs).T
            source[envs, agents] = first + np.arange(len(envs), dtype=np.int32)
            first += len(envs)
        chosen = source[:, [self.agents.index(agent) for agent in entry.agents]]

        def join(*xs: Array) -> Array:
            values = jnp.concatenate(xs)[chosen]
            return values if entry.is_kind else values[:, 0]

        return jax.tree.map(join, *[rows[module] for module in modules])


def make_sharing_matrix(
    agents: tuple[str, ...], teams: Mapping[str, tuple[str, ...]]
) -> np.ndarray:
    """Return the matrix `[A, A]` that gives every agent the mean reward of its team.

    Agents of no team keep their own.
    """
    matrix = np.eye(len(agents), dtype=np.float32)
    for members in teams.values():
        index = [agents.index(agent) for agent in members]
        matrix[np.ix_(index, index)] = 1.0 / len(index)
    return matrix


def _select_members(part: _Part, values: Array) -> Array:
    """Return the members of an entry that belong to a module, `[B, members, ...]`."""
    if not part.entry.is_kind:
        return values[:, None]
    if len(part.members) == len(part.entry.agents):
        return values
    return values[:, np.asarray(part.members, np.int32)]


def _concatenate(columns: Sequence[Array]) -> Array:
    return columns[0] if len(columns) == 1 else jnp.concatenate(list(columns), axis=1)


def _merge_axes(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])
