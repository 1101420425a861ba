"""The suite of environments on the host: what peers are asked for, and what the tables say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import host, measure, speed
from benchmarks.machine import ROOT
from benchmarks.peers import launch
from benchmarks.peers.gymnasium_worker import GymnasiumPeer
from benchmarks.peers.jaxrl_host_worker import HostPeer, make_impala_config, make_ppo_config
from benchmarks.settings import make_host_setting
from jaxrl.bench import peers
from tests.benchmarks.fake_workers import FakeWorker, start_fakes

RATES = {
    launch.LOCAL: 60_000.0,
    launch.REMOTE: 30_000.0,
    launch.IMPALA: 50_000.0,
    launch.GYMNASIUM: 120_000.0,
    launch.SB3: 15_000.0,
    launch.RLLIB_LOCAL: 6_000.0,
    launch.RLLIB_2X4: 8_000.0,
    launch.RLLIB_2X8: 15_000.0,
    launch.OURS: 100_000.0,
}
FLOW = {
    "learner_wait_fraction": 0.25,
    "env_runners_wait_fraction": 0.5,
    "staleness_mean": 1.5,
    "num_fragments_queued": 1,
    "num_env_steps_discarded": 0,
}


class FakeHostWorker(FakeWorker):
    """Compiles nothing, and may be asked for a flow whose staleness grows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.number = 0

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        reply = super().ask(command, **arguments)
        self.number += command == "flow"
        flow = {**FLOW, "staleness_max": self.number} if command == "flow" else {}
        nothing = {"compile_s": None, "return_mean": None} if "versions" in reply else {}
        return {**reply, **flow, **nothing}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the requests to peers, none of which is started."""
    return start_fakes(monkeypatch, RATES, FakeHostWorker)


def test_a_run_writes_json_and_the_table_it_prints(
    asked: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed.main(["--suite", "host", "--pairs", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for row in (
        "| jaxrl-local / gymnasium | 0.50 | 0.50 - 0.50 | 3 | at least 0.4: yes |",
        "| jaxrl-local / sb3 | 4.00 | 4.00 - 4.00 | 3 | at least 3.0: yes |",
        "| jaxrl-local / rllib-2x8 | 4.00 | 4.00 - 4.00 | 3 | at least 5.0: no |",
        "| environment steps/s | 50,000 (50,000 - 50,000) |",
        "| fraction of time the learner waits | 0.25 |",
        "| fraction of time the actors wait | 0.50 |",
        "| mean staleness in train batches | 1.50 |",
        "| maximum staleness | 4 |",
        "| 8x256 | sb3 | 15,000 | 15,000 - 15,000 | - | - |",
    ):
        assert row in printed
    assert {path.name for path in tmp_path.iterdir()} == {"host.json", "host.md"}
    assert (tmp_path / "host.md").read_text().strip() == printed.strip()
    results = json.loads((tmp_path / "host.json").read_text())
    assert len(results["throughput"]["8x256"]["peers"][launch.SB3]["steps_per_s"]) == 3
    runs = [name for name, command in asked if command == "run"]
    assert runs[:16] == [*host.PEERS, *host.PEERS[1:], host.PEERS[0]]
    assert "| 8x256 | jaxrl-local | 1.0 | 2,000,000 | 120,000 | stepping | 0.500 |" in printed


def test_impala_is_alone_on_the_machine(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    speed.main(["--suite", "host", "--pairs", "2", "--out", str(tmp_path)])
    ended = {name: asked.index((name, "end")) for name in launch.HOST_PEERS}
    assert max(ended.values()) < asked.index((launch.IMPALA, "info"))
    assert asked.count((launch.IMPALA, "flow")) == 3


def test_all_suites_share_one_command(
    asked: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--peers", "jaxrl,jaxrl-local", "--parts", "throughput", "--settings", "64x32"]
    assert speed.main(["--suite", "all", *options, "--pairs", "1", "--out", str(tmp_path)]) == 0
    stems = [suite.stem for suite in speed.SUITES.values()]
    names = {f"{stem}.{kind}" for stem in stems for kind in ("json", "md")}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert {name for name, _ in asked} == {launch.OURS, launch.LOCAL}
    printed = capsys.readouterr().out
    assert "# Speed on the host" in printed
    assert "IMPALA" not in printed


def test_without_peers_nothing_is_compared(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    options = ["--peers", launch.OURS, "--parts", "throughput", "--settings", "8x16"]
    assert speed.main(["--suite", "all", *options, "--pairs", "1", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "host.json").read_text())["throughput"] == {}
    assert {name for name, _ in asked} == {launch.OURS}


@pytest.mark.parametrize(
    "options",
    [["--peers", "gymnasium"], ["--suite", "host", "--peers", "rejax"], ["--suite", "hosts"]],
)
def test_a_name_of_another_suite_is_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        speed.main(options)
    assert error.value.code == 2
    assert options[-1] in capsys.readouterr().err


def test_peers_with_ray_have_loopback_alone_and_are_stopped_when_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: dict[str, tuple[list[str], bool]] = {}

    def worker(name: str, command: list[str], *, env: Any, stop_when_idle: bool) -> None:
        started[name] = (command, stop_when_idle)

    def environment(folder: Path, requirements: Path, tell: Any) -> Path:
        assert requirements.exists()
        return folder / "bin" / "python"

    monkeypatch.setattr(launch, "Worker", worker)
    monkeypatch.setattr(peers, "ensure_environment", environment)
    for name in (*launch.PEERS, *host.KNOWN_PEERS, launch.IMPALA):
        launch.start(name, stop_when_idle=True)
    isolate = str(ROOT / ".ci" / "loopback")
    with_ray = {name for name, (command, _) in started.items() if command[0] == isolate}
    assert with_ray == {name for name, (_, stopped) in started.items() if stopped}
    assert with_ray == {
        launch.REMOTE,
        launch.IMPALA,
        launch.RLLIB_LOCAL,
        launch.RLLIB_2X4,
        launch.RLLIB_2X8,
    }
    assert Path(isolate).exists()
    assert ".peers/sb3/bin/python" in started[launch.SB3][0][0]


@pytest.mark.parametrize(("num_runners", "envs"), [(0, 8), (2, 4)])
def test_ppo_is_the_setting_however_many_runners(num_runners: int, envs: int) -> None:
    setting = make_host_setting()
    plan = make_ppo_config(setting, num_runners=num_runners).plan()
    assert (plan.envs_per_runner, plan.rollout_fragment_length) == (envs, 256)
    assert (plan.train_batch_size, plan.minibatch_size, plan.num_epochs) == (2048, 128, 4)
    assert setting.minibatch_size == 128


def test_impala_learns_from_one_fragment_of_each_of_two_actors() -> None:
    plan = make_impala_config(make_host_setting(), num_runners=2).plan()
    assert (plan.train_batch_size, plan.fragments_per_batch, plan.num_env_runners) == (500, 2, 2)


def test_a_measurement_on_the_host_is_of_whole_batches() -> None:
    assert make_host_setting(steps=5_000).env_steps == 4096
    assert make_host_setting(steps=1).env_steps == 2048


def test_gymnasium_alone_steps_as_often_as_it_says() -> None:
    peer = GymnasiumPeer()
    peer.setup({"setting": make_host_setting(steps=2048).to_dict()})
    envs = peer._envs
    calls: list[np.ndarray] = []
    step = envs.step
    envs.step = lambda actions: calls.append(actions) or step(actions)
    assert peer.run({})["env_steps"] == 2048 == sum(actions.size for actions in calls)
    assert {int(action) for action in np.concatenate(calls)} == {0, 1}


@pytest.mark.slow
def test_our_peer_trains_steps_and_names_its_processes() -> None:
    peer = HostPeer("PPO", 0)
    peer.setup({"setting": make_host_setting(steps=2048).to_dict()})
    reply = peer.run({})
    trained = peer.train_for({"seconds": 1e-3})
    peer.close()
    assert reply["env_steps"] == trained["env_steps"] == 2048
    assert trained["runners"] == [trained["driver"]]


@pytest.mark.slow
def test_a_quick_run_measures_everything_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--suite", "host", "--quick"]
    peers = ["--peers", "jaxrl-local,jaxrl-2x4,gymnasium", "--out", str(tmp_path)]
    subprocess.run([*command, *peers], cwd=ROOT, check=True, timeout=500)
    results = json.loads((tmp_path / "host.json").read_text())
    assert set(results["throughput"]["8x256"]["ratios"]) == {"jaxrl-2x4", "gymnasium"}
    assert results["impala"]["replies"][0]["staleness_max"] >= 0
    assert results["impala"]["steps_per_s"]["median"] > 0


def test_the_first_measurement_of_a_flow_is_not_counted(asked: list[tuple[str, str]]) -> None:
    worker: Any = FakeHostWorker(launch.IMPALA, 1.0, asked)
    measured = measure.measure_flow(worker, make_host_setting(), rounds=2)
    assert [reply["staleness_max"] for reply in measured["replies"]] == [2, 3]
