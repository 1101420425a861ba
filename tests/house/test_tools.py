"""The tools that `make lint` runs: lint, format, types, import layers, spelling."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMMANDS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["pyright", "--project", "pyproject.toml", "--pythonpath", sys.executable],
    "import layers": ["lint-imports", "--no-cache"],
    "spelling": ["codespell"],
}


@pytest.mark.parametrize("tool", COMMANDS)
def test_tool_finds_nothing(tool: str) -> None:
    program, *arguments = COMMANDS[tool]
    done = subprocess.run(
        [str(BIN / program), *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(COMMANDS[tool])}\n{done.stdout}\n{done.stderr}"


def test_every_core_module_has_a_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = " ".join(settings["contracts"][0]["layers"]).replace("(", " ").replace(")", " ")
    listed = {name for name in layers.split() if name.startswith("core.")}
    present = {
        f"core.{path.stem}"
        for path in (ROOT / "jaxrl" / "core").glob("*.py")
        if path.stem != "__init__"
    }
    assert present <= listed, f"add to the layers of pyproject.toml: {sorted(present - listed)}"


def test_undefined_names_are_found_in_bodies_and_annotations_and_shapes_are_none() -> None:
    """Shapes are strings that are no expressions: `"T B"`, and with a space in front `" T *B"`."""
    source = '''"""A module."""

from jaxtyping import Array, Float


def scaled(x: Float[Array, "T B"], like: "Undefined1") -> Float[Array, " T *B"]:
    """Scale it."""
    return undefined2.sum(x, like)
'''
    done = subprocess.run(
        [str(BIN / "ruff"), "check", "--stdin-filename", "jaxrl/scaled.py", "-"],
        input=source,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if re.match(r"[A-Z]+\d+ ", line)]
    assert found == ["F821 Undefined name `Undefined1`", "F821 Undefined name `undefined2`"]
