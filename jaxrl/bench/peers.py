"""Other systems: folders with an adapter, each installed in an environment of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml

from jaxrl.errors import ConfigError, JaxrlError, UnknownNameError, did_you_mean


class PeerError(JaxrlError, RuntimeError):
    """A peer could not be installed, or failed."""


def peers_folder(suite: Path) -> Path | None:
    """The folder of peers that belongs to a suite's file: `peers`, beside the folder of suites."""
    folder = suite.resolve().parent.parent / "peers"
    return folder if folder.is_dir() else None


def check_peer(folder: Path | None, name: str) -> list[str]:
    """The algorithms that a peer's adapter runs.

    Raises:
        ConfigError: There are no peers beside this suite.
        UnknownNameError: No peer has this name.
    """
    if folder is None:
        raise ConfigError(
            f"the peer {name!r} needs an adapter in ../peers/{name} of the suite's folder, and there "
            "is no such folder: run the suites of a checkout of jaxrl, or leave peers out."
        )
    known = sorted(path.parent.name for path in folder.glob("*/peer.yaml"))
    if name not in known:
        raise UnknownNameError(
            f"peers has {name!r}, which is none of {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return list(described(folder, name)["algorithms"])


def described(folder: Path, name: str) -> dict[str, Any]:
    """What a peer's `peer.yaml` says: its `algorithms`, and the `module` of its adapter."""
    return cast(
        dict[str, Any], yaml.safe_load((folder / name / "peer.yaml").read_text(encoding="utf-8"))
    )


def command(folder: Path, name: str, tell: Callable[[str], None]) -> list[str]:
    """How a peer's adapter is run, from `root(folder)`; installs the peer first.

    Raises:
        PeerError: It cannot be installed.
    """
    requirements, python = folder / name / "requirements.txt", Path(sys.executable)
    if requirements.is_file():
        python = ensure_environment(root(folder) / ".peers" / name, requirements, tell)
    about = described(folder, name)
    isolate = [str(root(folder) / ".ci" / "loopback")] if about.get("starts_ray") else []
    return [*isolate, str(python), "-m", str(about["module"])]


def root(folder: Path) -> Path:
    """The checkout that peers are modules of."""
    return folder.parent.parent


def ensure_environment(folder: Path, requirements: Path, tell: Callable[[str], None]) -> Path:
    """The interpreter of a virtual environment with `requirements`, made if it is not there.

    A marker with the requirements' text is written last, so that an interrupted or outdated
    environment is made again.

    Args:
        folder: Of the environment.
        requirements: What is installed.
        tell: Called before something is installed.

    Raises:
        PeerError: pip could not install the requirements.
    """
    python = folder / "bin" / "python"
    marker = folder / "installed.txt"
    wanted = requirements.read_text(encoding="utf-8")
    if python.exists() and marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return python
    tell(f"installing {requirements.parent.name} (a minute or two)")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "-r", str(requirements)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = " ".join(done.stderr.strip().splitlines()[-3:])
        raise PeerError(
            f"{os.path.relpath(requirements)} could not be installed; leave this peer out, or "
            f"install it by hand: {tail}"
        )
    marker.write_text(wanted, encoding="utf-8")
    return python
