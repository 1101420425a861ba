"""The sink "console": results as lines on standard output, or as a panel in a notebook."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from jaxrl.loggers.display import PlainDisplay
from jaxrl.loggers.notebook import NotebookDisplay
from jaxrl.runs import results


class ConsoleSink:
    """For scripts and notebooks that call `train()` or `fit()` themselves.

    A line every few seconds; in a notebook one panel that is drawn anew.

    Args:
        title: Of the panel.
        stop: The stop criterion, for the panel's progress bar.
    """

    def __init__(self, title: str = "", stop: Mapping[str, Any] | None = None) -> None:
        console = Console()
        self._display: NotebookDisplay | PlainDisplay
        if console.is_jupyter:
            self._display = NotebookDisplay(title, stop or {})
        else:
            self._display = PlainDisplay("", {}, console=console)

    def write(self, result: results.Result) -> None:
        self._display.iteration(result)

    def close(self) -> None:
        self._display.flush()
