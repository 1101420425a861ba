"""Lock of a folder of recorded data, so that it has one writer at a time."""

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from jaxrl.errors import DataError
from jaxrl.runtime.files import lock_file

_NAME = ".lock"


class FolderLock:
    """Lock of a folder by one writer, until `release`, or the end of the object or the process.

    Args:
        folder: Folder that exists.

    Raises:
        DataError: If another writer has it.
        OSError: If the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _NAME
        try:
            handle = lock_file(path)
        except BlockingIOError as error:
            raise DataError(
                f"{folder} is being recorded to by process {error.strerror}: end that run with stop(), "
                "or its writer with close(), or record into another folder."
            ) from error
        self._finalize = weakref.finalize(self, _unlock, path, handle, os.getpid())

    def release(self) -> None:
        """Let another writer have the folder; safe to call more than once."""
        self._finalize()


def _unlock(path: Path, handle: int, process: int) -> None:
    if os.getpid() != process:  # a fork, whose parent still writes
        return
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # forks have the handle, too
    os.close(handle)
