"""Configs from plain data, which is validated since it may come from an untrusted source.

Only registered dataclasses are instantiated, classes must be of the kind that their setting takes,
and settings with side effects (folders, environment variables) are accepted from the user alone.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.coerce import accepts_objects
from jaxrl.config.depth import MAX_SAVED_DEPTH, is_deeper
from jaxrl.config.imports import (
    ALGORITHM,
    ALGORITHM_CONFIG,
    ANYTHING,
    OWN,
    RL_MODULE,
    ImportKind,
    Trust,
    is_missing_in_script,
    load_object,
)
from jaxrl.config.loggers import LOCAL_LOGGERS
from jaxrl.config.markers import Marker
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import get_algorithm_config_class
from jaxrl.config.serialize import DATACLASS_KEY, FLOAT_KEY, IMPORT_KEY, SPACE_KEY, TUPLE_KEY
from jaxrl.config.spaces import space_from_data
from jaxrl.errors import CheckpointError, JaxrlError, summarize_exception

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.names import NameTable

logger = logging.getLogger("jaxrl.config")

REGISTERED_DATACLASSES = (
    "jaxrl.config.pbt:PopulationBasedTraining",
    "jaxrl.config.markers:Marker",
    "jaxrl.config.sweep:Marker",  # its former place, in saved sweeps
    "jaxrl.modules.model_config:DefaultModelConfig",
    "jaxrl.config.settings.league:League",
    "jaxrl.config.settings.league:PopulationPlay",
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
) -> "AlgorithmConfig":
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
) -> "tuple[AlgorithmConfig, list[str]]":
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


def _make_default_config(algo: object, algo_class: object, trust: Trust) -> "AlgorithmConfig":
    """Return a config of the algorithm's class with its defaults."""
    if not isinstance(algo, str):
        raise CheckpointError(f"The saved config is damaged: algo is {algo!r}.")
    if ":" not in algo:
        cls = get_algorithm_config_class(algo)
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


def _has_side_effects(name: str | None, value: object, config: "AlgorithmConfig") -> bool:
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
