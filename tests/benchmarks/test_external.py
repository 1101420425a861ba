"""The benchmark of external simulators, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import external


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert external.main(["--quick", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "external.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert "Quick run" in text
    results = json.loads((tmp_path / "external.json").read_text())
    for name in external.CASES:
        assert f"| {name} |" in text
        assert len(results["rates"][name]) == 2
        assert all(rate > 0 for rate in results["rates"][name])
    assert set(results["ratio"]) == set(external.CASES) - {external.IN_PROCESS}


def test_both_runs_have_equal_settings() -> None:
    inside, outside = (external.make_config(is_external, 4096) for is_external in (False, True))
    for config in (inside, outside):
        assert config.plan().total_envs == external.NUM_ENVS
    assert inside.training_settings == outside.training_settings
    assert inside.rl_module_settings == outside.rl_module_settings
