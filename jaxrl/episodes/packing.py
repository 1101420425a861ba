"""Episodes laid end to end in rollouts of a fixed shape, and the episodes of a rollout.

`pack` is the inverse of `episodes_from_rollout`: every row becomes one transition of a rollout.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeAlias, cast

import gymnasium
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxrl.core.types import PyTree, Rollout
from jaxrl.episodes.single_agent import SingleAgentEpisode

Tail: TypeAlias = tuple[str, int]
"""Episode and time step with which a column would continue where it ended."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EpisodePart:
    """Consecutive steps of one episode, in NumPy.

    `obs` has one row more than the others: the last is the successor of the last step. An episode
    that ends is either terminated, truncated, or cut: one of which nothing more will come, though
    its task did not end. `carry` is the state that a policy with memory acted with, before each row,
    or before the first alone; None for one without, or where it is not known. `version` is that of
    the weights that chose each action. In an episode of several agents, the part is one agent's, in
    its own time.
    """

    episode_id: str
    t_started: int
    obs: PyTree
    action: PyTree
    reward: Float[np.ndarray, " L"]
    extras: dict[str, PyTree]
    version: Int[np.ndarray, " L"]
    terminated: bool = False
    truncated: bool = False
    is_cut: bool = False
    carry: PyTree = None
    agent_id: str | None = None
    module_id: str | None = None
    multi_agent_episode_id: str | None = None

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def is_last(self) -> bool:
        """Return whether nothing more of the episode follows."""
        return self.terminated or self.truncated or self.is_cut

    @property
    def num_bytes(self) -> int:
        """Number of bytes of the observations, actions and rewards."""
        leaves = jax.tree.leaves((self.obs, self.action, self.reward))
        return sum(np.asarray(leaf).nbytes for leaf in leaves)

    def split(self, length: int) -> tuple[Self, Self]:
        """Split into the first `length` rows and the others; both have at least one."""
        head = self._slice(0, length, is_end=False)
        return head, self._slice(length, len(self), is_end=True)

    def _slice(self, first: int, end: int, *, is_end: bool) -> Self:
        def take(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: leaf[first:end], tree)

        return dataclasses.replace(
            self,
            t_started=self.t_started + first,
            obs=jax.tree.map(lambda leaf: leaf[first : end + 1], self.obs),
            action=take(self.action),
            reward=self.reward[first:end],
            extras=take(self.extras),
            version=self.version[first:end],
            terminated=self.terminated and is_end,
            truncated=self.truncated and is_end,
            is_cut=self.is_cut and is_end,
            carry=self._slice_carry(first, end),
        )

    def _slice_carry(self, first: int, end: int) -> PyTree:
        has_all = all(len(leaf) == len(self) for leaf in jax.tree.leaves(self.carry))
        if has_all:
            return jax.tree.map(lambda leaf: leaf[first:end], self.carry)
        return self.carry if first == 0 else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PackedParts:
    """Rollout of packed parts, with what it does not say.

    `ended` marks the last rows of episodes that were terminated or truncated, as opposed to cut.
    `continues` marks the columns whose first row follows the row that the column ended with before.
    `tails` are the continuations of all columns, to pass to the next call. `placed` lists the
    column, the first row and the part of everything that was laid, and `rest` what was not, in order.
    """

    rollout: Rollout
    ended: Bool[np.ndarray, "T B"]
    continues: Bool[np.ndarray, " B"]
    tails: tuple[Tail | None, ...]
    placed: tuple[tuple[int, int, EpisodePart], ...]
    rest: tuple[EpisodePart, ...]


