"""Loading of experiments from YAML and JSON files in RLlib's style, and from Python files."""

import dataclasses
import json
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from jaxrl.config.base import AlgorithmConfig, get_algorithm_config
from jaxrl.config.coerce import MAX_DEPTH, walk_depths
from jaxrl.config.fields import get_settings
from jaxrl.config.imports import OWN, Trust
from jaxrl.config.markers import marker_from_data, replace_at_path
from jaxrl.config.pbt import make_scheduler
from jaxrl.config.registry import find_shipped_configs, list_algorithms, refuse_address
from jaxrl.config.settings.run import SweepSettings
from jaxrl.config.stop import StopCriteria, parse_stop
from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean

TOP_LEVEL_SETTINGS = (
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
RLLIB_PARAMS = "params.json"
"""File with the settings of a trial of RLlib's."""
EXPERIMENT_KEYS = ("run", "algo", "env", "stop", "config", "sweep", *TOP_LEVEL_SETTINGS)
MAX_VALUES = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Experiment of a file: a config and stop criteria."""

    name: str
    config: AlgorithmConfig
    stop: StopCriteria


def load_config(path: str | Path) -> AlgorithmConfig:
    """Load the config of the single experiment in a file.

    Args:
        path: Path of a file, or the id of a shipped one, such as "classic/cartpole-ppo"; see
            `jaxrl list configs`.
    """
    return load_experiment(path).config


def load_experiment(
    path: str | Path, name: str | None = None, *, algo: str | None = None
) -> Experiment:
    """Load the single experiment of a file, or the one with the given name.

    Args:
        path: Path of a file, or the id of a shipped one.
        name: Name of the experiment.
        algo: Name of the algorithm of RLlib's `params.json`, which has settings alone; None takes
            it from the name of the trial's folder, such as PPO_CartPole-v1_1a2b3_00000.

    Raises:
        ConfigError: If the file is not a valid experiment; the message gives the line if possible.
        UnknownNameError: If a key, setting or experiment does not exist.
    """
    experiments = load_experiments(path, algo=algo)
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
        raise ConfigError(
            f"{path} has {len(experiments)} experiments ({names}): load_experiment(path, name) takes "
            "one of them, and the command line needs a file with one alone."
        )
    return experiments[0]


def load_experiments(path: str | Path, *, algo: str | None = None) -> list[Experiment]:
    """Load all experiments of a file, in order; see `load_experiment`."""
    refuse_address(path)
    path = find_shipped_configs().get(str(path), Path(path).expanduser())
    if path.suffix not in (".yaml", ".yml", ".json", ".py"):
        raise ConfigError(
            "An experiment is a file that ends in .yaml, .yml, .json or .py, or the id of a "
            "shipped one ('jaxrl list configs' lists them), got "
            f"'{path}'.{did_you_mean(str(path), find_shipped_configs())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the experiment file '{path}': {error}.") from error
    if path.suffix == ".py":
        return [_load_python(path)]
    data, lines = parse_text(text, path)
    if data is None:
        raise ConfigError(
            f"{path} is empty: write an experiment, a name with run, env, stop and config below it."
        )
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path} must map an experiment's name to its settings, got {data!r}.")
    if path.name == RLLIB_PARAMS and not {"algo", "run", "config"} & data.keys():
        body = {"run": algo or _find_trial_algorithm(path), "config": data}
        return [_make_with_location(path, lines, path.parent.name or path.stem, body)]
    flat = [key for key in ("run", "algo", "env", "config") if key in data]
    if flat:
        raise ConfigError(
            f"{path} has {' and '.join(flat)} at its top: indent everything below a name of your "
            f"choice, such as '{path.stem}:'."
        )
    return [
        _make_with_location(path, lines, str(name), body)
        for name, body in cast(dict[Any, Any], data).items()
    ]


def _find_trial_algorithm(path: Path) -> str:
    """Return the algorithm of a trial of Ray Tune, whose folder begins with its name."""
    folder = path.resolve().parent.name
    known = {name.lower(): name for name in list_algorithms()}
    algo = known.get(folder.partition("_")[0].lower())
    if algo is None:
        raise ConfigError(
            f"{path} has the settings of a run, but not its algorithm, and its folder '{folder}' "
            "does not begin with the name of one: give it by --algo, or as load_experiment(path, "
            "algo='PPO')."
        )
    return algo


def experiment_from_dict(name: str, body: object, trust: Trust = OWN) -> Experiment:
    """Make an experiment from `{"run": ..., "env": ..., "stop": ..., "config": {...}}`.

    Args:
        name: Name of the experiment.
        body: Its entries.
        trust: Imports by name that it may make.

    Raises:
        ConfigError: If an entry or a setting is invalid.
    """
    if not isinstance(body, Mapping):
        raise ConfigError(
            f"Experiment '{name}' must be a mapping with run, env, stop and config, got {body!r}."
        )
    entries = dict(cast(Mapping[str, Any], body))
    for key in entries:
        if key == "num_samples" and entries[key] == 1:
            continue
        if key not in EXPERIMENT_KEYS:
            raise UnknownNameError(
                f"Experiment '{name}' has an unknown key '{key}' (got {entries[key]!r})."
                f"{did_you_mean(key, EXPERIMENT_KEYS)}"
            )
    algo = entries.get("run", entries.get("algo"))
    if str(entries.get("algo", algo)).lower() != str(algo).lower():
        raise ConfigError(
            f"Experiment '{name}' has run: {algo} and algo: {entries['algo']}, which are the same "
            "setting: leave one out."
        )
    if not isinstance(algo, str):
        raise ConfigError(
            f"Experiment '{name}' must name its algorithm, e.g. run: PPO, got {algo!r}."
        )
    given = entries.get("config")
    settings: object = {} if given is None else given
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"config of experiment '{name}' must be a mapping of settings, got {settings!r}."
        )
    config = get_algorithm_config(algo)
    config.trust = trust
    config.update_from_dict(cast(Mapping[str, Any], settings))
    given_inside = {setting: config[setting] for setting in config.explicit}
    config.update_from_dict(
        {key: entries[key] for key in (*TOP_LEVEL_SETTINGS, "env") if key in entries}
    )
    for setting, value in given_inside.items():
        current = config[setting]
        if current is not value and current != value:
            raise ConfigError(
                f"Experiment '{name}' has {setting}: {current}, and {setting}: {value} in its "
                "config: leave one out."
            )
    _add_sweep(config, entries.get("sweep"))
    return Experiment(name=name, config=config, stop=parse_stop(entries.get("stop")))


def _add_sweep(config: AlgorithmConfig, sweep: object) -> None:
    """Apply a file's `sweep`: arguments of `sweep()`, and settings with the values to try."""
    if sweep is None:
        return
    if not isinstance(sweep, Mapping):
        raise ConfigError(
            f"sweep must map settings to the values to try, such as lr: [1.0e-3, 3.0e-4], got "
            f"{sweep!r}."
        )
    entries = cast(Mapping[str, Any], sweep)
    arguments = {name: entries[name] for name in get_settings(SweepSettings) if name in entries}
    if isinstance(arguments.get("scheduler"), Mapping):  # checks its arguments
        arguments["scheduler"] = make_scheduler(arguments["scheduler"])
    config.sweep(**arguments)
    settings: dict[str, Any] = {}
    for path, data in entries.items():
        if path not in arguments:
            name, *keys = str(path).split(".")
            previous = settings.get(name, config.get(name))
            marker = marker_from_data(data, path)
            try:
                settings[name] = replace_at_path(previous, tuple(keys), marker)
            except ConfigError as error:
                raise ConfigError(f"sweep has '{path}': {error}") from None
    config.update_from_dict(settings)


def _load_python(path: Path) -> Experiment:
    found = runpy.run_path(str(path), run_name=path.stem)
    config = found.get("config")
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"{path} must define config, an AlgorithmConfig, got {config!r}.")
    return Experiment(name=path.stem, config=config, stop=parse_stop(found.get("stop")))


