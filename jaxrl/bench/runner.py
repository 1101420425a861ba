"""Execution of a suite: a process for each cell and each measurement of speed, resumable."""

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jaxrl.bench import peers
from jaxrl.bench.job import Job
from jaxrl.bench.markdown import Table, parse_tables
from jaxrl.bench.suite import FILE_STEMS, JAXRL, SpeedSpec, Suite, SuiteCell
from jaxrl.errors import JaxrlError, RunFolderError
from jaxrl.runs.run_folder import resolve_results_dir
from jaxrl.runtime import files


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellProgress:
    """Progress of a cell.

    Args:
        cell: Cell that runs.
        number: Position of the cell in the suite, from 1.
        total: Number of cells in the suite.
        steps: Environment steps so far.
        budget: Environment steps per run.
        return_mean: Mean return of recent training episodes; None until one ended.
        note: Further information, such as that the cell was done in an earlier call.
    """

    cell: SuiteCell
    number: int
    total: int
    steps: int = 0
    budget: int = 0
    return_mean: float | None = None
    note: str = ""


OnProgress = Callable[[CellProgress], None]
OnCellEnd = Callable[[Mapping[str, str]], object]


def get_default_folder(suite: Suite) -> Path:
    """Return the default folder for the results of a suite."""
    return resolve_results_dir() / "benchmarks" / suite.name


@contextlib.contextmanager
def lock_folder(folder: Path) -> Generator[Path]:
    """Create a folder of results and lock it for this process.

    Raises:
        RunFolderError: If another process writes there, or if it cannot be created.
    """
    with files.translate_os_errors("make the benchmark's folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunFolderError(
            f"Another benchmark is writing to {folder}: wait for it to end, or give another --out."
        ) from error
    try:
        yield folder
    finally:
        lock.release()


def run_suite(
    suite: Suite, folder: Path, on_progress: OnProgress, on_cell_end: OnCellEnd | None = None
) -> dict[str, str]:
    """Run every cell with missing outcomes.

    Args:
        suite: Suite to run.
        folder: Folder of results, including those of earlier calls, locked by the caller.
        on_progress: Callback for progress.
        on_cell_end: Callback after each cell that ran, with the failures so far.

    Returns:
        Reasons of failures by cell name; all other cells have an outcome per seed.
    """
    failures: dict[str, str] = {}
    for number, cell in enumerate(suite.cells, start=1):
        job = suite.make_job(cell, folder)
        progress = CellProgress(
            cell=cell, number=number, total=len(suite.cells), budget=cell.budget
        )
        if not job.find_missing_seeds():
            on_progress(dataclasses.replace(progress, steps=cell.budget, note="already done"))
            continue
        try:
            _run_cell(suite, cell, job, progress, on_progress)
        except (JaxrlError, OSError) as error:
            failures[cell.name] = str(error)
            on_progress(dataclasses.replace(progress, note=f"failed: {error}"))
        if on_cell_end is not None:
            on_cell_end(failures)
    return failures


