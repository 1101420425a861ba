"""From the options of `jaxrl train` to a config and a stop criterion; what there is to choose."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl.config.nesting import check_size
from jaxrl.config.shipped import config_file, shipped_configs
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.load import Experiment


def assemble(
    source: Sequence[str],
    *,
    algo: str | None,
    env: str | None,
    stop: str | None,
    config: str | None,
    overrides: Mapping[str, Any],
) -> "Experiment":
    """The experiment that the command line describes.

    Args:
        source: `["file", CONFIG]`, or empty if options say it all.
        algo: Name of the algorithm.
        env: The environment.
        stop: JSON of the stop criterion; replaces a file's.
        config: JSON of settings; wins over a file's.
        overrides: Settings that have an option of their own; None leaves them alone.

    Raises:
        JaxrlError: If something is missing, contradictory, or names nothing that exists.
    """
    from jaxrl.config.load import Experiment
    from jaxrl.config.stop import parse_stop

    given_stop = None if stop is None else parse_stop(json_object("--stop", stop))
    settings = {} if config is None else json_object("--config", config)
    if source:
        experiment = _from_file(source, algo)
    else:
        experiment = _from_options(algo, env or settings.get("env"))
    chosen = experiment.config
    if env is not None:
        chosen.environment(env)
    chosen.update_from_dict(settings)
    chosen.update_from_dict({name: v for name, v in overrides.items() if v is not None})
    wanted = experiment.stop if given_stop is None else given_stop
    return Experiment(name=experiment.name, config=chosen, stop=wanted)


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


def known(what: str) -> list[str]:
    """The names of "algos", "envs" or "configs"."""
    if what == "algos":
        from jaxrl.config.registry import list_algorithms

        return list_algorithms()
    if what == "envs":
        from jaxrl.envs.registry import list_envs

        return list_envs()
    return sorted(shipped_configs())


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
