"""What a suite's file says: which runs, for how long, and what is told of them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jaxrl
from jaxrl.assembly.assemble import make_env
from jaxrl.bench.job import Job
from jaxrl.bench.metrics import METRICS
from jaxrl.bench.peers import check_peer, peers_folder, root
from jaxrl.bench.speed import STEMS, Speed
from jaxrl.bench.values import OF_TASK, known_name, mapping, positive, seeds_of, typed
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.load import load_experiment, parse_text
from jaxrl.config.registry import config_file, get_algorithm_config
from jaxrl.config.serialize import serializable_dict
from jaxrl.config.sweep import is_sweep
from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean
from jaxrl.runs.results import ENV_STEPS

OURS = "jaxrl"
MATCHED, RECOMMENDED = "matched", "recommended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is known of an environment.

    Args:
        budget: Environment steps of a run; None leaves it to the config's file.
        threshold: The return that counts as learned; None if there is no such.
        low: The return whose score is 0, such as a random policy's.
        high: The return whose score is 1.
        reference: A return of somebody else's that those here are compared with; None for none.
        source: Who had it, and how.
    """

    budget: int | None = None
    threshold: float | None = None
    low: float = 0.0
    high: float = 1.0
    reference: float | None = None
    source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One algorithm on one environment, with all seeds.

    Args:
        entrant: What the report calls the algorithm: rows of one entrant are compared over tasks.
        peer: The system that runs it.
        environment: Its id.
        algorithm: Its name.
        settings: jaxrl's whole config as plain data; None leaves a peer to what it recommends.
        budget: Environment steps of a run.
        threshold: The return that counts as learned here.
        file: The config's, as the suite names it; "" if its settings are from none.
        reference: A return of somebody else's that this one is compared with.
        source: Who had it, and how.
    """

    entrant: str
    peer: str
    environment: str
    algorithm: str
    settings: Mapping[str, Any] | None
    budget: int
    threshold: float | None
    file: str = ""
    reference: float | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Of its folder."""
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{self.environment}--{self.entrant}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite, checked: everything that it names exists.

    Args:
        name: Of its folder of results.
        about: A sentence for the report.
        seeds: Of each cell's runs.
        episodes: Of the greedy evaluation at the end of each run.
        metrics: The columns of the report.
        tasks: By environment.
        cells: In the order in which they run.
        peers: Where adapters of peers are; None where there are none.
        speed: What is measured of the programs themselves; None for nothing.
        text: The file's own, kept beside the results.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    episodes: int
    metrics: tuple[str, ...]
    tasks: Mapping[str, Task]
    cells: tuple[Cell, ...]
    peers: Path | None
    speed: Speed | None
    text: str

    def job(self, cell: Cell, folder: Path) -> Job:
        """What a process is asked to do for a cell."""
        return Job(
            entrant=cell.entrant,
            peer=cell.peer,
            environment=cell.environment,
            algorithm=cell.algorithm,
            settings=cell.settings,
            budget=cell.budget,
            seeds=self.seeds,
            episodes=self.episodes,
            folder=str(folder / "runs" / cell.name),
        )


KEYS = (
    "name", "about", "seeds", "episodes", "metrics", "environments", "algorithms", "configs", "peers",
    "speed",
)  # fmt: skip
TASK_KEYS = tuple(field.name for field in dataclasses.fields(Task))
ALGORITHM_KEYS = ("algorithm", "settings", "environments")
CONFIG_KEYS = ("file", "label", "budget", "threshold", "settings", "reference", "source")
SPEED_KEYS = tuple(field.name for field in dataclasses.fields(Speed))
PEER_KEYS = ("algorithms", "settings", "environments")


def suite_file(given: str) -> Path:
    """The file that a path or the name of a shipped suite means.

    Raises:
        UnknownNameError: There is neither.
    """
    path = Path(given).expanduser()
    if path.is_file():
        return path
    shipped = {p.stem: p for p in (Path(jaxrl.__file__).parent / "suites").glob("*.yaml")}
    if path.stem not in shipped or path.name not in (path.stem, f"{path.stem}.yaml"):
        raise UnknownNameError(
            f"There is no suite '{given}': give a YAML file, or one of {', '.join(sorted(shipped))}."
            f"{did_you_mean(path.stem, shipped)}"
        )
    return shipped[path.stem]