def _run_cell(
    suite: Suite, cell: SuiteCell, job: Job, progress: CellProgress, on_progress: OnProgress
) -> None:
    """Run a cell in a process that writes an outcome per seed.

    Raises:
        PeerError: If it cannot be installed, fails, or does not write an outcome.
    """
    path = Path(job.folder) / "job.json"
    with files.translate_os_errors("write the job", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _discard_other_jobs(job, path)
        path.write_text(json.dumps(dataclasses.asdict(job), indent=1), encoding="utf-8")
    on_progress(dataclasses.replace(progress, note="starting"))
    command, cwd = [sys.executable, "-m", "jaxrl.bench.cell"], Path.cwd()
    environment = _extend_pythonpath(os.environ)
    if cell.peer != JAXRL:
        assert suite.peers is not None
        command = peers.prepare_command(
            suite.peers,
            cell.peer,
            lambda note: on_progress(dataclasses.replace(progress, note=note)),
        )
        cwd = peers.get_checkout(suite.peers)
        environment = {**os.environ}
    _run_process([*command, str(path)], cwd, environment, progress, on_progress)
    missing = job.find_missing_seeds()
    if missing:
        raise peers.PeerError(f"no outcome of the seeds {missing}")


def _discard_other_jobs(job: Job, path: Path) -> None:
    """Remove saved state of runs with other settings."""
    try:
        previous = Job.read(path)
    except (OSError, ValueError, TypeError):
        return
    if (previous.describe(), previous.seeds) != (job.describe(), job.seeds):
        for saved in path.parent.iterdir():
            if saved.is_dir():
                shutil.rmtree(saved)
            elif saved.name.endswith(".progress.json"):
                saved.unlink()


def _extend_pythonpath(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with this jaxrl first in PYTHONPATH, for a child process."""
    import jaxrl

    root = str(Path(jaxrl.__file__).parent.parent)
    paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def _run_process(
    command: list[str],
    cwd: Path,
    environment: Mapping[str, str],
    progress: CellProgress,
    on_progress: OnProgress,
) -> None:
    """Run a process and forward the progress that it reports."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            last = _forward_progress(process.stdout or (), progress, on_progress)
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    if code:
        error = peers.PeerError(f"exit code {code}", "\n".join(last) or "(no output)")
        (Path(command[-1]).parent / "failure.txt").write_text(error.output + "\n", encoding="utf-8")
        raise error


def _forward_progress(
    lines: Iterable[str], progress: CellProgress, on_progress: OnProgress
) -> list[str]:
    """Forward the progress that a process reports, and return the last of its other lines."""
    last: collections.deque[str] = collections.deque(maxlen=peers.MAX_OUTPUT_LINES)
    for line in lines:
        report = _parse_report(line)
        if report is None:
            last.append(line.rstrip())
        else:
            on_progress(_update(progress, report))
    return list(last)


def _update(progress: CellProgress, report: Mapping[str, Any]) -> CellProgress:
    seed = report.get("seed")
    return dataclasses.replace(
        progress,
        steps=int(report["steps"]),
        return_mean=report.get("return_mean"),
        note="" if seed is None else f"seed {seed}",
    )


def _parse_report(line: str) -> dict[str, Any] | None:
    """Parse a progress line printed by a job; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) and "steps" in report else None


# --- speed, by a checkout's `python -m benchmarks.speed` ---


def measure_speed(
    speed: SpeedSpec, root: Path, folder: Path, on_message: Callable[[str, str], None]
) -> dict[str, str]:
    """Measure every suite that was not measured with these arguments yet.

    Args:
        speed: Measurements to make.
        root: Checkout of jaxrl.
        folder: Folder for results.
        on_message: Callback for the name of a suite and a message.

    Returns:
        Reasons why suites have no results, by name.
    """
    failures: dict[str, str] = {}
    for suite in speed.suites:
        if _is_done(speed, suite, folder):
            on_message(suite, "already done")
            continue
        on_message(suite, "measuring for some minutes; keep the machine idle")
        try:
            _measure(speed, suite, root, folder)
        except peers.PeerError as error:
            failures[suite] = str(error)
            on_message(suite, f"failed: {error}")
    return failures


def _is_done(speed: SpeedSpec, suite: str, folder: Path) -> bool:
    path = folder / f"{FILE_STEMS[suite]}.arguments"
    return path.is_file() and path.read_text("utf-8") == " ".join(speed.to_arguments(suite))


def _measure(speed: SpeedSpec, suite: str, root: Path, folder: Path) -> None:
    with files.translate_os_errors("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    arguments = speed.to_arguments(suite)
    command = [sys.executable, "-m", "benchmarks.speed", *arguments, "--out", str(folder)]
    peers.run_process(command, root)
    (folder / f"{FILE_STEMS[suite]}.arguments").write_text(" ".join(arguments), "utf-8")


def read_speed_tables(speed: SpeedSpec, folder: Path, failures: Mapping[str, str]) -> list[Table]:
    """Read the tables of the suites from their Markdown, and add one per failed suite."""
    tables: list[Table] = []
    for suite in speed.suites:
        if suite in failures:
            row = (suite, failures[suite])
            tables.append(Table(title=f"Speed: {suite}", header=("suite", "failed"), rows=[row]))
            continue
        text = (folder / f"{FILE_STEMS[suite]}.md").read_text("utf-8")
        tables += parse_tables(text, f"Speed, {suite}")
    return tables
