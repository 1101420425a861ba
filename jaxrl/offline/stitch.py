"""Parts of episodes from consecutive rollouts of the same environments."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Bool, Int, UInt32

from jaxrl.core.types import PyTree, Rollout
from jaxrl.episodes.packing import EpisodePart
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


class PartStitcher:
    """Concatenation of the rows of each environment to parts of episodes.

    A part is kept open across rollouts until its episode ends or it is long enough. Parts are in order
    of the rows that complete them, so that the division into rollouts changes nothing. Ids are
    `<run>-<environment>-<number of the episode>`, so they depend on nothing but the run's own course.
    `num_dropped` counts the rows of episodes whose time step was not known.

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

    def add(
        self,
        rollout: Rollout,
        env_index: Int[np.ndarray, " B"],
        version: int | Int[np.ndarray, "T B"] = -1,
        env_step: UInt32[np.ndarray, " B"] | None = None,
        *,
        t_started: Int[np.ndarray, " B"] | None = None,
    ) -> list[EpisodePart]:
        """Add the next rows of environments, and return the parts that they complete.

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
        parts = self.add_by_column(rollout, env_index, version, env_step, t_started=t_started)
        return [part for _, part in sorted(parts, key=lambda pair: pair[0])]

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

        See `add`.
        """
        host = jax.tree.map(np.asarray, rollout)
        versions = np.broadcast_to(np.asarray(version, np.int64), host.mask.shape)
        parts: list[tuple[Completion, EpisodePart]] = []
        earlier = count_earlier(env_index)
        for column, env in enumerate(np.asarray(env_index).tolist()):
            known = None if t_started is None else int(t_started[column])
            before = earlier[column] * len(host.mask)
            if env_step is not None and not self.follow(env, env_step[column], len(host.mask)):
                parts.extend((Completion(before, True), part) for part in self._cut(env))
            parts.extend(
                (at._replace(num_rows=before + at.num_rows), part)
                for at, part in self._add_column(host, versions, column, env, known)
            )
        return parts

    def follow(self, env: int, env_step: np.integer[Any], num_steps: int) -> bool:
        """Return whether rows follow the latest ones of an environment, and count them.

        Args:
            env: Index of the environment.
            env_step: Number of its steps before the rows.
            num_steps: Number of the rows.
        """
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
        for first, end in _find_segments(host, column):
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


def count_earlier(env_index: Int[np.ndarray, " B"]) -> list[int]:
    """Return how many columns before each one are of the same environment, earlier in time."""
    seen: dict[int, int] = {}
    counts: list[int] = []
    for env in np.asarray(env_index).tolist():
        counts.append(seen.get(env, 0))
        seen[env] = counts[-1] + 1
    return counts


def _find_segments(rollout: Rollout, column: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of consecutive rows of one episode, and of masked rows."""
    mask: Bool[np.ndarray, " T"] = np.asarray(rollout.mask[:, column])
    ended = np.asarray(rollout.terminated[:, column] | rollout.truncated[:, column]) & mask
    is_border = np.asarray(rollout.is_first[:, column]) | (mask != np.roll(mask, 1))
    is_border |= np.roll(ended, 1)
    starts = [0, *(np.flatnonzero(is_border[1:]) + 1).tolist()]
    yield from zip(starts, [*starts[1:], len(mask)], strict=True)


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
