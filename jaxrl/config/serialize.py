"""Conversion of configs to plain data without pickle, for checkpoints and run folders."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np

from jaxrl.config import signature
from jaxrl.config.imports import OWN, get_import_path, is_missing_in_script, load_object
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
from jaxrl.config.spaces import space_to_data
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

IMPORT_KEY, SPACE_KEY, DATACLASS_KEY = "__import__", "__space__", "__dataclass__"
TUPLE_KEY, FLOAT_KEY = "__tuple__", "__float__"

RECORDING_SETTINGS = (
    *("compilation_cache_dir", "log_level", "log_sys_usage", "loggers"),
    *("output", "output_max_file_size", "output_max_rows_per_file", "results_dir", "run_name"),
)
"""Settings that say where and how a run is recorded, on which nothing that is trained depends."""


def serialize_config(config: "AlgorithmConfig") -> dict[str, Any]:
    """Convert a config to plain data: classes and functions as import paths, spaces as bounds.

    Raises:
        ConfigError: If a setting is an object without an import path (a lambda, an instance); the
            message names the setting and a remedy.
    """
    return _as_data(config, _encode)


def serialize_restorable(config: "AlgorithmConfig") -> tuple[dict[str, Any], list[str]]:
    """Convert a config to plain data, without the settings that cannot be saved.

    A mapping function that always gives an agent the same module is replaced by this mapping.

    Returns:
        The data, as from `serialize_config`, and the names of the settings that were left out.
    """
    omitted: list[str] = []

    def encode(name: str, value: object) -> object:
        try:
            return _encode(name, value)
        except ConfigError:
            omitted.append(name)
            return None

    data = _as_data(config, encode)
    for name in omitted:
        data["settings"].pop(name, None)
    fixed = _find_fixed_mapping(config.multi_agent_settings.mapping)
    if "policy_mapping_fn" in omitted and fixed is not None:
        data["settings"]["mapping"] = fixed
        omitted.remove("policy_mapping_fn")
    return data, omitted


def _find_fixed_mapping(mapping: object) -> dict[str, str] | None:
    """Return the module of each agent if the lists of a mapping have one each, else None."""
    if not isinstance(mapping, dict):
        return None
    values = cast("dict[str, object]", mapping)
    lists = {
        agent: cast("list[str]", own) for agent, own in values.items() if isinstance(own, list)
    }
    fixed = {agent: own[0] for agent, own in lists.items() if len(own) == 1}
    return fixed if len(fixed) == len(values) else None


def serialize_for_display(config: "AlgorithmConfig") -> dict[str, Any]:
    """Convert a config to plain data for display, with the repr of objects without import path."""

    def encode(name: str, value: object) -> object:
        try:
            return _encode(name, value)
        except ConfigError:
            return repr(value)

    return _as_data(config, encode, algo=repr(type(config)))


def hash_config(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a config's canonical JSON.

    Left out are the settings that say where and how a run is recorded, and which settings were
    given explicitly: configs of equal hash, and of equal batch plans, train alike.

    Args:
        data: Output of `serialize_for_display`, as in a run's `params.json`.
    """
    settings = {n: value for n, value in data["settings"].items() if n not in RECORDING_SETTINGS}
    described = {"algo": data["algo"], "algo_class": data.get("algo_class"), "settings": settings}
    return signature.compute_digest(unify_numbers(described))


def unify_numbers(data: object) -> Any:
    """Replace whole floats in plain data by integers: settings are parsed alike from both."""
    if isinstance(data, Mapping):
        return {name: unify_numbers(v) for name, v in cast(Mapping[str, Any], data).items()}
    if isinstance(data, list):
        return [unify_numbers(item) for item in cast(list[Any], data)]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def _as_data(
    config: "AlgorithmConfig", encode: Callable[[str, object], object], *, algo: str | None = None
) -> dict[str, Any]:
    return {
        "algo": _find_algo_path(config) or algo or get_config_class_path(config),
        "settings": {name: encode(name, value) for name, value in config.items()},
        "explicit_settings": sorted(config.explicit),
        "algo_class": encode("algo_class", config.algo_class),
    }


def get_config_class_path(config: "AlgorithmConfig") -> str:
    """Return the import path or registered name of a config's class.

    Raises:
        ConfigError: If it has neither, so that a checkpoint could not refer to it.
    """
    path = _find_algo_path(config)
    if path is None:
        raise ConfigError(
            f"The config class {type(config).__qualname__} has no import path, so checkpoints "
            "cannot refer to it: define it at the top of a module, a script or a notebook's cell, "
            "or set checkpoint_at_end=False and checkpoint_frequency=0."
        )
    return path


def _find_algo_path(config: "AlgorithmConfig") -> str | None:
    cls = type(config)
    if cls.algo_name in list_algorithms() and (get_algorithm_config_class(cls.algo_name) is cls):
        return cls.algo_name
    return get_import_path(cls)


def encode_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the infinities and NaN among values, which JSON cannot represent."""
    return {name: _encode_float(value) for name, value in values.items()}


def decode_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the return value of `encode_numbers`.

    Raises:
        ValueError: If an encoded value is no number.
    """
    return {
        name: float(value[FLOAT_KEY]) if isinstance(value, dict) and FLOAT_KEY in value else value
        for name, value in values.items()
    }


def _encode_float(value: object) -> object:
    is_special = isinstance(value, float) and not math.isfinite(value)
    return {FLOAT_KEY: str(value)} if is_special else value


def _encode(name: str, value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return _encode_float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    if isinstance(value, gymnasium.Space):  # a Dict space is a Mapping too
        return {SPACE_KEY: space_to_data(name, cast(Any, value))}
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return {str(key): _encode(name, item) for key, item in items}
    if isinstance(value, tuple):
        return {TUPLE_KEY: [_encode(name, item) for item in cast(tuple[Any, ...], value)]}
    if isinstance(value, list):
        return [_encode(name, item) for item in cast(list[Any], value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _encode(name, getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {DATACLASS_KEY: _get_import_path(name, type(value)), "fields": fields}
    return {IMPORT_KEY: _get_import_path(name, value)}


def _get_import_path(name: str, value: object) -> str:
    path = get_import_path(value)
    if path is not None and is_missing_in_script(path):  # in a process that Ray started
        return path
    if path is not None:
        try:
            if load_object(path, name, trust=OWN) is value:
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
