"""A config read from plain data, which may be anybody's: it is looked at before it is believed.

Only registered dataclasses are made, classes are held to what their setting takes, and what acts by
itself (folders, environment variables) is taken from no one but the user.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.coerce import takes_objects
from jaxrl.config.imports import (
    ALGORITHM,
    ALGORITHM_CONFIG,
    ANYTHING,
    ENV,
    RL_MODULE,
    Kind,
    Trust,
    load_object,
    only_trusted,
)
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import get_algorithm_config_class
from jaxrl.config.serialize import DATACLASS, FLOAT, IMPORT, SPACE, TUPLE
from jaxrl.config.spaces import space_from_data
from jaxrl.config.sweep import Marker
from jaxrl.envs.registry import imported_by
from jaxrl.errors import CheckpointError, JaxrlError, in_one_line

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.names import NameTable

logger = logging.getLogger("jaxrl.config")

DATACLASSES = (
    "jaxrl.config.pbt:PopulationBasedTraining",
    "jaxrl.config.sweep:Marker",
    "jaxrl.modules.model_config:DefaultModelConfig",
    "jaxrl.modules.rl_module:RLModuleSpec",
)
"""What settings are made of, beside plain data and spaces."""

ONLY_OWN = (
    "compilation_cache_dir",
    "extra_python_environs_for_driver",
    "extra_python_environs_for_worker",
    "results_dir",
)
"""Settings that act by themselves: machine code is loaded from the one, others are written to."""

LOCAL_LOGGERS = ("console", "json", "csv", "tensorboard")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a value stands: in which setting, and what may be imported there."""

    name: str
    kind: Kind = ANYTHING
    takes_objects: bool = True


def config_from_serializable(
    data: Any, overrides: Mapping[str, Any] | None = None, *, trust: Trust | None = None
) -> "AlgorithmConfig":
    """The config that `serializable_dict` wrote.

    Args:
        data: What it wrote, perhaps through JSON or YAML.
        overrides: Settings to take instead, e.g. an env that cannot be imported.
        trust: What may be imported, and whether settings that act by themselves are taken; None for
            a file that may be anybody's.

    Raises:
        CheckpointError: The data are not a config, or name what is not trusted.
        ConfigError: Something named by the data does not exist (any more).
    """
    if not isinstance(data, Mapping) or not {"algo", "settings"} <= data.keys():
        raise CheckpointError(f"This is no saved config (it has no algo and settings): {data!r}.")
    held = trust or Trust(source="This config")
    try:
        with only_trusted(held):
            config, left_out = _config(cast(Mapping[str, Any], data), dict(overrides or {}), held)
            if not held.everything:
                _check_envs(config, held, overrides or {})
    except JaxrlError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"The saved config is damaged: {in_one_line(error)[:300]}."
        ) from error
    if left_out and not held.quietly:
        logger.warning(
            "%s was not written by this user on this machine, so its %s was not taken; trust=True "
            "(--trust all) takes everything.",
            held.source,
            " and ".join(left_out),
        )
    return config


def _config(
    data: Mapping[str, Any], replaced: dict[str, Any], trust: Trust
) -> "tuple[AlgorithmConfig, list[str]]":
    """The config, and the settings that were not taken."""
    config = _blank(data["algo"], data.get("algo_class"))
    table, left_out = config.name_table(), list[str]()
    settings: dict[str, Any] = {}
    for name, value in cast(Mapping[str, Any], data["settings"]).items():
        meant = table.current_name(name)
        if meant is None and name in GROUP_METHODS.values():
            raise CheckpointError(f"The saved config is damaged: {name} is no setting.")
        if name in replaced:
            continue
        if not trust.everything and _acts(meant, value, config):
            left_out.append(name)
            continue
        settings[name] = _setting(name, value, table, trust)
    explicit = [n for n in data.get("explicit_settings", settings) if n not in left_out]
    given = {**settings, **replaced, "explicit_settings": [*explicit, *replaced]}
    return config.update_from_dict(given), left_out


def _blank(algo: Any, algo_class: Any) -> "AlgorithmConfig":
    """A config of the algorithm's class, with its defaults."""
    if not isinstance(algo, str):
        raise CheckpointError(f"The saved config is damaged: algo is {algo!r}.")
    if ":" not in algo:
        cls: Any = get_algorithm_config_class(algo)
    else:
        cls = _class(load_object(algo, "algo", ALGORITHM_CONFIG), "algo", ALGORITHM_CONFIG)
    place = _Place(name="algo_class", kind=ALGORITHM)
    made_by = _decode(algo_class, place, Trust())
    return cls(None if made_by is None else _class(made_by, "algo_class", ALGORITHM))


