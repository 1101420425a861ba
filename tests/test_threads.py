"""One thread at a time uses a run, and none trains it when it was stopped."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Callbacks, JaxrlError, Population, Trials
from jaxrl.errors import InUseError, StoppedError
from tests.helpers import small

WAIT_S = 300


class Held:
    """A call in a thread of its own, which stands still in the middle until the block ends."""

    def __init__(self, call: Callable[["Held"], Any]) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)

    def _run(self, call: Callable[["Held"], Any]) -> None:
        try:
            with jax.debug_key_reuse(False):  # which says of each thread what it checks
                call(self)
        except BaseException as error:  # noqa: BLE001  (raised again where the block ends)
            self._raised.append(error)
            self._reached.set()

    def stand_still(self, *_: Any, **__: Any) -> None:
        """Wait in the middle of the call."""
        self._reached.set()
        assert self._go_on.wait(WAIT_S)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._reached.wait(WAIT_S)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        for error in self._raised:
            raise error


class Nesting(Callbacks):
    """Uses the run from within its training."""

    hold: Callable[..., None] | None = None

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        if Nesting.hold is not None:
            Nesting.hold()
            return
        result["evaluated"] = algorithm.evaluate(num_episodes=1)
        result["saved"] = algorithm.save()
        algorithm.set_state(algorithm.get_state())


@pytest.fixture
def algorithm() -> Iterator[Any]:
    with small().callbacks(Nesting).debugging(loggers=[]).build() as built:
        yield built
    Nesting.hold = None


def test_calls_from_another_thread_are_refused_while_one_trains(
    algorithm: Any, tmp_path: Path
) -> None:
    state = algorithm.get_state()
    calls = {
        "train": algorithm.train,
        "training_step": algorithm.training_step,
        "fit": lambda: algorithm.fit({"training_iteration": 1}),
        "compile": algorithm.compile,
        "evaluate": algorithm.evaluate,
        "save": lambda: algorithm.save(tmp_path),
        "restore": lambda: algorithm.restore(tmp_path),
        "get_state": algorithm.get_state,
        "set_state": lambda: algorithm.set_state(state),
        "get_weights": algorithm.get_weights,
        "set_weights": lambda: algorithm.set_weights({}),
        "set_env_params": algorithm.set_env_params,
        "get_policy": algorithm.get_policy,
        "_act": lambda: algorithm.compute_single_action(np.zeros(4, np.float32)),
    }

    def train(held: Held) -> None:
        Nesting.hold = held.stand_still
        algorithm.train()

    with Held(train):
        for name, call in calls.items():
            said = rf"{name}\(\) was called while train\(\) of the same Algorithm runs in another"
            with pytest.raises(InUseError, match=said):
                call()
    assert issubclass(InUseError, JaxrlError)
    assert algorithm.iteration == 1  # the one that was held went on to its end


@pytest.mark.slow
def test_a_callback_uses_the_run_that_calls_it_and_threads_take_turns(algorithm: Any) -> None:
    results: list[dict[str, Any]] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: results.append(algorithm.train()))
        thread.start()
        thread.join(WAIT_S)
    results.append(algorithm.train())
    assert [result["training_iteration"] for result in results] == [1, 2, 3]
    assert all(Path(result["saved"]).is_dir() for result in results)


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_a_sweep_is_used_by_one_thread() -> None:
    config = small().sweep(seeds=2).debugging(loggers=[])
    with config.build() as sweep:
        assert isinstance(sweep, Population)
        calls = {
            "train": sweep.train,
            "fit": lambda: sweep.fit({"training_iteration": 1}),
            "evaluate": sweep.evaluate,
            "save": sweep.save,
            "lane": lambda: sweep.lane(0),
        }
        fit = {"stop": {"training_iteration": 1}}
        with Held(lambda held: sweep.fit(**fit, on_iteration=held.stand_still)):
            for name, call in calls.items():
                with pytest.raises(InUseError, match=rf"{name}\(\) was called while fit\(\)"):
                    call()
        assert sweep.iteration == 1
    for call in (sweep.train, sweep.save):
        with pytest.raises(StoppedError, match="the Population was stopped"):
            call()


def test_trials_are_used_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small("PPO", "gymnasium:CartPole-v1").sweep(seeds=2).debugging(loggers=[])
    lane_trials = pytest.importorskip("jaxrl.sweeps.trials")
    with config.build() as sweep:
        assert isinstance(sweep, Trials)
        calls = {
            "fit": lambda: sweep.fit({"training_iteration": 1}),
            "evaluate": sweep.evaluate,
            "save": sweep.save,
            "lane": lambda: sweep.lane(0),
        }

        def fit(held: Held) -> None:
            def run_trials(*_: Any, **__: Any) -> dict[int, str]:
                held.stand_still()
                return {}

            monkeypatch.setattr(lane_trials, "run_trials", run_trials)
            sweep.fit({"training_iteration": 1})

        with Held(fit):
            for name, call in calls.items():
                said = rf"{name}\(\) was called while fit\(\) of the same Trials"
                with pytest.raises(InUseError, match=said):
                    call()
        sweep.save()  # the other thread has returned
    with pytest.raises(StoppedError, match=r"save\(\) was called after .*: the Trials was stopped"):
        sweep.save()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_trainable_is_used_by_one_thread(tmp_path: Path) -> None:
    tune = pytest.importorskip("jaxrl.tune")
    trial = tune.PPO(config=small().callbacks(Nesting).debugging(loggers=[]).to_dict())
    calls = {
        "step": trial.train,
        "save_checkpoint": lambda: trial.save_checkpoint(str(tmp_path)),
        "load_checkpoint": lambda: trial.load_checkpoint(str(tmp_path)),
    }

    def train(held: Held) -> None:
        Nesting.hold = held.stand_still
        trial.train()

    try:
        with Held(train):
            for name, call in calls.items():
                said = rf"{name}\(\) was called while step\(\) of the same PPO runs"
                with pytest.raises(InUseError, match=said):
                    call()
        assert trial.algorithm.iteration == 1
    finally:
        Nesting.hold = None
        trial.stop()


@pytest.mark.representatives("in_graph")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_run_that_was_stopped_is_trained_no_more(placement: str, tmp_path: Path) -> None:
    config = small().env_runners(placement=placement).evaluation(evaluation_duration=2)
    with config.debugging(loggers=[]).build() as algorithm:
        algorithm.train()
        saved = algorithm.save(tmp_path)
    calls = {
        "train": algorithm.train,
        "training_step": algorithm.training_step,
        "fit": lambda: algorithm.fit({"training_iteration": 9}),
        "compile": algorithm.compile,
        "save": algorithm.save,
    }
    for name, call in calls.items():
        said = rf"{name}\(\) was called after stop\(\): the Algorithm was stopped"
        with pytest.raises(StoppedError, match=said):
            call()
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 2  # what was learned is there
    algorithm.compute_single_action(np.zeros(4, np.float32))
    algorithm.stop()
    assert Path(saved).is_dir()
