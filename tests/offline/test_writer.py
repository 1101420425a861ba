"""Folders of recorded data: what is written is read, whatever the spaces, limits and formats."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import EpisodeWriter
from jaxrl.core.struct import pytree
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.errors import DataError
from jaxrl.offline.columns import restore_structure
from jaxrl.offline.held_out import hash_episode
from jaxrl.offline.recorded import RecordedData, open_data
from tests.offline.parts import (
    BOX,
    DISCRETE,
    NESTED,
    NESTED_ACTIONS,
    assert_same,
    join,
    make_part,
)

FORMATS = ["parquet", "npz"]


def write(folder: Path, parts: list[Any], **options: Any) -> RecordedData:
    with EpisodeWriter(folder, BOX, DISCRETE, **options) as writer:
        writer.add_parts(parts)
    return open_data(folder)


@pytest.mark.parametrize("file_format", FORMATS)
def test_parts_are_read_as_they_were_written(tmp_path: Path, file_format: str) -> None:
    parts = [
        make_part(5, terminated=True),
        make_part(1, episode_id="b", truncated=True),
        make_part(3, episode_id="c", t_started=7, is_cut=True),
        make_part(2, episode_id="d"),
        make_part(4, episode_id="d", t_started=2, terminated=True),
    ]
    data = write(tmp_path / "data", parts, file_format=file_format)
    assert [path.suffix for path in data.files] == [f".{file_format}"]
    for _ in range(2):
        for part, other in zip(parts, data.iter_parts(), strict=True):
            assert_same(part, other)


@pytest.mark.parametrize("file_format", FORMATS)
def test_nested_spaces_keep_structure_and_types(tmp_path: Path, file_format: str) -> None:
    part = make_part(6, observation_space=NESTED, action_space=NESTED_ACTIONS, terminated=True)
    with EpisodeWriter(tmp_path, NESTED, NESTED_ACTIONS, file_format=file_format) as writer:
        writer.add_parts([part])
    data = open_data(tmp_path, observation_space=NESTED, action_space=NESTED_ACTIONS)
    (read,) = data.iter_parts()
    assert_same(part, read)
    assert jax.tree.structure(part.obs) == jax.tree.structure(read.obs)
    assert "obs.inner.1" in [column.name for column in data.columns.leaves]
    assert data.observation_space == NESTED
    assert data.action_space == NESTED_ACTIONS


def test_bytes_are_stored_as_bytes(tmp_path: Path) -> None:
    image = spaces.Box(0, 255, (8, 8), np.uint8)
    with EpisodeWriter(tmp_path, image, DISCRETE) as writer:
        writer.add_parts([make_part(50, observation_space=image)])
    pq = pytest.importorskip("pyarrow.parquet")
    (path,) = tmp_path.glob("*.parquet")
    assert str(pq.read_schema(path).field("obs").type) == "list<element: fixed_size_binary[64]>"
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_manifest_has_the_facts(tmp_path: Path) -> None:
    parts = [
        make_part(2, reward=np.asarray([1, 2], np.float32), terminated=True),
        make_part(1, episode_id="b", reward=np.asarray([4], np.float32)),
        make_part(1, episode_id="b", t_started=1, reward=np.ones(1, np.float32), truncated=True),
        make_part(3, episode_id="c", t_started=5, terminated=True),
        make_part(3, episode_id="d", is_cut=True),
    ]
    facts: dict[str, Any] = {
        "env": "CartPole-v1",
        "env_params": {"length": 0.5},
        "algorithm": "PPO",
        "seed": 3,
        "checkpoint_sha256": "ab" * 32,
    }
    data = write(tmp_path, parts, **facts)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format"] == "jaxrl-episodes"
    assert {name: manifest[name] for name in facts} == facts
    assert {name: vars(data.origin)[name] for name in facts} == facts
    counts = {"num_steps": 10, "num_parts": 5, "num_episodes": 4}
    assert {name: manifest[name] for name in counts} == counts
    assert manifest["returns"] == {"num_episodes": 2, "mean": 4.0, "min": 3.0, "max": 5.0}
    assert data.counts is not None
    assert (data.counts.num_steps, data.counts.returns.mean) == (10, 4.0)
    assert manifest["has_density"] is True
    assert manifest["actions_are_normalized"] is False
    (entry,) = manifest["files"].values()
    assert entry["bytes"] == data.files[0].stat().st_size
    assert len(entry["sha256"]) == 64


@pytest.mark.parametrize("file_format", FORMATS)
def test_files_are_limited_and_long_parts_are_split(tmp_path: Path, file_format: str) -> None:
    big = spaces.Box(-1.0, 1.0, (2**14,), np.float32)  # 64 KiB a step, 63 steps a row group
    part = make_part(200, observation_space=big, terminated=True)
    options = {"file_format": file_format, "max_file_bytes": 5 * 2**20}
    with EpisodeWriter(tmp_path, big, DISCRETE, **options) as writer:
        writer.add_parts([part])
    data = open_data(tmp_path)
    assert len(data.files) == 2
    parts = list(data.iter_parts())
    assert [len(read) for read in parts] == [63, 63, 63, 11]
    assert_same(join(parts)["a"], part)
    assert data.counts is not None
    assert (data.counts.num_parts, data.counts.num_episodes) == (4, 1)


def test_split_part_keeps_the_state_before_its_first_row(tmp_path: Path) -> None:
    big = spaces.Box(-1.0, 1.0, (2**18,), np.float32)  # 1 MiB a step, 3 steps a row group
    part = make_part(5, observation_space=big, t_started=2, carry=np.ones((1, 4), np.float32))
    with EpisodeWriter(tmp_path, big, DISCRETE, state_like=np.zeros((1, 4), np.float32)) as writer:
        writer.add_parts([part])
    first, second = open_data(tmp_path).iter_parts()
    np.testing.assert_array_equal(first.carry, np.ones((1, 4)))
    assert second.carry is None


def test_rows_of_a_file_are_limited(tmp_path: Path) -> None:
    parts = [make_part(2, episode_id=str(i), terminated=True) for i in range(7)]
    data = write(tmp_path, parts, max_rows_per_file=3)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [entry["num_parts"] for entry in manifest["files"].values()] == [3, 3, 1]
    assert [part.episode_id for part in data.iter_parts()] == [str(i) for i in range(7)]


def test_episodes_of_users_are_written(tmp_path: Path) -> None:
    episode = SingleAgentEpisode("mine")
    episode.add_env_reset(np.asarray([0.0, 0.5, 1.0]))
    episode.add_env_step(np.full(3, 0.5), 3, 1, extra_model_outputs={"action_logp": -0.5})
    chunk = episode.cut(len_lookback_buffer=1)
    chunk.add_env_step(
        np.ones(3), np.int64(0), 2.5, terminated=True, extra_model_outputs={"action_logp": -1}
    )
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as writer:
        writer.write(episode)
        writer.write(chunk.to_numpy())
        writer.write(SingleAgentEpisode("empty"))
    first, second = open_data(tmp_path).iter_parts()
    assert (first.episode_id, first.t_started, second.t_started) == ("mine", 0, 1)
    np.testing.assert_array_equal(first.obs, np.asarray([[0, 0.5, 1], [0.5] * 3], np.float32))
    np.testing.assert_array_equal(second.obs, np.asarray([[0.5] * 3, [1] * 3], np.float32))
    assert first.action.dtype == np.int32
    assert [*first.action, *second.action] == [3, 0]
    assert [*first.reward, *second.reward] == [1.0, 2.5]
    assert (first.is_last, second.terminated) == (False, True)
    assert first.version == [-1]
    np.testing.assert_array_equal(second.extras["action_logp"], [-1.0])


def test_lists_are_arrays(tmp_path: Path) -> None:
    episode = SingleAgentEpisode("lists")
    episode.add_env_reset([0.0, 0.5, 1.0])
    episode.add_env_step((0.5, 0.5, 0.5), [2][0], 1, truncated=True)
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as writer:
        writer.write(episode)
    (part,) = open_data(tmp_path).iter_parts()
    np.testing.assert_array_equal(part.obs, np.asarray([[0, 0.5, 1], [0.5] * 3], np.float32))
    assert part.extras == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": [np.full(3, np.nan), np.zeros(3)]}, "obs is nan at t=0"),
        ({"rewards": [np.inf]}, "rewards is inf at t=0"),
        ({"actions": [4]}, r"actions is 4 at t=0, outside of the space's \[0, 3\]"),
        ({"actions": [0.5]}, "actions has the value 0.5, which int32 does not have"),
        ({"actions": [[1]]}, r"actions must have the shape \(1,\), got \(1, 1\)"),
        ({"actions": ["up"]}, "actions must be numbers"),
        ({"observations": [{"x": 1.0}, {"x": 1.0}]}, r"obs\.x is no column"),
        ({"observations": [np.zeros(3), np.zeros(2)]}, "obs differs in structure or shape"),
        ({"terminated": True, "truncated": True}, "both terminated and truncated"),
    ],
)
def test_invalid_episodes_are_one_sentence(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    fields = {"observations": [np.zeros(3)] * 2, "actions": [1], "rewards": [0.0], **change}
    episode = SingleAgentEpisode("bad", len_lookback_buffer=0, **fields)
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as writer:
        with pytest.raises(DataError, match=f"^Episode 'bad'.*{message}") as caught:
            writer.write(episode)
        assert str(caught.value).endswith(".")
    assert not list(tmp_path.iterdir())


def test_module_actions_have_no_bounds_but_choices_do(tmp_path: Path) -> None:
    action_space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (1,)), "b": spaces.Discrete(2, start=5)})
    normalized = {"a": np.full((1, 1), 3.0, np.float32), "b": np.asarray([1], np.int32)}
    good = make_part(1, action=normalized)
    bad = make_part(1, episode_id="b", action={**normalized, "b": np.asarray([5], np.int32)})
    with EpisodeWriter(tmp_path, BOX, action_space, actions_are_normalized=True) as writer:
        writer.add_parts([good])
        with pytest.raises(DataError, match=r"actions\.b is 5 at t=0"):
            writer.add_parts([bad])
    data = open_data(tmp_path)
    assert data.actions_are_normalized
    assert_same(good, next(data.iter_parts()))
    with pytest.raises(DataError, match="actions_are_normalized=False contradicts"):
        open_data(tmp_path, actions_are_normalized=False)


def test_appending_goes_on(tmp_path: Path) -> None:
    first = make_part(3, reward=np.ones(3, np.float32))
    second = make_part(2, t_started=3, reward=np.ones(2, np.float32), terminated=True)
    write(tmp_path, [first])
    data = write(tmp_path, [second])
    assert [path.name for path in data.files] == ["part-00000.parquet", "part-00001.parquet"]
    for part, other in zip([first, second], data.iter_parts(), strict=True):
        assert_same(part, other)
    assert data.counts is not None
    assert (data.counts.num_episodes, data.counts.returns.mean) == (1, 5.0)


def test_an_id_that_a_later_writer_begins_again_is_another_episode(tmp_path: Path) -> None:
    write(tmp_path, [make_part(2, episode_id="0", terminated=True)])
    write(tmp_path, [make_part(3, episode_id="0")])
    data = write(tmp_path, [make_part(1, episode_id="0", t_started=3, truncated=True)])
    parts = list(data.iter_parts())
    assert [(part.t_started, len(part)) for part in parts] == [(0, 2), (0, 3), (3, 1)]
    first, second, third = (part.episode_id for part in parts)
    assert first == "0"
    assert second == third != first
    assert len({hash_episode(part.episode_id) for part in parts}) == 1
    assert data.counts is not None
    assert data.counts.num_episodes == 2


def test_other_folders_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, [make_part(2)])
    with pytest.raises(DataError, match=r"other data: action_space is Discrete\(4\) in the data"):
        EpisodeWriter(data, BOX, spaces.Discrete(5))
    with pytest.raises(DataError, match="actions_are_normalized=False, and here it is True"):
        EpisodeWriter(data, BOX, DISCRETE, actions_are_normalized=True)
    with pytest.raises(DataError, match="has_density=True, and here it is False"):
        EpisodeWriter(data, BOX, DISCRETE, has_density=False)
    with (
        EpisodeWriter(data, BOX, DISCRETE) as writer,
        pytest.raises(DataError, match="other data: action_logp is missing here; record into an"),
    ):
        writer.add_parts([make_part(2, episode_id="b", extras={})])
    wide = make_part(2, episode_id="b", extras={"action_logp": np.zeros((2, 3), np.float32)})
    with (
        EpisodeWriter(data, BOX, DISCRETE) as writer,
        pytest.raises(DataError, match=r"other data: action_logp has the shape \(\) in the data"),
    ):
        writer.add_parts([wide])
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"no manifest\.json, 'notes.txt' among them"):
        EpisodeWriter(other, BOX, DISCRETE)
    with pytest.raises(DataError, match="cannot be written: File exists"):
        EpisodeWriter(other / "notes.txt", BOX, DISCRETE)
    with pytest.raises(DataError, match="observation_space cannot be recorded"):
        EpisodeWriter(tmp_path / "text", spaces.Text(3), DISCRETE)


def test_read_only_and_full_disks_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.TemporaryFile", refuse)
        with pytest.raises(DataError, match="cannot be written: Read-only file system; 0 steps"):
            EpisodeWriter(tmp_path / "data", BOX, DISCRETE)

    def fill(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = EpisodeWriter(tmp_path / "data", BOX, DISCRETE, max_rows_per_file=1)
    writer.add_parts([make_part(3)])
    monkeypatch.setattr("os.fsync", fill)
    with pytest.raises(DataError, match="No space left on device; 3 steps are complete"):
        writer.add_parts([make_part(2, episode_id="b")])
    monkeypatch.undo()
    writer.close()
    with pytest.raises(DataError, match="is closed"):
        writer.add_parts([make_part(2, episode_id="c")])
    assert [len(part) for part in open_data(tmp_path / "data").iter_parts()] == [3]
    assert not list((tmp_path / "data").glob(".*"))


@pytest.mark.parametrize("file_format", FORMATS)
def test_interrupted_writer_leaves_its_complete_files(tmp_path: Path, file_format: str) -> None:
    options = {"file_format": file_format, "max_rows_per_file": 2}
    writer = EpisodeWriter(tmp_path, BOX, DISCRETE, **options)
    writer.add_parts([make_part(2, episode_id=str(i)) for i in range(5)])
    data = open_data(tmp_path)  # the writer is never closed
    assert [part.episode_id for part in data.iter_parts()] == ["0", "1", "2", "3"]
    (tmp_path / "manifest.json").unlink()  # as before the first manifest
    assert [part.episode_id for part in open_data(tmp_path).iter_parts()] == ["0", "1", "2", "3"]
    assert open_data(tmp_path / f"part-00001.{file_format}").counts is None


def test_restored_writer_records_again(tmp_path: Path) -> None:
    parts = [make_part(3, t_started=3 * i, seed=i) for i in range(3)]
    writer = EpisodeWriter(tmp_path, BOX, DISCRETE)
    writer.add_parts(parts[:1])
    state = json.loads(json.dumps(writer.get_state()))
    writer.add_parts(parts[1:])
    writer.close()
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as again:
        again.set_state(state)
        again.add_parts(parts[1:])
    data = open_data(tmp_path)
    for part, other in zip(parts, data.iter_parts(), strict=True):
        assert_same(part, other)
    assert data.counts is not None
    assert (data.counts.num_steps, data.counts.num_episodes) == (9, 1)
    with pytest.raises(DataError, match="is not the file that the run had recorded"):
        EpisodeWriter(tmp_path, BOX, DISCRETE).set_state({**state, "files": {"x": "0"}})


def test_a_restored_writer_leaves_what_others_wrote(tmp_path: Path) -> None:
    episodes = {name: make_part(2, episode_id=name, terminated=True) for name in "abcd"}
    writer = EpisodeWriter(tmp_path, BOX, DISCRETE)
    writer.add_parts([episodes["a"]])
    state = json.loads(json.dumps(writer.get_state()))
    writer.add_parts([episodes["b"]])
    writer.close()
    unfinished = make_part(2, episode_id="e", reward=np.ones(2, np.float32))
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as other:
        other.add_parts([episodes["c"], unfinished])
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as again:
        again.set_state(state)
        again.add_parts([episodes["d"]])
    data = write(tmp_path, [make_part(1, episode_id="e", t_started=2, truncated=True)])
    assert [part.episode_id for part in data.iter_parts()] == ["a", "c", "e", "d", "e"]
    assert data.counts is not None
    assert (data.counts.num_episodes, data.counts.returns.num_episodes) == (4, 4)


def test_writers_go_back_whatever_others_do(tmp_path: Path) -> None:
    episodes = {name: make_part(2, episode_id=name, terminated=True) for name in "abc"}
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as one:
        one.add_parts([episodes["a"]])
        first = one.get_state()
        one.add_parts([episodes["b"]])
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as other:
        other.add_parts([episodes["c"]])
        second = other.get_state()
    for state in (first, second):  # the first one removes a file that was there at the second
        with EpisodeWriter(tmp_path, BOX, DISCRETE) as again:
            again.set_state(state)
    assert [part.episode_id for part in open_data(tmp_path).iter_parts()] == ["a", "c"]


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path, BOX, DISCRETE) as writer:
        with pytest.raises(DataError, match=f"is being recorded to by process {os.getpid()}: end"):
            EpisodeWriter(tmp_path, BOX, DISCRETE)
        writer.add_parts([make_part(3)])
    left = EpisodeWriter(tmp_path, BOX, DISCRETE)
    del left  # without an end
    write(tmp_path, [make_part(2, episode_id="b")])
    assert [len(part) for part in open_data(tmp_path).iter_parts()] == [3, 2]
    assert not list(tmp_path.glob(".*"))


@pytree
class State:
    """State of a policy, whose fields are not in the order of their names."""

    module: Any
    count: Any


@pytest.mark.parametrize("file_format", FORMATS)
def test_states_are_recorded_where_parts_start(tmp_path: Path, file_format: str) -> None:
    like = State(module=(np.zeros((8, 2), np.float32),), count=np.zeros(8, np.int32))
    carry = State(
        module=(np.arange(6, dtype=np.float32).reshape(3, 2),), count=np.arange(3, dtype=np.int32)
    )
    parts = [make_part(2), make_part(3, t_started=2, carry=carry, is_cut=True)]
    data = write(tmp_path, parts, state_like=like, file_format=file_format)
    first, second = data.iter_parts()
    assert first.carry is None
    restored = restore_structure(like, second.carry)
    assert isinstance(restored, State)
    np.testing.assert_array_equal(restored.module[0], [[0.0, 1.0]])
    np.testing.assert_array_equal(restored.count, [0])
    with pytest.raises(DataError, match=r"differ in module\.0"):
        restore_structure({"count": 0}, second.carry)


def test_names_that_collide_are_refused(tmp_path: Path) -> None:
    twice = spaces.Dict({"a": spaces.Dict({"b": BOX}), "a.b": BOX})
    with (
        EpisodeWriter(tmp_path, twice, DISCRETE) as writer,
        pytest.raises(DataError, match=r"name 'obs\.a\.b'"),
    ):
        writer.add_parts([make_part(1, observation_space=twice)])
    with (
        EpisodeWriter(tmp_path, BOX, DISCRETE) as writer,
        pytest.raises(DataError, match="name 'rewards'"),
    ):
        writer.add_parts([make_part(1, extras={"rewards": np.zeros(1, np.float32)})])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file_format": "csv"}, "file_format must be"),
        ({"max_file_bytes": 0}, "max_file_bytes must be a whole number of at least 1, got 0"),
        ({"max_rows_per_file": 1.5}, "max_rows_per_file must be a whole number"),
        ({"max_rows_per_file": 0}, "max_rows_per_file must be a whole number of at least 1, got 0"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        EpisodeWriter(tmp_path, BOX, DISCRETE, **options)


def test_other_objects_are_no_episodes(tmp_path: Path) -> None:
    episode: Any = {"obs": [0.0]}
    with (
        EpisodeWriter(tmp_path, BOX, DISCRETE) as writer,
        pytest.raises(DataError, match=r"takes a SingleAgentEpisode .*, got a dict"),
    ):
        writer.write(episode)


def test_density_needs_log_probabilities(tmp_path: Path) -> None:
    with (
        EpisodeWriter(tmp_path, BOX, DISCRETE, has_density=True) as writer,
        pytest.raises(DataError, match="has_density=True needs the extra 'action_logp'"),
    ):
        writer.add_parts([make_part(1, extras={})])
    assert not write(tmp_path / "none", [make_part(1, extras={})]).has_density
    assert not write(tmp_path / "constant", [make_part(1)], has_density=False).has_density


def test_without_pyarrow_files_are_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    data = write(tmp_path / "data", [make_part(3)])
    assert [path.name for path in data.files] == ["part-00000.npz"]
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'jaxrl\[offline\]'"):
        EpisodeWriter(tmp_path / "other", BOX, DISCRETE, file_format="parquet")


def test_it_is_public() -> None:
    assert "EpisodeWriter" in jaxrl.__all__
