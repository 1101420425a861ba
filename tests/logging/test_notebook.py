"""The panel in a notebook, without one: what is displayed, where, and how often."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import rich.console

from jaxrl.loggers import RunFolder
from jaxrl.loggers.display import REDRAW_INTERVAL_S, NotebookDisplay
from jaxrl.loggers.sinks import ConsoleSink, open_all
from tests.logging.test_display import Clock, result

STOP = {"num_env_steps_sampled_lifetime": 1000.0}


class Cells:
    """Stand-in for a kernel: outputs by the cell that runs and their ids."""

    def __init__(self) -> None:
        self.execution_count = 1
        self.outputs: dict[str, tuple[int, dict[str, str]]] = {}
        self.updates = 0

    def display(self, data: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw
        assert display_id not in self.outputs
        self.outputs[display_id] = (self.execution_count, data)

    def update_display(self, data: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw
        self.updates += 1
        self.outputs[display_id] = (self.outputs[display_id][0], data)

    @property
    def pages(self) -> list[str]:
        return [page["text/plain"] for _, page in self.outputs.values()]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    kernel: Any = Cells()
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: kernel
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", kernel)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    return kernel


def test_one_output_is_drawn_anew(cells: Cells) -> None:
    clock = Clock()
    display = NotebookDisplay("the_run", STOP, clock)
    for iteration in (1, 2, 3):
        clock.now += 2 * REDRAW_INTERVAL_S
        display.update(result(iteration))
    assert (len(cells.outputs), cells.updates) == (1, 2)
    page = cells.pages[0]
    assert "the_run" in page
    assert "iteration 3" in page
    assert "30%" in page
    assert "training" in page
    html = next(iter(cells.outputs.values()))[1]["text/html"]
    assert html.startswith("<pre style=")
    assert "iteration 3" in html


def test_it_is_not_drawn_more_often_than_one_can_look(cells: Cells) -> None:
    clock = Clock()
    display = NotebookDisplay("", {}, clock)
    for iteration in range(1, 101):
        clock.now += REDRAW_INTERVAL_S / 50
        display.update(result(iteration))
    assert cells.updates <= 3
    display.flush()
    assert "iteration 100" in cells.pages[0]
    assert "ended after" in cells.pages[0]


def test_a_run_that_goes_on_in_another_cell_is_shown_there(cells: Cells) -> None:
    clock = Clock()
    display = NotebookDisplay("", {}, clock)
    display.update(result(1))
    cells.execution_count = 2
    clock.now += 1.0
    display.update(result(2))
    assert [cell for cell, _ in cells.outputs.values()] == [1, 2]
    assert "iteration 1" in cells.pages[0]
    assert "iteration 2" in cells.pages[1]
    cells.execution_count = 3
    display.flush()
    assert len(cells.pages) == 2
    assert "ended after" in cells.pages[1]


def test_the_iteration_that_reaches_the_criterion_is_always_drawn(cells: Cells) -> None:
    display = NotebookDisplay("", STOP, Clock())
    display.update(result(9))
    display.update(result(10))
    assert "iteration 10" in cells.pages[0]


def test_nothing_is_drawn_of_a_run_without_results(cells: Cells) -> None:
    NotebookDisplay("", {}).flush()
    assert cells.outputs == {}


def test_the_console_is_a_panel_in_a_notebook_with_the_stop_criterion(
    cells: Cells, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder.make("my_run", {}, results_dir=tmp_path) as folder:
        folder.save_stop_criterion(STOP)
        (sink,) = open_all(["console"], folder, {})
        sink.write(result(4))
        sink.close()
    assert "my_run" in cells.pages[0]
    assert "40%" in cells.pages[0]
    assert capsys.readouterr().out == ""


def test_elsewhere_it_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink("my_run", STOP)
    sink.write(result(4))
    sink.close()
    assert "400" in capsys.readouterr().out
