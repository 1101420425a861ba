"""Rollouts become parts of episodes with the same transitions, however they are divided."""

import dataclasses
import itertools
import json
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.core.types import Rollout
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.checks import OrderChecker
from jaxrl.offline.stitch import PartStitcher
from tests.offline.parts import assert_same, join, make_part

TERMINATED, TRUNCATED, CUT, FAULT = "terminated", "truncated", "cut", "fault"


def make_rollout(columns: list[list[tuple[int, str]]]) -> Rollout:
    """Episodes of each environment, given by length and end, one after the other.

    Every observation is a number of its own. A fault is one more row that is masked.
    """
    lengths = [sum(length + (end == FAULT) for length, end in column) for column in columns]
    shape = min(lengths), len(columns)
    rows = {name: np.zeros(shape, bool) for name in ("terminated", "truncated", "is_first", "mask")}
    rows["mask"][:] = True
    obs, final_obs = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    marker = 0.0
    for b, column in enumerate(columns):
        t = 0
        for length, end in column:
            stop = min(t + length, shape[0])
            obs[t:stop, b] = marker + np.arange(stop - t)
            final_obs[t:stop, b] = obs[t:stop, b] + 1
            marker += length + 1
            if t < shape[0]:
                rows["is_first"][t, b] = True
            if stop == t + length and stop <= shape[0] and end in rows:
                rows[end][stop - 1, b] = True
            t = stop
            if end == FAULT and t < shape[0]:
                rows["mask"][t, b] = False
                t += 1
    numbers = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    return Rollout(
        obs={"x": obs, "y": (np.stack([obs, -obs], -1).astype(np.int8),)},
        action=numbers.astype(np.int32),
        reward=numbers / 8,
        final_obs={"x": final_obs, "y": (np.stack([final_obs, -final_obs], -1).astype(np.int8),)},
        extras={"action_logp": -numbers},
        carry_in={"h": np.tile(np.arange(shape[1], dtype=np.float32)[:, None], (1, 2))},
        **rows,
    )


def divide(rollout: Rollout, borders: list[int]) -> list[Rollout]:
    """Fragments between borders."""
    edges = [0, *sorted(borders), len(rollout.reward)]

    def cut(first: int, end: int) -> Rollout:
        fields = {
            name: jax.tree.map(lambda leaf: leaf[first:end], value)
            for name, value in vars(rollout).items()
            if name != "carry_in"
        }
        return Rollout(**fields, carry_in=rollout.carry_in)

    return [cut(a, b) for a, b in itertools.pairwise(edges) if b > a]


def expect(rollout: Rollout) -> dict[str, list[tuple[float, ...]]]:
    """The transitions of each episode, row by row."""
    episodes: dict[str, list[tuple[float, ...]]] = {}
    for b in range(rollout.mask.shape[1]):
        number = -1
        for t in range(len(rollout.mask)):
            number += bool(rollout.is_first[t, b])
            if not rollout.mask[t, b]:
                continue
            rows = (rollout.obs["x"], rollout.action, rollout.reward, rollout.final_obs["x"])
            flags = (rollout.terminated, rollout.truncated)
            row = tuple(
                float(leaf[t, b]) for leaf in (*rows, rollout.extras["action_logp"], *flags)
            )
            episodes.setdefault(f"run-{b}-{number}", []).append(row)
    return episodes


def transitions(part: EpisodePart) -> list[tuple[float, ...]]:
    """The transitions of a part."""
    length = len(part)
    flags = np.zeros((2, length))
    flags[:, -1] = part.terminated, part.truncated
    x = part.obs["x"]
    np.testing.assert_array_equal(part.obs["y"][0], np.stack([x, -x], -1).astype(np.int8))
    columns = (x[:-1], part.action, part.reward, x[1:], part.extras["action_logp"], *flags)
    return [tuple(float(column[t]) for column in columns) for t in range(length)]


