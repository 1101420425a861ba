"""A sweep over seeds and settings: many runs, as few compiled programs as there are structures."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax

from jaxrl.algorithm import Algorithm, Result
from jaxrl.config.stop import parse_stop, stop_reached
from jaxrl.config.sweep import Lane, lanes_of
from jaxrl.core.hparams import numbers_of
from jaxrl.core.types import Device
from jaxrl.errors import ConfigError, DivergenceError, UnknownNameError
from jaxrl.lane_run import LaneRun
from jaxrl.logging import RunFolder
from jaxrl.metrics import lookup
from jaxrl.runners.assemble import assemble
from jaxrl.runners.devices import claim_cpu_devices
from jaxrl.runners.lane_group import LaneGroup
from jaxrl.statistics import bootstrap_interval, interquartile_mean

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

RETURN = "env_runners/episode_return_mean"
OWN_NAMES = ("seed", "run_name", "results_dir", "loggers")
"""Settings that differ between lanes of one program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a sweep over all its seeds.

    Args:
        number: Its place in the sweep.
        values: Of the settings that are swept.
        lanes: Its lanes' indices.
        scores: Of those that have one.
        score: Their interquartile mean (Agarwal et al. 2021), NaN without any.
        interval: Of 95 %, by bootstrap over the lanes; of no width for a single one.
    """

    number: int
    values: Mapping[str, Any]
    lanes: tuple[int, ...]
    scores: tuple[float, ...]
    score: float
    interval: tuple[float, float]

    @staticmethod
    def of(
        number: int, values: Mapping[str, Any], lanes: tuple[int, ...], scores: Sequence[float]
    ) -> "Point":
        """The point with its statistics."""
        score = float(interquartile_mean(scores)) if scores else math.nan
        return Point(
            number=number,
            values=values,
            lanes=lanes,
            scores=tuple(scores),
            score=score,
            interval=bootstrap_interval(scores) if len(scores) > 1 else (score, score),
        )


class Population:
    """All runs of a sweep, trained together; `config.build()` makes one of a config with `sweep`.

    Lanes whose settings differ in numbers alone are one compiled program with a leading axis; other
    differences (layer sizes, environments) make groups of lanes, a program each. A lane's results,
    evaluation and checkpoints are those of a run by itself with its settings.

    Attributes:
        config: The frozen config of the sweep.
        lanes: What each lane is: its seed, its values, its config.
        diverged: Why lanes were left behind, by index.
    """

    def __init__(self, config: "AlgorithmConfig") -> None:
        """Use `config.build()`."""
        config.freeze()
        self.config = config
        self.lanes: list[Lane] = lanes_of(config)
        for lane in self.lanes:
            _check(lane)
        claim_cpu_devices()
        self.diverged: dict[int, str] = {}
        self.iteration = 0
        self._folder: RunFolder | None = None
        self._results: dict[int, Result] = {}
        members = grouped(self.lanes)
        self._groups = [self._group(lanes) for lanes in members]
        runs: dict[int, LaneRun] = {}
        for lanes, group in zip(members, self._groups, strict=True):
            for place, lane in enumerate(lanes):
                runs[lane.index] = LaneRun(self._in_own_folder(lane), group, place)
        self._runs = [runs[lane.index] for lane in self.lanes]

    def _group(self, lanes: Sequence[Lane]) -> LaneGroup:
        config = lanes[0].config
        assembly = assemble(config)
        if not assembly.in_graph:
            raise ConfigError(
                f"{assembly.made.id} is stepped by runners on the host, so its runs cannot be "
                "lanes of one program: give the config to tune.Tuner(..., param_space=config)."
            )
        return LaneGroup(lanes, assembly, _devices(config))

    def _in_own_folder(self, lane: Lane) -> "AlgorithmConfig":
        """Lanes write into folders of their own in the sweep's, and not to the console."""
        sinks = [s for s in lane.config.debugging_settings.loggers if s != "console"]
        name = self.lane_name(lane.index)
        return lane.config.debugging(
            results_dir=str(self.folder.path), run_name=name, loggers=sinks
        )

    @property
    def folder(self) -> RunFolder:
        """The sweep's folder, with one of each lane in it; made when it is first needed."""
        if self._folder is None:
            self._folder = RunFolder.create(self.config)
        return self._folder

    def lane_name(self, index: int) -> str:
        """The name of a lane's folder in the sweep's."""
        return f"lane_{index:03d}"

    @property
    def devices(self) -> list[Device]:
        """The devices that share the lanes of the first program."""
        return list(self._groups[0].devices)

    @property
    def notes(self) -> list[str]:
        """What to know before training."""
        shared = len(self.lanes) / len(self._groups)
        return [
            f"{len(self.lanes)} lanes in {len(self._groups)} programs, {shared:g} in each on average.",
            *self._runs[0].notes,
        ]

    @property
    def num_lanes(self) -> int:
        """How many runs there are."""
        return len(self.lanes)

    @property
    def active(self) -> list[int]:
        """The lanes that have not diverged."""
        return [lane.index for lane in self.lanes if lane.index not in self.diverged]

    # --- training ---

    def train(self) -> Result:
        """One iteration of every lane that has not diverged.

        Returns:
            `{"lanes": {index: a result as Algorithm.train() gives it}, "diverged": {index: why},
            ...}`, with the mean over lanes as `env_runners/episode_return_mean`.

        Raises:
            DivergenceError: No lane is left.
        """
        self.iteration += 1
        for index in self.active:
            try:
                self._results[index] = self._runs[index].train()
            except DivergenceError as error:
                self.diverged[index] = str(error)
                self._runs[index].leave()
        if not self.active:
            raise DivergenceError(
                f"All {self.num_lanes} lanes have diverged; the last: {error_of(self.diverged)}"
            )
        return self._result()

    def _result(self) -> Result:
        results = {index: self._results[index] for index in self.active}
        returns = [r for r in (lookup(x, RETURN) for x in results.values()) if r is not None]
        first = next(iter(results.values()))
        return {
            "training_iteration": self.iteration,
            "num_lanes": self.num_lanes,
            "num_env_steps_sampled_lifetime": first["num_env_steps_sampled_lifetime"],
            "env_runners": {"episode_return_mean": sum(returns) / len(returns)} if returns else {},
            "lanes": results,
            "diverged": dict(self.diverged),
        }

    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Train until every lane has reached a criterion, with the lanes' checkpoints.

        Args:
            stop: Thresholds of result keys, as for `Algorithm.fit`.
            on_iteration: Called with each result of `train`.
            should_stop: Looked at between iterations; True ends the sweep in order.
        """
        criteria = parse_stop(stop)
        if not criteria and should_stop is None:
            raise ConfigError(
                "fit() needs a stop criterion, such as stop={'training_iteration': 10}; got none."
            )
        settings = self.config.checkpointing_settings
        asked = should_stop or (lambda: False)
        result: Result = {}
        while not asked() and not (result and self._all_reached(criteria)):
            result = self.train()
            if on_iteration is not None:
                on_iteration(result)
            if (
                settings.checkpoint_frequency
                and self.iteration % settings.checkpoint_frequency == 0
            ):
                self.save()
        if settings.checkpoint_at_end and result:
            self.save()
        return result

    def _all_reached(self, criteria: Any) -> bool:
        return bool(criteria) and all(stop_reached(self._results[i], criteria) for i in self.active)

    # --- results ---

    def best_lane(self, metric: str = RETURN, mode: str = "max") -> int:
        """The index of the lane whose latest result is best, of those that have not diverged.

        Raises:
            ConfigError: `mode` is neither "max" nor "min".
            UnknownNameError: No lane's result has the metric.
        """
        if mode not in ("max", "min"):
            raise ConfigError(f"mode must be 'max' or 'min', got {mode!r}.")
        scores = {i: lookup(self._results.get(i, {}), metric) for i in self.active}
        known = {i: score for i, score in scores.items() if score is not None}
        if not known:
            raise UnknownNameError(f"No lane's latest result has the metric '{metric}'.")
        return (max if mode == "max" else min)(known, key=lambda i: known[i])

    def points(self, metric: str = RETURN) -> list[Point]:
        """The points of the sweep, best first: what the latest results of their lanes say.

        Lanes that have diverged count for no score.
        """
        found = []
        for number, lanes in itertools.groupby(self.lanes, key=lambda lane: lane.point):
            members = list(lanes)
            results = [
                self._results[m.index]
                for m in members
                if m.index in self._results and m.index not in self.diverged
            ]
            scores = [s for s in (lookup(result, metric) for result in results) if s is not None]
            indices = tuple(member.index for member in members)
            found.append(Point.of(number, members[0].values, indices, scores))
        return sorted(found, key=lambda point: -point.score)

    def lane(self, index: int) -> Algorithm:
        """A lane as an ordinary Algorithm, in the state that it has now; it trains by itself.

        Raises:
            UnknownNameError: There is no such lane.
        """
        run = self._run(index)
        config = run.config.copy(copy_frozen=False)
        alone = (config.algo_class or Algorithm)(config)
        alone.set_state(run.get_state())
        return alone

    def _run(self, index: int) -> Algorithm:
        if not 0 <= index < self.num_lanes:
            raise UnknownNameError(
                f"There is no lane {index!r}; they are numbered from 0 to {self.num_lanes - 1}."
            )
        return self._runs[index]

    def evaluate(self, *, num_episodes: int | None = None) -> dict[int, Result]:
        """`Algorithm.evaluate` of every lane that has not diverged, by index."""
        return {i: self._runs[i].evaluate(num_episodes=num_episodes) for i in self.active}

    def save(self) -> str:
        """A checkpoint of every lane that has not diverged in its folder; the sweep's folder."""
        for index in self.active:
            self._runs[index].save()
        return str(self.folder.path)

    def explain(self) -> str:
        """The lanes, and the programs that they share."""
        lines = [f"{self.num_lanes} lanes in {len(self._groups)} programs:"]
        lines += [f"  {lane}" for lane in self.lanes]
        return "\n".join([*lines, self._runs[0].explain()])

    def stop(self) -> None:
        """Finish what is being written; may be called twice."""
        for run in self._runs:
            run.stop()
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def error_of(diverged: Mapping[int, str]) -> str:
    """Why the last lane was left behind."""
    return list(diverged.values())[-1]


