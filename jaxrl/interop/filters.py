"""Statistics of SB3's VecNormalize as the state of a MeanStdFilter."""

import re
from collections.abc import Mapping

import jax
import numpy as np
from jax.tree_util import DictKey, keystr

from jaxrl.core.struct import replace
from jaxrl.interop.sources import Arrays
from jaxrl.ops.statistics import RunningMoments
from jaxrl.training.train_state import TrainState

_NAME = re.compile(r"obs_rms\.(?:(.+)\.)?(mean|var|count)")
_PARTS = ("mean", "var", "count")
Statistics = Mapping[str, Arrays]
"""Arrays `mean`, `var` and `count`, by name of the observation's part; "" for the whole."""


def split_filter_arrays(arrays: Arrays) -> tuple[Arrays, Statistics]:
    """Split arrays into those of layers and those of filters."""
    weights: Arrays = {}
    statistics: dict[str, Arrays] = {}
    for name, array in arrays.items():
        found = _NAME.fullmatch(name)
        if found is None:
            weights[name] = array
        else:
            statistics.setdefault(found[1] or "", {})[found[2]] = array
    return weights, statistics


def with_filter_arrays(state: TrainState, statistics: Statistics) -> tuple[TrainState, list[str]]:
    """Set the statistics of a run's MeanStdFilter.

    The sum of squared deviations is var × (count − 1), so that the filter divides by the root of
    the same variance.

    Args:
        state: State of the run.
        statistics: Statistics by part; empty leaves the state as it is.

    Returns:
        The new state, and a phrase for each problem.
    """
    problems: list[str] = []
    unused = dict(statistics)

    def set_moments(path: jax.tree_util.KeyPath[object], old: object) -> object:
        if not isinstance(old, RunningMoments):
            return old
        part = ".".join(keystr((key,), simple=True) for key in path if isinstance(key, DictKey))
        name = f"obs_rms.{part}" if part else "obs_rms"
        if part not in unused:
            problems.append(
                f"the module observes through a MeanStdFilter, but there is no {name}.mean "
                '(set observation_filter="NoFilter" if the policy had none)'
            )
            return old
        new, problem = _make_moments(name, unused.pop(part), old)
        if problem:
            problems.append(problem)
        return new

    obs = jax.tree_util.tree_map_with_path(
        set_moments, state.connectors.obs, is_leaf=lambda x: isinstance(x, RunningMoments)
    )
    problems += [
        f"{f'obs_rms.{part}' if part else 'obs_rms'} has no place: set "
        'env_runners(observation_filter="MeanStdFilter")'
        for part in unused
    ]
    return replace(state, connectors=replace(state.connectors, obs=obs)), problems


def _make_moments(
    name: str, arrays: Arrays, old: RunningMoments
) -> tuple[RunningMoments, str | None]:
    missing = [part for part in _PARTS if part not in arrays]
    if missing:
        return old, f"{name}.{missing[0]} is missing"
    mean, variance, count = (arrays[part] for part in _PARTS)
    if mean.shape != old.mean.shape or variance.shape != mean.shape:
        return old, f"{name}.mean has shape {mean.shape}, expected {old.mean.shape}"
    if count.size != 1 or count.item() <= 1.0 or np.any(variance < 0.0):
        return old, f"{name} needs a count above 1 and variances of at least 0"
    rows = np.asarray(count, np.float32).reshape(())
    new = RunningMoments(count=rows, mean=mean, m2=variance * (rows - 1.0))  # pyright: ignore[reportArgumentType]
    placed = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), new, old)
    return placed, None
