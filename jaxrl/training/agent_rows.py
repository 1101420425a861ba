"""Layout of agents in the rows of modules: an agent in an environment is a row."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxrl.core.types import Keys, PyTree
from jaxrl.envs.multi.base import Entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """Members of an entry that belong to one module."""

    module: str
    entry: Entry
    members: tuple[int, ...]
    """Indices among the entry's agents."""
    places: tuple[int, ...]
    """Indices among the module's agents."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentRows:
    """Agents of an environment and the module of each.

    The rows of a module are `row = env * number of its agents + place`, so that an environment's
    rows are neighbors, and devices divide them as they divide environments.

    Attributes:
        entries: Entries of the environment's dictionaries.
        mapping: Module of each agent.
        slots: Agents that each module may play, where that changes from episode to episode: an
            agent then has a row of each of these modules. None if each has its own module.
    """

    entries: tuple[Entry, ...]
    mapping: Mapping[str, str]
    slots: Mapping[str, tuple[str, ...]] | None = None

    @property
    def may_change(self) -> bool:
        """True if an agent may be played by another module in another episode."""
        return self.slots is not None

    @functools.cached_property
    def agents(self) -> tuple[str, ...]:
        """All agents, in the order of rows."""
        return tuple(agent for entry in self.entries for agent in entry.agents)

    @functools.cached_property
    def modules(self) -> tuple[str, ...]:
        """All modules that play, sorted."""
        return tuple(sorted(set(self.mapping.values()) if self.slots is None else self.slots))

    def get_positions(self, module: str) -> tuple[int, ...]:
        """Return the indices of a module's agents among all agents."""
        if self.slots is not None:
            return tuple(i for i, agent in enumerate(self.agents) if agent in self.slots[module])
        return tuple(i for i, agent in enumerate(self.agents) if self.mapping[agent] == module)

    @functools.cached_property
    def _parts(self) -> tuple[_Part, ...]:
        parts: list[_Part] = []
        counts = dict.fromkeys(self.modules, 0)
        for entry in self.entries:
            for module in dict.fromkeys(self.mapping[agent] for agent in entry.agents):
                members = tuple(i for i, a in enumerate(entry.agents) if self.mapping[a] == module)
                first = counts[module]
                counts[module] += len(members)
                places = tuple(range(first, counts[module]))
                parts.append(_Part(module=module, entry=entry, members=members, places=places))
        return tuple(parts)

    def gather(self, values: Mapping[str, PyTree], module: str) -> PyTree:
        """Return the rows `[B * agents, ...]` of a module, given the environment's dictionary."""
        columns = [
            jax.tree.map(functools.partial(_select_members, part), values[part.entry.key])
            for part in self._parts
            if part.module == module
        ]
        return jax.tree.map(lambda *xs: _merge_axes(_concatenate(xs)), *columns)

    def gather_all(self, values: Mapping[str, Array]) -> Array:
        """Return numbers or flags of all agents, `[B, agents]`."""
        columns = [
            values[entry.key] if entry.is_kind else values[entry.key][:, None]
            for entry in self.entries
        ]
        return _concatenate(columns)

    def select(self, table: Array, module: str) -> Array:
        """Return a module's rows `[..., B * agents]` of a table `[..., B, all agents]`."""
        chosen = table[..., np.asarray(self.get_positions(module), np.int32)]
        return chosen.reshape(*table.shape[:-2], -1)

    def repeat(self, values: Array, module: str) -> Array:
        """Return a value of each environment, `[B]`, for each of a module's rows."""
        return jnp.repeat(values, len(self.get_positions(module)), axis=0)

    def number(self, env_index: Int[Array, " B"], module: str) -> Int[Array, " R"]:
        """Return the indices of a module's rows within the run, given those of environments."""
        size = len(self.get_positions(module))
        places = jnp.arange(size, dtype=env_index.dtype)
        return (env_index[:, None] * size + places[None]).reshape(-1)

    def derive_keys(self, keys: Keys, module: str) -> Keys:
        """Return a key of each row, `[T, B * agents]`, given those of environments `[T, B]`.

        An agent's key does not depend on the module that plays it. A single agent has its
        environment's own.
        """
        if len(self.agents) == 1:
            return keys
        positions = jnp.asarray(self.get_positions(module), jnp.uint32)
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        for _ in range(2):
            fold = jax.vmap(fold, (0, None))
        return fold(keys, positions).reshape(keys.shape[0], -1)

    def scatter(self, rows: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Return the environment's dictionary, given the rows `[B * agents, ...]` of modules."""
        return {entry.key: self._scatter_entry(entry, rows) for entry in self.entries}

    def _scatter_entry(self, entry: Entry, rows: Mapping[str, PyTree]) -> PyTree:
        parts = [part for part in self._parts if part.entry.key == entry.key]

        def split(part: _Part, x: Array) -> Array:
            size = len(self.get_positions(part.module))
            by_env = x.reshape(-1, size, *x.shape[1:])
            return by_env[:, part.places[0] : part.places[-1] + 1]

        columns = [
            jax.tree.map(functools.partial(split, part), rows[part.module]) for part in parts
        ]
        if not entry.is_kind:
            return jax.tree.map(lambda x: x[:, 0], columns[0])
        members = [member for part in parts for member in part.members]
        order = np.argsort(np.asarray(members, np.int32)).astype(np.int32)
        is_sorted = members == sorted(members)

        def join(*xs: Array) -> Array:
            joined = _concatenate(xs)
            return joined if is_sorted else joined[:, order]

        return jax.tree.map(join, *columns)


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


def any_rows(mask: Bool[Array, "T R"], axis_name: str | None) -> Bool[Array, ""]:
    """Return whether any row, on any device, is a transition."""
    found = mask.any()
    return found if axis_name is None else jax.lax.pmax(found.astype(jnp.int32), axis_name) > 0


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
