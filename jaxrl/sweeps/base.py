"""What every sweep has, however its runs are carried out: lanes, a folder, results, points."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jaxrl.algorithm import Result
from jaxrl.config.stop import stop_reached
from jaxrl.config.sweep import Lane, lanes_of
from jaxrl.errors import CheckpointError, ConfigError, UnknownNameError
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import closing_after
from jaxrl.metrics import score
from jaxrl.runs import host_state as host
from jaxrl.runtime.exclusive import Exclusive
from jaxrl.sweeps import state as sweep_state
from jaxrl.sweeps.grouping import check_lane
from jaxrl.sweeps.pbt import Exploit
from jaxrl.sweeps.points import Point, points_of

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

RETURN = "env_runners/episode_return_mean"
STEPS = "num_env_steps_sampled_lifetime"


class SweepRuns:
    """The runs of a sweep: `Population` has them in one program, `Trials` in processes of their own.

    Attributes:
        config: The frozen config of the sweep.
        lanes: What each lane began as: its seed, its values, its config.
        diverged: Why lanes were left behind, by index.
        iteration: How far every lane has come that was not left behind.
    """

    def __init__(self, config: "AlgorithmConfig", *, run_folder: RunFolder | None = None) -> None:
        """Use `config.build()`, or `from_checkpoint`.

        Args:
            config: Gets frozen.
            run_folder: The sweep to go on with; None makes a folder.
        """
        self._use = Exclusive(type(self).__name__)
        config.freeze()
        self.config = config
        self.lanes: list[Lane] = lanes_of(config)
        for lane in self.lanes:
            check_lane(lane)
        self.diverged: dict[int, str] = {}
        self.iteration = 0
        self._goes_on = run_folder is not None
        self._folder = run_folder
        self._results: dict[int, Result] = {}

    @property
    def folder(self) -> RunFolder:
        """The sweep's folder, with one of each lane in it; made when it is first needed."""
        if self._folder is None:
            self._folder = RunFolder.create(self.config, checkpoints=False)
        else:
            self._folder.make_again(self.config, checkpoints=False)
        return self._folder

    def lane_name(self, index: int) -> str:
        """The name of a lane's folder in the sweep's."""
        return f"lane_{index:03d}"

    @property
    def num_lanes(self) -> int:
        """How many runs there are."""
        return len(self.lanes)

    @property
    def active(self) -> list[int]:
        """The lanes that have not diverged."""
        return [lane.index for lane in self.lanes if lane.index not in self.diverged]

    @property
    def schedule(self) -> list[Exploit]:
        """Which lanes went on as copies of which; empty without a scheduler."""
        return []

    @property
    def last_result(self) -> Result:
        """What the lanes' latest results say together; empty before the first."""
        return self._result() if any(self._results.values()) else {}

    def has_reached(self, criteria: Mapping[str, float]) -> bool:
        """Whether every lane that goes on has reached one of the criteria."""
        return bool(criteria) and not self._waiting(criteria)

    def _waiting(self, criteria: Mapping[str, float]) -> list[int]:
        """The lanes that go on and have reached no criterion."""
        wanted = dict(criteria)
        return [i for i in self.active if not stop_reached(self._results.get(i, {}), wanted)]

    def best_lane(self, metric: str = RETURN, mode: str = "max") -> int:
        """The index of the lane whose latest result is best, of those that have not diverged.

        Raises:
            ConfigError: `mode` is neither "max" nor "min".
            UnknownNameError: No lane's result has a number there.
        """
        if mode not in ("max", "min"):
            raise ConfigError(f"mode must be 'max' or 'min', got {mode!r}.")
        scores = {i: score(self._results.get(i, {}), metric) for i in self.active}
        known = {i: found for i, found in scores.items() if found is not None}
        if not known:
            raise UnknownNameError(f"No lane's latest result has a number as '{metric}'.")
        return (max if mode == "max" else min)(known, key=lambda i: known[i])

    def points(self, metric: str = RETURN) -> list[Point]:
        """The points of the sweep, best first: what the latest results of their lanes say.

        Lanes that have diverged count for no score.
        """
        results = {index: self._results[index] for index in self.active if index in self._results}
        return points_of([(lane.point, lane.values) for lane in self.lanes], results, metric)

    def _result(self, found: Mapping[int, Result] | None = None) -> Result:
        """What all lanes that have a result and have not diverged say together.

        Args:
            found: Of each lane, by index; None for the latest of training.
        """
        results = {i: self._results[i] for i in self.active if self._results.get(i)}
        lanes = results if found is None else dict(found)
        returns = [r for r in (score(x, RETURN) for x in lanes.values()) if r is not None]
        mean = sum(returns) / len(returns) if returns else math.nan
        return {
            "training_iteration": self.iteration,
            "num_lanes": self.num_lanes,
            STEPS: min((x[STEPS] for x in results.values()), default=0),
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
        """Finish what is being written; may be called twice."""
        self._use.is_stopped = True
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with closing_after(error):
            self.stop()


def read_saved(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep's folder remembers, for going on with some settings replaced.

    Raises:
        CheckpointError: It is damaged, something must be supplied, or lanes have their own values of
            what would be replaced.
    """
    saved = sweep_state.read_sweep(folder)
    host.check_supplied(saved, overrides, folder)
    swept = {name.split(".")[0] for name in saved["swept"]}
    for name in swept.intersection(overrides):
        raise CheckpointError(
            f"{name}={overrides[name]!r} cannot be set: lanes of {folder} have values of their own."
        )
    return saved
