"""Damaged checkpoints: the exact state or one sentence."""

import filecmp
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jaxrl.errors import CheckpointError
from jaxrl.runs.checkpoint import MANIFEST, CheckpointWriter, is_own
from jaxrl.runs.host_state import resolve_trust
from tests.saved_states import STATE, loaded, metadata, save_two


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An older and a newer checkpoint."""
    return save_two(tmp_path_factory.mktemp("checkpoints"))


def outcome(path: Path) -> tuple[Any, str | None]:
    """Return what is loaded, or the sentence why nothing is."""
    try:
        return loaded(path), None
    except CheckpointError as error:
        return None, str(error)


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flip(path: Path, rng: random.Random, other: Path) -> str:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))
    return path.name


def truncate(path: Path, rng: random.Random, other: Path) -> str:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])
    return path.name


def lengthen(path: Path, rng: random.Random, other: Path) -> str:
    path.write_bytes(path.read_bytes() + rng.randbytes(1 + rng.randrange(9)))
    return path.name


def lose(path: Path, rng: random.Random, other: Path) -> str:
    path.unlink()
    return path.name


def add(path: Path, rng: random.Random, other: Path) -> str:
    added = path.with_name(f"added{rng.randrange(99)}")
    added.write_bytes(b"x")
    return added.name


def swap(path: Path, rng: random.Random, other: Path) -> str:
    """Take the file of the other checkpoint, or another one of this."""
    source = other if other.exists() and rng.random() < 0.7 else rng.choice(files_of(path.parent))
    path.write_bytes(source.read_bytes())
    return path.name


DAMAGES = (flip, flip, flip, flip, truncate, truncate, lengthen, lose, add, swap, swap, swap)


@pytest.mark.parametrize(
    "number", [60, pytest.param(300, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_damage_is_one_sentence_that_names_the_file(
    number: int, two: list[Path], tmp_path: Path
) -> None:
    older, newer = two
    want, outcomes = loaded(newer), Counter[str]()
    damaged = tmp_path / "run" / newer.name
    shutil.copytree(older, damaged.with_name(older.name))
    rng = random.Random(number)
    for case in range(number):
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(newer, damaged)
        damage = DAMAGES[case % len(DAMAGES)]
        victim = rng.choice(files_of(damaged))
        touched = damage(victim, rng, older / victim.relative_to(damaged))
        got, sentence = outcome(damaged)
        if sentence is None:
            assert got == want, (damage.__name__, victim)
            if damage is swap and filecmp.cmp(
                victim, newer / victim.relative_to(damaged), shallow=False
            ):
                outcomes["swap      of equal files"] += 1
                continue
        else:
            assert "\n" not in sentence
            assert "its file " in sentence
            assert touched in sentence or (damage is swap and touched == MANIFEST)
            assert f"The previous one is {damaged.with_name(older.name)}" in sentence
        outcomes[f"{damage.__name__:9} {'exact' if sentence is None else 'one sentence'}"] += 1
    assert loaded(damaged.with_name(older.name)) != want
    print("", *(f"{n:4} {what}" for what, n in sorted(outcomes.items())), sep="\n")
    equal = outcomes["swap      of equal files"]
    assert sum(n for what, n in outcomes.items() if "sentence" in what) >= 0.9 * (number - equal)


def test_whoever_wrote_it_is_known_by_a_signature(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_own(two[0])
    assert resolve_trust(two[0], None).everything
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    assert not is_own(two[0])  # there is no key here, and asking makes none
    assert not (tmp_path / "of another user").exists()
    path = CheckpointWriter(tmp_path / "own").save(1, STATE, metadata(1))
    assert is_own(path)
    key = tmp_path / "of another user" / "jaxrl" / "signing_key"
    assert key.stat().st_mode & 0o077 == 0
    key.chmod(0o644)  # others may have read it
    assert not is_own(path)
