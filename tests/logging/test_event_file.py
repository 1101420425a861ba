import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow as reference

from jaxrl.loggers.event_file import EventFile, crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_of_known_data(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@pytest.mark.parametrize("length", [4, 5, 8, 63, 64, 65, 3000])
def test_crc32c_against_a_loop(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == reference.crc32c(data)


def events(path: Path) -> Iterator[Any]:
    """The events of a file as TensorBoard parses them, its checksums compared."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        for part, found in ((data[:8], data[8:12]), (body, data[12 + length : 16 + length])):
            assert struct.unpack("<I", found) == (reference.masked_crc32c(part),)
        yield event_pb2.Event.FromString(body)
        data = data[16 + length :]


def test_what_is_written_is_what_protocol_buffers_read(tmp_path: Path) -> None:
    path = tmp_path / "events"
    file = EventFile(path)
    file.start_at(301)
    file.write_scalars(2**40 + 5, {"a/b": 0.5, "größe": -3e38, "huge": 1e300, "count": 7})
    file.write_scalars(0, {})
    file.close()
    head, start, scalars, empty = events(path)
    assert head.file_version == "brain.Event:2"
    assert abs(head.wall_time - time.time()) < 60
    assert (start.step, start.session_log.status) == (301, event_pb2.SessionLog.START)
    assert scalars.step == 2**40 + 5
    assert {value.tag: value.simple_value for value in scalars.summary.value} == {
        "a/b": 0.5,
        "größe": pytest.approx(-3e38),
        "huge": float("inf"),
        "count": 7.0,
    }
    assert empty.WhichOneof("what") == "summary"
