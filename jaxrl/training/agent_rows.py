"""Layout of agents in the rows of modules: an agent in an environment is a row."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.config.settings.training import CriticKind
from jaxrl.connectors.agent_ids import AgentIds
from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.spaces import without_parts
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import CentralObs, Keys, PyTree, Rollout
from jaxrl.envs.multi.base import Entry
from jaxrl.envs.multi.vector import Flags, MultiVectorState, MultiVectorStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """Members of an entry that a module plays."""

    entry: Entry
    members: tuple[int, ...]
    """Indices among the entry's agents."""
    places: tuple[int, ...]
    """Indices among the module's agents."""


@pytree
class ActingRows:
    """Rows of a module whose agents act, in `M` places for each environment.

    Attributes:
        source: Row in each place; where fewer agents of an environment act, any row of it.
        place: Place of each row; where its agent does not act, any place of its environment.
    """

    source: Int[Array, " places"]
    place: Int[Array, " R"]


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

    def find_acting(
        self, acts: Bool[Array, " R"], module: str, num_envs: int, max_acting: int
    ) -> ActingRows | None:
        """Find a module's rows that act; None if there are no more rows than may act.

        Args:
            acts: Whether the agent of each row acts.
            module: Module.
            num_envs: Number of environments.
            max_acting: Most agents of an environment that act at a step.
        """
        envs, _ = self.get_cells(module, num_envs).T
        counts = np.bincount(envs, minlength=num_envs)
        most = min(max_acting, int(counts.max()))
        if len(envs) <= num_envs * most:
            return None
        # A table of the rows of each environment, padded with rows that do not act.
        first = np.cumsum(counts) - counts
        column = (np.arange(len(envs)) - first[envs]).astype(np.int32)
        columns = np.arange(counts.max(), dtype=np.int32)[None]
        table = np.minimum(first[:, None] + columns, len(envs) - 1).astype(np.int32)
        flags = acts[table] & (columns < counts[:, None])
        rank = jnp.cumsum(flags, axis=1, dtype=jnp.int32) - 1
        ranks = np.arange(most, dtype=np.int32)[None, :, None]
        chosen = jnp.argmax(flags[:, None] & (rank[:, None] == ranks), axis=-1)
        source = jnp.take_along_axis(jnp.asarray(table), chosen, axis=1)
        place = jnp.clip(rank, 0, most - 1)[envs, column] + most * envs
        return ActingRows(source=source.reshape(-1), place=place)

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


@pytree
class BegunRow:
    """Begun row of each agent, `[R, ...]`; `carry` is the agent's carry before it acted."""

    obs: PyTree
    action: PyTree
    extras: dict[str, PyTree]
    is_first: Bool[Array, " R"]
    carry: PyTree


@pytree
class PendingRows:
    """Rows that are not complete; `begun` and `reward` are valid where `has_row`."""

    has_row: Bool[Array, " R"]
    reward: Float[Array, " R"]
    begun: BegunRow


@pytree
class AgentStep:
    """Meaning of a step of the environments to each agent, `[R, ...]`.

    `ended` is the agent's own end or that of its episode. `acts_next` is whether it acts at the next
    step of the same episode. `final_obs` is its observation after the step, before any reset.
    `is_valid` is False where the step was no transition because something was not finite.
    """

    reward: Float[Array, " R"]
    terminated: Bool[Array, " R"]
    truncated: Bool[Array, " R"]
    ended: Bool[Array, " R"]
    acts_next: Bool[Array, " R"]
    final_obs: PyTree
    is_valid: Bool[Array, " R"]


def make_no_rows(begun: BegunRow) -> PendingRows:
    """Return pending rows of no agent, for rows of these shapes."""
    rows = begun.is_first.shape[0]
    return PendingRows(
        has_row=jnp.zeros((rows,), bool),
        reward=jnp.zeros((rows,), jnp.float32),
        begun=jax.tree.map(jnp.zeros_like, begun),
    )


def complete_rows(
    pending: PendingRows, acts: Bool[Array, " R"], begun: BegunRow, step: AgentStep
) -> tuple[PendingRows, Rollout]:
    """Begin the rows of agents that acted, and complete those that a step completes.

    Between two actions of an agent there is one row, so a step completes at most one row of each.

    Args:
        pending: Rows that were pending before the step.
        acts: Whether each agent acted at this step.
        begun: Rows to begin, used where `acts`.
        step: What the step meant to the agents.

    Returns:
        The rows that are pending after it, and one row of a Rollout `[R, ...]` whose `mask` is True
        where a row was completed.
    """
    current = where_rows(acts, begun, pending.begun)
    has_row = acts | pending.has_row
    reward = jnp.where(acts, 0.0, pending.reward) + step.reward
    is_complete = has_row & step.is_valid & (step.ended | step.acts_next)
    row = Rollout(
        obs=current.obs,
        action=current.action,
        reward=jnp.where(is_complete, reward, 0.0),
        terminated=step.terminated & is_complete,
        truncated=step.truncated & is_complete,
        final_obs=step.final_obs,
        is_first=current.is_first & is_complete,
        mask=is_complete,
        extras=current.extras,
    )
    after = PendingRows(
        has_row=has_row & step.is_valid & ~is_complete,
        reward=jnp.where(is_complete, 0.0, reward),
        begun=current,
    )
    return after, row


def pack_rows(rollout: Rollout) -> Rollout:
    """Move the complete rows of each column `[T, R, ...]` to its front, in their order.

    The row behind the last complete one has that row's `final_obs` as its `obs`, so that its value
    is the bootstrap value; it and all others behind are masked. What follows a rollout then sees
    rows that are consecutive in each agent's own time. Where an episode's last row was dropped (a
    step that was not finite), the one before it becomes truncated, so that nothing runs across.
    """
    num_steps = rollout.mask.shape[0]
    numbers = jnp.cumsum(rollout.mask, axis=0, dtype=jnp.int32)
    steps = jnp.arange(num_steps, dtype=jnp.int32)[:, None]
    columns = jnp.arange(rollout.mask.shape[1], dtype=jnp.int32)[None]
    place = jnp.where(rollout.mask, numbers - 1, num_steps)
    source = (
        jnp.zeros_like(place)
        .at[place, columns]
        .set(jnp.broadcast_to(steps, place.shape), mode="drop")
    )
    is_filled = steps < numbers[-1:]
    rows = jax.tree.map(lambda x: x[source, columns], replace(rollout, carry_in=None))
    is_behind = (steps == numbers[-1:]) & (steps > 0)

    def bootstrap(obs: Array, final_obs: Array) -> Array:
        previous = jnp.concatenate([final_obs[:1], final_obs[:-1]])
        return jnp.where(_expand(is_behind, obs), previous, obs)

    is_first = rows.is_first & is_filled
    is_cut = jnp.concatenate([is_first[1:], jnp.zeros_like(is_first[:1])]) & ~rows.terminated
    return replace(
        rows,
        obs=jax.tree.map(bootstrap, rows.obs, rows.final_obs),
        reward=jnp.where(is_filled, rows.reward, 0.0),
        terminated=rows.terminated & is_filled,
        truncated=(rows.truncated | is_cut) & is_filled,
        is_first=is_first,
        mask=is_filled,
        carry_in=rollout.carry_in,
    )


def _expand(rows: Array, like: Array) -> Array:
    """Give an array `[T, R]` trailing axes of length 1, as many as another has."""
    return rows.reshape(rows.shape + (1,) * (like.ndim - rows.ndim))
