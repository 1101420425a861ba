"""`pack` is the inverse of `episodes_from_rollout`: every row once, with its ends and its carry."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.episodes.packing import EpisodePart, PackedParts, episodes_from_rollout, pack
from jaxrl.learners.bootstrap import compute_values_and_successors


def make_episode(
    name: int, length: int, end: str, cuts: list[int], *, has_carry: bool
) -> list[EpisodePart]:
    """Parts whose every value says where it belongs: 1000 * episode + time step."""
    t = np.arange(length + 1, dtype=np.float32)
    mark = 1000.0 * name + t
    whole = EpisodePart(
        episode_id=str(name),
        t_started=0,
        obs={"x": mark[:, None], "y": mark[:, None].repeat(2, 1)},
        action=mark[:-1].astype(np.int32),
        reward=mark[:-1] + 0.5,
        extras={"action_logp": -mark[:-1]},
        version=np.arange(length),
        terminated=end == "terminated",
        truncated=end == "truncated",
        is_cut=end == "cut",
        carry=(mark[:-1, None],) if has_carry else None,
    )
    parts: list[EpisodePart] = []
    for cut in sorted({c for c in cuts if 0 < c < length}, reverse=True):
        whole, tail = whole.split(cut)
        parts.insert(0, tail)
    return [whole, *parts]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[EpisodePart], int, int]:
    has_carry = draw(st.booleans())
    queues = [
        make_episode(
            i,
            draw(st.integers(1, 12)),
            draw(st.sampled_from(["terminated", "truncated", "cut", "open"])),
            draw(st.lists(st.integers(1, 11), max_size=3)),
            has_carry=has_carry,
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    order: list[EpisodePart] = []
    while any(queues):  # parts of several episodes arrive interleaved
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        order.append(queue.pop(0))
    return order, draw(st.integers(1, 6)), draw(st.integers(1, 3))


def pack_all(parts: list[EpisodePart], T: int, n: int) -> list[PackedParts]:
    packed: list[PackedParts] = []
    tails = None
    while parts:
        packed.append(pack(parts, T, n, tails))
        tails, parts = packed[-1].tails, list(packed[-1].rest)
    return packed


@settings(deadline=None, max_examples=150)
@given(cases())
def test_every_transition_is_packed_once(case: tuple[list[EpisodePart], int, int]) -> None:
    parts, T, n = case
    expected = sorted(
        (float(part.obs["x"][i, 0]), float(part.obs["x"][i + 1, 0]), float(part.reward[i]))
        for part in parts
        for i in range(len(part))
    )
    found = []
    for packed in pack_all(parts, T, n):
        assert packed.rollout.mask.shape == (T, n)
        for episode in episodes_from_rollout(packed.rollout):
            obs, rewards = episode.get_observations(), episode.get_rewards()
            np.testing.assert_array_equal(obs["x"].repeat(2, 1), obs["y"])
            np.testing.assert_array_equal(episode.get_actions(), obs["x"][:-1, 0])
            logp = episode.get_extra_model_outputs("action_logp")
            np.testing.assert_array_equal(logp, -obs["x"][:-1, 0])
            found += [(obs["x"][i, 0], obs["x"][i + 1, 0], rewards[i]) for i in range(len(episode))]
    assert sorted(map(tuple, np.asarray(found, float).tolist())) == expected


@settings(deadline=None, max_examples=150)
@given(cases())
def test_ends_are_the_episodes_own(case: tuple[list[EpisodePart], int, int]) -> None:
    parts, T, n = case
    ends = {
        float(part.obs["x"][-2, 0]): (part.terminated, part.truncated, part.is_cut)
        for part in parts
    }
    for packed in pack_all(parts, T, n):
        rollout = packed.rollout
        for t, b in np.argwhere(rollout.mask):
            mark = float(rollout.obs["x"][t, b, 0])
            terminated, truncated, is_cut = ends.get(mark, (False, False, False))
            assert rollout.terminated[t, b] == terminated
            assert packed.ended[t, b] == (terminated or truncated)
            is_border = t + 1 == T
            is_followed = (
                not is_border
                and rollout.mask[t + 1, b]
                and rollout.obs["x"][t + 1, b, 0] == mark + 1
            )
            must_bootstrap = truncated or is_cut or not (is_border or is_followed or terminated)
            assert rollout.truncated[t, b] == must_bootstrap
            assert rollout.is_first[t, b] == (mark % 1000 == 0)


@settings(deadline=None, max_examples=10)
@given(cases())
def test_bootstrap_values_are_those_of_successors(
    case: tuple[list[EpisodePart], int, int],
) -> None:
    """Also of rows that others do not fill: before empty ones, and before other episodes."""
    parts, T, n = case
    for packed in pack_all(parts, T, n):
        rollout: Any = packed.rollout
        _, found = compute_values_and_successors(lambda obs: jnp.asarray(obs["x"][:, 0]), rollout)
        is_needed = rollout.mask & ~rollout.terminated
        expected = rollout.final_obs["x"][..., 0]
        np.testing.assert_array_equal(np.asarray(found)[is_needed], expected[is_needed])


@settings(deadline=None, max_examples=150)
@given(cases())
def test_carry_is_that_of_the_first_row(case: tuple[list[EpisodePart], int, int]) -> None:
    parts, T, n = case
    if parts[0].carry is None:
        first = pack(parts, T, n)  # any row may follow any other
        assert first.rollout.mask.sum() == min(T * n, sum(map(len, parts)))
        return
    last: dict[int, float] = {}
    for packed in pack_all(parts, T, n):
        rollout = packed.rollout
        for b in range(n):
            if not rollout.mask[0, b]:
                continue
            first = float(rollout.obs["x"][0, b, 0])
            assert rollout.carry_in[0][b, 0] == first
            assert packed.continues[b] == (last.get(b) == first)
            rows = int(rollout.mask[:, b].sum())
            for t in range(1, rows):  # a state is never one of another row
                mark = float(rollout.obs["x"][t, b, 0])
                assert rollout.is_first[t, b] or rollout.obs["x"][t - 1, b, 0] == mark - 1
            end = float(rollout.final_obs["x"][rows - 1, b, 0])
            is_done = rollout.terminated[rows - 1, b] or rollout.truncated[rows - 1, b]
            last[b] = -1.0 if is_done or rows < T else end


def make_long(name: int, length: int) -> list[EpisodePart]:
    return make_episode(name, length, "open", [], has_carry=True)


def test_column_continues_its_own_episode() -> None:
    first = pack([*make_long(1, 9), *make_long(2, 9)], 4, 2)
    assert first.tails == (("1", 4), ("2", 4))
    second = pack(first.rest[::-1], 4, 2, first.tails)
    assert second.tails == (("1", 8), ("2", 8))
    assert second.continues.all()


def test_one_long_episode_fills_all_columns() -> None:
    packed = pack(make_long(1, 8), 4, 2)
    assert packed.rollout.mask.all()
    assert packed.rollout.carry_in[0][:, 0].tolist() == [1000.0, 1004.0]


def test_without_memory_nothing_stays_empty() -> None:
    parts = [p for i in range(4) for p in make_episode(i, 5, "open", [3], has_carry=False)]
    packed = pack(parts, 5, 4)
    assert packed.rollout.mask.all()
    assert not packed.rest


@pytest.mark.parametrize("end", ["cut", "truncated", "terminated"])
def test_only_a_termination_does_not_bootstrap(end: str) -> None:
    rollout: Any = pack(make_episode(0, 3, end, [], has_carry=False), 3, 1).rollout
    assert rollout.terminated[-1, 0] == (end == "terminated")
    assert rollout.truncated[-1, 0] == (end != "terminated")
