"""Suites of benchmark runs, read from YAML files."""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jaxrl
from jaxrl.assembly.assemble import make_env
from jaxrl.bench.job import METRICS, Job
from jaxrl.bench.peers import find_peers_folder, get_checkout, get_peer_algorithms
from jaxrl.config.base import AlgorithmConfig, get_algorithm_config
from jaxrl.config.datasets import PREFIX, iter_sources
from jaxrl.config.load import load_experiment, parse_text
from jaxrl.config.multi_agent import has_several_agents, make_agents_env, resolve_agents
from jaxrl.config.registry import resolve_config_path
from jaxrl.config.serialize import serialize_config
from jaxrl.config.sweep import is_sweep
from jaxrl.core.seeds import check_seed
from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean
from jaxrl.runs.results import ENV_STEPS, TRAINED_STEPS
from jaxrl.runs.run_folder import is_folder_name


def parse_number(value: object) -> float:
    """Return a finite number as a float.

    Raises:
        TypeError: If the value is anything else, such as a boolean.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not abs(value) <= sys.float_info.max:  # NaN as well
        raise TypeError
    return float(value)


def parse_integer(value: object) -> int:
    """Return a whole number above 0.

    Raises:
        TypeError: If the value is anything else.
    """
    parsed = parse_number(value)
    if parsed != int(parsed) or parsed < 1:
        raise TypeError
    return int(parsed)


def parse_nonempty_text(value: object) -> str:
    """Return nonempty text.

    Raises:
        TypeError: If the value is anything else.
    """
    if not isinstance(value, str) or not value.strip():
        raise TypeError(value)
    return value


TASK_VALUES: Mapping[str, tuple[Callable[[object], object], str]] = {
    "budget": (parse_integer, "a number of environment steps"),
    "episodes": (parse_integer, "a number of episodes"),
    "threshold": (parse_number, "a return"),
    "ceiling": (parse_number, "a return"),
    "low": (parse_number, "a return"),
    "high": (parse_number, "a return"),
    "reference": (parse_number, "a return"),
    "source": (parse_nonempty_text, "the origin of the reference, as text"),
    "module": (parse_nonempty_text, "the id of a module of several agents"),
}


def parse_values(
    given: Mapping[str, Any],
    kinds: Mapping[str, tuple[Callable[[object], object], str]],
    where: str,
) -> dict[str, Any]:
    """Parse values by name.

    Args:
        given: Values by name.
        kinds: Parser and description of the expected value, by name.
        where: Place in the file, for error messages.

    Raises:
        ConfigError: If a value is of the wrong kind.
    """
    parsed = {}
    for name, value in given.items():
        parse, expected = kinds[name]
        try:
            parsed[name] = parse(value)
        except TypeError:
            raise ConfigError(f"{where}: {name} must be {expected}, got {value!r}.") from None
    return parsed


def check_mapping(
    data: object, where: str, known: Sequence[str] | None = None
) -> Mapping[str, Any]:
    """Return a mapping with names as keys, empty for None.

    Raises:
        ConfigError: If the data is not a mapping.
        UnknownNameError: If a name is not in `known`.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must map names to values, got {data!r}.")
    values = {str(name): value for name, value in cast(Mapping[Any, Any], data).items()}
    for name in values:
        if known is not None:
            check_known(where, name, known)
    return values


def check_list(data: object, where: str) -> list[Any]:
    """Return a list, empty for None.

    Raises:
        ConfigError: If the data is not a list.
    """
    if data is None:
        return []
    if not isinstance(data, list):
        raise ConfigError(f"{where} must be a list, such as [{data!r}], got {data!r}.")
    return cast(list[Any], data)


def check_known(where: str, name: object, known: Iterable[object]) -> str:
    """Return a name as a string if it is known.

    Raises:
        UnknownNameError: If it is not known.
    """
    names = [str(x) for x in known]
    if name not in names:
        raise UnknownNameError(
            f"{where} has {name!r}, which is not one of "
            f"{', '.join(names) or 'the available names'}."
            f"{did_you_mean(str(name), names)}"
        )
    return str(name)


