import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from jaxrl.errors import RunFolderError
from jaxrl.loggers import RunFolder, plots
from jaxrl.loggers.plots import draw_learning_curve, read_learning_curve
from jaxrl.loggers.sinks import open_all


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder.make("run", {}, results_dir=tmp_path)
    yield folder
    folder.close()


def record(folder: RunFolder, sinks: list[Any], results: list[dict[str, Any]]) -> None:
    for sink in open_all(sinks, folder, {}):
        for result in results:
            sink.write(result)
        sink.close()


def result(iteration: int, *, evaluated: bool | None = None) -> dict[str, Any]:
    returns = {
        f"episode_return_{end}": iteration + i for i, end in enumerate(("min", "mean", "max"))
    }
    row: dict[str, Any] = {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 1000 * iteration,
        "env_runners": returns if iteration > 1 else {},
    }
    if evaluated is not None:
        row["evaluation"] = {"env_runners": {"episode_return_mean": 500.0}}
        row["timers"] = {"evaluation_s": 0.5} if evaluated else {}
    return row


RESULTS = [
    result(1),
    result(2, evaluated=True),
    result(3, evaluated=False),
    result(4, evaluated=True),
]


@pytest.mark.parametrize("sinks", [["json"], ["csv"], ["csv", "json"]])
def test_the_curve_is_read_back_from_what_was_logged(folder: RunFolder, sinks: list[str]) -> None:
    record(folder, sinks, RESULTS)
    curve = read_learning_curve(folder.path)
    assert curve.steps == [2000, 3000, 4000]
    assert curve.low == [2, 3, 4]
    assert curve.mean == [3, 4, 5]
    assert curve.high == [4, 5, 6]
    # Iteration 3 repeats the evaluation of iteration 2; the equal score of iteration 4 is its own.
    assert curve.evaluations == [(2000, 500.0), (4000, 500.0)]


def test_a_long_run_is_thinned_but_for_its_evaluations(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(folder, ["json"], [result(i, evaluated=i == 50 or None) for i in range(2, 102)])
    monkeypatch.setattr(plots, "_MAX_POINTS", 10)
    curve = read_learning_curve(folder.path)
    assert 10 <= len(curve.steps) <= 12
    assert curve.steps[0] == 2000
    assert curve.evaluations == [(50_000, 500.0)]


def test_the_picture_is_a_picture(folder: RunFolder) -> None:
    record(folder, ["json"], RESULTS)
    path = draw_learning_curve(folder, title="PPO on X")
    assert path == folder.path / "plots" / "learning_curve.png"
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[0] > 300
    assert pixels[..., :3].std() > 0.02  # something is drawn
    assert [file.name for file in path.parent.iterdir()] == ["learning_curve.png"]
    assert draw_learning_curve(folder) == path  # drawn anew over the old one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for title in ("a$^$b", "\u6d4b"):  # no formula, and not in the font
            assert draw_learning_curve(folder, title=title) == path


def test_without_an_ended_episode_there_is_no_picture(folder: RunFolder) -> None:
    assert draw_learning_curve(folder) is None
    record(folder, ["json"], [result(1)])
    assert draw_learning_curve(folder) is None
    assert not folder.learning_curve.exists()


def test_a_picture_that_cannot_be_written_is_one_sentence(folder: RunFolder) -> None:
    record(folder, ["json"], RESULTS)
    (folder.path / "plots").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"Cannot write .*learning_curve\.png"):
        draw_learning_curve(folder)


def trained(iteration: int, *, evaluated: bool) -> dict[str, Any]:
    """The result of a run on recorded data, which has no episodes of its own."""
    row: dict[str, Any] = {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 0,
        "num_env_steps_trained_lifetime": 500 * iteration,
        "env_runners": {},
        "learners": {"default_policy": {"total_loss": 1.0 / iteration}},
    }
    if evaluated:
        row["evaluation"] = {"env_runners": {"episode_return_mean": 10.0 * iteration}}
        row["timers"] = {"evaluation_s": 0.5}
    return row


@pytest.mark.parametrize("evaluated", [True, False])
def test_recorded_data_have_evaluations_or_losses(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, evaluated: bool
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: drawn.append(figure) or path)
    record(folder, ["json"], [trained(i, evaluated=evaluated) for i in (1, 2)])
    assert draw_learning_curve(folder) == folder.learning_curve
    figure = drawn[0]
    assert isinstance(figure, Figure)
    axes, line = figure.axes[0], figure.axes[0].lines[0]
    assert len(axes.lines) == 1
    assert not axes.collections
    assert axes.get_xlabel() == "rows trained on"
    assert list(line.get_xdata()) == [500, 1000]
    assert list(line.get_ydata()) == ([10.0, 20.0] if evaluated else [1.0, 0.5])
    assert axes.get_ylabel() == ("episode return" if evaluated else "total loss")
    assert line.get_label() == ("evaluation, mean" if evaluated else "training, mean")
