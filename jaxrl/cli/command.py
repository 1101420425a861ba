"""Commands that a user can type as they are printed."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(*words: str | Path) -> str:
    """Give the command line of `jaxrl` with these words, as it can be typed in this folder.

    A virtual environment need not be active: its `jaxrl` is then no name that a shell finds.
    """
    return f"{_jaxrl()} {shlex.join(str(word) for word in words)}"


def _jaxrl() -> str:
    """How this process was called, in the shortest words that a shell finds."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_found(Path(sys.executable))} -m jaxrl"
    return _found(called) if called.name == "jaxrl" else "jaxrl"


def _found(program: Path) -> str:
    """A program's name where a shell finds it by that, else its path from the current folder."""
    on_path = shutil.which(program.name)
    # Links are not followed: the pythons of all virtual environments lead to one file.
    if on_path is not None and os.path.abspath(on_path) == os.path.abspath(program):
        return program.name
    path, here = Path(os.path.abspath(program)), Path.cwd()
    if not path.is_relative_to(here):
        return shlex.quote(str(path))
    return shlex.quote(os.path.join(*([os.curdir] * (path.parent == here)), path.relative_to(here)))
