"""The script for an accelerator, in its quick form on whatever is here."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import accelerator


@pytest.mark.slow
def test_widths_levers_and_what_fails_are_rows(tmp_path: Path, capsys: Any) -> None:
    options = ["--quick", "--widths", "4x16,8x16", "--levers", "rbg keys,no command buffers"]
    assert accelerator.main([*options, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "accelerator.json").read_text())
    rows = {(row["width"], row["lever"]): row for row in results["rows"]}
    assert list(rows) == [
        ("4x16", "as shipped"),
        ("8x16", "as shipped"),
        ("8x16", "rbg keys"),
        ("8x16", "no command buffers"),
    ]
    assert all(rate > 0 for rate in rows["8x16", "rbg keys"]["steps_per_s"])
    assert "| 8x16 | rbg keys |" in capsys.readouterr().out
    assert (tmp_path / "accelerator.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_in_the_time_is_said(tmp_path: Path) -> None:
    options = ["--quick", "--widths", "4x16", "--levers", "", "--minutes", "0"]
    assert accelerator.main([*options, "--out", str(tmp_path)]) == 0
    assert "no time was left" in (tmp_path / "accelerator.md").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--levers", "magic"], "'magic' is not one of rbg keys"),
        (["--widths", "wide"], "ENVSxSTEPS"),
    ],
)
def test_unknown_names_are_refused(options: list[str], sentence: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        accelerator.main(options)
    assert sentence in capsys.readouterr().err
