"""README and the pages of documentation are those of the committed results."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks import demonstrations, figure, gallery, offline_scores, scores, speed
from benchmarks.figure import BEGIN, END
from benchmarks.machine import RESULTS
from jaxrl import load_config
from jaxrl.config.registry import find_shipped_configs


def test_the_tables_are_those_of_the_results() -> None:
    """`python -m benchmarks.figure` writes them."""
    machines = figure.load_results(figure.RESULTS)
    readme, page = figure.README.read_text(), figure.PAGE.read_text()
    assert figure.insert_table(readme, figure.render_speed_table(machines[0])) == readme
    assert figure.insert_table(page, figure.render_tables(machines)) == page
    assert "](docs/images/speed.png)" in readme


def test_the_pages_are_current() -> None:
    found = scores.load_summaries(RESULTS)
    pages = {
        scores: scores.render_page(found, scores.NOTES.read_text()),
        offline_scores: offline_scores.render_page(RESULTS, offline_scores.NOTES.read_text()),
        gallery: gallery.render_page(found),
    }
    for module, text in pages.items():
        assert text == module.PAGE.read_text(), f"python -m {module.__name__}"
    names = {
        f"{gallery.make_picture_name(cell)}.svg"
        for _, cells in gallery.iter_sections(found)
        for cell in cells
    }
    assert {path.name for path in gallery.PICTURES.iterdir()} == names
    commands = [shlex.split(x) for x in pages[gallery].splitlines() if x.startswith("jaxrl train")]
    assert {command[3] for command in commands} <= set(find_shipped_configs())


def make_results(**speeds: list[float]) -> dict[str, Any]:
    peers = {
        name: {
            "steps_per_s": rates,
            "median": {"median": rates[1], "low": rates[0], "high": rates[2], "count": 3},
        }
        for name, rates in speeds.items()
    }
    return {
        "machine": {"cpu": "a processor", "cores": 2},
        "date": "2026-01-02",
        "load": {"before": 0.1},
        "throughput": {"64x32": {"peers": peers}},
    }


def test_the_command_draws_and_writes_ratios_to_other_libraries(tmp_path: Path) -> None:
    others = {"rejax": [50.0, 100.0, 150.0], "handwritten": [1.0, 1.0, 1.0]}
    for name, rate in (("a", 200.0), ("b", 300.0)):
        (tmp_path / name).mkdir()
        results = make_results(jaxrl=[100.0, rate, 400.0], **others)
        (tmp_path / name / "speed.json").write_text(json.dumps(results))
    readme, page, picture = (
        tmp_path / name for name in ("README.md", "page.md", "images/speed.png")
    )
    for path in (readme, page):
        path.write_text(f"{BEGIN}\n{END}\n")
    options = ["--results", str(tmp_path), "--readme", str(readme), "--page", str(page)]
    assert figure.main([*options, "--picture", str(picture)]) == 0
    assert "| 300 |" not in readme.read_text()
    text = page.read_text()
    assert "| PPO, CartPole, 64 envs x 32 steps | 200 | rejax 2.00 (2.00 - 2.67) | - |" in text
    assert "| 300 |" in text
    assert "handwritten" not in text
    height, width, _ = imread(picture).shape
    assert width > 400
    assert height > 100
    with pytest.raises(ValueError, match="once each"):
        figure.insert_table(f"{END}{BEGIN}", "new")


def test_every_suite_has_its_titles() -> None:
    assert {stem for stem, _ in figure.TITLES} <= set(figure.STEMS)
    assert set(figure.STEMS) == {suite.stem for suite in speed.SUITES.values()}


def write(path: Path, *cells: dict[str, Any], **more: Any) -> None:
    data = {
        "suite": path.name,
        "about": "Nothing that ran.",
        "date": "2026-01-02",
        "machine": {"cpu": "a CPU", "cores": 2},
        "cells": list(cells),
        **more,
    }
    path.mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps(data))


def make_cell(entrant: str, *returns: float, **more: Any) -> dict[str, Any]:
    interval = {"value": sum(returns) / len(returns), "low": min(returns), "high": max(returns)}
    return {
        "name": entrant,
        "file": "classic/cartpole-ppo",
        "entrant": entrant,
        "environment": "CartPole-v1",
        "budget": 500_000,
        "failure": None,
        "lost_seeds": {},
        "threshold": None,
        "ceiling": None,
        "seconds": 61.2,
        "reference": None,
        "source": "",
        "returns": dict(enumerate(returns)),
        "return": {**interval, "count": len(returns)},
        "min": min(returns),
        "max": max(returns),
        **more,
    }


def test_a_row_of_scores_names_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "ROOT", tmp_path)
    reference = {"reference": 490.0, "source": "somebody (https://example.com, a page)"}
    row = make_cell("whole", 480.0, 498.0, 500.0, **reference, against_reference="undecided")
    failed = {**make_cell("half", 1.0), "failure": "exit code 1"}
    del failed["return"]
    write(tmp_path / "b/scores/made-up", make_cell("old", 1.0), date="2026-01-01")
    write(tmp_path / "a/scores/made-up", row, failed)
    (found,) = scores.load_summaries(tmp_path)  # of several machines, the newest
    assert found["report"] is None
    text = scores.render_page([found], "By hand.")
    assert "| `classic/cartpole-ppo` (whole) | CartPole-v1 | 500,000 | 493 [480, 500] |" in text
    assert "- 490: somebody (<https://example.com>, a page)" in text
    assert "Failed: half." in text
    assert "By hand." in text
    assert "`classic/pendulum-ppo`" in text.partition("## Not run with five seeds")[2]


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ({"threshold": 60.0}, ("at least 60", "yes")),
        ({"threshold": 61.0}, ("at least 61", "**no**")),
        ({"ceiling": 89.0}, ("at most 89", "**no**")),
        ({}, ("-", "-")),
    ],
)
def test_the_worst_seed_decides(limits: dict[str, float], verdict: tuple[str, str]) -> None:
    assert offline_scores.judge(make_cell("IQL, mixed", 60.0, 70.0, 90.0, **limits)) == verdict


def test_rows_are_compared_with_cloning_of_the_same_data(tmp_path: Path) -> None:
    write(
        tmp_path / "one/scores/offline",
        make_cell("BC, expert", 90.0, 91.0, 92.0),
        make_cell("BC, mixed", 20.0, 21.0, 22.0),
        make_cell("IQL, mixed", 60.0, 61.0, 62.0),
        make_cell("MARWIL, mixed", 15.0, 20.0, 25.0),
    )
    steps = {"without": {"0": 4000, "1": 6000}, "with": {"0": 1000, "1": 2000}}
    entry = {**demonstrations.TASKS["acrobot"]._asdict(), "steps": steps}
    (tmp_path / "one/scores/demonstrations.json").write_text(json.dumps({"acrobot": entry}))
    text = offline_scores.render_page(tmp_path, "By hand.")
    rows = {line.split(" (")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert re.search(r"\| \*\*40 \[37\.\d, 42\.\d\]\*\* \|$", rows["| IQL, mixed"])
    assert re.search(r"\| -1 \[-9\.\d+, 7\.\d+\] \|$", rows["| MARWIL, mixed"])
    assert rows["| BC, mixed"].endswith("| - |")
    assert "| 5,000 (4,000, 6,000) | - | 1,500 (1,000, 2,000) | 0.30 |" in text


@pytest.mark.parametrize("task", demonstrations.TASKS.values(), ids=demonstrations.TASKS)
def test_demonstrated_configs_differ_in_one_setting(task: demonstrations.Task) -> None:
    other, plain = (
        load_config(name).offline_data(input_="sampler").to_dict()
        for name in (task.demonstrated, task.plain)
    )
    differing = {name for name in plain if plain[name] != other[name]}
    lengths = {"explicit_settings", "min_sample_timesteps_per_iteration", "evaluation_interval"}
    assert differing - lengths == (
        {"training_intensity"} if task.has_own_settings else {"margin_coeff"}
    )
    config = load_config(task.demonstrated)
    assert config.is_mixed
    config.validate()
