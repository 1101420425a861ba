"""`jaxrl migrate` of what no one would write: a sentence per file, and the others are migrated."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxrl.errors import ConfigError
from jaxrl.migrate import files
from jaxrl.migrate.python_file import is_nested_too_deeply, migrate_python
from jaxrl.migrate.yaml_file import migrate_yaml
from tests.cli.test_migrate import CODE, NEW, run

IMPORT = "from ray.rllib.algorithms.ppo import PPOConfig\n"


def repeat_aliases(levels: int, first: str, pattern: str) -> str:
    """Write an experiment in which each level repeats the one before nine times."""
    names = [f"k{level}" for level in range(levels)]
    text = f"x:\n  run: PPO\n  env: A\n  config:\n    k0: &k0 {first}\n"
    for before, name in itertools.pairwise(names):
        text += f"    {name}: &{name} {pattern % ', '.join(['*' + before] * 9)}\n"
    return text


def merges(levels: int) -> str:
    return repeat_aliases(levels, "{p: 1}", "\n      <<: [%s]")


def aliases(levels: int) -> str:
    return repeat_aliases(levels, "[x, x]", "[%s]")


def in_config(value: str) -> str:
    return f"x: {{run: PPO, env: A, config: {{lr: {value}}}}}\n"


DEEP = "is nested too deeply"
HOSTILE: dict[str, tuple[str, str | bytes, str]] = {
    "brackets": ("py", f"{IMPORT}x = {'(' * 10_000}1{')' * 10_000}\n", DEEP),
    "open brackets": ("py", IMPORT + "x = " + "[" * 10_000, DEEP),
    "brackets in a string": ("py", f"{IMPORT}x = f'{{{'(' * 3000}1{')' * 3000}}}'\n", DEEP),
    "signs": ("py", f"{IMPORT}x = {'-' * 5000}1\n", DEEP),
    "a long sum": ("py", f"{IMPORT}x = {' or '.join(['a'] * 20_000)}\n", DEEP),
    "a long chain": ("py", f"{IMPORT}x = PPOConfig(){'.training(lr=1)' * 500}\n", DEEP),
    "many branches": ("py", f"{IMPORT}if 1: x\n" + "elif 1: x\n" * 5000, DEEP),
    "functions": ("py", f"{IMPORT}x = {'lambda a, b: ' * 20_000}1\n", DEEP),
    "an end inside of brackets": ("py", f"{IMPORT}x = (\n", "not valid Python"),
    "a null character": ("py", f"{IMPORT}x = 1\0\n", "not valid Python"),
    "binary data": ("py", b"import ray.rllib" + bytes(range(256)), "not UTF-8"),
    "another encoding": ("py", IMPORT.encode("utf-16"), "not UTF-8"),
    "latin-1 by a cookie": (
        "py",
        b"# -*- coding: latin-1 -*-\n" + IMPORT.encode() + b"x = '\xe4'\n",
        "line 3: not UTF-8",
    ),
    "a large file": ("py", IMPORT + "#" * files.MAX_PYTHON_BYTES, "files of more than 2,000,000"),
    "a large experiment": ("yaml", "#" * files.MAX_DATA_BYTES + "\n", "files of more than 1,000"),
    "aliases": ("yaml", aliases(12), "more than 100,000 values"),
    "merges": ("yaml", merges(12), "'<<' merges more than 100,000 entries"),
    "itself": ("yaml", "x: &x {run: PPO, env: A, config: *x}\n", "contains itself"),
    "lists": ("yaml", in_config("[" * 5000 + "]" * 5000), DEEP),
    "levels": ("yaml", in_config("[" * 90 + "]" * 90), "nested more than 64 levels"),
    "JSON lists": ("json", "[" * 100_000, DEEP),
    "a date": ("yaml", in_config("2020-99-99"), "month must be in 1..12"),
    "a tagged date": ("yaml", in_config("!!timestamp abc"), "not of the type that its tag names"),
    "a tagged truth value": ("yaml", in_config("!!bool abc"), "not of the type that its tag names"),
    "a tagged object": ("yaml", in_config("!!python/object:os.system {}"), "the tag"),
    "digits": ("yaml", in_config("9" * 6000), "4300 digits"),
    "a control character": ("yaml", in_config("\x01"), "unacceptable character"),
    "binary YAML": ("yaml", b"run" + bytes(range(256)), "not UTF-8"),
    "an empty JSON file": ("json", "", "line 1: not valid JSON"),
    "a notebook of another encoding": ("ipynb", b"ray.rllib \xff", "not UTF-8"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_each_is_one_sentence_and_the_others_are_migrated(what: str, tmp_path: Path) -> None:
    suffix, content, words = HOSTILE[what]
    bad, good = tmp_path / f"a.{suffix}", tmp_path / "b.py"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = bad.read_bytes()
    good.write_text(CODE)
    code, out, err = run(bad, good, "--write")
    assert code == 2
    assert err.startswith("error: ")
    assert words in err
    assert str(bad) in err
    assert err.count("\n") == 1
    assert len(err) < 500 + len(str(bad))
    assert "1 written" in out
    assert (bad.read_bytes(), good.read_text()) == (before, NEW)


@pytest.mark.parametrize("suffix", ["py", "yaml"])
def test_an_empty_file_is_nothing_to_do(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text("")
    assert run(path, "--write") == (0, f"{path}: no code or experiment of RLlib.\n", "")
    assert path.read_text() == ""


def test_many_values_side_by_side_are_not_deep() -> None:
    numbers = ", ".join("1: -1 + 2" for _ in range(20_000))
    text = f"x = {{{numbers}}}\ny = '''{'(' * 5000}'''\n# {'(' * 5000}\n" + "if 1: pass\n" * 5000
    assert not is_nested_too_deeply(text)
    assert is_nested_too_deeply("x = [" + "y for a, b in c " * 2000 + "]")


def test_code_that_tokenizes_but_recurses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse(*_: object, **__: object) -> Any:
        raise RecursionError

    monkeypatch.setattr("jaxrl.migrate.python_file.Plan", recurse)
    with pytest.raises(ConfigError, match="nested too deeply"):
        migrate_python(CODE)


def test_a_setting_without_value_is_none() -> None:
    text = "x:\n  run: PPO\n  env: CartPole-v1\n  config:\n    kl_target:\n    framework: tf\n"
    migrated = migrate_yaml(text, Path("a.yaml"))
    assert "framework" not in migrated.new
    assert "kl_target:\n" in migrated.new


YAML = (
    "x:\n  run: PPO\n  env: CartPole-v1\n  config:\n    framework: tf # why\n    num_workers: 2\n"
)


@pytest.mark.parametrize(("name", "text"), [("a.py", CODE), ("a.yaml", YAML)])
def test_line_endings_are_kept(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.replace("\n", "\r\n").encode())
    code, out, _ = run(path, "--write")
    assert (code, "1 written" in out) == (0, True)
    new = path.read_bytes()
    assert b"framework" not in new
    assert new.count(b"\r\n") == new.count(b"\n") == new.count(b"\r") > 0


def test_a_cookie_of_ascii_code_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"# -*- coding: latin-1 -*-\n{CODE}")
    assert run(path, "--write")[0] == 0
    assert path.read_text() == f"# -*- coding: latin-1 -*-\n{NEW}"


def test_a_diff_has_only_the_lines_that_patch_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("a.py")
    content = f"{IMPORT}\x0c\nx = 'a\x0bb\u2028c'\n{CODE.splitlines()[1]}"
    path.write_text(content)
    code, out, _ = run(path)
    assert code == 0
    subprocess.run(["patch", "-p1"], input=out.encode(), check=True, capture_output=True)
    assert (
        path.read_text()
        == "from jaxrl import PPOConfig\n\x0c\nx = 'a\x0bb\u2028c'\nc = PPOConfig()"
    )


class TestLinks:
    def test_one_that_leads_out_is_named_and_not_followed(self, tmp_path: Path) -> None:
        outside, folder = tmp_path / "outside.py", tmp_path / "project"
        folder.mkdir()
        outside.write_text(CODE)
        (folder / "good.py").write_text(CODE)
        (folder / "link.py").symlink_to(outside)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "more.py").write_text(CODE)
        (folder / "folder").symlink_to(tmp_path / "elsewhere")
        code, out, err = run(folder, "--write")
        assert code == 2
        assert err == (
            f"error: '{folder / 'link.py'}' is a link to '{outside}': name that file to "
            "migrate it.\n"
        )
        assert "1 written" in out
        assert (outside.read_text(), (folder / "good.py").read_text()) == (CODE, NEW)
        assert (tmp_path / "elsewhere" / "more.py").read_text() == CODE
        assert run(folder / "link.py", "--write")[0] == 0
        assert outside.read_text() == NEW
        assert (folder / "link.py").is_symlink()

    def test_loops_and_links_to_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").symlink_to(tmp_path / "b.py")
        (tmp_path / "b.py").symlink_to(tmp_path / "a.py")
        (tmp_path / "c.py").symlink_to(tmp_path / "missing.py")
        (tmp_path / "folder").symlink_to(tmp_path)
        (tmp_path / "good.py").write_text(CODE)
        code, out, err = run(tmp_path, "--write")
        assert code == 2
        assert "1 written" in out
        for name in ("a.py", "b.py", "c.py"):
            assert err.count(f"Cannot read '{tmp_path / name}': ") == 1
        assert err.count("\n") == 3
        code, out, err = run(tmp_path / "a.py")
        assert (code, out) == (2, "")
        assert "Too many levels of symbolic links" in err


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")  # a read would wait for a writer
    (tmp_path / "folder.py").mkdir()
    code, _, err = run(tmp_path)
    assert code == 2
    assert err == f"error: Cannot read '{tmp_path / 'pipe.py'}': it is not a regular file.\n"
    assert "is no file to migrate" in run(tmp_path / "pipe.py")[2]
    assert run(tmp_path / "folder.py")[0] == 0


@pytest.mark.parametrize("name", ["a\0b.py", "x" * 5000 + ".py", "missing/b.py", "", " "])
def test_a_name_that_is_no_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(name)
    if name:
        assert code == 2
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    else:
        assert (code, out) == (0, ": no code or experiment of RLlib.\n")  # this folder, as in Path


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_may_not_be_read_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "a.py").write_text(CODE)
    (tmp_path / "good.py").write_text(CODE)

    def refuse(path: Any, *_: object) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    read_bytes, scandir = Path.read_bytes, os.scandir
    if kind == "file":
        monkeypatch.setattr(
            Path, "read_bytes", lambda p: refuse(p) if p.name == "a.py" else read_bytes(p)
        )
    else:
        monkeypatch.setattr(
            os, "scandir", lambda p: refuse(p) if Path(p).name == "private" else scandir(p)
        )
    code, out, err = run(tmp_path, "--write")
    assert code == 2
    assert "1 written" in out
    assert "private" in err
    assert "Permission denied" in err
    assert err.count("\n") == 1
    assert (tmp_path / "good.py").read_text() == NEW


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_names_and_values_cannot_command_the_terminal(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.py", "w") as file:
        file.write("import ray.rllib\nx = (\n")
    path = tmp_path / "b.yaml"
    path.write_text('x: {run: "\\e[2J", env: A, config: {"\\e[2Jb": 1}}\n')
    code, out, err = run(tmp_path)
    assert code == 2
    assert r"\udcff.py" in err
    assert r"\u001b[2J" in out
    assert "\x1b" not in out
