"""A sweep that ended, or was killed, goes on as a whole and to the bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Population, PopulationBasedTraining, grid, loguniform
from jaxrl.core.struct import replace
from jaxrl.errors import CheckpointError
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import Recorder
from jaxrl.runs.checkpoint import find_checkpoint, list_checkpoints
from jaxrl.sweeps.state import list_lanes, set_aside_later
from tests.helpers import assert_equal, small

pytestmark = pytest.mark.allow_key_reuse

TIMES = ("time", "date", "per_second", "pid", "timers", "compile", "system")


def swept(algo: str = "PPO", scheduler: bool = True, **settings: Any) -> Any:
    config = small(algo, lr=grid([1e-2, 1e-3]), **settings).sweep(seeds=2)
    if scheduler:
        mutations = {"lr": loguniform(1e-4, 1e-1)}
        config.sweep(
            scheduler=PopulationBasedTraining(
                hyperparam_mutations=mutations, perturbation_interval=2
            )
        )
    config.reporting(min_sample_timesteps_per_iteration=512)
    return config.fault_tolerance(nonfinite_updates_tolerance=4)


def population(config: Any) -> Population:
    made: Any = config.build()
    assert isinstance(made, Population)
    return made


def states_of(sweep: Population) -> list[dict[str, np.ndarray]]:
    return [
        sweep._runs[index].algorithm.get_state()["train_state"] for index in sweep.active_indices
    ]


def lasting(result: Any) -> Any:
    if not isinstance(result, dict):
        return result
    kept = {k: v for k, v in result.items() if not any(word in str(k) for word in TIMES)}
    return {key: lasting(value) for key, value in kept.items()}


def diverge(sweep: Population, index: int) -> None:
    run = sweep._runs[index].algorithm
    broken = jax.tree.map(lambda x: x * np.nan, run.state.learner.sgd.params)
    learner = replace(run.state.learner, sgd=replace(run.state.learner.sgd, params=broken))
    run.state = replace(
        run.state, learner=learner, guard=replace(run.state.guard, snapshot=learner)
    )


@pytest.mark.parametrize("algo", ["PPO", pytest.param("DQN", marks=pytest.mark.slow)])
def test_two_and_two_iterations_are_four(algo: str, tmp_path: Path) -> None:
    with population(swept(algo)) as whole:
        for _ in range(2):
            whole.train()
        # Saved between two rounds of the scheduler, one of which is yet to come.
        whole.save()
        shutil.copytree(whole.folder.path, tmp_path / "copy")
        for _ in range(3):
            want = whole.train()
        states, schedule = states_of(whole), whole.schedule
    assert {x.training_iteration for x in schedule} == {2, 4}
    with (
        RunFolder.open(tmp_path / "copy") as folder,
        Population.from_checkpoint(folder.path, run_folder=folder) as resumed,
    ):
        assert resumed.iteration == 2
        for _ in range(3):
            got = resumed.train()
        assert lasting(got) == lasting(want)
        assert resumed.schedule == schedule
        for own, other in zip(states_of(resumed), states, strict=True):
            assert own.keys() == other.keys()
            for name, leaf in own.items():
                assert leaf.tobytes() == other[name].tobytes(), name
    rows = (tmp_path / "copy" / "lane_001" / "result.json").read_text().splitlines()
    assert [json.loads(row)["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_where_all_lanes_were(tmp_path: Path) -> None:
    config = swept().checkpointing(checkpoint_frequency=1, checkpoint_at_end=False, max_to_keep=1)
    with population(config) as sweep:
        sweep.fit({"training_iteration": 2})
        folder = sweep.folder.path
        assert not (folder / "checkpoints").exists()
        sweep.train()
        assert [x.training_iteration for x in sweep.schedule] == [2]
        for index in (0, 1):  # killed while the next checkpoints are written
            sweep._runs[index].algorithm.save()
    shutil.rmtree(folder / "lane_003" / "plots", ignore_errors=True)
    with (
        RunFolder.open(folder) as run_folder,
        Population.from_checkpoint(folder, run_folder=run_folder) as sweep,
    ):
        assert sweep.iteration == 2
        assert {run.algorithm.iteration for run in sweep._runs} == {2}
        newest = {list_checkpoints(folder / f"lane_00{i}" / "checkpoints")[-1] for i in range(4)}
        assert {path.name for path in newest} == {"checkpoint_000002"}
        assert sweep.schedule == []
        assert sweep.folder.stop_criterion == {"training_iteration": 2.0}
        assert sweep._runs[3].algorithm.run_folder.stop_criterion == {"training_iteration": 2.0}
        result = sweep.fit({"training_iteration": 2})  # reached before
        assert result["training_iteration"] == sweep.iteration == 2
        sweep.fit({"training_iteration": 5})
        assert sweep.iteration == 5
    for index in range(4):
        lane = folder / f"lane_{index:03d}"
        rows = (lane / "result.json").read_text().splitlines()
        assert [json.loads(row)["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]
        (newest, *others) = [p.name for p in list_checkpoints(lane / "checkpoints")][::-1]
        assert newest == "checkpoint_000005"
        assert others in ([], ["checkpoint_000004"])


@pytest.mark.slow
def test_lanes_that_diverged_stay_left_behind(tmp_path: Path) -> None:
    with population(swept(scheduler=False)) as sweep:
        sweep.train()
        diverge(sweep, 0)
        sweep.train()
        assert set(sweep.diverged) == {0}
        sweep.train()
        folder = sweep.save()
        why = sweep.diverged[0]
        sweep.train()
        want = states_of(sweep)
    with Population.from_checkpoint(folder) as resumed:
        assert str(resumed.folder.path) != folder
        assert resumed.diverged == {0: why}
        assert resumed.active_indices == [1, 2, 3]
        assert set(resumed.train()["lanes"]) == {1, 2, 3}
        for own, other in zip(states_of(resumed), want, strict=True):
            for name, leaf in own.items():
                assert leaf.tobytes() == other[name].tobytes(), name


@pytest.mark.slow
def test_a_sweep_whose_folder_is_removed_can_still_be_resumed() -> None:
    with population(small().sweep(seeds=2)) as sweep:
        sweep.train()
        folder = sweep.folder.path
        shutil.rmtree(folder)
        sweep.train()
        sweep.save()
        want = states_of(sweep)
    with Population.from_checkpoint(folder) as resumed:
        assert resumed.iteration == 2
        for got, state in zip(states_of(resumed), want, strict=True):
            assert_equal(got, state)


@pytest.mark.slow
def test_settings_that_are_given_are_not_restored() -> None:
    with population(swept(scheduler=False)) as sweep:
        sweep.train()
        folder = sweep.save()
    with Population.from_checkpoint(folder, entropy_coeff=0.5) as resumed:
        for run, lane in zip(resumed._runs, resumed.lanes, strict=True):
            assert run.algorithm.config.entropy_coeff == 0.5
            assert float(run.algorithm.state.learner.hparams["entropy_coeff"]) == 0.5
            assert float(run.algorithm.state.learner.hparams["lr"]) == pytest.approx(
                lane.values["lr"]
            )
    with pytest.raises(CheckpointError, match="cannot be set: the lanes"):
        Population.from_checkpoint(folder, lr=0.1)


def test_a_lane_that_was_resumed_by_itself_loses_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither those that the sweep continues from, nor those of its own."""
    (tmp_path / "sweep.json").write_text('{"training_iteration": 1}')
    config = small().debugging(results_dir=str(tmp_path), run_name="lane_000")
    recorder = Recorder(config.checkpointing(max_to_keep=1), RunFolder.create(config))
    for iteration in (1, 2, 3):
        recorder.save(iteration, {"a": np.zeros(1)}, {}, {}, None, wait=True)
    recorder.close()
    folder = tmp_path / "lane_000" / "checkpoints"
    assert [path.name[-1] for path in list_checkpoints(folder)] == ["1", "3"]
    set_aside_later([tmp_path / "lane_000"], 1)
    assert "set_aside_checkpoint_000003" in caplog.text
    assert {path.name for path in folder.iterdir()} == {
        "checkpoint_000001",
        "set_aside_checkpoint_000003",
    }


def test_what_is_no_saved_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no saved sweep: sweep\.json"):
        Population.from_checkpoint(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        Population.from_checkpoint(tmp_path)
    (tmp_path / "sweep.json").write_text('{"sweep_version": 9}')
    with pytest.raises(CheckpointError, match="version 9"):
        Population.from_checkpoint(tmp_path)
    config = swept(scheduler=False)
    with population(config) as sweep:
        folder = Path(sweep.save())
    with pytest.raises(CheckpointError, match=r"is one run of the sweep .*Algorithm\.from"):
        Population.from_checkpoint(folder / "lane_001")
    with pytest.raises(CheckpointError, match=r"is a sweep of several runs: Population\.from"):
        find_checkpoint(folder)
    with RunFolder.create(small().debugging(results_dir=str(folder), run_name="lane_001")) as run:
        assert run.path.name == "lane_001_2"  # of a run that began from the lane
    assert [path.name for path in list_lanes(folder)] == [f"lane_00{i}" for i in range(4)]
    shutil.rmtree(folder / "lane_002" / "checkpoints")
    with pytest.raises(CheckpointError, match="lane_002 has no checkpoint of iteration 0"):
        Population.from_checkpoint(folder)
