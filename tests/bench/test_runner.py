"""Suites run in processes of their own: outcomes, going on after a kill, reports, comparisons."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxrl import EpisodeWriter
from jaxrl.bench import runner
from jaxrl.bench.job import Curve, Job
from jaxrl.bench.peers import PeerError
from jaxrl.bench.suite import Suite, SuiteCell, load_suite
from jaxrl.bench.summary import compare_summaries, read_summary
from jaxrl.cli import benchmarks
from jaxrl.config.datasets import RECORD
from jaxrl.errors import ConfigError, RunFolderError
from tests.recorded_data import make_part

SUITE = """
name: tiny
about: One short run.
seeds: 3
episodes: 5
environments:
  CartPole-v1: {budget: 8_192, threshold: 30, low: 9, high: 500}
algorithms:
  PPO:
    settings:
      {num_envs_per_env_runner: 8, train_batch_size: 256, minibatch_size: 128, num_epochs: 2, lr: LR,
      custom_evaluation_function: "jaxrl.evaluation.trials:evaluate_trials"}  # in whose place the suite's counts
"""
PEER = """
import json, sys
from pathlib import Path
from jaxrl.bench.job import Curve, Job, report_progress
job = Job.read(sys.argv[1])
if Path(sys.argv[0]).stem.endswith("crash"):
    print("no such luck")
    sys.exit(3)
for seed in job.find_missing_seeds():
    curve = Curve([job.budget], [1.0], [2.0])
    report_progress(seed=seed, steps=job.budget, return_mean=1.0)
    job.write_outcome(seed, dict(evaluated=0.25, env_steps=job.budget, curve=curve.to_data(),
        seconds=2.0, compile_s=0.0, memory_gib=0.1, num_lanes=1, devices=["abacus"], versions={}))
"""


def suite_of(folder: Path, *, lr: float = 3e-3, more: str = "") -> Suite:
    path = folder / "suites" / "tiny.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SUITE.replace("LR", str(lr)) + more)
    return load_suite(path)


def peer(folder: Path, name: str) -> None:
    place = folder / "peers" / name
    place.mkdir(parents=True)
    (place / "peer.yaml").write_text(f"algorithms: [PPO]\nmodule: suites_peer_{name}\n")
    (folder.parent / f"suites_peer_{name}.py").write_text(PEER)


def told(suite: Suite, folder: Path) -> tuple[list[str], dict[str, str]]:
    notes: list[str] = []
    failures = runner.run_suite(suite, folder, lambda progress: notes.append(progress.note))
    return notes, failures


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a suite that has run."""
    root = tmp_path_factory.mktemp("finished")
    path = root / "suites" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(SUITE.replace("LR", "3e-3"))
    assert benchmarks.run(str(path), str(root / "out"), None) == 0
    return root


def test_every_seed_leaves_an_outcome(finished: Path) -> None:
    summary = read_summary(finished / "out")
    (cell,) = summary["cells"]
    assert sorted(cell["returns"]) == ["0", "1", "2"]
    assert cell["num_lanes"] == 3
    assert cell["curve"]["steps"][-1] == 8_192
    assert cell["steps_per_second"] > 0
    assert cell["compile_s"] > 0
    assert cell["memory_gib"] > 0.1
    assert cell["learned"] in ("yes", "no", "undecided")
    assert summary["machine"]["devices"] == ["cpu"]
    assert summary["machine"]["versions"]["jax"]


def test_a_second_call_runs_nothing(finished: Path) -> None:
    suite = load_suite(finished / "suites" / "tiny.yaml")
    begin = time.perf_counter()
    notes, failures = told(suite, finished / "out")
    assert (notes, failures) == (["already done"], {})
    assert time.perf_counter() - begin < 60.0


def test_other_settings_run_anew(finished: Path, tmp_path: Path) -> None:
    suite = suite_of(tmp_path, lr=1e-9)
    assert suite.make_job(suite.cells[0], finished / "out").find_missing_seeds() == [0, 1, 2]


def test_the_page_stands_by_itself(finished: Path) -> None:
    page = (finished / "out" / "report.html").read_text()
    addresses: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in ("script", "link", "img")
            addresses.extend(v for k, v in attrs if k == "src" and v)

    Reader().feed(page)
    assert not addresses
    assert page.count("<svg") == 1
    assert "interquartile mean" in page
    assert "## CartPole-v1" in (finished / "out" / "report.md").read_text()


