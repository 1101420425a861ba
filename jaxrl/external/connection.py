"""Connection of a simulator to a run: handshake, reconnection, requests, credit, and numbered messages.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

import collections
import contextlib
import random
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .frames import (
    HEADER,
    MINOR,
    NONCE_BYTES,
    Arrays,
    BusyError,
    FrameError,
    Head,
    Kind,
    Limits,
    LinkError,
    RefusedError,
    RunEndedError,
    decode_header,
    decode_payload,
    encode,
    is_proof,
    make_proof,
)

_PING_INTERVAL_S = 5.0
_SILENCE_S = 60.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 5.0
_PONG_TIMEOUT_S = 1.0


DEFAULT_PORT = 9900
MAX_HEAD_BYTES = 16 * 2**20
"""Limit of heads that the run sends: WELCOME has the descriptions of the spaces."""

_SEND_TIMEOUT_S = 30.0
_HANDSHAKE_TIMEOUT_S = 10.0


class Address(NamedTuple):
    """Host and port of a run, and whether it is reached by TLS."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse 'host:port', also as a URL such as 'http://host:port'; 'https' and 'tls' are TLS.

    Raises:
        LinkError: If it is none.
    """
    url = text if "://" in text else f"tcp://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        parts, port = urlsplit("tcp://"), 0
    if not parts.hostname or parts.scheme not in ("tcp", "http", "https", "tls"):
        raise LinkError(
            f"address must be 'host:port', such as 'localhost:{DEFAULT_PORT}', got {text!r}."
        )
    return Address(parts.hostname, port, parts.scheme in ("https", "tls"))


class Identity(NamedTuple):
    """Identity of a client: its name, the token, TLS, and the hash of its spaces."""

    client_id: str
    token: str
    ssl_context: ssl.SSLContext | None
    spaces_hash: str | None


class Channel:
    """Socket that sends and receives frames, used by one thread.

    Args:
        sock: Connected socket.
        limits: Limits of frames.
    """

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self.socket, self._buffer, self.limits = sock, bytearray(), limits
        sock.settimeout(_SEND_TIMEOUT_S)

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self.socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            OSError: If the connection is broken.
        """
        self.socket.sendall(frame)

    def receive(self) -> Iterator[tuple[Kind, Head, Arrays]]:
        """Read what has arrived, and yield the messages that are complete.

        Raises:
            OSError: If the connection is broken.
            FrameError: If the other side does not speak the protocol.
        """
        while True:
            data = self.socket.recv(2**18)
            if not data:
                raise ConnectionError("the other side closed the connection")
            self._buffer += data
            yield from self._split()
            # TLS may hold decrypted bytes that select does not know of.
            if not (isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()):
                return

    def _split(self) -> Iterator[tuple[Kind, Head, Arrays]]:
        while len(self._buffer) >= HEADER.size:
            kind, length = decode_header(bytes(self._buffer[: HEADER.size]), self.limits)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield (kind, *decode_payload(payload, self.limits))

    def wait_for(self, *kinds: Kind) -> tuple[Head, Arrays]:
        """Return the next message, which must be of one of these kinds.

        Raises:
            RefusedError: If the other side refuses.
            BusyError: If it refuses at the moment.
        """
        message = None
        while message is None:
            message = next(iter(self.receive()), None)
        kind, head, arrays = message
        if kind == Kind.REFUSED:
            error = BusyError if head.get("is_temporary") else RefusedError
            raise error(str(head.get("error")))
        if kind not in kinds:
            raise FrameError(f"The run sent {kind.name} in place of {kinds[0].name}.")
        return head, arrays

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.close()


def open_channel(address: Address, identity: Identity, state: Head) -> tuple[Channel, Head]:
    """Connect, and prove to each other that both sides have the token.

    Args:
        address: Address of the run.
        identity: Who connects.
        state: Entries of AUTH about what the client continues.

    Returns:
        The channel and the head of WELCOME.

    Raises:
        OSError: If the run cannot be reached.
        LinkError: If it refuses, or cannot prove that it has the token.
    """
    sock = socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_TIMEOUT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if identity.ssl_context is not None:
            sock = identity.ssl_context.wrap_socket(sock, server_hostname=address.host)
        channel = Channel(sock, Limits(max_head_bytes=MAX_HEAD_BYTES))
        sock.settimeout(_HANDSHAKE_TIMEOUT_S)
        welcome = _shake_hands(channel, identity, state)
        sock.settimeout(_SEND_TIMEOUT_S)
    except BaseException:
        sock.close()
        raise
    return channel, welcome


