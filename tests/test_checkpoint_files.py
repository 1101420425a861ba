"""Checkpoints on the disk: atomic, kept or dropped, damaged, and killed while they are written."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.errors import CheckpointError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs.checkpoint import (
    CheckpointWriter,
    describe_leaves,
    find_checkpoint,
    list_checkpoints,
    read_leaves,
    read_metadata,
    set_aside_later_checkpoints,
    stage,
)
from tests.helpers import assert_equal, slow_but, small

ROOT = Path(__file__).parent.parent


def test_there_is_no_pickle(tmp_path: Path) -> None:
    with small().build() as algorithm:
        path = Path(algorithm.save(tmp_path))
    for file in path.rglob("*"):
        assert file.suffix not in {".pkl", ".pickle"}
        if file.is_file():
            assert not file.read_bytes().startswith(b"\x80\x04")


@pytest.fixture(scope="module")
def saved_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an older and a newer checkpoint of one run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with small().debugging(results_dir=str(folder)).build() as algorithm:
        algorithm.train()
        algorithm.save(folder)
        algorithm.train()
        return Path(algorithm.save(folder)).parent


@pytest.fixture
def two_checkpoints(saved_twice: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An older and a newer checkpoint of one run, to damage."""
    older, newer = (
        Path(shutil.copytree(path, tmp_path / path.name)) for path in list_checkpoints(saved_twice)
    )
    return older, newer


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


def later_version(checkpoint: Path, number: int = 99) -> None:
    file = checkpoint / "manifest.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "checkpoint_version": number}))


def earlier_version(checkpoint: Path) -> None:
    later_version(checkpoint, 2)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "cannot be loaded"),
        (flip_a_bit, "cannot be loaded"),
        (lose_state, "cannot be loaded"),
        (cut_metadata, "cannot be loaded"),
        (later_version, "its format is version 99, but this jaxrl reads version 3"),
        (earlier_version, "its format is version 2, but this jaxrl reads version 3"),
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
    with pytest.raises(CheckpointError, match="is not a jaxrl checkpoint"):
        find_checkpoint(tmp_path / "other")
    for part in ("metadata", "state"):
        (tmp_path / "other" / part).mkdir()
    (tmp_path / "other" / "metadata" / "metadata").write_text('{"hello": 1}')
    for nothing in (None, 5, b"x", "\0"):
        with pytest.raises(
            CheckpointError,
            match=r"A checkpoint must be given as a path, .*, got|There is no checkpoint",
        ):
            find_checkpoint(nothing)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointError, match=r"its file manifest\.json is missing"):
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


def test_an_evaluation_that_results_repeat_keeps_the_checkpoint_that_it_was_of(
    tmp_path: Path,
) -> None:
    state = {"a": np.arange(3.0)}
    writer = CheckpointWriter(tmp_path, max_to_keep=1, scored=True, repeats_scores=True)
    for number, score in enumerate([None, None, 5.0, 5.0, 5.0, 4.0]):
        writer.save(number, state, {}, score)
        writer.wait()
    assert numbers(tmp_path) == [2, 5]


def numbers(folder: Path) -> list[int]:
    return [int(path.name.rsplit("_", 1)[1]) for path in list_checkpoints(folder)]


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
        p.name for p in list_checkpoints(tmp_path)
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
    saved = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert len(saved) == 4
    with small().build() as fresh:
        for path, want in zip(saved, states, strict=True):
            fresh.restore(path)
            assert_equal(want, fresh.get_state()["train_state"])


KILLED = """
import sys, numpy as np
from jaxrl.runs.checkpoint import CheckpointWriter
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


@pytest.mark.parametrize("delay", slow_but(0.1, of=[0.0, 0.03, 0.1, 0.2, 0.35]))
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
from jaxrl.runs.checkpoint import CheckpointWriter
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


@pytest.mark.parametrize("delay", slow_but(0.07, of=[0.0, 0.07, 0.16, 0.3]))
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


def test_orbax_alone_opens_the_arrays_of_a_run(tmp_path: Path) -> None:
    with small().build() as algorithm:
        algorithm.train()
        path = Path(algorithm.save(tmp_path))
        want = algorithm.get_state()["train_state"]
    subprocess.run(
        [sys.executable, "-c", OPENED_BY_ORBAX, path / "state", tmp_path / "opened.npz"], check=True
    )
    with np.load(tmp_path / "opened.npz") as opened:
        assert_equal(want, dict(opened))


OPENED_BY_ORBAX = """
import sys
import numpy as np
import orbax.checkpoint as ocp

