"""Checkpoints on the disk: atomic, kept or dropped, damaged, and killed while they are written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxrl.algorithm import Algorithm
from jaxrl.checkpoint import (
    CheckpointWriter,
    complete_checkpoints,
    find_checkpoint,
    read_leaves,
    read_metadata,
)
from jaxrl.errors import CheckpointError
from tests.helpers import assert_equal, small

ROOT = Path(__file__).parent.parent


def test_there_is_no_pickle(tmp_path: Path) -> None:
    with small().build() as algorithm:
        path = Path(algorithm.save(tmp_path))
    for file in path.rglob("*"):
        assert file.suffix not in {".pkl", ".pickle"}
        if file.is_file():
            assert not file.read_bytes().startswith(b"\x80\x04")


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> tuple[Path, Path]:
    """An older and a newer checkpoint of one run."""
    with small().build() as algorithm:
        algorithm.train()
        older = Path(algorithm.save(tmp_path))
        algorithm.train()
        return older, Path(algorithm.save(tmp_path))


def truncate(checkpoint: Path) -> None:
    largest = max((checkpoint / "state").rglob("*"), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def flip_a_bit(checkpoint: Path) -> None:
    files = [p for p in (checkpoint / "state").rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 4
    largest.write_bytes(bytes(content))


def lose_state(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state")
    (checkpoint / "state").mkdir()


def cut_metadata(checkpoint: Path) -> None:
    file = checkpoint / "metadata" / "metadata"
    file.write_text(file.read_text()[:200])


def later_version(checkpoint: Path) -> None:
    file = checkpoint / "metadata" / "metadata"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "checkpoint_version": 99}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "cannot be loaded"),
        (flip_a_bit, "cannot be loaded"),
        (lose_state, "cannot be loaded"),
        (cut_metadata, "cannot be loaded"),
        (later_version, "version 99, this jaxrl reads version 1"),
    ],
)
def test_damage_is_refused_and_the_previous_one_named(
    damage: Callable[[Path], None], reason: str, two_checkpoints: tuple[Path, Path]
) -> None:
    older, newer = two_checkpoints
    damage(newer)
    with pytest.raises(CheckpointError, match=reason) as caught:
        Algorithm.from_checkpoint(newer)
    assert f"The previous one is {older.resolve()}" in str(caught.value)
    assert "\n" not in str(caught.value)
    Algorithm.from_checkpoint(older).stop()


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        find_checkpoint(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match="is no jaxrl checkpoint"):
        find_checkpoint(tmp_path / "other")
    for part in ("metadata", "state"):
        (tmp_path / "other" / part).mkdir()
    (tmp_path / "other" / "metadata" / "metadata").write_text('{"hello": 1}')
    with pytest.raises(CheckpointError, match="its metadata is not jaxrl's"):
        read_metadata(tmp_path / "other")


def test_the_best_are_kept(tmp_path: Path) -> None:
    """And always the newest: what `save` returns is there, and a resume goes on from it."""
    writer = CheckpointWriter(tmp_path, max_to_keep=2, scored=True, asynchronous=True)
    for number, score in enumerate([1.0, None, 5.0, 2.0, 4.0, float("nan"), 3.0]):
        path = writer.save(number, {"a": np.arange(3.0)}, {}, score)
        writer.wait()
        assert path == find_checkpoint(tmp_path)
    writer.close()
    assert numbers(tmp_path) == [2, 4, 6]
    lowest = CheckpointWriter(tmp_path, max_to_keep=1, scored=True, score_order="min")
    lowest.save(7, {"a": np.arange(3.0)}, {}, 9.0)
    lowest.save(8, {"a": np.arange(3.0)}, {}, 9.5)
    lowest.close()
    assert numbers(tmp_path) == [6, 8]


def numbers(folder: Path) -> list[int]:
    return [int(path.name.rsplit("_", 1)[1]) for path in complete_checkpoints(folder)]


def test_fit_keeps_the_best_and_resumes_from_the_newest(tmp_path: Path) -> None:
    config = small().debugging(results_dir=str(tmp_path), run_name="run")
    config.checkpointing(
        checkpoint_frequency=1,
        max_to_keep=2,
        checkpoint_score_attribute="training_iteration",
        checkpoint_score_order="min",
    )
    with config.build() as algorithm:
        algorithm.fit({"training_iteration": 5})
        assert Path(algorithm.save()).is_dir()
        want = algorithm.get_state()["train_state"]
    assert numbers(tmp_path / "run" / "checkpoints") == [1, 2, 5]
    with Algorithm.from_checkpoint(tmp_path / "run") as algorithm:
        assert_equal(want, algorithm.get_state()["train_state"])
        again = algorithm.fit({"training_iteration": 5})
        assert algorithm.iteration == again["training_iteration"] == 5  # reached before
        assert again["env_runners"]["num_env_steps_sampled_lifetime"] == 640
        assert algorithm.fit({"num_env_steps_sampled_lifetime": 700})["training_iteration"] == 6


def test_saving_a_number_again_changes_nothing_or_takes_its_place(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, max_to_keep=2, scored=True, asynchronous=True)
    first, other = {"a": np.arange(3.0)}, {"a": np.arange(4.0)}
    path = writer.save(1, first, {"x": 1}, 5.0)
    written = (path / "metadata" / "metadata").stat
    writer.save(1, first, {"x": 1}, 5.0)  # while it is being written
    before = written()
    assert writer.save(1, first, {"x": 1}, 5.0) == path
    assert (before.st_ino, before.st_mtime_ns) == (written().st_ino, written().st_mtime_ns)
    for state, metadata in ((other, {"x": 1}), (other, {"x": 2})):
        assert writer.save(1, state, metadata, 7.0) == path
        document = read_metadata(path)
        assert document["x"] == metadata["x"]
        np.testing.assert_array_equal(read_leaves(path, document)["a"], state["a"])
    for number, score in ((2, 6.0), (3, 6.5), (4, 0.0)):  # the new score of 1 counts
        writer.save(number, first, {}, score)
    writer.close()
    assert numbers(tmp_path) == [1, 3, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        p.name for p in complete_checkpoints(tmp_path)
    ]


def test_a_replacement_that_was_cut_short_is_undone(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for number in (1, 2):
        path = writer.save(number, {"a": np.full(3, number)}, {})
    writer.close()
    aside = path.rename(tmp_path / f"replaced_{path.name}")
    (tmp_path / ".replacing").mkdir()
    assert find_checkpoint(tmp_path) == aside
    assert int(read_leaves(aside, read_metadata(aside))["a"][0]) == 2
    CheckpointWriter(tmp_path).close()
    assert numbers(tmp_path) == [1, 2]
    assert find_checkpoint(tmp_path) == path
    assert not (tmp_path / ".replacing").exists()


def test_an_asynchronous_save_survives_donation(tmp_path: Path) -> None:
    """The state is donated to the next train batch while the save is still writing."""
    config = small().debugging(results_dir=str(tmp_path), run_name="run")
    config.checkpointing(checkpoint_frequency=1, max_to_keep=None, checkpoint_at_end=False)
    states = []
    with config.build() as algorithm:
        algorithm.fit(
            {"training_iteration": 4},
            on_iteration=lambda _: states.append(algorithm.get_state()["train_state"]),
        )
    saved = complete_checkpoints(tmp_path / "run" / "checkpoints")
    assert len(saved) == 4
    with small().build() as fresh:
        for path, want in zip(saved, states, strict=True):
            fresh.restore(path)
            assert_equal(want, fresh.get_state()["train_state"])


KILLED = """
import sys, numpy as np
from jaxrl.checkpoint import CheckpointWriter
writer = CheckpointWriter(sys.argv[1], asynchronous=True)
state = {f"leaf{i}": np.random.default_rng(i).normal(size=200_000) for i in range(40)}
for number in range(10_000):
    writer.save(number, {**state, "number": np.asarray(number)}, {"number": number})
    print(number, flush=True)
