"""Frames of jaxrl-link: messages between a simulator and the run that trains its policy.

A frame is a header of 12 bytes (magic, major version, kind, flags, length of what follows), the
length of a JSON head, the head, and arrays, each aligned to 8 bytes and described in the head by
name, dtype and shape. Nothing in a frame is code, and nothing is allocated before its size has been
compared with the limits.

This file of jaxrl-link imports the standard library and NumPy alone, and is copied to simulators.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"JXRL"
MAJOR, MINOR = 1, 0
HEADER = struct.Struct("<4sBBHI")
NONCE_BYTES = 32
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
"""Types of arrays in a frame, in NumPy's notation."""

_HEAD_LENGTH = struct.Struct("<I")
_ALIGNMENT = 8

Head = dict[str, Any]
Arrays = dict[str, np.ndarray]


class LinkError(Exception):
    """Problem between a simulator and the run, in one sentence."""


class BusyError(LinkError):
    """Refusal of a connection for which there is no room at the moment."""


class RefusedError(LinkError):
    """Refusal of the run, in its own words."""


class RunEndedError(RefusedError):
    """End of the run, after which a simulator has nothing to do."""


class FrameError(LinkError):
    """Bytes that are not a frame of this protocol, or exceed a limit."""


class Kind(enum.IntEnum):
    """Kinds of messages."""

    HELLO = 1
    CHALLENGE = 2
    AUTH = 3
    WELCOME = 4
    REFUSED = 5
    EPISODES = 6
    ACK = 7
    ACT = 8
    ACTIONS = 9
    GET_POLICY = 10
    POLICY = 11
    PING = 12
    PONG = 13
    NEW_VERSION = 14
    BYE = 15
    DRAIN = 16


class Message(NamedTuple):
    """Description of a kind of message; the reference page is made of these."""

    sender: str
    text: str
    head: Mapping[str, str]
    arrays: Mapping[str, str]


