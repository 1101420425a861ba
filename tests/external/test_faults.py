"""Whatever is sent to the port: one sentence or a closed connection, and training goes on."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.errors import ConfigError
from jaxrl.external import LinkError, PolicyClient
from jaxrl.external.client import TOKEN_VARIABLE
from jaxrl.external.connection import Channel, Identity, RefusedError, open_channel, parse_address
from jaxrl.external.frames import (
    HEADER,
    MAGIC,
    MAJOR,
    BusyError,
    FrameError,
    Head,
    Kind,
    Limits,
    encode,
)
from jaxrl.runners.external import server as server_module
from tests.external.served import Served, Walk, make_config, wait_for

Start = Callable[..., Served]
TOKEN = "correct horse battery staple"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(start: Start) -> Iterator[Served]:
    """A server with short timeouts, that must train when the test is over."""
    new = start()
    yield new
    with new.learning(), new.connect() as client:
        before = new.ledger.received
        assert client.run(Walk(), num_episodes=2) == [6.0, 6.0]
        wait_for(lambda: new.ledger.received == before + 12)


@pytest.fixture
def start(start: Start) -> Start:
    """Starts servers with short timeouts."""

    def start_one(**settings: Any) -> Served:
        new = start(**settings)
        shorten_timeouts(new.group, handshake_timeout_s=2.0)
        return new

    return start_one


def shorten_timeouts(group: Any, handshake_timeout_s: float = 1.0) -> None:
    group.server.options = dataclasses.replace(
        group.server.options, handshake_timeout_s=handshake_timeout_s, frame_timeout_s=1.0
    )


@contextlib.contextmanager
def raw(served: Served) -> Iterator[socket.socket]:
    host, port = served.group.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while block := sock.recv(2**16):
            data += block
    return data


def refusal(data: bytes) -> str:
    """The sentence of the REFUSED message that ends what a server sent."""
    (length,) = np.frombuffer(data[-len(data) :], "<u4", 1, data.rindex(MAGIC) + HEADER.size)
    start = data.rindex(MAGIC) + HEADER.size + 4
    head = json.loads(data[start : start + int(length)])
    assert head["closes"] is True
    assert "\n" not in head["error"]
    return head["error"]


class Raw:
    """Connection after its handshake, on which a test sends what it likes."""

    def __init__(self, served: Served, name: str = "raw", **state: Any) -> None:
        identity = Identity(name, os.environ.get(TOKEN_VARIABLE, ""), None, None)
        self.channel, self.welcome = open_channel(
            parse_address(served.group.address), identity, state
        )
        self.number, self.waiting = 0, list[Any]()

    def send(self, kind: Kind, head: Head, arrays: Any = None) -> None:
        self.channel.send(encode(kind, head, arrays))

    def read(self) -> tuple[Kind, Head]:
        """The next message other than of new weights."""
        while not self.waiting:
            self.waiting += [m for m in self.channel.receive() if m[0] != Kind.NEW_VERSION]
        kind, head, _ = self.waiting.pop(0)
        return kind, head

    def send_part(self, served: Served, **changes: Any) -> None:
        """An EPISODES message of one valid part, with changes of part, head or arrays."""
        length = changes.get("length", 3)
        columns = {
            name: np.zeros((length, *shape), dtype)
            for name, (dtype, shape) in self.welcome["columns"].items()
        }
        arrays = {
            "obs.0": np.zeros((length + 1, 2), np.float32),
            "reward": np.ones(length, np.float32),
            "version": np.zeros(length, np.int64),
            **columns,
            **changes.pop("arrays", {}),
        }
        head = {"number": self.number, "num_recorded": length, **changes.pop("head", {})}
        part = {
            "episode_id": "e",
            "t_started": 0,
            "length": length,
            "training_enabled": True,
            "end": None,
            "source": "policy",
            **changes,
        }
        self.number += 1
        sent = {f"0.{name}": array for name, array in arrays.items() if array is not None}
        self.send(Kind.EPISODES, {**head, "parts": [part]}, sent)


@contextlib.contextmanager
def connected(served: Served, name: str = "raw", **state: Any) -> Iterator[Raw]:
    connection = Raw(served, name, **state)
    try:
        yield connection
    finally:
        connection.channel.close()


# --- handshake ---


def test_wrong_token_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_EXTERNAL_TOKEN", TOKEN)
    served = start()
    with pytest.raises(RefusedError, match="The token is not that of the run"):
        served.connect(token="guess")
    monkeypatch.delenv("JAXRL_EXTERNAL_TOKEN")
    with pytest.raises(RefusedError, match="asks for a token"):
        served.connect()
    served.connect(token=TOKEN).close()


def test_server_that_lacks_the_token_is_refused(served: Served) -> None:
    with pytest.raises(RefusedError, match="could not prove that it has the token"):
        served.connect(token="of another run")


def test_token_file_must_be_private(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="may be read by others"):
        start(external_token_file=str(file))
    file.chmod(0o600)
    served = start(external_token_file=str(file))
    with pytest.raises(RefusedError, match="The token is not"):
        served.connect(token="guess")
    served.connect(token=TOKEN).close()
    file.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        start(external_token_file=str(file))


def test_token_is_written_nowhere(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAXRL_EXTERNAL_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)
    served = start()
    with served.connect(token=TOKEN) as client, served.learning():
        client.run(Walk(), num_episodes=1)
    with pytest.raises(LinkError) as raised:
        served.connect(token=TOKEN + "x")
    config = make_config()
    texts = [caplog.text, str(raised.value), str(served.group.get_metrics()), repr(config)]
    texts += [config.explain(), str(config.to_dict()), str(served.group.notes)]
    assert not [text for text in texts if TOKEN in text]


def test_replayed_proof_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_EXTERNAL_TOKEN", TOKEN)
    guarded = start()
    sent: list[bytes] = []
    send = Channel.send

    def record(channel: Channel, frame: bytes) -> None:
        sent.append(frame)
        send(channel, frame)

    monkeypatch.setattr(Channel, "send", record)
    guarded.connect(client_id="me", token=TOKEN).close()
    hello, auth = sent[:2]
    with raw(guarded) as sock:
        sock.sendall(hello)
        sock.recv(2**16)  # another nonce
        sock.sendall(auth)
        assert "The token is not that of the run" in refusal(read_all(sock))


def test_other_version_is_refused(served: Served) -> None:
    with raw(served) as sock:
        sock.sendall(HEADER.pack(MAGIC, MAJOR + 1, Kind.HELLO, 0, 0))
        assert f"version {MAJOR + 1} of jaxrl-link" in refusal(read_all(sock))


def test_browser_is_refused(served: Served) -> None:
    with raw(served) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert "something else speaks on this port" in refusal(read_all(sock))


def test_messages_before_the_handshake_are_refused(served: Served) -> None:
    with raw(served) as sock:
        sock.sendall(encode(Kind.EPISODES, {"number": 0, "parts": []}))
        assert "EPISODES came where HELLO was expected" in refusal(read_all(sock))
    assert served.ledger.received == 0


@pytest.mark.parametrize(
    "hello", [{}, {"client_id": "", "nonce": "a" * 64, "minor": 0}, {"client_id": 5}]
)
def test_bad_hello_is_refused(served: Served, hello: Head) -> None:
    with raw(served) as sock:
        sock.sendall(encode(Kind.HELLO, hello))
        assert "HELLO needs" in refusal(read_all(sock))


def test_two_clients_of_one_name(served: Served) -> None:
    with served.connect(client_id="me") as client:
        with pytest.raises(RefusedError, match="client_id='me' is connected already"):
            served.connect(client_id="me")
        with pytest.raises(RefusedError, match="is connected already"):
            Raw(served, "me", secret="guess")
        client.run(Walk(), num_episodes=1)


def test_secret_of_the_client_replaces_its_connection(served: Served) -> None:
    with connected(served) as old:
        old.send_part(served)
        kind, ack = old.read()
        assert kind == Kind.ACK
        with connected(served, secret=old.welcome["secret"]) as new:
            assert new.welcome["num_received"] == ack["num_received"] == 1
            assert read_all(old.channel.socket) == b""


def test_max_clients(start: Start) -> None:
    served = start(max_clients=2)
    clients = [served.connect(), served.connect()]
    with pytest.raises(RefusedError, match="max_clients=2 are connected"):
        served.connect()
    clients.pop().close()
    wait_for(lambda: served.sessions.num_connected == 1)
    clients.append(served.connect())
    for client in clients:
        client.close()


def test_200_connections_do_not_stop_training(start: Start) -> None:
    served = start(max_clients=3)
    with served.connect() as client, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(raw(served)) for _ in range(200)]
        with served.learning():
            assert client.run(Walk(), num_episodes=5) == [6.0] * 5
        answered = sum(b"Too many connections" in read_all(sock) for sock in socks)
        assert answered >= 200 - 3 - 32 - 1
    wait_for(lambda: served.group.server.num_open == 0)


def test_client_waits_for_room(served: Served) -> None:
    server = served.group.server
    server.options = dataclasses.replace(server.options, handshake_timeout_s=60.0)
    room = server.options.max_clients + server_module.MAX_HANDSHAKES
    with contextlib.ExitStack() as stack:
        for _ in range(room):  # that say nothing
            stack.enter_context(raw(served))
        wait_for(lambda: server.num_open == room)
        with pytest.raises(LinkError, match=r"reached: Too many .*: try again later\.$"):
            served.connect(timeout_s=0.2)
        threading.Timer(0.3, stack.close).start()
        with served.learning(), served.connect() as client:
            assert client.run(Walk(), num_episodes=2) == [6.0, 6.0]


HALF = json.loads('"\\ud800"')


@pytest.mark.parametrize("name", ["client_id", "nonce"])
def test_half_a_character_is_refused_before_the_handshake(served: Served, name: str) -> None:
    hello = {"client_id": "x", "nonce": "a" * 64, "minor": 0}
    with raw(served) as sock:
        sock.sendall(encode(Kind.HELLO, {**hello, name: HALF * len(hello[name])}))
        assert "surrogates not allowed" in refusal(read_all(sock))


def test_half_a_character_is_no_proof(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    served = start()
    with raw(served) as sock:
        hello = {"client_id": "\U0001f600", "nonce": "a" * 64, "minor": 0}  # a whole one
        sock.sendall(encode(Kind.HELLO, hello))
        assert b"needs_token" in sock.recv(2**16)
        sock.sendall(encode(Kind.AUTH, {"proof": HALF}))
        assert "surrogates not allowed" in refusal(read_all(sock))


# --- slow and half-open senders ---


def test_handshakes_time_out(served: Served) -> None:
    """Three at a time, of which nothing is sent, the first bytes, or all but the last ones."""
    with contextlib.ExitStack() as stack:
        begin = time.monotonic()
        sockets = [stack.enter_context(raw(served)) for _ in range(3)]
        hello = encode(Kind.HELLO, {"client_id": "x"})
        for sock, data in zip(sockets, (b"", MAGIC, hello[:-3]), strict=True):
            sock.sendall(data)
        for sock in sockets:
            read_all(sock)
        assert time.monotonic() - begin < 20.0


def test_slow_sender_times_out_and_loses_nothing(served: Served) -> None:
    with connected(served) as slow:
        frame = encode(Kind.PING, {"num_recorded": 0})
        slow.channel.send(frame[:-1])
        assert read_all(slow.channel.socket) == b""
    wait_for(lambda: not served.sessions.by_id)
    assert served.ledger.maybe_lost == 0


def test_silent_client_is_disconnected(start: Start) -> None:
    served = start(idle_timeout_s=0.3)
    with connected(served) as silent:
        assert read_all(silent.channel.socket) == b""


def test_client_that_does_not_read_is_disconnected(served: Served, monkeypatch: Any) -> None:
    monkeypatch.setattr("jaxrl.runners.external.server.MAX_UNSENT_BYTES", 2**16)
    with connected(served) as deaf:
        deaf.channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.channel.socket.settimeout(0.5)
        ping = encode(Kind.PING, {"num_recorded": 0}) * 1000
        with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012
            for _ in range(2000):
                deaf.channel.send(ping)


# --- messages ---


def test_duplicates_are_dropped(served: Served) -> None:
    with connected(served) as client:
        client.send_part(served)
        assert client.read()[1]["num_received"] == 1
        client.number = 0
        client.send_part(served)
        assert client.read()[1]["num_received"] == 1
        client.send_part(served, t_started=3, head={"num_recorded": 6})
        assert client.read()[1]["num_received"] == 2
    assert served.ledger.received == 6
    assert [len(part) for part in served.group.inbox.parts] == [3, 3]


def closes(served: Served, send: Any) -> str:
    """The refusal with which the server closes a connection."""
    with connected(served) as client:
        send(client)
        return refusal(read_all(client.channel.socket))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"number": 5}}, "must arrive in order"),
        ({"head": {"number": "0"}}, "must arrive in order"),
        ({"head": {"num_recorded": -1}}, "num_recorded must be"),
        ({"head": {"num_recorded": 10**6}}, "more than the"),
        ({"length": 5000}, "more than the"),
        ({"episode_id": "x" * 201}, "1 to 200 characters"),
        ({"episode_id": 5}, "1 to 200 characters"),
    ],
)
def test_impossible_messages_close_the_connection(
    served: Served, changes: dict[str, Any], message: str
) -> None:
    assert message in closes(served, lambda client: client.send_part(served, **changes))


nan = np.asarray([1, np.nan, 1], np.float32)


def at_1(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.asarray([0, value, 0], dtype)


LARGE = np.full(3, 2e38, np.float32)
TO_AND_FRO = np.asarray([2e38, 2e38, -3e38], np.float32)
INPUTS = np.zeros((3, 3), np.float32)
INPUTS[1, 2] = np.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": {"reward": nan}}, "the reward at time step 1 is nan"),
        ({"arrays": {"obs.0": np.full((4, 2), np.inf, np.float32)}}, "obs is inf at"),
        ({"arrays": {"obs.0": np.full((4, 2), 11, np.float32)}}, "obs is 11.0 at [0], outside"),
        ({"arrays": {"obs.0": np.zeros((3, 2), np.float32)}}, "0.obs.0 must be float32 of shape"),
        ({"arrays": {"obs.0": np.zeros((4, 2))}}, "got float64"),
        ({"arrays": {"obs.0": None}}, "'0.obs.0' is missing"),
        ({"arrays": {"extras.action_logp": nan}}, "action_logp is nan at [1], which is not finite"),
        ({"arrays": {"extras.action_logp": at_1(np.inf)}}, "action_logp is inf at [1]"),
        ({"arrays": {"extras.action_logp": at_1(-np.inf)}}, "action_logp is -inf at [1]"),
        ({"arrays": {"extras.action_dist_inputs": INPUTS}}, "dist_inputs is inf at [1, 2]"),
        ({"arrays": {"extras.action_dist_inputs": -INPUTS}}, "dist_inputs is -inf at [1, 2]"),
        ({"arrays": {"action.0": at_1(99, np.int32)}}, "action is 99, outside its bounds"),
        ({"arrays": {"action.0": at_1(-5, np.int32)}}, "action is -5, outside its bounds"),
        ({"arrays": {"reward": LARGE}}, "the return is 4e+38 at time step 1"),
        ({"arrays": {"reward": -LARGE}}, "the return is -4e+38 at time step 1"),
        ({"arrays": {"reward": TO_AND_FRO}}, "the return is 4e+38 at time step 1"),
        ({"arrays": {"reward": LARGE}, "training_enabled": False}, "the return is 4e+38"),
        ({"arrays": {"action.0": np.zeros(3, np.float32)}}, "0.action.0 must be int32"),
        ({"t_started": 7}, "is not known to the run"),
        ({"end": "done"}, "ends with 'done'"),
        ({"source": "guess"}, "ends with"),
        ({"length": 0}, "has the length 0"),
        ({"source": "log"}, "cannot learn from actions that a simulator chose"),
    ],
)
def test_bad_parts_are_refused_and_counted(
    served: Served, changes: dict[str, Any], message: str
) -> None:
    with connected(served) as client:
        client.send_part(served, **changes)
        kind, head = client.read()
        assert kind == Kind.REFUSED
        assert message in head["error"]
        assert head["episode_id"] == "e"
        assert client.read()[0] == Kind.ACK
        client.send_part(served, episode_id="good", length=3, head={"num_recorded": 6})
        assert client.read()[0] == Kind.ACK
    metrics = served.group.get_metrics()["fault_tolerance"]
    assert metrics["num_parts_refused"] == 1
    assert message in metrics["refusals"][0]
    ledger = served.ledger
    assert ledger.queued == 3
    assert ledger.received == 3 + ledger.discarded.get("refused", 0)


def test_rest_of_a_refused_episode_is_not_trained_on(served: Served) -> None:
    with connected(served) as client:
        client.send_part(served)
        assert client.read()[0] == Kind.ACK
        client.send_part(served, t_started=9, head={"num_recorded": 6})  # misses some
        assert "begins at time step 9, and 3 is next" in client.read()[1]["error"]
        assert client.read()[0] == Kind.ACK
        client.send_part(served, t_started=3, head={"num_recorded": 9})
        assert "was given up" in client.read()[1]["error"]
    (part,) = served.group.inbox.parts
    assert part.is_cut
    assert served.ledger.discarded == {"refused": 6}


def test_return_grows_from_part_to_part(served: Served) -> None:
    with connected(served) as client:
        client.send_part(served, arrays={"reward": LARGE / 3})
        assert client.read()[0] == Kind.ACK
        changes = {"t_started": 3, "head": {"num_recorded": 6}, "end": "terminated"}
        client.send_part(served, arrays={"reward": LARGE / 3}, **changes)
        assert "the return is 4e+38 at time step 5" in client.read()[1]["error"]
    assert served.ledger.discarded == {"refused": 3}


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"t": [4]}, "'e' is not known to the run"),
        ({"t": [-1]}, "'e' is not known to the run"),
        ({"t": ["0"]}, "'e' is not known to the run"),
        ({"t": [0, 1]}, "equally many"),
        ({"t": [0, 0], "episode_ids": ["e", "e"], "training_enabled": [1, 1]}, "twice"),
        ({"episode_ids": 5}, "must be a list"),
        ({"episode_ids": ["x" * 300]}, "1 to 200 characters"),
    ],
)
def test_bad_requests_for_actions_are_refused(served: Served, head: Head, message: str) -> None:
    arrays = {"obs.0": np.zeros((1, 2), np.float32), "reward": np.zeros(1, np.float32)}
    valid = {"request": 7, "episode_ids": ["e"], "t": [0], "training_enabled": [True]}
    with connected(served) as client:
        client.send(Kind.ACT, {**valid, **head}, arrays)
        kind, got = client.read()
        assert kind == Kind.REFUSED
        assert got["request"] == 7
        assert message in got["error"]
        client.send(Kind.ACT, {**valid, "episode_ids": ["f"]}, arrays)
        assert client.read()[0] == Kind.ACTIONS


def test_reward_that_is_not_finite_reaches_no_policy(served: Served) -> None:
    arrays = {"obs.0": np.zeros((1, 2), np.float32), "reward": np.full(1, np.inf, np.float32)}
    with connected(served) as client:
        head = {"request": 7, "episode_ids": ["e"], "t": [0], "training_enabled": [True]}
        client.send(Kind.ACT, head, arrays)
        assert "a reward that is not finite" in client.read()[1]["error"]


def test_repeated_request_gets_the_same_action(served: Served) -> None:
    arrays = {"obs.0": np.ones((1, 2), np.float32), "reward": np.zeros(1, np.float32)}
    head = {"episode_ids": ["e"], "t": [0], "training_enabled": [True]}
    answers: list[Any] = []
    with connected(served) as client:
        for request in range(3):
            client.send(Kind.ACT, {**head, "request": request}, arrays)
            while len(answers) == request:
                answers += [m for m in client.channel.receive() if m[0] == Kind.ACTIONS]
    actions = {int(arrays["env_action.0"][0]) for _, _, arrays in answers}
    logps = {float(arrays["extras.action_logp"].ravel()[0]) for _, _, arrays in answers}
    assert len(actions) == len(logps) == 1


def test_path_like_names_are_only_names(served: Served, tmp_path: Path) -> None:
    names = ["../../etc/passwd", "a/b", "\0", "%s", "{x}", "-"]
    with served.connect() as client, served.learning():
        for name in names:
            client.start_episode(name)
            client.get_action(name, np.zeros(2))
            client.end_episode(name, np.zeros(2), truncated=True)
        wait_for(lambda: served.ledger.received == len(names))


def test_too_many_open_episodes(served: Served) -> None:
    with served.connect() as client:
        client.link.welcome["limits"]["max_open_episodes"] = 3
        for _ in range(3):
            client.start_episode()
        with pytest.raises(LinkError, match="3 episodes of this client are open"):
            client.start_episode()


def test_too_large_message_is_refused(served: Served) -> None:
    limit = served.group.schema.limits.max_message_bytes

    def send(client: Raw) -> None:
        client.channel.send(HEADER.pack(MAGIC, MAJOR, Kind.EPISODES, 0, limit + 1))

    assert f"exceeds max_message_bytes={limit}" in closes(served, send)


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.WELCOME, Kind.ACK, Kind.DRAIN])
def test_messages_of_the_other_side_are_refused(served: Served, kind: Kind) -> None:
    assert "does not send" in closes(served, lambda client: client.send(kind, {}))


def send_noise(served: Served, number: int, seed: int = 1) -> None:
    """Send damaged frames, most of them after a handshake."""
    rng = np.random.default_rng(seed)
    kinds = [Kind.EPISODES, Kind.ACT, Kind.PING, Kind.GET_POLICY]
    heads: list[Head] = [
        {"number": 0, "parts": [{"episode_id": "e", "length": 3}]},
        {"request": 0, "episode_ids": ["e"], "t": [0], "training_enabled": [True]},
        {"num_recorded": 2**70},
        {},
    ]
    client: Raw | None = None
    for i in range(number):
        frame = bytearray(
            encode(kinds[i % 4], heads[rng.integers(4)], {"obs.0": np.zeros((1, 2), np.float32)})
        )
        for _ in range(rng.integers(0, 4)):
            frame[rng.integers(HEADER.size - 4, len(frame))] = rng.integers(256)
        if i % 5 == 0:
            frame = bytearray(rng.bytes(rng.integers(1, 200)))
        try:
            client = client or find_room(served, f"noise{seed}-{i}")
            client.channel.send(bytes(frame))
            client.channel.socket.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                list(client.channel.receive())
            client.channel.socket.settimeout(5.0)
        except (OSError, FrameError):
            assert client is not None
            client.channel.close()
            client = None
    if client is not None:
        client.channel.close()


def find_room(served: Served, name: str) -> Raw:
    """Return a connection, as soon as others leave room for one."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            return Raw(served, name)
        except BusyError:
            assert time.monotonic() < deadline, "in vain"
            time.sleep(0.1)


