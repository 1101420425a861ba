"""Conversion of configs and spaces to plain data without pickle, and back.

Data may come from an untrusted source: only registered dataclasses are instantiated, classes must be of
the kind that their setting takes, and settings with side effects (folders, environment variables) are
accepted from the user alone.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.config.coerce import MAX_SAVED_DEPTH, accepts_objects, is_deeper
from jaxrl.config.imports import (
    ALGORITHM,
    ALGORITHM_CONFIG,
    ANYTHING,
    OWN,
    RL_MODULE,
    ImportKind,
    Trust,
    get_import_path,
    is_missing_in_script,
    load_object,
)
from jaxrl.config.markers import Marker
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import find_config_class, list_algorithms
from jaxrl.config.settings.run import LOCAL_LOGGERS
from jaxrl.config.signature import compute_digest
from jaxrl.errors import CheckpointError, ConfigError, JaxrlError, summarize_exception

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.names import NameTable


IMPORT_KEY, SPACE_KEY, DATACLASS_KEY = "__import__", "__space__", "__dataclass__"
TUPLE_KEY, FLOAT_KEY = "__tuple__", "__float__"

RECORDING_SETTINGS = (
    *("compilation_cache_dir", "log_level", "log_sys_usage", "loggers"),
    *("output", "output_max_file_size", "output_max_rows_per_file", "results_dir", "run_name"),
)
"""Settings that say where and how a run is recorded, on which nothing that is trained depends."""


def serialize_config(config: "Config") -> dict[str, Any]:
    """Convert a config to plain data: classes and functions as import paths, spaces as bounds.

    Raises:
        ConfigError: If a setting is an object without an import path (a lambda, an instance); the
            message names the setting and a remedy.
    """
    return _as_data(config, _encode)


def serialize_restorable(config: "Config") -> tuple[dict[str, Any], list[str]]:
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


def serialize_for_display(config: "Config") -> dict[str, Any]:
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
    return compute_digest(unify_numbers(described))


def unify_numbers(data: object) -> Any:
    """Replace whole floats in plain data by integers: settings are parsed alike from both."""
    if isinstance(data, Mapping):
        return {name: unify_numbers(v) for name, v in cast(Mapping[str, Any], data).items()}
    if isinstance(data, list):
        return [unify_numbers(item) for item in cast(list[Any], data)]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def _as_data(
    config: "Config", encode: Callable[[str, object], object], *, algo: str | None = None
) -> dict[str, Any]:
    return {
        "algo": _find_algo_path(config) or algo or get_config_class_path(config),
        "settings": {name: encode(name, value) for name, value in config.items()},
        "explicit_settings": sorted(config.explicit),
        "algo_class": encode("algo_class", config.algo_class),
    }


def get_config_class_path(config: "Config") -> str:
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


def _find_algo_path(config: "Config") -> str | None:
    cls = type(config)
    if cls.algo_name in list_algorithms() and (find_config_class(cls.algo_name) is cls):
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


_MAX_ENTRIES = 2**31
_MAX_DEPTH = 32


def space_to_data(name: str, space: gymnasium.Space[Any]) -> dict[str, Any]:
    """Convert a space to plain data.

    Args:
        name: Setting that the space belongs to, for the error message.
        space: Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple.

    Raises:
        ConfigError: If spaces of this class cannot be saved; the message names the setting.
    """
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
            parts = {key: space_to_data(name, part) for key, part in space.spaces.items()}
            return {"kind": kind, "spaces": parts}
        case spaces.Tuple():
            return {"kind": kind, "spaces": [space_to_data(name, part) for part in space.spaces]}
        case _:
            raise ConfigError(
                f"{name} cannot be saved in a checkpoint, got {space!r}: use a Box, Discrete, "
                "MultiDiscrete, MultiBinary, Dict or Tuple."
            )


def space_from_data(data: object, name: str) -> gymnasium.Space[Any]:
    """Restore a space from the output of `space_to_data`.

    Raises:
        CheckpointError: If the data does not describe a space; the message names the setting.
    """
    try:
        return _decode_space(cast(Mapping[str, Any], data), _MAX_DEPTH)
    except Exception as error:
        raise CheckpointError(f"{name} must describe a space, got {str(data)[:100]}.") from error


def _decode_space(data: Mapping[str, Any], depth: int) -> gymnasium.Space[Any]:
    if depth == 0:
        raise ValueError("nested too deep")
    match data["kind"]:
        case "Box":
            dtype = np.dtype(data["dtype"])
            if dtype.kind not in "biuf" or str(dtype) != data["dtype"]:
                raise ValueError("not a numeric dtype")
            low, high = np.asarray(data["low"], dtype), np.asarray(data["high"], dtype)
            return spaces.Box(low, high, dtype=dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"])
        case "MultiBinary":
            if not 0 < math.prod(np.atleast_1d(data["n"]).tolist()) < _MAX_ENTRIES:
                raise ValueError("invalid size of a space")
            return spaces.MultiBinary(data["n"])
        case "Dict":
            parts: Mapping[str, Any] = data["spaces"]
            return spaces.Dict({key: _decode_space(part, depth - 1) for key, part in parts.items()})
        case "Tuple":
            return spaces.Tuple([_decode_space(part, depth - 1) for part in data["spaces"]])
        case _:
            raise ValueError("unknown class of space")


logger = logging.getLogger("jaxrl.config")

REGISTERED_DATACLASSES = (
    "jaxrl.config.pbt:PopulationBasedTraining",
    "jaxrl.config.markers:Marker",
    "jaxrl.modules.model_config:DefaultModelConfig",
    "jaxrl.config.settings.multi_agent:League",
    "jaxrl.config.settings.multi_agent:PopulationPlay",
    "jaxrl.config.settings.multi_agent:Draw",
    "jaxrl.config.settings.multi_agent:PolicySpec",
    "jaxrl.config.settings.multi_agent:Seats",
    "jaxrl.config.settings.multi_agent:SelfPlay",
    "jaxrl.modules.rl_module:MultiRLModuleSpec",
    "jaxrl.modules.rl_module:RLModuleSpec",
)
"""Dataclasses that settings may contain, besides plain data and spaces."""

TRUSTED_ONLY_SETTINGS = (
    "compilation_cache_dir",
    "external_certificate_file",
    "external_client_ca_file",
    "external_host",
    "external_insecure",
    "external_private_key_file",
    "external_token_file",
    "extra_python_environs_for_driver",
    "extra_python_environs_for_worker",
    "output",
    "results_dir",
)
"""Settings with side effects: folders that machine code is loaded from or files are written to,
environment variables, and who may connect to the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Context:
    """Setting that a value belongs to, and what may be imported for it."""

    name: str
    kind: ImportKind = ANYTHING
    takes_objects: bool = True


