"""Commands as they are printed: a shell finds the program that they name."""

import sys
from pathlib import Path

import pytest

from jaxrl.cli.terminal import format_command


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a virtual environment that is not active; another jaxrl is on the path."""
    monkeypatch.setenv("PATH", str(program(tmp_path / "other" / "jaxrl").parent))
    folder = tmp_path / "a project"
    called = program(folder / ".venv" / "bin" / "jaxrl")
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setattr(sys, "executable", str(program(called.with_name("python"))))
    monkeypatch.chdir(folder)
    return folder


def test_a_program_off_the_path_is_named_by_its_file(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert format_command("resume", Path("a b")) == ".venv/bin/jaxrl resume 'a b'"
    monkeypatch.chdir(venv.parent)
    assert format_command("resume", "x") == "'a project/.venv/bin/jaxrl' resume x"
    monkeypatch.chdir("/")
    assert format_command("resume", "x").endswith("a project/.venv/bin/jaxrl' resume x")
    monkeypatch.chdir(venv / ".venv" / "bin")
    assert format_command("resume", "x") == "./jaxrl resume x"


def test_a_program_on_the_path_has_its_name(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(venv / ".venv" / "bin"))
    assert format_command("list", "envs") == "jaxrl list envs"
    monkeypatch.setattr(sys, "argv", [str(venv / "jaxrl" / "__main__.py")])
    assert format_command("list", "envs") == "python -m jaxrl list envs"


def test_a_module_is_called_by_its_python(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(venv / "jaxrl" / "__main__.py")])
    assert format_command("list", "envs") == ".venv/bin/python -m jaxrl list envs"


def test_in_a_program_of_the_users_it_is_the_command(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert format_command("evaluate", "x") == "jaxrl evaluate x"
