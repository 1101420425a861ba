"""LookbackBuffer: what each kind of index means, filling, one-hot vectors, lists and arrays alike."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.episodes import LookbackBuffer
from jaxrl.errors import EpisodeError, EpisodeIndexError

NESTED = spaces.Dict(
    {
        "a": spaces.Discrete(3, start=1),
        "b": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1.0, 1.0, (2,), np.float32))),
    }
)


def buffers() -> list[LookbackBuffer]:
    """10 and 11 to look back to, then 12, 13, 14; as a list and as arrays."""
    as_list, as_arrays = (LookbackBuffer([10, 11, 12, 13, 14], 2) for _ in range(2))
    as_arrays.finalize()
    return [as_list, as_arrays]


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize(
    ("indices", "settings", "wanted"),
    [
        (None, {}, [12, 13, 14]),
        (0, {}, 12),
        (2, {}, 14),
        (-1, {}, 14),
        (-4, {}, 11),
        (-1, {"neg_index_as_lookback": True}, 11),
        (-2, {"neg_index_as_lookback": True}, 10),
        (-3, {"neg_index_as_lookback": True, "fill": 7}, 7),
        (3, {"fill": 7}, 7),
        ([0, -1], {}, [12, 14]),
        ([-1, 1, 5], {"neg_index_as_lookback": True, "fill": 0}, [11, 13, 0]),
        (slice(None), {}, [12, 13, 14]),
        (slice(1, None), {}, [13, 14]),
        (slice(None, -1), {}, [12, 13]),
        (slice(-4, None), {}, [11, 12, 13, 14]),
        (slice(-2, 1), {"neg_index_as_lookback": True}, [10, 11, 12]),
        (slice(-7, -2), {"fill": 0}, [0, 0, 10, 11, 12]),
        (slice(-4, 0), {"neg_index_as_lookback": True, "fill": 0}, [0, 0, 10, 11]),
        (slice(2, 5), {"fill": 9}, [14, 9, 9]),
        (slice(2, 5), {}, [14]),
        (slice(5, 7), {"fill": 9}, [9, 9]),
        (slice(0, 3, 2), {}, [12, 14]),
        (slice(None, None, -1), {}, [14, 13, 12]),
    ],
    ids=str,
)
def test_what_indices_mean(
    indices: Any, settings: dict[str, Any], wanted: Any, finalized: bool
) -> None:
    got = buffers()[finalized].get(indices, **settings)
    if isinstance(wanted, list):
        assert isinstance(got, np.ndarray if finalized else list)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize(
    ("indices", "settings"),
    [(3, {}), (-6, {}), (-3, {"neg_index_as_lookback": True}), ([0, 3], {})],
    ids=str,
)
def test_what_is_not_there_is_refused(
    indices: Any, settings: dict[str, Any], finalized: bool
) -> None:
    buffer = buffers()[finalized]
    with pytest.raises(IndexError, match=r"no item at .* 3 items and a lookback of 2"):
        buffer.get(indices, **settings)
    with pytest.raises(EpisodeIndexError):
        buffer.set(
            [0] * np.size(indices) if np.ndim(indices) else 0, at_indices=indices, **settings
        )


@pytest.mark.parametrize("finalized", [False, True])
def test_lengths_and_changes(finalized: bool) -> None:
    buffer = buffers()[finalized]
    assert (len(buffer), buffer.len_incl_lookback(), buffer.finalized) == (3, 5, finalized)
    buffer.append(15)
    buffer.extend([16, 17])
    np.testing.assert_array_equal(buffer.get(), [12, 13, 14, 15, 16, 17])
    buffer.pop()
    buffer[0] = 0
    buffer.set([1, 2], at_indices=[1, -1])
    buffer.set(5, at_indices=-1, neg_index_as_lookback=True)
    np.testing.assert_array_equal(buffer.get(slice(-7, None)), [10, 5, 0, 1, 14, 15, 2])
    buffer[1:3] = np.array([8, 9])
    np.testing.assert_array_equal(buffer[:], [0, 8, 9, 15, 2])
    with pytest.raises(EpisodeIndexError, match="3 new items cannot replace the 2"):
        buffer.set([1, 2, 3], at_indices=slice(0, 2))
    copy = LookbackBuffer.from_state(buffer.get_state())
    assert copy == buffer
    copy.append(1)
    assert copy != buffer
    assert len(buffer) == 5


def nested(i: int) -> Any:
    return {"a": 1 + i, "b": (np.array([i % 2, i]), np.full(2, 0.5 * i, np.float32))}


@pytest.mark.parametrize("finalized", [False, True])
def test_nested_data_are_one_hot_and_filled_by_their_space(finalized: bool) -> None:
    buffer = LookbackBuffer([nested(i) for i in range(3)], 0, NESTED)
    if finalized:
        buffer.finalize()
    hot = buffer.get(1, one_hot_discrete=True)
    np.testing.assert_array_equal(hot["a"], [0, 1, 0])
    np.testing.assert_array_equal(hot["b"][0], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(hot["b"][1], [0.5, 0.5])
    beyond = buffer.get(-1, neg_index_as_lookback=True, fill=0.0, one_hot_discrete=True)
    np.testing.assert_array_equal(beyond["a"], [0, 0, 0])
    np.testing.assert_array_equal(beyond["b"][0], np.zeros(5))
    rows = buffer.get(slice(-1, 2), neg_index_as_lookback=True, fill=0.0, one_hot_discrete=True)
    if finalized:
        assert rows["b"][0].shape == (3, 5)
        np.testing.assert_array_equal(rows["a"], [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    else:
        np.testing.assert_array_equal(rows[2]["a"], [0, 1, 0])
    plain = buffer.get(slice(2, 4), fill=7)
    last = (plain["b"][1][1], plain["a"][1]) if finalized else (plain[1]["b"][1], plain[1]["a"])
    np.testing.assert_array_equal(last[0], [7.0, 7.0])
    assert last[1] == 7


def test_one_hot_vectors_need_a_space() -> None:
    with pytest.raises(EpisodeError, match="requires the space"):
        buffers()[0].get(0, one_hot_discrete=True)