def _class(found: Any, name: str, kind: Kind) -> Any:
    if not isinstance(found, type) or not kind.holds(found):
        raise CheckpointError(f"{name} must be {kind.wanted}, got {found!r}.")
    return found


def _acts(name: str | None, value: Any, config: "AlgorithmConfig") -> bool:
    """Whether a setting would do something by itself, other than its default does."""
    if name == "loggers":
        return not isinstance(value, list) or any(sink not in LOCAL_LOGGERS for sink in value)
    return name in ONLY_OWN and value != config[name]


def _setting(name: str, value: Any, table: "NameTable", trust: Trust) -> Any:
    meant = table.current_name(name)
    if meant is None:
        return _decode(value, _Place(name=name, takes_objects=False), trust)
    if meant == "evaluation_config" and isinstance(value, Mapping):
        inside = cast(Mapping[str, Any], value)
        if not {IMPORT, SPACE, DATACLASS, TUPLE, FLOAT} & inside.keys():
            return {key: _setting(key, item, table, trust) for key, item in inside.items()}
    setting = table.setting(meant)
    kind = ENV if meant == "env" else setting.kind
    takes = bool(setting.import_path) or takes_objects(setting.annotation)
    return _decode(value, _Place(name=name, kind=kind, takes_objects=takes), trust)


def _decode(value: Any, place: _Place, trust: Trust) -> Any:
    if isinstance(value, list):
        return [_decode(item, place, trust) for item in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    data = cast(Mapping[str, Any], value)
    if IMPORT in data:
        if not place.takes_objects:
            raise CheckpointError(f"{place.name} takes no import path, got {data[IMPORT]!r}.")
        return load_object(data[IMPORT], place.name, place.kind)
    if SPACE in data:
        return space_from_data(data[SPACE], place.name)
    if FLOAT in data:
        return float(data[FLOAT])
    if TUPLE in data:
        return tuple(_decode(item, place, trust) for item in data[TUPLE])
    if DATACLASS in data:
        return _dataclass(data[DATACLASS], data["fields"], place, trust)
    return {key: _decode(item, place, trust) for key, item in data.items()}


def _dataclass(path: Any, fields: Any, place: _Place, trust: Trust) -> Any:
    """An object of a registered dataclass, or of one that is trusted."""
    if path in DATACLASSES:
        cls = load_object(path, place.name, Kind(bases=(path,)))
    elif not place.takes_objects:
        raise CheckpointError(f"{place.name} takes no object, got {path!r}.")
    else:
        cls = load_object(path, place.name)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise CheckpointError(f"{place.name} must be a dataclass, got {path!r}, which is none.")
    if cls is Marker:
        kind, values = fields["kind"], _decode(fields["values"], place, trust)
        return Marker(kind, tuple(values))
    inside = dataclasses.replace(place, kind=ANYTHING, takes_objects=True)
    of_module = dataclasses.replace(inside, kind=RL_MODULE)
    made: Any = cls(
        **{
            key: _decode(item, of_module if key == "module_class" else inside, trust)
            for key, item in cast(Mapping[str, Any], fields).items()
        }
    )
    return made


def _check_envs(config: "AlgorithmConfig", trust: Trust, given: Mapping[str, Any]) -> None:
    """Refuse environments by name that would import what is not trusted."""
    evaluated = config.evaluation_settings.evaluation_config or {}
    for settings, names in ((config, given), (evaluated, {})):
        if "env" not in names:
            _check_env(settings.get("env"), trust)
        inner = settings.get("env_config")
        if isinstance(inner, Mapping) and "env_config" not in names:  # of one that wraps another
            _check_env(cast(Mapping[str, Any], inner).get("env"), trust)


def _check_env(env: Any, trust: Trust) -> None:
    if isinstance(env, Marker | list | tuple):
        for one in env.values if isinstance(env, Marker) else cast(list[Any], env):
            _check_env(one, trust)
    elif isinstance(env, Mapping):
        for one in cast(Mapping[str, Any], env).values():
            _check_env(one, trust)
    elif isinstance(env, str):
        module, path = imported_by(env)
        if path is not None:
            load_object(path, "env", ENV)
        elif module is not None:
            trust.check_module(module, "env")
