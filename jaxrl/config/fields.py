"""A setting is written once: a field of its group, with default, type, doc and check."""

import dataclasses
import functools
import inspect
import itertools
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from jaxrl.config.batch_plan.arithmetic import MAX_COUNT
from jaxrl.config.coerce import (
    SIZES_IN_FLOAT32,
    MismatchError,
    choices,
    coerce,
    copy_containers,
    describe,
    leaves_float32,
)
from jaxrl.config.imports import ANYTHING, Kind, load_object
from jaxrl.config.markers import holds_marker
from jaxrl.config.sweep import Marker
from jaxrl.core.hparams import is_hyperparameter
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.ops.schedules import check_schedule

Schedule: TypeAlias = float | list[list[float]]
"""A constant, or `[[timestep, value], ...]` from timestep 0 on, interpolated linearly."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A condition on a single value of the right type, and the words for it."""

    wants: str
    holds: Callable[[Any], bool]
    hint: Callable[[Any], str] = lambda value: ""


def _numbers(holds: Callable[[float], bool]) -> Callable[[Any], bool]:
    """Lets through what is no number; looks at every value of a schedule."""

    def check(value: Any) -> bool:
        if isinstance(value, list):
            return all(holds(knot[1]) for knot in typing.cast(list[list[float]], value))
        return not isinstance(value, int | float) or isinstance(value, bool) or holds(value)

    return check


positive = Check("above 0", _numbers(lambda x: x > 0))
non_negative = Check(
    "at least 0",
    _numbers(lambda x: 0 <= x < math.inf),
    lambda value: " It must be finite." if value == math.inf else "",
)
at_least_one = Check("at least 1", _numbers(lambda x: x >= 1))
count = Check(f"at least 1 and at most {MAX_COUNT}", _numbers(lambda x: 1 <= x <= MAX_COUNT))
count_or_zero = Check(
    f"at least 0 and at most {MAX_COUNT}", _numbers(lambda x: 0 <= x <= MAX_COUNT)
)
steps = Check("at least 0 and below 2**63", _numbers(lambda x: 0 <= x < 2**63))
unit_interval = Check("between 0 and 1", _numbers(lambda x: 0 <= x <= 1))
finite = Check("finite", _numbers(math.isfinite))


def field(
    *,
    default: Any,
    doc: str,
    sweepable: bool = False,
    is_counter: bool = False,
    check: Check | None = None,
    import_path: bool | Kind = False,
) -> Any:
    """A setting of a group, with a default.

    Args:
        default: A dictionary or list is copied for every config.
        doc: One or two sentences for the settings page; the first says what the setting does.
        sweepable: A scalar that only enters arithmetic, and so changes without a recompile.
        is_counter: A sweepable count that the run's counters are compared with, to the last step.
        check: What a value of the right type must also fulfil.
        import_path: A string `"module:name"` stands for the object it names; of a kind, where the
            setting calls it.
    """
    metadata = setting_metadata(doc=doc, sweepable=sweepable, check=check, import_path=import_path)
    metadata["is_counter"] = is_counter
    if isinstance(default, dict | list):
        return dataclasses.field(
            default_factory=functools.partial(copy_containers, typing.cast(Any, default)),
            metadata=metadata,
        )
    return dataclasses.field(default=default, metadata=metadata)


def setting_metadata(
    *,
    doc: str,
    sweepable: bool = False,
    check: Check | None = None,
    import_path: bool | Kind = False,
) -> dict[str, Any]:
    """For `dataclasses.field(kw_only=False, metadata=...)`: a setting that may be positional."""
    return {"doc": doc, "sweepable": sweepable, "check": check, "import_path": import_path}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the code base knows about one setting."""

    name: str
    annotation: Any
    default: Any
    doc: str
    sweepable: bool
    check: Check | None
    import_path: bool | Kind

    @property
    def kind(self) -> Kind:
        """What an import path may name."""
        return self.import_path if isinstance(self.import_path, Kind) else ANYTHING

    @property
    def wants(self) -> str:
        """The type in words."""
        words = describe(self.annotation)
        if is_schedule(self.annotation):
            words = words.replace("a list of lists of numbers", "a list [[timestep, value], ...]")
        return words

    def parse(self, value: Any) -> Any:
        """The value as this setting keeps it.

        A marker of Ray Tune's is kept as it is; each trial gets a value in its place. So does
        each lane in the place of a marker of ours, whose values are parsed here.

        Raises:
            ConfigError: Wrong type, range or name.
        """
        if isinstance(value, Marker):
            return value.parsed(self.parse)
        if holds_marker(value):
            return copy_containers(value)
        if self.import_path:
            value = self._resolve_paths(value)
        try:
            parsed = coerce(value, self.annotation)
        except MismatchError:
            raise ConfigError(self._complaint(value)) from None
        if self._is_of_floats and leaves_float32(value):
            raise ConfigError(f"{self.name} must be {SIZES_IN_FLOAT32}, got {shown(value)}.")
        if is_schedule(self.annotation):
            check_knots(self.name, parsed)
        if self.check is not None and not self.check.holds(parsed):
            hint = self.check.hint(parsed)
            raise ConfigError(f"{self.name} must be {self.check.wants}, got {shown(value)}.{hint}")
        return parsed

    def _resolve_paths(self, value: Any) -> Any:
        """The objects that import paths stand for, also those in a list."""
        if isinstance(value, list | tuple):
            return [self._resolve_paths(item) for item in typing.cast(list[Any], value)]
        known = choices(self.annotation)
        if not isinstance(value, str) or value in known:
            return value
        if known and ":" not in value:
            hint = did_you_mean(value, known)
            raise ConfigError(f"{self.name} has {value!r}, but known are {', '.join(known)}.{hint}")
        return load_object(value, self.name, self.kind)

    @property
    def _is_of_floats(self) -> bool:
        """Whether numbers of the setting may enter what is compiled."""
        members = typing.get_args(self.annotation) or (self.annotation,)
        return any(
            m is float or float in typing.get_args(m) or m == list[list[float]] for m in members
        )

    def _complaint(self, value: Any) -> str:
        hint = did_you_mean(value, choices(self.annotation)) if isinstance(value, str) else ""
        return f"{self.name} must be {self.wants}, got {shown(value)}.{hint}"


def shown(value: Any) -> str:
    """A value in a message; Python writes no whole number of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


