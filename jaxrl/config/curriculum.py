"""Stages of a curriculum: their tasks, and the criteria that end them."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxrl.config.settings.training import EnvironmentSettings
from jaxrl.config.stop import StopCriteria, parse_stop
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean
from jaxrl.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

if TYPE_CHECKING:
    pass

CLOCK_PREFIXES = ("time_", "timers/")
"""Prefixes of result keys that depend on the clock."""

_STAGE_KEYS = ("task", "until")
_EXAMPLE = "[{'task': ..., 'until': {'env_runners/episode_return_mean': 0.9}}, {'task': ...}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Stage of a curriculum.

    Attributes:
        task: Task in builtin types: parameters by name, or the argument of `set_task`.
        until: Criteria, of which the first one reached ends the stage; empty for the last stage.
    """

    task: PyTree
    until: StopCriteria


def check_curriculum(settings: EnvironmentSettings, evaluation_interval: int | None) -> None:
    """Check the settings of the environment's task, as far as they do not depend on it.

    Raises:
        ConfigError: If a stage is invalid, or `curriculum` and `env_task_fn` are both set.
    """
    stages = parse_curriculum(settings.curriculum)
    if stages and settings.env_task_fn is not None:
        raise ConfigError(
            "curriculum and env_task_fn both choose the environment's task: set only one of them."
        )
    if not evaluation_interval:
        for number, stage in enumerate(stages, 1):
            key = next((key for key in stage.until if key.startswith("evaluation/")), None)
            if key is not None:
                raise ConfigError(
                    f"curriculum, stage {number}: {key!r} requires evaluation, but "
                    "evaluation_interval is not set; set it, or use "
                    "'env_runners/episode_return_mean'."
                )


def parse_curriculum(written: Sequence[Mapping[str, Any]] | None) -> tuple[Stage, ...]:
    """Parse the stages of a curriculum; None has none.

    Raises:
        ConfigError: If a stage is invalid; the message says which and why.
    """
    if written is None:
        return ()
    if not written:
        raise ConfigError(f"curriculum must have at least one stage, got []: e.g. {_EXAMPLE}.")
    stages: list[Stage] = []
    for number, stage in enumerate(written, 1):
        try:
            stages.append(_parse_stage(stage, is_last=number == len(written)))
        except JaxrlError as error:
            raise type(error)(f"curriculum, stage {number}: {error}") from None
    _check_order(stages)
    return tuple(stages)


def _parse_stage(written: Mapping[str, Any], *, is_last: bool) -> Stage:
    for name in written:
        if name not in _STAGE_KEYS:
            renamed = {"env_config": "task", "env_params": "task", "stop": "until"}.get(name)
            hint = f" Write {renamed!r} instead." if renamed else did_you_mean(name, _STAGE_KEYS)
            raise UnknownNameError(f"a stage has no {name!r}, only task and until.{hint}")
    if written.get("task") is None:
        raise ConfigError(f"it has no task, got {dict(written)!r}; e.g. {_EXAMPLE}.")
    until = written.get("until")
    if is_last != (until is None):
        what = (
            "no stage follows the last one, so until has no effect; leave it out"
            if is_last
            else "it has no until, which ends it: give criteria, or a number of environment steps"
        )
        raise ConfigError(f"{what}.")
    return Stage(task=to_task_data(written["task"], "task"), until=_parse_until(until))


def _parse_until(until: object) -> StopCriteria:
    if until is None:
        return {}
    if isinstance(until, int | float) and not isinstance(until, bool):
        until = {NUM_ENV_STEPS_SAMPLED_LIFETIME: until}
    if not isinstance(until, Mapping) or not until:
        raise ConfigError(
            "until must be criteria such as {'env_runners/episode_return_mean': 0.9}, or a number "
            f"of environment steps, got {until!r}."
        )
    try:
        criteria = parse_stop(until)
    except JaxrlError as error:
        message = str(error).removeprefix("stop ")
        raise type(error)(f"until {message}") from None
    for key in criteria:
        if key.startswith(CLOCK_PREFIXES) or key.endswith("_per_second"):
            raise ConfigError(
                f"until {key!r} depends on the clock, so that runs could not be repeated; use "
                f"'{NUM_ENV_STEPS_SAMPLED_LIFETIME}' or 'training_iteration'."
            )
    return criteria


def _check_order(stages: Sequence[Stage]) -> None:
    """Raise if a stage would end by the count that ended the stage before."""
    for key in (NUM_ENV_STEPS_SAMPLED_LIFETIME, "training_iteration"):
        counts = [stage.until[key] for stage in stages if key in stage.until]
        if any(later <= earlier for earlier, later in itertools.pairwise(counts)):
            raise ConfigError(
                f"curriculum: '{key}' counts since the run began, so it must increase from stage "
                f"to stage, got {[int(count) for count in counts]}."
            )


def to_task_data(task: object, what: str) -> PyTree:
    """Convert a task to builtin types, in which checkpoints store it: arrays become lists.

    Args:
        task: Numbers, strings, arrays, None, and lists, tuples and mappings of these.
        what: Origin of the task, for messages.

    Raises:
        ConfigError: If it contains anything else.
    """
    if task is None or isinstance(task, bool | str):
        return task
    if isinstance(task, int | float):
        if not math.isfinite(task):
            raise ConfigError(f"{what} must have finite numbers, got {task!r}.")
        return float(task) if isinstance(task, float) else int(task)
    if isinstance(task, np.ndarray | np.generic | jax.Array):
        array = np.asarray(task)
        if array.dtype == np.float32:  # as the shortest decimals, which are cast to the same values
            array = array.astype(str).astype(np.float64)
        return to_task_data(array.tolist(), what)
    if isinstance(task, Mapping):
        items = cast(Mapping[Any, Any], task)
        if all(isinstance(key, str) for key in items):
            return {key: to_task_data(value, what) for key, value in items.items()}
    if isinstance(task, list | tuple):
        return [to_task_data(value, what) for value in cast(Sequence[Any], task)]
    raise ConfigError(
        f"{what} must consist of numbers, strings, arrays, lists and dictionaries with strings as "
        f"keys, which checkpoints can store, got {task!r}."
    )
