"""Base class of AlgorithmConfig, with its values in frozen groups."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from jaxrl.compat import lookup
from jaxrl.compat.imports import connect_to_tune
from jaxrl.config.coerce import MismatchError, check_depth, coerce, copy_containers
from jaxrl.config.fields import format_value
from jaxrl.config.imports import ALGORITHM, OWN, Trust, load_object
from jaxrl.config.names import (
    GROUP_METHODS,
    NameTable,
    ResolvedSetting,
    make_unknown_attribute_error,
)
from jaxrl.config.own_settings import declare_settings
from jaxrl.config.registry import load_run_class
from jaxrl.errors import ConfigError, UnknownNameError, UnknownSettingError, did_you_mean

if TYPE_CHECKING:
    import gymnasium
    from _typeshed import DataclassInstance

    from jaxrl.algorithm import Algorithm

logger = logging.getLogger("jaxrl.config")

G = TypeVar("G", bound="DataclassInstance")

FRAMEWORKS = ("jax", "torch", "tf", "tf2", "tfe", None)
"""Frameworks of RLlib, and JAX."""

_OWN_ATTRIBUTES = (
    "algo_class",
    "critic_space",
    "in_evaluation",
    "is_recorded",
    "is_trained",
    "live_settings",
    "module_agents",
    "module_id",
    "preferred_devices",
    "trust",
)
"""Attributes of a config that are no settings."""
EXPLICIT = "explicit_settings"
"""Key of `to_dict` for the names of explicit settings; all others are defaults, which may adapt."""


class ConfigBuilder:
    """Builder for settings, by group or flat, that resolves names and checks values."""

    old_names: dict[str, str]
    """Settings that were given under an old name, as they are written now, by that name."""
    remarks: list[str]
    """Sentences on values that were accepted without effect, or replaced."""
    critic_space: "gymnasium.Space[Any] | None"
    """Space of what the central critic of a module sees; None without one, or before assembly."""
    in_evaluation: bool
    is_trained: bool
    """False for a module of several that plays without being trained."""
    live_settings: frozenset[str]
    """Settings that may be set though the config is frozen, because a run reads them anew."""
    module_agents: tuple[str, ...] | None
    """Agents of the module that a copy describes; None for the config of a run."""
    module_id: str | None
    """Module that a copy describes in a run of several agents; None for the config of a run."""
    preferred_devices: tuple[int, str] | None
    """Number of devices for `num_devices='auto'` and the reason; a resumed run keeps its number."""
    is_recorded: bool
    """True if all that is measured on a machine was decided when the run began, as for a resume."""
    trust: Trust
    """Imports by name that this config may make, and what is made of it."""
    algo_class: "type[Algorithm] | None"
    _explicit: set[str]
    _announced: set[str]
    _frozen: bool

    def __init__(self, algo_class: "type[Algorithm] | None" = None, **settings: object) -> None:
        """Create a config with the defaults of its class.

        Args:
            algo_class: Subclass of Algorithm to build, e.g. with a custom training_step.
            **settings: Nothing; settings are for the methods.

        Raises:
            UnknownSettingError: If settings are given; the message names their method.
        """
        for name in settings:
            groups = self.get_name_table().group_by_setting
            method = GROUP_METHODS[groups.get(name, "training_settings")]
            raise UnknownSettingError(
                f"{type(self).__name__}() takes no settings: write "
                f"{type(self).__name__}().{method}({name}=...)."
            )
        state = self.__dict__
        state.update(
            algo_class=_parse_algo_class(algo_class, OWN),
            old_names={},
            remarks=[],
            _announced=set(),
            critic_space=None,
            in_evaluation=False,
            is_trained=True,
            live_settings=frozenset(),
            module_agents=None,
            module_id=None,
            preferred_devices=None,
            is_recorded=False,
            trust=OWN,
            _frozen=False,
            _explicit=set(),
        )
        for attribute in GROUP_METHODS:
            state[attribute] = _copy_group(getattr(type(self), attribute))
        connect_to_tune()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Add the settings that a subclass declares, see `jaxrl.config.measure_recommended`."""
        super().__init_subclass__(**kwargs)
        declare_settings(cls, {method: attribute for attribute, method in GROUP_METHODS.items()})

    # --- setting ---

    @classmethod
    @functools.cache
    def get_name_table(cls) -> NameTable:
        """Return all settings of this class."""
        algo = getattr(cls, "algo_name", "")
        return NameTable({attr: type(getattr(cls, attr)) for attr in GROUP_METHODS}, algo)

    def set_group(
        self, attribute: str, args: tuple[object, ...], kwargs: dict[str, object], /
    ) -> None:
        """Change settings of a group: resolve names, check values and replace the group."""
        positional = [f.name for f in dataclasses.fields(getattr(self, attribute)) if not f.kw_only]
        if len(args) > len(positional):
            takes = f"only {positional[0]}" if positional else "no setting"
            raise ConfigError(
                f"{GROUP_METHODS[attribute]}() takes {takes} without a name, got {args!r}."
            )
        named = dict(zip(positional, args, strict=False))
        for name in named.keys() & kwargs.keys():
            raise ConfigError(f"{GROUP_METHODS[attribute]}() got {name} twice; give it once.")
        self._apply({**named, **kwargs}, group=attribute)

    def _apply(self, values: Mapping[str, object], group: str | None = None) -> None:
        """Set all values or, if one is invalid, none."""
        for name in values:
            if self._frozen and name not in self.live_settings:
                self._refuse_frozen(name)
        found, neutral = self._resolve_all(values, group)
        parsed = [(one, one.setting.parse(one.value, self.trust)) for one in found]
        for name in self._explicit & neutral:
            self._reset(name)
        for resolved, value in parsed:
            name = resolved.setting.name
            previous = self.__dict__[resolved.group]
            self.__dict__[resolved.group] = dataclasses.replace(previous, **{name: value})
            self._explicit.add(name)
            if resolved.old_name is not None:
                self.old_names[resolved.old_name] = resolved.call

    def resolve(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the values by the current names of their settings; no value is looked at.

        Raises:
            UnknownSettingError: If there is no setting of a name.
        """
        return {one.setting.name: one.value for one in self._resolve_all(values, None)[0]}

    def _resolve_all(
        self, values: Mapping[str, object], group: str | None
    ) -> tuple[list[ResolvedSetting], set[str]]:
        """Resolve all names; raise if two of them are the same setting.

        Returns:
            Settings with their values, and the names of settings that get their default again:
            those whose own value asks for nothing. Old names leave the setting as it is, since they
            are often a part of it: no schedule (`lr_schedule=None`) does not ask for another `lr`.
        """
        for name, value in values.items():
            if not isinstance(name, str):
                raise UnknownSettingError(f"A setting has a name, got {name!r} (with {value!r}).")
            check_depth(value, name)
        table = self.get_name_table()
        if not values.keys() <= table.group_by_setting.keys():
            values = lookup.load("rllib.settings").merge_settings(values)
        names: dict[str, str] = {}
        found: dict[str, ResolvedSetting] = {}
        neutral: set[str] = set()
        for name, value in values.items():
            settings = table.resolve(name, value, group=group)
            if not settings and name in table.group_by_setting:
                neutral.add(name)
            for resolved in settings:
                setting = resolved.setting.name
                chosen: ResolvedSetting | None = resolved
                if setting in found:
                    chosen = self._choose_one(found[setting], resolved) if group is None else None
                if chosen is None:
                    other = names[setting]
                    raise ConfigError(
                        f"'{other}' and '{name}' are the same setting, got {values[other]!r} "
                        f"and {value!r}; set only {setting}."
                    )
                names[setting], found[setting] = name, chosen
        return list(found.values()), neutral - found.keys()

    def _choose_one(self, one: ResolvedSetting, other: ResolvedSetting) -> ResolvedSetting | None:
        """Return which of two entries of a dict for a setting counts; None if they contradict.

        An old name in a dict of all settings, as RLlib's scripts write it, replaces the value that
        the dict had under the current name.
        """
        if repr(one.value) == repr(other.value):
            return one
        current = getattr(self.__dict__[one.group], one.setting.name)
        unchanged = [
            x for x in (one, other) if repr(x.setting.parse(x.value, self.trust)) == repr(current)
        ]
        if len(unchanged) != 1 or (one.old_name is None) == (other.old_name is None):
            return None
        return other if unchanged[0] is one else one

    def unset(self, *names: str) -> Self:
        """Give settings their defaults again, as if they had never been set."""
        for name in names:
            if self._frozen:
                self._refuse_frozen(name)
            self._reset(name)
        return self

    def _reset(self, name: str) -> None:
        group, default = self.get_name_table().group_by_setting[name], self._get_default(name)
        self.__dict__[group] = dataclasses.replace(self.__dict__[group], **{name: default})
        self._explicit.discard(name)

    def _get_default(self, name: str) -> object:
        return getattr(getattr(type(self), self.get_name_table().group_by_setting[name]), name)

    def _refuse_frozen(self, name: str) -> NoReturn:
        raise ConfigError(
            f"Cannot set attribute '{name}': the config of a built Algorithm is frozen; change a "
            "copy, config.copy(copy_frozen=False)."
        )

    def __setattr__(self, name: str, value: object) -> None:
        if self._frozen:
            self._refuse_frozen(name)
        if name in GROUP_METHODS:
            group_class: type[Any] = type(getattr(type(self), name))
            if not isinstance(value, group_class):
                raise ConfigError(f"{name} must be a {group_class.__name__}, got {value!r}.")
            changed = {f.name: getattr(value, f.name) for f in dataclasses.fields(group_class)}
            self._apply({k: v for k, v in changed.items() if v != self[k]}, group=name)
        elif name in _OWN_ATTRIBUTES:
            self.__dict__[name] = value
        else:
            self._apply({name: value})

    def framework(self, framework: str | None = "jax", **settings: object) -> Self:
        """Accept any framework of RLlib, with a remark: JAX is the only one."""
        if framework not in FRAMEWORKS:
            raise ConfigError(
                f"framework must be 'jax', got {framework!r}: everything is compiled by JAX."
                f"{did_you_mean(framework, FRAMEWORKS[1:-1])}"
            )
        self._apply(settings)
        if framework not in (None, "jax"):
            self.add_remark(f"framework={framework!r}: JAX computes here, as always.")
        return self

    def add_remark(self, remark: str) -> None:
        """Add a sentence on a value that was accepted without effect, or replaced."""
        if remark not in self.remarks:
            self.remarks.append(remark)

    def api_stack(self, **settings: object) -> Self:
        """Accept RLlib's switches for its new API stack, which is always enabled."""
        self._apply(settings)
        return self

    def experimental(self, **settings: object) -> Self:
        """Accept RLlib's switches for its old API stack if they match the behavior here."""
        self._apply(settings)
        return self

    # --- reading ---

    def __getitem__(self, name: str) -> Any:
        table = self.get_name_table()
        current = table.find_current_name(name)
        if current is None:
            raise make_unknown_attribute_error(name, table)
        return getattr(self.__dict__[table.group_by_setting[current]], current)

    def __setitem__(self, name: str, value: object) -> None:
        self.update_from_dict({name: value})

    if not TYPE_CHECKING:  # flat reads, which are hidden from type checkers

        def __getattr__(self, name: str) -> object:
            if name.startswith("_") or "_frozen" not in self.__dict__:
                raise AttributeError(name)
            if name in self:
                return self[name]
            rllib = lookup.load("rllib.attributes")
            if rllib.has_answer("config", name):
                return rllib.get_attribute(self, "config", name)
            algorithm = load_run_class("algorithm")
            if callable(getattr(algorithm, name, None)):
                raise AttributeError(
                    f"The config has no method '{name}': config.build() makes the Algorithm, which "
                    f"has {name}()."
                )
            methods = [known for known in dir(type(self)) if not known.startswith("_")]
            raise AttributeError(
                str(make_unknown_attribute_error(name, self.get_name_table(), methods))
            )

    def get(self, name: str, default: object = None) -> Any:
        """Return a setting's value, or the default if there is no such setting."""
        try:
            return self[name]
        except UnknownNameError:
            return default

    def pop(self, name: str, *default: object) -> Any:
        """Return a setting's value, as RLlib does: the config keeps it.

        Args:
            name: Name of the setting.
            *default: Value to return if there is no such setting.

        Raises:
            UnknownNameError: If there is no such setting, and no default.
        """
        return self.get(name, *default) if default else self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get_name_table().find_current_name(name) is not None

    def keys(self) -> list[str]:
        """Return the names of all settings."""
        return list(self.get_name_table().group_by_setting)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def items(self) -> list[tuple[str, Any]]:
        """Return the names and values of all settings."""
        return [(name, self[name]) for name in self.keys()]

    def values(self) -> list[Any]:
        """Return the values of all settings."""
        return [self[name] for name in self.keys()]

    @property
    def is_frozen(self) -> bool:
        """Return whether the config belongs to a built Algorithm and cannot change."""
        return self._frozen

    @property
    def announced(self) -> set[str]:
        """Old names and remarks that have been logged, shared by all copies of the config."""
        return self._announced

    @property
    def explicit(self) -> frozenset[str]:
        """Names of the settings that were set explicitly, which never adapt."""
        return frozenset(self._explicit)

    def is_changed(self, name: str) -> bool:
        """Return whether a setting was set explicitly, to another value than its default."""
        return name in self._explicit and self[name] != self._get_default(name)

    def refuse_changed(
        self, reasons: Mapping[str, str], where: str, neutral: Mapping[str, object] | None = None
    ) -> None:
        """Raise ConfigError if one of several settings is changed that have no effect.

        Args:
            reasons: Why, by the name of the setting.
            where: Circumstance, such as "with placement='external'".
            neutral: Other values that ask for nothing, by the name of the setting.
        """
        for name, reason in reasons.items():
            is_neutral = neutral is not None and name in neutral and self[name] == neutral[name]
            if self.is_changed(name) and not is_neutral:
                raise ConfigError(f"'{name}' (got {self[name]!r}) has no effect {where}: {reason}.")

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={self[name]!r}" for name in self.keys() if name in self._explicit
        )
        return f"{type(self).__name__}({shown})"

    # --- life cycle ---

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """Return a copy that shares no containers with this config.

        Args:
            copy_frozen: Whether the copy is frozen; None keeps the state of this config.
        """
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        for attribute in GROUP_METHODS:
            new.__dict__[attribute] = _copy_group(self.__dict__[attribute])
        frozen = self._frozen if copy_frozen is None else copy_frozen
        new.__dict__.update(
            _explicit=set(self._explicit),
            old_names=dict(self.old_names),
            remarks=list(self.remarks),
            _frozen=frozen,
        )  # _announced is shared: a copy does not repeat what has been logged
        return new

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.copy()

    def freeze(self) -> None:
        """Freeze the config, so that setting an attribute raises ConfigError."""
        self.__dict__["_frozen"] = True

    def copy_live(self, *names: str) -> Self:
        """Return a frozen copy, of which the named settings may still be set."""
        new = self.copy(copy_frozen=False)
        new.live_settings = frozenset(names)
        new.freeze()
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return all settings, flat, and the names of the explicit ones under `explicit_settings`.

        An `algo_class`, if set, is included.
        """
        return {
            **{name: copy_containers(value) for name, value in self.items()},
            EXPLICIT: sorted(self._explicit),
            **({} if self.algo_class is None else {"algo_class": self.algo_class}),
        }

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Return a config of this class with the given settings, see `update_from_dict`."""
        return cls().update_from_dict(config_dict)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Change settings, given flat or nested under the name of their group's method.

        Old RLlib names are accepted. With the key `explicit_settings`, as written by `to_dict`,
        only the settings that it lists become explicit, and those whose values are not the
        defaults.
        """
        values = dict(config_dict)
        explicit = _parse_explicit(values.pop(EXPLICIT, None))
        if "algo_class" in values:
            self.algo_class = _parse_algo_class(values.pop("algo_class"), self.trust)
        for name in ("framework", "framework_str"):
            if name in values:
                self.framework(values.pop(name))
        previous = set(self._explicit)
        flat: dict[str, Any] = {}
        for method in set(GROUP_METHODS.values()) & values.keys():
            if isinstance(values[method], Mapping):
                self._apply(values.pop(method), group=_GROUP_ATTRIBUTES[method])
        flat.update(values)
        self._apply(flat)
        if explicit is not None:
            defaults = type(self)()
            changed = {name for name in flat if name in defaults and self[name] != defaults[name]}
            self.__dict__["_explicit"] = previous | set(explicit) | changed
        return self

    @classmethod
    def overrides(cls, **settings: object) -> dict[str, Any]:
        """Return the settings as a dictionary, after the checks of the group methods."""
        config = cls()
        config._apply(settings)
        return {name: config[name] for name in sorted(config._explicit)}


_GROUP_ATTRIBUTES = {method: attribute for attribute, method in GROUP_METHODS.items()}


def _parse_explicit(value: object) -> list[str] | None:
    """Return the names of explicit settings, as `to_dict` writes them.

    Raises:
        ConfigError: If the value is no list of names.
    """
    if value is None:
        return None
    try:
        return coerce(value, list[str])
    except MismatchError:
        raise ConfigError(
            f"{EXPLICIT} must be a list of names of settings, as to_dict() writes it, got "
            f"{format_value(value)}."
        ) from None


def _parse_algo_class(value: object, trust: Trust) -> "type[Algorithm] | None":
    """Return a subclass of Algorithm, which a file may name by its import path."""
    if isinstance(value, str) and ":" in value:
        value = load_object(value, "algo_class", ALGORITHM, trust=trust)
    if value is None or isinstance(value, type):
        return value
    hint = f"; get_algorithm_config({value!r}) makes the config of a named algorithm"
    raise ConfigError(
        f"algo_class must be a subclass of Algorithm, got {value!r}"
        f"{hint if isinstance(value, str) else ''}."
    )


def _copy_group(group: G) -> G:
    values = {f.name: getattr(group, f.name) for f in dataclasses.fields(group)}
    for name, value in values.items():
        check_depth(value, name)  # a container may have changed in place
    return dataclasses.replace(group, **{n: copy_containers(x) for n, x in values.items()})
