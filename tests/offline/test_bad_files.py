"""Recorded data that are missing, changed, damaged or hostile: one sentence each."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from jaxrl import EpisodeWriter
from jaxrl.errors import DataError
from jaxrl.offline.checks import locate
from jaxrl.offline.manifest import Header
from jaxrl.offline.part_files import NpzSink, ParquetSink
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.trial import find_fatal
from tests.offline import damage
from tests.offline.parts import BOX, DISCRETE, NESTED, NESTED_ACTIONS, RLLIB_ROWS, make_part

FORMATS = ["parquet", "npz"]


def write(folder: Path, parts: list[Any], **options: Any) -> Path:
    with EpisodeWriter(folder, BOX, DISCRETE, **options) as writer:
        writer.add_parts(parts)
    return folder


def header_of(folder: Path) -> Header:
    return Header.from_data(json.loads((folder / "manifest.json").read_text()), folder)


def write_unchecked(
    path: Path, parts: list[Any], file_format: str, changes: dict[str, Any] | None = None
) -> Path:
    """A file of valid form, whatever the values."""
    example = write(path.parent / f"example-{path.stem}", [make_part(2)])
    header = header_of(example)
    sinks = {"parquet": ParquetSink, "npz": NpzSink}
    arrays = [{**header.columns.flatten(part), **(changes or {})} for part in parts]
    with path.open("wb") as file:
        sink = sinks[file_format](file, header)
        sink.add(parts, arrays)
        sink.close()
    return path


def read(data: RecordedData) -> list[Any]:
    return list(data.iter_parts())


def refused(source: Any, message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(open_data(source, **options))
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_no_file_matches(tmp_path: Path) -> None:
    refused(tmp_path, "No file matches")
    refused(str(tmp_path / "*.parquet"), r"No file matches '.*\*\.parquet': give a folder, a file")
    refused([], "is an empty list")


def test_sources_are_folders_files_patterns_and_lists(tmp_path: Path) -> None:
    ids = [str(i) for i in range(4)]
    parts = [make_part(2, episode_id=name) for name in ids]
    a = write(tmp_path / "a", parts[:2], max_rows_per_file=1)
    b = write(tmp_path / "b", parts[2:], file_format="npz")
    for source, expected in (
        (a, ids[:2]),
        (str(a / "part-00001.parquet"), ids[1:2]),
        (str(tmp_path / "a" / "*.parquet"), ids[:2]),
        (str(tmp_path / "?"), ids),
        (tmp_path, ids),
        ([b, a], [*ids[2:], *ids[:2]]),
    ):
        data = open_data(source)
        assert [part.episode_id for part in data.iter_parts()] == expected
        assert data.counts is not None
        assert data.counts.num_steps == 2 * len(expected)
    refused([a, a / "part-00000.parquet"], "is given twice")
    (a / "part-00000.parquet").rename(tmp_path / "x.data")
    assert len(read(open_data(tmp_path / "x.data"))) == 1  # by content, not by suffix


def test_fingerprint_is_that_of_the_files(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [make_part(2)])
    same = write(tmp_path / "same", [make_part(2)])
    other = write(tmp_path / "other", [make_part(2, seed=1)])
    first = open_data(a).get_fingerprint()
    assert first == open_data(same).get_fingerprint()
    assert first != open_data(other).get_fingerprint()
    (same / "manifest.json").unlink()
    assert first == open_data(same).get_fingerprint()


def test_unknown_and_newer_formats(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("a,b,c")
    refused(text, "has an unknown format: recorded data are Parquet")
    folder = write(tmp_path / "data", [make_part(2)])
    manifest = folder / "manifest.json"
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "version": 2}))
    refused(folder, "has version 2 of the format, and this jaxrl reads up to 1: update jaxrl")
    manifest.write_text(json.dumps({**facts, "format": "rows"}))
    refused(folder, "has the format 'rows', which is unknown")
    manifest.write_text("{")
    refused(folder, "is damaged: it is not JSON")
    manifest.write_text(
        json.dumps({**facts, "files": {"../x": next(iter(facts["files"].values()))}})
    )
    refused(folder, r"'\.\./x' is not the name of a file")
    manifest.write_text(json.dumps({**facts, "observation_space": {"kind": "Box"}}))
    refused(folder, "header is invalid")
    manifest.write_text(json.dumps({**facts, "files": {}}))
    refused(folder, "has no steps")


@pytest.mark.parametrize("file_format", FORMATS)
def test_changed_file_is_found(tmp_path: Path, file_format: str) -> None:
    folder = write(tmp_path, [make_part(20)], file_format=file_format)
    (path,) = folder.glob("part-*")
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    refused(folder, rf"part-00000\.{file_format} has changed since it was recorded")
    path.unlink()
    refused(folder, "No file matches")
    write(folder, [make_part(2, episode_id="b")], file_format=file_format)
    refused(folder, "is missing, and its manifest lists it")


def test_other_spaces_name_the_first_part(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path, NESTED, NESTED_ACTIONS) as writer:
        writer.add_parts([make_part(2, observation_space=NESTED, action_space=NESTED_ACTIONS)])
    other = spaces.Dict({**NESTED.spaces, "camera": spaces.Box(0, 255, (3, 3), np.uint8)})
    refused(
        tmp_path,
        r"observation_space\['camera'\] is Box\(0, 255, \(2, 3\), uint8\) in the data, and Box\(0, 255, "
        r"\(3, 3\), uint8\) in the environment",
        observation_space=other,
    )
    wider = spaces.Dict({**NESTED_ACTIONS.spaces, "stick": spaces.Box(-3.0, 3.0, (2,))})
    refused(tmp_path, r"action_space\['stick'\] is", action_space=wider)
    refused(
        tmp_path,
        r"action_space\['stick'\] is .* and missing",
        action_space=spaces.Dict({"button": NESTED_ACTIONS["button"]}),
    )
    doubles = spaces.Dict(
        {
            "button": NESTED_ACTIONS["button"],
            "stick": spaces.Box(-2.0, 2.0, (2,), np.float64),
        }
    )
    assert read(open_data(tmp_path, observation_space=NESTED, action_space=doubles))


def test_files_of_different_data_do_not_mix(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [make_part(2)])
    b = write(tmp_path / "b", [make_part(2, episode_id="b", extras={})])
    refused([a, b], "differ in the column 'action_logp'")
    c = write(tmp_path / "c", [make_part(2, episode_id="c")], actions_are_normalized=True)
    refused([a, c], "has actions_are_normalized=True, and")
    with EpisodeWriter(tmp_path / "d", BOX, spaces.Discrete(7)) as writer:
        writer.add_parts([make_part(2)])
    refused([a, tmp_path / "d"], r"action_space is Discrete\(7\)")


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (
            {"reward": np.asarray([0, np.nan], np.float32), "t_started": 3},
            {},
            r"x\.(parquet|npz), episode 'a': rewards is nan at t=4, which is not finite",
        ),
        ({"obs": np.full((3, 3), -np.inf, np.float32)}, {}, "obs is -inf at t=0"),
        (
            {"action": np.asarray([0, -1], np.int32)},
            {},
            r"actions is -1 at t=1, outside .*\[0, 3\]",
        ),
        ({"terminated": True, "truncated": True}, {}, "both terminated and truncated"),
        ({"terminated": True, "is_cut": True}, {}, "it is cut though its episode ended"),
        ({}, {"obs": np.zeros((2, 3), np.float32)}, r"obs .*(has 2 entries|\(2, 3\))"),
        (
            {},
            {"actions": np.zeros(1, np.int32)},
            r"actions (has 1 entries|is int32 of shape \(1,\))",
        ),
    ],
)
def test_invalid_values_name_file_episode_and_time(
    tmp_path: Path, file_format: str, part: dict[str, Any], changes: Any, message: str
) -> None:
    path = tmp_path / f"x.{file_format}"
    write_unchecked(path, [make_part(2, **part)], file_format, changes)
    refused(path, message)


def test_actions_outside_a_box(tmp_path: Path) -> None:
    stick = spaces.Box(-1.0, 1.0, (2,), np.float32)
    near = np.asarray([[1.00005, -1.00005]], np.float32)  # rounding is allowed
    with EpisodeWriter(tmp_path, BOX, stick) as writer:
        writer.add_parts([make_part(1, action_space=stick, action=near)])
        with pytest.raises(
            DataError, match=r"actions is 1\.50007 at t=0, .*\[-1, 1\].*actions_are_normalized=True"
        ):
            writer.add_parts([make_part(1, episode_id="b", action=near * 1.5)])


@pytest.mark.parametrize(
    ("space", "value", "limits"),
    [
        (spaces.Discrete(4), 9, r"\[0, 3\]"),
        (spaces.Discrete(4, start=2), 1, r"\[2, 5\]"),
        (spaces.MultiDiscrete([3, 2]), -1, r"\[0, 2\]"),
        (spaces.MultiBinary(3), 7, r"\[0, 1\]"),
        (spaces.Box(0, 9, (2,), np.int32), 10, r"\[0, 9\]"),
        (spaces.Box(0, 9, (2,), np.uint8), 10, r"\[0, 9\]"),
        (spaces.Box(0.0, 1.0, (2,)), 5.0, None),
    ],
)
def test_observations_outside_their_space(
    tmp_path: Path, space: spaces.Space[Any], value: float, limits: str | None
) -> None:
    part = make_part(3, observation_space=space)
    part.obs[2, ...] = value
    with EpisodeWriter(tmp_path, space, DISCRETE) as writer:
        if limits is None:  # environments may leave the bounds of floats
            writer.add_parts([part])
            return
        with pytest.raises(DataError, match=rf"obs is {value} at t=2, outside .*{limits}\.$"):
            writer.add_parts([part])


def test_integer_actions_have_exact_bounds(tmp_path: Path) -> None:
    space = spaces.Box(0, 10**6, (1,), np.int32)
    part = make_part(1, action_space=space, action=np.asarray([[10**6 + 1]], np.int32))
    with (
        EpisodeWriter(tmp_path, BOX, space) as writer,
        pytest.raises(DataError, match="outside of the space's"),
    ):
        writer.add_parts([part])


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"t_started": 1}, "starts at t=1 and overlaps the one before, which ends before t=2"),
        ({"t_started": 3}, "starts at t=3 and misses a step"),
        ({"t_started": 0}, "overlaps"),
    ],
)
def test_parts_follow_one_another(
    tmp_path: Path, file_format: str, second: dict[str, Any], message: str
) -> None:
    parts = [make_part(2), make_part(1, episode_id="b"), make_part(2, **second)]
    refused(write_unchecked(tmp_path / "x", parts, file_format), message)
    ended = [make_part(2, terminated=True), make_part(2, t_started=2)]
    refused(write_unchecked(tmp_path / "y", ended, file_format), "after the end of the episode")


def test_large_declarations_are_refused_before_they_are_read(tmp_path: Path) -> None:
    small = write(tmp_path / "small", [make_part(100)])
    refused(small, "declares a row group of .* at most 1000 are read", max_group_bytes=1000)
    bomb = tmp_path / "bomb.parquet"
    zeros = pa.array(np.zeros(2**20, np.int64))  # a run of one value takes some bytes
    pq.write_table(pa.table({"x": zeros}), bomb, row_group_size=2**20)
    assert bomb.stat().st_size < 10_000
    refused(bomb, "declares a row group of", max_group_bytes=2**20)
    arrays = write(tmp_path / "arrays", [make_part(100)], file_format="npz")
    refused(arrays, "declares arrays of .* at most 1000", max_group_bytes=1000)
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        huge, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("observations.npy", huge.getvalue())
    refused(tmp_path / "huge.npz", "declares arrays of 4398046511104 bytes")


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    with path.open("wb") as file:
        np.savez(file, observations=np.asarray([{"x": 1}, None], object))
    refused(path, "the array 'observations' has the type object, which would be a pickle")


def damage_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Bytes that are cut, or some of which are others."""
    damaged = bytearray(content)
    match rng.integers(4):
        case 0:
            damaged = damaged[: rng.integers(1, len(content))]
        case 1:
            damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        case 2:
            for _ in range(8):
                damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        case _:
            first = rng.integers(len(content))
            damaged[first : first + 16] = rng.bytes(len(damaged[first : first + 16]))
    return bytes(damaged)


