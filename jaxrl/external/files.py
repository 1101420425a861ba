"""Copies of the client's files, for the tree of a simulator that does without jaxrl."""

from pathlib import Path

from jaxrl.errors import ConfigError

_NUMPY_PROGRAM = "numpy_program.py"
CLIENT_FILES = (
    *("__init__.py", "frames.py", "spaces.py", "connection.py", "client.py", _NUMPY_PROGRAM),
)
"""Files that a simulator needs, which import one another, the standard library and NumPy."""


def find_client_file(name: str) -> Path:
    """Return the path of a file that a simulator needs."""
    folder = Path(__file__).parent
    return (folder.parent / "export" if name == _NUMPY_PROGRAM else folder) / name


def write_client(folder: Path) -> list[Path]:
    """Copy the client's files into a folder, which is then a package.

    Args:
        folder: Folder, made if it does not exist.

    Returns:
        The files.

    Raises:
        ConfigError: If the folder has a file of the same name and another origin, or cannot be
            written.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in CLIENT_FILES:
            source, target = find_client_file(name).read_bytes(), folder / name
            if target.exists() and not _is_ours(target):
                raise ConfigError(
                    f"{target} is not one of jaxrl's files and would be replaced: choose a folder "
                    "of its own, such as --write my_simulator/jaxrl_client."
                )
            target.write_bytes(source)
            written.append(target)
    except OSError as error:
        raise ConfigError(f"The client's files cannot be written to {folder}: {error}.") from error
    return written


def _is_ours(path: Path) -> bool:
    """Return whether a file has one of the client's files in some version."""
    text = path.read_bytes()
    return b"jaxrl-link" in text or b"jaxrl-policy" in text