def load_suite(path: Path) -> Suite:
    """A suite from its file.

    Raises:
        ConfigError: Something is missing or of a wrong kind; names the file.
        UnknownNameError: A key, algorithm, environment, metric or peer that does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the suite '{path}': {error}.") from error
    data, _ = parse_text(text, path)
    try:
        return _Reader(mapping(data, "the file", KEYS), path, text).suite()
    except JaxrlError as error:
        raise type(error)(f"{path}: {error}") from error


class _Reader:
    """Makes a suite of what its file says."""

    def __init__(self, data: Mapping[str, Any], path: Path, text: str) -> None:
        self._data, self._path, self._text = data, path, text
        self._peers = peers_folder(path)
        self._tasks = {
            env: Task(**typed(mapping(x, f"environments: {env}", TASK_KEYS), OF_TASK, env))
            for env, x in mapping(data.get("environments"), "environments").items()
        }
        for env, task in self._tasks.items():
            _check_reference(dataclasses.asdict(task), f"environments: {env}")
            if not task.low < task.high:
                raise ConfigError(
                    f"environments: {env} has low={task.low:g} and high={task.high:g}; low is the "
                    "return whose score is 0 and must be below high, whose score is 1."
                )

    def suite(self) -> Suite:
        data = self._data
        ours = [*self._of_configs(), *self._of_algorithms()]
        cells = [*ours, *self._of_peers(ours)]
        speed = self._speed()
        if not cells and speed is None:
            raise ConfigError(
                "it names nothing to run: give configs, environments and algorithms, or speed."
            )
        for number, cell in enumerate(cells):
            if any(cell.name == other.name for other in cells[:number]):
                raise ConfigError(
                    f"{cell.entrant} runs twice on {cell.environment}; give one of them a label of "
                    "its own."
                )
        return Suite(
            name=str(data.get("name", self._path.stem)),
            about=str(data.get("about", "")),
            seeds=seeds_of(data.get("seeds", 5)),
            episodes=positive("episodes", data.get("episodes", 100)),
            metrics=tuple(
                known_name("metrics", x, METRICS) for x in data.get("metrics") or METRICS
            ),
            tasks={cell.environment: self._task(cell.environment) for cell in cells},
            cells=tuple(sorted(cells, key=lambda cell: self._order(cells, cell.environment))),
            peers=self._peers,
            speed=speed,
            text=self._text,
        )

    def _speed(self) -> Speed | None:
        if "speed" not in self._data:
            return None
        given = mapping(self._data["speed"], "speed", SPEED_KEYS)
        if self._peers is None or not (root(self._peers) / "benchmarks" / "speed.py").is_file():
            raise ConfigError(
                "speed is measured by a checkout's benchmarks.speed, and the suite's file is in none."
            )
        suites = [known_name("speed: suites", x, STEMS) for x in given.get("suites") or list(STEMS)]
        return Speed(
            suites=tuple(suites),
            pairs=positive("speed: pairs", given.get("pairs", 7)),
            quick=given.get("quick", False) is True,
        )

    def _order(self, cells: Sequence[Cell], environment: str) -> int:
        """Rivals on one environment run one after another, under like conditions."""
        return [cell.environment for cell in cells].index(environment)

    def _task(self, environment: str) -> Task:
        return self._tasks.get(environment, Task())

    def _of_configs(self) -> list[Cell]:
        cells = []
        for entry in self._data.get("configs") or []:
            entry = {"file": entry} if isinstance(entry, str) else entry
            given = mapping(entry, "configs", CONFIG_KEYS)
            experiment = load_experiment(config_file(str(given.get("file"))))
            config = experiment.config.update_from_dict(given.get("settings") or {})
            env = config.environment_settings.env
            task = self._task(str(env))
            numbers = typed(
                {name: value for name, value in given.items() if name in OF_TASK},
                OF_TASK,
                f"configs: {given['file']}",
            )
            _check_reference(numbers, f"configs: {given['file']}")
            budget = numbers.get("budget", task.budget or experiment.stop.get(ENV_STEPS))
            cells.append(
                Cell(
                    entrant=str(given.get("label", config.algo_name)),
                    peer=OURS,
                    environment=str(env),
                    algorithm=str(config.algo_name),
                    settings=_settings_of(config),
                    budget=positive(f"budget of {given['file']}", budget),
                    threshold=numbers.get("threshold", task.threshold),
                    file=str(given["file"]),
                    reference=numbers.get("reference", task.reference),
                    source=numbers.get("source", task.source),
                )
            )
        return cells

    def _of_algorithms(self) -> list[Cell]:
        cells = []
        algorithms = self._data.get("algorithms")
        if isinstance(algorithms, list):
            algorithms = dict.fromkeys(algorithms)
        for label, entry in mapping(algorithms, "algorithms").items():
            given = mapping(entry, f"algorithms: {label}", ALGORITHM_KEYS)
            name = str(given.get("algorithm", label))
            for env in self._environments(given, f"algorithms: {label}"):
                config = get_algorithm_config(name).environment(env)
                config.update_from_dict(given.get("settings") or {})
                cells.append(self._cell(label, OURS, env, name, _settings_of(config)))
        return cells

    def _of_peers(self, ours: Sequence[Cell]) -> list[Cell]:
        """Wherever jaxrl runs an algorithm of a peer's too, whose settings it matches."""
        cells: list[Cell] = []
        for peer, entry in mapping(self._data.get("peers"), "peers").items():
            given = mapping(entry, f"peers: {peer}", PEER_KEYS)
            known = check_peer(self._peers, peer)
            for name in given.get("algorithms") or []:
                known_name(f"peers: {peer}: algorithms", name, known)
            names = given.get("algorithms") or known
            where = set(self._environments(given, f"peers: {peer}")) if self._tasks else None
            rivals = [
                cell
                for cell in ours
                if cell.algorithm in names and (where is None or cell.environment in where)
            ]
            unmatched = set(given.get("algorithms") or []) - {cell.algorithm for cell in rivals}
            if unmatched or not rivals:
                raise ConfigError(
                    f"peers: {peer} is to run {', '.join(sorted(unmatched or names))}, which nothing "
                    "of ours runs; name it under configs or algorithms."
                )
            kinds = given.get("settings") or [MATCHED]
            for kind in [kinds] if isinstance(kinds, str) else kinds:
                known_name(f"peers: {peer}: settings", kind, (MATCHED, RECOMMENDED))
                cells += [_of_peer(cell, peer, kind) for cell in rivals]
        return cells

    def _environments(self, given: Mapping[str, Any], where: str) -> list[str]:
        wanted = given.get("environments") or list(self._tasks)
        for env in wanted:
            known_name(f"{where}: environments", env, self._tasks)
        return list(wanted)

    def _cell(
        self, entrant: str, peer: str, env: str, algorithm: str, settings: Mapping[str, Any]
    ) -> Cell:
        task = self._task(env)
        return Cell(
            entrant=entrant,
            peer=peer,
            environment=env,
            algorithm=algorithm,
            settings=settings,
            budget=positive(f"environments: {env}: budget", task.budget),
            threshold=task.threshold,
        )


def _of_peer(cell: Cell, peer: str, kind: str) -> Cell:
    """What a peer runs beside a cell of ours."""
    note = "" if kind == MATCHED else f", {RECOMMENDED}"
    return dataclasses.replace(
        cell,
        entrant=f"{peer} {cell.entrant}{note}",
        peer=peer,
        settings=cell.settings if kind == MATCHED else None,
        file="",
        reference=None,
        source="",
    )


def _check_reference(given: Mapping[str, Any], where: str) -> None:
    """A return of somebody else's comes with who had it."""
    if (given.get("reference") is None) != (not given.get("source")):
        raise ConfigError(
            f"{where}: reference is a return and source says who had it; give both or neither."
        )


def _settings_of(config: AlgorithmConfig) -> dict[str, Any]:
    """The whole config as plain data; checked to fit its environment, which exists."""
    if is_sweep(config):
        raise ConfigError("a run of a suite is no sweep: give seeds to the suite.")
    config.copy(copy_frozen=False).validate()
    make_env(config)
    return serializable_dict(config)