def parse_positive(name: str, value: object) -> int:
    """Return a whole number above 0.

    Raises:
        ConfigError: If the value is anything else.
    """
    try:
        return parse_integer(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number above 0, got {value!r}.") from None


def parse_seeds(value: object) -> tuple[int, ...]:
    """Return seeds from a list, or from their number.

    Raises:
        ConfigError: If the value is neither.
    """
    if isinstance(value, list):
        seeds = cast(list[Any], value)
        if seeds and all(type(seed) is int for seed in seeds) and len(set(seeds)) == len(seeds):
            for seed in seeds:
                check_seed(seed, "each of seeds")
            return tuple(seeds)
    elif type(value) is int and value > 0:
        return tuple(range(value))
    raise ConfigError(f"seeds must be a number above 0 or a list of distinct seeds, got {value!r}.")


JAXRL = "jaxrl"
MATCHED, RECOMMENDED = "matched", "recommended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Budget and reference returns of an environment.

    Args:
        budget: Environment steps per run; None takes it from the config file.
        episodes: Episodes of the greedy evaluation; None takes the suite's.
        threshold: Return that counts as learned; None if undefined.
        ceiling: Return that a run must stay below, which shows that the task needs what the run
            lacks; None if undefined.
        low: Return with score 0, such as a random policy's.
        high: Return with score 1.
        reference: Published return to compare with; None if there is none.
        source: Origin of the reference.
        module: Module whose returns count, of several agents; "" for the sum of all agents.
    """

    budget: int | None = None
    episodes: int | None = None
    threshold: float | None = None
    ceiling: float | None = None
    low: float = 0.0
    high: float = 1.0
    reference: float | None = None
    source: str = ""
    module: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteCell:
    """One algorithm on one environment, with all seeds.

    Args:
        entrant: Name of the algorithm in the report, by which cells are aggregated over tasks.
        peer: System that runs it.
        environment: Id of the environment.
        algorithm: Name of the algorithm.
        settings: Complete jaxrl config as plain data; None makes a peer use its recommended ones.
        budget: Environment steps per run, or recorded rows trained on.
        threshold: Return that counts as learned; None if undefined.
        ceiling: Return that a run must stay below; None if undefined.
        file: Config file as named in the suite; "" if the settings are not from a file.
        reference: Published return to compare with; None if there is none.
        source: Origin of the reference.
        module: Module whose returns count, of several agents; "" for the sum of all agents.
        data: Names of the data sets that it learns from.
        is_offline: Whether it learns from recorded data alone, of which the budget is rows.
        episodes: Episodes of the greedy evaluation at its end.
    """

    entrant: str
    peer: str
    environment: str
    algorithm: str
    settings: Mapping[str, Any] | None
    budget: int
    threshold: float | None
    ceiling: float | None = None
    file: str = ""
    reference: float | None = None
    source: str = ""
    module: str = ""
    data: tuple[str, ...] = ()
    is_offline: bool = False
    episodes: int

    @property
    def name(self) -> str:
        """Name of the folder of the cell."""
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{self.environment}--{self.entrant}")


FILE_STEMS = {"in_graph": "speed", "host": "host", "replay": "replay", "recurrent": "recurrent"}
"""Stems of the files written by each suite of `benchmarks.speed`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedSpec:
    """Speed measurements of a suite.

    Args:
        suites: Suites of `benchmarks.speed`.
        pairs: Rounds per setting, in each of which every peer is measured once.
        quick: Whether to run a single short round, as a test.
    """

    suites: tuple[str, ...]
    pairs: int
    quick: bool

    def to_arguments(self, suite: str) -> list[str]:
        """Return the command-line arguments that measure one suite."""
        quick = ["--quick"] if self.quick else []
        return ["--suite", suite, "--pairs", str(self.pairs), *quick]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """Validated suite, in which every name exists.

    Args:
        name: Name of the suite and of its folder of results.
        about: Introduction of the report.
        seeds: Seeds of the runs of each cell.
        metrics: Metrics that are columns of the report.
        tasks: Tasks by environment.
        cells: Cells in the order in which they run.
        peers: Folder of the peers' adapters; None if there is none.
        speed: Speed measurements to make; None for none.
        text: Text of the suite's file, kept beside the results.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    tasks: Mapping[str, Task]
    cells: tuple[SuiteCell, ...]
    peers: Path | None
    speed: SpeedSpec | None
    text: str

    def make_job(self, cell: SuiteCell, folder: Path) -> Job:
        """Return the job of the process that runs a cell."""
        return Job(
            entrant=cell.entrant,
            peer=cell.peer,
            environment=cell.environment,
            algorithm=cell.algorithm,
            settings=cell.settings,
            budget=cell.budget,
            seeds=self.seeds,
            episodes=cell.episodes,
            module=cell.module,
            folder=str(folder / "runs" / cell.name),
        )


SUITE_KEYS = (
    "name", "about", "seeds", "episodes", "metrics", "environments", "algorithms", "configs",
    "peers", "speed",
)  # fmt: skip
TASK_KEYS = tuple(field.name for field in dataclasses.fields(Task))
ALGORITHM_KEYS = ("algorithm", "settings", "environments")
CONFIG_KEYS = (
    "file", "label", "budget", "episodes", "threshold", "ceiling", "settings", "reference", "source",
    "module",
)  # fmt: skip
SPEED_KEYS = tuple(field.name for field in dataclasses.fields(SpeedSpec))
PEER_KEYS = ("algorithms", "settings", "environments")


def find_suite_file(name_or_path: str) -> Path:
    """Return the file at a path, or that of a shipped suite by its name.

    Raises:
        UnknownNameError: If there is neither.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    shipped = {p.stem: p for p in (Path(jaxrl.__file__).parent / "suites").glob("*.yaml")}
    if path.stem not in shipped or path.name not in (path.stem, f"{path.stem}.yaml"):
        raise UnknownNameError(
            f"There is no suite '{name_or_path}': give a YAML file, or one of "
            f"{', '.join(sorted(shipped))}."
            f"{did_you_mean(path.stem, shipped)}"
        )
    return shipped[path.stem]


def load_suite(path: Path) -> Suite:
    """Load and validate a suite.

    Raises:
        ConfigError: If a value is missing or of the wrong kind.
        UnknownNameError: If a key, algorithm, environment, metric or peer does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the suite '{path}': {error}.") from error
    data, _ = parse_text(text, path)
    try:
        return _SuiteReader(check_mapping(data, "the file", SUITE_KEYS), path, text).suite()
    except JaxrlError as error:
        raise type(error)(f"{path}: {error}") from error


class _SuiteReader:
    """Parser of a suite's data."""

    def __init__(self, data: Mapping[str, Any], path: Path, text: str) -> None:
        self._data, self._path, self._text = data, path, text
        self._peers = find_peers_folder(path)
        self._episodes = parse_positive("episodes", data.get("episodes", 100))
        self._tasks = {
            env: Task(
                **parse_values(
                    check_mapping(x, f"environments: {env}", TASK_KEYS), TASK_VALUES, env
                )
            )
            for env, x in check_mapping(data.get("environments"), "environments").items()
        }
        for env, task in self._tasks.items():
            _check_reference(dataclasses.asdict(task), f"environments: {env}")
            if not task.low < task.high:
                raise ConfigError(
                    f"environments: {env} has low={task.low:g} and high={task.high:g}; low is the "
                    "return with score 0 and must be below high, the return with score 1."
                )

    def suite(self) -> Suite:
        data = self._data
        ours = [*self._read_configs(), *self._read_algorithms()]
        cells = [*ours, *self._read_peers(ours)]
        speed = self._read_speed()
        if not cells and speed is None:
            raise ConfigError(
                "the suite names nothing to run: give configs, environments and algorithms, or "
                "speed."
            )
        for number, cell in enumerate(cells):
            if any(cell.name == other.name for other in cells[:number]):
                raise ConfigError(
                    f"{cell.entrant} runs twice on {cell.environment}; give one of them another "
                    "label."
                )
        return Suite(
            name=_check_suite_name(data.get("name", self._path.stem)),
            about=str(data.get("about", "")),
            seeds=parse_seeds(data.get("seeds", 5)),
            metrics=tuple(
                check_known("metrics", x, METRICS)
                for x in check_list(data.get("metrics"), "metrics") or METRICS
            ),
            tasks={cell.environment: self._get_task(cell.environment) for cell in cells},
            cells=tuple(sorted(cells, key=lambda cell: self._sort_key(cells, cell.environment))),
            peers=self._peers,
            speed=speed,
            text=self._text,
        )

    def _read_speed(self) -> SpeedSpec | None:
        if "speed" not in self._data:
            return None
        options = check_mapping(self._data["speed"], "speed", SPEED_KEYS)
        if (
            self._peers is None
            or not (get_checkout(self._peers) / "benchmarks" / "speed.py").is_file()
        ):
            raise ConfigError(
                "speed needs benchmarks.speed, so the suite's file must be in a checkout of jaxrl."
            )
        suites = [
            check_known("speed: suites", x, FILE_STEMS)
            for x in check_list(options.get("suites"), "speed: suites") or FILE_STEMS
        ]
        return SpeedSpec(
            suites=tuple(suites),
            pairs=parse_positive("speed: pairs", options.get("pairs", 7)),
            quick=options.get("quick", False) is True,
        )

    def _sort_key(self, cells: Sequence[SuiteCell], environment: str) -> int:
        """Return the sort key that puts cells of one environment next to each other."""
        return [cell.environment for cell in cells].index(environment)

    def _get_task(self, environment: str) -> Task:
        return self._tasks.get(environment, Task())

    def _read_configs(self) -> list[SuiteCell]:
        cells = []
        for entry in check_list(self._data.get("configs"), "configs"):
            entry = {"file": entry} if isinstance(entry, str) else entry
            options = check_mapping(entry, "configs", CONFIG_KEYS)
            if "file" not in options:
                raise ConfigError(f"configs: each entry names a file, got {entry!r}.")
            experiment = load_experiment(resolve_config_path(str(options["file"])))
            settings = check_mapping(
                options.get("settings"), f"configs: {options['file']}: settings"
            )
            config = experiment.config.update_from_dict(settings)
            env = config.environment_settings.env
            task = self._get_task(str(env))
            numbers = parse_values(
                {name: value for name, value in options.items() if name in TASK_VALUES},
                TASK_VALUES,
                f"configs: {options['file']}",
            )
            _check_reference(numbers, f"configs: {options['file']}")
            module = numbers.get("module", task.module)
            _check_module(config, module, f"configs: {options['file']}")
            unit = TRAINED_STEPS if config.is_offline else ENV_STEPS
            budget = numbers.get("budget", task.budget or experiment.stop.get(unit))
            cells.append(
                SuiteCell(
                    entrant=str(options.get("label", config.algo_name)),
                    peer=JAXRL,
                    environment=str(env),
                    algorithm=str(config.algo_name),
                    settings=_validate_and_serialize(config),
                    budget=parse_positive(f"budget of {options['file']}", budget),
                    threshold=numbers.get("threshold", task.threshold),
                    ceiling=numbers.get("ceiling", task.ceiling),
                    file=str(options["file"]),
                    reference=numbers.get("reference", task.reference),
                    source=numbers.get("source", task.source),
                    module=module,
                    data=tuple(
                        name.removeprefix(PREFIX)
                        for name in iter_sources(config.offline_data_settings.input_)
                    ),
                    is_offline=config.is_offline,
                    episodes=numbers.get("episodes", task.episodes or self._episodes),
                )
            )
        return cells

    def _read_algorithms(self) -> list[SuiteCell]:
        cells = []
        algorithms = self._data.get("algorithms")
        if isinstance(algorithms, list):
            algorithms = {str(name): None for name in algorithms}
        for label, entry in check_mapping(algorithms, "algorithms").items():
            options = check_mapping(entry, f"algorithms: {label}", ALGORITHM_KEYS)
            name = str(options.get("algorithm", label))
            for env in self._select_environments(options, f"algorithms: {label}"):
                config = get_algorithm_config(name).environment(env)
                settings = check_mapping(options.get("settings"), f"algorithms: {label}: settings")
                config.update_from_dict(settings)
                _check_module(config, self._get_task(env).module, f"environments: {env}")
                cells.append(
                    self._make_cell(label, JAXRL, env, name, _validate_and_serialize(config))
                )
        return cells

    def _read_peers(self, ours: Sequence[SuiteCell]) -> list[SuiteCell]:
        """Return the cells of peers, one for each matching cell of jaxrl."""
        cells: list[SuiteCell] = []
        for peer, entry in check_mapping(self._data.get("peers"), "peers").items():
            options = check_mapping(entry, f"peers: {peer}", PEER_KEYS)
            known = get_peer_algorithms(self._peers, peer)
            chosen = check_list(options.get("algorithms"), f"peers: {peer}: algorithms")
            for name in chosen:
                check_known(f"peers: {peer}: algorithms", name, known)
            names = chosen or known
            where = (
                set(self._select_environments(options, f"peers: {peer}")) if self._tasks else None
            )
            rivals = [
                cell
                for cell in ours
                if cell.algorithm in names and (where is None or cell.environment in where)
            ]
            unmatched = set(chosen) - {cell.algorithm for cell in rivals}
            if unmatched or not rivals:
                raise ConfigError(
                    f"peers: {peer} would run {', '.join(sorted(unmatched or names))}, which no "
                    "run of jaxrl matches; name it under configs or algorithms."
                )
            kinds = options.get("settings") or MATCHED
            kinds = [kinds] if isinstance(kinds, str) else kinds
            for kind in check_list(kinds, f"peers: {peer}: settings"):
                check_known(f"peers: {peer}: settings", kind, (MATCHED, RECOMMENDED))
                cells += [_make_peer_cell(cell, peer, kind) for cell in rivals]
        return cells

    def _select_environments(self, options: Mapping[str, Any], where: str) -> list[str]:
        given = check_list(options.get("environments"), f"{where}: environments")
        selected = given or list(self._tasks)
        for env in selected:
            check_known(f"{where}: environments", env, self._tasks)
        return list(selected)

    def _make_cell(
        self, entrant: str, peer: str, env: str, algorithm: str, settings: Mapping[str, Any]
    ) -> SuiteCell:
        task = self._get_task(env)
        return SuiteCell(
            entrant=entrant,
            peer=peer,
            environment=env,
            algorithm=algorithm,
            settings=settings,
            budget=parse_positive(f"environments: {env}: budget", task.budget),
            threshold=task.threshold,
            ceiling=task.ceiling,
            reference=task.reference,
            source=task.source,
            module=task.module,
            episodes=task.episodes or self._episodes,
        )


def _check_suite_name(name: object) -> str:
    """Return the name of a suite, which its folder of results has."""
    if not isinstance(name, str | int) or not is_folder_name(str(name)):
        raise ConfigError(f"name must be a valid name of a folder, got {name!r}.")
    return str(name)


def _make_peer_cell(cell: SuiteCell, peer: str, kind: str) -> SuiteCell:
    """Return the cell of a peer that corresponds to a cell of jaxrl."""
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


def _check_reference(options: Mapping[str, Any], where: str) -> None:
    """Raise if only one of reference and source is given."""
    if (options.get("reference") is None) != (not options.get("source")):
        raise ConfigError(
            f"{where}: reference is a return and source is its origin; give both or neither."
        )


def _check_module(config: AlgorithmConfig, module: str, where: str) -> None:
    """Raise if returns of a module are asked for which the config does not have."""
    if not module:
        return
    if not has_several_agents(config.environment_settings.env, config.multi_agent_settings):
        raise ConfigError(
            f"{where}: module={module!r} counts the returns of a module of several agents, and "
            f"{config.environment_settings.env} has one agent: leave it out."
        )
    agents = resolve_agents(config.environment_settings, config.multi_agent_settings)
    check_known(f"{where}: module", module, (*agents.modules, *agents.drawn))


def _validate_and_serialize(config: AlgorithmConfig) -> dict[str, Any]:
    """Validate a config together with its environment and return it as plain data."""
    if is_sweep(config):
        raise ConfigError("a run of a suite cannot be a sweep: give seeds to the suite.")
    config.copy(copy_frozen=False).validate()
    if has_several_agents(config.environment_settings.env, config.multi_agent_settings):
        make_agents_env(config.environment_settings, config.multi_agent_settings)
    else:
        make_env(config)
    return serialize_config(config)
