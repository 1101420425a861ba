"""Registry of algorithms and shipped configs; modules of algorithms are imported on first use."""

import re
from pathlib import Path
from typing import Any

from jaxrl.compat import lookup
from jaxrl.config.imports import ALGORITHM_CONFIG, OWN, load_object
from jaxrl.core.algorithms import ALGORITHMS, AlgorithmEntry
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean


def register(name: str, config: str) -> None:
    """Register a config class for `--algo NAME` and `run: NAME`.

    Args:
        name: Name of the algorithm.
        config: Import path of the config class, `"module:object"`.
    """
    ALGORITHMS[name] = AlgorithmEntry(config, "registered by this process")


def list_algorithms() -> list[str]:
    """Return the names of all registered algorithms, sorted."""
    return sorted(ALGORITHMS)


def find_config_class(name: str) -> type[Any]:
    """Import the config class of an algorithm, see `get_algorithm_config_class`."""
    known = {key.lower(): key for key in ALGORITHMS}
    current = known.get(name.lower()) or lookup.load("rllib.imports").find_algorithm(name)
    if current is None:
        raise UnknownNameError(
            f"There is no algorithm '{name}'; known are {', '.join(list_algorithms())}."
            + did_you_mean(name, ALGORITHMS)
        )
    path = ALGORITHMS[current].config  # registered by code in this process
    return load_object(path, "algo", ALGORITHM_CONFIG, trust=OWN)


def find_shipped_configs() -> dict[str, Path]:
    """Return the config files shipped with jaxrl, by ids such as "classic/cartpole-ppo"."""
    root = Path(__file__).parents[1] / "configs"
    return {
        path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.yaml")
    }


def find_shipped_config(config_id: str) -> Path:
    """Return the file of a shipped config.

    Args:
        config_id: Id such as "classic/cartpole-ppo", or its path below the folder of configs.

    Raises:
        UnknownNameError: If there is none of this id.
    """
    return _find_shipped(config_id, f"There is no shipped config '{config_id}'")


def _find_shipped(config_id: str, problem: str) -> Path:
    """Return the file of a shipped config, or raise with the problem as the sentence's start."""
    shipped = find_shipped_configs()
    name = config_id.removeprefix("configs/").removesuffix(".yaml")
    if name not in shipped:
        raise UnknownNameError(
            f"{problem} ('jaxrl list configs' lists them).{did_you_mean(name, shipped)}"
        )
    return shipped[name]


def resolve_config_path(path_or_id: str) -> Path:
    """Return the config file for a path or the id of a shipped config.

    Raises:
        ConfigError: If it is the address of a file on another machine.
        UnknownNameError: If there is neither such a file nor such an id.
    """
    refuse_address(path_or_id)
    path = Path(path_or_id).expanduser()
    if path.is_file():
        return path
    return _find_shipped(
        path_or_id,
        f"There is no config file '{path_or_id}', and no shipped config of this name",
    )


def refuse_address(path: object) -> None:
    """Raise if a path is an address, such as of a web page.

    Raises:
        ConfigError: If it is; the message says what to do instead.
    """
    text = str(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        name = text.rstrip("/").rpartition("/")[2] or "FILE"
        raise ConfigError(
            f"{text} is an address, and a config names the code that runs, so jaxrl reads files of "
            f"this machine alone: download it, read it, and use 'jaxrl train file {name}'."
        )
