"""Environments of peers."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from jaxrl.bench.peers import PeerError, ensure_environment


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("something==1.0\n")
    calls: list[list[str]] = []
    told: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        python = tmp_path / "peer" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        ensure_environment(tmp_path / "peer", requirements, told.append)
    assert len(calls) == 2  # venv and pip, once each
    requirements.write_text("something==2.0\n")
    ensure_environment(tmp_path / "peer", requirements, told.append)
    assert len(calls) == 4
    assert len(told) == 2


def test_a_failed_installation_is_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("something==1.0\n")
    told: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, int("pip" in command), "", "no such version")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        with pytest.raises(PeerError, match="by hand: no such version"):
            ensure_environment(tmp_path / "peer", requirements, told.append)


def test_the_reason_of_a_failure_is_the_error_and_not_the_note_of_jax_under_it() -> None:
    output = (
        "Traceback (most recent call last):\n"
        '  File "learn.py", line 1, in <module>\n'
        "TypeError: Tanh takes 1 argument but 2 were given\n"
        "--------------------\n"
        "For simplicity, JAX has removed its internal frames from the traceback of the following "
        "exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n"
    )
    error = PeerError("exit code 1", output)
    assert str(error) == "exit code 1: TypeError: Tanh takes 1 argument but 2 were given"
    assert error.output == output.strip()
    assert str(PeerError("exit code 1", "--------------------")) == "exit code 1"
