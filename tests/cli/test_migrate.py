"""`jaxrl migrate`: diff, writing, exit codes, and every way to get it wrong."""

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.migrate import files
from tests.cli.command import jaxrl

CODE = "from ray.rllib.algorithms.ppo import PPOConfig\nc = PPOConfig().framework('torch')\n"
NEW = "from jaxrl import PPOConfig\nc = PPOConfig()\n"
LEFT = CODE + "c.multi_agent(policy_map_cache=p)\n"


def run(*args: str | Path) -> tuple[int, str, str]:
    return jaxrl("migrate", *args)


def test_a_diff_is_printed_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CODE)
    code, out, err = run("train.py")
    assert (code, err) == (0, "")
    assert out.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert "+from jaxrl import PPOConfig\n" in out
    assert "1 file read, 1 to change. Changes: 2 (1 import, 1 setting). By hand: none." in out
    assert Path("train.py").read_text() == CODE
    subprocess.run(["patch", "-p1"], input=out, text=True, check=True, capture_output=True)
    assert Path("train.py").read_text() == NEW


def test_write_replaces_files_and_keeps_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"\xef\xbb\xbf" + CODE.encode())
    path.chmod(0o755)
    (tmp_path / "other.py").write_text("x = 1\n")
    code, out, _ = run(tmp_path, "--write")
    assert code == 0
    assert "2 files read, 1 written." in out
    assert path.read_bytes() == b"\xef\xbb\xbf" + NEW.encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other.py", "train.py"]
    code, out, _ = run(tmp_path, "--write")
    assert code == 0
    assert "0 written" in out or "no code or experiment of RLlib" in out


def test_what_remains_is_listed_with_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LEFT)
    code, out, _ = run(path)
    assert code == 1
    assert f"{path}:3: policy_map_cache: modules are arrays of the compiled program" in out
    assert "By hand: 1 (1 setting)." in out
    assert run(path, "--write")[0] == 1
    assert run(path)[0] == 1, "it is listed until it is gone"


@pytest.mark.parametrize(
    ("line", "needs_tune"),
    [
        ("from ray.tune.logger import pretty_print", True),
        ("from ray import air, tune", True),
        ("from ray.tune.registry import register_env", False),
        ("import ray", False),
    ],
)
def test_what_remains_of_ray_tune_needs_its_packages(
    line: str, needs_tune: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{line}\n{CODE}register_env('e', c)\n")
    _, out, _ = run(tmp_path)
    assert ("pip install 'jaxrl[tune]'" in out) == needs_tune


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LEFT)
    code, out, _ = run(path, "--json")
    data = json.loads(out)
    assert code == 1
    assert data["files"][0]["path"] == str(path)
    assert [item["line"] for item in data["files"][0]["by_hand"]] == [3]
    assert [change["kind"] for change in data["files"][0]["changes"]] == ["import", "setting"]


def test_a_folder_is_searched_for_code_and_experiments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "tuned.yaml").write_text("x: {run: PPO, env: A, config: {framework: tf}}\n")
    (tmp_path / "other.yaml").write_text("{% template %}: [\n")
    (tmp_path / "old.py").write_text("print 'no RL'\n")
    (tmp_path / "notes.ipynb").write_text('{"source": "import ray.rllib"}')
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "lib.py").write_text(CODE)
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    code, out, err = run(tmp_path, tmp_path / "a.py")
    assert (code, err) == (1, "")
    assert out.count("--- ") == 2
    assert "convert it: jupyter nbconvert" in out


def test_a_folder_without_rllib_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    code, out, err = run(tmp_path)
    assert (code, err) == (0, "")
    assert out == f"{tmp_path}: no code or experiment of RLlib.\n"


def test_a_path_that_does_not_exist() -> None:
    assert run("nowhere.py") == (2, "", "error: There is no file or folder 'nowhere.py'.\n")


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(CODE)
    code, _, err = run(path)
    assert code == 2
    assert ".py, .yaml" in err


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"import ray.rllib\nx = (\n", "line 2: not valid Python"),
        (b"import ray.rllib\nprint 'x'\n", "line 2: it is Python 2"),
        (b"import ray.rllib\nx = '\xe4'\n", "line 2: not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_leaves_the_others(
    data: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "good.py").write_text(CODE)
    (tmp_path / "bad.py").write_bytes(data)
    code, _, err = run(tmp_path, "--write")
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1
    assert (tmp_path / "good.py").read_text() == NEW
    assert (tmp_path / "bad.py").read_bytes() == data


def test_a_file_that_is_not_writable_is_left_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text(CODE)
    monkeypatch.setattr(files.os, "access", lambda path, mode: Path(path).name != "b.py")
    code, _, err = run(tmp_path, "--write")
    assert code == 2
    assert "b.py': it is read-only; nothing was changed." in err
    assert (tmp_path / "a.py").read_text() == CODE


def test_a_write_that_fails_leaves_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text(CODE)

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    code, _, err = run(path, "--write")
    assert code == 2
    assert "No space left on device; nothing was changed." in err
    assert path.read_text() == CODE
    assert [each.name for each in tmp_path.iterdir()] == ["a.py"]


def test_code_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    marker = tmp_path / "was_run"
    path.write_text(f"{CODE}open({str(marker)!r}, 'w')\n")
    assert run(path, "--write")[0] == 0
    assert not marker.exists()


def test_without_libcst_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("jaxrl.migrate")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(importlib.import_module("jaxrl"), "migrate", raising=False)
    monkeypatch.setitem(sys.modules, "libcst", None)
    needed = "error: jaxrl migrate needs LibCST: pip install 'jaxrl[migrate]'.\n"
    assert run("train.py") == (2, "", needed)
