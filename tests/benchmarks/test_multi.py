"""The benchmark of several agents: its settings, and its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import multi, multi_training
from benchmarks.multi_settings import (
    JAXMARL,
    OURS,
    OURS_TRAINS,
    TASKS,
    PlaySetting,
    TrainSetting,
    make_train_settings,
)
from benchmarks.peers.jaxrl_multi_worker import JaxrlMultiPeer
from benchmarks.peers.jaxrl_team_worker import make_config
from jaxrl.envs import list_multi_envs

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
