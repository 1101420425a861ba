"""Channels of frames between a simulator and a run, and the handshake that opens them.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple
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
    decode_header,
    decode_payload,
    encode,
    is_proof,
    make_proof,
)

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
        self._socket, self._buffer, self.limits = sock, bytearray(), limits
        sock.settimeout(_SEND_TIMEOUT_S)

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            OSError: If the connection is broken.
        """
        self._socket.sendall(frame)

    def receive(self) -> Iterator[tuple[Kind, Head, Arrays]]:
        """Read what has arrived, and yield the messages that are complete.

        Raises:
            OSError: If the connection is broken.
            FrameError: If the other side does not speak the protocol.
        """
        while True:
            data = self._socket.recv(2**18)
            if not data:
                raise ConnectionError("the other side closed the connection")
            self._buffer += data
            yield from self._split()
            # TLS may hold decrypted bytes that select does not know of.
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
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
            self._socket.close()


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
