"""The benchmark of environments alone, in its quick form."""

import json
from pathlib import Path

import pytest

from benchmarks import envs


@pytest.mark.allow_key_reuse  # of vmapped environments
def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--quick", "--games", "Breakout", "--out", str(tmp_path)]
    assert envs.main(command) == 0
    text = (tmp_path / "envs.md").read_text()
    assert capsys.readouterr().out == text + "\n"
    assert "Quick run" in text
    assert "| Breakout |" in text
    game = json.loads((tmp_path / "envs.json").read_text())["games"]["Breakout"]
    assert set(game["rates"]) == {"jaxrl", "gymnax"}
    assert all(rate > 0 for rates in game["rates"].values() for rate in rates)


def test_an_unknown_game_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        envs.main(["--games", "Pong"])
    assert "'Pong' is not one of Breakout" in capsys.readouterr().err
