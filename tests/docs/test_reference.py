"""The API reference has every public name."""

import importlib
import re
from pathlib import Path

import pytest

import jaxrl
from jaxrl.cli.app import app

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
PACKAGES = (
    "jaxrl",
    "jaxrl.connectors",
    "jaxrl.envs",
    "jaxrl.episodes",
    "jaxrl.external",
    "jaxrl.loggers",
    "jaxrl.policy",
    "jaxrl.testing",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_stands_in_the_reference(package: str) -> None:
    names = set(importlib.import_module(package).__all__) - {"__version__"}
    if package == "jaxrl":
        names |= set(jaxrl.TRAINABLES)
    missing = sorted(name for name in names if not re.search(rf"\b{name}\b", REFERENCE))
    assert not missing


def test_every_command_is_on_the_page_of_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "command_line.md").read_text()
    names = [group.name for group in app.registered_groups]
    names += [
        command.name or command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
        if command.callback is not None
    ]
    assert len(names) > 15
    assert not [name for name in names if not re.search(rf"^\| `jaxrl {name}[ `]", page, re.M)]


def test_every_entry_of_the_reference_exists() -> None:
    entries = re.findall(r"^::: ([\w.]+)", REFERENCE, re.MULTILINE)
    assert len(entries) == len(set(entries))
    for entry in entries:
        try:
            importlib.import_module(entry)
        except ImportError:
            module, _, name = entry.rpartition(".")
            assert hasattr(importlib.import_module(module), name), entry


def test_every_member_of_the_reference_exists() -> None:
    found = re.findall(
        r"^::: ([\w.]+)\n    options:\n      members: \[([^]]+)\]", REFERENCE, re.MULTILINE
    )
    assert len(found) > 10
    for entry, members in found:
        module = importlib.import_module(entry)
        assert [name for name in members.split(", ") if not hasattr(module, name)] == [], entry
