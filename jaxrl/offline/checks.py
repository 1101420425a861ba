"""Checks of recorded parts: values against their spaces and masks, and the parts of an episode in order."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import SpacePath, get_at_path, get_leaf_spaces
from jaxrl.distributions.from_space import split_mask
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.columns import ACTIONS, OBS, Column, Columns

BOUNDS_TOLERANCE = 1e-4
"""Tolerance for actions outside a Box's bounds, relative to the bound, to allow for rounding."""

REPEATED = "#repeated-"
"""Text before the number of an episode with the id of an earlier one; no recorded id ends like that."""
_MAX_ID_LENGTH = 80
_NUMBERS = re.compile(rf"({REPEATED}\d+)+$")

Arrays = Mapping[str, np.ndarray | None]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Bounds:
    """Smallest and largest values of a column, and those to show, of its space."""

    low: np.ndarray
    high: np.ndarray
    shown: tuple[np.ndarray, np.ndarray]
    hint: str = ""


class PartChecker:
    """Checks of the values of parts.

    Observations are finite and, unless they are floats, in their space; floats may be outside of the
    bounds of a Box, as those of many environments are. Actions are in their space.

    Args:
        columns: Columns of the data.
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        actions_are_normalized: Whether the actions are the module's, whose Boxes have no bounds and
            whose choices count from 0.
    """

    def __init__(
        self,
        columns: Columns,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        actions_are_normalized: bool,
    ) -> None:
        self._columns = (*columns.select(OBS), *columns.select(ACTIONS))
        leaves = {
            OBS: dict(get_leaf_spaces(observation_space)),
            ACTIONS: dict(get_leaf_spaces(action_space)),
        }
        self._bounds: dict[str, _Bounds | None] = {}
        for column in self._columns:
            space = leaves[column.group].get(column.path)
            is_normalized = column.group == ACTIONS and actions_are_normalized
            if space is not None and space.shape == column.shape:
                self._bounds[column.name] = _get_bounds(space, column, is_normalized=is_normalized)

    def check(self, part: EpisodePart, arrays: Arrays, where: str) -> None:
        """Check a part.

        Args:
            part: Part of an episode.
            arrays: Its arrays by column.
            where: File of the part, for error messages; empty for none.

        Raises:
            DataError: If a value is invalid; the sentence names the episode and the time step.
        """
        check_steps(part, where)
        check_flags(part, where)
        _check_finite("rewards", convert_rewards(part.reward), part, where)
        for column in self._columns:
            values = arrays[column.name]
            if values is not None:
                _check_finite(column.name, values, part, where)
                self._check_bounds(column, values, part, where)

    def _check_bounds(
        self, column: Column, values: np.ndarray, part: EpisodePart, where: str
    ) -> None:
        bounds = self._bounds.get(column.name)
        if bounds is None:
            return
        is_inside = (values >= bounds.low) & (values <= bounds.high)
        if is_inside.all():
            return
        index = tuple(int(i) for i in np.argwhere(~is_inside)[0])
        low, high = (np.broadcast_to(side, column.shape)[index[1:]] for side in bounds.shown)
        raise DataError(
            f"{locate(part, where)}: {column.name} is {values[index]:g} at t="
            f"{part.t_started + index[0]}, outside of the space's [{low:g}, {high:g}]{bounds.hint}."
        )


def _get_bounds(
    space: gymnasium.Space[Any], column: Column, *, is_normalized: bool
) -> _Bounds | None:
    """Return the bounds of a column with a simple space; None without any."""
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            is_single = isinstance(space, spaces.Discrete)
            sizes = np.asarray(space.n if is_single else space.nvec)
            start = np.zeros_like(sizes) if is_normalized else np.asarray(space.start)
            return _get_integer_bounds(start, start + sizes - 1, column)
        case spaces.MultiBinary():
            return _get_integer_bounds(np.asarray(0), np.asarray(1), column)
        case spaces.Box() if np.dtype(space.dtype).kind in "iu" and not is_normalized:
            return _get_integer_bounds(space.low, space.high, column)
        case spaces.Box() if column.group == ACTIONS and not is_normalized:
            low, high = (np.asarray(side, np.float64) for side in (space.low, space.high))
            low_room, high_room = (
                BOUNDS_TOLERANCE * np.where(np.isfinite(side), np.maximum(1.0, np.abs(side)), 0.0)
                for side in (low, high)
            )
            hint = ": if they are normalized, pass actions_are_normalized=True"
            shown = space.low, space.high
            return _Bounds(low=low - low_room, high=high + high_room, shown=shown, hint=hint)
        case _:
            return None


