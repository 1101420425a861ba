"""Settings that custom config classes add to those of an algorithm."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, get_origin

from jaxrl.config.fields import fluent
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TRAINING = "training_settings"


def declare_settings(cls: type[Any], methods: Mapping[str, str]) -> None:
    """Add the settings declared in the body of a config class to its groups.

    An annotated default is a setting of `training()`:

        class MyConfig(PPOConfig):
            my_coeff: float = 0.1

    A method `fluent("training_settings", MyTraining)` converts the group to MyTraining, with the
    other fields unchanged.

    Args:
        cls: Config class.
        methods: Attribute of each group, by the method that changes it.

    Raises:
        ConfigError: If a name is already in use.
    """
    for method, attribute in methods.items():
        descriptor = cls.__dict__.get(method)
        if isinstance(descriptor, fluent) and attribute not in cls.__dict__:
            setattr(cls, attribute, _convert_group(descriptor.group, getattr(cls, attribute)))
    fields = _collect_declared(cls, set(methods.values()))
    if not fields:
        return
    settings = getattr(cls, _TRAINING)
    group = dataclasses.make_dataclass(
        f"{cls.__name__}Training",
        fields,
        bases=(type(settings),),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": type(settings).__doc__, "__module__": cls.__module__},
    )
    for name, _, _ in fields:
        delattr(cls, name)
    setattr(cls, _TRAINING, _convert_group(group, settings))
    cls.training = fluent(_TRAINING, group)


def _collect_declared(cls: type[Any], groups: set[str]) -> list[tuple[str, Any, Any]]:
    """Return annotated defaults of a class body that override no attribute of a base class."""
    fields: list[tuple[str, Any, Any]] = []
    for name, annotation in inspect.get_annotations(cls, eval_str=True).items():
        is_inherited = any(name in vars(base) for base in cls.__mro__[1:])
        if name in groups or name.startswith("_") or is_inherited or name not in cls.__dict__:
            continue
        if annotation is ClassVar or get_origin(annotation) is ClassVar:
            continue
        for group in sorted(groups & set(dir(cls))):
            if name in (field.name for field in dataclasses.fields(getattr(cls, group))):
                raise ConfigError(
                    f"{cls.__name__} declares {name}, which is already a setting of {group}; to "
                    f"change its default, set {group} = dataclasses.replace(..., {name}=...)."
                )
        default = cls.__dict__[name]
        fields.append((name, annotation, default if _is_field(default) else _make_field(default)))
    return fields


def _is_field(value: object) -> bool:
    return isinstance(value, dataclasses.Field)


def _make_field(default: object) -> object:
    """Make a field; dataclasses do not allow a dictionary or a list as a default."""
    if isinstance(default, dict | list):
        copied: dict[Any, Any] | list[Any] = default
        return dataclasses.field(default_factory=lambda: type(copied)(copied))
    return dataclasses.field(default=default)


def _convert_group(group: Any, settings: "DataclassInstance") -> object:
    """Convert settings to a group with additional fields; redefined fields take its defaults."""
    own_annotations = inspect.get_annotations(group)
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    names = {f.name for f in dataclasses.fields(group)}
    return group(
        **{
            name: value
            for name, value in values.items()
            if name in names and name not in own_annotations
        }
    )