def test_noise(served: Served) -> None:
    send_noise(served, 60)


def test_noise_beside_training(served: Served) -> None:
    with served.learning(), served.connect() as client:
        thread = threading.Thread(target=send_noise, args=(served, 40))
        thread.start()
        returns = client.run(Walk(), num_episodes=20)
        thread.join()
    assert returns == [6.0] * 20
    assert served.ledger.discarded.get("stale", 0) == 0


# --- TLS ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def test_tls(start: Start, certificate: Path) -> None:
    served = start(
        external_certificate_file=str(certificate / "cert.pem"),
        external_private_key_file=str(certificate / "key.pem"),
    )
    port = served.group.server.port
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with (
        served.learning(),
        PolicyClient(f"localhost:{port}", ssl_context=context, timeout_s=20.0) as client,
    ):
        assert client.run(Walk(), num_episodes=4) == [6.0] * 4
    with pytest.raises(LinkError, match="IP address mismatch"):  # the certificate is localhost's
        PolicyClient(f"127.0.0.1:{port}", ssl_context=context, timeout_s=0.3)
    with pytest.raises(LinkError, match="certificate verify failed"):
        PolicyClient(f"https://localhost:{port}", timeout_s=0.3)


def test_client_certificates(start: Start, certificate: Path) -> None:
    files = str(certificate / "cert.pem"), str(certificate / "key.pem")
    served = start(
        external_certificate_file=files[0],
        external_private_key_file=files[1],
        external_client_ca_file=files[0],
    )
    port = served.group.server.port
    context = ssl.create_default_context(cafile=files[0])
    with pytest.raises(LinkError):
        PolicyClient(f"localhost:{port}", ssl_context=context, timeout_s=0.3)
    context.load_cert_chain(*files)
    PolicyClient(f"localhost:{port}", ssl_context=context, timeout_s=20.0).close()


def test_other_machines_need_token_and_tls(start: Start, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="needs a token"):
        start(external_host="0.0.0.0")
    monkeypatch.setenv("JAXRL_EXTERNAL_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="needs TLS"):
        start(external_host="0.0.0.0")
    served = start(external_host="0.0.0.0", external_insecure=True)
    PolicyClient(f"127.0.0.1:{served.group.server.port}", token=TOKEN).close()


# --- code ---

FORBIDDEN = re.compile(r"\bpickle\b|torch\.load|allow_pickle|\beval\(|\bexec\(|marshal|__import__")


def test_nothing_that_arrives_is_code() -> None:
    folders = [ROOT / "jaxrl" / "external", ROOT / "jaxrl" / "runners" / "external"]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(sources) > 8
    found = [path.name for path in sources if FORBIDDEN.search(path.read_text())]
    assert not found


def test_limits_are_the_protocols() -> None:
    assert Limits().max_message_bytes == 64 * 2**20
    assert Limits().max_head_bytes == 64 * 2**10