@pytest.mark.parametrize("name", [name for name in damage.FORMATS if name != "manifest"])
def test_damaged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    """None of them ends the process, in any format."""
    make, write_content = damage.FORMATS[name]
    whole, example = tmp_path / "whole", tmp_path / "example"
    whole.mkdir()
    example.mkdir()
    write_content(whole, make(example))
    (original,) = (path for path in whole.iterdir() if path.name != "metadata.json")
    rng, files = np.random.default_rng(0), []
    for i in range(100):
        shutil.copytree(whole, tmp_path / str(i))
        files.append(tmp_path / str(i) / original.name)
        files[-1].write_bytes(damage_bytes(original.read_bytes(), rng))
    remaining = [path for path in files if path.read_bytes()[:4] == b"PAR1"]
    while (fatal := find_fatal(remaining)) is not None:  # in one process for many files
        remaining = [path for path in remaining if path != fatal[0]]
    has_spaces = name.startswith("own") or name == "Minari"
    given = {} if has_spaces else {"observation_space": damage.BOX, "action_space": DISCRETE}
    sentences: list[str] = []
    for path in files:
        try:
            read(open_data(path, max_group_bytes=2**24, **given))
        except DataError as error:
            sentences.append(str(error))
    assert len(sentences) > 30
    assert not [sentence for sentence in sentences if "\n" in sentence]


