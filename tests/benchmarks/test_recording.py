"""The benchmark of recording, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import recording


@pytest.mark.slow
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recording.main(["--quick", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "recording.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    results = json.loads((tmp_path / "recording.json").read_text())
    for name in recording.CASES:
        assert f"| {name} |" in text
        rates = results["cases"][name]["rates"]
        assert all(
            rate > 0 for kind in (recording.PLAIN, recording.RECORDED) for rate in rates[kind]
        )
