"""Everything hostile at once beside a run: it trains, its accounts are exact, memory is flat."""

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.external import PolicyClient
from jaxrl.external.connection import Channel
from jaxrl.external.frames import MAGIC, Kind, encode
from tests.external.served import Walk, make_config
from tests.external.test_faults import (
    TOKEN,
    find_room,
    raw,
    read_all,
    send_noise,
    shorten_timeouts,
    wait_for,
)

STATM = Path("/proc/self/statm")
MAX_GROWTH = 30_000_000


class Target:
    """Run under attack, in the form that the functions of `test_faults` take."""

    def __init__(self, algorithm: Any) -> None:
        self.group = algorithm.env_runner_group
        shorten_timeouts(self.group)


def crowd(target: Target, number: int) -> None:
    """Hold connections that say nothing, until the server closes them."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(raw(target)) for _ in range(number)]
        answers = [read_all(sock) for sock in socks]
    assert all(b"Too many connections" in answer or not answer for answer in answers)


def dawdle(target: Target, number: int) -> None:
    """Begin handshakes and frames, and never end them."""
    hello = encode(Kind.HELLO, {"client_id": "x"})
    ping = encode(Kind.PING, {"num_recorded": 0})
    for i in range(number):
        with raw(target) as sock, contextlib.suppress(ConnectionError):
            sock.sendall((MAGIC, hello[:-3], b"")[i % 3])
            read_all(sock)
        slow = find_room(target, f"slow{i}")
        slow.channel.send(ping[:-1])
        read_all(slow.channel.socket)
        slow.channel.close()


def replay(target: Target, proof: list[bytes], number: int) -> None:
    """Send the handshake of another connection again."""
    hello, auth = proof
    refused = 0
    while refused < number:
        with raw(target) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(hello)
            sock.recv(2**16)  # another nonce, or no room
            sock.sendall(auth)
            refused += b"The token is not that of the run" in read_all(sock)


def record_proof(target: Target, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    sent: list[bytes] = []
    send = Channel.send

    def record(channel: Channel, frame: bytes) -> None:
        sent.append(frame)
        send(channel, frame)

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "send", record)
        PolicyClient(target.group.address, "remote", client_id="overheard").close()
    return sent[:2]


@contextlib.contextmanager
def in_threads(*functions: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    """Call functions in threads; their errors are raised at the end."""
    errors: list[BaseException] = []

    def call(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def measure_memory() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not STATM.exists(), reason="reads the memory of the process from /proc")
def test_a_run_goes_on_and_its_memory_is_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_EXTERNAL_TOKEN", TOKEN)
    algorithm = make_config().external(max_clients=8).build()
    target = Target(algorithm)
    proof = record_proof(target, monkeypatch)
    results: list[Any] = []
    returns: list[float] = []

    def play() -> None:
        with PolicyClient(target.group.address, "remote") as client:
            returns.extend(client.run(Walk()))

    def attack(scale: int) -> int:
        """Train until all attackers are done; return the number of iterations."""
        before = len(results)
        attackers = (
            *(lambda s=seed: send_noise(target, 100 * scale, s) for seed in range(2)),
            lambda: [crowd(target, 200) for _ in range(scale)],
            lambda: dawdle(target, 2 * scale),
            lambda: replay(target, proof, 10 * scale),
        )
        with in_threads(*attackers) as threads:
            while any(thread.is_alive() for thread in threads):
                results.append(algorithm.train())
        return len(results) - before

    try:
        with in_threads(play):
            results.append(algorithm.train())
            attack(2)  # after which nothing is compiled or grows
            before = measure_memory()
            num_iterations = attack(10)
            after = measure_memory()
            wait_for(lambda: target.group.server.num_open == 1)
            algorithm.stop()
    finally:
        algorithm.stop()
    grown = (after - before) / 1e6
    print(f"\n{num_iterations} iterations under attack; memory grew by {grown:.1f} MB")
    print(results[-1]["fault_tolerance"])
    assert num_iterations > 20
    assert set(returns) == {6.0}
    counts = results[-1]["fault_tolerance"]
    sampled = results[-1]["env_runners"]["num_env_steps_sampled_lifetime"]
    assert counts["num_env_steps_trained_lifetime"] == sampled == 32 * len(results)
    assert counts["num_env_steps_received_lifetime"] == (
        sampled
        + counts["num_env_steps_queued"]
        + sum(counts["num_env_steps_discarded_lifetime"].values())
    )
    assert after - before < MAX_GROWTH
