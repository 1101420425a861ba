"""TensorBoard event files: checksummed records of protocol buffers, encoded by hand.

The format is small (https://www.tensorflow.org/tutorials/load_data/tfrecord and
tensorflow/core/util/event.proto), and this encoder takes a tenth of a millisecond per event, where
writers that compute the CRC in a Python loop take milliseconds.
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
    """TensorBoard event file; each event is on disk when the method that wrote it returns.

    Args:
        path: Path of the file, which must not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._write(_encode_key(_FILE_VERSION, _BYTES) + _encode_bytes(b"brain.Event:2"))

    def start_at(self, step: int) -> None:
        """Make readers discard events of earlier files from this step on."""
        self._write(
            _encode_step(step) + _encode_key(_SESSION_LOG, _BYTES) + _encode_bytes(_SESSION_START)
        )

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one event with all values."""
        with np.errstate(over="ignore"):  # values beyond float32's range become infinite
            packed = np.array(list(values.values()), "<f4")
        template, offsets = _make_summary_template(tuple(values))
        summary = template.copy()
        summary[offsets] = packed.view(np.uint8)
        summary = summary.tobytes()
        self._write(_encode_step(step) + _encode_key(_SUMMARY, _BYTES) + _encode_bytes(summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, body: bytes) -> None:
        event = _encode_key(_WALL_TIME, _DOUBLE) + struct.pack("<d", time.time()) + body
        length = struct.pack("<Q", len(event))
        self._file.write(b"".join((length, _masked_crc32c(length), event, _masked_crc32c(event))))
        self._file.flush()


def _encode_key(number: int, wire_type: int) -> bytes:
    return bytes([number << 3 | wire_type])


def _encode_step(step: int) -> bytes:
    return _encode_key(_STEP, _VARINT) + _encode_varint(step)


@functools.lru_cache(maxsize=4096)
def _encode_tag(name: str) -> bytes:
    return _encode_key(_TAG, _BYTES) + _encode_bytes(name.encode())


@functools.lru_cache(maxsize=64)
def _make_summary_template(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return an encoded summary of zeros under these names and the byte offsets of its values."""
    values = [_encode_value(name, bytes(4)) for name in names]
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    offsets = (ends[:, None] + np.arange(-4, 0)).reshape(-1)
    return np.frombuffer(b"".join(values), np.uint8), offsets


def _encode_value(name: str, float32: bytes) -> bytes:
    body = _encode_tag(name) + _encode_key(_SIMPLE_VALUE, _FLOAT) + float32
    return _encode_key(_VALUE, _BYTES) + _encode_bytes(body)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_bytes(body: bytes) -> bytes:
    return _encode_varint(len(body)) + body


def _masked_crc32c(data: bytes) -> bytes:
    """Return the masked CRC-32C of record files."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C (Castagnoli) of at least four bytes.

    The CRC is linear: it is the exclusive or of the contributions of the bytes, each of which
    depends on the byte and its distance from the end. It therefore takes one gather and one
    reduction.
    """
    octets = np.frombuffer(data, np.uint8).copy()
    octets[:4] ^= 0xFF  # the register starts with all bits set
    size = 1 << (len(octets) - 1).bit_length()  # one table per power of two, not per length
    table = _make_crc_table(size)[len(octets) - 1 :: -1]
    return int(np.bitwise_xor.reduce(table[np.arange(len(octets)), octets])) ^ 0xFFFFFFFF


@functools.cache
def _make_crc_table(size: int) -> np.ndarray:
    """Return the contribution of each byte at each distance from the end, `[size, 256]`."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(0x82F63B78), first >> 1)
    table = np.empty((size, 256), np.uint32)
    table[0] = first
    for distance in range(1, size):  # followed by one more zero byte
        previous = table[distance - 1]
        table[distance] = first[previous & 0xFF] ^ previous >> 8
    return table