def deserialize_config(
    data: object, overrides: Mapping[str, Any] | None = None, *, trust: Trust | None = None
) -> "Config":
    """Restore a config from the output of `serialize_config`.

    Args:
        data: Output of `serialize_config`, possibly after a round trip through JSON or YAML.
        overrides: Settings that replace saved ones, e.g. an env that cannot be imported.
        trust: Modules that may be imported, and whether settings with side effects are accepted;
            None for a file from an unknown source.

    Raises:
        CheckpointError: If the data is not a config, or requires imports that are not trusted.
        ConfigError: If something named in the data does not exist (any more).
    """
    if is_deeper(data, MAX_SAVED_DEPTH):
        raise CheckpointError(
            f"The saved config is damaged: it is nested more than {MAX_SAVED_DEPTH} levels deep."
        )
    if not isinstance(data, Mapping) or not {"algo", "settings"} <= data.keys():
        raise CheckpointError(
            f"This is not a saved config (algo or settings are missing): {data!r}."
        )
    effective_trust = trust or Trust(source="This config")
    try:
        config, ignored = _make_config(
            cast(Mapping[str, Any], data), dict(overrides or {}), effective_trust
        )
    except JaxrlError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"The saved config is damaged: {summarize_exception(error)[:300]}."
        ) from error
    if ignored and not effective_trust.is_quiet:
        logger.warning(
            "%s was not written by this user on this machine, so its %s was ignored; trust=True "
            "(--trust all) accepts everything.",
            effective_trust.source,
            " and ".join(ignored),
        )
    return config


def find_missing(data: object) -> list[str]:
    """Return the settings that name objects of the script that saved them, which this one lacks.

    Args:
        data: Output of `serialize_config`, which is not checked here.
    """
    document = cast(Mapping[str, Any], data if isinstance(data, Mapping) else {})
    settings = document.get("settings")
    values = dict(cast(Mapping[str, Any], settings if isinstance(settings, Mapping) else {}))
    missing: list[str] = []
    for name, value in {**values, "algo_class": document.get("algo_class")}.items():
        pending: list[Any] = [value]
        while pending:
            part = pending.pop()
            if isinstance(part, Mapping):
                entries = cast(Mapping[str, Any], part)
                pending += entries.values()
                if any(is_missing_in_script(entries.get(k)) for k in (IMPORT_KEY, DATACLASS_KEY)):
                    missing.append(name)
                    break
            elif isinstance(part, list):
                pending += cast(list[Any], part)
    return missing


def _make_config(
    data: Mapping[str, Any], overrides: dict[str, Any], trust: Trust
) -> "tuple[Config, list[str]]":
    """Return the config and the names of the settings that were ignored."""
    algo_class = None if "algo_class" in overrides else data.get("algo_class")
    config = _make_default_config(data["algo"], algo_class, trust)
    table, ignored = config.get_name_table(), list[str]()
    replaced = {table.find_current_name(name) or name for name in overrides}
    settings: dict[str, Any] = {}
    for name, value in cast(Mapping[str, Any], data["settings"]).items():
        current = table.find_current_name(name)
        if current is None and name in GROUP_METHODS.values():
            raise CheckpointError(f"The saved config is damaged: {name} is not a setting.")
        if (current or name) in replaced or (
            name == "mapping" and _is_asked_again(value, overrides)
        ):
            continue
        if not trust.everything and _has_side_effects(current, value, config):
            ignored.append(name)
            continue
        settings[name] = _decode_setting(name, value, table, trust)
    explicit = data.get("explicit_settings", settings)
    explicit = [n for n in explicit if n not in ignored and (n != "mapping" or n in settings)]
    config.update_from_dict({**settings, "explicit_settings": explicit})
    config.trust = OWN  # what the caller gives is not the file's
    config.update_from_dict(overrides)
    config.trust = trust
    return config, ignored


