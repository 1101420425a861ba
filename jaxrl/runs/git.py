"""State of the git repository that a run is started in, read in the background."""

import dataclasses
import hashlib
import subprocess
import threading
import time
from pathlib import Path

TIMEOUT_S = 5.0
"""Time limit of each git command in seconds; what a slower one would say is not recorded."""
REUSE_S = 5.0
"""Seconds for which a reading is reused, since the lanes of a sweep start together."""

_READ_ONLY = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_DIFF = (
    *("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index"),
    *("--unified=3", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)
"""Command of a diff that the user's configuration of git does not change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GitState:
    """Commit of a working directory and its changes since.

    Args:
        commit: Hash of the commit that is checked out.
        dirty: Whether tracked files differ from it; None if git took too long.
        diff_sha256: SHA-256 of `git diff HEAD`; None without differences.
    """

    commit: str
    dirty: bool | None
    diff_sha256: str | None


def read_git_state(folder: Path) -> GitState | None:
    """Return the state of the repository around a folder; None without git, or without a commit."""
    commit = _run_git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    diff = _run_git(folder, *_DIFF)
    return GitState(
        commit=commit.decode().strip(),
        dirty=None if diff is None else bool(diff),
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
    )


def _run_git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of a git command; None if it fails, for whatever reason."""
    try:
        done = subprocess.run(
            [*_READ_ONLY, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


class GitReading:
    """Reading of a repository's state in a thread of its own.

    Args:
        folder: Folder in the repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.started_at = folder, time.monotonic()
        self._state: GitState | None = None
        self._thread = threading.Thread(target=self._read, name="jaxrl-git", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._state = read_git_state(self.folder)

    @property
    def is_done(self) -> bool:
        """Return whether `get` returns at once."""
        return not self._thread.is_alive()

    def get(self) -> GitState | None:
        """Wait for the state, for at most twice `TIMEOUT_S`, and return it."""
        self._thread.join()
        return self._state


_latest: GitReading | None = None
_lock = threading.Lock()


def start_reading(folder: Path) -> GitReading:
    """Start to read a repository's state, or return a reading that has just been started."""
    global _latest
    with _lock:
        latest = _latest
        if (
            latest is None
            or latest.folder != folder
            or time.monotonic() - latest.started_at > REUSE_S
        ):
            latest = _latest = GitReading(folder)
        return latest
