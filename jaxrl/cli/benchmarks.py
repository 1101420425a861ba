"""Implementation of `jaxrl benchmark`: progress, report and final output."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from jaxrl.bench import runner
from jaxrl.bench.markdown import Table
from jaxrl.bench.peers import get_checkout
from jaxrl.bench.report import MARKDOWN_FILE, describe_seeds, format_best, write_report
from jaxrl.bench.suite import Suite, find_suite_file, load_suite
from jaxrl.bench.summary import Change, compare_summaries, judge_best, read_summary, summarize
from jaxrl.cli import terminal
from jaxrl.errors import RunFolderError
from jaxrl.loggers import text


def run(given: str, out: str | None, compare: str | None) -> int:
    """Run a suite, or continue it.

    Returns:
        Exit code: 1 if a run failed or if `compare` found a regression, else 0.
    """
    suite = load_suite(find_suite_file(given))
    previous = None if compare is None else read_summary(Path(compare).expanduser())
    folder = runner.get_default_folder(suite) if out is None else Path(out).expanduser()
    if note := describe_seeds(len(suite.seeds)):
        terminal.echo(f"seeds             {note}")
    with runner.lock_folder(folder.absolute()) as claimed:
        _write_suite(suite, claimed)
        with terminal.RaiseOnInterrupt(), _Display() as display:
            failures = runner.run_suite(
                suite,
                claimed,
                display,
                lambda failures: write_report(summarize(suite, claimed, failures), claimed),
            )
        tables, speed_failures = _measure_speed(suite, claimed / "speed")
        summary = summarize(suite, claimed, failures, tables)
        changes = None if previous is None else compare_summaries(previous, summary)
        page = write_report(summary, claimed, changes)
    for line in format_outcome(summary, failures, changes or []):
        terminal.echo(line)
    terminal.echo(f"report            {page}")
    terminal.echo(f"as Markdown       {page.parent / MARKDOWN_FILE}")
    regressions = [change for change in changes or [] if change.is_regression]
    return 1 if failures or speed_failures or regressions else 0


def _measure_speed(suite: Suite, folder: Path) -> tuple[list[Table], dict[str, str]]:
    """Return tables of speed measurements, and the reasons why suites have none."""
    if suite.speed is None or suite.peers is None:
        return [], {}
    failures = runner.measure_speed(
        suite.speed,
        get_checkout(suite.peers),
        folder,
        lambda name, note: terminal.echo(f"speed, {name}: {note}"),
    )
    return runner.read_speed_tables(suite.speed, folder, failures), failures


def _write_suite(suite: Suite, folder: Path) -> None:
    """Write the suite's text beside its results.

    Raises:
        RunFolderError: If the folder holds the results of another suite.
    """
    path = folder / "suite.yaml"
    name = folder / "suite.txt"
    if name.is_file() and name.read_text(encoding="utf-8").strip() != suite.name:
        raise RunFolderError(
            f"{folder} holds the results of the suite "
            f"{name.read_text(encoding='utf-8').strip()!r}, not of {suite.name!r}: "
            "give another --out."
        )
    name.write_text(suite.name + "\n", encoding="utf-8")
    path.write_text(suite.text, encoding="utf-8")


def format_outcome(
    summary: Mapping[str, Any], failures: Mapping[str, str], changes: Sequence[Change]
) -> list[str]:
    """Return the lines on failed runs, the best of each environment, and changes."""
    lines = [f"failed            {name}: {why}" for name, why in failures.items()]
    for env in summary["winners"]:
        rows = [cell for cell in summary["cells"] if cell["environment"] == env]
        if found := judge_best(rows):
            lines.append(f"best              {env}: {format_best(*found)}")
    lines += [f"{change.verdict:<17} {change.name}" for change in changes]
    return lines


class _Display:
    """Progress bars of the cells of a suite; without a terminal, a line per cell."""

    def __init__(self) -> None:
        self._console = Console()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[status]}"),
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

    def __call__(self, progress: runner.CellProgress) -> None:
        cell = progress.cell
        title = f"{progress.number}/{progress.total}  {cell.entrant} on {cell.environment}"
        status = progress.note
        if progress.return_mean is not None:
            mean = f"return {text.format_number(progress.return_mean)}"
            status = mean + (f", {status}" if status else "")
        if not self._console.is_terminal:
            if progress.note and not progress.note.startswith("seed"):
                terminal.echo(f"{title}: {progress.note}")
            return
        task = self._tasks.get(cell.name)
        if task is None:
            task = self._bars.add_task(title, total=progress.budget, status=status)
            self._tasks[cell.name] = task
        self._bars.update(task, completed=progress.steps, status=status)
