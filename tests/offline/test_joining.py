"""Parts of episodes that come between those of others, as environments side by side are recorded."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np

from jaxrl import EpisodeWriter
from jaxrl.assembly.offline import concatenate_sources, select_parts
from jaxrl.config.settings.offline import OfflineDataSettings
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.episodes.packing import EpisodePart
from jaxrl.estimation.target import read_whole_episodes
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import merge_ended_parts, merge_parts
from tests.offline.parts import BOX, DISCRETE, assert_same, make_part

WHOLE = {
    name: make_part(6, episode_id=name, seed=i, terminated=True) for i, name in enumerate("ab")
}
PARTS = {name: part.split(3) for name, part in WHOLE.items()}


def make_interleaved() -> list[EpisodePart]:
    """Make a0 b0 a1 b1, of two episodes of six steps."""
    return [PARTS[name][i] for i in range(2) for name in "ab"]


def describe(parts: Any) -> list[tuple[str, int, int]]:
    return [(part.episode_id, part.t_started, len(part)) for part in parts]


def test_parts_of_episodes_side_by_side_are_joined() -> None:
    for merged in (merge_parts(make_interleaved()), merge_ended_parts(make_interleaved(), 100)):
        for part, whole in zip(merged, WHOLE.values(), strict=True):
            assert_same(part, whole)
    joined, alone = concatenate_sources([make_interleaved()]), concatenate_sources([WHOLE.values()])
    jax.tree.map(np.testing.assert_array_equal, joined, alone)


def test_the_order_is_that_of_the_first_parts() -> None:
    late = make_part(2, episode_id="c", truncated=True)
    opened = make_part(2, episode_id="d")
    parts = [opened, PARTS["a"][0], late, PARTS["a"][1]]
    assert [part.episode_id for part in merge_parts(parts)] == ["d", "a", "c"]
    assert [part.episode_id for part in merge_ended_parts(parts, 100)] == ["c", "a", "d"]


def test_gaps_and_ends_are_borders() -> None:
    head, tail = WHOLE["a"].split(2)
    ended = dataclasses.replace(head, is_cut=True)
    for first, second in [(head, tail.split(2)[1]), (ended, tail), (WHOLE["a"], WHOLE["a"])]:
        parts = [first, PARTS["b"][0], second]
        for merged in (merge_parts(parts), merge_ended_parts(parts, 100)):
            assert sorted(describe(merged)) == sorted(describe(parts))


def test_few_steps_of_unfinished_episodes_wait() -> None:
    merged = merge_ended_parts(make_interleaved(), 5)
    assert describe(merged) == [("a", 0, 3), ("a", 3, 3), ("b", 0, 6)]


def test_last_steps_wait_for_their_successors_where_they_are_left_out() -> None:
    settings = OfflineDataSettings(ignore_final_observation=True)
    merge = functools.partial(merge_ended_parts, max_unfinished_steps=5, overlaps=True)
    lost = dataclasses.replace(PARTS["a"][0], obs=np.copy(PARTS["a"][0].obs))
    lost.obs[-1] = lost.obs[-2]  # as where no row has its successor
    parts = [lost, *make_interleaved()[1:]]
    data = SimpleNamespace(has_past=True)
    kept = list(select_parts(settings, cast("RecordedData", data), parts, merge))
    assert describe(kept) == [("a", 0, 2), ("a", 2, 4), ("b", 0, 6)]
    head, tail = WHOLE["a"].split(2)
    assert_same(kept[0], head)
    assert_same(kept[1], tail)


def test_few_last_steps_wait() -> None:
    """Those of episodes that never go on do not add up."""
    heads = [dataclasses.replace(PARTS["a"][0], episode_id=str(i)) for i in range(9)]
    rest = [dataclasses.replace(PARTS["a"][1], episode_id=str(i)) for i in (0, 7)]
    merged = describe(merge_ended_parts([*heads, *rest], 2, overlaps=True))
    assert ("7", 2, 4) in merged
    assert ("0", 3, 3) in merged


def test_episodes_side_by_side_are_whole(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path, BOX, DISCRETE, actions_are_normalized=True) as writer:
        writer.add_parts(make_interleaved())
    data = open_data(tmp_path)
    assert data.counts is not None
    whole = read_whole_episodes(data, cast("ActionPipeline", None))
    assert data.counts.returns.num_episodes == len(whole.parts) == 2
    assert whole.num_dropped == 0
