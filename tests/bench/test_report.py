"""Content of a report, from a summary that is made up."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jaxrl.bench import figures
from jaxrl.bench.job import METRICS
from jaxrl.bench.report import (
    build_tables,
    describe_seeds,
    render_markdown,
    render_page,
    write_report,
)
from jaxrl.bench.suite import load_suite
from jaxrl.bench.summary import (
    AGGREGATES,
    CURVES_TEXT,
    compare_summaries,
    find_winner,
    read_summary,
    summarize,
)
from jaxrl.cli.benchmarks import format_outcome
from jaxrl.errors import ConfigError


def cell(env: str, entrant: str, **more: Any) -> dict[str, Any]:
    interval = {"value": 496.6, "low": 473.0, "high": 503.2, "count": 3}
    return {
        "name": f"{env}--{entrant}",
        "entrant": entrant,
        "environment": env,
        "episodes": 5,
        "budget": 100_000,
        "threshold": 450.0,
        "reference": None,
        "source": "",
        "failure": None,
        "lost_seeds": {},
        "returns": {"0": 473.0, "1": 503.2, "2": 496.0},
        "return": interval,
        "min": 473.0,
        "training_return": interval,
        "curve": {"steps": [1, 2], "value": [1, 2], "low": [0, 1], "high": [2, 3]},
        "num_lanes": 2,
        "seconds": 86.0,
        "steps_per_second": 2327.0,
        "compile_s": 17.6,
        "memory_gib": 1.53,
        "learned": "undecided",
        "steps_to_threshold": 49_333.0,
        "seconds_to_threshold": 114.2,
        "num_reached": 1,
        **more,
    }


def summary(envs: int, entrants: int, **more: Any) -> dict[str, Any]:
    names = [f"entrant {i}" for i in range(entrants)]
    tasks = [f"Env{i}-v0" for i in range(envs)]
    interval = {"value": 0.9, "low": 0.8, "high": 1.0, "count": 3}
    aggregates = {"tasks": tasks, **dict.fromkeys(AGGREGATES, interval)}
    profile = {"taus": [0, 1], "share": [1, 0], "low": [1, 0], "high": [1, 0]}
    return {
        "suite": "made up",
        "about": "Nothing that ran.",
        "date": "2026-01-01",
        "machine": {
            "cpu": "a CPU",
            "cores": 2,
            "system": "Linux",
            "python": "3.11",
            "devices": ["cpu"],
            "versions": {},
        },
        "seeds": [0, 1, 2],
        "metrics": list(METRICS),
        "cells": [cell(env, name) for env in tasks for name in names],
        "curves": CURVES_TEXT,
        "winners": dict.fromkeys(tasks),
        "aggregates": dict.fromkeys(names, aggregates),
        "profiles": dict.fromkeys(names, profile),
        "improvement": [],
        "speed": [],
        **more,
    }


def inches(svg: str) -> float:
    found = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)
    assert found is not None
    return float(found[1]) / 72


@pytest.mark.parametrize("envs", [2, 3, 4])
def test_pictures_are_as_wide_as_the_page(envs: int) -> None:
    of = summary(envs, 2)
    for svg in (
        figures.plot_learning_curves(of),
        figures.plot_aggregates(of, list(AGGREGATES)),
        figures.plot_performance_profiles(of),
    ):
        assert inches(svg) == pytest.approx(figures.WIDTH)
    assert inches(figures.plot_learning_curves(summary(1, 2))) == pytest.approx(0.7 * figures.WIDTH)


def test_a_legend_of_many_has_a_place_beside_the_profiles() -> None:
    svg = figures.plot_performance_profiles(summary(2, 16))
    frame = re.search(r'<g id="patch_2">\s*<path d="M ([\d.]+) [\d.]+ *\n?L ([\d.]+)', svg)
    assert frame is not None
    places = re.findall(r'<text[^>]* x="([\d.]+)"[^>]*>entrant', svg)
    assert len(places) == 16
    assert min(map(float, places)) > float(frame[2])  # right of the axes
    height = re.search(r'<svg[^>]* height="([\d.]+)pt"', svg)
    assert height is not None
    assert float(height[1]) > 16 * 0.2 * 72


def test_a_winner_says_whom_it_was_not_compared_with() -> None:
    made_up = summary(1, 3)
    made_up["cells"][0]["return"] = {"value": 900.0, "low": 899.0, "high": 901.0, "count": 3}
    assert "Not compared" not in build_tables(made_up)[0].text
    del made_up["cells"][1]["return"]
    text = build_tables(made_up)[0].text
    assert "**entrant 0** is best: its interval lies above all others. Not compared, as" in text
    assert "have no return: entrant 1." in text


def test_rows_with_other_rules_are_not_compared() -> None:
    made_up = summary(1, 3)
    for row, value in zip(made_up["cells"], (300.0, 100.0, 900.0), strict=True):
        interval = {"value": value, "low": value - 1, "high": value + 1, "count": 3}
        row |= {"return": interval, "env_config": {}}
    assert find_winner(made_up["cells"]) == "entrant 2"
    made_up["cells"][2]["env_config"] = {"sticky_action_prob": 0.0}
    assert find_winner(made_up["cells"]) == "entrant 0"
    made_up["winners"] = {"Env0-v0": "entrant 0"}
    text = build_tables(made_up)[0].text
    assert "**entrant 0** is best: its interval lies above all others. Not compared, as" in text
    assert "their env_config differs: entrant 2." in text
    assert format_outcome(made_up, {}, []) == ["best              Env0-v0: entrant 0"]


def test_an_entrant_by_itself_is_neither_best_nor_undecided() -> None:
    made_up = summary(1, 1)
    assert find_winner(made_up["cells"]) is None
    assert "best" not in build_tables(made_up)[0].text
    assert "No winner" not in build_tables(made_up)[0].text
    assert format_outcome(made_up, {}, []) == []
    two = format_outcome(summary(1, 2), {}, [])
    assert two == ["best              Env0-v0: no winner, the intervals overlap"]


def outcome(value: float) -> dict[str, Any]:
    """Return a run that ends at a return."""
    curve = {"steps": [50, 100], "returns": [value / 2, value], "seconds": [1.0, 2.0]}
    numbers = {"seconds": 2.0, "compile_s": 1.0, "memory_gib": 0.5, "num_lanes": 1}
    return {"evaluated": value, "env_steps": 100, "curve": curve, "devices": ["cpu"], **numbers}


def summarize_runs(folder: Path, returns: dict[str, list[float]]) -> dict[str, Any]:
    """Summarize a suite whose entrants ended at these returns, one for each seed."""
    (num_seeds,) = {len(values) for values in returns.values()}
    file = folder / "suite.yaml"
    file.write_text(
        f"seeds: {num_seeds}\nenvironments: {{CartPole-v1: {{budget: 100, threshold: 50, ceiling: 60, "
        "low: 0, high: 500, reference: 50, source: nobody}}\n"
        f"algorithms: {{{', '.join(f'{name}: {{algorithm: PPO}}' for name in returns)}}}\n"
    )
    suite = load_suite(file)
    for suite_cell in suite.cells:
        job = suite.make_job(suite_cell, folder)
        Path(job.folder).mkdir(parents=True)
        for seed, value in enumerate(returns[suite_cell.entrant]):
            job.write_outcome(seed, outcome(value))
    return summarize(suite, folder, {})


@pytest.mark.parametrize(("num_seeds", "words"), [(1, "1 run"), (2, "2 runs")])
def test_less_than_three_seeds_decide_nothing(tmp_path: Path, num_seeds: int, words: str) -> None:
    """Not a winner, nor a threshold, a reference, an improvement, or a regression."""
    runs = {"A": [100.0, 100.1], "B": [10.0, 10.1]}
    found = summarize_runs(tmp_path, {name: x[:num_seeds] for name, x in runs.items()})
    undecided = f"undecided ({words})"
    for row in found["cells"]:
        assert (row["learned"], row["stays_below"]) == (undecided, undecided)
        assert (row["against_reference"], row["return"]["low"]) == (undecided, None)
    assert found["winners"] == {"CartPole-v1": None}
    (pair,) = found["improvement"]
    assert pair["probability"]["low"] is None
    worse = {**found, "cells": [{**row, "returns": {"0": 0.0}} for row in found["cells"]]}
    changes = compare_summaries(found, worse)
    assert {change.verdict for change in changes} == {"undecided (1 run)"}
    assert not any(change.is_regression for change in changes)
    assert f"best              CartPole-v1: no winner, {undecided}" in format_outcome(found, {}, [])
    write_report(found, tmp_path, changes)
    text, page = ((tmp_path / name).read_text() for name in ("report.md", "report.html"))
    for shown in (text, page):
        assert f"No winner, {undecided}." in shown
        assert describe_seeds(num_seeds) in shown
        for verdict in (
            "95 % interval.",
            "is best",
            "| yes |",
            ">yes<",
            "[-",
            "nan",
            "NaN",
            "worse |",
        ):
            assert verdict not in shown
    assert "NaN" not in (tmp_path / "summary.json").read_text()


def test_three_seeds_decide(tmp_path: Path) -> None:
    found = summarize_runs(tmp_path, {"A": [100.0, 100.1, 100.2], "B": [10.0, 10.1, 10.2]})
    assert found["winners"] == {"CartPole-v1": "A"}
    assert [row["learned"] for row in found["cells"]] == ["yes", "no"]
    assert [row["against_reference"] for row in found["cells"]] == ["above", "below"]
    assert found["cells"][0]["training_returns"] == {0: 100.0, 1: 100.1, 2: 100.2}
    assert found["cells"][0]["curve"]["low"][-1] == pytest.approx(
        found["cells"][0]["return"]["low"]
    )
    worse = {
        **found,
        "cells": [{**x, "returns": dict(enumerate((1, 2, 3)))} for x in found["cells"]],
    }
    assert {change.verdict for change in compare_summaries(found, worse)} == {"worse"}
    assert {change.verdict for change in compare_summaries(worse, found)} == {"better"}
    assert describe_seeds(3) == ""
    write_report(found, tmp_path)
    assert "No verdict" not in (tmp_path / "report.md").read_text()


def test_an_earlier_interval_of_another_kind_is_computed_again(tmp_path: Path) -> None:
    """Summaries of former versions have other intervals, beside the same returns."""
    found = summarize_runs(tmp_path, {"A": [100.0, 110.0, 120.0]})
    narrow = {"value": 110.0, "low": 109.9, "high": 110.1}
    earlier = {**found, "cells": [{**row, "return": narrow} for row in found["cells"]]}
    (change,) = compare_summaries(earlier, found)
    assert change.before == change.now == found["cells"][0]["return"]


@pytest.mark.parametrize(
    "cells",
    [{}, ["A"], [{"returns": {"0": 1.0}}], [{"name": "A", "returns": [1.0]}]]
    + [[{"name": "A", "returns": {"0": x}}] for x in ("1", None, True, [1])]
    + [[{"name": "A", "returns": {}, "steps_per_second": "fast"}]],
)
def test_an_earlier_summary_is_validated_before_anything_runs(tmp_path: Path, cells: Any) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"cells": cells}))
    with pytest.raises(ConfigError, match="--compare"):
        read_summary(path)


def test_headings_can_be_read_by_themselves() -> None:
    table = build_tables(summary(1, 1))[0]
    assert table.header[4:] == (
        "learned (threshold)",
        "steps to threshold",
        "seconds to threshold",
        "seconds",
        "steps/s",
        "seconds to compile",
        "memory GiB",
    )
    assert table.rows[0][4:7] == ("undecided (450)", "49,333 (1 of 3)", "114 (1 of 3)")
    assert "Steps and seconds to threshold: the median over the seeds" in table.text
    assert "  " not in table.text
    without = build_tables(summary(1, 1, metrics=["return", "steps_to_threshold"]))[0]
    assert without.header == ("algorithm", "seeds", "return (IQM)", "steps to threshold")
    assert "Steps to threshold: the median" in without.text
    assert "Learned" not in without.text


def test_a_wide_table_fits_since_its_cells_break_but_not_within_brackets() -> None:
    of = summary(1, 1)
    whole = render_page(of, build_tables(of))
    style = whole[whole.index("<style>") : whole.index("</style>")]
    assert re.findall(r"([^{}]+) {[^{}]*nowrap[^{}]*}", style)[0].strip() == "td:first-child"
    assert "<td>497 [473,&nbsp;503], min 473</td>" in whole
    assert "<td>49,333 (1&nbsp;of&nbsp;3)</td>" in whole
    assert "&nbsp;" not in render_markdown(of, build_tables(of))


def test_a_ceiling_is_told_beside_the_threshold_and_recorded_data_have_rows() -> None:
    plain = summary(1, 1)
    (table, *_) = build_tables(plain)
    assert "environment steps" in table.text
    assert "Below:" not in table.text
    recorded = summary(1, 1)
    recorded["cells"][0] |= {"ceiling": 300.0, "stays_below": "no", "is_offline": True}
    (table, *_) = build_tables(recorded)
    assert "100,000 recorded rows" in table.text
    assert "Below: the return's interval lies at or below a limit, as it must." in table.text
    assert "undecided (450), below: no (300)" in table.rows[0]
    recorded["cells"][0]["threshold"] = None
    assert "below: no (300)" in build_tables(recorded)[0].rows[0]


def test_a_reference_has_a_column_and_a_source() -> None:
    of = summary(1, 3)
    for row, against in zip(of["cells"], ("above", "below"), strict=False):
        row |= {"reference": 490.0, "source": "somebody", "against_reference": against}
    table = build_tables(of)[0]
    column = table.header.index("reference")
    assert [row[column] for row in table.rows] == ["490: above", "490: below", "-"]
    assert "References: 490 (entrant 0, entrant 1): somebody." in table.text
