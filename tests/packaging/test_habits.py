"""Agreement of a release's files with the package."""

import re
import tomllib
from pathlib import Path

import yaml

import jaxrl

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == jaxrl.__version__


def test_the_changelog_is_sectioned() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert any(version.split(" ")[0] == jaxrl.__version__ for version in versions)
    sections = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_workflow_runs_both_commands_on_every_supported_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    commands = jobs["commands"]
    supported = [
        item.rsplit(" ", 1)[1]
        for item in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", item)
    ]
    assert commands["strategy"]["matrix"]["python"] == supported
    steps = [step.get("run") for step in commands["steps"]]
    assert "make train" in steps
    assert "make test" in steps
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in jobs.values():
        for step in job["steps"]:
            words = step.get("run", "").split()
            assert not words or words[0] != "make" or words[1] in {*targets, ".venv/.dev"}