def test_a_damaged_file_of_the_own_format_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest is another, whatever its bytes would do to a parser."""
    a = write(tmp_path / "a", [make_part(9)])
    b = write(tmp_path / "b", [make_part(9, episode_id="b")], file_format="npz")
    for path in (a / "part-00000.parquet", b / "part-00000.npz"):
        content = path.read_bytes()
        path.write_bytes(content[:-9] + b"\xff" + content[-8:])
    monkeypatch.setattr("jaxrl.offline.part_files.open_parquet", None)
    monkeypatch.setattr("zipfile.ZipFile", None)
    refused(a, r"part-00000\.parquet has changed since it was recorded")
    refused(b, r"part-00000\.npz has changed since it was recorded")


FATAL_PYARROW = """
import os, time

class ParquetFile:
    def __init__(self, path):
        if b"abort" in open(path, "rb").read():
            os.abort()
        if b"wait" in open(path, "rb").read():
            time.sleep(60)
"""


def test_a_file_that_ends_its_reader_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process that reads it first, whose pyarrow is not as robust as one may hope."""
    package = tmp_path / "other" / "pyarrow"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "parquet.py").write_text(FATAL_PYARROW)
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table(RLLIB_ROWS), folder / "a.parquet")
    (folder / "b.parquet").write_bytes(b"PAR1 abort")
    given = {"observation_space": damage.BOX, "action_space": damage.DISCRETE}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(package.parent))
        refused(
            folder,
            r"b\.parquet is damaged: it ends the process that reads it, with SIGABRT",
            **given,
        )
        (folder / "b.parquet").write_bytes(b"PAR1 wait")
        patch.setattr("jaxrl.offline.trial._START_SECONDS", 1.0)
        refused(folder, r"b\.parquet is damaged: it is read for too long", **given)
        patch.setattr("sys.executable", str(tmp_path / "absent"))
        refused(folder, r"cannot be tried in a process of its own \(No such file", **given)
    (folder / "b.parquet").unlink()
    monkeypatch.setattr("sys.executable", None)  # a file that passed is not tried again
    open_data(folder, **given)


