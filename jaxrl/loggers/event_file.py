"""TensorBoard's event files: records with checksums, of protocol buffers, written by hand.

The format is small (https://www.tensorflow.org/tutorials/load_data/tfrecord and
tensorflow/core/util/event.proto) and this way costs a tenth of a millisecond an event, where
writers whose CRC is a Python loop take milliseconds.
"""

import functools
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

# Field numbers of Event, Summary and Summary.Value, with their wire types.
_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_SESSION_START = b"\x08\x01"


class EventFile:
    """An event file, every event on disk when its method returns.

    Args:
        path: A new file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._write(_field(_FILE_VERSION, _BYTES) + _sized(b"brain.Event:2"))

    def start_at(self, step: int) -> None:
        """Tells readers to forget the events of earlier files from this step on."""
        self._write(_at(step) + _field(_SESSION_LOG, _BYTES) + _sized(_SESSION_START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all the values."""
        with np.errstate(over="ignore"):  # beyond float32's range a value is infinite
            packed = np.array(list(values.values()), "<f4")
        template, places = _summary_of(tuple(values))
        summary = template.copy()
        summary[places] = packed.view(np.uint8)
        summary = summary.tobytes()
        self._write(_at(step) + _field(_SUMMARY, _BYTES) + _sized(summary))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, body: bytes) -> None:
        event = _field(_WALL_TIME, _DOUBLE) + struct.pack("<d", time.time()) + body
        length = struct.pack("<Q", len(event))
        self._file.write(b"".join((length, _checksum(length), event, _checksum(event))))
        self._file.flush()


def _field(number: int, wire_type: int) -> bytes:
    return bytes([number << 3 | wire_type])


def _at(step: int) -> bytes:
    return _field(_STEP, _VARINT) + _varint(step)


@functools.lru_cache(maxsize=4096)
def _tag(name: str) -> bytes:
    return _field(_TAG, _BYTES) + _sized(name.encode())


@functools.lru_cache(maxsize=64)
def _summary_of(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A summary of zeros under these names, as octets, and where the octets of the numbers are."""
    values = [_value(name, bytes(4)) for name in names]
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    places = (ends[:, None] + np.arange(-4, 0)).reshape(-1)
    return np.frombuffer(b"".join(values), np.uint8), places


def _value(name: str, float32: bytes) -> bytes:
    body = _tag(name) + _field(_SIMPLE_VALUE, _FLOAT) + float32
    return _field(_VALUE, _BYTES) + _sized(body)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _sized(body: bytes) -> bytes:
    return _varint(len(body)) + body


def _checksum(data: bytes) -> bytes:
    """The CRC-32C, masked as record files have it."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of at least four bytes.

    The CRC is linear: the exclusive or of what each byte contributes, which depends on the byte
    and its distance from the end. So it is one gather and one reduction.
    """
    octets = np.frombuffer(data, np.uint8).copy()
    octets[:4] ^= 0xFF  # the register starts with all bits set
    size = 1 << (len(octets) - 1).bit_length()  # tables for powers of two, not for every length
    table = _contributions(size)[len(octets) - 1 :: -1]
    return int(np.bitwise_xor.reduce(table[np.arange(len(octets)), octets])) ^ 0xFFFFFFFF


@functools.cache
def _contributions(size: int) -> np.ndarray:
    """`[size, 256]`: what a byte contributes at each distance from the end."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(0x82F63B78), first >> 1)
    table = np.empty((size, 256), np.uint32)
    table[0] = first
    for distance in range(1, size):  # one zero byte more behind it
        before = table[distance - 1]
        table[distance] = first[before & 0xFF] ^ before >> 8
    return table
