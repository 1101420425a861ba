"""Files of parts of episodes while they are written, in either format."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.manifest import Header, hash_file
from jaxrl.offline.npz import NpzSink
from jaxrl.offline.parquet import ParquetSink, has_pyarrow

Arrays = Mapping[str, np.ndarray | None]
"""Arrays of a part by column."""

_SINKS: Mapping[str, Callable[[IO[bytes], Header], ParquetSink | NpzSink]] = {
    "parquet": ParquetSink,
    "npz": NpzSink,
}


class PartFile:
    """File of parts under construction, which has a temporary name until it is complete.

    Args:
        folder: Folder of the file.
        file_format: "parquet" or "npz".
        header: Facts about the data.
    """

    def __init__(
        self,
        folder: Path,
        file_format: str,
        header: Header,
    ) -> None:
        handle, self._name = tempfile.mkstemp(dir=folder, prefix=".part-")
        self._file = os.fdopen(handle, "wb")
        try:
            self._sink = _SINKS[file_format](self._file, header)
        except BaseException:
            self.remove()
            raise
        self.num_rows = 0

    @property
    def num_bytes(self) -> int:
        return self._sink.num_bytes

    def add(self, group: Sequence[tuple[EpisodePart, Arrays]]) -> None:
        self._sink.add([part for part, _ in group], [arrays for _, arrays in group])
        self.num_rows += len(group)

    def finish(self, path: Path) -> tuple[str, int]:
        """Complete the file under its name, and return its digest and size."""
        self._sink.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest, size = hash_file(Path(self._name)), os.stat(self._name).st_size
        mask = os.umask(0o022)
        os.umask(mask)
        os.chmod(self._name, 0o666 & ~mask)
        os.replace(self._name, path)
        return digest, size

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._name)


def choose_format(name: str) -> str:
    """Return the format of a setting, "parquet" or "npz".

    Raises:
        DataError: If it is unknown, or needs pyarrow, which is not installed.
    """
    if name not in ("auto", *_SINKS):
        raise DataError(f"file_format must be 'auto', 'parquet' or 'npz', got {name!r}.")
    if name == "parquet" and not has_pyarrow():
        raise DataError(
            "file_format='parquet' needs pyarrow: pip install 'jaxrl[offline]', or use 'npz'."
        )
    return name if name != "auto" else "parquet" if has_pyarrow() else "npz"
