"""The builder under AlgorithmConfig: values live in frozen groups, a call changes the config."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from jaxrl.config.coerce import copy_containers
from jaxrl.config.names import GROUP_METHODS, Meant, NameTable, unknown_attribute
from jaxrl.config.own_settings import declare
from jaxrl.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm

logger = logging.getLogger("jaxrl.config")

EXPLICIT = "explicit_settings"
"""The key of `to_dict` that tells explicit values from defaults, which may adapt."""


class ConfigBuilder:
    """Settings by group or flat, with their names resolved and their values checked."""

    notes: list[str]
    """What was accepted under an old name, a sentence each."""
    in_evaluation: bool
    preferred_devices: tuple[int, str] | None
    """The number of devices to take where `num_devices` leaves it open, and why; of a run that goes on
    the one that it had."""
    algo_class: "type[Algorithm] | None"
    _explicit: set[str]
    _frozen: bool

    def __init__(self, algo_class: "type[Algorithm] | None" = None) -> None:
        """A config with the defaults of its class.

        Args:
            algo_class: A subclass of Algorithm that `build` makes, for a training_step of its own.
        """
        if isinstance(algo_class, str):
            raise ConfigError(
                f"algo_class must be a subclass of Algorithm, got {algo_class!r}; "
                f"get_algorithm_config({algo_class!r}) makes the config of a named algorithm."
            )
        state = self.__dict__
        state.update(
            algo_class=algo_class,
            notes=[],
            in_evaluation=False,
            preferred_devices=None,
            _frozen=False,
            _explicit=set(),
        )
        for attribute in GROUP_METHODS:
            state[attribute] = _copy_group(getattr(type(self), attribute))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the config the settings that a subclass declares, see `jaxrl.config.own_settings`."""
        super().__init_subclass__(**kwargs)
        declare(cls, {method: attribute for attribute, method in GROUP_METHODS.items()})

    # --- setting ---

    @classmethod
    @functools.cache
    def name_table(cls) -> NameTable:
        """All settings of this class."""
        return NameTable({attr: type(getattr(cls, attr)) for attr in GROUP_METHODS})

    def set_group(self, attribute: str, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None:
        """What the group's method does: resolve names, check values, change the group."""
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

    def _apply(self, values: Mapping[str, Any], group: str | None = None) -> None:
        """Sets all of the values or, if one is wrong, none."""
        for name in values:
            if self._frozen:
                self._refuse_frozen(name)
        parsed = [
            (meant, meant.setting.parse(meant.value)) for meant in self._meanings(values, group)
        ]
        for meant, value in parsed:
            name = meant.setting.name
            group_before = self.__dict__[meant.group]
            self.__dict__[meant.group] = dataclasses.replace(group_before, **{name: value})
            self._explicit.add(name)
            if meant.note is not None and meant.note not in self.notes:
                self.notes.append(meant.note)
                logger.warning(meant.note)

    def _meanings(self, values: Mapping[str, Any], group: str | None) -> list[Meant]:
        """What each name means; refuses one setting under two names."""
        table = self.name_table()
        written: dict[str, str] = {}
        meanings: list[Meant] = []
        for name, value in values.items():
            meant = table.resolve(name, value, group=group)
            if meant is None:
                continue
            setting = meant.setting.name
            if setting in written:
                other = written[setting]
                raise ConfigError(
                    f"'{other}' and '{name}' are the same setting, got {values[other]!r} and "
                    f"{value!r}; give only {setting}."
                )
            written[setting] = name
            meanings.append(meant)
        return meanings

    def _refuse_frozen(self, name: str) -> NoReturn:
        raise ConfigError(
            f"Cannot set attribute '{name}': the config of a built Algorithm is frozen; change a "
            "copy, config.copy(copy_frozen=False)."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            self._refuse_frozen(name)
        if name in GROUP_METHODS:
            wanted: Any = type(getattr(type(self), name))
            if not isinstance(value, wanted):
                raise ConfigError(f"{name} must be a {wanted.__name__}, got {value!r}.")
            changed = {f.name: getattr(value, f.name) for f in dataclasses.fields(wanted)}
            self._apply({k: v for k, v in changed.items() if v != self[k]}, group=name)
        elif name in ("algo_class", "in_evaluation", "preferred_devices"):
            self.__dict__[name] = value
        else:
            self._apply({name: value})

    def framework(self, framework: Literal["jax"] = "jax", **settings: Any) -> Self:
        """Accepts 'jax'; there is no other framework."""
        if framework != "jax":
            raise ConfigError(
                f"framework must be 'jax', got {framework!r}: everything is compiled by JAX."
            )
        self._apply(settings)
        return self

    def api_stack(self, **settings: Any) -> Self:
        """Accepts RLlib's switches of its new stack, which is the only one here."""
        self._apply(settings)
        return self

    def experimental(self, **settings: Any) -> Self:
        """Accepts RLlib's switches of its old stack where they say what happens here anyway."""
        self._apply(settings)
        return self

    # --- reading ---

    def __getitem__(self, name: str) -> Any:
        table = self.name_table()
        meant = table.current_name(name)
        if meant is None:
            raise unknown_attribute(name, table)
        return getattr(self.__dict__[table.group_of[meant]], meant)

    if not TYPE_CHECKING:  # flat reads, which the type checker shall not promise

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or "_frozen" not in self.__dict__:
                raise AttributeError(name)
            if name in self:
                return self[name]
            methods = [known for known in dir(type(self)) if not known.startswith("_")]
            raise AttributeError(str(unknown_attribute(name, self.name_table(), methods)))

    def get(self, name: str, default: Any = None) -> Any:
        """A setting's value, or the default if there is no such setting."""
        try:
            return self[name]
        except UnknownNameError:
            return default

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.name_table().current_name(name) is not None

    def keys(self) -> list[str]:
        """The names of all settings."""
        return list(self.name_table().group_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def items(self) -> list[tuple[str, Any]]:
        """All settings and their values."""
        return [(name, self[name]) for name in self.keys()]

    def values(self) -> list[Any]:
        """The values of all settings."""
        return [self[name] for name in self.keys()]

    @property
    def is_frozen(self) -> bool:
        """Whether the config belongs to a built Algorithm and cannot change."""
        return self._frozen

    @property
    def explicit(self) -> frozenset[str]:
        """The settings that were set, which never adapt."""
        return frozenset(self._explicit)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={self[name]!r}" for name in self.keys() if name in self._explicit
        )
        return f"{type(self).__name__}({shown})"

    # --- life cycle ---

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """A copy that shares no container with this config.

        Args:
            copy_frozen: Whether the copy is frozen; None leaves it as this config is.
        """
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        for attribute in GROUP_METHODS:
            new.__dict__[attribute] = _copy_group(self.__dict__[attribute])
        frozen = self._frozen if copy_frozen is None else copy_frozen
        new.__dict__.update(_explicit=set(self._explicit), notes=list(self.notes), _frozen=frozen)
        return new

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def freeze(self) -> None:
        """Setting anything from now on is an error that names the attribute."""
        self.__dict__["_frozen"] = True

    def to_dict(self) -> dict[str, Any]:
        """All settings, flat, and the names of the explicit ones under `explicit_settings`.

        An `algo_class`, where there is one, is among them.
        """
        return {
            **{name: copy_containers(value) for name, value in self.items()},
            EXPLICIT: sorted(self._explicit),
            **({} if self.algo_class is None else {"algo_class": self.algo_class}),
        }

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """A config of this class with the given settings, see `update_from_dict`."""
        return cls().update_from_dict(config_dict)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Changes the settings named, flat or under the name of their group's method.

        Old RLlib names are understood. With the key `explicit_settings`, as written by `to_dict`,
        only the settings it lists count as explicit.
        """
        values = dict(config_dict)
        explicit = values.pop(EXPLICIT, None)
        if "algo_class" in values:
            self.algo_class = values.pop("algo_class")
        framework = values.pop("framework", None) or values.pop("framework_str", None) or "jax"
        self.framework(framework)
        before = set(self._explicit)
        flat: dict[str, Any] = {}
        for method in set(GROUP_METHODS.values()) & values.keys():
            if isinstance(values[method], Mapping):
                self._apply(values.pop(method), group=_ATTRIBUTE_OF[method])
        flat.update(values)
        self._apply(flat)
        if explicit is not None:
            self.__dict__["_explicit"] = before | set(explicit)
        return self

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """The settings as a dictionary, checked as the group methods would."""
        config = cls()
        config._apply(settings)
        return {name: config[name] for name in sorted(config._explicit)}


_ATTRIBUTE_OF = {method: attribute for attribute, method in GROUP_METHODS.items()}


def _copy_group(group: Any) -> Any:
    fields = dataclasses.fields(group)
    return dataclasses.replace(
        group, **{f.name: copy_containers(getattr(group, f.name)) for f in fields}
    )
