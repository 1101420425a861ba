"""A config as plain JSON and YAML data, for checkpoints and run folders: no pickle."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.config.fields import load_object, object_path
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
from jaxrl.errors import CheckpointError, ConfigError

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


def config_from_serializable(
    data: Any, overrides: Mapping[str, Any] | None = None
) -> "AlgorithmConfig":
    """The config that `serializable_dict` wrote.

    Args:
        data: What it wrote, perhaps through JSON or YAML.
        overrides: Settings to take instead, e.g. an env that cannot be imported.

    Raises:
        CheckpointError: The data are not a config.
        ConfigError: Something named by the data does not exist (any more).
    """
    if not isinstance(data, Mapping) or not {"algo", "settings"} <= data.keys():
        raise CheckpointError(f"This is no saved config (it has no algo and settings): {data!r}.")
    algo = cast(str, data["algo"])
    cls: Any = load_object(algo, "algo") if ":" in algo else get_algorithm_config_class(algo)
    data = cast(Mapping[str, Any], data)
    config: AlgorithmConfig = cls(_decode(data.get("algo_class"), "algo_class"))
    replaced = dict(overrides or {})
    settings = {
        name: _decode(value, name)
        for name, value in cast(Mapping[str, Any], data["settings"]).items()
        if name not in replaced
    }
    explicit = [*data.get("explicit_settings", settings), *replaced]
    return config.update_from_dict({**settings, **replaced, "explicit_settings": explicit})


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
        return {SPACE: _encode_space(name, cast(Any, value))}
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


def _decode(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_decode(item, name) for item in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    data = cast(Mapping[str, Any], value)
    if IMPORT in data:
        return load_object(data[IMPORT], name)
    if SPACE in data:
        return _decode_space(data[SPACE])
    if FLOAT in data:
        return float(data[FLOAT])
    if TUPLE in data:
        return tuple(_decode(item, name) for item in data[TUPLE])
    if DATACLASS in data:
        fields = {key: _decode(item, name) for key, item in data["fields"].items()}
        return load_object(data[DATACLASS], name)(**fields)
    return {key: _decode(item, name) for key, item in data.items()}


def _encode_space(name: str, space: gymnasium.Space[Any]) -> dict[str, Any]:
    kind = type(space).__name__
    match space:
        case spaces.Box():
            low, high = space.low.tolist(), space.high.tolist()
            return {"kind": kind, "low": low, "high": high, "dtype": str(space.dtype)}
        case spaces.Discrete():
            return {"kind": kind, "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": kind, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            return {"kind": kind, "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            parts = {key: _encode_space(name, part) for key, part in space.spaces.items()}
            return {"kind": kind, "spaces": parts}
        case spaces.Tuple():
            return {"kind": kind, "spaces": [_encode_space(name, part) for part in space.spaces]}
        case _:
            raise ConfigError(
                f"{name} cannot be saved in a checkpoint, got {space!r}: use a Box, Discrete, "
                "MultiDiscrete, MultiBinary, Dict or Tuple."
            )


def _decode_space(data: Mapping[str, Any]) -> gymnasium.Space[Any]:
    match data["kind"]:
        case "Box":
            dtype: Any = np.dtype(data["dtype"]).type
            low, high = np.asarray(data["low"], dtype), np.asarray(data["high"], dtype)
            return spaces.Box(low, high, dtype=dtype)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"])
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "Dict":
            return spaces.Dict({key: _decode_space(part) for key, part in data["spaces"].items()})
        case _:
            return spaces.Tuple([_decode_space(part) for part in data["spaces"]])
