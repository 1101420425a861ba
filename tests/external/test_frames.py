"""Frames: what is sent is what arrives, and whatever else arrives is one sentence."""

import json
import struct
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl.external import LinkError
from jaxrl.external.frames import (
    DTYPES,
    HEADER,
    MAGIC,
    MAJOR,
    MESSAGES,
    FrameError,
    Kind,
    Limits,
    decode_header,
    decode_payload,
    encode,
    is_proof,
    make_proof,
)
from jaxrl.external.spaces import SpaceLeaves, describe_space, hash_spaces

LIMITS = Limits()


def decode(frame: bytes, limits: Limits = LIMITS) -> Any:
    kind, length = decode_header(frame[: HEADER.size], limits)
    assert length == len(frame) - HEADER.size
    return (kind, *decode_payload(frame[HEADER.size :], limits))


arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(max_size=8), arrays, max_size=4), st.sampled_from(Kind))
def test_round_trip(sent: dict[str, np.ndarray], kind: Kind) -> None:
    head = {"a": [1, None, {"b": "ü[{"}]}
    got_kind, got_head, got = decode(encode(kind, head, sent))
    assert (got_kind, got_head) == (kind, head)
    assert list(got) == list(sent)
    for name, array in sent.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_arrays_are_aligned_and_views_of_the_message() -> None:
    frame = encode(Kind.ACT, {"x": 1}, {"a": np.zeros(3, np.int8), "b": np.zeros(2)})
    payload = frame[HEADER.size :]
    _, got = decode_payload(payload, LIMITS)
    base = np.frombuffer(payload, np.uint8)
    for array in got.values():
        assert np.shares_memory(array, base)
        offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        assert offset % 8 == 0


