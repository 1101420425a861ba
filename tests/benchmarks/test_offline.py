"""The benchmark of recorded data: its settings, and its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import offline
from benchmarks.offline_settings import OURS, OfflineSetting, make_settings, write_data
from benchmarks.peers.jaxrl_offline_worker import CONFIGS, make_config


def test_settings_survive_json_and_have_valid_configs(tmp_path: Path) -> None:
    for setting in make_settings().values():
        assert OfflineSetting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
        config = make_config(setting, "data.npz")
        assert type(config) is CONFIGS[setting.algorithm]
        assert config.plan().train_batch_size == setting.batch_size
        config.validate()


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data(tmp_path / "data.npz")
    assert offline.main(["--quick", "--peers", OURS, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "offline.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    results = json.loads((tmp_path / "offline.json").read_text())
    for name in make_settings():
        assert f"| {name} | {OURS} |" in text
        assert all(rate > 0 for rate in results["cases"][name]["rates"][OURS])