def _shake_hands(channel: Channel, identity: Identity, state: Head) -> Head:
    nonce = secrets.token_hex(NONCE_BYTES)
    client_id, token = identity.client_id, identity.token.encode()
    channel.send(encode(Kind.HELLO, {"minor": MINOR, "client_id": client_id, "nonce": nonce}))
    challenge, _ = channel.wait_for(Kind.CHALLENGE)
    if challenge["needs_token"] and not token:
        raise RefusedError("The run asks for a token: pass token=..., or set JAXRL_EXTERNAL_TOKEN.")
    minor, nonces = int(challenge["minor"]), (nonce, str(challenge["nonce"]))
    proof = make_proof(token, "client", client_id, minor, nonces)
    head = {**state, "proof": proof, "spaces_hash": identity.spaces_hash}
    channel.send(encode(Kind.AUTH, head))
    welcome, _ = channel.wait_for(Kind.WELCOME)
    if not is_proof(make_proof(token, "server", client_id, minor, nonces), welcome.get("proof")):
        raise RefusedError("The run could not prove that it has the token: it is another one.")
    return welcome


class Numbered(NamedTuple):
    """Message with a part, which is kept until it is acknowledged."""

    number: int
    frame: bytes
    part: Head


def list_continued(is_open: dict[str, list[Any]], unacknowledged: list[Head]) -> dict[str, Any]:
    """Return the episodes that a server must know before the parts that are sent to it again.

    Args:
        is_open: Time step and training_enabled of each open episode.
        unacknowledged: Entries of the parts, in order.

    Returns:
        The same, from the first of these parts on, also of episodes that have ended.
    """
    continued = dict(is_open)
    for part in reversed(unacknowledged):
        name = part["episode_id"]
        if part["t_started"] or name in is_open:
            continued[name] = [part["t_started"], part["training_enabled"]]
        else:  # the first part of an episode says itself that it starts one
            continued.pop(name, None)
    return continued


