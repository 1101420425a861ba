"""Definition of settings as dataclass fields, with default, type, documentation and check."""

import dataclasses
import functools
import itertools
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from jaxrl.config.coerce import (
    FLOAT32_RANGE,
    MismatchError,
    coerce,
    copy_containers,
    describe_type,
    get_choices,
    is_outside_float32,
)
from jaxrl.config.imports import ANYTHING, ImportKind, Trust, load_object
from jaxrl.config.markers import Marker, as_marker, contains_tune_marker
from jaxrl.core.hparams import is_traced, strip_traced
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.ops.schedules import parse_schedule

MAX_COUNT = 2**31 - 1
"""Largest number of rows, environments or other items; arrays are indexed with 32 bits."""

Schedule: TypeAlias = float | list[list[float]]
"""Constant, or linearly interpolated points `[[timestep, value], ...]` from timestep 0."""

_PATH_KEYS = ("type", "compute_reward")
"""Keys of a setting that is a mapping whose values may be import paths."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Condition on a single value of the right type.

    Attributes:
        requirement: Description of valid values, for error messages.
        is_satisfied: Predicate of the value.
        hint: Additional sentence of the error message, made from the value.
    """

    requirement: str
    is_satisfied: Callable[[Any], bool]
    hint: Callable[[Any], str] = lambda value: ""


def _apply_to_numbers(holds: Callable[[float], bool]) -> Callable[[Any], bool]:
    """Apply a predicate to a number or to all values of a schedule; accept all other values."""

    def check(value: object) -> bool:
        if isinstance(value, list):
            return all(holds(knot[1]) for knot in typing.cast(list[list[float]], value))
        return not isinstance(value, int | float) or isinstance(value, bool) or holds(value)

    return check


positive = Check("above 0", _apply_to_numbers(lambda x: x > 0))
non_negative = Check(
    "at least 0",
    _apply_to_numbers(lambda x: 0 <= x < math.inf),
    lambda value: " It must be finite." if value == math.inf else "",
)
at_least_one = Check("at least 1", _apply_to_numbers(lambda x: x >= 1))
count = Check(
    f"at least 1 and at most {MAX_COUNT}", _apply_to_numbers(lambda x: 1 <= x <= MAX_COUNT)
)
count_or_zero = Check(
    f"at least 0 and at most {MAX_COUNT}", _apply_to_numbers(lambda x: 0 <= x <= MAX_COUNT)
)
step_count = Check("at least 0 and below 2**63", _apply_to_numbers(lambda x: 0 <= x < 2**63))
between_zero_and_one = Check("above 0 and below 1", _apply_to_numbers(lambda x: 0 < x < 1))
unit_interval = Check("between 0 and 1", _apply_to_numbers(lambda x: 0 <= x <= 1))
finite = Check("finite", _apply_to_numbers(math.isfinite))


def field(
    *,
    default: object,
    doc: str,
    is_counter: bool = False,
    off: float | None = None,
    check: Check | None = None,
    import_path: bool | ImportKind = False,
    for_number: str = "",
) -> Any:
    """Define a setting of a group; one annotated as `Traced` is a leaf of the train state.

    Args:
        default: Default value; dictionaries and lists are copied for every config.
        doc: One or two sentences for the settings page.
        is_counter: Whether a traced setting is compared with the run's counters, and must be an
            exact integer.
        off: Value of a traced setting that shapes the program, as None always does.
        check: Additional condition on values of the right type.
        import_path: Whether a string `"module:name"` stands for an object, or a restriction on
            that object.
        for_number: Setting that takes the number that is given for this one elsewhere.

    Returns:
        A dataclass field.
    """
    metadata = make_setting_metadata(doc=doc, check=check, import_path=import_path)
    metadata.update(is_counter=is_counter, off=off, for_number=for_number)
    if isinstance(default, dict | list):
        return dataclasses.field(
            default_factory=functools.partial(copy_containers, default),
            metadata=metadata,
        )
    return dataclasses.field(default=default, metadata=metadata)