def _devices(config: "AlgorithmConfig") -> list[Device]:
    """Those that may share lanes."""
    devices, learners = jax.local_devices(), config.learners_settings
    if learners.local_device_idx is not None:
        return [devices[learners.local_device_idx]]
    return devices if learners.num_devices == "auto" else devices[: learners.num_devices]


def grouped(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """The lanes that can share a program, group by group, in the order of their first lanes."""
    groups: list[tuple[Any, list[Lane]]] = []
    for lane in lanes:
        structure = _structure(lane.config)
        for other, group in groups:
            if other == structure:
                group.append(lane)
                break
        else:
            groups.append((structure, [lane]))
    return [group for _, group in groups]


def _structure(config: "AlgorithmConfig") -> dict[str, Any]:
    """All that shapes a program: settings but for the numbers that are leaves of the state."""
    numbers = numbers_of(config.training_settings)
    shapes = jax.tree.map(lambda x: x.shape, numbers)
    settings = {n: v for n, v in config.items() if n not in numbers and n not in OWN_NAMES}
    return {**settings, "numbers": shapes, "env_config": _env_structure(config)}


def _env_structure(config: "AlgorithmConfig") -> Any:
    """Of `env_config` what is no number, which may change the environment's structure."""
    given = config.environment_settings.env_config or {}
    return {name: type(x) if isinstance(x, float) else x for name, x in given.items()}


def _check(lane: Lane) -> None:
    """Refuse, before anything is built, a lane that could not run."""
    lane.config.validate()
    reporting = lane.config.reporting_settings
    if reporting.min_time_s_per_iteration:
        raise ConfigError(
            f"min_time_s_per_iteration={reporting.min_time_s_per_iteration} cannot be kept by all "
            "lanes of a sweep at once; use min_sample_timesteps_per_iteration."
        )
