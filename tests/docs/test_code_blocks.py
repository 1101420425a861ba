"""Every Python block of the documents runs, each file's blocks one after the other."""

import ast
import contextlib
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl import testing
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.sweep import is_sweep

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RAY_FENCE = re.compile(r"^```\{\.python \.ray\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Output of the block before it."""
NAME = "documented"
LONG = (
    "alphazero",
    "callbacks",
    "compilation",
    "connectors",
    "curriculum",
    "custom_environment",
    "custom_loss",
    "custom_module",
    "debugging",
    "evaluation",
    "export",
    "external_simulators",
    "from_purejaxrl",
    "hindsight",
    "host_environments",
    "key_concepts",
    "logging",
    "memory",
    "multi_agent",
    "opponents",
    "pure_functions",
    "python_multi_agent",
    "recorded_data",
    "serve",
    "sweeps",
    "training_step",
    "troubleshooting",
)
"""Pages that train for long, or that build several runs."""
REUSING = ("curriculum", "from_purejaxrl", "pure_functions", "sweeps")
"""Pages with vmapped runs, whose keys the checker takes for one that is reused."""


def blocks(path: Path, fence: re.Pattern[str] = FENCE) -> list[tuple[int, str]]:
    """The blocks of a file, with the number of each one's first line."""
    text = path.read_text()
    return [(text[: found.start(1)].count("\n"), found[1]) for found in fence.finditer(text)]


def shown_outputs(path: Path) -> dict[int, str]:
    """Outputs of blocks that a page shows, by the number of each block's first line."""
    text = path.read_text()
    after = [(found, SHOWN.match(text, found.end() + 1)) for found in FENCE.finditer(text)]
    return {text[: found.start(1)].count("\n"): shown[1] for found, shown in after if shown}


def printed(output: str) -> list[str]:
    """The words of an output, without the lines that a training run writes to the console."""
    return [
        word
        for line in output.splitlines()
        if not re.match(r"iteration [\d,]+  ", line)
        for word in line.split()
    ]


def run_blocks(
    path: Path, namespace: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_outputs(path)
    for first_line, source in blocks(path):
        capsys.readouterr()
        exec(compile("\n" * first_line + source, os.fspath(path), "exec"), namespace)
        if first_line in shown:
            assert printed(capsys.readouterr().out) == printed(shown[first_line])


def documents() -> list[Path]:
    files = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in files if blocks(path)]


@pytest.fixture
def namespace() -> Iterator[dict[str, object]]:
    """The globals of an importable module, as classes of a user's own file would have."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    yield module.__dict__
    del sys.modules[NAME]


def cases() -> list[Any]:
    return [
        pytest.param(
            path,
            id=str(path.relative_to(ROOT)),
            marks=[pytest.mark.allow_key_reuse] * (path.stem in REUSING)
            + [pytest.mark.slow] * (path.stem in LONG),
        )
        for path in documents()
    ]


@pytest.mark.parametrize("path", cases())
def test_blocks_run_and_print_what_is_shown(
    path: Path,
    namespace: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(path, namespace, capsys)


class FirstBuild(Exception):
    """End of what is run of a page by default."""


@pytest.mark.parametrize(
    "path", [path for path in documents() if path.stem in LONG], ids=lambda path: path.stem
)
def test_blocks_of_long_pages_run_up_to_their_first_build(
    path: Path,
    namespace: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(config: AlgorithmConfig, *args: object, **kwargs: object) -> None:
        if not is_sweep(config):
            config.validate()
        raise FirstBuild

    monkeypatch.chdir(tmp_path)
    for name in ("build", "build_algo"):
        monkeypatch.setattr(AlgorithmConfig, name, refuse)
    monkeypatch.setattr(testing, "check_env", lambda env, **kwargs: None)
    with contextlib.suppress(FirstBuild):
        run_blocks(path, namespace, capsys)


def test_blocks_compile_and_import_what_there_is() -> None:
    imported: set[tuple[str, str]] = set()
    for path in documents():
        for first_line, source in blocks(path) + blocks(path, RAY_FENCE):
            tree = ast.parse("\n" * first_line + source, os.fspath(path))
            imported |= {
                (node.module, alias.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module is not None
                for alias in node.names
                if node.module.partition(".")[0] == "jaxrl"
            }
    assert len(imported) > 50
    missing = [
        f"{module}.{name}"
        for module, name in sorted(imported)
        if not hasattr(importlib.import_module(module), name)
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not missing


@pytest.mark.slow
@pytest.mark.ray
def test_blocks_with_actors_run(
    namespace: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [(path, block) for path in documents() for block in blocks(path, RAY_FENCE)]
    assert found
    for path, (first_line, source) in found:
        exec(compile("\n" * first_line + source, os.fspath(path), "exec"), namespace)


def test_links_between_documents_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in documents
        for target in link.findall(path.read_text())
        if not (path.parent / target).exists()
    ]
    assert not broken
