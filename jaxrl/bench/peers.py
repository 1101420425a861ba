"""Peers: other libraries with an adapter, each in its own virtual environment."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean

MAX_OUTPUT_LINES = 12
_JAX_NOTE = "For simplicity, JAX has removed its internal frames"


class PeerError(JaxrlError, RuntimeError):
    """Failure of a peer, or of its installation.

    Args:
        problem: Message, to which the last line of the output is added if it is not part of it;
            the note of JAX under a traceback is not taken for it.
        output: Output of the peer.

    Attributes:
        output: Last lines of the output.
    """

    def __init__(self, problem: str, output: str = "") -> None:
        lines = output.strip().splitlines()[-MAX_OUTPUT_LINES:]
        told = [line for line in lines if line.strip("- ") and not line.startswith(_JAX_NOTE)]
        is_known = not told or told[-1] in problem
        super().__init__(problem if is_known else f"{problem}: {told[-1]}")
        self.output = "\n".join(lines)


def run_process(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a process to its end and return what it wrote to stdout.

    Args:
        command: Command line of the process.
        cwd: Folder in which it runs.
        env: Environment variables in addition to those of this process.

    Raises:
        PeerError: If the process fails.
    """
    done = subprocess.run(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        output = f"{done.stdout}\n{done.stderr}".strip()
        raise PeerError(f"exit code {done.returncode}", output or "(no output)")
    return done.stdout


def find_peers_folder(suite: Path) -> Path | None:
    """Return the folder `peers` next to the folder of a suite's file, if there is one."""
    folder = suite.resolve().parent.parent / "peers"
    return folder if folder.is_dir() else None


def get_peer_algorithms(folder: Path | None, name: str) -> list[str]:
    """Return the algorithms that a peer's adapter supports.

    Raises:
        ConfigError: If the suite has no folder of peers.
        UnknownNameError: If there is no peer of this name.
    """
    if folder is None:
        raise ConfigError(
            f"the peer {name!r} needs an adapter in ../peers/{name}, relative to the suite's "
            "folder, and there is no such folder: use the suites of a jaxrl checkout, or leave "
            "peers out."
        )
    known = sorted(path.parent.name for path in folder.glob("*/peer.yaml"))
    if name not in known:
        raise UnknownNameError(
            f"peers has {name!r}, which is not one of {', '.join(known)}."
            f"{did_you_mean(name, known)}"
        )
    return list(read_manifest(folder, name)["algorithms"])


def read_manifest(folder: Path, name: str) -> dict[str, Any]:
    """Read a peer's `peer.yaml`: its `algorithms`, and the `module` of its adapter."""
    return cast(
        dict[str, Any], yaml.safe_load((folder / name / "peer.yaml").read_text(encoding="utf-8"))
    )


def prepare_command(folder: Path, name: str, on_message: Callable[[str], None]) -> list[str]:
    """Return the command that runs a peer's adapter from the checkout, installing the peer first.

    Raises:
        PeerError: If the peer cannot be installed.
    """
    manifest = read_manifest(folder, name)
    environment = name if (folder / name / "requirements.txt").is_file() else None
    starts_ray = bool(manifest.get("starts_ray"))
    python = prepare_python(folder, environment, on_message, starts_ray=starts_ray)
    return [*python, "-m", str(manifest["module"])]


def prepare_python(
    folder: Path, name: str | None, on_message: Callable[[str], None], *, starts_ray: bool = False
) -> list[str]:
    """Return the command of a peer's interpreter, creating its virtual environment if missing.

    Args:
        folder: Folder of the peers' adapters.
        name: Name of the peer whose environment it is; None for this process's interpreter.
        on_message: Callback for a message, called before an installation.
        starts_ray: Whether the process starts Ray, which then gets no network except loopback,
            where the system allows it: Ray contacts several addresses to find its own.

    Raises:
        PeerError: If the peer cannot be installed.
    """
    python, checkout = Path(sys.executable), get_checkout(folder)
    if name is not None:
        requirements = folder / name / "requirements.txt"
        python = ensure_environment(checkout / ".peers" / name, requirements, on_message)
    isolate = [str(checkout / ".ci" / "loopback")] if starts_ray else []
    return [*isolate, str(python)]


def get_checkout(folder: Path) -> Path:
    """Return the checkout that contains the peers' modules."""
    return folder.parent.parent


def ensure_environment(folder: Path, requirements: Path, on_message: Callable[[str], None]) -> Path:
    """Return the interpreter of a virtual environment with `requirements`, created if missing.

    A marker with the text of the requirements is written last, so that an interrupted or outdated
    environment is recreated.

    Args:
        folder: Folder of the virtual environment.
        requirements: Requirements file.
        on_message: Callback for a message, called before an installation.

    Raises:
        PeerError: If pip could not install the requirements.
    """
    python = folder / "bin" / "python"
    marker = folder / "installed.txt"
    expected = requirements.read_text(encoding="utf-8")
    if python.exists() and marker.exists() and marker.read_text(encoding="utf-8") == expected:
        return python
    on_message(f"installing {requirements.parent.name} (a minute or two)")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        run_process([*pip, "-r", str(requirements)], Path.cwd())
    except PeerError as error:
        tail = " ".join(error.output.splitlines()[-3:])
        raise PeerError(
            f"{os.path.relpath(requirements)} could not be installed; leave this peer out, or "
            f"install it by hand: {tail}"
        ) from error
    marker.write_text(expected, encoding="utf-8")
    return python
