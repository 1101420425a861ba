"""The benchmark of several agents: its settings, and its quick form."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import multi, multi_host, multi_training
from benchmarks.multi_settings import (
    JAXMARL,
    OURS,
    OURS_HOST,
    OURS_TRAINS,
    PETTINGZOO,
    TASKS,
    HostSetting,
    PlaySetting,
    TrainSetting,
    make_host_settings,
    make_train_settings,
)
from benchmarks.peers import jaxrl_agents_worker
from benchmarks.peers.jaxrl_multi_worker import JaxrlMultiPeer
from benchmarks.peers.jaxrl_team_worker import JaxrlTeamPeer, make_config
from jaxrl.envs import list_multi_envs
from tests.benchmarks.fake_workers import start_fakes

pytestmark = pytest.mark.allow_key_reuse


def test_settings_survive_json_and_name_environments() -> None:
    setting = PlaySetting(task="tag", num_envs=2, num_steps=3)
    assert PlaySetting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
    assert {ours for ours, _ in TASKS.values()} <= set(list_multi_envs())


def test_random_play_goes_on_from_run_to_run() -> None:
    peer = JaxrlMultiPeer()
    setting = PlaySetting(task="spread", num_envs=4, num_steps=30)
    peer.setup({"setting": setting.to_dict()})
    first, second = peer.run({}), peer.run({})
    assert first["env_steps"] == 120
    assert first["reward_mean"] != second["reward_mean"]
    for run in (first, second):
        assert run["seconds"] > 0
        assert -6.0 < run["reward_mean"] < -1.0  # of three agents


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--peers", OURS, "--tasks", "spread", "--out", str(tmp_path)]
    assert multi.main(arguments) == 0
    text = (tmp_path / "multi.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert f"| spread | {OURS} |" in text
    results = json.loads((tmp_path / "multi.json").read_text())
    assert all(rate > 0 for rate in results["tasks"]["spread"]["rates"][OURS])
    with pytest.raises(SystemExit):
        multi.main(["--peers", f"{JAXMARL},somebody"])


def test_trainings_are_configs_of_their_settings() -> None:
    for setting in make_train_settings(100_000).values():
        assert TrainSetting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
        config = make_config(setting)
        plan = config.plan()
        assert plan.num_envs == setting.num_envs
        assert plan.rollout_fragment_length == setting.num_steps


@pytest.mark.slow
def test_a_quick_run_of_trainings_writes_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = "VDN, 32 envs;one agent"
    arguments = ["--quick", "--peers", OURS_TRAINS, "--settings", chosen, "--out", str(tmp_path)]
    assert multi_training.main(arguments) == 0
    text = (tmp_path / "multi_training.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert f"| VDN, 32 envs | {OURS_TRAINS} |" in text
    assert "| one agent / single |" in text
    with pytest.raises(SystemExit):
        multi_training.main(["--settings", "IPPO, 17 envs"])


@pytest.mark.slow
def test_a_league_is_measured_with_its_number_of_opponents() -> None:
    setting = make_train_settings(2048)["league of 4"]
    peer = JaxrlTeamPeer()
    peer.setup({"setting": dataclasses.replace(setting, num_envs=4, num_steps=8).to_dict()})
    assert peer.opponents == ["first", "main_v1", "main_v2", "main_v3"]
    peer.close()


def test_host_trainings_are_configs_of_their_settings() -> None:
    for name, setting in make_host_settings(10_000).items():
        assert HostSetting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
        if setting.task == PETTINGZOO:
            pytest.importorskip("mpe2")
        config = jaxrl_agents_worker.make_config(setting)
        plan = config.plan()
        assert (plan.num_envs, plan.rollout_fragment_length) == (8, 128)
        modules = config.policies
        assert (len(modules) if modules else 1) == {"2 policies": 2, "8 policies": 8}.get(name, 1)


def test_ratios_are_of_ours_to_each_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {OURS_HOST: 6_000.0, "rllib-agents": 1_000.0, "sb3-pettingzoo": 2_000.0}
    log = start_fakes(monkeypatch, rates)
    assert multi_host.main(["--pairs", "2", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "multi_host.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    results = json.loads((tmp_path / "multi_host.json").read_text())
    ratios = {name: found["ratios"] for name, found in results["trainings"].items()}
    assert ratios["8 policies"]["rllib-agents"]["median"] == pytest.approx(6.0)
    assert ratios["simple_spread"]["sb3-pettingzoo"]["median"] == pytest.approx(3.0)
    assert log.count(("rllib-agents", "run")) == 2 * 3  # two settings, a round to warm up and two
    with pytest.raises(SystemExit):
        multi_host.main(["--settings", "3 policies"])
