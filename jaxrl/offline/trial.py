"""Trial of Parquet files in a process of its own, which damage of their metadata ends.

pyarrow translates the errors of its C++ code where it reads pages of data, and not where it reads the
metadata of columns: there, a damaged file ends the process. This file is also the script of that
process, and imports nothing of jaxrl.
"""

import contextlib
import importlib
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_START_SECONDS, _FILE_SECONDS = 60.0, 1.0
_passed: set[tuple[str, int, int]] = set()
"""Path, size and time of the last change of files that passed."""


def find_fatal(paths: Sequence[Path]) -> tuple[Path, str] | None:
    """Return the first Parquet file whose metadata end a process, and how; None if none does.

    A file that passed is not tried again. One that is damaged in another way passes, too: whatever
    reads it says how.

    Raises:
        OSError: If a process cannot be started, or a file is gone.
    """
    stats = [path.stat() for path in paths]
    keys = [
        (str(path), stat.st_size, stat.st_mtime_ns) for path, stat in zip(paths, stats, strict=True)
    ]
    tried = [key for key in keys if key not in _passed]
    if not tried:
        return None
    message = json.dumps({"sys_path": sys.path, "files": [name for name, _, _ in tried]})
    process = subprocess.Popen(
        [sys.executable, "-I", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            out, _ = process.communicate(message, _START_SECONDS + _FILE_SECONDS * len(tried))
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
    num_passed = len(out.split())
    _passed.update(tried[:num_passed])
    if num_passed == len(tried):
        return None
    return Path(tried[num_passed][0]), _describe_end(process.returncode)


def _describe_end(code: int) -> str:
    if code == -signal.SIGKILL:
        return "is read for too long"
    return (
        f"ends the process that reads it, with {signal.Signals(-code).name if code < 0 else code}"
    )


def _try_all() -> None:
    """Parse the metadata of the files that standard input names, and print a line after each."""
    message = json.load(sys.stdin)
    sys.path[:] = message["sys_path"]  # where the other process has its pyarrow
    importlib.import_module("pyarrow.parquet")
    for name in message["files"]:
        with contextlib.suppress(Exception):  # which the other process meets as well
            _parse(name)
        sys.stdout.write(".\n")
        sys.stdout.flush()


def _parse(name: str) -> None:
    """Read everything of a file's metadata that is read where it is opened."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(name) as file:
        file.schema_arrow  # noqa: B018
        for i in range(len(file.schema)):
            file.schema.column(i).physical_type  # noqa: B018
        for i in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(i)
            for j in range(group.num_columns):
                group.column(j).total_uncompressed_size  # noqa: B018


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _try_all()
