"""JSON sink: `result.json` holds each complete result as one line of strict JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jaxrl.runs import results
from jaxrl.runtime import files

_ENCODER = json.JSONEncoder(allow_nan=False)


class JsonSink:
    """Sink that appends each result to a file of JSON lines.

    Args:
        path: Path of the file; created if missing.
        start_iteration: Iteration that the run resumes from, 0 for a new run. Later lines, and a
            line left incomplete by a killed process, are dropped.
    """

    def __init__(self, path: Path, *, start_iteration: int = 0) -> None:
        self._path = path
        with files.translate_os_errors("write", path):
            if path.exists():
                _drop_after(path, start_iteration)
            self._file = path.open("a", encoding="utf-8")

    def write(self, result: results.Result) -> None:
        line = _encode_line(results.to_plain_result(result))
        with files.translate_os_errors("write", self._path):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        with files.translate_os_errors("write", self._path):
            self._file.close()


def _encode_line(result: results.PlainResult) -> str:
    try:
        return _ENCODER.encode(result)
    except ValueError:  # contains a non-finite number, which JSON cannot represent
        return json.dumps(results.to_json(result), allow_nan=False)


def read_results(path: Path, *, containing: str = "") -> Iterator[dict[str, Any]]:
    """Yield the results in a `result.json`, without a line left incomplete by a killed process.

    Args:
        path: Path of the file.
        containing: Text that a line must contain; other lines are not parsed.
    """
    with files.translate_os_errors("read", path), _open_text(path) as file:
        for line in file:
            row = parse_line(line) if containing in line else None
            if row is not None:
                yield row


def _open_text(path: Path) -> IO[str]:
    return path.open(encoding="utf-8", errors="replace")


def _drop_after(path: Path, iteration: int) -> None:
    """Drop later and incomplete lines, reading line by line since the file may be large."""
    with _open_text(path) as lines:
        if all(_is_kept(line, iteration) for line in lines):
            return
    with _open_text(path) as lines, files.open_atomic(path) as kept:
        kept.writelines(line for line in lines if _is_kept(line, iteration))


def _is_kept(line: str, iteration: int) -> bool:
    row = parse_line(line)
    return row is not None and (results.get_number(row, results.ITERATION) or 0) <= iteration


def parse_line(line: str) -> dict[str, Any] | None:
    """Return the result encoded in a line, or None if the line is incomplete."""
    if not line.endswith("\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