def _get_integer_bounds(low: np.ndarray, high: np.ndarray, column: Column) -> _Bounds | None:
    """Return bounds of the column's type, which need no conversion of its values."""
    if column.dtype.kind not in "iu":
        return _Bounds(low=low, high=high, shown=(low, high))
    limits = np.iinfo(column.dtype)
    if (low <= limits.min).all() and (high >= limits.max).all():
        return None
    smallest, largest = (
        np.clip(side, limits.min, limits.max).astype(column.dtype) for side in (low, high)
    )
    return _Bounds(low=smallest, high=largest, shown=(low, high))


def convert_rewards(values: np.ndarray) -> np.ndarray:
    """Return rewards as they are recorded, in float32; other values than numbers are unchanged."""
    if values.dtype.kind not in "biuf":
        return values
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def check_steps(part: EpisodePart, where: str) -> None:
    """Check the time of a part, and that there is one reward and one version a step.

    Raises:
        DataError: If it begins before the episode, or they have other shapes.
    """
    if part.t_started < 0:
        raise DataError(
            f"{locate(part, where)}: a part starts at t={part.t_started}, and time steps count from 0."
        )
    if part.reward.ndim != 1 or part.reward.dtype.kind not in "biuf":
        raise DataError(
            f"{locate(part, where)}: rewards must be one number a step, got {part.reward.dtype} of "
            f"shape {part.reward.shape}."
        )
    if part.version.shape != part.reward.shape:
        raise DataError(
            f"{locate(part, where)}: version must have the shape {part.reward.shape}, got "
            f"{part.version.shape}."
        )


def check_flags(part: EpisodePart, where: str) -> None:
    """Check that a part has at most one end.

    Raises:
        DataError: If it is terminated and truncated, or cut as well.
    """
    if part.terminated and part.truncated:
        raise DataError(
            f"{locate(part, where)}: its last step is both terminated and truncated; one of them "
            "must be false: terminated, if the task ended."
        )
    if part.is_cut and (part.terminated or part.truncated):
        raise DataError(f"{locate(part, where)}: it is cut though its episode ended.")


def locate(part: EpisodePart, where: str) -> str:
    """Return the place of a part, for messages."""
    episode = describe_episode(part.episode_id)
    return f"{where}, {episode}" if where else f"E{episode[1:]}"


def describe_episode(episode_id: str) -> str:
    """Return what names an episode in messages; a long id has its middle left out."""
    if len(episode_id) > _MAX_ID_LENGTH:
        episode_id = f"{episode_id[: _MAX_ID_LENGTH // 2]}...{episode_id[-_MAX_ID_LENGTH // 4 :]}"
    return f"episode {episode_id!r}"


def _check_finite(name: str, values: np.ndarray, part: EpisodePart, where: str) -> None:
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
    raise DataError(
        f"{locate(part, where)}: {name} is {values[index]} at t={part.t_started + index[0]}, which "
        "is not finite."
    )


class OrderChecker:
    """Check that the parts of each episode follow one another without a gap or an overlap."""

    def __init__(self) -> None:
        self._next: dict[str, int | None] = {}

    def check(self, part: EpisodePart, where: str) -> None:
        """Check that a part follows the last one of its episode, if there was one.

        Raises:
            DataError: If it overlaps another, misses a step, or comes after the episode's end.
        """
        if part.episode_id in self._next:
            expected = self._next[part.episode_id]
            if expected is None:
                raise DataError(
                    f"{locate(part, where)}: a part starts at t={part.t_started}, after the end of "
                    "the episode: give episodes different ids."
                )
            if part.t_started != expected:
                problem = (
                    "overlaps the one before" if part.t_started < expected else "misses a step"
                )
                raise DataError(
                    f"{locate(part, where)}: a part starts at t={part.t_started} and {problem}, "
                    f"which ends before t={expected}."
                )
        end = part.t_started + len(part)
        self._next[part.episode_id] = None if part.is_last else end

    def has(self, episode_id: str) -> bool:
        """Return whether there was a part of an episode."""
        return episode_id in self._next

    def expects(self, episode_id: str, t_started: int) -> bool:
        """Return whether a time step is the next one of an episode, which has not ended."""
        return self._next.get(episode_id) == t_started


class EpisodeNames:
    """Ids of the episodes of several recordings, in which one that begins again is another episode.

    A recording is what one writer has written, or a folder of which that is not known.

    Args:
        order: Checker of the parts under their new ids.
    """

    def __init__(self, order: OrderChecker) -> None:
        self._order = order
        self._names: dict[tuple[Path, str | None, str], str] = {}

    def rename(self, part: EpisodePart, folder: Path, run: str | None) -> EpisodePart:
        """Return a part with the id of its episode; a repeated one has a number after it.

        Args:
            part: Part as it is recorded.
            folder: Folder of its file.
            run: Name of the run that wrote the file; None if it is not known.
        """
        key, number = (folder, run, part.episode_id), 1
        name = self._names.get(key)
        if name is None:
            name = part.episode_id
            while self._order.has(name) and not self._order.expects(name, part.t_started):
                number += 1
                name = number_id(part.episode_id, number)
            self._names[key] = name
        return part if name == part.episode_id else dataclasses.replace(part, episode_id=name)