MESSAGES: Mapping[Kind, Message] = {
    Kind.HELLO: Message(
        "client",
        "First message of a connection.",
        {
            "minor": "highest minor version that the client speaks",
            "client_id": "name of the client, which it keeps when it connects again",
            "nonce": "32 random bytes, in hexadecimal",
        },
        {},
    ),
    Kind.CHALLENGE: Message(
        "server",
        "Request for a proof of the token.",
        {
            "minor": "minor version to speak: the smaller of both",
            "nonce": "32 random bytes, in hexadecimal",
            "needs_token": "whether the run has a token",
        },
        {},
    ),
    Kind.AUTH: Message(
        "client",
        "Proof that the client has the token, and what it continues.",
        {
            "proof": "HMAC-SHA256 of role, versions, client_id and both nonces, in hexadecimal",
            "secret": "the secret of WELCOME when it was connected before; null for none",
            "spaces_hash": "hash of the simulator's spaces; null to accept those of the run",
            "open_episodes": "for each episode that is open, or has unacknowledged parts of which none "
            "begins at 0: the time step that is sent next, and training_enabled",
            "next_number": "number of the first EPISODES message that was not acknowledged",
            "num_delivered": "environment steps in acknowledged messages",
            "num_recorded": "environment steps recorded so far",
            "num_open": "as in PING",
        },
        {},
    ),
    Kind.WELCOME: Message(
        "server",
        "The server's own proof, and what the client needs to know.",
        {
            "proof": "as in AUTH, with the role of the server",
            "secret": "what the client sends to continue after its connection was lost",
            "observation_space, action_space": "descriptions of the spaces",
            "spaces_hash": "hash of both descriptions",
            "critic_only_parts": "names of the parts of a Dict that only critics read: an observation of "
            "an episode without training_enabled may have any values there",
            "columns": "dtype and shape of each array that a step records, by name",
            "explore": "whether to explore, in 'training' and in 'evaluation'",
            "max_weights_lag": "versions that the weights of a step may be behind; null for any",
            "why_no_own_actions": "reason why the run cannot learn from actions that the simulator "
            "chose; null if it can",
            "weights_version": "version of the newest weights",
            "part_length": "number of steps after which a part is sent",
            "limits": "max_message_bytes, max_policy_bytes, max_parts, max_open_episodes",
            "num_received": "number of EPISODES messages that were received from this client",
            "max_steps": "total of environment steps that the client may record; those of episodes "
            "without training_enabled do not count",
        },
        {},
    ),
    Kind.REFUSED: Message(
        "server",
        "Reason, in one sentence, why a message was refused.",
        {
            "error": "the sentence",
            "closes": "whether the connection ends",
            "is_temporary": "whether the same may succeed later; absent for no",
            "request": "number of the ACT or GET_POLICY message; null for any other",
            "episode_id": "episode that was given up; null for none",
        },
        {},
    ),
    Kind.EPISODES: Message(
        "client",
        "Parts of episodes; numbered, kept until acknowledged, and sent again after a reconnect.",
        {
            "number": "number of the message, from 0 on",
            "num_recorded": "environment steps recorded so far",
            "parts": "for each part: episode_id, t_started, length, training_enabled, end (null, "
            "'terminated', 'truncated' or 'cut') and source ('policy' or 'log')",
        },
        {
            "<part>.obs.<leaf>": "observations, one more than the part has steps; `<part>` is its index "
            "in `parts`",
            "<part>.reward": "rewards, `<f4`",
            "<part>.version": "version of the weights that chose each action, `<i8`",
            "<part>.<column>": "recorded columns of WELCOME, as ACTIONS returned them; with source "
            "'log', env_action.<leaf> in their place",
        },
    ),
    Kind.ACK: Message(
        "server",
        "Acknowledgement, and the credit of the client.",
        {
            "num_received": "number of EPISODES messages that were received",
            "max_steps": "total of environment steps that the client may record",
        },
        {},
    ),
    Kind.ACT: Message(
        "client",
        "Request for actions.",
        {
            "request": "number of the request",
            "episode_ids": "episode of each row",
            "t": "time step of each row; asking again for the latest one repeats the answer",
            "training_enabled": "whether each episode is one to train on",
            "num_recorded": "environment steps recorded so far",
        },
        {
            "obs.<leaf>": "observations",
            "reward": "sum of the rewards since the previous action, `<f4`; 0 at an episode's start",
        },
    ),
    Kind.ACTIONS: Message(
        "server",
        "Actions for a request, with the columns to record.",
        {"request": "number of the request", "version": "version of the weights"},
        {
            "env_action.<leaf>": "actions for the simulator",
            "<column>": "columns of WELCOME, to be sent with the steps",
        },
    ),
    Kind.GET_POLICY: Message(
        "client",
        "Request for the policy, for inference in the client.",
        {
            "request": "number of the request",
            "has_program": "whether the client has the program, and needs weights alone",
        },
        {},
    ),
    Kind.POLICY: Message(
        "server",
        "The policy: its program once, and its arrays.",
        {
            "request": "number of the request",
            "version": "version of the weights",
            "has_program": "whether the program is in it",
        },
        {
            "weights/<name>": "weights",
            "constants/<name>": "constants of the program",
            "manifest, program": "JSON texts, as in an exported policy's folder",
        },
    ),
    Kind.PING: Message(
        "client",
        "Sign of life.",
        {
            "num_recorded": "environment steps recorded so far",
            "num_open": "how many of them wait for their successors, and cannot be sent before the "
            "client may record on; absent for 0",
        },
        {},
    ),
    Kind.PONG: Message("server", "Answer to PING.", {}, {}),
    Kind.NEW_VERSION: Message(
        "server", "There are new weights.", {"version": "version of the weights"}, {}
    ),
    Kind.BYE: Message(
        "client", "The client ends: its open episodes are cut.", {"num_recorded": "as in PING"}, {}
    ),
    Kind.DRAIN: Message("server", "The run ends and accepts nothing more.", {}, {}),
}
"""All kinds of messages."""


class Limits(NamedTuple):
    """Limits of frames, which hold before anything is allocated."""

    max_message_bytes: int = 64 * 2**20
    max_head_bytes: int = 64 * 2**10
    max_depth: int = 16
    max_parts: int = 1000
    max_open_episodes: int = 1024
    max_id_length: int = 200


def encode(kind: Kind, head: Head, arrays: Arrays | None = None) -> bytes:
    """Return the frame of a message."""
    described, blocks = [], []
    for name, array in (arrays or {}).items():
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        described.append([name, array.dtype.str, list(array.shape)])
        data = array.tobytes()
        blocks += [data, bytes(-len(data) % _ALIGNMENT)]
    if described:
        head = dict(head, arrays=described)
    text = json.dumps(head, allow_nan=False, separators=(",", ":")).encode()
    start = _HEAD_LENGTH.size + len(text)
    body = [_HEAD_LENGTH.pack(len(text)), text, bytes(-start % _ALIGNMENT), *blocks]
    length = sum(map(len, body))
    return b"".join([HEADER.pack(MAGIC, MAJOR, kind, 0, length), *body])


