"""Parts of agents' own episodes from consecutive rollouts of environments of several agents."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int, UInt32

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree, Rollout
from jaxrl.episodes.packing import EpisodePart
from jaxrl.offline.stitch import MAX_PART_LENGTH, Completion, PartStitcher, Progress, count_earlier


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AgentRollout:
    """Rows of a module, an agent in an environment each, in NumPy.

    Attributes:
        rollout: Rows `[T, R, ...]`, of which the masked ones are none.
        completed: Whether a step of the environments completed a row of a column; the rows that are
            not masked follow in this order.
        cells: Column of the environment and index of the agent of each of the module's columns.
        env_ended: Whether a step ended an environment's episode.
        agent_ended: Whether a step ended the episode of an agent.
        begins_episodes: Whether all environments began anew with these rows.
        env_step: Number of each environment's steps before these rows, where rows may have been lost
            before; None if none are.
    """

    rollout: Rollout
    completed: Bool[np.ndarray, "T R"]
    cells: Int[np.ndarray, "R 2"]
    env_ended: Bool[np.ndarray, "T B"]
    agent_ended: Bool[np.ndarray, "T B A"]
    begins_episodes: bool = False
    env_step: UInt32[np.ndarray, " B"] | None = None


class AgentStitcher:
    """Concatenation of the rows of a module's agents to parts of their own episodes.

    Ids are `<episode of all agents>-<agent>-<number of the agent's episode>`, and that of the episode
    of all agents is `<run>-<environment>-<number of its episode>`. An agent that leaves and comes
    again begins another episode of its own. See `PartStitcher`.

    Args:
        run: Name of the run.
        module: Id of the module.
        agents: All agents.
        max_part_length: Number of steps of a long part.
    """

    def __init__(
        self,
        run: str,
        module: str,
        agents: Sequence[str],
        *,
        max_part_length: int = MAX_PART_LENGTH,
    ) -> None:
        self._parts = _AgentParts(run, module, agents, max_part_length=max_part_length)
        self._num_agents = len(agents)

    @property
    def num_dropped(self) -> int:
        """Number of rows of episodes whose time step was not known."""
        return self._parts.num_dropped

    def add(
        self,
        rows: AgentRollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
    ) -> list[EpisodePart]:
        """Add the next rows of the module, and return the parts that they complete.

        Args:
            rows: Rows of the module.
            env_index: Index of each environment within the run.
            version: Version of the weights at each step; a row has that of the step that completed it.
        """
        host = jax.tree.map(np.asarray, replace(rows.rollout, carry_in=None))
        versions = np.broadcast_to(np.asarray(version, np.int64), rows.env_ended.shape)
        ends = np.cumsum(rows.env_ended, axis=0) - rows.env_ended
        found: list[tuple[Completion, EpisodePart]] = []
        earlier = count_earlier(env_index)
        if rows.begins_episodes:
            self._parts.count_left_episodes(env_index.tolist())
        if rows.env_step is not None:
            found.extend(self._cut_lost(rows.env_step, env_index.tolist(), len(rows.env_ended)))
        for column, (env, agent) in enumerate(rows.cells.tolist()):
            places = np.flatnonzero(host.mask[:, column])
            steps = np.flatnonzero(rows.completed[:, column])
            ended = rows.agent_ended[steps, env, agent]
            index = int(env_index[env])
            key = np.asarray([index * self._num_agents + agent])
            for first, end, number in _find_episodes(ends[steps, env]):
                own = _take(host, places[first:end], column)
                # Where rows of a failed step are missing, those before them look truncated.
                own = replace(own, truncated=own.truncated & ended[first:end, None])
                self._parts.episode = self._parts.get_episode(index) + number
                own_versions = versions[steps[first:end], env][:, None]
                parts = self._parts.add_by_column(own, key, own_versions)
                own_steps = earlier[env] * len(rows.env_ended) + steps[first:end]
                found.extend((_to_step(at, own_steps), part) for at, part in parts)
        for env, number in zip(
            env_index.tolist(), rows.env_ended.sum(axis=0).tolist(), strict=True
        ):
            self._parts.count_episodes(env, number)
        return [part for _, part in sorted(found, key=lambda pair: pair[0])]

    def _cut_lost(
        self, env_step: UInt32[np.ndarray, " B"], envs: Sequence[int], num_steps: int
    ) -> Iterator[tuple[Completion, EpisodePart]]:
        """Cut the episodes of environments of which rows have been lost."""
        lost = [
            env
            for env, step in zip(envs, env_step, strict=True)
            if not self._parts.follow(env, step, num_steps)
        ]
        for part in self._parts.cut_episodes(lost):
            yield Completion(0, True), part

    def leave_episodes(self) -> list[EpisodePart]:
        """Cut all open episodes: the next rows do not continue them."""
        return self._parts.leave_episodes()

    def flush(self) -> list[EpisodePart]:
        """Return the open rows as parts, which later ones continue."""
        return self._parts.flush()

    def get_state(self) -> dict[str, Any]:
        """Return what `set_state` needs, as plain data; open rows are no part of it.

        Raises:
            DataError: If rows are open: call `flush` first.
        """
        return self._parts.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the episodes and the ids at the time of `get_state`."""
        self._parts.set_state(state)


