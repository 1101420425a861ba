"""Runs from the command line, end to end: trained, killed, resumed, evaluated."""

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
from typer.testing import CliRunner, Result

from jaxrl import BCConfig, PPOConfig
from jaxrl.cli.app import app
from jaxrl.cli.terminal import Interrupts
from jaxrl.cli.training import format_points
from jaxrl.loggers import RunFolder
from jaxrl.loggers.display import RunStatus
from jaxrl.loggers.plots import draw_learning_curve
from jaxrl.sweeps.points import SweepPoint
from tests.helpers import slow_but
from tests.recorded_data import write_data

SMALL = {
    "num_envs_per_env_runner": 8,
    "train_batch_size": 128,
    "minibatch_size": 64,
    "num_epochs": 1,
    "num_devices": 1,
    "model_config": {"fcnet_hiddens": [8]},
    "evaluation_duration": 3,
    "evaluation_interval": 2,
}
TRAIN = ("train", "--algo", "PPO", "--env", "CartPole-v1", "--config", json.dumps(SMALL))


def jaxrl(*args: object) -> Result:
    return CliRunner().invoke(app, [*map(str, args)], prog_name="jaxrl", catch_exceptions=False)


def iterations(run: Path) -> list[int]:
    lines = (run / "result.json").read_text().splitlines()
    return [json.loads(line)["training_iteration"] for line in lines]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished run and what was printed; tests do not change it."""
    results = tmp_path_factory.mktemp("results")
    stop = json.dumps({"training_iteration": 4})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["a_program"])  # else python -m, where pytest was started so
        done = jaxrl(
            *TRAIN, "--stop", stop, "--name", "my run", "--results-dir", results, "--seed", 3
        )
    assert done.exit_code == 0, done.output
    return results / "my run", done


def test_a_run_leaves_everything_behind(trained: tuple[Path, Result]) -> None:
    run, _ = trained
    assert iterations(run) == [1, 2, 3, 4]
    with (run / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["num_env_steps_sampled_lifetime"] for row in rows] == ["128", "256", "384", "512"]
    assert rows[0]["evaluation/env_runners/episode_return_mean"] == ""
    assert float(rows[1]["evaluation/env_runners/episode_return_mean"]) > 0
    settings = json.loads((run / "params.json").read_text())["settings"]
    assert settings["train_batch_size"] == 128
    assert settings["seed"] == 3
    assert json.loads((run / "run.json").read_text())["stop"] == {"training_iteration": 4}
    assert list(run.glob("events.out.tfevents.*"))
    assert (run / "plots" / "learning_curve.png").stat().st_size > 1000
    assert (run / "checkpoints" / "checkpoint_000004").is_dir()


def test_the_output_says_what_happened_and_what_to_do_next(trained: tuple[Path, Result]) -> None:
    run, done = trained
    lines = done.output.splitlines()
    assert lines[0] == "PPO on CartPole-v1"
    assert any("CartPole-v1: jaxrl's own JAX implementation" in line for line in lines[:6])
    assert any(line.startswith("compiling") for line in lines)
    assert any(re.fullmatch(r"compiled in .*", line) for line in lines)
    assert len([line for line in lines if line.startswith("iteration ")]) >= 2
    last = dict(re.split(r"  +", line, maxsplit=1) for line in lines[-6:] if line[0] != " ")
    assert float(last["evaluated return"].split()[0]) > 0
    assert last["run folder"] == str(run)
    assert last["learning curve"] == f"{run}/plots/learning_curve.png"
    assert last["checkpoint"] == f"{run}/checkpoints/checkpoint_000004"
    assert shlex.split(last["evaluate it with"]) == ["jaxrl", "evaluate", last["checkpoint"]]


def test_evaluate_takes_a_checkpoint_or_a_run_and_changes_nothing(
    trained: tuple[Path, Result],
) -> None:
    run, _ = trained
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    printed: list[list[str]] = []
    for path in (run, run / "checkpoints" / "checkpoint_000004"):
        done = jaxrl("evaluate", path, "--episodes", 5)
        assert done.exit_code == 0, done.output
        printed.append(done.output.splitlines())
    assert printed[0] == printed[1]
    first, second, third = printed[0]
    assert re.fullmatch(r"evaluated return  [\d.]+ on average  std .*  min .*  max .*", first)
    assert re.fullmatch(r" +over 5 episodes of [\d.]+ steps on average", second)
    assert third.endswith("checkpoint_000004")
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert after == before
    assert [path.name for path in run.parent.iterdir()] == [run.name]


@pytest.mark.slow
def test_evaluate_writes_a_video_into_the_run(trained: tuple[Path, Result], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained[0], run)
    done = jaxrl("evaluate", run, "--episodes", 1, "--video")
    assert done.exit_code == 0, done.output
    (video,) = (run / "videos").iterdir()
    assert video.name == "iteration_000004_episode_1.mp4"
    assert f"video             {video}" in done.output.splitlines()
    length = re.search(r"of (\d+) steps", done.output)
    assert length is not None
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(video))
    assert count == int(length[1]) + 1
    assert seconds == pytest.approx((int(length[1]) + 1) / 50, abs=0.05)
    alone = tmp_path / "alone"
    shutil.copytree(run / "checkpoints" / "checkpoint_000004", alone / "checkpoint_000004")
    assert jaxrl("evaluate", alone / "checkpoint_000004", "--video").exit_code == 0
    assert [path.name for path in (alone / "videos").iterdir()] == [video.name]


def test_resume_of_a_finished_run_is_refused_with_what_to_say(
    trained: tuple[Path, Result],
) -> None:
    done = jaxrl("resume", trained[0])
    assert done.exit_code == 2
    assert "training_iteration = 4 has reached 4" in done.stderr
    assert "--stop" in done.stderr
    assert done.stderr.count("\n") == 1


def test_steps_of_environments_do_not_end_a_run_on_recorded_data(tmp_path: Path) -> None:
    config = BCConfig().offline_data(
        input_=write_data(tmp_path / "data"), num_updates_per_iteration=2
    )
    config.training(train_batch_size=8).rl_module(model_config={"fcnet_hiddens": [4]})
    config.debugging(results_dir=str(tmp_path), run_name="mine", loggers=["json"])
    with config.build() as algorithm:
        algorithm.fit({"training_iteration": 1})
    refused = jaxrl("resume", tmp_path / "mine", "--steps", "900")
    assert refused.exit_code == 2
    assert "--steps 900 counts environment steps" in refused.output
    done = jaxrl("resume", tmp_path / "mine", "--stop", '{"num_env_steps_trained_lifetime": 32}')
    assert done.exit_code == 0, done.output
    assert iterations(tmp_path / "mine") == [1, 2]


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_a_run_that_ended_before_its_first_checkpoint(command: str, tmp_path: Path) -> None:
    with RunFolder.make("early", {}, results_dir=tmp_path) as folder:
        folder.save_stop_criterion({"training_iteration": 3})
    done = jaxrl(command, tmp_path / "early")
    assert done.exit_code == 2
    assert "early has no checkpoint yet: the run ended before the first was saved" in done.stderr


def test_a_run_that_is_interrupted_in_its_last_iteration_is_not_said_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop, said in ((1, "evaluate it with"), (2, "resume with")):
        written = tmp_path / f"until {stop}" / "result.json"
        monkeypatch.setattr(Interrupts, "requested", property(lambda _, at=written: at.exists()))
        options = ("--stop", json.dumps({"training_iteration": stop}), "--name", f"until {stop}")
        done = jaxrl(*TRAIN, *options, "--results-dir", tmp_path)
        assert iterations(tmp_path / f"until {stop}") == [1]
        assert done.output.splitlines()[-1].startswith(said)


@pytest.fixture(
    params=slow_but(signal.SIGTERM, of=[signal.SIGTERM, signal.SIGHUP]),
    ids=lambda number: number.name,
)
def interrupted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run that a signal ended in order, after its second iteration or later."""
    number: signal.Signals = request.param
    stop = json.dumps({"training_iteration": 100_000})
    command = [sys.executable, "-m", "jaxrl.cli", *TRAIN, "--stop", stop]
    process = subprocess.Popen(
        [*command, "--name", "killed", "--results-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = tmp_path / "killed"
    try:
        _wait_for(process, lambda: (run / "result.json").exists() and len(iterations(run)) >= 2)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert f"{number.name}: saving" in out
    words, told = out.splitlines()[-1].split("  ", 1)
    assert (words, shlex.split(told)[-3:]) == ("resume with", ["jaxrl", "resume", str(run)])
    return run


BREAKS = """
import sys
import gymnasium, numpy as np

class Breaks(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Breaks.steps += 1
        if Breaks.steps == 1000:
            END
        return np.zeros(2, np.float32), 1.0, Breaks.steps % 10 == 0, False, {}

gymnasium.register("Breaks-v0", Breaks)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise RuntimeError('motor 3 is hot')", "RuntimeError: motor 3 is hot"),
        ("sys.exit(3)", "SystemExit: 3"),
    ],
    ids=["raises", "exits"],
)
def test_a_run_whose_environment_fails_is_saved_and_says_where(
    end: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS.replace("END", end))
    settings = json.dumps({**SMALL, "evaluation_interval": None})
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl", "train", "--algo", "PPO", "--env", "breaks:Breaks-v0",
         "--config", settings, "--results-dir", str(tmp_path), "--name", "broken"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    (saved,) = (tmp_path / "broken" / "checkpoints").glob("checkpoint_*")
    assert f"The run is saved in {saved}." in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert iterations(tmp_path / "broken") == list(range(1, int(saved.name[-6:]) + 1))


def test_an_error_comes_before_words_on_a_missing_stop(tmp_path: Path) -> None:
    done = jaxrl(*TRAIN, "--set", "train_batch_size=7", "--results-dir", tmp_path)
    assert done.exit_code == 2
    assert "no stop criterion" not in done.output
    assert done.stderr.count("\n") == 1


def test_a_resumed_run_is_shown_from_its_last_figures_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(RunStatus, "resume_from", lambda _, result: begun.append(result))
    place = ("--name", "shown", "--results-dir", tmp_path)
    done = jaxrl(*TRAIN, *place, "--stop", json.dumps({"training_iteration": 2}))
    assert done.exit_code == 0, done.output
    done = jaxrl("resume", tmp_path / "shown", "--stop", json.dumps({"training_iteration": 3}))
    assert done.exit_code == 0, done.output
    assert [result.get("training_iteration") for result in begun] == [None, 2]


def _wait_for(process: subprocess.Popen[str], ready: Any) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run does not get going"
        time.sleep(0.05)


def test_a_terminated_run_is_resumed_where_it_was(interrupted: Path) -> None:
    run = interrupted
    done_so_far = iterations(run)
    reached = len(done_so_far)
    assert done_so_far == list(range(1, reached + 1))
    saved = sorted((run / "checkpoints").glob("checkpoint_*"))
    assert saved[-1].name == f"checkpoint_{reached:06d}"  # the last iteration is in it
    with (run / "result.json").open("a") as file:  # as a kill without warning would leave it
        file.write(json.dumps({"training_iteration": reached + 1}) + '\n{"training_it')
    stop = json.dumps({"training_iteration": reached + 2})
    done = jaxrl("resume", run, "--stop", stop)
    assert done.exit_code == 0, done.output
    assert iterations(run) == list(range(1, reached + 3))
    rows = [json.loads(line) for line in (run / "result.json").read_text().splitlines()]
    assert [row["num_env_steps_sampled_lifetime"] for row in rows] == [
        128 * i for i in range(1, reached + 3)
    ]
    assert rows[-1]["time_total_s"] > rows[reached - 1]["time_total_s"]
    assert [path.name for path in run.parent.iterdir()] == ["killed"]
    folder = RunFolder.open(run)  # given back by the resumed run
    assert folder.stop_criterion == {"training_iteration": reached + 2}
    assert draw_learning_curve(folder) is not None
    folder.close()


def test_a_run_from_python_is_resumed_too_once_it_has_a_criterion(tmp_path: Path) -> None:
    config = PPOConfig().environment("CartPole-v1").update_from_dict(SMALL)
    config.debugging(run_name="api", results_dir=str(tmp_path), loggers=["console", "json"])
    with config.build() as algo:
        algo.train()
        algo.save()
    refused = jaxrl("resume", tmp_path / "api")
    assert refused.exit_code == 2
    assert "has no stop criterion" in refused.stderr
    done = jaxrl("resume", tmp_path / "api", "--stop", json.dumps({"training_iteration": 2}))
    assert done.exit_code == 0, done.output
    assert iterations(tmp_path / "api") == [1, 2]
    printed = [line.split("  ")[0] for line in done.output.splitlines()]
    assert printed.count("iteration 2") == 1  # the display, and not the console sink beside it


SWEEP = {
    "run": "PPO",
    "env": "CartPole-v1",
    "stop": {"training_iteration": 2},
    "config": SMALL,
    "sweep": {"lr": [1e-2, 1e-9]},
}


def test_a_table_that_is_piped_is_whole_and_shows_brackets() -> None:
    values = {f"replay_buffer_config.{name}": "a[b]c" for name in ("alpha", "beta", "capacity")}
    point = SweepPoint.from_scores(0, {**values, "sizes": [256, 256]}, (0, 1), [1.0, 2.0])
    wide = SweepPoint.from_scores(1, point.values, (2, 3, 4), [3.0, 3.0, 3.0])
    head, row, last = format_points([point, wide])
    assert head.split()[1:5] == [*values, "sizes"]
    assert row.split() == ["0", *["a[b]c"] * 3, "[256,", "256]", "2", "1.5", "-"]
    assert last.split()[-5:] == ["3", "3", "3", "-", "3"]


@pytest.mark.allow_key_reuse  # taken for that of vmapped runs
def test_a_sweep_is_trained_as_lanes_and_ends_with_a_table(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps({"rates": SWEEP}))  # JSON is YAML
    done = jaxrl(
        "train", "file", file, "--seeds", 2, "--seed", 4, "--results-dir", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    assert "4 lanes in 1 program." in done.output
    assert re.search(r"point +lr +lanes +return \(IQM\) +95 % interval", done.output)
    assert re.search(r"best point +lr=", done.output)
    folder = tmp_path / "out" / "rates"
    assert f"sweep folder      {folder}" in done.output
    for lane, (rate, seed) in enumerate([(1e-2, 4), (1e-2, 5), (1e-9, 4), (1e-9, 5)]):
        run = folder / f"lane_{lane:03d}"
        assert iterations(run) == [1, 2]
        settings = json.loads((run / "params.json").read_text())["settings"]
        assert (settings["lr"], settings["seed"]) == (rate, seed)
    done = jaxrl("resume", folder)
    assert done.exit_code == 2
    assert "rates is done: training_iteration = 2 has reached 2" in done.stderr


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_a_sweep_is_resumed_and_its_lanes_are_evaluated(tmp_path: Path) -> None:
    file, folder = tmp_path / "sweep.yaml", tmp_path / "out" / "rates"
    file.write_text(json.dumps({"rates": SWEEP}))
    done = jaxrl("train", "file", file, "--seeds", 2, "--results-dir", folder.parent)
    assert done.exit_code == 0, done.output
    evaluated = jaxrl("evaluate", folder / "lane_002", "--episodes", 2)
    assert "over 2 episodes" in evaluated.output
    for command in ("evaluate", "league"):
        refused = jaxrl(command, folder)
        assert refused.exit_code == 2
        assert f"is a sweep of several runs: name one of its lanes, such as {folder}" in " ".join(
            refused.stderr.split()
        )
    done = jaxrl("resume", folder, "--stop", '{"training_iteration": 3}')
    assert done.exit_code == 0, done.output
    assert "rates, from iteration 2" in done.output
    assert re.search(r"best point +lr=", done.output)
    assert [iterations(folder / f"lane_{lane:03d}") for lane in range(4)] == [[1, 2, 3]] * 4


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # taken for that of vmapped runs
def test_population_based_training_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    scheduler = {
        "hyperparam_mutations": {"lr": {"loguniform": [1e-5, 1e-2]}},
        "perturbation_interval": 1,
    }
    body = {
        "run": "PPO",
        "env": "CartPole-v1",
        "stop": {"training_iteration": 3},
        "config": {**SMALL, "min_sample_timesteps_per_iteration": 512},
        "checkpoint_at_end": False,
        "sweep": {"num_samples": 4, "scheduler": scheduler},
    }
    file.write_text(json.dumps({"pbt": body}))
    done = jaxrl("train", "file", file, "--results-dir", tmp_path)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "pbt"
    assert f"schedule          {folder / 'pbt.jsonl'}" in done.output
    rows = [json.loads(line) for line in (folder / "pbt.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2]
    assert json.loads((folder / "sweep.json").read_text())["training_iteration"] == 3


def trained_by_the_way(tmp_path: Path, stop: int = 4) -> Path:
    """A run with a checkpoint of each iteration."""
    done = jaxrl(
        *TRAIN, "--stop", json.dumps({"training_iteration": stop}), "--checkpoint-freq", 1,
        "--name", "run", "--results-dir", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return tmp_path / "run"


def test_the_way_round_a_damaged_checkpoint_is_the_one_that_is_named(tmp_path: Path) -> None:
    run = trained_by_the_way(tmp_path)
    file = run / "checkpoints" / "checkpoint_000004" / "metadata" / "metadata"
    file.write_bytes(file.read_bytes().replace(b'"gamma": 0.99', b'"gamma": 0.19'))
    later = ("--stop", json.dumps({"training_iteration": 5}))
    for command in (("resume", run, *later), ("evaluate", run)):
        refused = jaxrl(*command)
        assert refused.exit_code == 2
        assert "its file metadata/metadata was changed" in refused.output
    named = re.search(r"The previous one is (\S+),", refused.output)
    assert named is not None
    assert named[1] == str(run / "checkpoints" / "checkpoint_000003")
    done = jaxrl("resume", named[1], *later)
    assert done.exit_code == 0, done.output
    assert iterations(run) == [1, 2, 3, 4, 5]
    saved = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert saved == [
        "checkpoint_000003",
        "checkpoint_000004",
        "checkpoint_000005",
        "set_aside_checkpoint_000004",
    ]
    lines = (run / "result.json").read_text().splitlines()
    assert [json.loads(line)["num_env_steps_sampled_lifetime"] for line in lines[2:]] == [
        384,
        512,
        640,
    ]
    copied = shutil.copytree(named[1], tmp_path / "elsewhere" / "checkpoint_000003")
    refused = jaxrl("resume", copied, *later)
    assert refused.exit_code == 2
    assert "is a checkpoint outside of a run folder" in refused.output


@pytest.mark.parametrize(
    "text",
    ['{"id": "x", "stop": [1]}', '{"id": 1, "stop": 5}', "[", '{"id": "x", "stop": {"a": "b"}}'],
)
def test_a_damaged_run_file_is_one_sentence(
    text: str, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    (run / "run.json").write_text(text)
    refused = jaxrl("resume", run)
    assert refused.exit_code == 2
    assert len(refused.output.splitlines()) == 1
    assert "run.json" in refused.output


def test_a_strangers_run_imports_what_is_trusted_and_no_more(
    trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An own environment: this user's run goes on as it is, another's says what it would import."""
    module = "environment_of_a_stranger"
    (tmp_path / f"{module}.py").write_text(
        "import pathlib\n"
        "from jaxrl.envs.classic.cartpole import CartPole\n"
        "pathlib.Path(__file__).with_name('IMPORTED').touch()\n"
        "class Env(CartPole):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    stop = json.dumps({"training_iteration": 1})
    done = jaxrl(
        *("train", "--algo", "PPO", "--env", f"{module}:Env", "--config", json.dumps(SMALL)),
        *("--stop", stop, "--name", "run", "--results-dir", tmp_path),
    )
    assert done.exit_code == 0, done.output
    run = tmp_path / "run"

    def as_in_a_new_process() -> None:
        sys.modules.pop(module, None)
        (tmp_path / "IMPORTED").unlink(missing_ok=True)

    as_in_a_new_process()
    assert jaxrl("evaluate", run, "--episodes", 1).exit_code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    for command in (
        ("evaluate", run),
        ("resume", run, "--stop", '{"training_iteration": 2}'),
        ("compile-report", run),
    ):
        as_in_a_new_process()
        refused = jaxrl(*command)
        assert refused.exit_code == 2, command
        assert f"--trust {module}" in refused.output
        assert len(refused.output.splitlines()) == 1
        assert not (tmp_path / "IMPORTED").exists()
    trusted = jaxrl("evaluate", run, "--episodes", 1, "--trust", module)
    assert trusted.exit_code == 0, trusted.output
    assert (tmp_path / "IMPORTED").exists()
