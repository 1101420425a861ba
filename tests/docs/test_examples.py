"""Every script of the gallery is on its page and runs as a user would run it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import fresh_environs

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "guides" / "examples.md"
WITH_RAY = {"ray_serve": r"actions \[[01], [01]\]", "tune_grid": "best lr"}
"""Those that start Ray, and what they print."""


def run(path: Path, folder: Path, **environs: str) -> str:
    """The output of a script in a fresh process, from another folder and with an empty home."""
    home, cwd = folder / "home", folder / "cwd"
    home.mkdir()
    cwd.mkdir()
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=cwd,
        env=fresh_environs(home) | environs,
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert "JAX had started" not in done.stderr
    assert not list(cwd.iterdir()), "files in the current folder"
    return done.stdout


@pytest.mark.representatives("custom_env_gymnasium")
@pytest.mark.parametrize(
    "path", [path for path in SCRIPTS if path.stem not in WITH_RAY], ids=lambda path: path.stem
)
def test_a_script_runs(path: Path, tmp_path: Path) -> None:
    assert re.search(r"\d", run(path, tmp_path)), "no numbers were printed"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", WITH_RAY)
def test_a_script_with_ray_runs(name: str, tmp_path: Path) -> None:
    path = ROOT / "docs" / "examples" / f"{name}.py"
    assert re.search(WITH_RAY[name], run(path, tmp_path, RAY_ADDRESS="local"))


def test_the_page_lists_every_script_once() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(\.\./examples/(\w+)\.py\) \|", PAGE.read_text(), re.M)
    assert sorted(target for _, target in listed) == [path.stem for path in SCRIPTS]
    assert all(name == target for name, target in listed)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_is_and_takes_arguments(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source)
    docstring = ast.get_docstring(tree)
    assert docstring is not None
    assert len(docstring.splitlines()) > 1
    assert 'if __name__ == "__main__":' in source  # processes of environments import the script
    assert "add_argument" in source
    assert len(source.splitlines()) <= 120