def _is_asked_again(mapping: object, overrides: Mapping[str, Any]) -> bool:
    """Return whether a saved mapping is only what a function said that is given again.

    One with several ids for an agent says between which modules the function chooses.
    """
    if overrides.get("policy_mapping_fn") is None:
        return False
    values = cast(Mapping[str, object], mapping).values() if isinstance(mapping, Mapping) else ()
    return not any(isinstance(value, list) and len(cast(list[Any], value)) > 1 for value in values)


def _make_default_config(algo: object, algo_class: object, trust: Trust) -> "Config":
    """Return a config of the algorithm's class with its defaults."""
    if not isinstance(algo, str):
        raise CheckpointError(f"The saved config is damaged: algo is {algo!r}.")
    if ":" not in algo:
        cls = find_config_class(algo)
    else:
        found = load_object(algo, "algo", ALGORITHM_CONFIG, trust=trust)
        cls = _require_class(found, "algo", ALGORITHM_CONFIG)
    context = _Context(name="algo_class", kind=ALGORITHM)
    algorithm = _decode(algo_class, context, trust)
    config = cls(None if algorithm is None else _require_class(algorithm, "algo_class", ALGORITHM))
    config.trust = trust
    return config


def _require_class(value: object, name: str, kind: ImportKind) -> type[Any]:
    if not isinstance(value, type) or not kind.matches(value):
        raise CheckpointError(f"{name} must be {kind.description}, got {value!r}.")
    return value


def _has_side_effects(name: str | None, value: object, config: "Config") -> bool:
    """Return whether a setting has side effects that its default does not have."""
    if name == "loggers":
        return not isinstance(value, list) or any(sink not in LOCAL_LOGGERS for sink in value)
    return name in TRUSTED_ONLY_SETTINGS and value != config[name]


def _decode_setting(name: str, value: object, table: "NameTable", trust: Trust) -> object:
    current = table.find_current_name(name)
    if current is None:
        return _decode(value, _Context(name=name, takes_objects=False), trust)
    if current == "evaluation_config" and isinstance(value, Mapping):
        entries = cast(Mapping[str, Any], value)
        if not {IMPORT_KEY, SPACE_KEY, DATACLASS_KEY, TUPLE_KEY, FLOAT_KEY} & entries.keys():
            return {key: _decode_setting(key, item, table, trust) for key, item in entries.items()}
    setting = table.get_setting(current)
    is_object = bool(setting.import_path) or accepts_objects(setting.annotation)
    context = _Context(name=name, kind=setting.import_kind, takes_objects=is_object)
    return _decode(value, context, trust)


def _decode(value: object, context: _Context, trust: Trust) -> Any:
    if isinstance(value, list):
        return [_decode(item, context, trust) for item in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    data = cast(Mapping[str, Any], value)
    if IMPORT_KEY in data:
        if not context.takes_objects:
            raise CheckpointError(
                f"{context.name} does not take an import path, got {data[IMPORT_KEY]!r}."
            )
        return load_object(data[IMPORT_KEY], context.name, context.kind, trust=trust)
    if SPACE_KEY in data:
        return space_from_data(data[SPACE_KEY], context.name)
    if FLOAT_KEY in data:
        return float(data[FLOAT_KEY])
    if TUPLE_KEY in data:
        return tuple(_decode(item, context, trust) for item in data[TUPLE_KEY])
    if DATACLASS_KEY in data:
        return _decode_dataclass(data[DATACLASS_KEY], data["fields"], context, trust)
    return {key: _decode(item, context, trust) for key, item in data.items()}


def _decode_dataclass(
    path: object, fields: Mapping[str, Any], context: _Context, trust: Trust
) -> object:
    """Decode an instance of a registered dataclass, or of a trusted one."""
    if path in REGISTERED_DATACLASSES:
        cls = load_object(path, context.name, ImportKind(bases=(path,)), trust=trust)
    elif not context.takes_objects:
        raise CheckpointError(f"{context.name} does not take an object, got {path!r}.")
    else:
        cls = load_object(path, context.name, trust=trust)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise CheckpointError(
            f"{context.name} must be a dataclass, got {path!r}, which is not one."
        )
    if cls is Marker:
        kind, values = fields["kind"], _decode(fields["values"], context, trust)
        return Marker(kind, tuple(values))
    field_context = dataclasses.replace(context, kind=ANYTHING, takes_objects=True)
    module_context = dataclasses.replace(field_context, kind=RL_MODULE)
    return cls(
        **{
            key: _decode(item, module_context if key == "module_class" else field_context, trust)
            for key, item in fields.items()
        }
    )