EPISODES = st.lists(
    st.tuples(st.integers(1, 7), st.sampled_from([TERMINATED, TRUNCATED, CUT, FAULT])),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(EPISODES, min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=5),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.integers(1, 12),
)
def test_parts_hold_the_transitions_of_rollouts(
    columns: list[list[tuple[int, str]]],
    borders: list[int],
    is_restored: list[bool],
    max_part_length: int,
) -> None:
    rollout = make_rollout(columns)
    num_steps, num_envs = rollout.mask.shape
    stitcher = PartStitcher("run", max_part_length=max_part_length)
    parts: list[EpisodePart] = []
    fragments = divide(rollout, [border for border in borders if border < num_steps])
    for fragment, restore in zip(fragments, is_restored, strict=False):
        parts += stitcher.add(fragment, np.arange(num_envs), version=3)
        if restore:
            parts += stitcher.flush()
            state = json.loads(json.dumps(stitcher.get_state()))
            stitcher = PartStitcher("other", max_part_length=max_part_length)
            stitcher.set_state(state)
    parts += stitcher.flush()
    assert stitcher.flush() == []
    assert stitcher.num_dropped == 0
    order, found = OrderChecker(), dict[str, list[tuple[float, ...]]]()
    for part in parts:
        order.check(part, "")
        assert part.t_started == len(found.setdefault(part.episode_id, []))
        found[part.episode_id] += transitions(part)
        assert (part.version == 3).all()
    assert found == {name: rows for name, rows in expect(rollout).items() if rows}