def test_pipes_and_deep_patterns_are_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.parquet"
    os.mkfifo(pipe)
    refused(pipe, r"pipe\.parquet is a pipe or a device: give a file")
    refused(str(tmp_path / "*.parquet"), "is a pipe or a device")
    refused(str(tmp_path / "/".join(["**"] * 10) / "x"), r"has more than 2 '\*\*'")


def test_header_that_contradicts_the_columns(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", [make_part(2)])
    (path,) = folder.glob("part-*")
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[b"jaxrl"])
    for column in header["columns"]:
        column["shape"] = [3, 3] if column["name"] == "obs" else column["shape"]
    header["observation_space"]["shape"] = [3, 3]
    changed = tmp_path / "changed.parquet"
    pq.write_table(table.replace_schema_metadata({b"jaxrl": json.dumps(header)}), changed)
    refused(changed, r"column 'obs' is of type .* rows of float32 of shape \(3, 3\)")
    header["columns"] = [{**header["columns"][0], "dtype": "|O"}]
    pq.write_table(table.replace_schema_metadata({b"jaxrl": json.dumps(header)}), changed)
    refused(changed, "header is invalid")
    pq.write_table(table.drop_columns(["length"]), changed)
    refused(changed, "'length' is not of type int64")


def test_the_middle_of_a_long_id_is_left_out_of_messages() -> None:
    assert locate(make_part(episode_id="short"), "a.parquet") == "a.parquet, episode 'short'"
    assert locate(make_part(episode_id="short"), "") == "Episode 'short'"
    place = locate(make_part(episode_id="first" + 1000 * "-" + "last"), "a.parquet")
    assert len(place) < 100
    assert "first" in place
    assert place.endswith("last'")
