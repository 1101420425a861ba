"""Runs of a sweep as Ray Tune trials, each writing to its own folder within the sweep's folder."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import ray.tune
from ray.tune.experiment import Trial

from jaxrl.algorithm import Result
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.serialize import serialize_for_display
from jaxrl.config.stop import find_reached_criterion
from jaxrl.runners.ray.start import ensure_ray
from jaxrl.runs.checkpoint import list_checkpoints
from jaxrl.runs.run_folder import RunFolder, is_run_folder
from jaxrl.runtime.exclusive import single_threaded
from jaxrl.tune import AlgorithmTrainable

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

LaneConfigs = Mapping[int, tuple[str, AlgorithmConfig]]
"""Name and config of each lane, by index."""


class LaneTrial(AlgorithmTrainable):
    """Trial of a lane, resumed from the newest checkpoint in the lane's folder."""

    has_checkpoint_limit = True
    replaced_loggers = ("console",)

    def setup(
        self,
        config: Mapping[str, Any] | AlgorithmConfig,
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
    config: AlgorithmConfig,
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