def pack(
    parts: Sequence[EpisodePart],
    num_steps: int,
    num_columns: int,
    tails: Sequence[Tail | None] | None = None,
) -> PackedParts:
    """Lay parts of episodes end to end in the columns of a rollout `[num_steps, num_columns]`.

    A part that does not fit is split. An episode's first part may start anywhere. A part that
    continues an episode starts right after the row that it follows or, if it has a carry, at the
    start of a column, where its carry becomes `carry_in`; without a carry it may start anywhere.
    Where another part follows a row that ends no episode, or nothing does, the row is truncated, so
    that its target bootstraps from its successor. A column's last row is a border as between
    fragments of any runner: neither a termination nor a truncation. Rows that remain empty repeat
    the row before them and are masked.

    Args:
        parts: Parts with at least one row in all; those of an episode are in order of time.
        num_steps: Number of rows.
        num_columns: Number of columns.
        tails: Continuations of the columns, as the previous call returned them.
    """
    before = list(tails) if tails is not None else [None] * num_columns
    chains = _Chains(parts, reserved=before)
    placed: list[tuple[int, int, EpisodePart]] = []
    for column in range(num_columns):
        row = 0
        while row < num_steps:
            part = chains.take(before[column] if row == 0 else None, num_steps - row, row == 0)
            if part is None:
                break
            placed.append((column, row, part))
            row += len(part)
    rollout, ended = _build(parts[0], placed, num_steps, num_columns)
    after = list(before)
    continues = np.zeros(num_columns, np.bool_)
    for column, row, part in placed:
        if row == 0:
            continues[column] = before[column] == (part.episode_id, part.t_started)
        end = part.episode_id, part.t_started + len(part)
        is_full = row + len(part) == num_steps
        after[column] = end if is_full and not part.is_last else None
    return PackedParts(
        rollout=rollout,
        ended=ended,
        continues=continues,
        tails=tuple(after),
        placed=tuple(placed),
        rest=chains.get_rest(),
    )


class _Chains:
    """Parts in sequences without a gap, one or more per episode, oldest first."""

    def __init__(self, parts: Sequence[EpisodePart], reserved: Sequence[Tail | None]) -> None:
        self._chains: list[collections.deque[EpisodePart]] = []
        self._reserved = {tail for tail in reserved if tail is not None}
        self._current: collections.deque[EpisodePart] | None = None
        latest: dict[str, collections.deque[EpisodePart]] = {}
        for part in parts:
            if not len(part):
                continue
            chain = latest.get(part.episode_id)
            if chain is None or _get_end(chain[-1]) != (part.episode_id, part.t_started):
                chain = latest[part.episode_id] = collections.deque()
                self._chains.append(chain)
            chain.append(part)

    def take(self, tail: Tail | None, length: int, is_start: bool) -> EpisodePart | None:
        """Remove and return up to `length` rows for the next place of a column; None if none fit.

        Args:
            tail: Continuation of the column; None if it has none, or within the column.
            length: Number of free rows.
            is_start: Whether the place is the column's first row.
        """
        chain = None if is_start else self._current
        if not chain:
            chain = self._choose(tail, is_start)
        self._current = chain
        if chain is None:
            return None
        if tail is not None:
            self._reserved.discard(tail)
        part = chain.popleft()
        if len(part) > length:
            part, others = part.split(length)
            chain.appendleft(others)
            self._reserved.add(_get_start(others))  # the column ends here, and continues with it
        if not chain:
            self._chains.remove(chain)
        return part

    def _choose(self, tail: Tail | None, is_start: bool) -> "collections.deque[EpisodePart] | None":
        """Return the chain to lay next: the column's own, then others, then other columns' own."""
        may_start = [chain for chain in self._chains if is_start or _may_start_anywhere(chain[0])]
        own = [chain for chain in may_start if _get_start(chain[0]) == tail]
        free = [chain for chain in may_start if _get_start(chain[0]) not in self._reserved]
        if is_start:  # those that can start nowhere else come first
            free.sort(key=lambda chain: _may_start_anywhere(chain[0]))
        return next(iter([*own, *free, *may_start]), None)

    def get_rest(self) -> tuple[EpisodePart, ...]:
        """Return what was not taken, in order."""
        return tuple(part for chain in self._chains for part in chain)


def _may_start_anywhere(part: EpisodePart) -> bool:
    return part.t_started == 0 or part.carry is None


def _get_start(part: EpisodePart) -> Tail:
    return part.episode_id, part.t_started


def _get_end(part: EpisodePart) -> Tail:
    return part.episode_id, part.t_started + len(part)