def decode_header(data: bytes, limits: Limits) -> tuple[Kind, int]:
    """Return the kind of a frame and the number of bytes that follow its header.

    Raises:
        FrameError: If these are not the first bytes of a frame, or the frame is too long.
    """
    magic, major, kind, _, length = HEADER.unpack(data)
    if magic != MAGIC:
        raise FrameError(
            "The first bytes are not those of jaxrl-link: something else speaks on this port."
        )
    if major != MAJOR:
        raise FrameError(
            f"The other side speaks version {major} of jaxrl-link and this one version {MAJOR}: update "
            "the older one; jaxrl client --write copies the client's files."
        )
    if length > limits.max_message_bytes:
        raise FrameError(
            f"A message of {length} bytes exceeds max_message_bytes={limits.max_message_bytes}."
        )
    try:
        return Kind(kind), length
    except ValueError:
        raise FrameError(f"There is no message of kind {kind} in jaxrl-link.") from None


def decode_payload(data: bytes, limits: Limits) -> tuple[Head, Arrays]:
    """Return the head and the arrays of a frame; the arrays are views of its bytes.

    Raises:
        FrameError: If the bytes are damaged, or exceed a limit.
    """
    if len(data) < _HEAD_LENGTH.size:
        raise FrameError(f"A message of {len(data)} bytes is too short for its head.")
    (length,) = _HEAD_LENGTH.unpack_from(data)
    if length > min(limits.max_head_bytes, len(data) - _HEAD_LENGTH.size):
        raise FrameError(
            f"A head of {length} bytes exceeds its message of {len(data)} bytes or the limit of "
            f"{limits.max_head_bytes}."
        )
    head = _decode_head(data[_HEAD_LENGTH.size : _HEAD_LENGTH.size + length], limits)
    arrays: Arrays = {}
    position = _align(_HEAD_LENGTH.size + length)
    described = head.pop("arrays", [])
    if not isinstance(described, list):
        raise FrameError("The entry 'arrays' of a head must be a list.")
    for entry in described:
        name, dtype, shape, size = _decode_entry(entry)
        if name in arrays:
            raise FrameError(f"The array {name!r} occurs twice in a message.")
        if size > len(data) - position:
            raise FrameError(
                f"The array {name[:80]!r} of {size} bytes exceeds its message of {len(data)} bytes."
            )
        flat = np.frombuffer(data, dtype, size // dtype.itemsize, position)
        arrays[name] = flat.reshape(shape)
        position = _align(position + size)
    if position != _align(len(data)):
        raise FrameError(f"A message has {len(data) - position} bytes more than its arrays.")
    return head, arrays


def _align(position: int) -> int:
    return position + -position % _ALIGNMENT


def _decode_head(text: bytes, limits: Limits) -> Head:
    try:
        decoded = text.decode("utf-8")
        _check_depth(decoded, limits.max_depth)
        head = json.loads(decoded, parse_constant=_refuse_constant)
        if "\\ud" in decoded.lower():  # half a character, which nothing can write or print
            json.dumps(head, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError(f"The head of a message is not valid JSON ({error}).") from None
    if not isinstance(head, dict):
        raise FrameError("The head of a message must be an object.")
    return head


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _check_depth(text: str, limit: int) -> None:
    """Raise ValueError if brackets are nested deeper than the limit."""
    depth, in_string, is_escaped = 0, False, False
    for character in text:
        if in_string:
            if is_escaped:
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            if depth > limit:
                raise ValueError(f"it is nested deeper than {limit}")
        elif character in "]}":
            depth -= 1


def _decode_entry(entry: object) -> tuple[str, np.dtype[Any], tuple[int, ...], int]:
    """Return name, dtype, shape and bytes of an array, none of which has been allocated."""
    if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str)):
        raise FrameError(f"An array of a message is described as {str(entry)[:80]!r}.")
    name, dtype, shape = entry
    if dtype not in DTYPES:
        raise FrameError(f"The array {name[:80]!r} has the dtype {str(dtype)[:20]!r}.")
    is_shape = isinstance(shape, list) and len(shape) <= 32
    if not is_shape or any(type(n) is not int or not 0 <= n < 2**31 for n in shape):
        raise FrameError(f"The array {name[:80]!r} has the shape {str(shape)[:80]}.")
    size = np.dtype(dtype).itemsize
    for n in shape:  # of Python's integers, which do not overflow
        size *= n
    return name, np.dtype(dtype), tuple(shape), size


def make_proof(token: bytes, role: str, client_id: str, minor: int, nonces: tuple[str, str]) -> str:
    """Return the proof that a side has the token, for one connection.

    Args:
        token: Token, which is never sent itself.
        role: Side that proves it, 'client' or 'server': neither can return the other's proof.
        client_id: Name of the client.
        minor: Minor version that is spoken.
        nonces: Nonces of the client and of the server.
    """
    said = json.dumps(["jaxrl-link", MAJOR, minor, role, client_id, *nonces])
    return hmac.new(token, said.encode(), hashlib.sha256).hexdigest()


def is_proof(expected: str, got: object) -> bool:
    """Return whether a proof is the expected one, in constant time."""
    return isinstance(got, str) and hmac.compare_digest(expected.encode(), got.encode())