def with_head(head: Any, data: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    start = struct.pack("<I", len(text)) + text
    return start + bytes(-len(start) % 8) + data


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "too short"),
        (struct.pack("<I", 2**31), "exceeds its message"),
        (with_head(b"{"), "not valid JSON"),
        (with_head(b"\xff"), "not valid JSON"),
        (with_head(b"[" * 20), "nested deeper than 16"),
        (with_head(b'{"x": NaN}'), "NaN is not a number"),
        (with_head([1]), "must be an object"),
        (with_head({"arrays": 1}), "must be a list"),
        (with_head({"arrays": [["a", "<f4"]]}), "is described as"),
        (with_head({"arrays": [["a", "|O", [1]]]}), "has the dtype '|O'"),
        (with_head({"arrays": [["a", "|V8", [1]]]}, bytes(8)), "has the dtype '|V8'"),
        (with_head({"arrays": [["a", ["<f4"], [1]]]}), "has the dtype"),
        (with_head({"arrays": [["a", "<f4", [-1]]]}), "has the shape"),
        (with_head({"arrays": [["a", "<f4", [True]]]}), "has the shape"),
        (with_head({"arrays": [["a", "<f4", [2**31]]]}), "has the shape"),
        (with_head({"arrays": [["a", "<f8", [2**30] * 4]]}), "exceeds its message"),
        (with_head({"arrays": [["a", "<f4", [2]]]}, bytes(4)), "exceeds its message"),
        (with_head({"arrays": [["a", "<f4", [2]]] * 2}, bytes(16)), "occurs twice"),
        (with_head({"arrays": []}, bytes(8)), "more than its arrays"),
    ],
)
def test_damaged_payloads_have_one_sentence(payload: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message.replace("|", r"\|")) as raised:
        decode_payload(payload, LIMITS)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"GET / HTTP/1", "something else speaks"),
        (HEADER.pack(MAGIC, MAJOR + 1, 1, 0, 0), f"version {MAJOR + 1} of jaxrl-link"),
        (HEADER.pack(MAGIC, MAJOR, 99, 0, 0), "no message of kind 99"),
        (HEADER.pack(MAGIC, MAJOR, 1, 0, 2**32 - 1), "exceeds max_message_bytes"),
    ],
)
def test_foreign_headers_have_one_sentence(header: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        decode_header(header, LIMITS)


def fuzz(number: int) -> None:
    """Change, cut and extend a valid frame: it decodes, or is refused; nothing else happens."""
    rng = np.random.default_rng(0)
    valid = encode(
        Kind.EPISODES,
        {"number": 0, "parts": [{"episode_id": "x", "length": 3}]},
        {"0.obs.0": np.zeros((4, 2), np.float32), "0.reward": np.zeros(3, np.float32)},
    )
    refused = 0
    for _ in range(number):
        frame = bytearray(valid)
        for _ in range(rng.integers(1, 6)):
            frame[rng.integers(len(frame))] = rng.integers(256)
        frame = frame[: rng.integers(1, len(frame) + 1)] if rng.random() < 0.3 else frame
        frame += rng.bytes(rng.integers(0, 9)) if rng.random() < 0.3 else b""
        try:
            decode_header(bytes(frame[: HEADER.size].ljust(HEADER.size, b"\0")), LIMITS)
            decode_payload(bytes(frame[HEADER.size :]), LIMITS)
        except FrameError:
            refused += 1
    assert number / 2 < refused < number


def test_fuzzed_frames() -> None:
    fuzz(200)


@pytest.mark.slow
def test_many_fuzzed_frames() -> None:
    fuzz(2000)


def test_proofs_differ_by_side_client_and_nonce() -> None:
    nonces = "a" * 64, "b" * 64
    proofs = {
        make_proof(b"secret", "client", "me", 0, nonces),
        make_proof(b"secret", "server", "me", 0, nonces),
        make_proof(b"secret", "client", "you", 0, nonces),
        make_proof(b"secret", "client", "me", 1, nonces),
        make_proof(b"secret", "client", "me", 0, nonces[::-1]),
        make_proof(b"other", "client", "me", 0, nonces),
    }
    assert len(proofs) == 6
    assert all(is_proof(proof, proof) for proof in proofs)
    assert not any(is_proof(proof, value) for proof in proofs for value in (None, "", 5, "é"))


def test_every_kind_is_described() -> None:
    assert set(MESSAGES) == set(Kind)
    assert {message.sender for message in MESSAGES.values()} == {"client", "server"}


box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
SPACES = [
    box,
    gymnasium.spaces.Box(np.asarray([0, -np.inf]), np.asarray([1, np.inf]), dtype=np.float64),
    gymnasium.spaces.Box(0, 255, (2, 2), np.uint8),
    gymnasium.spaces.Discrete(3, start=1),
    gymnasium.spaces.MultiDiscrete([2, 3]),
    gymnasium.spaces.MultiBinary(4),
    gymnasium.spaces.Dict(
        {"b": box, "a": gymnasium.spaces.Tuple([box, gymnasium.spaces.Discrete(2)])}
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_of_spaces_are_arrays_and_back(space: gymnasium.Space[Any]) -> None:
    described = json.loads(json.dumps(describe_space(space)))
    leaves = SpaceLeaves(described, "obs")
    space.seed(0)
    for _ in range(5):
        value = space.sample()
        flat = leaves.flatten(value)
        assert [leaf.name for leaf in leaves.leaves] == list(flat)
        leaves.check({name: array[None] for name, array in flat.items()}, "", 1)
        back = leaves.unflatten(flat)
        assert str(leaves.flatten(back)) == str(flat)
    assert hash_spaces(described, described) == hash_spaces(*[describe_space(space)] * 2)
    assert hash_spaces(described, described) != hash_spaces(described, describe_space(OTHER))


OTHER = gymnasium.spaces.Discrete(9)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"b": np.zeros(2)}, r"obs must be a dict of \['a', 'b'\]"),
        ({"b": np.zeros(2), "a": 1}, r"obs\['a'\] must be a tuple of 2"),
        ({"b": np.zeros(3), "a": (np.zeros(2), 0)}, r"obs\['b'\] must be float32 of shape"),
        ({"b": np.zeros(2), "a": (np.zeros(2), 2)}, r"obs\['a'\]\[1\] is 2, outside"),
        ({"b": np.zeros(2), "a": (np.zeros(2), 0.5)}, r"obs\['a'\]\[1\] must be whole"),
        ({"b": np.zeros(2), "a": (np.asarray([0, 9]), 0)}, r"is 9 at \[1\], outside its bounds"),
        ({"b": np.zeros(2), "a": ("x", 0)}, r"obs\['a'\]\[0\] must be float32"),
    ],
)
def test_values_outside_have_one_sentence(value: Any, message: str) -> None:
    leaves = SpaceLeaves(describe_space(SPACES[-1]), "obs")
    with pytest.raises(LinkError, match=message):
        leaves.flatten(value)


def test_unsupported_space_is_named() -> None:
    with pytest.raises(LinkError, match="class Text are not supported"):
        describe_space(gymnasium.spaces.Text(3))
