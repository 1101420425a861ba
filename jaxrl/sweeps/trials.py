"""Trials: a sweep of host environments, whose runs are trials of Ray Tune."""

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ray.tune
from ray.tune.experiment import Trial

from jaxrl.algorithm import Algorithm, Result
from jaxrl.compat.lookup import answer_arguments
from jaxrl.config.config import Config
from jaxrl.config.imports import Trust, TrustSpec
from jaxrl.config.serialize import deserialize_config, serialize_for_display
from jaxrl.config.stop import find_reached_criterion, parse_fit_criteria
from jaxrl.core.types import Device
from jaxrl.errors import CheckpointError, ConfigError, DivergenceError
from jaxrl.loggers.sinks import read_results
from jaxrl.runners.ray.start import ensure_ray
from jaxrl.runs.checkpoint import get_path, list_checkpoints
from jaxrl.runs.run_folder import RunFolder, is_run_folder, parse_iteration
from jaxrl.runtime.lock import single_threaded, until_stopped
from jaxrl.sweeps import state as sweep_state
from jaxrl.sweeps.base import SweepRuns, read_and_check_sweep
from jaxrl.tune import AlgorithmTrainable

logger = logging.getLogger(__name__)


class Trials(SweepRuns):
    """All runs of a sweep as Ray Tune trials; returned by `config.build()` for host environments.

    A trial is a single run with the lane's settings in a separate process. As many trials run
    concurrently as the CPUs allow. Results and checkpoints are in the lane's folder within the
    sweep's folder.
    """

    def __init__(self, config: "Config", *, run_folder: RunFolder | None = None) -> None:
        """Initialize the trials; use `config.build()` or `from_checkpoint` instead.

        Args:
            config: Config of the sweep, which is frozen.
            run_folder: Folder of the sweep to resume; None creates one.
        """
        super().__init__(config, run_folder=run_folder)
        if config.sweep_settings.scheduler is not None:
            raise ConfigError(
                f"{self._reason}, and sweep(scheduler=...) copies lanes within a compiled program: pass "
                "the config without it to tune.Tuner(..., param_space=config) and use a scheduler of "
                "Ray Tune."
            )
        max_lanes = config.sweep_settings.max_lanes_per_program
        if max_lanes is not None:
            raise ConfigError(
                f"{self._reason}: max_lanes_per_program={max_lanes} has no effect, as every lane is a "
                "separate process."
            )
        logger.warning(self._summary)

    @property
    def devices(self) -> list[Device]:
        """Empty list, because each trial has its devices in its own process."""
        return []

    @property
    def notes(self) -> list[str]:
        """Empty list, because all notes about trials are logged."""
        return []

    @property
    def _summary(self) -> str:
        return (
            f"{self._reason}, so its runs cannot be lanes of one program: running {self.num_lanes} trials "
            "of Ray Tune, as many at once as the CPUs allow."
        )

    @property
    def _reason(self) -> str:
        """Reason why the runs are no lanes of one program."""
        if self.config.is_offline:
            return "The rows of each run are sent to it (dataset_storage)"
        return f"{self.config.environment_settings.env} is stepped on the host"

    def explain(self) -> str:
        """Describe the trials and how they are run."""
        return "\n".join([self._summary, *(f"  {lane}" for lane in self.lanes)])

    def train(self) -> NoReturn:
        """Raise ConfigError: trials do not run in lockstep.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "train() is one iteration of all lanes together, but trials on the host run each at "
            "its own pace: call fit(stop={'training_iteration': 1})."
        )

    @until_stopped
    @answer_arguments
    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Run every trial until it reaches a criterion; each writes a checkpoint at its end.

        Args:
            stop: Thresholds of result keys, as for `Algorithm.fit`; stored in the folders.
            on_iteration: Callback for the trials' latest results, called after each iteration of a
                trial.
            should_stop: Callback that ends all trials if it returns True; called after each
                iteration of a trial.

        Returns:
            The combined latest results of the trials.

        Raises:
            DivergenceError: If all trials have failed.
        """
        criteria = parse_fit_criteria(
            stop, should_stop, on_iteration, is_offline=self.config.is_offline
        )
        if stop is not None:
            self.folder.save_stop_criterion(criteria)

        def on_result(index: int, result: Result) -> None:
            self._results[index] = result
            self._update_iteration()
            if on_iteration is not None:
                on_iteration(self._combine_results())

        unfinished = self._get_unfinished(criteria)
        if unfinished:
            self.save()  # makes a killed sweep resumable; the trials save their own checkpoints

            failed = run_trials(
                self.config,
                {i: (self.format_lane_name(i), self.lanes[i].config) for i in unfinished},
                self.folder.path,
                stop=criteria,
                on_result=on_result,
                should_stop=should_stop,
            )
            self.diverged.update(failed)
        self._update_iteration()
        self.save()
        if not self.active_indices:
            last = list(self.diverged.values())[-1]
            raise DivergenceError(f"All {self.num_lanes} trials have failed; the last: {last}")
        return self._combine_results()

    def _update_iteration(self) -> None:
        """Set `iteration` to the one that all active trials have completed."""
        completed = [
            self._results.get(i, {}).get("training_iteration", 0) for i in self.active_indices
        ]
        self.iteration = min(completed, default=self.iteration)

    @single_threaded
    def lane(self, index: int) -> Algorithm:
        """Return a run as an independent Algorithm, restored from its newest checkpoint.

        Raises:
            UnknownNameError: If there is no such lane.
            CheckpointError: If the lane has not been trained.
        """
        self._check_index(index)
        return Algorithm.from_checkpoint(self.folder.path / self.format_lane_name(index))

    @single_threaded
    def export(
        self,
        index: int,
        folder: str | os.PathLike[str],
        formats: Sequence[str] = ("numpy",),
        explore: Sequence[bool] = (False, True),
    ) -> str:
        """Export the current policy of a lane; see `Algorithm.export`.

        Raises:
            UnknownNameError: If there is no such lane.
            ExportError: If the policy cannot be exported.
        """
        with self.lane(index) as algorithm:
            return algorithm.export(folder, formats, explore)

    @single_threaded
    def evaluate(self, *, num_episodes: int | None = None) -> Result:
        """Evaluate every run that has not failed, one after another.

        Args:
            num_episodes: Number of episodes per run, instead of `evaluation_duration`.

        Returns:
            A result like that of `fit`, with the result of `Algorithm.evaluate` for each run.
        """
        results: dict[int, Result] = {}
        for index in self.active_indices:
            with self.lane(index) as algorithm:
                results[index] = algorithm.evaluate(num_episodes=num_episodes)
        return self._combine_results(results)

    @until_stopped
    def save(self) -> str:
        """Write the sweep's state and return its folder; trials write their own checkpoints."""
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
        **overrides: object,
    ) -> "Trials":
        """Return the sweep saved in a folder, every trial at its newest checkpoint.

        Args:
            path: Folder of the sweep.
            run_folder: The same folder, opened; the trials continue in it.
            trust: Trust in a sweep that another user wrote, see `Algorithm.from_checkpoint`.
            **overrides: Settings that replace the saved ones. Settings that differ between trials
                cannot be replaced.

        Raises:
            CheckpointError: If the sweep is damaged, holds no trials, or a setting that was not
                saved is missing.
        """
        folder = get_path(path).resolve()
        saved = read_and_check_sweep(folder, overrides)
        if not saved.get("trials"):
            raise CheckpointError(f"{folder} holds lanes of one program: use Population.")
        trusted = Trust.from_argument(trust, is_own=sweep_state.is_own(saved), source=folder)
        config = deserialize_config(saved["config"], overrides, trust=trusted)
        trials = cls(config, run_folder=run_folder)
        trials.diverged = {int(index): why for index, why in saved["diverged"].items()}
        for index in trials.active_indices:
            trials._results[index] = _read_latest_result(folder / trials.format_lane_name(index))
        trials._update_iteration()
        return trials


