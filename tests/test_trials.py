"""Sweeps over environments on the host: every lane is a trial of Ray Tune, in a folder of its own."""

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from typer.testing import CliRunner

from jaxrl import Population, PopulationBasedTraining, PPOConfig, Trials, grid, register_env
from jaxrl.cli.app import app
from jaxrl.config.sweep import make_lanes
from jaxrl.errors import CheckpointError, ConfigError, HostLanesError, UnknownNameError
from jaxrl.loggers import RunFolder
from jaxrl.runs.checkpoint import list_checkpoints
from jaxrl.runs.run_folder import parse_iteration
from tests.helpers import small

TUNE_WARNS = (
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
)


def swept(**settings: Any) -> Any:
    config = small("PPO", "gymnasium:CartPole-v1", lr=grid([1e-2, 1e-9]), **settings)
    return config.env_runners(num_envs_per_env_runner=4).sweep(seeds=1)


def test_a_sweep_on_the_host_is_trials_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), swept().build() as sweep:
        assert isinstance(sweep, Trials)
        assert "2 trials of Ray Tune" in caplog.text
        assert sweep.num_lanes == 2
        assert [lane.values["lr"] for lane in sweep.lanes] == [1e-2, 1e-9]
        assert "lane 1: seed 0, lr=1e-09" in sweep.explain()
        with pytest.raises(ConfigError, match="each at its own pace"):
            sweep.train()
        with pytest.raises(ConfigError, match="needs a stop criterion"):
            sweep.fit()
        with pytest.raises(UnknownNameError, match="no lane 2"):
            sweep.lane(2)
        with pytest.raises(UnknownNameError, match="No lane's latest result"):
            sweep.best_lane()


def test_a_population_of_them_cannot_be_made() -> None:
    with pytest.raises(HostLanesError, match=r"stepped by runners on the host.*config.build\(\)"):
        Population(swept())


def test_what_only_lanes_of_a_program_can_do_is_refused() -> None:
    scheduler = PopulationBasedTraining(hyperparam_mutations={"entropy_coeff": [0.0, 0.01]})
    with pytest.raises(ConfigError, match="a scheduler of Ray Tune"):
        swept().sweep(scheduler=scheduler).build()
    with pytest.raises(ConfigError, match="max_lanes_per_program=1 has no effect"):
        swept().sweep(max_lanes_per_program=1).build()


@pytest.mark.allow_key_reuse
def test_lanes_of_a_program_do_not_go_on_as_trials(tmp_path: Path) -> None:
    config = small(lr=grid([1e-2, 1e-3])).sweep(seeds=1)
    with config.build() as sweep:
        folder = Path(sweep.save())
    with (
        RunFolder.open(folder) as opened,
        pytest.raises(CheckpointError, match="use Population"),
    ):
        Trials.from_checkpoint(folder, run_folder=opened)


def broken_or_not(context: Any) -> Any:
    """An environment that only some processes can make."""
    if context["broken"]:
        raise ValueError("this copy is broken")
    return gymnasium.make("CartPole-v1")


def returns_of(folder: Path) -> list[Any]:
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    return [row["env_runners"].get("episode_return_mean") for row in rows]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestTrials:
    """With a real Ray Tune."""

    pytestmark = list(TUNE_WARNS)

    @pytest.mark.slow
    def test_trials_have_the_logs_that_other_runs_have(self) -> None:
        """Those of a default that is not given, but for the console."""
        config = PPOConfig().environment("gymnasium:CartPole-v1").training(lr=grid([1e-2, 1e-9]))
        config.training(train_batch_size=64, minibatch_size=64, num_epochs=1)
        config.rl_module(model_config={"fcnet_hiddens": [4]}).sweep(seeds=1)
        with config.build() as sweep:
            sweep.fit({"training_iteration": 1})
            names = {path.name.split(".")[0] for path in (sweep.folder.path / "lane_000").iterdir()}
        assert {"result", "progress", "events"} <= names

    @pytest.mark.slow
    def test_trials_are_the_runs_by_themselves_and_go_on(self) -> None:
        config = swept()
        heard: list[Any] = []
        with config.build() as sweep:
            result = sweep.fit({"training_iteration": 3}, on_iteration=heard.append)
            folder = sweep.folder.path
            assert set(result["lanes"]) == {0, 1}
            assert result["training_iteration"] == sweep.iteration == 3
            assert len(heard) == 6
            assert heard[0]["num_lanes"] == 2
            assert {point.values["lr"] for point in sweep.points()} == {1e-2, 1e-9}
            assert sweep.best_lane("learners/default_policy/curr_lr") == 0
            with sweep.lane(1) as alone:
                assert (alone.iteration, alone.config.lr) == (3, 1e-9)
            evaluated = sweep.evaluate(num_episodes=2)
            assert evaluated.keys() == result.keys()
            assert set(evaluated["lanes"]) == {0, 1}
        for index, lane in enumerate(make_lanes(config)):
            with lane.config.build() as alone:
                want = [alone.train()["env_runners"].get("episode_return_mean") for _ in range(3)]
            assert returns_of(folder / sweep.format_lane_name(index)) == want

        resume = ["resume", str(folder)]
        done = CliRunner().invoke(app, [*resume, "--stop", '{"training_iteration": 4}'])
        assert done.exit_code == 0, done.output
        assert [len(returns_of(folder / f"lane_00{i}")) for i in range(2)] == [4, 4]
        done = CliRunner().invoke(app, resume)
        assert done.exit_code == 2
        assert "is done: training_iteration = 4 has reached 4" in done.output

        heard.clear()
        with RunFolder.open(folder) as opened:
            with pytest.raises(CheckpointError, match=r"lr=0\.1 cannot be set: the lanes of"):
                Trials.from_checkpoint(folder, run_folder=opened, lr=0.1)
            later = Trials.from_checkpoint(folder, run_folder=opened)
            assert later.iteration == 4
            later.fit(
                {"training_iteration": 10_000},
                on_iteration=heard.append,
                should_stop=lambda: len(heard) >= 4,
            )
            later.stop()
        for i, result in later._results.items():
            saved = list_checkpoints(folder / later.format_lane_name(i) / "checkpoints")
            assert parse_iteration(saved[-1]) == result["training_iteration"] < 10_000
        assert later.iteration >= 4

    @pytest.mark.slow
    def test_a_trial_that_fails_is_left_behind(self) -> None:
        register_env("breaks", broken_or_not)
        config = swept().environment("breaks", env_config={"broken": grid([False, True])})
        config.training(lr=1e-3)
        with config.build() as sweep:
            result = sweep.fit({"training_iteration": 1})
            assert set(result["lanes"]) == {0}
            assert set(result["diverged"]) == {1}
            assert "this copy is broken" in result["diverged"][1]
            assert "\n" not in result["diverged"][1]
            assert sweep.active_indices == [0]
            assert sweep.evaluate(num_episodes=1)["lanes"].keys() == {0}
