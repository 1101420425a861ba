"""The client's files work where there is nothing but Python 3.9 and NumPy."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

import jaxrl.external
from jaxrl.cli.app import app
from jaxrl.external.files import CLIENT_FILES, find_client_file, write_client
from tests.external.served import Served, make_config

FOLDER = Path(jaxrl.external.__file__).parent
ALLOWED = {"numpy", "jaxrl"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", CLIENT_FILES)
def test_parses_as_python_3_9(name: str) -> None:
    tree = ast.parse(find_client_file(name).read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= ALLOWED - {"jaxrl"}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.module or "").split(".")[0] in ALLOWED - {"jaxrl"}


@pytest.mark.parametrize("name", CLIENT_FILES)
def test_does_nothing_that_python_3_9_cannot(name: str) -> None:
    """Calls that parse but came later."""
    source = find_client_file(name).read_text()
    assert "from __future__ import annotations" in source or name == "__init__.py"
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.Match)
        if isinstance(node, ast.Call):
            names = {keyword.arg for keyword in node.keywords}
            assert not names & {"strict", "kw_only", "slots"}
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            assert not isinstance(node.args[1], ast.BinOp)  # int | str


def test_every_file_is_one_of_the_client() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {
        *(set(CLIENT_FILES) - {"numpy_program.py"}),
        *("files.py", "page.py"),
    }


@pytest.fixture(scope="module")
def served():
    served = Served(make_config())
    yield served
    served.group.stop()


PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "flax", "jaxrl", "gymnasium", "optax"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
from sim.link import PolicyClient

for mode in ("remote", "local"):
    with PolicyClient(sys.argv[1], mode) as client:
        assert client.inference_mode == mode
        for _ in range(3):
            for t in range(5):
                assert client.step(np.full(2, t), 1.0) in (0, 1, 2)
            client.step(np.zeros(2), 1.0, terminated=True)
print("done")
"""


def test_written_files_run_without_jax_and_jaxrl(served: Served, tmp_path: Path) -> None:
    (tmp_path / "sim").mkdir()
    written = CliRunner().invoke(app, ["client", "--write", str(tmp_path / "sim" / "link")])
    assert written.exit_code == 0, written.output
    assert "PolicyClient" in written.output
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "program.py", served.group.address]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "done\n", done.stderr
    assert served.ledger.received == 30


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    write_client(tmp_path)
    write_client(tmp_path)  # its own are
    (tmp_path / "client.py").write_text("mine = 1\n")
    result = CliRunner().invoke(app, ["client", "--write", str(tmp_path)])
    assert result.exit_code != 0
    assert (tmp_path / "client.py").read_text() == "mine = 1\n"
