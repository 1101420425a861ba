"""The panel of a run in a notebook: one output, drawn anew as the run goes on."""

import importlib
import io
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from jaxrl.loggers.display import LiveDisplay
from jaxrl.runs import results

DRAWN_EVERY_S = 0.25
WIDTH = 88
PAGE = '<pre style="line-height: 1.2; white-space: pre">{code}</pre>'


class NotebookDisplay:
    """Shows results as the terminal's live panel does, where cells have outputs instead of lines.

    It needs no widgets, and what it drew last stays in the saved notebook. A run that goes on in
    another cell is shown there.

    Args:
        title: Of the panel.
        stop: The stop criterion, for the progress bar.
        clock: Seconds from any origin.
    """

    def __init__(
        self, title: str, stop: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paper = Console(
            file=io.StringIO(),
            record=True,
            width=WIDTH,
            force_jupyter=False,
            force_terminal=True,
            color_system="truecolor",
        )
        self._panel = LiveDisplay(title, stop, console=self._paper, clock=clock)
        self._clock = clock
        self._drawn_at = float("-inf")
        self._place: tuple[Any, str] | None = None

    def iteration(self, result: results.Result) -> None:
        """An iteration ended: draw, unless that was done just now."""
        if self._panel.status.phase != "training":
            self._panel.phase("training")
        self._panel.iteration(result)
        progress = self._panel.status.progress()
        is_there = progress is not None and progress.fraction == 1.0
        if is_there or self._clock() - self._drawn_at >= DRAWN_EVERY_S:
            self._draw()

    def flush(self) -> None:
        """The run is over: draw what it ended with."""
        if self._place is not None:
            self._panel.__exit__(None, None, None)
            self._draw(in_place=True)

    def _draw(self, *, in_place: bool = False) -> None:
        self._drawn_at = self._clock()
        self._paper.print(self._panel.render())
        page = {
            "text/html": self._paper.export_html(inline_styles=True, code_format=PAGE, clear=False),
            "text/plain": self._paper.export_text(),
        }
        cells = importlib.import_module("IPython.display")
        cell = importlib.import_module("IPython").get_ipython().execution_count
        if self._place is None or (self._place[0] != cell and not in_place):
            self._place = (cell, uuid.uuid4().hex)
            cells.display(page, raw=True, display_id=self._place[1])
        else:
            cells.update_display(page, raw=True, display_id=self._place[1])