@functools.cache
def settings_of(group: type[Any]) -> dict[str, Setting]:
    """The settings of a group, in the order of its definition.

    A field of a user's own may be a plain one, without what `field` takes.
    """
    hints = typing.get_type_hints(group)
    blank = group()
    return {
        f.name: Setting(
            name=f.name,
            annotation=hints[f.name],
            default=getattr(blank, f.name),
            doc=f.metadata.get("doc", ""),
            sweepable=is_hyperparameter(f),
            check=f.metadata.get("check"),
            import_path=f.metadata.get("import_path", False),
        )
        for f in dataclasses.fields(group)
    }


def is_schedule(annotation: Any) -> bool:
    """Whether `[[timestep, value], ...]` is a value of this type."""
    members = typing.get_args(annotation)
    return list[list[float]] in members


def check_knots(name: str, value: Any) -> None:
    """Refuses a schedule that does not start at 0, does not ascend, or has no pairs."""
    if not isinstance(value, list):
        return
    knots = typing.cast(list[list[float]], value)
    if not knots or any(len(knot) != 2 for knot in knots):
        raise ConfigError(f"{name} must be a list of [timestep, value] pairs, got {value!r}.")
    times = [knot[0] for knot in knots]
    if times[0] != 0:
        raise ConfigError(
            f"{name} must start at timestep 0, got {value!r}; "
            f"put [0, {knots[0][1]:g}] in front of it."
        )
    if any(later <= earlier for earlier, later in itertools.pairwise(times)):
        raise ConfigError(f"{name} must have ascending timesteps, got {value!r}; sort its pairs.")
    check_schedule(knots, name)


P = ParamSpec("P")


class Configurable(Protocol):
    """What a fluent method needs of its config."""

    def set_group(
        self, attribute: str, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> None: ...


C = TypeVar("C", bound=Configurable)


class fluent(Generic[P]):  # noqa: N801  (reads as a decorator would)
    """`training = fluent("training_settings", Training)` is the method `.training(**settings)`.

    It changes the settings that were given and returns the config. The type checker sees the
    group's own names and types, old names are understood at run time only.
    """

    def __init__(self, attribute: str, group: Callable[P, object]) -> None:
        self.attribute = attribute
        self.group = group
        self.__doc__ = group.__doc__

    @overload
    def __get__(self, instance: None, owner: type, /) -> "fluent[P]": ...
    @overload
    def __get__(self, instance: C, owner: type[C], /) -> Callable[P, C]: ...
    def __get__(self, instance: Any, owner: type, /) -> Any:
        if instance is None:
            return self

        def set_settings(*args: P.args, **kwargs: P.kwargs) -> Any:
            instance.set_group(self.attribute, args, kwargs)
            return instance

        set_settings.__doc__ = self.__doc__
        return set_settings


def _optimizer_problem(setting: Any) -> str | None:
    """None for an optimiser that can be made, else what is wrong, as the end of a sentence."""
    import optax  # pyright: ignore[reportMissingTypeStubs]

    from jaxrl.learners.learner import OPTIMIZERS

    if callable(setting):
        return None
    if isinstance(setting, str):
        setting = {"name": setting}
    arguments = dict(cast(Mapping[str, Any], setting))
    name = arguments.pop("name", None)
    if name not in OPTIMIZERS:
        return f" Known are {', '.join(OPTIMIZERS)}.{did_you_mean(name, OPTIMIZERS)}"
    known = [p for p in inspect.signature(vars(optax)[name]).parameters if p != "learning_rate"]
    for argument in arguments:
        if argument not in known:
            hint = did_you_mean(argument, known)
            return f" {name} has no argument '{argument}' (the learning rate is lr).{hint}"
        if leaves_float32(arguments[argument]):
            return f" {name}'s {argument} must be {SIZES_IN_FLOAT32}."
    return None


optimizer_check = Check(
    wants="the name of an optimiser, {'name': ..., arguments}, or a function",
    holds=lambda value: _optimizer_problem(value) is None,
    hint=lambda value: _optimizer_problem(value) or "",
)


def evaluation_arguments(function: Callable[..., Any]) -> int:
    """How many arguments a custom evaluation takes: 1 the Algorithm, 2 RLlib's eval_workers too.

    0 if it takes neither one nor two.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return 1  # written in C, without a signature
    for number in (1, 2):
        try:
            signature.bind(*range(number))
        except TypeError:
            continue
        return number
    return 0


evaluation_check = Check(
    wants="a function of (algorithm) or of (algorithm, eval_workers)",
    holds=lambda value: value is None or evaluation_arguments(value) > 0,
)
