"""What processes hold in memory, read from Linux's /proc."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
MB = 1e6


def resident_mb(pid: int, proc: Path = PROC) -> tuple[float, float]:
    """All resident memory of a process, and its private part (neither files nor shared), in MB.

    Raises:
        ProcessLookupError: There is no such process.
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


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that a process started, those that they started, and so on."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            parent = _parent(folder)
            if parent is not None:
                children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        young = children.get(waiting.pop(), [])
        found += young
        waiting += young
    return sorted(found)


def total_mb(pids: Iterable[int], proc: Path = PROC) -> tuple[float, float]:
    """The sums over processes; one that has just ended counts for nothing."""
    resident = private = 0.0
    for pid in pids:
        try:
            own = resident_mb(pid, proc)
        except ProcessLookupError:
            continue
        resident, private = resident + own[0], private + own[1]
    return resident, private


def _parent(folder: Path) -> int | None:
    try:
        stat = (folder / "stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return None
    return int(stat.rpartition(")")[2].split()[1])  # the name before may hold anything
