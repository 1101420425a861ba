"""Runs a suite: a process for each cell, one after another, going on where it was."""

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
from jaxrl.bench.suite import OURS, Cell, Suite
from jaxrl.errors import JaxrlError, RunFolderError
from jaxrl.runs import files
from jaxrl.runs.run_folder import results_root

LAST_LINES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a cell is.

    Args:
        cell: Which.
        number: Its place, from 1.
        total: How many there are.
        steps: Of its budget.
        budget: Environment steps of a run.
        return_mean: Of recent training episodes; None until one ended.
        note: What else is to be told, such as that it was done before.
    """

    cell: Cell
    number: int
    total: int
    steps: int = 0
    budget: int = 0
    return_mean: float | None = None
    note: str = ""


OnProgress = Callable[[Progress], None]


def default_folder(suite: Suite) -> Path:
    """Where a suite's results go unless something else is said."""
    return results_root() / "benchmarks" / suite.name


@contextlib.contextmanager
def claimed(folder: Path) -> Generator[Path]:
    """A folder of results, held by this process alone.

    Raises:
        RunFolderError: Another process writes there, or it cannot be made.
    """
    with files.one_sentence("make the benchmark's folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunFolderError(
            f"Another benchmark is writing to {folder}: wait for it to end, or give --out."
        ) from error
    try:
        yield folder
    finally:
        lock.release()


def run(suite: Suite, folder: Path, on_progress: OnProgress) -> dict[str, str]:
    """Run every cell of which an outcome is missing.

    Args:
        suite: What to run.
        folder: Where results are, those of an earlier call among them; see `claimed`.
        on_progress: Called whenever there is something to tell.

    Returns:
        Why cells failed, by their names; the others have an outcome of each seed.
    """
    failures: dict[str, str] = {}
    for number, cell in enumerate(suite.cells, start=1):
        job = suite.job(cell, folder)
        progress = Progress(cell=cell, number=number, total=len(suite.cells), budget=cell.budget)
        if not job.missing():
            on_progress(dataclasses.replace(progress, steps=cell.budget, note="done before"))
            continue
        try:
            _run_cell(suite, cell, job, progress, on_progress)
        except (JaxrlError, OSError) as error:
            failures[cell.name] = str(error)
            on_progress(dataclasses.replace(progress, note=f"failed: {error}"))
    return failures


def _run_cell(
    suite: Suite, cell: Cell, job: Job, progress: Progress, on_progress: OnProgress
) -> None:
    """One process that leaves an outcome of every seed.

    Raises:
        PeerError: It could not be installed, failed, or left no outcome.
    """
    path = Path(job.folder) / "job.json"
    with files.one_sentence("write the job", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _forget_other_jobs(job, path)
        path.write_text(json.dumps(dataclasses.asdict(job), indent=1), encoding="utf-8")
    on_progress(dataclasses.replace(progress, note="starting"))
    command, cwd = [sys.executable, "-m", "jaxrl.bench.cell"], Path.cwd()
    environment = _with_this_jaxrl(os.environ)
    if cell.peer != OURS:
        assert suite.peers is not None
        command = peers.command(
            suite.peers,
            cell.peer,
            lambda note: on_progress(dataclasses.replace(progress, note=note)),
        )
        cwd = peers.root(suite.peers)
        environment = {**os.environ}
    _followed([*command, str(path)], cwd, environment, progress, on_progress)
    missing = job.missing()
    if missing:
        raise peers.PeerError(f"it left no outcome of the seeds {missing}")


def _forget_other_jobs(job: Job, path: Path) -> None:
    """What a run of other settings saved is nothing to go on from."""
    try:
        before = Job.read(path)
    except (OSError, ValueError, TypeError):
        return
    if (before.described(), before.seeds) != (job.described(), job.seeds):
        for saved in path.parent.iterdir():
            if saved.is_dir():
                shutil.rmtree(saved)
            elif saved.name.endswith(".progress.json"):
                saved.unlink()


def _with_this_jaxrl(environment: Mapping[str, str]) -> dict[str, str]:
    """The child imports the jaxrl that this process has imported."""
    import jaxrl

    here = str(Path(jaxrl.__file__).parent.parent)
    paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def _followed(
    command: list[str],
    cwd: Path,
    environment: Mapping[str, str],
    progress: Progress,
    on_progress: OnProgress,
) -> None:
    """Run a process and pass on what it tells of itself."""
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
            last = _heard(process.stdout or (), progress, on_progress)
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    if code:
        told = "\n".join(last)
        (Path(command[-1]).parent / "failure.txt").write_text(told + "\n", encoding="utf-8")
        raise peers.PeerError(f"exit code {code}: {last[-1] if last else 'it said nothing'}")


def _heard(lines: Iterable[str], progress: Progress, on_progress: OnProgress) -> list[str]:
    """Pass on what a process tells of itself; the last of its other lines."""
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    for line in lines:
        told = _told(line)
        if told is None:
            last.append(line.rstrip())
        else:
            on_progress(_at(progress, told))
    return list(last)


def _at(progress: Progress, told: Mapping[str, Any]) -> Progress:
    seed = told.get("seed")
    return dataclasses.replace(
        progress,
        steps=int(told["steps"]),
        return_mean=told.get("return_mean"),
        note="" if seed is None else f"seed {seed}",
    )


def _told(line: str) -> dict[str, Any] | None:
    """What `job.say` printed; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) and "steps" in told else None
