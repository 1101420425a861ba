"""The benchmark of exported policies, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import export


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main(["--quick", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "export.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert "| Pendulum, SAC, 2 x 256 |" in text
    cases = json.loads((tmp_path / "export.json").read_text())["cases"]
    assert set(cases) == set(export.CASES)
    for case in cases.values():
        assert all(latency["median"] > 0 for latency in case["microseconds"].values())
        assert case["ratio"]["median"] > 0
