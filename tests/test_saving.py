"""A run that is ended by anything at all leaves a checkpoint from which it goes on."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, JaxrlError, Population, PPOConfig
from jaxrl.config.settings.run import CheckpointingSettings
from jaxrl.errors import (
    CheckpointError,
    DivergenceError,
    EnvRunnerError,
    LearnerError,
    RunFolderError,
)
from jaxrl.loggers import recorder
from jaxrl.loggers.recorder import SaveSchedule
from jaxrl.runs.checkpoint import list_checkpoints
from tests.helpers import differs


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def due(times: SaveSchedule, clock: Clock, moments: list[float], took: float = 0.0) -> list[float]:
    """At which moments a run of one iteration each saves, if that takes so long."""
    saved: list[float] = []
    for iteration, moment in enumerate(moments, 1):
        clock.now = moment
        if times.is_due(iteration):
            with times.time_save():
                clock.now += took
            saved.append(moment)
    return saved


def test_a_run_is_saved_every_five_minutes() -> None:
    clock = Clock()
    moments = [100.0 * i for i in range(1, 12)]
    assert due(SaveSchedule(CheckpointingSettings(), clock), clock, moments) == [
        300.0,
        600.0,
        900.0,
    ]


def test_a_state_that_takes_long_to_save_is_saved_more_seldom() -> None:
    clock = Clock()
    moments = [100.0 * i for i in range(1, 30)]
    times = SaveSchedule(CheckpointingSettings(), clock)
    assert due(times, clock, moments, took=50.0) == [300.0, 1300.0, 2300.0]


def test_iterations_and_seconds_are_both_counted() -> None:
    clock = Clock()
    both = CheckpointingSettings(checkpoint_frequency=5, checkpoint_interval_s=250.0)
    assert due(SaveSchedule(both, clock), clock, [100.0 * i for i in range(1, 11)]) == [
        *(300.0, 500.0, 800.0, 1000.0)
    ]
    clock = Clock()
    neither = CheckpointingSettings(checkpoint_interval_s=None)
    assert due(SaveSchedule(neither, clock), clock, [1e9, 2e9]) == []


def config(tmp_path: Path, **checkpointing: Any) -> PPOConfig:
    small = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=4)
    small.training(train_batch_size=32, minibatch_size=32, num_epochs=1)
    small.rl_module(model_config={"fcnet_hiddens": [4]}).learners(num_devices=1)
    small.debugging(results_dir=str(tmp_path), run_name="run", loggers=["json"])
    return small.checkpointing(**checkpointing)


def saved(tmp_path: Path) -> list[str]:
    return [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")]


class Ended(BaseException):
    """Neither an Exception nor anything that is known."""


def raise_at(iteration: int, error: BaseException) -> Any:
    def on_iteration(result: dict[str, Any]) -> None:
        if result["training_iteration"] == iteration:
            raise error

    return on_iteration


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), Ended(), ValueError("x")])
def test_whatever_ends_a_run_it_is_saved(tmp_path: Path, error: BaseException) -> None:
    with config(tmp_path).build() as algo, pytest.raises(type(error)) as caught:
        algo.fit({"training_iteration": 9}, on_iteration=raise_at(2, error))
    assert caught.value is error
    assert error.__notes__ == [
        f"The run is saved in {tmp_path / 'run' / 'checkpoints' / 'checkpoint_000002'}."
    ]
    with Algorithm.from_checkpoint(tmp_path / "run") as again:
        assert again.iteration == 2
        assert again.train()["training_iteration"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EnvRunnerError, LearnerError, DivergenceError])
def test_a_run_is_saved_whoever_raises_what_training_raises_too(
    tmp_path: Path, kind: type[JaxrlError]
) -> None:
    """Evaluation has runners of its own, and callbacks may ask runners: both can lose them."""

    def evaluation(*_: Any) -> Any:
        raise kind("both runners are gone")

    evaluated = config(tmp_path).evaluation(
        evaluation_interval=2, custom_evaluation_function=evaluation
    )
    with evaluated.build() as algo, pytest.raises(kind, match="gone") as caught:
        algo.fit({"training_iteration": 9})
    assert saved(tmp_path) == ["checkpoint_000001"]
    (note,) = caught.value.__notes__
    assert note.endswith("checkpoint_000001.")


def test_what_training_raises_names_the_checkpoint_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config(tmp_path).build() as algo:
        algo.train()

        def lost(*_: Any) -> Any:
            raise EnvRunnerError("both runners are gone.")

        monkeypatch.setattr(algo._loop, "run_batches", lost)
        with pytest.raises(EnvRunnerError) as caught:
            algo.fit({"training_iteration": 9})
    assert not getattr(caught.value, "__notes__", [])
    (path,) = tmp_path.glob("run/checkpoints/*")
    assert str(caught.value) == f"both runners are gone. The run is saved in {path}."


def test_runners_that_are_lost_are_told_of_on_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config(tmp_path, checkpoint_frequency=1, max_to_keep=None).build() as algo:
        algo.fit({"training_iteration": 1})

        def lost(*_: Any) -> Any:
            raise EnvRunnerError("both runners are gone.")

        def full(**_: Any) -> Any:
            raise RunFolderError("the disk is full")

        monkeypatch.setattr(algo._loop, "run_batches", lost)
        monkeypatch.setattr(algo, "_save_in_run", full)
        with pytest.raises(EnvRunnerError, match="both runners are gone") as caught:
            algo.fit({"training_iteration": 9})
    assert "not be saved after this error (RunFolderError: the disk is full)" in str(caught.value)
    assert str(caught.value).endswith("checkpoint_000001.")


def test_rows_go_on_without_a_gap_after_an_error_within_an_iteration(tmp_path: Path) -> None:
    def raises(*, result: dict[str, Any], **_: Any) -> None:
        if result["training_iteration"] == 3:
            raise ValueError("a callback's")

    calling = config(tmp_path).callbacks(on_train_result=raises)
    with calling.build() as algo, pytest.raises(ValueError, match="a callback's"):
        algo.fit({"training_iteration": 9})
    assert saved(tmp_path) == ["checkpoint_000002"]
    with Algorithm.from_checkpoint(tmp_path / "run", on_train_result=None) as again:
        assert again.train()["training_iteration"] == 3


def iterations_of(folder: Path) -> list[int]:
    lines = (folder / "result.json").read_text().splitlines()
    return [json.loads(line)["training_iteration"] for line in lines]


@pytest.mark.parametrize("trains", [True, False])
def test_a_run_that_goes_back_leaves_its_former_future(
    tmp_path: Path, trains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As a resumed one does, when it writes; what it had saved later has another name."""
    with config(tmp_path, checkpoint_frequency=1, max_to_keep=None).build() as algo:
        algo.fit({"training_iteration": 4})
        folder = Path(algo.run_dir)
        algo.restore(folder / "checkpoints" / "checkpoint_000002")
        assert iterations_of(folder) == [1, 2, 3, 4]  # it may go forward again
        assert len(saved(tmp_path)) == 4
        if trains:
            algo.train()
        algo.save()
        number = 3 if trains else 2
        assert saved(tmp_path) == [f"checkpoint_{i:06d}" for i in range(1, number + 1)]
        assert "set_aside_checkpoint_000004" in caplog.text
        with Algorithm.from_checkpoint(folder) as newest:
            assert newest.iteration == number
            assert not differs(newest.get_weights(), algo.get_weights())
        algo.fit({"training_iteration": 5})
    assert iterations_of(folder) == [1, 2, 3, 4, 5]
    assert saved(tmp_path)[-1] == "checkpoint_000005"