@pytest.mark.slow
def test_a_broken_learning_rate_is_a_regression(finished: Path, tmp_path: Path) -> None:
    suite_of(tmp_path, lr=1e-9)
    path = str(tmp_path / "suites" / "tiny.yaml")
    before = json.loads((finished / "out" / "summary.json").read_text())
    assert before["cells"][0]["return"]["low"] > 60
    code = benchmarks.run(path, str(tmp_path / "out"), str(finished / "out"))
    assert code == 1
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| **worse** |" in page
    assert benchmarks.run(path, str(tmp_path / "out"), str(tmp_path / "out")) == 0


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    text = SUITE.replace("LR", "3e-3").replace("8_192", "60_000")
    path = tmp_path / "suites" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(text)
    suite = load_suite(path)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "jaxrl.cli", "benchmark", str(path), "--out", str(out)]
    environment = {**os.environ, "JAXRL_BENCHMARK_SAVE_EVERY_S": "0"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    job = suite.make_job(suite.cells[0], out)
    saved = Path(job.folder) / "lanes.progress.json"
    sweep = Path(job.folder) / "lanes" / "sweep.json"
    deadline = time.monotonic() + 300
    while not sweep.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert job.find_missing_seeds() == [0, 1, 2]
    steps = json.loads(saved.read_text())["curves"]["0"]["steps"]
    assert 0 < steps[-1] < 60_000
    _, failures = told(suite, out)
    assert not failures
    outcome: Any = job.read_outcome(0)
    assert outcome["curve"]["steps"][: len(steps)] == steps
    assert outcome["curve"]["steps"][-1] >= 60_000
    assert sorted(set(outcome["curve"]["steps"])) == outcome["curve"]["steps"]
    assert len(outcome["resumed_at"]) == 1
    assert outcome["resumed_at"][0] >= 1


def leave_outcomes(job: Job) -> None:
    """Write the outcomes of a run that ends at 20, 21, and so on."""
    Path(job.folder).mkdir(parents=True)
    curve = Curve([job.budget], [1.0], [2.0])
    outcome = {"env_steps": job.budget, "curve": curve.to_data(), "seconds": 2.0, "num_lanes": 1}
    for seed in job.seeds:
        more = {"evaluated": 20.0 + seed, "compile_s": 0.0, "memory_gib": 0.1}
        job.write_outcome(seed, outcome | more)


def test_a_suite_of_two_seeds_runs_and_says_that_it_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suites" / "two.yaml"
    path.parent.mkdir()
    text = SUITE.replace("LR", "3e-3").replace("seeds: 3", "seeds: 2").replace("tiny", "two")
    path.write_text(text + "  Other: {algorithm: PPO}\n")
    monkeypatch.setattr(runner, "_run_cell", lambda suite, cell, job, *_: leave_outcomes(job))
    out = str(tmp_path / "out")
    assert benchmarks.run(str(path), out, None) == 0
    lines = capsys.readouterr().out.splitlines()
    said = "No verdict is possible with 2 seeds: intervals need at least 3."
    assert lines[0] == f"seeds             {said}"
    assert "best              CartPole-v1: no winner, undecided (2 runs)" in lines
    summary = tmp_path / "out" / "summary.json"
    better = json.loads(summary.read_text())
    for cell in better["cells"]:
        cell["returns"] = dict.fromkeys(cell["returns"], 500.0)
    (tmp_path / "better.json").write_text(json.dumps(better))
    assert benchmarks.run(str(path), out, str(tmp_path / "better.json")) == 0
    assert "undecided (2 runs) CartPole-v1--PPO" in capsys.readouterr().out


def test_an_interrupted_suite_leaves_a_report_of_what_it_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite_of(
        tmp_path,
        more="""
  PPO with another step size: {algorithm: PPO, settings: {lr: 0.1}}
  PPO without one: {algorithm: PPO, settings: {lr: 0.0}}
""",
    )

    def run_first(suite: Suite, cell: SuiteCell, job: Job, *_: object) -> None:
        if cell.entrant == "PPO with another step size":
            raise PeerError("exit code 3")
        if cell.entrant != "PPO":
            raise KeyboardInterrupt
        leave_outcomes(job)

    monkeypatch.setattr(runner, "_run_cell", run_first)
    with pytest.raises(KeyboardInterrupt):
        benchmarks.run(str(tmp_path / "suites" / "tiny.yaml"), str(tmp_path / "out"), None)
    text = (tmp_path / "out" / "report.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    for report in (text, page):
        assert "Not finished: PPO without one on CartPole-v1." in report
    assert "| PPO | 3 | 21 [18.5, 23.5]" in text
    assert "exit code 3" in text
    cells = read_summary(tmp_path / "out")["cells"]
    assert [len(cell["returns"]) for cell in cells] == [3, 0, 0]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        runner.lock_folder(tmp_path / "out") as folder,
        pytest.raises(RunFolderError, match="Another benchmark is writing"),
        runner.lock_folder(folder),
    ):
        pass


def test_a_folder_of_another_suite_is_left_alone(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(SUITE.replace("tiny", "other").replace("LR", "1"))
    with pytest.raises(RunFolderError, match="holds the results of the suite 'tiny'"):
        benchmarks.run(str(path), str(finished / "out"), None)


@pytest.mark.slow
def test_a_peer_that_crashes_is_a_row_and_the_suite_goes_on(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("crash", "fine"):
        peer(folder, name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    suite_of(folder, more="peers: {crash: {}, fine: {}}\n")
    code = benchmarks.run(str(folder / "suites" / "tiny.yaml"), str(tmp_path / "out"), None)
    assert code == 1
    page = (tmp_path / "out" / "report.md").read_text()
    assert "exit code 3: no such luck" in page
    assert "| fine PPO | 3 | 0.25 [0.25, 0.25]" in page
    summary = read_summary(tmp_path / "out")
    assert summary["winners"] == {"CartPole-v1": "PPO"}
    assert [row["better"] for row in summary["improvement"]] == ["PPO"]


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_a_row(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    peer(folder, "fine")
    (folder / "peers" / "fine" / "requirements.txt").write_text("-r nothing-of-that-name.txt\n")
    suite = suite_of(folder, more="peers: {fine: {}}\n")
    theirs = Suite(**{**vars(suite), "cells": suite.cells[1:]})
    _, failures = told(theirs, tmp_path / "out")
    assert "could not be installed" in next(iter(failures.values()))


def test_a_nonsense_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--compare needs a benchmark's folder"):
        read_summary(tmp_path)


def row(name: str, *returns: float) -> dict[str, Any]:
    return {"name": name, "returns": dict(enumerate(returns)), "steps_per_second": 10.0}


def test_verdicts_need_intervals_apart() -> None:
    before = {"cells": [row(name, 10.0, 10.1, 10.2) for name in "abcd"]}
    now = {
        "cells": [row("a", 10.2, 10.3, 10.4), row("b", 1, 1, 1), row("c", 20, 20.1, 20.2), row("d")]
    }
    verdicts = {change.name: change.verdict for change in compare_summaries(before, now)}
    assert verdicts == {"a": "no clear difference", "b": "worse", "c": "better", "d": "failed"}


@pytest.mark.slow
def test_a_host_environment_runs_seed_by_seed(tmp_path: Path) -> None:
    text = SUITE.replace("LR", "3e-3").replace(
        "CartPole-v1: {budget: 8_192", "gymnasium:CartPole-v1: {budget: 512"
    )
    path = tmp_path / "suites" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(text)
    suite = load_suite(path)
    _, failures = told(suite, tmp_path / "out")
    assert not failures
    job: Job = suite.make_job(suite.cells[0], tmp_path / "out")
    outcomes: list[Any] = [job.read_outcome(seed) for seed in (0, 1)]
    assert [o["num_lanes"] for o in outcomes] == [1, 1]


@pytest.mark.slow
def test_recorded_data_are_trained_on_for_a_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_DATASETS_DIR", str(tmp_path / "sets"))
    env = gymnasium.make("CartPole-v1")
    folder = tmp_path / "sets/cartpole/expert"
    with EpisodeWriter(folder, env.observation_space, env.action_space) as writer:
        part = make_part(0, 40)
        obs = np.zeros((41, 4), np.float32)
        writer.add_parts([replace(part, obs=obs, action=part.action % 2)])
    (tmp_path / "sets/cartpole" / RECORD).write_text("{}")
    text = "seeds: 2\nepisodes: 2\nconfigs: [{file: offline/cartpole-bc, budget: 512, settings: "
    (tmp_path / "suite.yaml").write_text(
        text + "{train_batch_size: 16, num_updates_per_iteration: 16}}]\n"
    )
    suite = load_suite(tmp_path / "suite.yaml")
    assert told(suite, tmp_path)[1] == {}
    job = suite.make_job(suite.cells[0], tmp_path)
    outcomes = [job.read_outcome(seed) for seed in (0, 1)]
    for outcome in outcomes:
        assert outcome is not None
        assert outcome["env_steps"] == 512
        assert 8 <= outcome["evaluated"] <= 500


def test_the_command_says_what_is_wrong() -> None:
    from jaxrl.cli.app import app

    found = CliRunner().invoke(app, ["benchmark", "smok"])
    assert found.exit_code == 2
    assert "Did you mean 'smoke'" in found.output


SPEED = """
import sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
suite = sys.argv[sys.argv.index("--suite") + 1]
if suite == "host":
    sys.exit("no host today")
(out / "speed.md").write_text("# Speed\\n\\nWords.\\n\\n| peer | steps/s |\\n| --- | --- |\\n| ours | 7 |\\n")
"""


def test_speed_is_measured_by_the_checkout(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "checkout" / "benchmarks"
    for name in ("suites", "peers"):
        (folder / name).mkdir(parents=True)
    (folder / "speed.py").write_text(SPEED)
    path = folder / "suites" / "fast.yaml"
    path.write_text("speed: {suites: [in_graph, host], pairs: 2}\n")
    out = tmp_path / "out"
    assert benchmarks.run(str(path), str(out), None) == 1
    page = (out / "report.md").read_text()
    assert "## Speed, in_graph: Speed\n\nWords.\n\n| peer | steps/s |" in page
    assert "| host | exit code 1: no host today |" in page
    capsys.readouterr()
    benchmarks.run(str(path), str(out), None)
    assert "speed, in_graph: already done" in capsys.readouterr().out
