"""Command lines that can be typed as printed."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def format_command(*words: str | Path) -> str:
    """Return a command line of `jaxrl` with these words that works in the current folder.

    If its virtual environment is not active, the shell does not find `jaxrl` by name alone.
    """
    return f"{_format_program()} {shlex.join(str(word) for word in words)}"


def _format_program() -> str:
    """Return the shortest form of this process's program name that a shell finds."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_shorten(Path(sys.executable))} -m jaxrl"
    return _shorten(called) if called.name == "jaxrl" else "jaxrl"


def _shorten(program: Path) -> str:
    """Return a program's name if the shell finds it, else its path from the current folder."""
    on_path = shutil.which(program.name)
    # Symlinks are not resolved: the pythons of all virtual environments point to one file.
    if on_path is not None and os.path.abspath(on_path) == os.path.abspath(program):
        return program.name
    path, cwd = Path(os.path.abspath(program)), Path.cwd()
    if not path.is_relative_to(cwd):
        return shlex.quote(str(path))
    return shlex.quote(os.path.join(*([os.curdir] * (path.parent == cwd)), path.relative_to(cwd)))