def make_setting_metadata(
    *,
    doc: str,
    check: Check | None = None,
    import_path: bool | ImportKind = False,
) -> dict[str, Any]:
    """Return metadata for `dataclasses.field(kw_only=False, ...)`, for a positional setting.

    The arguments are those of `field`.
    """
    return {"doc": doc, "check": check, "import_path": import_path}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Definition of a setting."""

    name: str
    annotation: object
    default: object
    doc: str
    sweepable: bool
    off: float | None
    check: Check | None
    import_path: bool | ImportKind
    for_number: str = ""

    @property
    def import_kind(self) -> ImportKind:
        """Restriction on objects that an import path may name."""
        return self.import_path if isinstance(self.import_path, ImportKind) else ANYTHING

    @property
    def type_description(self) -> str:
        """Description of the type in words."""
        words = describe_type(self.annotation)
        if (methods := self.import_kind.methods) and " or any value" in words:
            words = words.replace("any value", f"objects with {' and '.join(methods)}")
        if is_schedule(self.annotation):
            words = words.replace("a list of lists of numbers", "a list [[timestep, value], ...]")
        return words

    def parse(self, value: object, trust: Trust) -> object:
        """Convert and check a value of the setting.

        Search markers of Ray Tune are kept, since each trial replaces them by a value. Markers of
        jaxrl, which each lane replaces by a value, are kept with their values parsed.

        Args:
            value: Value as it was given.
            trust: Imports by name that whoever gave it may make.

        Raises:
            ConfigError: If the value has a wrong type, range or name.
        """
        parse = functools.partial(self.parse, trust=trust)
        if isinstance(value, Marker):
            draws_any = value.kind in ("uniform", "loguniform")
            if draws_any and self._accepts(1) and not self._accepts(0.5):
                raise ConfigError(
                    f"{self.name} must be a whole number, and {value!r} draws any numbers: write "
                    "choice([...]) with the whole numbers to draw from."
                )
            return value.map_values(parse)
        if contains_tune_marker(value):
            marker = None if trust.everything else as_marker(value)
            if marker is not None:
                marker.map_values(parse)  # raises here, rather than for a trial
            return copy_containers(value)
        if self.import_path:
            value = self._resolve_paths(value, trust)
        try:
            parsed = coerce(value, self.annotation)
        except MismatchError:
            raise ConfigError(self._format_type_error(value)) from None
        if self._takes_floats and is_outside_float32(value):
            raise ConfigError(f"{self.name} must be {FLOAT32_RANGE}, got {format_value(value)}.")
        if is_schedule(self.annotation):
            check_schedule_points(self.name, parsed)
        if self.check is not None and not self.check.is_satisfied(parsed):
            hint = self.check.hint(parsed)
            raise ConfigError(
                f"{self.name} must be {self.check.requirement}, got {format_value(value)}.{hint}"
            )
        return parsed

    def _resolve_paths(self, value: object, trust: Trust) -> object:
        """Replace import paths by their objects, also in a list and as entries of a mapping."""
        if self.import_kind.is_env:
            (trust.check_inner_envs if self.import_kind.by_name else trust.check_env)(value)
            return value
        if self.import_kind.by_name:
            return self._resolve_entries(value, trust)
        if isinstance(value, Mapping):
            mapping = typing.cast(Mapping[str, Any], value)
            paths = {key: mapping.get(key) for key in _PATH_KEYS}
            found = {
                key: load_object(path, f"{self.name}[{key!r}]", self.import_kind, trust=trust)
                for key, path in paths.items()
                if isinstance(path, str) and ":" in path
            }
            return {**mapping, **found} if found else mapping
        if isinstance(value, list | tuple):
            return [self._resolve_paths(item, trust) for item in typing.cast(list[Any], value)]
        known = get_choices(self.annotation)
        if not isinstance(value, str) or value in known:
            return value
        if known and ":" not in value:
            hint = did_you_mean(value, known)
            raise ConfigError(f"{self.name} has {value!r}, but known are {', '.join(known)}.{hint}")
        return load_object(value, self.name, self.import_kind, trust=trust)

    def _resolve_entries(self, value: object, trust: Trust) -> object:
        """Replace the import paths that are entries of a mapping."""
        if not isinstance(value, Mapping):
            return value
        return {
            key: load_object(entry, f"{self.name}[{key!r}]", self.import_kind, trust=trust)
            if isinstance(entry, str)
            else entry
            for key, entry in typing.cast(Mapping[Any, Any], value).items()
        }

    def _accepts(self, value: object) -> bool:
        """Return whether a value has a type of the setting."""
        try:
            coerce(value, self.annotation)
        except MismatchError:
            return False
        return True

    @property
    def _takes_floats(self) -> bool:
        """Return whether the setting takes floats, which a program may read as float32."""
        members = typing.get_args(self.annotation) or (self.annotation,)
        return any(
            m is float or float in typing.get_args(m) or m == list[list[float]] for m in members
        )

    def _format_type_error(self, value: object) -> str:
        choices = get_choices(self.annotation)
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        takes_list = typing.get_origin(self.annotation) is list
        if takes_list and isinstance(value, str) and value in choices:
            hint = f" Write [{value!r}]."
        if isinstance(value, str) and (number := _read_number(value)) is not None:
            hint = f" Write it without quotes, {value}." if self._accepts(number) else hint
        if self.for_number and type(value) in (int, float):
            hint = f" Give a number as {self.for_number}={format_value(value)}."
        if isinstance(value, list | tuple) and value:
            if self.sweepable and all(isinstance(v, int | float) for v in value):
                hint = f" One run for each is grid({format_value(list(value))})."
            elif self.name.endswith("_connector"):
                hint = " A function may return several: lambda: [...]."
        return f"{self.name} must be {self.type_description}, got {format_value(value)}.{hint}"


_LONGEST_VALUE = 200


def _read_number(text: str) -> float | None:
    """Return the number that a text spells, None if it spells none."""
    try:
        return float(text) if len(text) <= _LONGEST_NUMBER else None
    except ValueError:
        return None


_LONGEST_NUMBER = 40
"""Maximum length of a text that is read as a number, to say that quotes are the mistake."""


def format_value(value: object) -> str:
    """Format a value for a message, as one line of a length that leaves the message readable."""
    try:
        shown = repr(value)
    except ValueError:  # Python does not convert very long integers to strings
        return "a number of thousands of digits"
    if "\n" in shown:  # such as modules of flax
        shown = " ".join(shown.split())
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}..."


@functools.cache
def get_settings(group: type[Any]) -> dict[str, Setting]:
    """Return the settings of a group by name, in the order of definition.

    User-defined fields may be plain dataclass fields, without the metadata of `field`.
    """
    hints = typing.get_type_hints(group, include_extras=True)
    defaults = group()
    return {
        f.name: Setting(
            name=f.name,
            annotation=strip_traced(hints[f.name]),
            default=getattr(defaults, f.name),
            doc=f.metadata.get("doc", ""),
            sweepable=is_traced(f),
            off=f.metadata.get("off"),
            check=f.metadata.get("check"),
            import_path=f.metadata.get("import_path", False),
            for_number=f.metadata.get("for_number", ""),
        )
        for f in dataclasses.fields(group)
    }


def is_schedule(annotation: object) -> bool:
    """Return whether an annotation allows a schedule `[[timestep, value], ...]`."""
    members = typing.get_args(annotation)
    return list[list[float]] in members


def check_schedule_points(name: str, value: object) -> None:
    """Check that a schedule consists of pairs with ascending timesteps from 0.

    Raises:
        ConfigError: If it does not; the message names the setting.
    """
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
    parse_schedule(knots, name)


P = ParamSpec("P")


class Configurable(Protocol):
    """Config that a fluent method can change."""

    def set_group(
        self, attribute: str, args: tuple[object, ...], kwargs: dict[str, object], /
    ) -> None: ...


C = TypeVar("C", bound=Configurable)


class fluent(Generic[P]):  # noqa: N801  (used like a decorator)
    """Descriptor of a method that changes the settings of a group and returns the config.

    `training = fluent("training_settings", Training)` defines the method `.training(**settings)`.
    For type checkers it has the parameters of the group; old names are accepted at run time only.
    """

    def __init__(self, attribute: str, group: Callable[P, object]) -> None:
        self.attribute = attribute
        self.group = group
        self.__doc__ = group.__doc__

    @overload
    def __get__(self, instance: None, owner: type, /) -> "fluent[P]": ...
    @overload
    def __get__(self, instance: C, owner: type[C], /) -> Callable[P, C]: ...
    def __get__(self, instance: C | None, owner: type, /) -> "fluent[P] | Callable[P, C]":
        if instance is None:
            return self

        def set_settings(*args: P.args, **kwargs: P.kwargs) -> C:
            instance.set_group(self.attribute, args, kwargs)
            return instance

        set_settings.__doc__ = self.__doc__
        return set_settings
