"""A sweep whose environments are stepped on the host: its runs are trials of Ray Tune."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jaxrl.algorithm import Algorithm, Result
from jaxrl.config.deserialize import config_from_serializable
from jaxrl.config.imports import Trust, TrustSpec
from jaxrl.config.stop import criteria_of_fit
from jaxrl.errors import CheckpointError, ConfigError, DivergenceError
from jaxrl.loggers import RunFolder
from jaxrl.loggers.json_sink import read_results
from jaxrl.runs.checkpoint import complete_checkpoints
from jaxrl.runs.run_folder import is_run_folder, iteration_of
from jaxrl.runtime.exclusive import one_thread, until_stopped
from jaxrl.sweeps import state as sweep_state
from jaxrl.sweeps.base import SweepRuns, read_saved

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


logger = logging.getLogger(__name__)


class Trials(SweepRuns):
    """All runs of a sweep as trials of Ray Tune; `config.build()` makes one where they are no lanes.

    A trial is the run by itself with the lane's settings, in a process of its own; as many run at once
    as there are CPUs for. Its results and checkpoints lie in the lane's folder in the sweep's.
    """

    def __init__(self, config: "AlgorithmConfig", *, run_folder: RunFolder | None = None) -> None:
        """Use `config.build()`, or `from_checkpoint`.

        Args:
            config: Gets frozen.
            run_folder: The sweep to go on with; None makes a folder.
        """
        super().__init__(config, run_folder=run_folder)
        if config.sweep_settings.scheduler is not None:
            raise ConfigError(
                "sweep(scheduler=...) copies lanes within a compiled program, and "
                f"{config.environment_settings.env} is stepped on the host: give the config without "
                "it to tune.Tuner(..., param_space=config), with a scheduler of Ray Tune's."
            )
        most = config.sweep_settings.max_lanes_per_program
        if most is not None:
            raise ConfigError(
                f"max_lanes_per_program={most} has no effect with {config.environment_settings.env}, "
                "which is stepped on the host: every lane is a process of its own."
            )
        logger.warning(self._said)

    @property
    def devices(self) -> list[Any]:
        """None: trials have theirs in their own processes."""
        return []

    @property
    def notes(self) -> list[str]:
        """What to know before training: nothing that the log has not said."""
        return []

    @property
    def _said(self) -> str:
        return (
            f"{self.config.environment_settings.env} is stepped on the host, where runs cannot be "
            f"lanes of one program: {self.num_lanes} trials of Ray Tune, as many at once as there are "
            "CPUs for."
        )

    def explain(self) -> str:
        """The runs, and how they are carried out."""
        return "\n".join([self._said, *(f"  {lane}" for lane in self.lanes)])

    def train(self) -> NoReturn:
        """Refused: trials do not wait for one another.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "train() is an iteration of all lanes together, and trials on the host have each their "
            "own pace: call fit(stop={'training_iteration': 1})."
        )

    @until_stopped
    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Run every trial to a criterion; each leaves a checkpoint at its end.

        Args:
            stop: Thresholds of result keys, as for `Algorithm.fit`; the folders keep them.
            on_iteration: Called after each iteration of a trial, with all trials' latest results.
            should_stop: Looked at after each iteration of a trial; True ends them all in order.

        Raises:
            DivergenceError: No trial is left.
        """
        criteria = criteria_of_fit(stop, should_stop)
        if stop is not None:
            self.folder.save_stop_criterion(criteria)

        def heard(index: int, result: Result) -> None:
            self._results[index] = result
            self._count()
            if on_iteration is not None:
                on_iteration(self._result())

        waiting = self._waiting(criteria)
        if waiting:
            self.save()  # a sweep that is killed goes on, too: its trials save themselves
            from jaxrl.sweeps.lane_trials import run_trials  # Ray is imported where it is needed

            failed = run_trials(
                self.config,
                {i: (self.lane_name(i), self.lanes[i].config) for i in waiting},
                self.folder.path,
                stop=criteria,
                on_result=heard,
                should_stop=should_stop,
            )
            self.diverged.update(failed)
        self._count()
        self.save()
        if not self.active:
            last = list(self.diverged.values())[-1]
            raise DivergenceError(f"All {self.num_lanes} trials have failed; the last: {last}")
        return self._result()

    def _count(self) -> None:
        """How far all trials have come that go on."""
        done = [self._results.get(i, {}).get("training_iteration", 0) for i in self.active]
        self.iteration = min(done, default=self.iteration)

    @one_thread
    def lane(self, index: int) -> Algorithm:
        """A run as an ordinary Algorithm, from its newest checkpoint.

        Raises:
            UnknownNameError: There is no such lane.
            CheckpointError: It has not been trained.
        """
        self._check_index(index)
        return Algorithm.from_checkpoint(self.folder.path / self.lane_name(index))

    @one_thread
    def evaluate(self, *, num_episodes: int | None = None) -> Result:
        """`Algorithm.evaluate` of every run that has not failed, one after another.

        Args:
            num_episodes: Of each run, instead of `evaluation_duration`.

        Returns:
            As `fit`, with what `Algorithm.evaluate` gives in the place of each run's result.
        """
        found: dict[int, Result] = {}
        for index in self.active:
            with self.lane(index) as alone:
                found[index] = alone.evaluate(num_episodes=num_episodes)
        return self._result(found)

    @until_stopped
    def save(self) -> str:
        """Write down which trials there are; their checkpoints are their own. The sweep's folder."""
        state = {
            "training_iteration": self.iteration,
            "diverged": {str(index): why for index, why in self.diverged.items()},
            "swept": sorted(self.lanes[0].values),
            "trials": True,
        }
        sweep_state.write_sweep(self.folder.path, self.config, state)
        return str(self.folder.path)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        run_folder: RunFolder,
        trust: TrustSpec = None,
        **overrides: Any,
    ) -> "Trials":
        """The sweep that was saved in a folder, every trial at its newest checkpoint.

        Args:
            path: The folder of the sweep.
            run_folder: The same, opened: trials go on in it.
            trust: Of a sweep that this user did not write, see `Algorithm.from_checkpoint`.
            **overrides: Settings to take instead of the saved ones; not those that differ between trials.

        Raises:
            CheckpointError: It is damaged, or something must be supplied.
        """
        folder = Path(path).expanduser().resolve()
        saved = read_saved(folder, overrides)
        if not saved.get("trials"):
            raise CheckpointError(f"{folder} holds lanes of one program: use Population.")
        trusted = Trust.of(trust, own=sweep_state.is_own(saved), source=folder)
        config = config_from_serializable(saved["config"], overrides, trust=trusted)
        trials = cls(config, run_folder=run_folder)
        trials.diverged = {int(index): why for index, why in saved["diverged"].items()}
        for index in trials.active:
            trials._results[index] = _latest(folder / trials.lane_name(index))
        trials._count()
        return trials


def _latest(lane: Path) -> Result:
    """The result at a run's newest checkpoint; empty where there is none."""
    checkpoints = complete_checkpoints(lane / "checkpoints") if is_run_folder(lane) else []
    if not checkpoints:
        return {}
    wanted = f'"training_iteration": {iteration_of(checkpoints[-1])},'
    return next(read_results(lane / "result.json", containing=wanted), {})
