"""A config written as plain JSON and YAML data, for checkpoints and run folders: no pickle."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np

from jaxrl.config.imports import load_object, object_path
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
from jaxrl.config.spaces import space_to_data
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

IMPORT, SPACE, DATACLASS = "__import__", "__space__", "__dataclass__"
TUPLE, FLOAT = "__tuple__", "__float__"


def serializable_dict(config: "AlgorithmConfig") -> dict[str, Any]:
    """The config as plain data: classes and functions by import path, spaces by their bounds.

    Raises:
        ConfigError: A setting is an object without an import path (a lambda, an instance); names
            the setting and what to do.
    """
    return _as_data(config, _encode)


def restorable_dict(config: "AlgorithmConfig") -> tuple[dict[str, Any], list[str]]:
    """As `serializable_dict`, but settings that cannot be saved are left out, and named."""
    not_saved: list[str] = []

    def encode(name: str, value: Any) -> Any:
        try:
            return _encode(name, value)
        except ConfigError:
            not_saved.append(name)
            return None

    data = _as_data(config, encode)
    for name in not_saved:
        data["settings"].pop(name, None)
    return data, not_saved


def describable_dict(config: "AlgorithmConfig") -> dict[str, Any]:
    """As `serializable_dict`, but what cannot be saved is shown by its repr: for reading only."""

    def encode(name: str, value: Any) -> Any:
        try:
            return _encode(name, value)
        except ConfigError:
            return repr(value)

    return _as_data(config, encode, algo=repr(type(config)))


def _as_data(config: "AlgorithmConfig", encode: Any, *, algo: str | None = None) -> dict[str, Any]:
    return {
        "algo": _algo_path(config) or algo or check_class(config),
        "settings": {name: encode(name, value) for name, value in config.items()},
        "explicit_settings": sorted(config.explicit),
        "algo_class": encode("algo_class", config.algo_class),
    }


def check_class(config: "AlgorithmConfig") -> str:
    """The path or name of the config's class.

    Raises:
        ConfigError: It has none, so that no checkpoint can say what it is of.
    """
    path = _algo_path(config)
    if path is None:
        raise ConfigError(
            f"The config class {type(config).__qualname__} has no import path, so no checkpoint can "
            "name it: define it at the top of a module, a script or a notebook's cell, or set "
            "checkpoint_at_end=False and checkpoint_frequency=0."
        )
    return path


def _algo_path(config: "AlgorithmConfig") -> str | None:
    cls = type(config)
    if cls.algo_name in list_algorithms() and (get_algorithm_config_class(cls.algo_name) is cls):
        return cls.algo_name
    if cls.__module__ == "__main__" and "<" not in cls.__qualname__:
        return f"__main__:{cls.__qualname__}"  # found by the same script or notebook
    return object_path(cls)


def _encode(name: str, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: str(value)}  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    if isinstance(value, gymnasium.Space):  # a Dict space is a Mapping too
        return {SPACE: space_to_data(name, cast(Any, value))}
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return {str(key): _encode(name, item) for key, item in items}
    if isinstance(value, tuple):
        return {TUPLE: [_encode(name, item) for item in cast(tuple[Any, ...], value)]}
    if isinstance(value, list):
        return [_encode(name, item) for item in cast(list[Any], value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _encode(name, getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {DATACLASS: _import_path(name, type(value)), "fields": fields}
    return {IMPORT: _import_path(name, value)}


def _import_path(name: str, value: Any) -> str:
    path = object_path(value)
    if path is not None:
        try:
            if load_object(path, name) is value:
                return path
        except ConfigError:
            pass
    remedy = (
        "register it with register_env and use its name"
        if name == "env"
        else "define it at the top of a module"
    )
    raise ConfigError(
        f"{name} cannot be saved in a checkpoint, got {value!r}, which has no import path: "
        f"{remedy}, or set checkpoint_at_end=False and checkpoint_frequency=0."
    )
