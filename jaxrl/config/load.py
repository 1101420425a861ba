"""Experiments from files: YAML or JSON in RLlib's style, or a Python file with a `config`."""

import dataclasses
import json
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import settings_of
from jaxrl.config.pbt import PopulationBasedTraining
from jaxrl.config.registry import get_algorithm_config, shipped_configs
from jaxrl.config.settings.run import Sweep
from jaxrl.config.stop import Stop, parse_stop
from jaxrl.config.sweep import marker_from_data, with_value
from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean

SETTINGS_AT_TOP = (
    "checkpoint_frequency",
    "checkpoint_freq",
    "checkpoint_at_end",
    "checkpoint_score_attribute",
    "checkpoint_score_order",
    "max_to_keep",
    "keep_checkpoints_num",
    "num_to_keep",
    "results_dir",
    "local_dir",
    "storage_path",
)
KEYS = ("run", "algo", "env", "stop", "config", "sweep", *SETTINGS_AT_TOP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a file describes: a config, and when to stop."""

    name: str
    config: AlgorithmConfig
    stop: Stop


def load_config(path: str | Path) -> AlgorithmConfig:
    """The config of the one experiment in a file.

    Args:
        path: A file, or the id of a shipped one, as `jaxrl list configs` names them:
            "classic/cartpole-ppo".
    """
    return load_experiment(path).config


def load_experiment(path: str | Path, name: str | None = None) -> Experiment:
    """The one experiment of a file, or the one with this name.

    Raises:
        ConfigError: The file is no experiment; one sentence, with the line where there is one.
        UnknownNameError: A key, setting or experiment that does not exist.
    """
    experiments = load_experiments(path)
    if name is not None:
        for experiment in experiments:
            if experiment.name == name:
                return experiment
        names = [experiment.name for experiment in experiments]
        raise UnknownNameError(
            f"{path} has no experiment '{name}'; it has {', '.join(names)}."
            + did_you_mean(name, names)
        )
    if len(experiments) > 1:
        names = ", ".join(experiment.name for experiment in experiments)
        raise ConfigError(f"{path} has {len(experiments)} experiments ({names}); name one of them.")
    return experiments[0]


def load_experiments(path: str | Path) -> list[Experiment]:
    """All experiments of a file, in its order; see `load_experiment`."""
    path = shipped_configs().get(str(path), Path(path).expanduser())
    if path.suffix not in (".yaml", ".yml", ".json", ".py"):
        raise ConfigError(
            "An experiment is a file that ends in .yaml, .yml, .json or .py, or the id of a shipped one "
            f"('jaxrl list configs' names them), got '{path}'.{did_you_mean(str(path), shipped_configs())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the experiment file '{path}': {error}.") from error
    if path.suffix == ".py":
        return [_from_python(path)]
    data, lines = parse_text(text, path)
    if data is None:
        raise ConfigError(
            f"{path} is empty: write an experiment, a name with run, env, stop and config below it."
        )
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path} must map an experiment's name to its settings, got {data!r}.")
    flat = [key for key in ("run", "algo", "env", "config") if key in data]
    if flat:
        raise ConfigError(
            f"{path} has {' and '.join(flat)} at its top: indent everything below a name of your "
            f"choice, such as '{path.stem}:'."
        )
    return [
        _with_place(path, lines, str(name), body)
        for name, body in cast(dict[Any, Any], data).items()
    ]


def experiment_from_dict(name: str, body: Any) -> Experiment:
    """An experiment from `{"run": ..., "env": ..., "stop": ..., "config": {...}}`."""
    if not isinstance(body, Mapping):
        raise ConfigError(
            f"Experiment '{name}' must be a mapping with run, env, stop and config, got {body!r}."
        )
    entries = dict(cast(Mapping[str, Any], body))
    for key in entries:
        if key == "num_samples" and entries[key] == 1:
            continue
        if key not in KEYS:
            raise UnknownNameError(
                f"Experiment '{name}' has an unknown key '{key}' (got {entries[key]!r})."
                f"{did_you_mean(key, KEYS)}"
            )
    algo = entries.get("run", entries.get("algo"))
    if not isinstance(algo, str):
        raise ConfigError(
            f"Experiment '{name}' must name its algorithm, e.g. run: PPO, got {algo!r}."
        )
    settings: Any = entries.get("config") or {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"config of experiment '{name}' must be a mapping of settings, got {settings!r}."
        )
    config = get_algorithm_config(algo).update_from_dict(cast(Mapping[str, Any], settings))
    at_top = {key: entries[key] for key in (*SETTINGS_AT_TOP, "env") if key in entries}
    config.update_from_dict(at_top)
    _add_sweep(config, entries.get("sweep"))
    return Experiment(name=name, config=config, stop=parse_stop(entries.get("stop")))


def _add_sweep(config: AlgorithmConfig, sweep: Any) -> None:
    """What `sweep()` takes, and settings with the values to try, of a file's `sweep`."""
    if sweep is None:
        return
    if not isinstance(sweep, Mapping):
        raise ConfigError(
            f"sweep must map settings to the values to try, such as lr: [1.0e-3, 3.0e-4], got "
            f"{sweep!r}."
        )
    entries = cast(Mapping[str, Any], sweep)
    own = {name: entries[name] for name in settings_of(Sweep) if name in entries}
    if isinstance(own.get("scheduler"), Mapping):  # so that it is checked here
        own["scheduler"] = PopulationBasedTraining(**own["scheduler"])
    config.sweep(**own)
    settings: dict[str, Any] = {}
    for path, data in entries.items():
        if path not in own:
            name, *inside = path.split(".")
            before = settings.get(name, config.get(name))
            marker = marker_from_data(data, path)
            settings[name] = with_value(before, tuple(inside), marker)
    config.update_from_dict(settings)


def _from_python(path: Path) -> Experiment:
    found = runpy.run_path(str(path), run_name=path.stem)
    config = found.get("config")
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"{path} must define config, an AlgorithmConfig, got {config!r}.")
    return Experiment(name=path.stem, config=config, stop=parse_stop(found.get("stop")))


