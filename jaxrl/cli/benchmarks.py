"""What `jaxrl benchmark` does: progress, the report, and the words at the end."""

from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from jaxrl.bench import runner
from jaxrl.bench.compare import Change, compared, read_summary
from jaxrl.bench.peers import root
from jaxrl.bench.report import MARKDOWN, write_report
from jaxrl.bench.speed import run_speed, speed_tables
from jaxrl.bench.suite import Suite, load_suite, suite_file
from jaxrl.bench.summary import summary_of
from jaxrl.bench.tables import Table
from jaxrl.cli.interrupts import Raised
from jaxrl.errors import RunFolderError
from jaxrl.loggers import text


def run(given: str, out: str | None, compare: str | None) -> int:
    """Runs a suite, or goes on with it; returns the exit code.

    Returns:
        1 if a run failed, or if `compare` found something worse; else 0.
    """
    suite = load_suite(suite_file(given))
    before = None if compare is None else read_summary(Path(compare).expanduser())
    folder = runner.default_folder(suite) if out is None else Path(out).expanduser()
    with runner.claimed(folder.absolute()) as claimed:
        _keep_suite(suite, claimed)
        with Raised(), _Display() as display:
            failures = runner.run(suite, claimed, display)
        tables, slow = _speed(suite, claimed / "speed")
        summary = summary_of(suite, claimed, failures, tables)
        changes = None if before is None else compared(before, summary)
        page = write_report(summary, claimed, changes)
    for line in _lines(summary["winners"], failures, changes or []):
        typer.echo(line)
    typer.echo(f"report            {page}")
    typer.echo(f"as Markdown       {page.parent / MARKDOWN}")
    worse = [change for change in changes or [] if change.is_regression]
    return 1 if failures or slow or worse else 0


def _speed(suite: Suite, folder: Path) -> tuple[list[Table], dict[str, str]]:
    """Tables of the programs' speed, and why suites of it have none."""
    if suite.speed is None or suite.peers is None:
        return [], {}
    failures = run_speed(
        suite.speed,
        root(suite.peers),
        folder,
        lambda name, what: typer.echo(f"speed, {name}: {what}"),
    )
    return speed_tables(suite.speed, folder, failures), failures


def _keep_suite(suite: Suite, folder: Path) -> None:
    """The suite's text beside its results; another suite's results are left alone.

    Raises:
        RunFolderError: The folder holds the results of a suite of another name.
    """
    path = folder / "suite.yaml"
    name = folder / "suite.txt"
    if name.is_file() and name.read_text(encoding="utf-8").strip() != suite.name:
        raise RunFolderError(
            f"{folder} holds the results of the suite "
            f"{name.read_text(encoding='utf-8').strip()!r}, not of {suite.name!r}: give another --out."
        )
    name.write_text(suite.name + "\n", encoding="utf-8")
    path.write_text(suite.text, encoding="utf-8")


def _lines(
    winners: dict[str, str | None], failures: dict[str, str], changes: list[Change]
) -> list[str]:
    lines = [f"failed            {name}: {why}" for name, why in failures.items()]
    lines += [
        f"best              {env}: {winner or 'no winner, the intervals overlap'}"
        for env, winner in winners.items()
    ]
    lines += [f"{change.verdict:<17} {change.name}" for change in changes]
    return lines


class _Display:
    """A bar for the suite and the cell that runs; on a pipe, a line for each cell."""

    def __init__(self) -> None:
        self._console = Console()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Display":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, progress: runner.Progress) -> None:
        cell = progress.cell
        title = f"{progress.number}/{progress.total}  {cell.entrant} on {cell.environment}"
        told = progress.note
        if progress.return_mean is not None:
            told = f"return {text.number(progress.return_mean)}" + (f", {told}" if told else "")
        if not self._console.is_terminal:
            if progress.note and not progress.note.startswith("seed"):
                typer.echo(f"{title}: {progress.note}")
            return
        task = self._tasks.get(cell.name)
        if task is None:
            task = self._bars.add_task(title, total=progress.budget, told=told)
            self._tasks[cell.name] = task
        self._bars.update(task, completed=progress.steps, told=told)