def number_id(episode_id: str, number: int) -> str:
    """Return the id of the episode that is the second or a later one with an id."""
    return f"{episode_id}{REPEATED}{number}"


def remove_number(episode_id: str) -> str:
    """Return the id that an episode was recorded with, without the number that readers add."""
    return _NUMBERS.sub("", episode_id)


@dataclasses.dataclass(frozen=True, eq=False)
class _Choices:
    """Choices of a part of an action, of which a mask has all entries in a row.

    Attributes:
        path: Place of the part in the action.
        sizes: `[n]`; entries of each choice.
        start: `[n]`; recorded value of each choice's first entry.
    """

    path: SpacePath
    sizes: np.ndarray
    start: np.ndarray

    def find_illegal(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return whether each choice `[T, n]` is illegal; where no entry is legal, none is."""
        entries = values.reshape(len(values), -1).astype(np.int64) - self.start
        offsets = np.cumsum(self.sizes) - self.sizes
        is_legal = np.take_along_axis(mask, entries + offsets, axis=1)
        return ~is_legal & np.logical_or.reduceat(mask, offsets, axis=1)


class MaskChecker:
    """Checks that recorded actions are legal.

    The log-probability of an illegal action is about -1e9, and so would be the losses of its row.

    Args:
        key: Key of the mask in the observations.
        choices: Parts of actions that can be masked, in order; None for those that cannot.
        action_space: Space of the actions.
    """

    def __init__(
        self, key: str, choices: list[_Choices | None], action_space: gymnasium.Space[Any]
    ) -> None:
        self._key = key
        self._choices = choices
        self._action_space = action_space

    @classmethod
    def make(
        cls,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        key: str | None,
        *,
        actions_are_normalized: bool,
    ) -> Self | None:
        """Return the checker for data with these spaces; None if they have no masks.

        Args:
            observation_space: Space of the observations.
            action_space: Space of the environment's actions.
            key: Key of the mask in a Dict of observations; None for none.
            actions_are_normalized: Whether recorded choices are a module's, which count from 0.
        """
        if key is None or not isinstance(observation_space, spaces.Dict):
            return None
        if key not in observation_space.spaces:
            return None
        choices = [
            _get_choices(path, leaf, counts_from_zero=actions_are_normalized)
            for path, leaf in get_leaf_spaces(action_space)
        ]
        return cls(key, choices, action_space)

    def check(self, part: EpisodePart, where: str) -> None:
        """Check a part whose values are in their spaces.

        Args:
            part: Part of an episode.
            where: File of the part, for error messages; empty for none.

        Raises:
            DataError: If an action is illegal; the sentence names the episode and the time step.
        """
        masks = split_mask(self._action_space, jax.tree.map(np.asarray, part.obs[self._key]))
        for choices, mask in zip(self._choices, masks, strict=True):
            if choices is None or mask is None:
                continue
            rows = np.asarray(mask)[: len(part)].astype(np.bool_)
            if rows.shape[1:] != (choices.sizes.sum(),):  # the module's check names the size
                continue
            values = np.asarray(get_at_path(part.action, choices.path))
            is_illegal = choices.find_illegal(values, rows)
            if is_illegal.any():
                step, choice = (int(i) for i in np.argwhere(is_illegal)[0])
                name = ".".join(["actions", *map(str, choices.path)])
                raise DataError(
                    f"{locate(part, where)}: {name} is {values.reshape(len(part), -1)[step, choice]} "
                    f"at t={part.t_started + step}, which its own {self._key!r} says is illegal: leave "
                    "such steps out with input_transform, or set action_mask_key=None to observe the "
                    "mask."
                )


def _get_choices(
    path: SpacePath, space: gymnasium.Space[Any], *, counts_from_zero: bool
) -> _Choices | None:
    match space:
        case spaces.Discrete():
            sizes, start = np.asarray([space.n]), np.asarray([space.start])
        case spaces.MultiDiscrete():
            sizes, start = np.ravel(space.nvec), np.ravel(space.start)
        case spaces.MultiBinary():
            sizes = np.full(int(np.prod(space.shape)), 2)
            start = np.zeros_like(sizes)
        case _:
            return None
    if counts_from_zero:
        start = np.zeros_like(start)
    return _Choices(path, sizes.astype(np.int64), start.astype(np.int64))
