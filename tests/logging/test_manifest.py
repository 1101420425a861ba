"""The manifest: what a run depended on, and that finding it out delays nothing."""

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl import Algorithm, __version__
from jaxrl.config.serialize import deserialize_config, hash_config, serialize_for_display
from jaxrl.errors import RunFolderError
from jaxrl.loggers import RunFolder
from jaxrl.runs import manifest
from jaxrl.runs.checkpoint import read_metadata
from jaxrl.runs.manifest import (
    GitReading,
    Session,
    add_session,
    get_session,
    read_git_state,
    read_sessions,
)
from tests.helpers import small


def run_git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@b", *arguments],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit with one file, in which the process runs."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # of a hook that runs the tests
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "repository"
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "task.py").write_text("reward = 1\n")
    run_git(folder, "add", "task.py")
    run_git(folder, "commit", "-q", "-m", "one")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(manifest, "_latest", None)
    return folder


class TestGit:
    def test_a_clean_checkout_is_its_commit(self, repository: Path) -> None:
        (repository / "results").write_text("a file that git does not track")
        state = read_git_state(repository)
        assert state is not None
        assert state.commit == run_git(repository, "rev-parse", "HEAD")
        assert (state.dirty, state.diff_sha256) == (False, None)

    def test_changes_have_a_digest_which_follows_their_content(self, repository: Path) -> None:
        digests = []
        for text in ("reward = 2\n", "reward = 3\n", "reward = 2\n"):
            (repository / "task.py").write_text(text)
            run_git(repository, "config", "diff.noprefix", str(len(digests) > 1))
            state = read_git_state(repository)
            assert state is not None
            assert state.dirty is True
            digests.append(state.diff_sha256)
        run_git(repository, "add", "task.py")
        staged = read_git_state(repository)
        assert staged is not None
        assert digests[0] == digests[2] == staged.diff_sha256
        assert digests[0] != digests[1]

    def test_a_file_that_was_only_touched_is_no_change(self, repository: Path) -> None:
        os.utime(repository / "task.py", (1, 1))
        state = read_git_state(repository)
        assert state is not None
        assert state.dirty is False

    def test_no_repository_no_commit_and_no_git_are_none(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
        outside, empty = tmp_path / "outside", tmp_path / "empty"
        for folder in (outside, empty):
            folder.mkdir()
        run_git(empty, "init", "-q")
        assert read_git_state(outside) is None
        assert read_git_state(empty) is None
        assert read_git_state(tmp_path / "missing") is None
        monkeypatch.setenv("PATH", str(outside))
        assert read_git_state(repository) is None

    def test_a_slow_git_is_left_behind(
        self, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        slow = tmp_path / "bin" / "git"
        slow.parent.mkdir()
        slow.write_text('#!/bin/sh\ncase "$*" in *diff*) exec sleep 60;; esac\necho abc\n')
        slow.chmod(0o755)
        monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(manifest, "TIMEOUT_S", 0.5)
        assert read_git_state(repository) == manifest.GitState(
            commit="abc", dirty=None, diff_sha256=None
        )


def sessions_of(folder: str) -> list[dict[str, Any]]:
    return read_sessions(Path(folder))


def test_a_run_and_its_checkpoints_say_what_they_depended_on(repository: Path) -> None:
    with small().build() as algo:
        algo.train()
        saved = Path(algo.save())
        folder = algo.run_dir
    (session,) = sessions_of(folder)
    assert session.pop("iteration") == 0
    assert session["git"] == {
        "commit": run_git(repository, "rev-parse", "HEAD"), "dirty": False, "diff_sha256": None,
    }  # fmt: skip
    assert session["versions"]["jaxrl"] == __version__
    assert session["versions"]["jax"] == jax.__version__
    assert {"python", "jaxlib", "flax", "optax", "numpy"} <= session["versions"].keys()
    assert session["xla_flags"] == os.environ["XLA_FLAGS"].strip()
    assert session["devices"]["count"] == 1
    assert session["devices"]["available"] == jax.local_device_count()
    assert session["devices"]["platform"] == jax.default_backend()
    assert session["compile_options"]["fast.xla_backend_optimization_level"] == 1
    params = json.loads((Path(folder) / "params.json").read_text())
    assert session["config_sha256"] == hash_config(params)
    assert get_session(read_metadata(saved)) == session


def test_no_other_environment_variable_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-of-mine")
    with small().build() as algo:
        algo.train()
        folder = Path(algo.run_dir)
    assert "a-secret-of-mine" not in (folder / "manifest.json").read_text()


def test_the_hash_is_of_what_is_trained() -> None:
    def hash_of(config: Any) -> str:
        return hash_config(serialize_for_display(config))

    base = hash_of(small())
    recorded_elsewhere = small().debugging(results_dir="/tmp", run_name="x", log_level="INFO")
    assert hash_of(recorded_elsewhere) == base
    assert hash_of(small().debugging(seed=1)) != base
    assert hash_of(small(lr=1e-3)) != base
    assert hash_of(small("A2C")) != base
    restored = deserialize_config(json.loads(json.dumps(serialize_for_display(small()))))
    assert hash_of(restored) == base


@pytest.mark.slow
def test_a_resumed_run_has_a_session_for_each_process(tmp_path: Path) -> None:
    with small().build() as algo:
        algo.train()
        first = algo.save()
        algo.train()
        second = algo.save()
        folder = algo.run_dir
    for checkpoint, starts in ((second, [0, 2]), (first, [0, 1])):
        with Algorithm.from_checkpoint(
            checkpoint, run_folder=RunFolder.open(folder), lr=1e-3
        ) as algo:
            algo.evaluate(num_episodes=1)
            assert len(sessions_of(folder)) == 1 + (checkpoint == first)  # nothing trained yet
            algo.train()
            algo.train()
        sessions = sessions_of(folder)
        assert [session["iteration"] for session in sessions] == starts
        assert sessions[0]["config_sha256"] != sessions[1]["config_sha256"]


def test_git_delays_no_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def wait(folder: Path) -> None:
        assert go_on.wait(60)

    monkeypatch.setattr(manifest, "read_git_state", wait)
    monkeypatch.setattr(manifest, "_latest", None)
    algo = small().build()
    algo.train()
    algo.train()
    folder = algo.run_dir
    assert sessions_of(folder) == []
    go_on.set()
    algo.stop()
    assert [session["git"] for session in sessions_of(folder)] == [None]


def test_runs_that_start_together_ask_git_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(manifest, "read_git_state", asked.append)
    first = manifest.start_reading(repository)
    assert manifest.start_reading(repository) is first
    assert manifest.start_reading(repository.parent) is not first
    monkeypatch.setattr(manifest, "REUSE_S", -1.0)
    later = manifest.start_reading(repository.parent)
    assert isinstance(later, GitReading)
    later.get()
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Cannot read"),
        ("[]", "is damaged: it must have manifest_version"),
        ('{"manifest_version": 2, "sessions": []}', "has version 2"),
        ('{"manifest_version": 1, "sessions": [5]}', "a session is '5'"),
        ('{"manifest_version": 1, "sessions": [{"iteration": "x"}]}', "iteration must be"),
        ('{"manifest_version": 1, "sessions": [{"iteration": 0}]}', "config_sha256 must be"),
    ],
)
def test_a_damaged_manifest_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunFolderError, match=words):
        read_sessions(tmp_path)
    session = Session(small(), jax.devices()[:1]).describe()
    add_session(tmp_path, session, 3)  # a run goes on, and begins another
    assert [entry["iteration"] for entry in read_sessions(tmp_path)] == [3]


def test_a_removed_folder_gets_its_manifest_again(tmp_path: Path) -> None:
    import shutil

    with small().build() as algo:
        algo.train()
        folder = algo.run_dir
        shutil.rmtree(folder)
        algo.train()
    assert [session["iteration"] for session in sessions_of(folder)] == [1]