def _read_latest_result(lane: Path) -> Result:
    """Return the result at a run's newest checkpoint; empty if there is no checkpoint."""
    checkpoints = list_checkpoints(lane / "checkpoints") if is_run_folder(lane) else []
    if not checkpoints:
        return {}
    marker = f'"training_iteration": {parse_iteration(checkpoints[-1])},'
    return next(read_results(lane / "result.json", containing=marker), {})


LANE_KEY = "lane"
"""Key of the lane's index in a trial's config."""
TUNE_FOLDER = "tune"
"""Name of Tune's own folder within the sweep's folder."""

QUIET_ENV_VARS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the run folders already have these logs
    "RAY_AIR_NEW_OUTPUT": "0",  # its tables are printed even with verbose=0
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the caller handles Ctrl-C
}
"""Environment variables that disable Tune's own output and signal handler."""

LaneConfigs = Mapping[int, tuple[str, Config]]
"""Name and config of each lane, by index."""


class LaneTrial(AlgorithmTrainable):
    """Trial of a lane, resumed from the newest checkpoint in the lane's folder."""

    has_checkpoint_limit = True
    replaced_loggers = ("console",)

    def setup(
        self,
        config: Mapping[str, Any] | Config,
        lanes: LaneConfigs | None = None,
        folder: str = "",
        stop: Mapping[str, float] | None = None,
    ) -> None:
        """Set up the lane's algorithm; see `AlgorithmTrainable.setup`.

        Args:
            config: Trial config, with the lane's index under `LANE_KEY`.
            lanes: Name and config of each lane, by index.
            folder: Folder of the sweep.
            stop: Thresholds of result keys.
        """
        assert lanes is not None
        self._name, settings = lanes[config[LANE_KEY]]
        self._sweep, self._stop = Path(folder), dict(stop or {})
        super().setup(settings)
        newest = list_checkpoints(self._folder.checkpoints)
        if newest:
            self.load_checkpoint(str(newest[-1]))

    def _open_folder(self) -> RunFolder:
        path = self._sweep / self._name
        if is_run_folder(path):
            folder = RunFolder.open(path)
        else:
            described = serialize_for_display(self._settings)
            folder = RunFolder.make(self._name, described, results_dir=self._sweep)
        folder.save_stop_criterion(self._stop)
        return folder

    @single_threaded
    def step(self) -> dict[str, Any]:
        """Train for one iteration; an error that ends it leaves a checkpoint."""
        with self.algorithm.save_on_error():
            return super().step()

    @single_threaded
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save to the lane's folder, from which trials are resumed; Tune's own stays empty."""
        with self._save_times.time_save():
            self.algorithm.save()


class _TrialMonitor(ray.tune.Stopper, ray.tune.Callback):
    """Stopper and callback that forwards results and ends trials.

    A trial ends when it reaches a criterion, and all trials end when `should_stop` returns True. A
    trial that is ended saves itself after its iteration. Trials without a result, including pending
    ones, are ended when no other is left.
    """

    def __init__(
        self,
        criteria: Mapping[str, float],
        should_stop: Callable[[], bool] | None,
        on_result: Callable[[int, Result], None] | None,
    ) -> None:
        self._criteria, self._should_stop = dict(criteria), should_stop
        self._on_result = on_result
        self._unsaved: set[str] = set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._unsaved.add(trial_id)
        return self._is_stop_requested() or bool(find_reached_criterion(result, self._criteria))

    def stop_all(self) -> bool:
        return self._is_stop_requested() and not self._unsaved

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: object,
    ) -> None:
        if self._on_result is not None:
            self._on_result(trial.config[LANE_KEY], result)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: object
    ) -> None:
        self._unsaved.discard(trial.trial_id)

    on_trial_error = on_trial_complete

    def _is_stop_requested(self) -> bool:
        return self._should_stop is not None and self._should_stop()

    def __getstate__(self) -> dict[str, Any]:  # Tune pickles a copy, which must not run callbacks
        return {**self.__dict__, "_should_stop": None, "_on_result": None}


def run_trials(
    config: Config,
    lanes: LaneConfigs,
    folder: Path,
    *,
    stop: Mapping[str, float],
    on_result: Callable[[int, Result], None],
    should_stop: Callable[[], bool] | None,
) -> dict[int, str]:
    """Run lanes as trials until each has ended; a failed trial does not end the others.

    Args:
        config: Config of the sweep, which has the settings of Ray.
        lanes: Name and config of the lanes to run, by index.
        folder: Folder of the sweep.
        stop: Thresholds of result keys.
        on_result: Callback for the lane's index and its result, called after each iteration.
        should_stop: Callback that ends all trials if it returns True; called after each iteration.

    Returns:
        The error messages of failed lanes, by index.
    """
    ensure_ray(config)

    def get_resources(trial: Mapping[str, Any]) -> ray.tune.PlacementGroupFactory:
        return AlgorithmTrainable.default_resource_request(lanes[trial[LANE_KEY]][1])

    def get_name(trial: Trial) -> str:
        return lanes[trial.config[LANE_KEY]][0]

    monitor = _TrialMonitor(stop, should_stop, on_result)
    parameters = {"lanes": dict(lanes), "folder": str(folder), "stop": dict(stop)}
    trainable = ray.tune.with_parameters(LaneTrial, **parameters)
    with _set_env_vars(QUIET_ENV_VARS):
        results = ray.tune.Tuner(
            ray.tune.with_resources(trainable, get_resources),
            param_space={LANE_KEY: ray.tune.grid_search(list(lanes))},
            tune_config=ray.tune.TuneConfig(
                trial_name_creator=get_name, trial_dirname_creator=get_name, reuse_actors=False
            ),
            run_config=ray.tune.RunConfig(
                name=TUNE_FOLDER,
                storage_path=str(folder),
                stop=monitor,
                callbacks=[monitor],
                checkpoint_config=ray.tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=True),
                verbose=0,
            ),
        ).fit()
    order = list(lanes)
    errors = [results[position].error for position in range(len(order))]
    return {lane: _get_message(e) for lane, e in zip(order, errors, strict=True) if e is not None}


def _get_message(error: Exception) -> str:
    """Return the message of the error in the trial's process, without its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else repr(error)


@contextlib.contextmanager
def _set_env_vars(values: Mapping[str, str]) -> Generator[None]:
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
