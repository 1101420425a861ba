"""The page of returns: made from committed summaries, and current."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scores
from benchmarks.machine import RESULTS


def test_the_page_is_current() -> None:
    made = scores.render_page(scores.load_summaries(RESULTS), scores.NOTES.read_text())
    assert made == scores.PAGE.read_text(), "python -m benchmarks.scores"


def cell(file: str, **more: Any) -> dict[str, Any]:
    return {
        "name": file,
        "file": file,
        "entrant": "PPO",
        "environment": "CartPole-v1",
        "budget": 500_000,
        "failure": None,
        "lost_seeds": {},
        "return": {"value": 498.0, "low": 480.0, "high": 500.0, "count": 5},
        "min": 471.0,
        "seconds": 61.2,
        "reference": 490.0,
        "source": "somebody (https://example.com, a page)",
        "against_reference": "undecided",
        **more,
    }


def summary(*cells: dict[str, Any], date: str = "2026-01-02") -> dict[str, Any]:
    return {
        "suite": "made-up",
        "about": "Nothing that ran.",
        "date": date,
        "machine": {"cpu": "a CPU", "cores": 2},
        "cells": list(cells),
    }


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scores, "ROOT", tmp_path)
    return tmp_path


def write(folder: Path, machine: str, data: dict[str, Any]) -> None:
    path = folder / machine / "scores" / data["suite"] / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data))


def test_a_row_says_what_was_got_and_from_whom_the_reference_is(results: Path) -> None:
    failed = cell("classic/pendulum-ppo", failure="exit code 1") | {"lost_seeds": {"1": "NaN"}}
    del failed["return"]
    write(results, "one", summary(cell("classic/cartpole-ppo"), failed))
    text = scores.render_page(scores.load_summaries(results), "By hand.")
    assert (
        "| `classic/cartpole-ppo` | CartPole-v1 | 500,000 | 498 [480, 500] | 471 | 61.2 | 490 | undecided |"
    ) in text
    assert "- 490: somebody (<https://example.com>, a page)" in text
    assert "a CPU, 2 cores" in text
    assert "Failed: classic/pendulum-ppo." in text
    assert "By hand." in text
    missing = text.partition("## Not run with five seeds")[2]
    assert "`classic/pendulum-ppo`" in missing
    assert "classic/cartpole-ppo`" not in missing


def test_of_several_machines_the_newest_counts(results: Path) -> None:
    write(results, "b", summary(cell("classic/cartpole-ppo", min=1.0), date="2026-01-01"))
    write(results, "a", summary(cell("classic/cartpole-ppo", min=2.0), date="2026-01-03"))
    (found,) = scores.load_summaries(results)
    assert found["cells"][0]["min"] == 2.0
    assert found["report"] is None
    (results / "a/scores/made-up/report.html").touch()
    (found,) = scores.load_summaries(results)
    assert found["report"] == "a/scores/made-up/report.html"


def test_a_file_that_runs_twice_has_its_labels(results: Path) -> None:
    twice = [cell("classic/cartpole-ppo", entrant=name) for name in ("whole", "half")]
    write(results, "one", summary(*twice, cell("classic/acrobot-ppo", entrant="alone")))
    text = scores.render_page(scores.load_summaries(results), "")
    assert "| `classic/cartpole-ppo` (whole) |" in text
    assert "| `classic/cartpole-ppo` (half) |" in text
    assert "alone" not in text
