"""From the options of `jaxrl train` to a config and a stop criterion."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl.config.load import check_size
from jaxrl.config.registry import config_file
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.load import Experiment

ENV_STEPS = "num_env_steps_sampled_lifetime"


def assemble(
    source: Sequence[str],
    *,
    algo: str | None,
    env: str | None,
    stop: Mapping[str, float] | None,
    settings: Mapping[str, Any],
    assignments: Sequence[str],
    overrides: Mapping[str, Any],
) -> "Experiment":
    """The experiment that the command line describes.

    Args:
        source: `["file", CONFIG]`, or empty if options say it all.
        algo: Name of the algorithm.
        env: The environment.
        stop: The stop criterion; replaces a file's.
        settings: Win over a file's.
        assignments: Of single settings, as in "lr=3e-4"; win over both.
        overrides: Settings that have an option of their own; None leaves them alone.

    Raises:
        JaxrlError: If something is missing, contradictory, or names nothing that exists.
    """
    from jaxrl.config.load import Experiment

    if source:
        experiment = _from_file(source, algo)
    else:
        experiment = _from_options(algo, env or settings.get("env"))
    chosen = experiment.config
    if env is not None:
        chosen.environment(env)
    chosen.update_from_dict(settings)
    for assignment in assignments:
        _assign(chosen, assignment)
    chosen.update_from_dict({name: v for name, v in overrides.items() if v is not None})
    wanted = experiment.stop if stop is None else dict(stop)
    return Experiment(name=experiment.name, config=chosen, stop=wanted)


def stop_of(stop: str | None, steps: str | None) -> dict[str, float] | None:
    """The criterion of --stop and --steps together; None without either.

    Raises:
        JaxrlError: One of them is wrong, or both give a number of steps.
    """
    from jaxrl.config.stop import parse_stop

    if stop is None and steps is None:
        return None
    criteria = {} if stop is None else parse_stop(json_object("--stop", stop))
    if steps is None:
        return criteria
    if ENV_STEPS in criteria:
        raise ConfigError(
            f"--steps {steps} and --stop both give {ENV_STEPS}: leave one of them out."
        )
    return {ENV_STEPS: _number_of_steps(steps), **criteria}


def settings_of(config: str | None) -> dict[str, Any]:
    """The settings of --config."""
    return {} if config is None else json_object("--config", config)


def _number_of_steps(text: str) -> float:
    """A whole number, which may be written as 1e6 or 500_000."""
    try:
        steps = float(text)
    except ValueError:
        steps = 0.0
    if not (steps >= 1 and steps.is_integer()):
        raise ConfigError(f"--steps must be a whole number such as 100000 or 1e6, got {text!r}.")
    return steps


def _assign(config: "AlgorithmConfig", assignment: str) -> None:
    """Sets what "name=value" says; "name.key=value" is a part of a setting that is a dictionary."""
    from jaxrl.config.load import parse_value
    from jaxrl.config.sweep import with_value

    path, equals, text = assignment.partition("=")
    name, *inside = path.strip().split(".")
    if not equals or not name:
        raise ConfigError(f"--set takes name=value, as in --set lr=3e-4, got {assignment!r}.")
    value, before = parse_value(text, f"--set {assignment}"), config.get(name)
    if inside and not isinstance(before, Mapping | None):
        raise ConfigError(f"--set {path}=... is a part of a dictionary, and {name} is {before!r}.")
    config.update_from_dict({name: with_value(before, tuple(inside), value)})


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object that an option was given.

    Raises:
        ConfigError: If it is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{option} is not valid JSON ({error}): got {text[:200]!r}; "
            """write it like '{"training_iteration": 10}', in single quotes for the shell."""
        ) from error
    check_size(value, option)
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object like '{{\"a\": 1}}', got {text!r}.")
    return value


def _from_file(source: Sequence[str], algo: str | None) -> "Experiment":
    if len(source) != 2 or source[0] != "file":
        raise ConfigError(
            f"Cannot train {' '.join(source)!r}: say 'jaxrl train file CONFIG', or give --algo "
            "and --env."
        )
    if algo is not None:
        raise ConfigError(
            f"--algo {algo} contradicts 'file {source[1]}', which names its algorithm: "
            "leave one of them out."
        )
    from jaxrl.config.load import load_experiment

    experiment = load_experiment(config_file(source[1]))
    if experiment.config.debugging_settings.run_name is None:
        experiment.config.debugging(run_name=experiment.name)
    return experiment


def _from_options(algo: str | None, env: str | None) -> "Experiment":
    if algo is None or env is None:
        missing = "--algo" if algo is None else "--env"
        raise ConfigError(
            f"{missing} is missing: say e.g. 'jaxrl train --algo PPO --env CartPole-v1', or "
            "'jaxrl train file CONFIG' ('jaxrl list configs' names the shipped ones)."
        )
    from jaxrl.config.load import Experiment
    from jaxrl.config.registry import get_algorithm_config

    config = get_algorithm_config(algo).environment(env)
    return Experiment(name=f"{algo} on {env}", config=config, stop={})
