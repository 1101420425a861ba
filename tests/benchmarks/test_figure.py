"""README's picture and table are those of the results."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks import figure, machine, speed
from benchmarks.figure import BEGIN, END
from benchmarks.machine import ROOT
from benchmarks.peers import launch
from benchmarks.settings import DEFAULT_SETTINGS


def test_readme_has_the_table_of_the_results() -> None:
    """`python -m benchmarks.figure` writes it."""
    text = (ROOT / "README.md").read_text()
    assert (
        figure.insert_table(text, figure.render_readme_tables(figure.load_results(figure.RESULTS)))
        == text
    )
    assert "](docs/images/speed.png)" in text


def result(**speeds: list[float]) -> dict[str, Any]:
    peers = {
        name.replace("_", "-"): {
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


RESULTS = {
    "speed": result(
        jaxrl=[100.0, 200.0, 300.0],
        rejax=[50.0, 100.0, 150.0],
        handwritten=[1.0, 1.0, 1.0],
        sb3=[1.0, 10.0, 15.0],
    )
}


def test_the_table_has_ours_over_other_libraries() -> None:
    written = figure.render_readme_table(RESULTS)
    row = "| PPO, CartPole, 64 envs x 32 steps | 200 | rejax 2.00 (2.00 - 2.00), sb3 20 (20 - 100) | - |"
    assert row in written
    assert "handwritten" not in written
    assert "busy" not in written
    busy = {"speed": {**RESULTS["speed"], "load": {"before": 1.5}}}
    assert "The machine was busy" in figure.render_readme_table(busy)


def test_without_others_there_is_no_row() -> None:
    alone = {"recurrent": result(lstm=[1.0, 2.0, 3.0], gru=[1.0, 2.0, 3.0])}
    assert "64 envs" not in figure.render_readme_table(alone)


def test_the_table_goes_between_the_markers() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert figure.insert_table(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    for wrong in ("neither", f"{END}{BEGIN}", f"{text}{text}"):
        with pytest.raises(ValueError, match="once each"):
            figure.insert_table(wrong, "new")


def test_the_command_draws_and_writes(tmp_path: Path) -> None:
    for name, number in (("a", 200.0), ("b", 300.0)):
        (tmp_path / name).mkdir()
        of_machine = result(jaxrl=[100.0, number, 400.0], rejax=[50.0, 100.0, 150.0])
        (tmp_path / name / "speed.json").write_text(json.dumps(of_machine))
    readme, picture = tmp_path / "README.md", tmp_path / "images" / "speed.png"
    readme.write_text(f"{BEGIN}\n{END}\n")
    options = ["--results", str(tmp_path), "--readme", str(readme), "--picture", str(picture)]
    assert figure.main(options) == 0
    assert "| 200 |" in readme.read_text()
    assert "| 300 |" in readme.read_text()
    height, width, _ = imread(picture).shape
    assert width > 400
    assert height > 100


def test_without_results_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figure.main(["--results", str(tmp_path)]) == 1
    assert "no results" in capsys.readouterr().err


def test_every_setting_has_a_title_and_every_peer_a_family() -> None:
    for stem, name in figure.TITLES:
        assert stem in figure.STEMS
        assert name
    assert set(figure.STEMS) == {suite.stem for suite in speed.SUITES.values()}
    assert figure._make_title("speed", DEFAULT_SETTINGS[0]) == "PPO, CartPole, 4 envs x 128 steps"
    families = {name: figure.get_family(name) for name in (*launch.PEERS, *launch.HOST_PEERS)}
    assert families[launch.TUNED] == families[launch.GYMNASIUM] == "other"
    assert families[launch.RLLIB_2X8] == "RLlib"
    assert len({colour for colour, _ in figure.FAMILY_STYLES.values()}) == len(figure.FAMILY_STYLES)


def test_results_that_are_kept_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(figure, "main", lambda argv: calls.append(argv) or 0)
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    nothing = ["--parts", "dqn", "--peers", "limits", "--suite", "replay"]
    assert speed.main([*nothing, "--out", str(tmp_path / "elsewhere" / "machine")]) == 0
    assert calls == []
    assert speed.main([*nothing, "--out", str(tmp_path / "machine" / "elsewhere")]) == 0
    assert calls == []
    assert speed.main([*nothing, "--out", str(tmp_path / "machine")]) == 0
    assert calls == [[]]


def test_a_narrowed_run_leaves_the_committed_results_alone() -> None:
    whole = speed._parse(["--suite", "replay"]).out
    assert whole.parent == figure.RESULTS
    narrowed = (["--pairs", "3"], ["--settings", "4x128"], ["--steps", "100"], ["--parts", "dqn"])
    for options in narrowed:
        assert speed._parse(["--suite", "replay", *options]).out.name == ".benchmarks"


def test_machines_of_a_kind_share_a_folder() -> None:
    intel = {"cpu": "Intel(R) Xeon(R) Processor @ 2.50GHz", "cores": 2}
    assert machine.make_folder_name(intel) == "intel-xeon-2-50ghz-2-cores"
    assert machine.make_folder_name({"cpu": "AMD EPYC", "cores": 2}) == "amd-epyc-2-cores"
