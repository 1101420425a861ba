"""The benchmark's side and the peer's side of the protocol, over real pipes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import launch
from benchmarks.worker import ROOT, PeerError, Worker

FAKE = [sys.executable, str(Path(__file__).with_name("fake_peer.py"))]
ENV = {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker("fake", FAKE, env=ENV) as fake:
        yield fake


def test_answers_come_back_and_the_peer_stays_alive(worker: Worker) -> None:
    for number in range(3):
        assert worker.ask("echo", number=number) == {"got": {"number": number}}


def test_what_a_peer_prints_is_no_answer(worker: Worker) -> None:
    assert worker.ask("noisy") == {"quiet": True}
    assert worker.ask("echo") == {"got": {}}


def test_an_error_is_raised_here_and_the_peer_goes_on(worker: Worker) -> None:
    with pytest.raises(
        PeerError, match="fake failed in fail: ValueError: the setting is too large"
    ):
        worker.ask("fail")
    assert worker.ask("echo") == {"got": {}}


def test_an_unknown_command_names_the_known_ones(worker: Worker) -> None:
    with pytest.raises(PeerError, match=r"unknown command 'rnu'.*'echo'"):
        worker.ask("rnu")


def test_a_dead_peer_is_named_with_its_last_words(worker: Worker) -> None:
    with pytest.raises(PeerError, match=r"(?s)exit code 3.*out of memory"):
        worker.ask("die")
    with pytest.raises(PeerError):
        worker.ask("echo")


def test_a_peer_that_does_not_answer_is_ended() -> None:
    with (
        Worker("fake", FAKE, env=ENV, timeout_s=0.2) as worker,
        pytest.raises(PeerError, match=r"did not answer hang within 0\.2 s"),
    ):
        worker.ask("hang")


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("something==1.0\n")
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        python = tmp_path / "peer" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        launch.ensure_environment(tmp_path / "peer", requirements)
    assert len(calls) == 2  # venv and pip, once each
    requirements.write_text("something==2.0\n")
    launch.ensure_environment(tmp_path / "peer", requirements)
    assert len(calls) == 4


def test_a_failed_installation_is_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("something==1.0\n")

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, int("pip" in command), "", "no such version")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?s)--peers.*no such version"):
            launch.ensure_environment(tmp_path / "peer", requirements)