def test_what_was_saved_after_the_latest_result_is_left_too(tmp_path: Path) -> None:
    """As by an iteration that could not be completed."""
    with config(tmp_path).build() as algo:
        algo.train()
        first = algo.save()
        algo._record.iteration += 1
        later = Path(algo.save())
        algo.restore(first)
        algo.train()
        assert saved(tmp_path) == ["checkpoint_000001"]
        assert algo._recorder.latest_checkpoint == Path(first)
        with pytest.raises(CheckpointError, match=r"renamed to .*set_aside_checkpoint_000002 when"):
            algo.restore(later)


def test_as_many_checkpoints_are_set_aside_as_are_kept(tmp_path: Path) -> None:
    with config(tmp_path, max_to_keep=2).build() as algo:
        algo.train()
        first = algo.save()
        for _ in range(4):
            algo.train()
            algo.save()
            algo.restore(first)
        algo.train()
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert len([name for name in names if name.startswith("set_aside")]) == 2
    assert saved(tmp_path) == ["checkpoint_000001"]


def test_a_run_that_goes_forward_again_keeps_all(tmp_path: Path) -> None:
    with config(tmp_path, checkpoint_frequency=1, max_to_keep=None).build() as algo:
        algo.fit({"training_iteration": 3})
        checkpoints = Path(algo.run_dir) / "checkpoints"
        algo.restore(checkpoints / "checkpoint_000001")
        algo.restore(checkpoints / "checkpoint_000003")
        algo.train()
        algo.save()
    assert saved(tmp_path) == [f"checkpoint_{i:06d}" for i in range(1, 5)]
    assert iterations_of(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_whatever_an_environment_logs_as_an_item_is_saved(tmp_path: Path, placement: str) -> None:
    def log(*, metrics_logger: Any, **_: Any) -> None:
        metrics_logger.log_value("version", np.int64(3), reduce="item")
        metrics_logger.log_value("sizes", np.arange(2), reduce="item")

    logging = config(tmp_path).env_runners(placement=placement)
    with logging.callbacks(on_environment_created=log).build() as algo:
        path = algo.save()
    with Algorithm.from_checkpoint(path, on_environment_created=None) as again:
        assert again.iteration == 0


def test_whatever_functions_put_into_results_is_saved_as_it_can_be_loaded(tmp_path: Path) -> None:
    def evaluate(algorithm: Any, workers: Any) -> dict[str, Any]:
        del algorithm, workers
        stats = {"episode_return_mean": {"a": 1.0}, "episode_len_mean": 3.0, "mine": [1.0]}
        return {"env_runners": stats, "training_iteration": -1}

    def spoil(*, result: dict[str, Any], **_: Any) -> None:
        result.pop("num_env_steps_sampled_lifetime")
        result["training_iteration"] = "first"
        result["env_runners"]["episode_return_mean"] = "high"
        result["large"] = 10**400

    odd = config(tmp_path).evaluation(evaluation_interval=1, custom_evaluation_function=evaluate)
    with odd.callbacks(on_train_result=spoil).debugging(loggers=[]).build() as algo:
        algo.train()
        path = algo.save()
    settings = {"custom_evaluation_function": None, "on_train_result": None}
    with Algorithm.from_checkpoint(path, **settings) as again:
        last = again.last_result
        assert (last["training_iteration"], last["num_env_steps_sampled_lifetime"]) == (1, 32)
        assert math.isnan(last["env_runners"]["episode_return_mean"])
        assert again.train()["training_iteration"] == 2


def test_a_state_that_is_lost_is_told_of_with_the_latest_checkpoint(tmp_path: Path) -> None:
    algo = config(tmp_path, checkpoint_frequency=2).build()

    def in_a_dispatch(result: dict[str, Any]) -> None:
        if result["training_iteration"] == 3:
            for leaf in jax.tree.leaves(algo.state):
                leaf.delete()
            raise KeyboardInterrupt

    with algo, pytest.raises(KeyboardInterrupt) as caught:
        algo.fit({"training_iteration": 9}, on_iteration=in_a_dispatch)
    (note,) = caught.value.__notes__
    assert note.startswith("The run could not be saved after this error (RuntimeError: Array has")
    assert note.endswith("checkpoint_000002.")
    with Algorithm.from_checkpoint(tmp_path / "run") as again:
        assert again.iteration == 2


def test_who_wants_no_checkpoints_gets_none(tmp_path: Path) -> None:
    never = config(tmp_path, checkpoint_at_end=False)
    with never.build() as algo, pytest.raises(KeyboardInterrupt):
        algo.fit({"training_iteration": 9}, on_iteration=raise_at(2, KeyboardInterrupt()))
    assert saved(tmp_path) == []


def test_fit_looks_at_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(recorder, "SaveSchedule", lambda settings: SaveSchedule(settings, clock))
    monkeypatch.setattr("jaxrl.algorithm.SaveSchedule", recorder.SaveSchedule)

    def later(result: dict[str, Any]) -> None:
        clock.now += 200.0

    with config(tmp_path).build() as algo:
        algo.fit({"training_iteration": 5}, on_iteration=later)
    assert saved(tmp_path) == ["checkpoint_000002", "checkpoint_000004", "checkpoint_000005"]


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # lanes' keys are batched, which its checker takes for a reuse
def test_a_sweep_is_saved_with_all_lanes_at_one_iteration(tmp_path: Path) -> None:
    sweep = config(tmp_path).sweep(seeds=2).build()
    assert isinstance(sweep, Population)
    runs = sweep._runs  # pyright: ignore[reportPrivateUsage]
    train = runs[1].train

    def interrupted() -> Any:  # after the first lane has finished its third iteration
        if runs[1].algorithm.iteration == 2:
            raise KeyboardInterrupt
        return train()

    runs[1].train = interrupted
    with sweep, pytest.raises(KeyboardInterrupt) as caught:
        sweep.fit({"training_iteration": 9})
    assert caught.value.__notes__ == [f"The sweep is saved in {tmp_path / 'run'}."]
    with Population.from_checkpoint(tmp_path / "run") as again:
        assert again.iteration == 2
        assert again.train()["training_iteration"] == 3


def test_what_cannot_be_closed_does_not_hide_the_error(tmp_path: Path) -> None:
    algo = config(tmp_path).build()

    def stop() -> None:
        raise OSError(28, "No space left on device")

    algo.stop, stopped = stop, algo.stop
    with pytest.raises(ValueError, match="the error itself") as caught, algo:
        raise ValueError("the error itself")
    assert caught.value.__notes__ == [
        "Closing the run failed as well (OSError: [Errno 28] No space left on device)."
    ]
    with pytest.raises(OSError, match="No space left"), algo:
        pass
    stopped()
