"""The sink "console": each result as one line on standard output."""

import sys

from jaxrl.logging import results, text
from jaxrl.logging.status import RunStatus


class ConsoleSink:
    """Prints a line per result, for scripts and notebooks that call `train()` themselves."""

    def __init__(self) -> None:
        self._status = RunStatus()

    def write(self, result: results.Result) -> None:
        self._status.update(result)
        sys.stdout.write(text.line(result, self._status.steps_per_s) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is held."""
