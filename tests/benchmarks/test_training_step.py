"""The benchmark of training steps of one's own, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import training_step


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--quick", "--settings", "4x128", "--out", str(tmp_path)]
    assert training_step.main(command) == 0
    text = (tmp_path / "training_step.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert "Quick run" in text
    assert "| 4x128 |" in text
    setting = json.loads((tmp_path / "training_step.json").read_text())["settings"]["4x128"]
    assert set(setting["rates"]) == {"built-in", "compiled", "python"}
    assert all(rate > 0 for rates in setting["rates"].values() for rate in rates)