def _make_with_location(path: Path, lines: dict[str, int], name: str, body: object) -> Experiment:
    """Make an experiment; errors give the file and, if they name a key, its line."""
    try:
        return experiment_from_dict(name, body)
    except JaxrlError as error:
        sentence = str(error)
        words = [*re.findall(r"'([\w/]+)'", sentence), *re.findall(r"[\w/]+", sentence)]
        line = next((lines[word] for word in words if word in lines and word != name), None)
        where = f"{path}, line {line}" if line else str(path)
        raise type(error)(f"{where}: {sentence}") from error


class _Loader(yaml.SafeLoader):
    """YAML loader that reads `3e-4` as a number, as in YAML 1.2, and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
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

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert merged entries (`<<`), of which each level could have several times as many."""
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"'<<' merges more than {MAX_VALUES:,} entries", node.start_mark
            )


cast(Any, _Loader).add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


_CONTAINS_ITSELF = "it contains itself by an alias; settings are a few levels deep"

_VALUE_ERRORS = (RecursionError, ValueError, AttributeError, LookupError, TypeError)
"""Errors that PyYAML raises for impossible values, such as `!!timestamp x` and `!!bool x`."""


def parse_text(text: str, path: Path) -> tuple[object, dict[str, int]]:
    """Parse the text of a YAML or JSON file.

    Returns:
        The data and, for YAML, the line of every key.

    Raises:
        ConfigError: If the text is invalid; the message gives the file and the line.
    """
    if path.suffix == ".json":
        return _parse_json(text, path), {}
    try:
        node: yaml.Node | None = cast(Any, yaml).compose(text, Loader=_Loader)
        lines = _find_key_lines(node, path)
        data = yaml.load(text, Loader=_Loader)
        check_document_size(data, path)
    except ConfigError:
        raise
    except _VALUE_ERRORS as error:
        raise ConfigError(f"{path}: not valid YAML settings: {_summarize_error(error)}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ConfigError(f"{path}{line}: not valid YAML: {problem}.") from error
    return data, lines


def parse_yaml_value(text: str, where: str) -> object:
    """Parse a YAML value, in which 3e-4 is a number.

    Args:
        text: YAML text.
        where: Source of the text, for the error message.

    Raises:
        ConfigError: If the text is invalid.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except _VALUE_ERRORS as error:
        raise ConfigError(f"{where} is not valid YAML: {_summarize_error(error)}.") from error
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ConfigError(f"{where}: {text!r} is not valid YAML: {problem}.") from error


def _parse_json(text: str, path: Path) -> object:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}.") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not valid JSON settings: {_summarize_error(error)}.") from error
    check_document_size(data, path)
    return data


def _summarize_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, ValueError):
        return "a value is not of the type that its tag names"
    return str(error).split(";")[0][:200]


def _find_key_lines(root: yaml.Node | None, source: object) -> dict[str, int]:
    """Return the first line of every key in the mappings of mappings.

    Raises:
        ConfigError: If a mapping contains itself by an alias, which its data may hide (`<<`).
    """
    lines: dict[str, int] = {}
    open_nodes: set[int] = set()
    closed: set[int] = set()
    pending: list[tuple[Any, bool]] = [(root, False)]
    while pending:
        node, is_done = pending.pop()
        if is_done:
            open_nodes.remove(id(node))
            closed.add(id(node))
        elif id(node) in open_nodes:
            raise ConfigError(f"{source}, line {node.start_mark.line + 1}: {_CONTAINS_ITSELF}.")
        elif isinstance(node, yaml.CollectionNode) and id(node) not in closed:
            open_nodes.add(id(node))
            pending.append((node, True))
            entries = cast(list[Any], node.value)
            if isinstance(node, yaml.MappingNode):
                for key, _ in entries:
                    lines.setdefault(str(key.value), key.start_mark.line + 1)
                entries = [value for _, value in entries]
            pending += [(value, False) for value in reversed(entries)]
    return lines


def check_document_size(document: object, source: object) -> None:
    """Check that a document does not contain itself, and is not too large or too deeply nested.

    Args:
        document: Data parsed from JSON or YAML; aliases of YAML count as often as they are used.
        source: Source of the document, for the error message.

    Raises:
        ConfigError: If a limit is exceeded.
    """
    for index, depth in enumerate(walk_depths(document)):
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{source} is nested more than {MAX_DEPTH} levels deep, or contains itself by an "
                "alias; settings are a few levels deep."
            )
        if index >= MAX_VALUES:
            raise ConfigError(
                f"{source} has more than {MAX_VALUES:,} values, each alias counted as often as it "
                "is used; settings are fewer."
            )
