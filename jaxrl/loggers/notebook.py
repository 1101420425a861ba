"""Notebook display of a run: one output that is redrawn as the run proceeds."""

import importlib
import io
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from jaxrl.loggers.display import LiveDisplay
from jaxrl.runs import results

REDRAW_INTERVAL_S = 0.25
WIDTH = 88
HTML_TEMPLATE = '<pre style="line-height: 1.2; white-space: pre">{code}</pre>'


class NotebookDisplay:
    """Panel of results in the output of a notebook cell, like the terminal's live panel.

    It needs no widgets, and the last drawing stays in the saved notebook. A run that is continued
    in another cell is shown there.

    Args:
        title: Title of the panel.
        stop: Stop criterion, for the progress bar.
        clock: Function that returns seconds since an arbitrary origin.
    """

    def __init__(
        self, title: str, stop: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = Console(
            file=io.StringIO(),
            record=True,
            width=WIDTH,
            force_jupyter=False,
            force_terminal=True,
            color_system="truecolor",
        )
        self._panel = LiveDisplay(title, stop, console=self._console, clock=clock)
        self._clock = clock
        self._last_drawn_at = float("-inf")
        self._output: tuple[Any, str] | None = None

    def update(self, result: results.Result) -> None:
        """Show the result of an iteration; skip the redraw if the last one was just now."""
        if self._panel.status.phase != "training":
            self._panel.set_phase("training")
        self._panel.update(result)
        progress = self._panel.status.compute_progress()
        is_done = progress is not None and progress.fraction == 1.0
        if is_done or self._clock() - self._last_drawn_at >= REDRAW_INTERVAL_S:
            self._draw()

    def flush(self) -> None:
        """Redraw the panel with the final result of the run."""
        if self._output is not None:
            self._panel.__exit__(None, None, None)
            self._draw(in_place=True)

    def _draw(self, *, in_place: bool = False) -> None:
        self._last_drawn_at = self._clock()
        self._console.print(self._panel.render())
        page = {
            "text/html": self._console.export_html(
                inline_styles=True, code_format=HTML_TEMPLATE, clear=False
            ),
            "text/plain": self._console.export_text(),
        }
        ipython = importlib.import_module("IPython.display")
        cell = importlib.import_module("IPython").get_ipython().execution_count
        if self._output is None or (self._output[0] != cell and not in_place):
            self._output = (cell, uuid.uuid4().hex)
            ipython.display(page, raw=True, display_id=self._output[1])
        else:
            ipython.update_display(page, raw=True, display_id=self._output[1])
