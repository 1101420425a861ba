"""Recorded actions as those of the module that learns from them."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.connectors.checks import check_action_inverse
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.types import PyTree
from jaxrl.distributions.base import Deterministic, SquashedGaussian
from jaxrl.episodes.packing import EpisodePart
from jaxrl.modules.rl_module import RLModule
from jaxrl.training.rollout import PolicyStep

BLOCK_ROWS = 2**16
"""Maximum number of rows of one call of a compiled function."""

_RowFunction: TypeAlias = Callable[[PyTree], PyTree]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ActionConversion:
    """Function of recorded actions `[N, ...]` that returns the module's, in NumPy.

    Args:
        pipeline: Pipeline to the environment's actions, which are recorded; None if the module's are.
        box: Space that the module's actions are clipped to; None for any.
    """

    pipeline: ActionPipeline | None
    box: spaces.Box | None = None

    def __call__(self, action: PyTree) -> PyTree:
        if self._inverse is not None:
            action = convert_rows(self._inverse, action)
        if self.box is not None:
            action = np.clip(action, self.box.low, self.box.high).astype(action.dtype)
        return action

    @cached_property
    def _inverse(self) -> _RowFunction | None:
        return None if self.pipeline is None else jax.jit(self.pipeline.inverse)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: tasks of other processes compile for themselves."""
        return {"pipeline": self.pipeline, "box": self.box}

    def convert_parts(self, parts: Sequence[EpisodePart]) -> list[EpisodePart]:
        """Return parts of episodes with the module's actions."""
        if not parts or (self.pipeline is None and self.box is None):
            return list(parts)
        converted = self(join_actions(parts))
        return [
            dataclasses.replace(part, action=action)
            for part, action in zip(parts, split_rows(converted, parts), strict=True)
        ]


def make_action_conversion(policy_step: PolicyStep, *, are_normalized: bool) -> ActionConversion:
    """Make the conversion of recorded actions to those that a module learns from.

    Those of a policy without bounds may be outside of the module's Box, at whose bounds the
    environment played them. A module whose own actions are always inside learns from these.

    Args:
        policy_step: Module and its connectors.
        are_normalized: Whether the recorded actions are a module's, or else the environment's.

    Raises:
        ConfigError: If the environment's actions cannot be converted.
    """
    pipeline = None
    if not are_normalized and len(policy_step.action_pipeline):
        pipeline = policy_step.action_pipeline
        check_action_inverse(pipeline)
    return ActionConversion(pipeline=pipeline, box=_get_bounding_box(policy_step.module))


def _get_bounding_box(module: RLModule) -> spaces.Box | None:
    """Return the Box that all actions of a module are in; None if there is none."""
    space, family = module.action_space, module.distribution.family
    is_bounded = family in (SquashedGaussian, Deterministic)
    return space if is_bounded and isinstance(space, spaces.Box) else None


def convert_rows(function: _RowFunction, rows: PyTree) -> PyTree:
    """Return what a compiled function makes of rows `[N, ...]`, called with few different sizes."""
    number = len(jax.tree.leaves(rows)[0])
    size = min(BLOCK_ROWS, 1 << (number - 1).bit_length())

    def take(leaf: np.ndarray, first: int) -> np.ndarray:
        return leaf[np.minimum(np.arange(first, first + size), number - 1)]

    blocks = [
        jax.device_get(function(jax.tree.map(lambda x, i=first: take(x, i), rows)))
        for first in range(0, number, size)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x)[:number], *blocks)


def join_actions(parts: Iterable[EpisodePart]) -> PyTree:
    """Return the actions of parts, one after another."""
    return jax.tree.map(lambda *x: np.concatenate(x), *(part.action for part in parts))


def split_rows(rows: PyTree, parts: Sequence[EpisodePart]) -> list[PyTree]:
    """Return the rows of each part, of rows that lie one after another."""
    ends = np.cumsum([len(part) for part in parts]).tolist()
    bounds = [(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    return [jax.tree.map(lambda x, i=i, j=j: x[i:j], rows) for i, j in bounds]
