"""The sink "console": results as lines on standard output."""

from rich.console import Console

from jaxrl.logging import results
from jaxrl.logging.display import PlainDisplay


class ConsoleSink:
    """For scripts and notebooks that call `train()` themselves: a line every few seconds."""

    def __init__(self) -> None:
        self._display = PlainDisplay("", {}, console=Console())

    def write(self, result: results.Result) -> None:
        self._display.iteration(result)

    def close(self) -> None:
        self._display.flush()