def _build(
    like: EpisodePart,
    placed: Sequence[tuple[int, int, EpisodePart]],
    num_steps: int,
    num_columns: int,
) -> tuple[Rollout, Bool[np.ndarray, "T B"]]:
    shape = num_steps, num_columns

    def make_empty(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: np.zeros((*shape, *x.shape[1:]), x.dtype), tree)

    rows: dict[str, PyTree] = {
        "obs": make_empty(like.obs),
        "action": make_empty(like.action),
        "reward": np.zeros(shape, np.float32),
        "final_obs": make_empty(like.obs),
        "extras": make_empty(like.extras),
    }
    flags = {
        name: np.zeros(shape, np.bool_) for name in ("terminated", "truncated", "is_first", "mask")
    }
    ended = np.zeros(shape, np.bool_)
    carry_in = jax.tree.map(lambda x: np.zeros((num_columns, *x.shape[1:]), x.dtype), like.carry)
    for i, (column, first, part) in enumerate(placed):
        end = first + len(part)
        _write_rows(rows, part, column, first, end)
        if first == 0:
            jax.tree.map(lambda to, x, c=column: to.__setitem__(c, x[0]), carry_in, part.carry)
        flags["mask"][first:end, column] = True
        flags["is_first"][first, column] = part.t_started == 0
        flags["terminated"][end - 1, column] = part.terminated
        following = placed[i + 1] if i + 1 < len(placed) else None
        is_last = following is None or following[0] != column
        is_followed = following is not None and _get_start(following[2]) == _get_end(part)
        is_continued = end == num_steps if is_last else is_followed
        is_cut = part.is_cut or not (part.is_last or is_continued)
        flags["truncated"][end - 1, column] = part.truncated or is_cut
        ended[end - 1, column] = part.terminated or part.truncated
        if is_last:
            _repeat_last(rows, column, end)
    make = cast("Callable[..., Rollout]", Rollout)  # its fields hold arrays of either kind
    return make(**rows, **flags, carry_in=carry_in), ended


def _write_rows(
    rows: dict[str, PyTree], part: EpisodePart, column: int, first: int, end: int
) -> None:
    """Copy a part to the rows from `first` to `end` of a column."""
    values = {
        "obs": jax.tree.map(lambda x: x[:-1], part.obs),
        "final_obs": jax.tree.map(lambda x: x[1:], part.obs),
        "action": part.action,
        "reward": part.reward,
        "extras": part.extras,
    }
    for name, value in values.items():
        jax.tree.map(
            lambda to, x: to.__setitem__((slice(first, end), column), x), rows[name], value
        )


def _repeat_last(rows: dict[str, PyTree], column: int, end: int) -> None:
    """Fill a column from row `end` on with copies of the row before it, without a reward."""

    def fill(to: np.ndarray) -> None:
        to[end:, column] = to[end - 1, column]

    for name in ("obs", "action", "final_obs", "extras"):
        jax.tree.map(fill, rows[name])


def episodes_from_rollout(
    rollout: Rollout,
    *,
    t_started: Int[np.ndarray, " B"] | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
) -> list[SingleAgentEpisode]:
    """Convert a rollout to episodes with array data, ordered by environment, then by time.

    Episodes that continue after the last row are not done. Neither are those that a fault ended,
    whose faulty row is omitted.

    Args:
        rollout: Rollout `[T, B, ...]` of NumPy or JAX arrays.
        t_started: Number of steps of each environment's first episode before the first row, `[B]`.
        observation_space: Observation space, for the episodes' accessors.
        action_space: Action space, for the episodes' accessors.
    """
    host = jax.tree.map(np.asarray, rollout)
    episodes: list[SingleAgentEpisode] = []
    for column in range(host.mask.shape[1]):
        for first, end in find_segments(host, column):
            if not host.mask[first, column]:
                continue
            is_start = bool(host.is_first[first, column]) or t_started is None or first > 0

            def rows(tree: PyTree, start: int = first, stop: int = end, b: int = column) -> PyTree:
                return jax.tree.map(lambda leaf: leaf[start:stop, b], tree)

            observations = jax.tree.map(
                lambda a, b: np.concatenate([a, b]),
                rows(host.obs),
                rows(host.final_obs, start=end - 1),
            )
            episodes.append(
                SingleAgentEpisode(
                    observations=observations,
                    observation_space=observation_space,
                    actions=rows(host.action),
                    action_space=action_space,
                    rewards=rows(host.reward),
                    terminated=bool(host.terminated[end - 1, column]),
                    truncated=bool(host.truncated[end - 1, column]),
                    extra_model_outputs=rows(host.extras),
                    t_started=0 if is_start or t_started is None else int(t_started[column]),
                    len_lookback_buffer=0,
                )
            )
    return episodes


def find_segments(rollout: Rollout, column: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of consecutive rows of one episode, and of masked rows.

    Args:
        rollout: Rows `[T, B, ...]` in NumPy, at least one.
        column: Column of the rows.
    """
    mask: Bool[np.ndarray, " T"] = np.asarray(rollout.mask[:, column])
    ended = np.asarray(rollout.terminated[:, column] | rollout.truncated[:, column]) & mask
    is_border = np.asarray(rollout.is_first[:, column]) | (mask != np.roll(mask, 1))
    is_border |= np.roll(ended, 1)
    starts = [0, *(np.flatnonzero(is_border[1:]) + 1).tolist()]
    yield from zip(starts, [*starts[1:], len(mask)], strict=True)
