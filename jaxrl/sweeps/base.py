"""Base class of sweeps: lanes, folder, results and points.

A lane is one run of a sweep (a member of the population).
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jaxrl.algorithm import Result
from jaxrl.config.stop import find_reached_criterion
from jaxrl.config.sweep import Lane, make_lanes
from jaxrl.errors import CheckpointError, UnknownNameError
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import note_close_failure
from jaxrl.metrics import get_score
from jaxrl.runs import host_state as host
from jaxrl.runs.exploits import Exploit
from jaxrl.runs.results import ENV_STEPS, TRAINED_STEPS
from jaxrl.runtime.lock import ExclusiveLock
from jaxrl.sweeps import state as sweep_state
from jaxrl.sweeps.grouping import check_lane
from jaxrl.sweeps.points import SweepPoint, check_mode, group_points

if TYPE_CHECKING:
    from jaxrl.config.config import Config

DEFAULT_METRIC = "env_runners/episode_return_mean"


class SweepRuns:
    """Runs of a sweep: in one compiled program (`Population`) or one process each (`Trials`).

    Attributes:
        config: Frozen config of the sweep.
        lanes: Initial seed, values and config of each lane.
        diverged: Reasons why lanes diverged, by index.
        iteration: Iteration that all active lanes have completed.
    """

    def __init__(self, config: "Config", *, run_folder: RunFolder | None = None) -> None:
        """Initialize the sweep; use `config.build()` or `from_checkpoint` instead.

        Args:
            config: Config of the sweep, which is frozen.
            run_folder: Folder of the sweep to resume; None creates one.
        """
        self._use = ExclusiveLock(type(self).__name__)
        config.freeze()
        self.config = config
        self.lanes: list[Lane] = make_lanes(config)
        for lane in self.lanes:
            check_lane(lane)
        self.diverged: dict[int, str] = {}
        self.iteration = 0
        self._is_resumed = run_folder is not None
        self._folder = run_folder
        self._results: dict[int, Result] = {}

    @property
    def folder(self) -> RunFolder:
        """Folder of the sweep, which contains the lanes' folders; created on first use."""
        if self._folder is None:
            self._folder = RunFolder.create(self.config, checkpoints=False)
        else:
            self._folder.recreate(self.config, checkpoints=False)
        return self._folder

    def format_lane_name(self, index: int) -> str:
        """Return the name of a lane's folder within the sweep's folder."""
        return f"lane_{index:03d}"

    @property
    def num_lanes(self) -> int:
        """Number of lanes, including diverged ones."""
        return len(self.lanes)

    @property
    def active_indices(self) -> list[int]:
        """Indices of the lanes that have not diverged."""
        return [lane.index for lane in self.lanes if lane.index not in self.diverged]

    @property
    def schedule(self) -> list[Exploit]:
        """Exploit steps so far, in order; empty without a scheduler."""
        return []

    @property
    def last_result(self) -> Result:
        """Combined latest results of the lanes; empty before the first."""
        return self._combine_results() if any(self._results.values()) else {}

    def has_reached(self, criteria: Mapping[str, float]) -> bool:
        """Return whether every active lane has reached one of the criteria."""
        return bool(criteria) and not self._get_unfinished(criteria)

    def _get_unfinished(self, criteria: Mapping[str, float]) -> list[int]:
        """Return the active lanes that have not reached any criterion."""
        stop = dict(criteria)
        return [
            i
            for i in self.active_indices
            if not find_reached_criterion(self._results.get(i, {}), stop)
        ]

    @property
    def default_metric(self) -> str:
        """Path of the return in a lane's result: in training, or else in evaluation."""
        return f"evaluation/{DEFAULT_METRIC}" if self.config.is_offline else DEFAULT_METRIC

    def best_lane(self, metric: str | None = None, mode: str = "max") -> int:
        """Return the index of the active lane with the best latest result.

        Args:
            metric: Path of the metric in a lane's result; None for `default_metric`.
            mode: "max" or "min".

        Raises:
            ConfigError: If `mode` is neither "max" nor "min".
            UnknownNameError: If no active lane's result has a number under `metric`.
        """
        check_mode(mode)
        metric = self.default_metric if metric is None else metric
        scores = {i: get_score(self._results.get(i, {}), metric) for i in self.active_indices}
        valid = {i: value for i, value in scores.items() if value is not None}
        if not valid:
            raise UnknownNameError(f"No lane's latest result has a number under '{metric}'.")
        return (max if mode == "max" else min)(valid, key=lambda i: valid[i])

    def points(self, metric: str | None = None, mode: str = "max") -> list[SweepPoint]:
        """Return the sweep's points, best first, scored by their lanes' latest results.

        Diverged lanes have no score.

        Args:
            metric: Path of the score in a lane's result; None for `default_metric`.
            mode: "max" or "min", whether a high or a low score is better.

        Raises:
            ConfigError: If `mode` is neither "max" nor "min", or the score is not a number.
        """
        check_mode(mode)
        metric = self.default_metric if metric is None else metric
        results = {
            index: self._results[index] for index in self.active_indices if index in self._results
        }
        lanes = [(lane.point, lane.values) for lane in self.lanes]
        return group_points(lanes, results, metric, mode)

    def _combine_results(self, lane_results: Mapping[int, Result] | None = None) -> Result:
        """Combine the results of the active lanes that have one.

        Args:
            lane_results: Results by lane index; None for the latest of training.
        """
        results = {i: self._results[i] for i in self.active_indices if self._results.get(i)}
        lanes = results if lane_results is None else dict(lane_results)
        returns = [
            r for r in (get_score(x, DEFAULT_METRIC) for x in lanes.values()) if r is not None
        ]
        mean = sum(returns) / len(returns) if returns else math.nan
        return {
            "training_iteration": self.iteration,
            "num_lanes": self.num_lanes,
            **{
                name: min((x[name] for x in results.values()), default=0)
                for name in (ENV_STEPS, *([TRAINED_STEPS] if self.config.is_offline else []))
            },
            "env_runners": {"episode_return_mean": mean},
            "lanes": lanes,
            "diverged": dict(self.diverged),
        }

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.num_lanes:
            raise UnknownNameError(
                f"There is no lane {index!r}; they are numbered from 0 to {self.num_lanes - 1}."
            )

    def stop(self) -> None:
        """Finish pending writes and release the folder; idempotent."""
        self._use.is_stopped = True
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with note_close_failure(error):
            self.stop()


def read_and_check_sweep(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Read a sweep's file and check that it can be resumed with some settings replaced.

    Args:
        folder: Folder of the sweep.
        overrides: Settings to replace, by name.

    Raises:
        CheckpointError: If the file is damaged, a setting that was not saved is missing, or an
            override is a setting that differs between lanes.
    """
    saved = sweep_state.read_sweep(folder)
    host.check_missing_settings(saved, overrides, folder)
    swept = {name.split(".")[0] for name in saved["swept"]}
    for name in swept.intersection(overrides):
        raise CheckpointError(
            f"{name}={overrides[name]!r} cannot be set: the lanes of {folder} have different "
            "values."
        )
    return saved