def _with_place(path: Path, lines: dict[str, int], name: str, body: Any) -> Experiment:
    """The experiment; an error is told with the file and, if it quotes a key, the line."""
    try:
        return experiment_from_dict(name, body)
    except JaxrlError as error:
        sentence = str(error)
        words = [*re.findall(r"'([\w/]+)'", sentence), *re.findall(r"[\w/]+", sentence)]
        line = next((lines[word] for word in words if word in lines and word != name), None)
        where = f"{path}, line {line}" if line else str(path)
        raise type(error)(f"{where}: {sentence}") from error


class _Loader(yaml.SafeLoader):
    """Reads `3e-4` as a number, as YAML 1.2 does, and refuses a key that is given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a single word, not a list", key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key_node.value}' is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


cast(Any, _Loader).add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_text(text: str, path: Path) -> tuple[Any, dict[str, int]]:
    """What a YAML or JSON file says, and the line of every key.

    Raises:
        ConfigError: It is neither; names the file and the line.
    """
    if path.suffix == ".json":
        return _parse_json(text, path), {}
    try:
        node: Any = cast(Any, yaml).compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
        check_size(data, path)
    except (RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: this is no YAML of settings: {_brief(error)}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ConfigError(f"{path}{line}: this is no YAML: {problem}.") from error
    return data, _lines(node)


def parse_value(text: str, where: str) -> Any:
    """What a piece of YAML says, numbers such as 3e-4 among them.

    Raises:
        ConfigError: It is none; names where it was.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ConfigError(f"{where}: {text!r} is no YAML: {problem}.") from error


def _parse_json(text: str, path: Path) -> Any:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: this is no JSON: {error.msg}.") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: this is no JSON of settings: {_brief(error)}.") from error
    check_size(data, path)
    return data


def _brief(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error).split(";")[0][:200]


def _lines(node: Any) -> dict[str, int]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    lines: dict[str, int] = {}
    for key, value in cast(list[tuple[Any, Any]], node.value):
        lines.setdefault(str(key.value), key.start_mark.line + 1)
        for name, line in _lines(value).items():
            lines.setdefault(name, line)
    return lines


MAX_DEPTH = 64
MAX_VALUES = 100_000


def check_size(document: Any, source: object) -> None:
    """Refuse a document that holds itself, or that is nested or large beyond any config.

    Args:
        document: What JSON or YAML was read as; aliases of YAML count as often as they are used.
        source: What to name in the error.

    Raises:
        ConfigError: It is.
    """
    waiting: list[tuple[Any, int]] = [(document, 0)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{source} is nested more than {MAX_DEPTH} levels deep, or holds itself by an alias; "
                "settings are a few levels deep."
            )
        if seen > MAX_VALUES:
            raise ConfigError(
                f"{source} has more than {MAX_VALUES:,} values, each alias counted as often as it is "
                "used; settings are fewer."
            )
        if isinstance(value, Mapping):
            inside = cast(Mapping[Any, Any], value)
            waiting.extend((part, depth + 1) for part in inside.values())
        elif isinstance(value, list | tuple):
            waiting.extend((part, depth + 1) for part in cast(list[Any], value))
