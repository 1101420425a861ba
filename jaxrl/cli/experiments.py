"""Conversion of the options of `jaxrl train` to a config and a stop criterion."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.config.base import AlgorithmConfig, get_algorithm_config
from jaxrl.config.load import (
    RLLIB_PARAMS,
    Experiment,
    check_document_size,
    load_experiment,
    parse_yaml_value,
)
from jaxrl.config.markers import replace_at_path
from jaxrl.config.registry import find_shipped_configs, resolve_config_path
from jaxrl.config.stop import parse_stop
from jaxrl.errors import ConfigError
from jaxrl.runs.results import ENV_STEPS, TRAINED_STEPS

_JSON_EXAMPLES = {"--config": '{"lr": 3e-4}', "--env-config": '{"size": 5}'}


def build_experiment(
    source: Sequence[str],
    *,
    algo: str | None = None,
    env: str | None = None,
    stop: str | None = None,
    steps: str | None = None,
    settings: str | None = None,
    assignments: Sequence[str] = (),
    overrides: Mapping[str, Any],
) -> Experiment:
    """Build the experiment that the command line describes.

    Args:
        source: `["file", CONFIG]`, or empty if the options are complete.
        algo: Name of the algorithm.
        env: Id or class path of the environment.
        stop: Stop criterion as JSON; replaces the one of the file.
        steps: Environment steps after which to stop; replaces the file's criterion as well.
        settings: Settings as JSON, which override those of the file.
        assignments: Single settings such as "lr=3e-4", which override both.
        overrides: Settings that have an option of their own; None leaves them unchanged.

    Raises:
        JaxrlError: If something is missing, contradictory or unknown.
    """
    criterion = parse_stop_options(stop, steps)
    given = {} if settings is None else parse_json_object("--config", settings)
    if source:
        experiment = _from_file(source, algo)
    else:
        experiment = _from_options(algo, env or given.get("env"))
    config = experiment.config
    if env is not None:
        config.environment(env)
    config.update_from_dict(given)
    for assignment in assignments:
        _assign(config, assignment)
    config.update_from_dict({name: v for name, v in overrides.items() if v is not None})
    check_steps_option(steps, is_offline=config.is_offline)
    stop_at = experiment.stop if criterion is None else criterion
    return Experiment(name=experiment.name, config=config, stop=stop_at)


def parse_stop_options(stop: str | None, steps: str | None) -> dict[str, float] | None:
    """Parse --stop and --steps into one criterion; None without either.

    Raises:
        JaxrlError: If one of them is invalid, or both give a number of steps.
    """
    if stop is None and steps is None:
        return None
    criteria = {} if stop is None else parse_stop(parse_json_object("--stop", stop))
    if steps is None:
        return criteria
    if ENV_STEPS in criteria:
        raise ConfigError(
            f"--steps {steps} and --stop both give {ENV_STEPS}: leave one of them out."
        )
    return {ENV_STEPS: parse_steps(steps), **criteria}


def check_steps_option(steps: str | None, *, is_offline: bool) -> None:
    """Raise if --steps is given for a run that takes no environment steps."""
    if steps is None or not is_offline:
        return
    raise ConfigError(
        f"--steps {steps} counts environment steps, and a run that learns from recorded data takes "
        f"none: --stop '{{\"{TRAINED_STEPS}\": {parse_steps(steps):.0f}}}' ends it after so many "
        "recorded rows, and --stop '{\"training_iteration\": 10}' after so many iterations."
    )


def parse_steps(text: str) -> float:
    """Parse the whole number of --steps, which may be written as 1e6 or 500_000.

    Raises:
        ConfigError: If it is not a whole number of at least 1.
    """
    try:
        steps = float(text)
    except ValueError:
        steps = 0.0
    if not (steps >= 1 and steps.is_integer()):
        raise ConfigError(
            f"--steps must be a whole number above 0, such as 100000 or 1e6, got {text!r}."
        )
    return steps


def _assign(config: AlgorithmConfig, assignment: str) -> None:
    """Apply "name=value", or "name.key=value" for one entry of a dictionary setting."""
    path, equals, text = assignment.partition("=")
    name, *keys = path.strip().split(".")
    if not equals or not all((name, *keys)):
        raise ConfigError(f"--set takes name=value, as in --set lr=3e-4, got {assignment!r}.")
    value, previous = parse_yaml_value(text, f"--set {assignment}"), config.get(name)
    if keys and not isinstance(previous, Mapping | None):
        raise ConfigError(f"--set {path}=... needs a dictionary, but {name} is {previous!r}.")
    try:
        changed = replace_at_path(previous, tuple(keys), value)
    except ConfigError as error:
        raise ConfigError(f"--set {assignment}: {error}") from None
    config.update_from_dict({name: changed})


def parse_json_object(option: str, text: str) -> dict[str, Any]:
    """Parse the JSON object given to an option.

    Raises:
        ConfigError: If the text is not a JSON object.
    """
    example = _JSON_EXAMPLES.get(option, '{"training_iteration": 10}')
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{option} is not valid JSON ({error}): got {text[:200]!r}; "
            f"write it like '{example}', in single quotes for the shell."
        ) from error
    check_document_size(value, option)
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object like '{example}', got {text!r}.")
    return value


def _from_file(source: Sequence[str], algo: str | None) -> Experiment:
    if len(source) == 1 and source[0] in find_shipped_configs():
        raise ConfigError(f"'{source[0]}' is a shipped config: use 'jaxrl train file {source[0]}'.")
    if len(source) != 2 or source[0] != "file":
        raise ConfigError(
            f"Cannot train {' '.join(source)!r}: use 'jaxrl train file CONFIG', or give --algo "
            "and --env."
        )

    path = resolve_config_path(source[1])
    if algo is not None and path.name != RLLIB_PARAMS:
        raise ConfigError(
            f"--algo {algo} contradicts 'file {source[1]}', which names its algorithm: "
            "leave one of them out."
        )
    experiment = load_experiment(path, algo=algo)
    if experiment.config.debugging_settings.run_name is None:
        experiment.config.debugging(run_name=experiment.name)
    return experiment


def _from_options(algo: str | None, env: str | None) -> Experiment:
    if algo is None or env is None:
        missing = "--algo" if algo is None else "--env"
        raise ConfigError(
            f"{missing} is missing: use e.g. 'jaxrl train --algo PPO --env CartPole-v1', or "
            "'jaxrl train file CONFIG' ('jaxrl list configs' lists the shipped ones)."
        )

    config = get_algorithm_config(algo).environment(env)
    return Experiment(name=f"{algo} on {env}", config=config, stop={})
