"""The benchmark's side and the peer's side of the protocol, over real pipes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.machine import ROOT
from benchmarks.worker import Worker
from jaxrl.bench.peers import PeerError

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