"""


def kill_after(delay: float, code: str, folder: Path) -> str:
    """Kills the program some time after its third line; returns the last line that it wrote."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        line = process.stdout.readline()
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with process.stdout:
        complete = [text for text in process.stdout.read().splitlines(True) if text.endswith("\n")]
    return (complete or [line])[-1]


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.2, 0.35])
def test_killed_while_saving_the_newest_complete_one_loads(delay: float, tmp_path: Path) -> None:
    kill_after(delay, KILLED, tmp_path)
    newest = find_checkpoint(tmp_path)
    metadata = read_metadata(newest)
    leaves = read_leaves(newest, metadata)
    assert int(leaves["number"]) == metadata["number"] >= 1
    # The next run clears what was left half-written, and goes on.
    writer = CheckpointWriter(tmp_path)
    writer.save(20_000, {"a": np.arange(3)}, {})
    writer.close()
    assert find_checkpoint(tmp_path).name == "checkpoint_020000"


KILLED_REPEATING = """
import sys, numpy as np
from jaxrl.checkpoint import CheckpointWriter
writer = CheckpointWriter(sys.argv[1], max_to_keep=3, asynchronous=True)
state = {f"leaf{i}": np.random.default_rng(i).normal(size=20_000) for i in range(20)}
for number in range(10_000):
    for version in range(4):
        now = {**state, "version": np.asarray(version)}
        writer.save(number, now, {"number": number, "version": version})
        writer.save(number, now, {"number": number, "version": version})
        writer.wait()
        print(number, version, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.07, 0.16, 0.3])
def test_killed_while_saving_a_number_again_it_is_still_there(delay: float, tmp_path: Path) -> None:
    reached = [int(word) for word in kill_after(delay, KILLED_REPEATING, tmp_path).split()]
    newest = find_checkpoint(tmp_path)
    metadata = read_metadata(newest)
    assert int(read_leaves(newest, metadata)["version"]) == metadata["version"]
    assert [metadata["number"], metadata["version"]] >= reached
    CheckpointWriter(tmp_path).close()
    assert read_metadata(find_checkpoint(tmp_path)) == metadata


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with small().build() as algorithm, pytest.raises(CheckpointError, match="cannot be written"):
        algorithm.save(tmp_path / "file")
