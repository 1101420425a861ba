"""Atomic file writes, bounded reads, locks, and translation of OS errors."""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO

from jaxrl.errors import RunFolderError

_RESULTS_HINT = (
    "make room and make it writable, or choose another place for new runs, with "
    "debugging(results_dir=...) or jaxrl train --results-dir"
)


@contextlib.contextmanager
def translate_os_errors(action: str, path: Path, hint: str = _RESULTS_HINT) -> Generator[None]:
    """Translate an OSError to a RunFolderError that names the path.

    Args:
        action: Attempted action, such as "create the run folder".
        path: Path of the file or folder.
        hint: What the user may do.

    Raises:
        RunFolderError: If the block raises an OSError.
    """
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunFolderError(f"Cannot {action} {path}: {reason}; {hint}.") from error


@contextlib.contextmanager
def open_atomic(path: Path, mode: int | None = None) -> Generator[IO[str]]:
    """Open a temporary text file that replaces `path` if the block succeeds, or else is removed.

    Args:
        path: Path of the file.
        mode: Permissions of the file; None for those of a new file.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_get_umask() if mode is None else mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of limited size.

    Args:
        path: Path of the file.
        max_bytes: Maximum size in bytes.

    Raises:
        ValueError: If it is not a regular file, or exceeds the size.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        raise ValueError(f"its file {path.name} is not a regular file of at most {max_bytes} bytes")
    return path.read_bytes()


_LOCK_TRIES = 100
_HAS_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EBADF, errno.EINVAL)
"""Errors of file systems without locks, or without those of handles that only read."""


def lock_file(path: Path) -> int:
    """Lock a file, which is created if it is missing, and return its handle.

    The kernel unlocks it when the handle is closed or the process ends. On a network file system
    without locks, nothing is locked.

    Raises:
        BlockingIOError: If another handle has locked it; its `strerror` is the process of that one.
        OSError: If the file cannot be written.
    """
    for _ in range(_LOCK_TRIES):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        except OSError as error:
            if error.errno in _HAS_NO_LOCKS:
                return handle
            holder = os.pread(handle, 20, 0).decode(errors="replace") or "unknown"
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BlockingIOError(errno.EWOULDBLOCK, holder) from error
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(handle)):
                return handle
        os.close(handle)  # the file was removed by the one that had locked it
    raise OSError(errno.EIO, "the lock file is another one whenever it is opened", str(path))


def try_lock_folder(path: Path) -> int | None:
    """Lock a folder, and return its handle; None if another handle has locked it, or it is gone.

    The lock goes with the folder when it is renamed, and ends as that of `lock_file` does.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HAS_NO_LOCKS:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(handle)):
            return handle
    os.close(handle)
    return None


def _get_umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
