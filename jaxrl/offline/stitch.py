"""Parts of episodes: cut from consecutive rollouts of environments, and joined to longer ones."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Bool, Int, UInt32

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree, Rollout
from jaxrl.episodes.packing import EpisodePart, find_segments
from jaxrl.errors import DataError

MAX_PART_LENGTH = 4096

_COLUMNS = ("obs", "action", "reward", "extras", "version")


@dataclasses.dataclass(eq=False)
class Progress:
    """Episode that an environment is in: its number, its next time step, and its open rows."""

    number: int
    t: int
    rows: list[dict[str, PyTree]] = dataclasses.field(default_factory=list[dict[str, PyTree]])
    final_obs: PyTree = None
    carry: PyTree = None

    def count_rows(self) -> int:
        return sum(len(rows["reward"]) for rows in self.rows)


class Completion(NamedTuple):
    """Place of what completes a part: the environment's rows before it, and whether the next one tells."""

    num_rows: int
    by_next: bool


class Stitcher:
    """Base of the concatenation of rows to parts of episodes, of which each column has one at a time.

    A part is kept open across rollouts until its episode ends or it is long enough. Parts are in order
    of the rows that complete them, so that the division into rollouts changes nothing. Ids depend on
    nothing but the run's own course. `num_dropped` counts the rows of episodes whose time step was
    not known.

    Args:
        run: Name of the run; other runs whose data are used together have other names.
        max_part_length: Number of steps of a long part. With a `carry_in`, which is known only at the
            first row of a rollout, it ends with its rollout instead, and may be longer.
    """

    def __init__(self, run: str, *, max_part_length: int = MAX_PART_LENGTH) -> None:
        self._run = run
        self._max_length = max_part_length
        self._progress: dict[int, Progress] = {}
        self._numbers: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self.num_dropped = 0

    def add_by_column(
        self,
        rollout: Rollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
        env_step: UInt32[np.ndarray, " B"] | None = None,
        *,
        t_started: Int[np.ndarray, " B"] | None = None,
    ) -> list[tuple[Completion, EpisodePart]]:
        """Add the next rows, and return the parts column by column, each with its completion.

        Masked rows are no transitions: an episode before one is cut. If a row is the first of an
        episode and the one before was not its last, that one is cut, too. A row that is terminated
        and truncated is terminated.

        Args:
            rollout: Rows `[T, B, ...]` of NumPy or JAX arrays. Its `carry_in` becomes the `carry` of
                parts that continue an episode.
            env_index: Index of each column's environment within the run. Columns of the same one are
                consecutive in time.
            version: Version of the weights that chose the actions; -1 where it is unknown.
            env_step: Number of steps of each column's environment before its first row, where rows
                may have been lost before: then the episode is cut. None if none are.
            t_started: Number of steps of each column's episode before its first row, for those that
                began before the first call; None drops their rows up to the next start.
        """
        host = jax.tree.map(np.asarray, rollout)
        versions = np.broadcast_to(np.asarray(version, np.int64), host.mask.shape)
        parts: list[tuple[Completion, EpisodePart]] = []
        earlier = _count_earlier(env_index)
        for column, env in enumerate(np.asarray(env_index).tolist()):
            known = None if t_started is None else int(t_started[column])
            before = earlier[column] * len(host.mask)
            if env_step is not None and not self._follow(env, env_step[column], len(host.mask)):
                parts.extend((Completion(before, True), part) for part in self._cut(env))
            parts.extend(
                (at._replace(num_rows=before + at.num_rows), part)
                for at, part in self._add_column(host, versions, column, env, known)
            )
        return parts

    def _follow(self, env: int, env_step: np.integer[Any], num_steps: int) -> bool:
        """Return whether rows follow the latest ones of an environment, and count them."""
        expected = self._steps.get(env, int(env_step))
        self._steps[env] = int(env_step) + num_steps
        return expected == int(env_step)

    def leave_episodes(self) -> list[EpisodePart]:
        """Cut all open episodes: the next rows do not continue them."""
        self._steps.clear()
        return [part for env in sorted(self._progress) for part in self._cut(env)]

    def flush(self) -> list[EpisodePart]:
        """Return the open rows as parts, which later ones continue."""
        parts: list[EpisodePart] = []
        for env in sorted(self._progress):
            parts.extend(self._emit(env, self._progress[env]))
        return parts

    def get_state(self) -> dict[str, Any]:
        """Return what `set_state` needs, as plain data; open rows are no part of it.

        Raises:
            DataError: If rows are open: call `flush` first.
        """
        if any(progress.rows for progress in self._progress.values()):
            raise DataError("The state of a PartStitcher has no open rows: call flush() first.")
        return {
            "run": self._run,
            "numbers": {str(env): number for env, number in self._numbers.items()},
            "progress": {str(env): [p.number, p.t] for env, p in self._progress.items()},
            "steps": {str(env): number for env, number in self._steps.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the episodes and the ids at the time of `get_state`."""
        self._run = str(state["run"])
        numbers = cast("Mapping[str, int]", state["numbers"])
        progress = cast("Mapping[str, list[int]]", state["progress"])
        steps = cast("Mapping[str, int]", state.get("steps", {}))
        self._steps = {int(env): int(number) for env, number in steps.items()}
        self._numbers = {int(env): int(number) for env, number in numbers.items()}
        self._progress = {
            int(env): Progress(number=int(number), t=int(t))
            for env, (number, t) in progress.items()
        }

    def _add_column(
        self,
        host: Rollout,
        versions: Int[np.ndarray, "T B"],
        column: int,
        env: int,
        t_started: int | None,
    ) -> Iterator[tuple[Completion, EpisodePart]]:
        for first, end in find_segments(host, column):
            is_start = bool(host.is_first[first, column])
            if is_start or not host.mask[first, column]:
                yield from ((Completion(first, True), part) for part in self._cut(env))
            if not host.mask[first, column]:
                continue
            progress = self._progress.get(env)
            if progress is None:
                if not is_start and (first > 0 or t_started is None):
                    self.num_dropped += end - first
                    continue
                progress = self._begin(env, 0 if is_start or t_started is None else t_started)
            if not progress.rows and not is_start and first == 0:
                # The leaves of carry_in have no axis of time.
                progress.carry = jax.tree.map(
                    lambda leaf: leaf[column : column + 1].copy(), host.carry_in
                )
            yield from self._add_rows(progress, host, versions, column, env, range(first, end))
        progress = self._progress.get(env)
        if progress is not None and progress.count_rows() >= self._max_length:
            completion = Completion(len(host.mask), False)
            yield from ((completion, part) for part in self._emit(env, progress))

    def _add_rows(
        self,
        progress: Progress,
        host: Rollout,
        versions: Int[np.ndarray, "T B"],
        column: int,
        env: int,
        rows: range,
    ) -> Iterator[tuple[Completion, EpisodePart]]:
        """Add consecutive rows of an episode, which may complete parts of it."""
        has_carry = bool(jax.tree.leaves(host.carry_in))
        first, end = rows.start, rows.stop
        terminated, truncated = (
            bool(flag[end - 1, column]) for flag in (host.terminated, host.truncated)
        )
        while first < end:
            room = self._max_length - progress.count_rows()
            stop = end if has_carry else min(end, first + room)
            _append(progress, host, versions, column, first, stop)
            has_ended = stop == end and (terminated or truncated)
            if has_ended:
                del self._progress[env]
            if has_ended or (stop - first == room and not has_carry):
                parts = self._emit(
                    env,
                    progress,
                    terminated=has_ended and terminated,
                    truncated=has_ended and truncated and not terminated,
                )
                yield from ((Completion(stop, False), part) for part in parts)
            first = stop

    def _name(self, env: int, number: int) -> dict[str, str]:
        """Return the fields of a part that say which episode it is of.

        Args:
            env: Index of the environment.
            number: Number of its episode.
        """
        return {"episode_id": f"{self._run}-{env}-{number}"}

    def _begin(self, env: int, t_started: int) -> Progress:
        number = self._numbers.get(env, 0)
        self._numbers[env] = number + 1
        progress = self._progress[env] = Progress(number=number, t=t_started)
        return progress

    def _cut(self, env: int) -> Iterator[EpisodePart]:
        """End the episode of an environment of which nothing more will come."""
        progress = self._progress.pop(env, None)
        if progress is not None:
            yield from self._emit(env, progress, is_cut=True)

    def _emit(
        self,
        env: int,
        progress: Progress,
        *,
        terminated: bool = False,
        truncated: bool = False,
        is_cut: bool = False,
    ) -> Iterator[EpisodePart]:
        """Yield the open rows of an episode as a part, if there are any."""
        if not progress.rows:
            return
        rows = {
            name: jax.tree.map(
                lambda *leaves: np.concatenate(leaves), *(rows[name] for rows in progress.rows)
            )
            for name in _COLUMNS
        }
        obs = jax.tree.map(
            lambda leaf, last: np.concatenate([leaf, last]), rows.pop("obs"), progress.final_obs
        )
        yield EpisodePart(
            **self._name(env, progress.number),
            t_started=progress.t - len(rows["reward"]),
            obs=obs,
            **rows,
            terminated=terminated,
            truncated=truncated,
            is_cut=is_cut,
            carry=progress.carry,
        )
        progress.rows, progress.final_obs, progress.carry = [], None, None


class PartStitcher(Stitcher):
    """Concatenation of the rows of each environment to parts of episodes.

    Ids are `<run>-<environment>-<number of the episode>`. See `Stitcher`.
    """

    def add(
        self,
        rollout: Rollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
        env_step: UInt32[np.ndarray, " B"] | None = None,
        *,
        t_started: Int[np.ndarray, " B"] | None = None,
    ) -> list[EpisodePart]:
        """Add the next rows of environments, and return the parts that they complete, in order.

        See `add_by_column`.
        """
        parts = self.add_by_column(rollout, env_index, version, env_step, t_started=t_started)
        return [part for _, part in sorted(parts, key=lambda pair: pair[0])]


def _count_earlier(env_index: Int[np.ndarray, " B"]) -> list[int]:
    """Return how many columns before each one are of the same environment, earlier in time."""
    seen: dict[int, int] = {}
    counts: list[int] = []
    for env in np.asarray(env_index).tolist():
        counts.append(seen.get(env, 0))
        seen[env] = counts[-1] + 1
    return counts


def _append(
    progress: Progress,
    host: Rollout,
    versions: Int[np.ndarray, "T B"],
    column: int,
    first: int,
    end: int,
) -> None:
    """Add rows of a column to the open rows of an episode, as copies."""

    def take(tree: PyTree, start: int = first) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[start:end, column].copy(), tree)

    progress.rows.append(
        {
            "obs": take(host.obs),
            "action": take(host.action),
            "reward": take(host.reward),
            "extras": take(host.extras),
            "version": take(versions),
        }
    )
    progress.final_obs = take(host.final_obs, start=end - 1)
    progress.t += end - first


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


class AgentStitcher(Stitcher):
    """Concatenation of the rows of a module's agents to parts of their own episodes.

    Ids are `<episode of all agents>-<agent>-<number of the agent's episode>`, and that of the episode
    of all agents is `<run>-<environment>-<number of its episode>`. An agent that leaves and comes
    again begins another episode of its own. See `Stitcher`, whose columns are agents of environments.

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
        super().__init__(run, max_part_length=max_part_length)
        self._module, self._agents = module, tuple(agents)
        self._ended: dict[int, int] = {}
        """Number of episodes of all agents that ended, by environment."""
        self._episode = 0
        """Number of the episode of all agents that the rows to be added are of."""
        self._begun: dict[int, int] = {}
        """Number of the episode of all agents that the latest episode of each column began in."""

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
        num_steps, envs = len(rows.env_ended), env_index.tolist()
        versions = np.broadcast_to(np.asarray(version, np.int64), rows.env_ended.shape)
        ends = np.cumsum(rows.env_ended, axis=0) - rows.env_ended
        found: list[tuple[Completion, EpisodePart]] = []
        earlier = _count_earlier(env_index)
        if rows.begins_episodes:
            self._leave_envs(envs)
        if rows.env_step is not None:
            steps = zip(envs, rows.env_step, strict=True)
            lost = [env for env, step in steps if not self._follow(env, step, num_steps)]
            found.extend((Completion(0, True), part) for part in self._cut_envs(lost))
        for column, (env, agent) in enumerate(rows.cells.tolist()):
            places = np.flatnonzero(host.mask[:, column])
            steps = np.flatnonzero(rows.completed[:, column])
            ended = rows.agent_ended[steps, env, agent]
            key = np.asarray([envs[env] * len(self._agents) + agent])
            for first, end, number in _find_episodes(ends[steps, env]):
                taken = places[first:end]
                own = jax.tree.map(lambda leaf, i=taken, j=column: leaf[i, j][:, None], host)
                # Where rows of a failed step are missing, those before them look truncated.
                own = replace(own, truncated=own.truncated & ended[first:end, None])
                self._episode = self._ended.get(envs[env], 0) + number
                parts = self.add_by_column(own, key, versions[steps[first:end], env][:, None])
                own_steps = earlier[env] * num_steps + steps[first:end]
                found.extend((_to_step(at, own_steps), part) for at, part in parts)
        for env, number in zip(envs, rows.env_ended.sum(axis=0).tolist(), strict=True):
            self._ended[env] = self._ended.get(env, 0) + number
        return [part for _, part in sorted(found, key=lambda pair: pair[0])]

    def leave_episodes(self) -> list[EpisodePart]:
        self._steps.clear()
        return self._cut_envs(sorted(self._ended))

    def _cut_envs(self, envs: Sequence[int]) -> list[EpisodePart]:
        """Cut the episodes that environments were in."""
        number = len(self._agents)
        keys = [env * number + agent for env in envs for agent in range(number)]
        parts = [part for key in keys for part in self._cut(key)]
        self._leave_envs(envs)
        return parts

    def _leave_envs(self, envs: Sequence[int]) -> None:
        """Count the episodes that environments were in, of which nothing more will come."""
        for env in envs:
            if env in self._ended:
                self._ended[env] += 1

    def _begin(self, env: int, t_started: int) -> Progress:
        self._begun[env] = self._episode
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
            "episodes": {str(env): number for env, number in self._ended.items()},
            "begun": {str(env): number for env, number in self._begun.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._ended, self._begun = (
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


def merge_parts(parts: Iterable[EpisodePart]) -> Iterator[EpisodePart]:
    """Join the parts of each episode that follow one another, in the order of their first ones."""
    runs: list[list[EpisodePart]] = []
    unfinished: dict[str, list[EpisodePart]] = {}
    for part in parts:
        run = unfinished.pop(part.episode_id, None)
        if run is None or not _continues(part, run):
            run = []
            runs.append(run)
        run.append(part)
        if not part.is_last:
            unfinished[part.episode_id] = run
    unfinished.clear()
    for i, run in enumerate(runs):
        runs[i] = []
        yield _join(run)


def merge_ended_parts(
    parts: Iterable[EpisodePart], max_unfinished_steps: int, *, overlaps: bool = False
) -> Iterator[EpisodePart]:
    """Join the parts of each episode that follow one another, in the order in which they end.

    Args:
        parts: Parts of episodes, those of one episode in order of time.
        max_unfinished_steps: Number of steps of episodes that have not ended; above it, the one that
            has waited longest for its next part is taken to be over.
        overlaps: Whether what follows such an episode begins with its last step once more, of which
            only then the successor is known. It is for those who leave out last steps. An eighth of
            `max_unfinished_steps` such steps are kept, those of the episodes given up last.
    """
    unfinished: dict[str, list[EpisodePart]] = {}
    tails: dict[str, EpisodePart] = {}
    waiting = 0
    for part in parts:
        run = unfinished.pop(part.episode_id, [])
        waiting -= _count_steps(run)
        tail = tails.pop(part.episode_id, None)
        if tail is not None and _continues(part, [tail]):
            run = [tail]
        if run and not _continues(part, run):
            yield _join(run)
            run = []
        run.append(part)
        if part.is_last:
            yield _join(run)
            continue
        unfinished[part.episode_id] = run
        waiting += _count_steps(run)
        while waiting > max_unfinished_steps and len(unfinished) > 1:
            run = unfinished.pop(next(iter(unfinished)))
            waiting -= _count_steps(run)
            if overlaps:
                tails[run[-1].episode_id] = _copy_last_step(run[-1])
            yield _join(run)
        while len(tails) > max(1, max_unfinished_steps // 8):
            del tails[next(iter(tails))]
    for run in unfinished.values():
        yield _join(run)


def _copy_last_step(part: EpisodePart) -> EpisodePart:
    """Return the last step of a part, in memory of its own."""
    step = part if len(part) == 1 else part.split(len(part) - 1)[1]
    return dataclasses.replace(
        step,
        obs=jax.tree.map(np.copy, step.obs),
        action=jax.tree.map(np.copy, step.action),
        reward=np.copy(step.reward),
        extras=jax.tree.map(np.copy, step.extras),
        version=np.copy(step.version),
        carry=jax.tree.map(np.copy, step.carry),
    )


def _count_steps(run: Sequence[EpisodePart]) -> int:
    return run[-1].t_started + len(run[-1]) - run[0].t_started if run else 0


def _continues(part: EpisodePart, run: Sequence[EpisodePart]) -> bool:
    """Return whether a part follows the last of others of its episode, which has not ended."""
    return part.t_started == run[-1].t_started + len(run[-1])


def _join(run: list[EpisodePart]) -> EpisodePart:
    if len(run) == 1:
        return run[0]
    first, last = run[0], run[-1]

    def concatenate(*trees: PyTree) -> PyTree:
        return jax.tree.map(lambda *x: np.concatenate(x), *trees)

    heads = [jax.tree.map(lambda x: x[:-1], part.obs) for part in run[:-1]]
    return EpisodePart(
        episode_id=first.episode_id,
        t_started=first.t_started,
        obs=concatenate(*heads, last.obs),
        action=concatenate(*(part.action for part in run)),
        reward=np.concatenate([part.reward for part in run]),
        extras=concatenate(*(part.extras for part in run)),
        version=np.concatenate([part.version for part in run]),
        terminated=last.terminated,
        truncated=last.truncated,
        is_cut=last.is_cut,
        agent_id=first.agent_id,
        module_id=first.module_id,
        multi_agent_episode_id=first.multi_agent_episode_id,
    )
