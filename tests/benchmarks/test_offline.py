"""The benchmark of recorded data: its settings, and its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import offline
from benchmarks.offline_settings import (
    HANDWRITTEN,
    OURS,
    OfflineSetting,
    is_supported,
    make_settings,
    write_data,
)
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
    assert (
        offline.main(["--quick", "--peers", f"{OURS},{HANDWRITTEN}", "--out", str(tmp_path)]) == 0
    )
    text = (tmp_path / "offline.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    results = json.loads((tmp_path / "offline.json").read_text())
    for name, setting in make_settings().items():
        for peer in (OURS, HANDWRITTEN):
            assert (f"| {name} | {peer} |" in text) == is_supported(peer, setting)
            rates = results["cases"][name]["rates"].get(peer, [])
            assert len(rates) == 2 * is_supported(peer, setting)
            assert all(rate > 0 for rate in rates)
