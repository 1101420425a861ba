"""The machine: where its results are, its load, and the memory of its processes (/proc)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxrl.bench.machine import describe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
"""Committed results, with a folder for each kind of machine."""

PROC = Path("/proc")
MB = 1e6


def make_folder_name(machine: Mapping[str, Any]) -> str:
    """Return the folder's name for results of one kind of machine, such as `amd-epyc-2-cores`."""
    words = re.sub(r"\((r|tm)\)|processor|cpu", " ", f"{machine['cpu']}".lower())
    return "-".join([*re.findall(r"[a-z0-9]+", words), f"{machine['cores']}-cores"])


def choose_results_folder(*, is_complete: bool) -> Path:
    """Return the folder for results.

    Args:
        is_complete: Whether a whole suite is measured. Its results are committed; others go to a
            temporary folder.
    """
    return RESULTS / make_folder_name(describe()) if is_complete else ROOT / ".benchmarks"


def get_load_average() -> float:
    """Return the mean number of running or waiting jobs during the last minute."""
    return round(os.getloadavg()[0], 2)


def read_memory_mb(pid: int, proc: Path = PROC) -> tuple[float, float]:
    """Return the resident memory of a process and its private part (no files, not shared), in MB.

    Raises:
        ProcessLookupError: If there is no such process.
    """
    try:
        lines = (proc / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} is gone") from None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    resident, private = (
        int(fields.get(name, "0 kB").split()[0]) * 1024 / MB for name in ("VmRSS", "RssAnon")
    )
    return resident, private


def sum_memory_mb(pids: Iterable[int], proc: Path = PROC) -> tuple[float, float]:
    """Sum the resident and private memory of processes, except those that have just ended."""
    resident = private = 0.0
    for pid in pids:
        try:
            own = read_memory_mb(pid, proc)
        except ProcessLookupError:
            continue
        resident, private = resident + own[0], private + own[1]
    return resident, private


def list_descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Return the children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            parent = _read_parent(folder)
            if parent is not None:
                children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        new = children.get(pending.pop(), [])
        found += new
        pending += new
    return sorted(found)


def _read_parent(folder: Path) -> int | None:
    try:
        stat = (folder / "stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
        return None
    return int(stat.rpartition(")")[2].split()[1])  # the name before it may contain anything
