"""CSV sink: `progress.csv` holds the scalars of each result as one row, under flat names."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl.runs import results
from jaxrl.runtime import files


class CsvSink:
    """Sink that appends the scalars of each result to a table.

    When a new column appears (at the first evaluation, for example), the file is rewritten with
    the longer header and empty cells in earlier rows. The file on disk is always complete.

    Args:
        path: Path of the file; created if missing.
        start_iteration: Iteration that the run resumes from; later rows are dropped.
    """

    def __init__(self, path: Path, *, start_iteration: int = 0) -> None:
        self._path = path
        self._columns: dict[str, None] = {}
        with files.translate_os_errors("write", path):
            if path.exists():
                self._restore(start_iteration)
            self._open()

    def write(self, result: results.Result) -> None:
        row = results.flatten_scalars(result)
        added = (
            [] if row.keys() <= self._columns.keys() else [n for n in row if n not in self._columns]
        )
        with files.translate_os_errors("write", self._path):
            if added:
                self._file.close()
                self._rewrite([*self._columns, *added], self._read_rows())
                self._open()
            self._writer.writerow([_unify_lines(row.get(name, "")) for name in self._columns])
            self._file.flush()

    def close(self) -> None:
        with files.translate_os_errors("write", self._path):
            self._file.close()

    def _open(self) -> None:
        self._file = self._path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def _restore(self, iteration: int) -> None:
        text = self._path.read_bytes().decode("utf-8", errors="replace")
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if rows and not text.endswith("\n"):
            rows.pop()  # left incomplete by a killed process
        if not rows:
            self._rewrite([], iter(()))
            return
        header, *body = rows
        column = header.index(results.ITERATION) if results.ITERATION in header else None
        kept = [
            row for row in body if len(row) == len(header) and _is_up_to(row, column, iteration)
        ]
        if len(kept) < len(body) or not text.endswith("\n"):
            self._rewrite(header, iter(kept))
        self._columns = dict.fromkeys(header)

    def _read_rows(self) -> Iterator[Sequence[str]]:
        """Yield the rows of the file, without the header."""
        with self._path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            yield from reader

    def _rewrite(self, columns: list[str], rows: Iterator[Sequence[str]]) -> None:
        with files.open_atomic(self._path) as file:
            if columns:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in rows:
                    writer.writerow([*row, *[""] * (len(columns) - len(row))])
        self._columns = dict.fromkeys(columns)


def _unify_lines(value: object) -> object:
    """Return text with line feeds alone, since a carriage return would end an unquoted row."""
    if isinstance(value, str) and "\r" in value:
        return value.replace("\r\n", "\n").replace("\r", "\n")
    return value


def _is_up_to(row: Sequence[str], column: int | None, iteration: int) -> bool:
    if column is None:
        return True
    try:
        return float(row[column]) <= iteration
    except ValueError:
        return False
