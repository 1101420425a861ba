"""Manifests that no run of jaxrl wrote: one sentence from every command that reads them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jaxrl.cli.comparison import compare_sessions
from jaxrl.cli.records import read_params
from jaxrl.errors import RunFolderError
from jaxrl.loggers.sinks import read_results
from jaxrl.runs import manifest
from jaxrl.runs.manifest import check_session, read_sessions
from tests.cli.command import jaxrl

ESCAPE = "\x1b[2J"
SESSION: dict[str, Any] = {
    "iteration": 0,
    "config_sha256": "ab",
    "not_saved": [],
    "devices": {"platform": "cpu", "kind": "cpu", "count": 1, "available": 8},
    "versions": {"jax": "0.10.0"},
    "xla_flags": "",
    "jax_options": {},
    "compile_options": {},
    "git": None,
}
DEVICES: dict[str, Any] = SESSION["devices"]


def document(*sessions: object, version: object = 1) -> str:
    return json.dumps({"manifest_version": version, "sessions": list(sessions)})


def changed(**entries: object) -> str:
    return document({**SESSION, **entries})


def devices(**entries: object) -> str:
    return changed(devices={**DEVICES, **entries})


def without(name: str) -> str:
    return document({key: value for key, value in SESSION.items() if key != name})


HOSTILE = {
    "a billion devices": (devices(count=10**9), "devices: count must be a whole number from 1 to"),
    "a billion available": (devices(available=10**9), "devices: available must be"),
    "no device": (devices(count=0), "devices: count must be"),
    "fewer than none": (devices(available=-1), "devices: available must be"),
    "a count in words": (devices(count="many"), "devices: count must be"),
    "a count of a truth value": (devices(count=True), "devices must be"),
    "no count": (
        changed(devices={"platform": "cpu"}),
        "devices: count must be a whole number from 1 to 1024, got 'nothing'",
    ),
    "no platform": (changed(devices={"count": 1}), "devices: platform must be a string"),
    "a numbered platform": (devices(platform=3), "devices: platform must be a string, got '3'"),
    "a nested platform": (devices(platform=["cpu"]), "devices must be"),
    "a platform that clears the screen": (devices(platform=ESCAPE), "devices must be printable"),
    "a lone surrogate": (changed(versions={"jax": "\ud800"}), "versions must be printable"),
    "a setting that clears the screen": (changed(not_saved=[ESCAPE]), "not_saved must be"),
    "devices in a list": (changed(devices=[1]), "devices must be"),
    "an iteration before the first": (changed(iteration=-1), "iteration must be from 0"),
    "an iteration of hundreds of digits": (changed(iteration=10**400), "iteration must be from 0"),
    "an infinite iteration": (
        changed().replace('"iteration": 0', '"iteration": 1e999'),
        "iteration must be",
    ),
    "an integer of too many digits": (
        changed().replace('"iteration": 0', f'"iteration": {"9" * 5000}'),
        "Cannot read",
    ),
    "no iteration": (without("iteration"), "iteration must be a whole number, got 'nothing'"),
    "no versions": (without("versions"), "versions must be"),
    "versions that are numbers": (changed(versions={"jax": 1}), "versions must be"),
    "a repository in a list": (changed(git=[["commit"]]), "git must be"),
    "deep nesting": ("[" * 200_000, "Cannot read"),
    "deep nesting in an entry": (
        changed(git=1).replace('"git": 1', '"git": ' + "[" * 500 + "]" * 500),
        "git must be",
    ),
    "a later version of many digits": (document(SESSION, version=10**400), "has version 1000"),
    "a version in words": (document(SESSION, version="1"), "it must have manifest_version"),
    "sessions in a mapping": ('{"manifest_version": 1, "sessions": {}}', "it must have"),
    "a session of many numbers": (document(list(range(10_000))), "a session is '[0, 1, 2"),
    "another encoding": ("\xff", "Cannot read"),
    "nothing": ("", "Cannot read"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, text in (("params.json", '{"algo": "PPO", "settings": {}}'), ("run.json", "{}")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused_in_one_sentence(what: str, run: Path) -> None:
    text, words = HOSTILE[what]
    (run / "manifest.json").write_bytes(text.encode("latin-1"))
    for command in (("replay", run), ("diff", run, run)):
        code, out, err = jaxrl(*command)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert words in err
        assert err.count("\n") == 1
        assert len(err) < 600 + len(str(run))
        assert err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("kind", ["huge", "folder", "pipe"])
def test_what_is_no_small_file_is_refused(
    kind: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run / "manifest.json"
    if kind == "huge":
        monkeypatch.setattr(manifest, "MAX_BYTES", 100)
        path.write_text(document(SESSION))
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)  # a read would wait for a writer
    with pytest.raises(RunFolderError, match=r"manifest\.json is not a regular file of at most"):
        read_sessions(run)


def test_entries_of_later_versions_are_left_out(run: Path) -> None:
    (run / "manifest.json").write_text(changed(iteration=2.0, later={"x": [1]}))
    (session,) = read_sessions(run)
    assert session == {**SESSION, "iteration": 2}
    assert type(session["iteration"]) is int


def test_a_session_of_an_old_checkpoint_needs_less() -> None:
    names = ("iteration", "versions", "devices")
    old = {"iteration": 0, "versions": {}, "devices": {}}
    assert check_session(old, Path("metadata"), names) == old
    with pytest.raises(RunFolderError, match="metadata is damaged: versions must be"):
        check_session({**old, "versions": 5}, Path("metadata"), names)


def test_flags_cannot_command_the_terminal() -> None:
    sessions = [[{**SESSION, "xla_flags": flags}] for flags in (ESCAPE, "--xla_a\n--xla_b")]
    (difference,) = compare_sessions(*sessions)
    assert difference.name == "XLA_FLAGS"
    assert (difference.first, difference.second) == (r'"\u001b[2J"', r'"--xla_a\n--xla_b"')


def test_deeply_nested_results_and_settings_are_no_crash(run: Path) -> None:
    (run / "result.json").write_text("[" * 200_000 + '\n{"training_iteration": 1}\n')
    assert list(read_results(run / "result.json")) == [{"training_iteration": 1}]
    (run / "params.json").write_text("[" * 200_000)
    with pytest.raises(RunFolderError, match="Cannot read"):
        read_params(run)
