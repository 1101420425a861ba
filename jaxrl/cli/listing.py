"""`jaxrl list`, `example`, `datasets` and `check-env`: all that can be trained on."""

import logging
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import typer
import yaml
from gymnasium import spaces

from jaxrl.cli import terminal
from jaxrl.cli.evaluation import format_mean_return
from jaxrl.cli.experiments import parse_json_object
from jaxrl.cli.terminal import format_command
from jaxrl.config.datasets import QUALITIES, TASKS, is_made, resolve_datasets_dir, split_name
from jaxrl.config.registry import find_shipped_config, find_shipped_configs, list_algorithms
from jaxrl.core.algorithms import ALGORITHMS
from jaxrl.envs.adapters.table import ADAPTERS, list_ids
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import Made, list_envs, list_multi_envs, make_any
from jaxrl.errors import JaxrlError, RunFolderError
from jaxrl.testing import check_env

_IN_GRAPH = "JAX, in the compiled program"
_ON_HOST = "environments in Python, stepped on the host"


def format_listing(what: str, *, everything: bool = False) -> list[str]:
    """Return the lines that list "algos", "envs" or "configs".

    Args:
        what: Kind of listing, one of these three.
        everything: Whether to include environments that only test algorithms.
    """
    if what == "algos":
        return _format_table((name, ALGORITHMS[name].description) for name in list_algorithms())
    if what == "envs":
        return _list_environments(everything)
    return _format_table(
        (name, _describe_config(path)) for name, path in sorted(find_shipped_configs().items())
    )


def _list_environments(everything: bool) -> list[str]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in (*list_envs(), *list_multi_envs()):
        if not everything and name.startswith("jaxrl:probe-"):
            continue
        try:
            made = make_any(name)
        except JaxrlError as error:
            groups.setdefault("unavailable on this machine", []).append((name, str(error)))
            continue
        group = "from gymnax" if name.startswith("gymnax:") else "from jaxrl"
        group = f"{_IN_GRAPH}, {group}" if made.is_jax else _ON_HOST
        if isinstance(made, MadeMultiEnv | MadeMultiHostEnv):
            group = f"{group}, of several agents"
        groups.setdefault(group, []).append((name, _describe_spaces(made)))
    lines: list[str] = []
    for group, entries in groups.items():
        lines += ["", f"{group}:", *_format_table(entries)]
    if not everything:
        lines += ["", f"and tasks that test algorithms: {format_command('list', 'envs', '--all')}"]
    lines += ["", "from other packages, by the prefix of their ids:", *_list_packages(everything)]
    return [
        *lines[1:],
        "",
        "and your own: a name passed to register_env, module:Id-v0 or module:Class",
    ]


def _list_packages(everything: bool) -> list[str]:
    """List the packages with an adapter, and all of their ids if asked for everything."""
    rows: list[tuple[str, str]] = []
    for prefix, adapter in ADAPTERS.items():
        place = "stepped on the host" if adapter.is_host else "in the compiled program"
        agents = ", of several agents" if adapter.is_multi else ""
        install = "" if adapter.is_installed() else f"; not installed: {adapter.install}"
        ids = f"{prefix}:{adapter.example}"
        if everything and adapter.is_installed():
            ids = ", ".join(f"{prefix}:{name}" for name in list_ids(prefix))
            rows.append((f"{adapter.title}, {place}{agents}:", ids))
        else:
            rows.append((ids, f"{adapter.title}, {place}{agents}{install}"))
    return _format_table(rows)


def _describe_spaces(made: Made) -> str:
    if isinstance(made, MadeMultiEnv | MadeMultiHostEnv):
        return _describe_agents(made)
    observation, action = made.spaces
    return f"observes {_describe_space(observation)}, acts {_describe_space(action)}"


def _describe_agents(made: MadeMultiEnv | MadeMultiHostEnv) -> str:
    """Describe the agents by number, those of equal spaces together."""
    agents: dict[str, list[str]] = {}
    for agent, observation in made.observation_spaces.items():
        action = made.action_spaces[agent]
        spaces = f"observes {_describe_space(observation)}, acts {_describe_space(action)}"
        agents.setdefault(spaces, []).append(agent)
    return "; ".join(
        f"{ids[0]}: {described}" if len(ids) == 1 else f"{len(ids)} agents: each {described}"
        for described, ids in agents.items()
    )


