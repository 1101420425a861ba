"""Order of measurements, settings, and the tables."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import measure, speed
from benchmarks.machine import ROOT
from benchmarks.peers import launch
from benchmarks.peers.jaxrl_worker import load_recommended_config
from benchmarks.recommended import RECOMMENDATIONS
from benchmarks.report import render_markdown
from benchmarks.settings import Setting, parse_setting
from benchmarks.worker import Worker
from tests.benchmarks.fake_workers import FakeLimits


class FakeWorker:
    """Answers like a peer, `speed` steps a second, and notes when it was asked."""

    def __init__(self, name: str, log: list[str], speed: float) -> None:
        self.name, self.log, self.speed = name, log, speed

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        if command in ("run", "bare"):
            self.log.append(self.name if command == "run" else command)
            seconds = 1000.0 / self.speed * (1.02 if command == "run" else 1.0)
            return {"seconds": seconds, "env_steps": 1000}
        return {
            "compile_s": 2.5,
            "program_s": 2.0,
            "return_mean": 400.0,
            "versions": {"fake": "1"},
            "devices": 1,
        }


def fake_workers(log: list[str], **speeds: float) -> dict[str, Worker]:
    return {name: cast(Worker, FakeWorker(name, log, rate)) for name, rate in speeds.items()}


SETTING = Setting(num_envs=64, num_steps=32, num_updates=10)


def test_peers_take_turns_and_the_first_round_is_not_counted() -> None:
    log: list[str] = []
    settings = {name: SETTING.to_dict() for name in "abc"}
    measured = measure.measure_in_turn(fake_workers(log, a=1.0, b=2.0, c=3.0), settings, rounds=3)
    assert log == [*"abc", *"bca", *"cab", *"abc"]
    assert [len(peer["steps_per_s"]) for peer in measured.values()] == [3, 3, 3]


def test_ratios_are_ours_over_theirs() -> None:
    workers = fake_workers([], jaxrl=400.0, rejax=200.0)
    measured = measure.measure_throughput(workers, SETTING, rounds=7)
    assert measured["ratios"]["rejax"]["median"] == pytest.approx(2.0)
    assert measured["ratios"]["rejax"]["count"] == 7
    assert list(measured["ratios"]) == ["rejax"]


def test_overhead_is_train_over_the_bare_loop_at_short_iterations() -> None:
    log: list[str] = []
    worker = fake_workers(log, jaxrl=400.0)["jaxrl"]
    measured = measure.measure_train_overhead(worker, SETTING, rounds=4, steps_per_s=200_000.0)
    assert measured["ratio"]["median"] == pytest.approx(1.02)
    assert measured["num_updates"] * SETTING.train_batch_size / 200_000.0 >= 0.5
    assert log[:4] == ["bare", "jaxrl", "jaxrl", "bare"]


def test_a_setting_is_read_and_sized() -> None:
    setting = parse_setting("64x32", steps=100_000)
    assert (setting.num_envs, setting.num_steps, setting.num_updates) == (64, 32, 49)
    assert Setting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting


@pytest.mark.parametrize("text", ["64", "64x", "0x32", "axb", "3x3"])
def test_a_setting_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_setting(text)


@pytest.mark.parametrize("option", [["--peers", "rejaxx"], ["--settings", "64"], ["--parts", "x"]])
def test_a_wrong_option_ends_with_2(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        speed.main(option)
    assert error.value.code == 2
    assert option[1] in capsys.readouterr().err


def test_a_run_writes_json_and_the_table_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"jaxrl": 400.0, "rejax": 200.0}
    monkeypatch.setattr(launch, "start", lambda name, **_: Started(name, [], rates[name]))
    seconds = {name: [1.0, 1.1, 1.2] for name in measure.IMPORT_STATEMENTS}
    monkeypatch.setattr(measure, "measure_import_times", lambda rounds: seconds)
    arguments = ["--peers", "jaxrl,rejax", "--settings", "64x32", "--pairs", "7"]
    assert speed.main([*arguments, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| 64x32 | jaxrl / rejax | 2.00 | 2.00 - 2.00 | 7 | at least 1.9: yes |" in printed
    assert "| 1.020 | 1.020 - 1.020 | at most 1.05: yes |" in printed
    assert "| empty cache | 2.00 | 2.50 | 3 | at most 5.0 s: yes |" in printed
    assert (tmp_path / "speed.md").read_text().strip() == printed.strip()
    results = json.loads((tmp_path / "speed.json").read_text())
    assert render_markdown(results).strip() == printed.strip()


class Started(FakeWorker):
    """A fake that ends like a peer."""

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, Any]]]:
    """Record the requests to peers of another rate, none of which is started."""
    rates = {"jaxrl": 400.0, "rejax": 200.0, "sb3": 20.0, "rllib-2x16": 10.0, "limits": 1.0}
    asked: dict[str, list[tuple[str, Any]]] = {name: [] for name in rates}

    class Noting(Started):
        def __init__(self, name: str) -> None:
            super().__init__(name, [], rates[name])
            self.limits = FakeLimits()

        def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
            asked[self.name].append((command, arguments.get("setting")))
            if self.name == launch.LIMITS:
                return self.limits.ask(command, **arguments)
            return super().ask(command, **arguments)

    monkeypatch.setattr(launch, "start", lambda name, **_: Noting(name))
    return asked


PARTS = ["--parts", "throughput,recommended", "--peers", "jaxrl,rejax,sb3,rllib-2x16,limits"]


def test_sb3_is_asked_for_the_same_in_a_shorter_measurement(
    requests: dict[str, list[tuple[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed.main([*PARTS, "--pairs", "3", "--out", str(tmp_path)]) == 0
    assert "| 4x128 | jaxrl / sb3 | 20.00 |" in capsys.readouterr().out
    settings = {
        name: [Setting.from_dict(s) for c, s in requests[name] if c == "setup"]
        for name in ("jaxrl", "sb3")
    }
    for ours, theirs in zip(*settings.values(), strict=True):
        assert replace(theirs, num_updates=ours.num_updates) == ours
        assert theirs.env_steps < ours.env_steps / 10


def test_the_mean_of_all_settings_is_geometric(
    requests: dict[str, list[tuple[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speed.main([*PARTS, "--pairs", "3", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    row = "| geometric mean | jaxrl / rejax | 2.00 | 2.00 - 2.00 | 9 | at least 1.8: yes |"
    assert row in printed
    speed.main([*PARTS, "--settings", "64x32", "--pairs", "3", "--out", str(tmp_path)])
    assert "geometric mean" not in capsys.readouterr().out


def test_own_hyperparameters_stand_apart(
    requests: dict[str, list[tuple[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speed.main([*PARTS, "--settings", "64x32", "--pairs", "3", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "do not divide these rates by one another" in printed
    assert "cartpole_ppo.py) | 32 x 125 |" in printed
    assert [command for command, _ in requests["rllib-2x16"]] == [
        *("info", "recommend"),
        *["run"] * 4,
        "evaluate",
    ]
    recommended = json.loads((tmp_path / "speed.json").read_text())["recommended"]
    assert list(recommended["peers"]) == list(RECOMMENDATIONS)
    assert ("recommend", {"env_steps": 10_240}) in requests["sb3"]


def test_sources_of_recommendations_can_be_looked_up() -> None:
    for name, own in RECOMMENDATIONS.items():
        if name == launch.OURS:
            assert (ROOT / "benchmarks" / "results" / own.source).resolve().is_file()
        else:
            assert own.source.startswith("https://github.com/")


def test_our_own_recommendation_is_the_shipped_config() -> None:
    chosen = load_recommended_config()
    plan = chosen.plan()
    batch = f"{plan.num_envs} x {plan.rollout_fragment_length}"
    assert RECOMMENDATIONS[launch.OURS].batch == batch
    assert chosen.evaluation_settings.evaluation_interval is None
