"""Hyperparameters as leaves of the train state, so that changing one never recompiles a program."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import Counter, Progress
from jaxrl.errors import ConfigError
from jaxrl.ops.schedules import Schedule


class SettingsGroup(Protocol):
    """Object of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


S = TypeVar("S", bound=SettingsGroup)
T = TypeVar("T")

_TRACED = "traced"


@pytree
class ScheduleFunction:
    """User-defined function of the environment steps, such as an optax schedule.

    It is part of the program and has no leaves: another function is another program. It is called
    with the steps as float32, which counts one by one up to 2**24.
    """

    fn: Callable[[Float[Array, ""]], Any] = static()

    def value_at(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """Evaluate the function at a number of environment steps."""
        return jnp.asarray(self.fn(step), jnp.float32)


Hyperparameter: TypeAlias = "Float[Array, ''] | Counter | Schedule | ScheduleFunction"
HParams: TypeAlias = dict[str, Hyperparameter]


if TYPE_CHECKING:

    class Traced(Generic[T]):
        """Field of a settings group that is given as a `T` and read as a number of the state."""

        @overload
        def __get__(self: "Traced[int]", obj: object, owner: object = None) -> Counter: ...
        @overload
        def __get__(
            self: "Traced[float | None]", obj: object, owner: object = None
        ) -> Float[Array, ""] | None: ...
        @overload
        def __get__(self, obj: object, owner: object = None) -> Float[Array, ""]: ...
        def __get__(self, obj: object, owner: object = None) -> object: ...
        def __set__(self, obj: object, value: T) -> None: ...

else:
    Traced = Annotated[T, _TRACED]
    """Annotation of a setting that only enters arithmetic: a leaf of the train state.

    `clip_param: Traced[float] = field(default=0.3, ...)` is given as a number, and read in a learner
    as the number of the moment, `values.clip_param`, see `evaluate_settings`. Changing it recompiles
    nothing, and a sweep may have it as an axis.
    """


def is_traced(field: "dataclasses.Field[Any]") -> bool:
    """Return whether a setting is a leaf of the train state.

    Those of the library are annotated as `Traced`. Of a user's fields without metadata, floats are,
    too.
    """
    if _TRACED in getattr(field.type, "__metadata__", ()):
        return True
    is_float = field.type in (float, "float") or isinstance(field.default, float)
    return is_float and "doc" not in field.metadata


def strip_traced(annotation: object) -> object:
    """Return the type that a setting is given as."""
    is_marked = _TRACED in getattr(annotation, "__metadata__", ())
    return getattr(annotation, "__origin__") if is_marked else annotation  # noqa: B009


def build_hparams(settings: SettingsGroup) -> HParams:
    """Convert the traced numbers of a settings group to leaves.

    A leaf is a float32 scalar, the knots of a schedule, or a `Counter` for counts that are compared
    with counters. Fields that are None or have the value `off` of their metadata are left out: whether
    they do shapes the program.

    Raises:
        ConfigError: If a schedule is malformed, or a function does not return a number.
    """
    leaves: HParams = {}
    for field in dataclasses.fields(settings):
        value = vars(settings)[field.name]
        if not is_traced(field) or _is_off(field, value):
            continue
        if isinstance(value, Schedule | Counter):  # from `replace_with_traced`
            leaves[field.name] = value
        elif _is_counter(field):
            leaves[field.name] = Counter.from_number(value)
        elif isinstance(value, (list, tuple)):
            leaves[field.name] = Schedule.from_setting(value, name=field.name)
        elif callable(value):
            leaves[field.name] = _schedule_function(field.name, value)
        else:
            leaves[field.name] = jnp.asarray(value, jnp.float32)
    return leaves


def list_hparams(settings: SettingsGroup) -> set[str]:
    """Return the names of the hyperparameters that `build_hparams` makes."""
    return {
        field.name
        for field in dataclasses.fields(settings)
        if is_traced(field) and not _is_off(field, vars(settings)[field.name])
    }


def _is_off(field: "dataclasses.Field[Any]", value: object) -> bool:
    """Return whether the value of a setting shapes the program, rather than being a leaf."""
    off = field.metadata.get("off")
    is_number = off is not None and isinstance(value, int | float)
    return value is None or (is_number and value == off)


def _is_counter(field: "dataclasses.Field[Any]") -> bool:
    return field.metadata.get("is_counter", False)


def to_leaf(value: float, like: Hyperparameter) -> Hyperparameter:
    """Convert a number to a leaf of the same kind as an existing one."""
    return (
        Counter.from_number(value) if isinstance(like, Counter) else jnp.asarray(value, jnp.float32)
    )


def get_numeric_hparams(settings: SettingsGroup) -> HParams:
    """Return the traced settings except functions as leaves, for `replace_with_traced`."""
    return {
        name: value
        for name, value in build_hparams(settings).items()
        if not isinstance(value, ScheduleFunction)
    }


def replace_with_traced(settings: S, hparams: Mapping[str, Any]) -> S:
    """Replace numbers and schedules of the settings by traced ones.

    One trace of `Learner.init` then serves runs that differ in traced settings.
    """
    return dataclasses.replace(settings, **hparams)


class PerLane:
    """Placeholder for a number in settings from which a program for several lanes is built.

    Each lane has its own value as a leaf of its state. A number read from the settings would become
    part of the program, and so the first lane's value for all of them; any such read raises.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} of each lane>"

    def refuse(self, *_: object) -> NoReturn:
        """Raise an error that names where to read the number instead.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"{self._name} was read from the settings, where it is part of the program, but lanes "
            "with other values share that program; read it from the state, as "
            f"self.settings.at(state.hparams, progress).{self._name}."
        )


