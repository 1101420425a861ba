"""`result.json`: every result whole, one line of strict JSON each."""

import json
from pathlib import Path
from typing import Any

from jaxrl.logging import files, results


class JsonSink:
    """Appends each result to a file of JSON lines.

    Args:
        path: The file; made if missing.
        start_iteration: The iteration that the run goes on from. Later lines, and a line that a
            killed process did not finish, are dropped; 0 for a new run.
    """

    def __init__(self, path: Path, *, start_iteration: int = 0) -> None:
        self._path = path
        with files.one_sentence("write", path):
            if path.exists():
                _keep_until(path, start_iteration)
            self._file = path.open("a", encoding="utf-8")

    def write(self, result: results.Result) -> None:
        line = json.dumps(results.to_json(result), allow_nan=False)
        with files.one_sentence("write", self._path):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_results(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a `result.json`; what a killed process left half-written is not."""
    with files.one_sentence("read", path), path.open(encoding="utf-8", errors="replace") as file:
        return [row for row in map(_parse, file) if row is not None]


def _keep_until(path: Path, iteration: int) -> None:
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = list(file)
    kept = [line for line in lines if _belongs(line, iteration)]
    if kept != lines:
        with files.replacing(path) as file:
            file.writelines(kept)


def _belongs(line: str, iteration: int) -> bool:
    row = _parse(line)
    return row is not None and (results.number(row, results.ITERATION) or 0) <= iteration


def _parse(line: str) -> dict[str, Any] | None:
    if not line.endswith("\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
