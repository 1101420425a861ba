"""How each peer is started, and how a peer gets an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.worker import ROOT, Worker

OURS, HANDWRITTEN, TUNED, REJAX = "jaxrl", "handwritten", "handwritten-tuned", "rejax"
PEERS = (OURS, HANDWRITTEN, TUNED, REJAX)

_MODULES = {
    OURS: ("benchmarks.peers.jaxrl_worker",),
    HANDWRITTEN: ("benchmarks.peers.handwritten_ppo.worker",),
    TUNED: ("benchmarks.peers.handwritten_ppo.worker", "--tuned"),
    REJAX: ("benchmarks.peers.rejax.worker",),
}
_REQUIREMENTS = {REJAX: ROOT / "benchmarks" / "peers" / "rejax" / "requirements.txt"}


def start(peer: str, env: Mapping[str, str] | None = None) -> Worker:
    """The peer's process; makes its environment first if it needs one and has none."""
    python = sys.executable
    if peer in _REQUIREMENTS:
        python = str(ensure_environment(ROOT / ".peers" / peer, _REQUIREMENTS[peer]))
    return Worker(peer, [python, "-m", *_MODULES[peer]], env=env)


def ensure_environment(folder: Path, requirements: Path) -> Path:
    """The interpreter of a virtual environment with `requirements`, made if it is not there.

    A marker with the requirements' text is written last, so that an interrupted or outdated
    environment is made again.

    Raises:
        RuntimeError: pip could not install the requirements.
    """
    python = folder / "bin" / "python"
    marker = folder / "installed.txt"
    wanted = requirements.read_text(encoding="utf-8")
    if python.exists() and marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return python
    print(f"making {os.path.relpath(folder)} (a minute or two)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "-r", str(requirements)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RuntimeError(
            f"could not install {os.path.relpath(requirements)}; leave its peer out with "
            f"--peers, or install it by hand:\n{tail}"
        )
    marker.write_text(wanted, encoding="utf-8")
    return python
