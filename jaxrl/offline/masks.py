"""Checks of recorded actions against the action masks of their own observations."""

import dataclasses
from typing import Any, Self

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import SpacePath, get_at_path, get_leaf_spaces
from jaxrl.distributions.from_space import split_mask
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import locate


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