class _AgentParts(PartStitcher):
    """Parts of agents' episodes; `episode` is the number of that which the next rows are of."""

    def __init__(
        self, run: str, module: str, agents: Sequence[str], *, max_part_length: int
    ) -> None:
        super().__init__(run, max_part_length=max_part_length)
        self._module, self._agents = module, tuple(agents)
        self.episode = 0
        self._episodes: dict[int, int] = {}
        self._begun: dict[int, int] = {}

    def get_episode(self, env: int) -> int:
        """Return the number of episodes of an environment that ended before."""
        return self._episodes.get(env, 0)

    def count_episodes(self, env: int, number: int) -> None:
        """Add episodes of an environment that ended."""
        self._episodes[env] = self.get_episode(env) + number

    def count_left_episodes(self, envs: Sequence[int]) -> None:
        """Count the episodes that environments were in, of which nothing more will come."""
        for env in envs:
            if env in self._episodes:
                self.count_episodes(env, 1)

    def cut_episodes(self, envs: Sequence[int]) -> list[EpisodePart]:
        """Cut the episodes that environments were in."""
        number = len(self._agents)
        keys = [env * number + agent for env in envs for agent in range(number)]
        parts = [part for key in keys for part in self._cut(key)]
        self.count_left_episodes(envs)
        return parts

    def leave_episodes(self) -> list[EpisodePart]:
        self._steps.clear()
        return self.cut_episodes(sorted(self._episodes))

    def _begin(self, env: int, t_started: int) -> Progress:
        self._begun[env] = self.episode
        return super()._begin(env, t_started)

    def _name(self, env: int, number: int) -> dict[str, str]:
        index, agent = divmod(env, len(self._agents))
        episode = f"{self._run}-{index}-{self._begun[env]}"
        return {
            "episode_id": f"{episode}-{self._agents[agent]}-{number}",
            "agent_id": self._agents[agent],
            "module_id": self._module,
            "multi_agent_episode_id": episode,
        }

    def get_state(self) -> dict[str, Any]:
        return {
            **super().get_state(),
            "episodes": {str(env): number for env, number in self._episodes.items()},
            "begun": {str(env): number for env, number in self._begun.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._episodes, self._begun = (
            {int(env): int(number) for env, number in dict(state[name]).items()}
            for name in ("episodes", "begun")
        )


def _to_step(at: Completion, steps: Int[np.ndarray, " L"]) -> Completion:
    """Return the step of the environments that completed a part, from the row that did."""
    return Completion(int(steps[at.num_rows if at.by_next else at.num_rows - 1]), at.by_next)


def _find_episodes(numbers: Int[np.ndarray, " L"]) -> Iterator[tuple[int, int, int]]:
    """Yield the first row, the end and the number of consecutive rows of one episode."""
    borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for first, end in itertools.pairwise(borders):
        if end > first:
            yield first, end, int(numbers[first])


def _take(host: Rollout, places: Int[np.ndarray, " L"], column: int) -> Rollout:
    """Return rows of a column, `[L, 1, ...]`."""

    def take(leaf: PyTree) -> np.ndarray:
        return leaf[places, column][:, None]

    return jax.tree.map(take, host)
