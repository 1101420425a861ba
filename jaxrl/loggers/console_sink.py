"""Console sink: results as lines on standard output, or as a panel in a notebook."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from jaxrl.loggers.display import PlainDisplay
from jaxrl.loggers.notebook import NotebookDisplay
from jaxrl.runs import results


class ConsoleSink:
    """Sink for scripts and notebooks that call `train()` or `fit()` themselves.

    Prints a line every few seconds; in a notebook, redraws a single panel.

    Args:
        title: Title of the panel.
        stop: Stop criterion, for the panel's progress bar.
    """

    def __init__(self, title: str = "", stop: Mapping[str, Any] | None = None) -> None:
        console = Console()
        self._display: NotebookDisplay | PlainDisplay
        if console.is_jupyter:
            self._display = NotebookDisplay(title, stop or {})
        else:
            self._display = PlainDisplay("", {}, console=console)

    def write(self, result: results.Result) -> None:
        self._display.update(result)

    def flush(self) -> None:
        self._display.flush()

    def close(self) -> None:
        self.flush()
