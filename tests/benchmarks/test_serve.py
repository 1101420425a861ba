"""The benchmark of serving, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import serve, serve_soak


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


@pytest.mark.slow
def test_a_short_load_follows_checkpoints_without_a_failed_request(tmp_path: Path) -> None:
    options = ["--minutes", "0.1", "--interval", "2", "--clients", "2", "--out", str(tmp_path)]
    assert serve_soak.main(options) == 0
    assert "| requests | failed | checkpoints |" in (tmp_path / "serve_soak.md").read_text()
    results = json.loads((tmp_path / "serve_soak.json").read_text())
    assert results["requests"]["sent"] > 100
    assert results["requests"]["policies_served"] == 3
    assert results["milliseconds"]["50"] <= results["milliseconds"]["99"]
    assert (tmp_path / "serve_soak.png").read_bytes().startswith(b"\x89PNG")
