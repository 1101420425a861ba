"""`result.json`: every result whole, one line of strict JSON each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jaxrl.runs import files, results

_ENCODER = json.JSONEncoder(allow_nan=False)


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
        line = _line(results.plain_result(result))
        with files.one_sentence("write", self._path):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        with files.one_sentence("write", self._path):
            self._file.close()


def _line(result: results.PlainResult) -> str:
    try:
        return _ENCODER.encode(result)
    except ValueError:  # something in it is not finite, for which JSON has no word
        return json.dumps(results.to_json(result), allow_nan=False)


def read_results(path: Path, *, containing: str = "") -> Iterator[dict[str, Any]]:
    """The complete lines of a `result.json`; not what a killed process left half-written.

    Args:
        path: The file.
        containing: Text that a line must have; lines without it are not even parsed.
    """
    with files.one_sentence("read", path), _open(path) as file:
        for line in file:
            row = parse(line) if containing in line else None
            if row is not None:
                yield row


def _open(path: Path) -> IO[str]:
    return path.open(encoding="utf-8", errors="replace")


def _keep_until(path: Path, iteration: int) -> None:
    """Rewrites the file if a line does not belong; files may be large, so line by line."""
    with _open(path) as lines:
        if all(_belongs(line, iteration) for line in lines):
            return
    with _open(path) as lines, files.replacing(path) as kept:
        kept.writelines(line for line in lines if _belongs(line, iteration))


def _belongs(line: str, iteration: int) -> bool:
    row = parse(line)
    return row is not None and (results.number(row, results.ITERATION) or 0) <= iteration


def parse(line: str) -> dict[str, Any] | None:
    """The result of a line, or None if the line is not complete."""
    if not line.endswith("\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
