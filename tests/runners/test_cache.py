"""The compilation cache: private, bounded, switched off and on, and hit by the next process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxrl.runtime import compilation_cache as cache
from jaxrl.runtime.compilation_cache import MAX_BYTES, enable_compilation_cache

DEFAULTS = {
    "jax_enable_compilation_cache": True,
    "jax_compilation_cache_dir": None,
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
}


def options() -> dict[str, object]:
    return {name: jax.config.values[name] for name in DEFAULTS}


def _set(values: dict[str, object]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def _jax_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX's own defaults, and afterwards whatever there was."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache, "_ours", {})
    monkeypatch.setattr(cache, "_others", {})
    before = options()
    _set(DEFAULTS)
    yield
    _set(before)


def test_the_default_is_private_and_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".cache" / "jaxrl" / "xla"
    assert enable_compilation_cache(None) == f"Compilation cache: {folder}, at most 2 GiB."
    assert folder.stat().st_mode & 0o777 == 0o700
    assert options() == {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": MAX_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }


def test_a_folder_that_others_can_write_to_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o777)
    assert "at most" in enable_compilation_cache(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    said = enable_compilation_cache(str(folder))
    assert said == (
        f"Compilation cache: none, because {folder} cannot be used: it belongs to another user."
    )
    assert options() == DEFAULTS


def test_a_folder_that_cannot_be_made_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = enable_compilation_cache(str(tmp_path / "file" / "x"))
    assert said.endswith("cannot be used: not a directory.")
    assert options() == DEFAULTS


def test_the_next_build_says_anew(tmp_path: Path) -> None:
    named = tmp_path / "named"
    assert str(named) in enable_compilation_cache(str(named))
    assert "off, as set" in enable_compilation_cache("off")
    assert options()["jax_enable_compilation_cache"] is False
    assert str(tmp_path / "home") in enable_compilation_cache(None)
    assert options()["jax_enable_compilation_cache"] is True
    assert str(tmp_path / "home") in str(options()["jax_compilation_cache_dir"])


def test_what_jax_was_told_stays(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    jax.config.update("jax_compilation_cache_max_size", 12345)
    before = options()
    assert enable_compilation_cache(None).endswith("jax, as set in JAX.")
    assert options() == before
    enable_compilation_cache(str(tmp_path / "other"))
    assert options()["jax_compilation_cache_max_size"] == 12345
    enable_compilation_cache(None)
    assert options() == before
    jax.config.update("jax_enable_compilation_cache", False)
    assert enable_compilation_cache(None) == "Compilation cache: off, as set in JAX."
    assert options()["jax_enable_compilation_cache"] is False


def test_entries_without_a_date_are_dated(tmp_path: Path) -> None:
    """As a killed process leaves them; JAX would never write to the folder again."""
    folder = tmp_path / "named"
    folder.mkdir()
    for name in ("a-cache", "b-cache", "b-atime"):
        (folder / name).write_bytes(b"12345678")
    enable_compilation_cache(str(folder))
    files = {path.name for path in folder.iterdir()}
    assert files == {"a-cache", "a-atime", "b-cache", "b-atime"}
    dated = int.from_bytes((folder / "a-atime").read_bytes(), "little")
    assert dated == (folder / "a-cache").stat().st_mtime_ns
    assert (folder / "b-atime").read_bytes() == b"12345678"
    lru_cache = pytest.importorskip("jax._src.lru_cache")
    cache_of_jax = lru_cache.LRUCache(str(folder), max_size=10_000)
    cache_of_jax.put("c", b"new")
    assert cache_of_jax.get("c") == b"new"


COMPILE = """
import json, sys
import jax, jax.numpy as jnp
from pathlib import Path
from jaxrl.runtime.compilation_cache import enable_compilation_cache
from jaxrl.runtime.program import Program

folder = Path(sys.argv[1])

def hit(setting, name, function):
    enable_compilation_cache(setting)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    program = Program(name, function)
    program(jnp.ones((8, 8)))
    return program.compile_stats[-1].cache_hit, len(list(folder.glob("*-cache")))

print(json.dumps([
    hit("off", "sine", lambda x: jnp.sin(x) @ x)[1],
    hit(None, "sine", lambda x: jnp.sin(x) @ x),
    (folder / ".lockfile").exists(),
]))
"""


def test_the_next_process_hits(tmp_path: Path) -> None:
    """Off first, which must not keep the cache off; JAX looks at its options only once."""
    environment = {name: v for name, v in os.environ.items() if "COMPILATION_CACHE" not in name}
    environment["HOME"] = str(tmp_path)
    folder = tmp_path / ".cache" / "jaxrl" / "xla"

    def in_new_process() -> list[object]:
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, str(folder)],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    written, (hit, entries), locked = in_new_process()
    assert (written, hit, locked) == (0, False, True)
    assert entries > 0
    assert in_new_process()[1] == [True, entries]


def test_contents_are_counted_while_there_is_a_cache(tmp_path: Path) -> None:
    assert cache.get_cache_contents() is None
    enable_compilation_cache(str(tmp_path / "cache"))
    assert cache.get_cache_contents() == cache.CacheContents(
        folder=str(tmp_path / "cache"), entries=0, bytes=0, max_bytes=MAX_BYTES
    )
    (tmp_path / "cache" / "a-cache").write_bytes(b"123")
    (tmp_path / "cache" / "a-atime").write_bytes(b"12345678")
    contents = cache.get_cache_contents()
    assert contents is not None
    assert (contents.entries, contents.bytes) == (1, 3)
    enable_compilation_cache("off")
    assert cache.get_cache_contents() is None