for _operator in (
    *("float", "int", "index", "bool", "complex", "array", "jax_array", "iter", "len", "getitem"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "round", "format"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
):
    setattr(PerLane, f"__{_operator}__", PerLane.refuse)


def mark_per_lane(settings: S, names: Collection[str]) -> S:
    """Replace the named numbers, in which lanes differ, by placeholders that cannot be read."""
    return dataclasses.replace(settings, **{name: PerLane(name) for name in names})


def current_values(hparams: Mapping[str, Hyperparameter], progress: Progress) -> dict[str, Any]:
    """Evaluate each hyperparameter at the run's current number of environment steps."""

    def evaluate(value: Hyperparameter) -> Float[Array, ""] | Counter:
        if isinstance(value, Schedule):
            return value.value_at(progress.env_steps)
        if isinstance(value, ScheduleFunction):
            return value.value_at(progress.env_steps.as_float())
        return value

    return {name: evaluate(value) for name, value in hparams.items()}


def get_abstract_values(settings: SettingsGroup) -> dict[str, Any]:
    """Return the shapes of `current_values`, which do not depend on the settings' values."""
    number, count = jax.ShapeDtypeStruct((), jnp.float32), jax.eval_shape(Counter.zeros)
    return {
        field.name: count if _is_counter(field) else number
        for field in dataclasses.fields(settings)
        if is_traced(field) and not _is_off(field, vars(settings)[field.name])
    }


def _schedule_function(name: str, fn: Callable[[Any], Any]) -> ScheduleFunction:
    """Wrap a function, traced once to check that it maps a count to a number."""
    schedule = ScheduleFunction(fn=fn)
    try:
        value = jax.eval_shape(
            lambda step: jnp.asarray(fn(step), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
        )
    except (TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{name} is {fn!r}, which cannot be traced as a function of the environment steps "
            f"({type(error).__name__}: {reason}); use jax.numpy in it, or [[timestep, value], ...]."
        ) from error
    if value.shape != ():
        raise ConfigError(
            f"{name} is {fn!r}, which returns an array of shape {value.shape} for a number of "
            "environment steps; it must return a single number."
        )
    return schedule
