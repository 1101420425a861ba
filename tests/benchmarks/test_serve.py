"""The benchmark of serving, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import serve


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--quick", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "serve.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert "| 32 clients |" in text
    cases = json.loads((tmp_path / "serve.json").read_text())["cases"]
    assert set(cases) == set(serve.CASES)
    for case in cases.values():
        assert case["rate"]["median"] > 0
        assert case["p99_ms"]["median"] >= case["p50_ms"]["median"] > 0
