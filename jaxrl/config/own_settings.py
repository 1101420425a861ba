"""Settings that a user's config class adds to those of an algorithm."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, get_origin

from jaxrl.config.fields import fluent
from jaxrl.errors import ConfigError

_TRAINING = "training_settings"


def declare(cls: type[Any], methods: Mapping[str, str]) -> None:
    """Put what the body of a config class declares into its groups.

    An annotated default is a setting of `training()`:

        class MyConfig(PPOConfig):
            my_coeff: float = 0.1

    A method `fluent("training_settings", MyTraining)` makes the group a MyTraining, whose other
    fields are as they were.

    Args:
        cls: The config class.
        methods: The attribute that holds each group, by the method that changes it.

    Raises:
        ConfigError: A name means something already.
    """
    for method, attribute in methods.items():
        own = cls.__dict__.get(method)
        if isinstance(own, fluent) and attribute not in cls.__dict__:
            setattr(cls, attribute, _as(own.group, getattr(cls, attribute)))
    fields = _declared(cls, set(methods.values()))
    if not fields:
        return
    settings = getattr(cls, _TRAINING)
    group: Any = dataclasses.make_dataclass(
        f"{cls.__name__}Training",
        fields,
        bases=(type(settings),),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": type(settings).__doc__, "__module__": cls.__module__},
    )
    for name, _, _ in fields:
        delattr(cls, name)
    setattr(cls, _TRAINING, _as(group, settings))
    cls.training = fluent(_TRAINING, group)


def _declared(cls: type[Any], groups: set[str]) -> list[tuple[str, Any, Any]]:
    """Annotated defaults of a class body that are no attribute of a class above."""
    fields: list[tuple[str, Any, Any]] = []
    for name, annotation in inspect.get_annotations(cls, eval_str=True).items():
        known = any(name in vars(base) for base in cls.__mro__[1:])
        if name in groups or name.startswith("_") or known or name not in cls.__dict__:
            continue
        if annotation is ClassVar or get_origin(annotation) is ClassVar:
            continue
        for group in sorted(groups & set(dir(cls))):
            if name in (field.name for field in dataclasses.fields(getattr(cls, group))):
                raise ConfigError(
                    f"{cls.__name__} declares {name}, which is a setting of {group} already; for "
                    f"another default set {group} = dataclasses.replace(..., {name}=...)."
                )
        default = cls.__dict__[name]
        fields.append((name, annotation, default if _is_field(default) else _field(default)))
    return fields


def _is_field(value: Any) -> bool:
    return isinstance(value, dataclasses.Field)


def _field(default: Any) -> Any:
    """A dataclass refuses a dictionary or a list as a default."""
    if isinstance(default, dict | list):
        copied: Any = default
        return dataclasses.field(default_factory=lambda: type(copied)(copied))
    return dataclasses.field(default=default)


def _as(group: Any, settings: Any) -> Any:
    """A group that has more fields than the settings, with their values but for its own defaults."""
    own = inspect.get_annotations(group)
    kept = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    names = {f.name for f in dataclasses.fields(group)}
    return group(
        **{name: value for name, value in kept.items() if name in names and name not in own}
    )
