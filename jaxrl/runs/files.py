"""Files that survive a crash: written beside, then renamed; OS errors become one sentence."""

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO

from jaxrl.errors import RunFolderError


@contextlib.contextmanager
def one_sentence(doing: str, path: Path) -> Generator[None]:
    """Turns an OSError into a RunFolderError that names the path.

    Args:
        doing: What was tried, as in "create the run folder".
        path: What it was tried on.

    Raises:
        RunFolderError: For any OSError inside the block.
    """
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        hint = (
            "choose another place with debugging(results_dir=...), or --results-dir on the "
            "command line"
        )
        raise RunFolderError(f"Cannot {doing} {path}: {reason}; {hint}.") from error


@contextlib.contextmanager
def replacing(path: Path) -> Generator[IO[str]]:
    """A text file that takes `path`'s place when the block ends well, and vanishes otherwise."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
