"""The runs of a sweep under Ray Tune: each a trial that writes into its own folder in the sweep's."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import ray.tune

from jaxrl.algorithm import Result
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.serialize import describable_dict
from jaxrl.config.stop import stop_reached
from jaxrl.runners.ray.start import ensure_ray
from jaxrl.runs.checkpoint import complete_checkpoints
from jaxrl.runs.run_folder import RunFolder, is_run_folder
from jaxrl.runtime.exclusive import one_thread
from jaxrl.tune import AlgorithmTrainable

INDEX = "lane"
TUNE_FOLDER = "tune"
"""Of what Tune itself keeps, in the sweep's folder."""

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the run folders have all of it
    "RAY_AIR_NEW_OUTPUT": "0",  # whose tables verbose=0 does not keep away
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # whoever called decides what Ctrl-C does
}

Lanes = Mapping[int, tuple[str, AlgorithmConfig]]
"""The name and the config of each lane, by its index."""


class LaneTrial(AlgorithmTrainable):
    """A lane as a trial; it goes on from the newest checkpoint in the lane's folder."""

    keeps_few = True

    def setup(
        self,
        config: Mapping[str, Any] | AlgorithmConfig,
        lanes: Lanes | None = None,
        folder: str = "",
        stop: Mapping[str, float] | None = None,
    ) -> None:
        """Find the lane's settings; see `AlgorithmTrainable.setup`."""
        assert lanes is not None
        self._name, settings = lanes[config[INDEX]]
        self._sweep, self._stop = Path(folder), dict(stop or {})
        super().setup(settings)
        newest = complete_checkpoints(self._folder.checkpoints)
        if newest:
            self.load_checkpoint(str(newest[-1]))

    def _open_folder(self) -> RunFolder:
        path = self._sweep / self._name
        if is_run_folder(path):
            folder = RunFolder.open(path)
        else:
            described = describable_dict(self._settings)
            folder = RunFolder.make(self._name, described, results_dir=self._sweep)
        folder.save_stop_criterion(self._stop)
        return folder

    @one_thread
    def step(self) -> dict[str, Any]:
        """One iteration of training; what ends it leaves a checkpoint."""
        with self.algorithm.saved_whatever_ends_it():
            return super().step()

    @one_thread
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """One in the lane's folder, which is all that a trial goes on from; Tune's stays empty."""
        with self._times.saving():
            self.algorithm.save()


class _Watch(ray.tune.Stopper, ray.tune.Callback):
    """Tells of each result, ends a trial at a criterion, and all of them when asked to.

    A trial that was asked to end saves itself after its iteration. Those without a result, waiting
    ones among them, are ended when no other is left.
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
        return self._is_asked() or bool(stop_reached(result, self._criteria))

    def stop_all(self) -> bool:
        return self._is_asked() and not self._unsaved

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if self._on_result is not None:
            self._on_result(trial.config[INDEX], result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._unsaved.discard(trial.trial_id)

    on_trial_error = on_trial_complete

    def _is_asked(self) -> bool:
        return self._should_stop is not None and self._should_stop()

    def __getstate__(self) -> dict[str, Any]:  # Tune keeps a copy, which asks and tells nobody
        return {**self.__dict__, "_should_stop": None, "_on_result": None}


def run_trials(
    config: AlgorithmConfig,
    lanes: Lanes,
    folder: Path,
    *,
    stop: Mapping[str, float],
    on_result: Callable[[int, Result], None],
    should_stop: Callable[[], bool] | None,
) -> dict[int, str]:
    """Run lanes as trials until each has ended; a failed one does not end the others.

    Args:
        config: Of the sweep: how Ray is started.
        lanes: What to run.
        folder: The sweep's.
        stop: Thresholds of result keys.
        on_result: Called with the lane's index and its result after each iteration.
        should_stop: Looked at after each iteration.

    Returns:
        Why lanes have failed, a sentence each, by index.
    """
    ensure_ray(config)

    def resources(trial: Mapping[str, Any]) -> Any:
        return AlgorithmTrainable.default_resource_request(lanes[trial[INDEX]][1])

    def named(trial: Any) -> str:
        return lanes[trial.config[INDEX]][0]

    watch = _Watch(stop, should_stop, on_result)
    parameters = {"lanes": dict(lanes), "folder": str(folder), "stop": dict(stop)}
    trainable: Any = ray.tune.with_parameters(LaneTrial, **parameters)
    with _environs(QUIET):
        found = ray.tune.Tuner(
            ray.tune.with_resources(trainable, resources),
            param_space={INDEX: ray.tune.grid_search(list(lanes))},
            tune_config=ray.tune.TuneConfig(
                trial_name_creator=named, trial_dirname_creator=named, reuse_actors=False
            ),
            run_config=ray.tune.RunConfig(
                name=TUNE_FOLDER,
                storage_path=str(folder),
                stop=watch,
                callbacks=[watch],
                checkpoint_config=ray.tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=True),
                verbose=0,
            ),
        ).fit()
    order = list(lanes)
    errors = [found[place].error for place in range(len(order))]
    return {lane: _sentence(e) for lane, e in zip(order, errors, strict=True) if e is not None}


def _sentence(error: Exception) -> str:
    """What the trial's process raised, without its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else repr(error)


@contextlib.contextmanager
def _environs(values: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
