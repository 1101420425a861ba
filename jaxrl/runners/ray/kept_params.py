"""Parameters that training does not change, which actors are sent once and not with all weights."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxrl.config.batch_plan import BatchPlan, MultiAgentPlan
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.runners.fragment import Weights

if TYPE_CHECKING:
    from jaxrl.training.multi_rollout import Actors

KeptParams = Mapping[str, PyTree]
"""Parameters of modules that are not trained, by module."""


def find_frozen_modules(plan: BatchPlan) -> tuple[str, ...]:
    """Return the modules of a run of several agents that are not trained, sorted; else none."""
    if not isinstance(plan, MultiAgentPlan):
        return ()
    return tuple(sorted(set(plan.modules) - plan.agents.trained))


class KeptParamsSplitter:
    """Split of weights into what is sent each time, and parameters that are sent when they change.

    Parameters of modules that are not trained change only from outside, for example by `set_weights`
    or `restore`.

    Args:
        modules: Modules that are not trained.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules
        self._latest: KeptParams | None = None

    def split(self, weights: Weights) -> tuple[Weights, KeptParams | None]:
        """Return the weights without the kept parameters, and these if they changed, else None.

        Args:
            weights: Weights in NumPy.
        """
        if not self._modules:
            return weights, None
        actors = cast("Actors", weights.actor)
        kept = {m: actors[m].params for m in self._modules}
        rest = _replace_params(weights, dict.fromkeys(self._modules))
        if self._latest is not None and _is_equal(kept, self._latest):
            return rest, None
        self._latest = kept
        return rest, kept


def join_kept_params(weights: Weights, kept: KeptParams | None) -> Weights:
    """Return weights with the parameters that were split off.

    Modules whose parameters are among the weights keep those: they are trained by now.
    """
    actors = cast("Actors", weights.actor)
    missing = {
        m: own for m, own in (kept or {}).items() if m in actors and actors[m].params is None
    }
    return _replace_params(weights, missing) if missing else weights


def _replace_params(weights: Weights, params: KeptParams) -> Weights:
    actors = cast("Actors", weights.actor)
    replaced = {m: replace(actors[m], params=own) for m, own in params.items()}
    return dataclasses.replace(weights, actor=cast("Any", {**actors, **replaced}))


def _is_equal(one: PyTree, other: PyTree) -> bool:
    """Return whether two trees in NumPy are equal to the bit."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(map(np.asarray, leaves), map(np.asarray, others), strict=True)
    )
