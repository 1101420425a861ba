"""The page of returns from recorded data: made from committed results, and current."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import demonstrations, offline_scores
from benchmarks.machine import RESULTS
from jaxrl.config.load import load_config


def test_the_page_is_current() -> None:
    made = offline_scores.render_page(RESULTS, offline_scores.NOTES.read_text())
    assert made == offline_scores.PAGE.read_text(), "python -m benchmarks.offline_scores"


def cell(entrant: str, *returns: float, **more: Any) -> dict[str, Any]:
    mean = sum(returns) / len(returns)
    return {
        "entrant": entrant,
        "environment": "CartPole-v1",
        "file": "offline/cartpole-bc",
        "budget": 1_024_000,
        "threshold": None,
        "ceiling": None,
        "returns": {str(seed): value for seed, value in enumerate(returns)},
        "return": {"value": mean, "low": min(returns), "high": max(returns), "count": len(returns)},
        "min": min(returns),
        "max": max(returns),
        **more,
    }


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ({"threshold": 60.0}, ("at least 60", "yes")),
        ({"threshold": 61.0}, ("at least 61", "**no**")),
        ({"ceiling": 90.0}, ("at most 90", "yes")),
        ({"ceiling": 89.0}, ("at most 89", "**no**")),
        ({}, ("-", "-")),
    ],
)
def test_the_worst_seed_decides(limits: dict[str, float], verdict: tuple[str, str]) -> None:
    assert offline_scores.judge(cell("IQL, mixed", 60.0, 70.0, 90.0, **limits)) == verdict


def write(folder: Path, *cells: dict[str, Any]) -> None:
    path = folder / "one/scores/offline/summary.json"
    path.parent.mkdir(parents=True)
    machine = {"cpu": "a CPU", "cores": 2}
    path.write_text(json.dumps({"date": "2026-01-01", "machine": machine, "cells": cells}))


def test_rows_are_compared_with_cloning_of_the_same_data(tmp_path: Path) -> None:
    failed = {**cell("CQL, mixed", 1.0), "failure": "exit code 1"}
    del failed["return"]
    write(
        tmp_path,
        cell("BC, expert", 90.0, 91.0, 92.0),
        cell("BC, mixed", 20.0, 21.0, 22.0),
        cell("IQL, mixed", 60.0, 61.0, 62.0),
        cell("MARWIL, mixed", 15.0, 20.0, 25.0),
        failed,
    )
    steps = {"without": {"0": 4000, "1": 6000}, "with": {"0": 1000, "1": 2000}}
    entry = {**demonstrations.TASKS["acrobot"]._asdict(), "steps": steps}
    (tmp_path / "one/scores/demonstrations.json").write_text(json.dumps({"acrobot": entry}))
    text = offline_scores.render_page(tmp_path, "By hand.")
    rows = {line.split(" (")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert re.search(r"\| \*\*40 \[37\.\d, 42\.\d\]\*\* \|$", rows["| IQL, mixed"])
    assert re.search(r"\| -1 \[-9\.\d+, 7\.\d+\] \|$", rows["| MARWIL, mixed"])
    assert rows["| BC, mixed"].endswith("| - |")
    assert "Not run, or failed: CQL, mixed." in text
    assert "By hand." in text
    assert "| 5,000 (4,000, 6,000) | - | 1,500 (1,000, 2,000) | 0.30 |" in text


@pytest.mark.parametrize("task", demonstrations.TASKS.values(), ids=demonstrations.TASKS)
def test_demonstrated_configs_differ_in_what_is_said(task: demonstrations.Task) -> None:
    other, plain = (
        load_config(name).offline_data(input_="sampler").to_dict()
        for name in (task.demonstrated, task.plain)
    )
    differing = {name for name in plain if plain[name] != other[name]}
    how_often = {
        "explicit_settings",
        "min_sample_timesteps_per_iteration",
        "evaluation_interval",
    }
    assert differing - how_often == (
        {"training_intensity"} if task.has_own_settings else {"margin_coeff"}
    )
    config = load_config(task.demonstrated)
    assert config.is_mixed
    config.validate()
