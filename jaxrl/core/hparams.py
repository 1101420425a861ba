"""Hyperparameters as leaves of the state: changing one never recompiles a program."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import Counter, Progress
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean
from jaxrl.ops.schedules import Schedule


@pytree
class ScheduleFunction:
    """A user's function of the environment steps, such as an optax schedule.

    It is part of the program and has no leaves: another function is another program. It gets the
    steps as float32, which counts one by one up to 2**24.
    """

    fn: Callable[[Float[Array, ""]], Any] = static()

    def value_at(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """The function's value at a number of environment steps."""
        return jnp.asarray(self.fn(step), jnp.float32)


Hyperparameter: TypeAlias = "Float[Array, ''] | Counter | Schedule | ScheduleFunction"
HParams: TypeAlias = dict[str, Hyperparameter]


def is_hyperparameter(field: "dataclasses.Field[Any]") -> bool:
    """Whether a setting only enters arithmetic: as it says, or a plain field that is a float."""
    is_float = field.type in (float, "float") or isinstance(field.default, float)
    return field.metadata.get("sweepable", is_float)


class Values(dict[str, Any]):
    """The current hyperparameters for a loss, which answer an unknown name with the known ones."""

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownNameError(
            f"values has no hyperparameter {name!r}.{did_you_mean(name, self)} Known: "
            f"{', '.join(sorted(self))}. One of your own is a field of a config subclass: "
            f"class MyConfig(PPOConfig): {name}: float = 0.1"
        )


def hyperparameters(settings: Any) -> HParams:
    """The sweepable numbers of a settings group, each a float32 leaf or a schedule's knots.

    Counts that counters are compared with are counters. Fields that are None are left out: whether something is None shapes the program.

    Raises:
        ConfigError: A schedule is no schedule, or a function gives no number.
    """
    leaves: HParams = {}
    for field in dataclasses.fields(settings):
        value = vars(settings)[field.name]
        if not is_hyperparameter(field) or value is None:
            continue
        if isinstance(value, Schedule | Counter):  # of `traced_settings`
            leaves[field.name] = value
        elif _is_counter(field):
            leaves[field.name] = Counter.of(value)
        elif isinstance(value, (list, tuple)):
            leaves[field.name] = Schedule.from_setting(value, name=field.name)
        elif callable(value):
            leaves[field.name] = _schedule_function(field.name, value)
        else:
            leaves[field.name] = jnp.asarray(value, jnp.float32)
    return leaves


def _is_counter(field: "dataclasses.Field[Any]") -> bool:
    return field.metadata.get("is_counter", False)


def leaf_of(value: float, like: Hyperparameter) -> Hyperparameter:
    """A number as the leaf that takes the place of another one."""
    return Counter.of(value) if isinstance(like, Counter) else jnp.asarray(value, jnp.float32)


def numbers_of(settings: Any) -> dict[str, Any]:
    """The sweepable settings as leaves, for `traced_settings`; functions have none."""
    return {
        name: value
        for name, value in hyperparameters(settings).items()
        if not isinstance(value, ScheduleFunction)
    }


def traced_settings(settings: Any, numbers: Mapping[str, Any]) -> Any:
    """The settings with traced numbers or schedules in the places of their own.

    So one trace of `Learner.init` serves runs that differ in sweepable settings.
    """
    return dataclasses.replace(settings, **numbers)


class PerLane:
    """What stands for a number where a program is built that runs with different ones share.

    Each run has its own as a leaf of its state. A number that was read from the settings would be
    part of the program and so the first run's for all of them, which this refuses.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} of each lane>"

    def refuse(self, *_: Any) -> NoReturn:
        """Raise a sentence that says where the number is to be read."""
        raise ConfigError(
            f"{self._name} was read from the settings, where it is part of the program, but lanes "
            "with other values share that program: read it from the state, as "
            f"current_values(state.hparams, progress)['{self._name}']."
        )


for _reading in (
    *("float", "int", "index", "bool", "complex", "array", "jax_array", "iter", "len", "getitem"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "round", "format"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
):
    setattr(PerLane, f"__{_reading}__", PerLane.refuse)


def per_lane_settings(settings: Any, names: Collection[str]) -> Any:
    """The settings for a program of lanes that differ in these numbers, none of which can be read."""
    return dataclasses.replace(settings, **{name: PerLane(name) for name in names})


def current_values(hparams: Mapping[str, Hyperparameter], progress: Progress) -> dict[str, Any]:
    """Each hyperparameter at the run's present number of environment steps."""

    def now(value: Hyperparameter) -> Float[Array, ""] | Counter:
        if isinstance(value, Schedule):
            return value.value_at(progress.env_steps)
        if isinstance(value, ScheduleFunction):
            return value.value_at(progress.env_steps.as_float())
        return value

    return {name: now(value) for name, value in hparams.items()}


def abstract_values(settings: Any) -> dict[str, Any]:
    """The shapes of `current_values`, whatever the settings' values are."""
    number, count = jax.ShapeDtypeStruct((), jnp.float32), jax.eval_shape(Counter.zero)
    return {
        field.name: count if _is_counter(field) else number
        for field in dataclasses.fields(settings)
        if field.metadata.get("sweepable", False) and vars(settings)[field.name] is not None
    }


def _schedule_function(name: str, fn: Callable[[Any], Any]) -> ScheduleFunction:
    """The function, traced once to see that it takes a count and gives a number."""
    schedule = ScheduleFunction(fn=fn)
    try:
        value = jax.eval_shape(schedule.value_at, jax.ShapeDtypeStruct((), jnp.float32))
    except (TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{name} is {fn!r}, which cannot be traced as a function of the environment steps "
            f"({type(error).__name__}: {reason}); use jax.numpy in it, or [[timestep, value], ...]."
        ) from error
    if value.shape != ():
        raise ConfigError(
            f"{name} is {fn!r}, which gives an array of shape {value.shape} for a number of "
            "environment steps; it must give one number."
        )
    return schedule