@settings(deadline=None, max_examples=150)
@given(
    st.lists(EPISODES, min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(1, 12),
)
def test_without_memory_parts_and_their_order_are_those_of_any_division(
    columns: list[list[tuple[int, str]]], borders: list[int], max_part_length: int
) -> None:
    rollout = dataclasses.replace(make_rollout(columns), carry_in=None)
    num_steps, num_envs = rollout.mask.shape
    results: list[list[EpisodePart]] = []
    for fragments in ([rollout], divide(rollout, [x for x in borders if x < num_steps])):
        stitcher = PartStitcher("run", max_part_length=max_part_length)
        parts = [part for rows in fragments for part in stitcher.add(rows, np.arange(num_envs))]
        results.append([*parts, *stitcher.flush()])
    assert max(map(len, results[0]), default=0) <= max_part_length
    for part, other in zip(*results, strict=True):
        assert_same(part, other)


def test_division_changes_nothing_but_the_borders() -> None:
    rollout = make_rollout([[(9, TERMINATED), (4, TRUNCATED)], [(13, CUT)]])
    whole = PartStitcher("run")
    parts = whole.add(rollout, np.arange(2))
    parts += whole.flush()
    divided = PartStitcher("run")
    found = [part for piece in divide(rollout, [1, 5]) for part in divided.add(piece, np.arange(2))]
    assert len(found) == 2  # open parts are kept across borders
    found += divided.flush()
    for part, other in zip(parts, found, strict=True):
        assert_same(part, other)


def test_ends_are_told_apart() -> None:
    ends = [(2, TERMINATED), (2, TRUNCATED), (2, CUT), (2, FAULT), (1, TERMINATED)]
    stitcher = PartStitcher("run")
    parts = stitcher.add(make_rollout([ends]), np.asarray([7]))
    assert [part.episode_id for part in parts] == [f"run-7-{i}" for i in range(5)]
    flags = [(part.terminated, part.truncated, part.is_cut) for part in parts]
    cut = (False, False, True)
    assert flags == [(True, False, False), (False, True, False), cut, cut, (True, False, False)]


def test_both_ends_at_once_are_a_termination() -> None:
    rollout = make_rollout([[(2, TERMINATED)]])
    rollout.truncated[1, 0] = True
    (part,) = PartStitcher("run").add(rollout, np.asarray([0]))
    assert (part.terminated, part.truncated) == (True, False)


def test_long_parts_end_with_their_rollout_and_the_next_has_the_carry() -> None:
    rollout = make_rollout([[(8, CUT)], [(8, CUT)]])
    stitcher = PartStitcher("run", max_part_length=3)
    first, second, third = divide(rollout, [2, 5])
    assert stitcher.add(first, np.asarray([4, 9])) == []
    parts = stitcher.add(second, np.asarray([4, 9]))
    assert [(part.t_started, len(part), part.is_last) for part in parts] == [(0, 5, False)] * 2
    assert [part.carry for part in parts] == [None, None]
    parts = stitcher.add(third, np.asarray([4, 9]))
    assert [(part.t_started, len(part)) for part in parts] == [(5, 3)] * 2
    np.testing.assert_array_equal(parts[1].carry["h"], [[1.0, 1.0]])
    head, tail = parts[1].split(1)
    np.testing.assert_array_equal(head.carry["h"], [[1.0, 1.0]])
    assert tail.carry is None


@pytest.mark.parametrize("lengths", [(6,), (3, 1, 2)])
def test_columns_of_one_environment_are_consecutive(lengths: tuple[int, ...]) -> None:
    rollout = make_rollout([[(length, TERMINATED) for length in lengths]])
    first, second = divide(rollout, [3])
    fields = {
        name: jax.tree.map(lambda a, b: np.concatenate([a, b], 1), getattr(first, name), value)
        for name, value in vars(second).items()
        if name != "carry_in"
    }
    parts = PartStitcher("run").add(Rollout(**fields), np.asarray([5, 5]))
    expected = PartStitcher("run").add(rollout, np.asarray([5]))
    assert [part.episode_id for part in parts] == [f"run-5-{i}" for i in range(len(lengths))]
    for part, other in zip(parts, expected, strict=True):
        assert_same(part, other)


def test_episodes_that_began_before_need_their_time_step() -> None:
    rollout = make_rollout([[(4, TERMINATED), (2, TERMINATED)]])
    late = divide(rollout, [1])[1]
    stitcher = PartStitcher("run")
    (part,) = stitcher.add(late, np.asarray([0]))
    assert (part.t_started, len(part), part.episode_id) == (0, 2, "run-0-0")
    assert stitcher.num_dropped == 3
    parts = PartStitcher("run").add(late, np.asarray([0]), t_started=np.asarray([31]))
    assert [(part.t_started, len(part)) for part in parts] == [(31, 3), (0, 2)]


@pytest.mark.parametrize("is_restored", [False, True])
def test_an_episode_of_which_rows_were_lost_is_cut(is_restored: bool) -> None:
    """The rows after the gap are left out up to the next start."""
    rollout = make_rollout([[(6, TERMINATED), (6, TERMINATED)]])
    first, lost, last = divide(rollout, [2, 4])
    stitcher, env = PartStitcher("run"), np.asarray([0])
    assert stitcher.add(first, env, env_step=np.asarray([10], np.uint32)) == []
    before: list[EpisodePart] = []
    if is_restored:
        before, state = stitcher.flush(), stitcher.get_state()
        stitcher = PartStitcher("other")
        stitcher.set_state(state)
    parts = [*before, *stitcher.add(last, env, env_step=np.asarray([14], np.uint32))]
    found = [(part.episode_id, part.t_started, len(part), part.is_cut) for part in parts]
    assert found == [("run-0-0", 0, 2, not is_restored), ("run-0-1", 0, 6, False)]
    assert stitcher.num_dropped == 2
    whole = PartStitcher("run")
    steps = zip((first, lost, last), (10, 12, 14), strict=True)
    added = [whole.add(rows, env, env_step=np.asarray([n], np.uint32)) for rows, n in steps]
    assert [len(part) for parts in added for part in parts] == [6, 6]


def test_episodes_that_are_left_are_cut() -> None:
    stitcher, rollout = PartStitcher("run"), make_rollout([[(4, CUT)], [(4, CUT)]])
    first, last = divide(rollout, [2])
    stitcher.add(first, np.asarray([3, 1]))
    parts = stitcher.leave_episodes()
    assert [(part.episode_id, part.is_cut) for part in parts] == [
        ("run-1-0", True),
        ("run-3-0", True),
    ]
    assert stitcher.add(last, np.asarray([3, 1])) == []
    assert stitcher.num_dropped == 4


def test_state_with_open_rows_is_refused() -> None:
    stitcher = PartStitcher("run")
    stitcher.add(make_rollout([[(4, CUT)]]), np.asarray([0]))
    with pytest.raises(DataError, match=r"call flush\(\) first"):
        stitcher.get_state()


def test_split_parts_keep_every_carry() -> None:
    carry: Any = np.arange(5.0)
    head, tail = make_part(5, carry=carry).split(2)
    np.testing.assert_array_equal(head.carry, [0.0, 1.0])
    np.testing.assert_array_equal(tail.carry, [2.0, 3.0, 4.0])
    assert len(join([head, tail])["a"]) == 5
