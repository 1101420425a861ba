"""`progress.csv`: the scalars of every result, one row each, under flat names."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxrl.runs import files, results


class CsvSink:
    """Appends each result's scalars to a table.

    A column that appears later (the first evaluation, say) rewrites the file with the longer
    header and empty cells in the rows before it; the file is whole at every moment.

    Args:
        path: The file; made if missing.
        start_iteration: The iteration that the run goes on from; later rows are dropped.
    """

    def __init__(self, path: Path, *, start_iteration: int = 0) -> None:
        self._path = path
        self._columns: dict[str, None] = {}
        with files.one_sentence("write", path):
            if path.exists():
                self._restore(start_iteration)
            self._open()

    def write(self, result: results.Result) -> None:
        row = results.flat_scalars(result)
        new = (
            [] if row.keys() <= self._columns.keys() else [n for n in row if n not in self._columns]
        )
        with files.one_sentence("write", self._path):
            if new:
                self._file.close()
                self._rewrite([*self._columns, *new], self._rows())
                self._open()
            self._writer.writerow([row.get(name, "") for name in self._columns])
            self._file.flush()

    def close(self) -> None:
        with files.one_sentence("write", self._path):
            self._file.close()

    def _open(self) -> None:
        self._file = self._path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def _restore(self, iteration: int) -> None:
        text = self._path.read_bytes().decode("utf-8", errors="replace")
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if rows and not text.endswith("\n"):
            rows.pop()  # a killed process did not finish it
        if not rows:
            self._rewrite([], iter(()))
            return
        header, *body = rows
        column = header.index(results.ITERATION) if results.ITERATION in header else None
        kept = [row for row in body if len(row) == len(header) and _until(row, column, iteration)]
        if len(kept) < len(body) or not text.endswith("\n"):
            self._rewrite(header, iter(kept))
        self._columns = dict.fromkeys(header)

    def _rows(self) -> Iterator[Sequence[str]]:
        """The rows as they stand in the file, without the header."""
        with self._path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            yield from reader

    def _rewrite(self, columns: list[str], rows: Iterator[Sequence[str]]) -> None:
        with files.replacing(self._path) as file:
            if columns:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in rows:
                    writer.writerow([*row, *[""] * (len(columns) - len(row))])
        self._columns = dict.fromkeys(columns)


def _until(row: Sequence[str], column: int | None, iteration: int) -> bool:
    if column is None:
        return True
    try:
        return float(row[column]) <= iteration
    except ValueError:
        return False