def _describe_space(space: gymnasium.Space[Any]) -> str:
    """Describe a space by its kind and size: `Box(4)`, `Discrete(2)`."""
    match space:
        case spaces.Box():
            return f"Box{space.shape}".replace(",)", ")")
        case spaces.Dict():
            parts = [f"{name}={_describe_space(part)}" for name, part in space.spaces.items()]
            return f"Dict({', '.join(parts)})"
        case spaces.Tuple():
            return f"Tuple({', '.join(map(_describe_space, space.spaces))})"
        case _:
            return str(space)


def _describe_config(path: Path) -> str:
    """Describe a shipped file by algorithm, environment and number of steps."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    body: Mapping[str, Any] = next(iter(data.values()))
    steps = (body.get("stop") or {}).get("num_env_steps_sampled_lifetime")
    budget = "" if steps is None else f", {float(steps):,.0f} steps"
    sweep = ", a sweep" if "sweep" in body else ""
    env = body.get("env") or body["config"]["env"]
    return f"{body['run']} on {env}{budget}{sweep}"


def _format_table(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Format entries as two columns."""
    rows = list(entries)
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}}  {description}".rstrip() for name, description in rows]


def check_environment(env: str, env_config: str | None, steps: int, seed: int) -> None:
    """Check an environment against its contract and print warnings as notes."""
    made = make_any(
        env, None if env_config is None else parse_json_object("--env-config", env_config)
    )
    advice = _MessageCollector()
    logger = logging.getLogger("jaxrl.envs")
    logger.addHandler(advice)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            check_env(made, num_steps=steps, seed=seed)
    finally:
        logger.removeHandler(advice)
    messages = [*advice.messages, *(str(warning.message) for warning in caught)]
    for note in dict.fromkeys((*made.notes, *messages)):
        terminal.echo(f"note: {note}")
    terminal.echo(f"{made.id} passed all checks.")


def copy_config(example_id: str) -> None:
    """Copy a shipped config to the current folder."""
    source = find_shipped_config(example_id)
    target = Path(source.name)
    try:
        with source.open("rb") as content, target.open("xb") as copy:
            shutil.copyfileobj(content, copy)
    except FileExistsError:
        raise RunFolderError(
            f"{target} exists in this folder: move it, or call this in another folder."
        ) from None
    except OSError as error:
        raise RunFolderError(f"Cannot write {target} in {Path.cwd()}: {error.strerror}.") from error
    terminal.echo(f"copied to     {target}")
    terminal.echo(f"train it with {format_command('train', 'file', target)}")


def list_datasets(out: str | None) -> None:
    """Print the data sets of a folder, and those that can be made in it."""
    from jaxrl.datasets.record import read_record

    root = resolve_datasets_dir(out)
    for task, recipe in TASKS.items():
        record = read_record(root / task) if is_made(task, root) else None
        for quality, about in QUALITIES.items():
            if record is None:
                name = f"{task}-{quality}"
                terminal.echo(f"{name:18} not made: {about} ({recipe.config})")
            else:
                terminal.echo(_describe_dataset(root, task, quality, record))


def make_dataset(name: str, out: str | None, rows: int, seed: int) -> None:
    """Make the data sets of a task, and print them."""
    from jaxrl.datasets.make import make_datasets

    task, _ = split_name(name)
    record = make_datasets(task, out, num_rows=rows, seed=seed, on_progress=typer.echo)
    for quality in QUALITIES:
        terminal.echo(_describe_dataset(resolve_datasets_dir(out), task, quality, record))


def _describe_dataset(root: Path, task: str, quality: str, record: Mapping[str, Any]) -> str:
    entry = record["datasets"][quality]
    mean = format_mean_return(entry["mean_return"])
    return (
        f"{f'{task}-{quality}':18} {entry['num_steps']:,} steps, {entry['num_episodes']:,} "
        f"episodes, {mean}  {root / task / quality}"
    )


class _MessageCollector(logging.Handler):
    """Handler that collects logged messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
