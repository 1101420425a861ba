"""Nothing of one machine, one package host or one working day is in the repository."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = [
    ".ci",
    "jaxrl",
    "envs",
    "configs",
    "benchmarks",
    "tests",
    "docs",
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "constraints.txt",
    "mkdocs.yml",
    ".pre-commit-config.yaml",
    ".editorconfig",
    ".gitignore",
]
SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".cfg", ".sh", ".csv"}

# Written in two halves, so that this file does not contain them.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+|opt|mnt|scratch)"
    r"/\w",
    "a package host": r"files\.python"
    r"hosted|pypi"
    r"\.org/simple|--(?:extra-)?index"
    r"-url",
    "a direct download": r"@\s*(?:git\+)?https" + r"?://|^https" + r"?://",
    "work left undone": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a conflict": r"^(?:<{7}|>{7}) ",
    "a swallowed error": r"except (?:Base)?Exception:\s*" + r"pass",
}


def texts() -> Iterator[Path]:
    for name in TOP:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
        for file in files:
            is_ours = not {"__pycache__", "results"} & set(file.parts) and ".venv" not in str(file)
            if file.is_file() and is_ours and file.suffix in SUFFIXES:
                yield file


@pytest.mark.parametrize("what", FORBIDDEN)
def test_text_is_free_of(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match.group()!r}"
        for path in texts()
        if (match := pattern.search(path.read_text()))
    ]
    assert not found, f"{what}: {found}"


@pytest.mark.parametrize(
    "folder", ["core", "ops", "distributions", "modules", "learners", "algorithms"]
)
def test_pure_code_draws_with_jax_only(folder: str) -> None:
    pattern = re.compile(r"\bnp\.random\b|\bnumpy\.random\b|\bprint\(|\bopen\(")
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "jaxrl" / folder).rglob("*.py")
        if path.name != "seeds.py" and pattern.search(path.read_text())  # entropy for hosts
    ]
    assert not found


def test_patterns_find_what_they_are_for() -> None:
    examples = {
        "a path of one machine": "see /root" + "/x",
        "a package host": "https://files.python" + "hosted.org",
        "a direct download": "jax @ https" + "://x",
        "work left undone": "# TO" + "DO: later",
        "a conflict": "<" * 7 + " HEAD",
        "a swallowed error": "except Exception:\n    " + "pass",
    }
    assert examples.keys() == FORBIDDEN.keys()
    for what, text in examples.items():
        assert re.search(FORBIDDEN[what], text, re.MULTILINE), what