leaves = ocp.StandardCheckpointer().restore(sys.argv[1])
assert not any(name.partition(".")[0] == "jaxrl" for name in sys.modules)
np.savez(sys.argv[2], **leaves)
"""


# --- a disk without room ---

LARGE = {"a": np.random.default_rng(0).normal(size=(200_000,))}  # more than the limit, uncompressed
SMALL = {"a": np.arange(3.0)}


@contextlib.contextmanager
def no_file_above(size: int) -> Generator[None]:
    """Writes fail in the middle, as those to a full disk do."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_one_sentence_and_the_next_save_works(
    asynchronous: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = CheckpointWriter(tmp_path, asynchronous=asynchronous)
    first = writer.save(1, SMALL, {"number": 1})
    writer.wait()

    def save_and_wait() -> None:
        writer.save(2, LARGE, {})
        writer.wait()

    with no_file_above(300_000), pytest.raises(CheckpointError) as caught:
        save_and_wait()
    assert str(caught.value) == (
        f"Checkpoints cannot be written in {tmp_path}: File too large; existing checkpoints are "
        "intact."
    )
    assert left_in(tmp_path) == [first.name]
    writer.wait()  # said once
    second = writer.save(3, LARGE, {})
    writer.close()
    assert left_in(tmp_path) == [first.name, second.name]
    assert read_leaves(first, read_metadata(first))["a"].tolist() == [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(read_leaves(second, read_metadata(second))["a"], LARGE["a"])
    assert not caplog.records


def test_a_write_in_the_background_that_failed_is_told_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And that one is on the disk before it returns: a disk that stays full ends in an error."""
    writer = CheckpointWriter(tmp_path, asynchronous=True)
    with no_file_above(300_000):
        writer.save(1, LARGE, {})
        with pytest.raises(CheckpointError, match="File too large"):
            writer.save(2, LARGE, {})
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        writer.save(3, LARGE, {})
        assert writer._write_thread is not None
        writer._write_thread.join()
    path = writer.save(4, LARGE, {})
    assert writer._write_thread is None  # not in the background
    assert left_in(tmp_path) == [path.name]
    assert len(caplog.records) == 2
    assert "\n" not in caplog.records[1].getMessage()
    writer.close()


def test_a_folder_that_turns_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CheckpointWriter(tmp_path)
    path = writer.save(1, SMALL, {})

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "mkdir", refuse)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            writer.save(2, SMALL, {})
    assert writer.save(2, SMALL, {}).is_dir()
    assert path.is_dir()


# --- removal ---


def test_a_removal_that_is_killed_leaves_no_checkpoint_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every complete name is a whole checkpoint, at whichever file the deletion ends."""
    for ends_after in range(9):
        folder = tmp_path / str(ends_after)
        writer = CheckpointWriter(folder, max_to_keep=2)
        for number in (1, 2):
            writer.save(number, SMALL, {"number": number})
        unlinked: list[str] = []
        unlink = os.unlink

        def killed(path: Any, *args: Any, **kwargs: Any) -> None:
            if ".writing_" not in str(path):  # where Orbax replaces a file
                if len(unlinked) == ends_after:  # noqa: B023
                    raise SystemExit
                unlinked.append(str(path))  # noqa: B023
            unlink(path, *args, **kwargs)  # noqa: B023

        with monkeypatch.context() as context, contextlib.suppress(SystemExit):
            context.setattr(os, "unlink", killed)
            text = json.dumps(document(SMALL))
            writer._write(folder / "checkpoint_000003", SMALL, text, None, None)
        for path in list_checkpoints(folder):
            read_leaves(path, read_metadata(path))
        CheckpointWriter(folder).close()
        assert left_in(folder) == ["checkpoint_000002", "checkpoint_000003"]


def test_another_writer_leaves_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leftovers of a process that is gone are removed all the same."""
    left = tmp_path / ".writing_0123_checkpoint_000001"
    left.mkdir()
    write_arrays = ckpt._write_arrays

    def write_beside_another(folder: Path, leaves: Any) -> None:
        CheckpointWriter(tmp_path).save(2, SMALL, {})
        assert not left.exists()
        write_arrays(folder, leaves)

    first = CheckpointWriter(tmp_path)
    left.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(ckpt, "_write_arrays", once(write_beside_another, write_arrays))
        first.save(1, SMALL, {})
    assert left_in(tmp_path) == ["checkpoint_000001", "checkpoint_000002"]
    for path in list_checkpoints(tmp_path):
        assert read_leaves(path, read_metadata(path))["a"].tolist() == [0.0, 1.0, 2.0]


def test_another_writer_leaves_what_is_being_replaced(tmp_path: Path) -> None:
    path = CheckpointWriter(tmp_path).save(1, SMALL, {"number": 1})
    with stage(path):
        replaced = path.rename(tmp_path / f"replaced_{path.name}")
        CheckpointWriter(tmp_path)
        assert replaced.exists()
    CheckpointWriter(tmp_path)
    assert left_in(tmp_path) == [path.name]


def once(first: Any, then: Any) -> Any:
    """A function that is another one in its first call."""
    functions = iter([first])
    return lambda *arguments: next(functions, then)(*arguments)


def document(state: Any) -> dict[str, Any]:
    return {"checkpoint_version": ckpt.VERSION, "leaves": describe_leaves(state)}


def test_later_checkpoints_are_set_aside(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for number in range(1, 5):
        writer.save(number, SMALL, {})
    names = [path.name for path in set_aside_later_checkpoints(tmp_path, 2)]
    assert names == ["set_aside_checkpoint_000003", "set_aside_checkpoint_000004"]
    writer.save(3, SMALL, {})
    assert [path.name for path in set_aside_later_checkpoints(tmp_path, 2)] == [
        "set_aside_checkpoint_000003_2"
    ]
    assert numbers(tmp_path) == [1, 2]