class Link:
    """Connection that is kept up by a thread, which alone reads and writes the socket.

    Args:
        address: Address of the run.
        identity: Who connects.
        timeout_s: Seconds without a connection after which calls fail.
        get_open_episodes: Function that returns, for each open episode, the time step of what is
            sent next and whether it is one to train on.
        get_num_open: Function that returns how many recorded steps cannot be sent yet.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        timeout_s: float,
        get_open_episodes: Callable[[], dict[str, list[Any]]],
        get_num_open: Callable[[], int],
    ) -> None:
        self._address, self._identity, self._timeout_s = address, identity, timeout_s
        self._get_open_episodes, self._get_num_open = get_open_episodes, get_num_open
        self.changed = threading.Condition(threading.RLock())
        self.welcome: Head = {}
        self.max_steps, self.num_recorded, self.latest_version = 0, 0, -1
        self.refused: dict[str, str] = {}
        self._error: LinkError | None = None
        self._outbox: collections.deque[bytes] = collections.deque()
        self._unacknowledged: collections.deque[Numbered] = collections.deque()
        self._next_number, self._next_request, self._num_delivered = 0, 0, 0
        self.num_waiting, self._num_pongs = 0, 0
        self._told: Head | None = None
        self._requests: dict[int, bytes] = {}
        self._replies: dict[int, tuple[Head, Arrays] | LinkError] = {}
        self._is_closing, self._is_connected = False, False
        self._waker, self._wakened = socket.socketpair()
        self._wakened.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="jaxrl-link", daemon=True)
        self._thread.start()
        try:
            self._wait(lambda: bool(self.welcome))
        except BaseException:
            self._end_thread(timeout_s)
            raise

    # --- for the simulator's threads ---

    def send_numbered(self, head: Head, arrays: Arrays) -> None:
        """Send a message that is kept until it is acknowledged."""
        with self.changed:
            number, self._next_number = self._next_number, self._next_number + 1
            frame = encode(Kind.EPISODES, {**head, "number": number}, arrays)
            limit = int(self.welcome["limits"]["max_message_bytes"])
            if len(frame) > limit:
                self._next_number = number
                raise LinkError(
                    f"A part of {len(frame)} bytes exceeds the run's max_message_bytes={limit}."
                )
            self._unacknowledged.append(Numbered(number, frame, head["parts"][0]))
            self._post(frame)

    def request(self, kind: Kind, head: Head, arrays: Arrays | None = None) -> tuple[Head, Arrays]:
        """Send a request and wait for its reply, also across reconnections.

        Raises:
            LinkError: If the run refuses it, or cannot be reached.
        """
        with self.changed:
            number, self._next_request = self._next_request, self._next_request + 1
            frame = encode(kind, {**head, "request": number}, arrays)
            self._requests[number] = frame
            self._post(frame)
            try:
                self._wait(lambda: number in self._replies)
            finally:
                self._requests.pop(number, None)
            reply = self._replies.pop(number)
        if isinstance(reply, LinkError):
            raise reply
        return reply

    def wait_for_credit(self, should_block: bool) -> None:
        """Wait until another step may be recorded, and count it.

        Raises:
            LinkError: If it may not be, and `should_block` is False.
        """
        with self.changed:
            self.num_waiting += 1
            try:
                if should_block or self.num_recorded < self.max_steps:
                    self._wait(self._has_credit)
                else:
                    self._ask_for_credit()
            finally:
                self.num_waiting -= 1
            self.num_recorded += 1

    def _has_credit(self) -> bool:
        """Return whether another step may be recorded; if not, the run knows the present counts."""
        if self.num_recorded < self.max_steps:
            return True
        if self._is_connected and self._told != self._count_steps():
            self._told = self._count_steps()
            self._post(encode(Kind.PING, self._told))
        return False

    def _ask_for_credit(self) -> None:
        """Hear at once whether the run accepts another step."""
        num_before, self._told = self._num_pongs, None
        self._has_credit()
        self.changed.wait_for(
            lambda: self._num_pongs > num_before or self._error or not self._is_connected,
            _PONG_TIMEOUT_S,
        )
        self.raise_if_failed()
        if self.num_recorded >= self.max_steps:
            raise LinkError(
                f"The run accepts no more than {self.max_steps} steps until it has trained on "
                "them: call again later, or pass block=True to wait."
            )

    def release_credit(self, number: int) -> None:
        """Count recorded steps no longer that are never sent."""
        with self.changed:
            self.num_recorded -= number
            self.changed.notify_all()

    def _count_steps(self) -> Head:
        with self.changed:
            return {"num_recorded": self.num_recorded, "num_open": self._get_num_open()}

    def raise_if_failed(self) -> None:
        """Raise the error that ended the connection, if there is one."""
        if self._error is not None:
            raise type(self._error)(str(self._error))

    def close(self, timeout_s: float) -> None:
        """Wait until everything is acknowledged, say goodbye, and end the thread."""
        with self.changed:
            if self._error is None:
                with contextlib.suppress(LinkError):
                    self._wait(lambda: not self._unacknowledged, timeout_s)
            self._post(encode(Kind.BYE, {"num_recorded": self.num_recorded}))
        self._end_thread(timeout_s)

    def _end_thread(self, timeout_s: float) -> None:
        self._is_closing = True
        self._wake()
        self._thread.join(timeout=timeout_s)
        for sock in (self._waker, self._wakened):
            sock.close()

    def _wait(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: is_done() or self._error is not None, timeout_s)
            if not is_done():
                self.raise_if_failed()
            if not done:
                raise LinkError(f"The run at {self._address} did not answer in {timeout_s:g} s.")

    def _post(self, frame: bytes) -> None:
        if self._is_connected:
            self._outbox.append(frame)
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    # --- thread ---

    def _run(self) -> None:
        lost_since = time.monotonic()
        backoff = _FIRST_BACKOFF_S
        while not self._is_closing:
            try:
                channel = self._connect()
            except RefusedError as error:
                return self._fail(error)
            except (OSError, LinkError) as error:
                if time.monotonic() - lost_since > self._timeout_s:
                    reason = str(error).rstrip(".")
                    return self._fail(
                        LinkError(f"The run at {self._address} cannot be reached: {reason}.")
                    )
                time.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(2 * backoff, _MAX_BACKOFF_S)
                continue
            backoff = _FIRST_BACKOFF_S
            try:
                self._serve(channel)
            except RefusedError as error:
                return self._fail(error)
            except (OSError, LinkError):
                lost_since = time.monotonic()
            finally:
                with self.changed:
                    self._is_connected = False
                channel.close()
        return None

    def _fail(self, error: LinkError) -> None:
        with self.changed:
            self._error = error
            self.changed.notify_all()

    def _connect(self) -> Channel:
        with self.changed:
            waiting = [message.number for message in self._unacknowledged]
            parts = [message.part for message in self._unacknowledged]
            state: Head = {
                "secret": self.welcome.get("secret"),
                "open_episodes": list_continued(self._get_open_episodes(), parts),
                "next_number": waiting[0] if waiting else self._next_number,
                "num_delivered": self._num_delivered,
                **self._count_steps(),
            }
        channel, welcome = open_channel(self._address, self._identity, state)
        limits = welcome["limits"]
        largest = max(int(limits["max_message_bytes"]), int(limits["max_policy_bytes"]))
        channel.limits = Limits(max_message_bytes=largest, max_head_bytes=MAX_HEAD_BYTES)
        with self.changed:
            if welcome["secret"] != self.welcome.get("secret"):
                self.max_steps = 0
            self.welcome = welcome
            self.latest_version = int(welcome["weights_version"])
            self._acknowledge(welcome)
            self._outbox = collections.deque(message.frame for message in self._unacknowledged)
            self._outbox += self._requests.values()
            self._is_connected, self._told = True, None
            self.changed.notify_all()
        return channel

    def _serve(self, channel: Channel) -> None:
        """Write and read until the connection breaks, or the link is closed."""
        heard = asked = time.monotonic()
        while True:
            self._flush(channel)
            if self._is_closing:
                return
            ready, _, _ = select.select([channel, self._wakened], [], [], _PING_INTERVAL_S)
            if self._wakened in ready:
                with contextlib.suppress(OSError):
                    self._wakened.recv(4096)
            now = time.monotonic()
            if channel in ready:
                heard = now
                for message in channel.receive():
                    self._handle(*message)
            elif now - heard > _SILENCE_S:
                raise ConnectionError("the run is silent")
            if now - max(heard, asked) >= _PING_INTERVAL_S:
                asked = now
                channel.send(encode(Kind.PING, self._count_steps()))

    def _flush(self, channel: Channel) -> None:
        while True:
            with self.changed:
                if not self._outbox:
                    return
                frame = self._outbox.popleft()
            channel.send(frame)

    def _handle(self, kind: Kind, head: Head, arrays: Arrays) -> None:
        with self.changed:
            if kind == Kind.ACK:
                self._acknowledge(head)
            elif kind in (Kind.ACTIONS, Kind.POLICY):
                if head["request"] in self._requests:
                    self._replies[head["request"]] = head, arrays
            elif kind == Kind.PONG:
                self._num_pongs += 1
            elif kind == Kind.NEW_VERSION:
                self.latest_version = int(head["version"])
            elif kind == Kind.REFUSED:
                self._refuse(head)
            elif kind == Kind.DRAIN:
                raise RunEndedError("The run has ended.")
            self.changed.notify_all()

    def _acknowledge(self, head: Head) -> None:
        self.max_steps = max(self.max_steps, int(head["max_steps"]))
        while self._unacknowledged and self._unacknowledged[0].number < int(head["num_received"]):
            part = self._unacknowledged.popleft().part
            self._num_delivered += part["length"] if part["training_enabled"] else 0

    def _refuse(self, head: Head) -> None:
        error = RefusedError(str(head["error"]))
        if head.get("closes"):
            raise error
        if head.get("request") in self._requests:
            self._replies[head["request"]] = error
        if head.get("episode_id") is not None:
            self.refused[str(head["episode_id"])] = str(error)

    def get_state(self) -> dict[str, Any]:
        """Return counters, for diagnostics."""
        with self.changed:
            return {
                "is_connected": self._is_connected,
                "num_unacknowledged": len(self._unacknowledged),
                "num_recorded": self.num_recorded,
                "max_steps": self.max_steps,
            }
