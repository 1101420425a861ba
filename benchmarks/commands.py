"""Options that are names, and results as JSON and Markdown, shared by all commands."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine


def parse_names(
    parser: argparse.ArgumentParser, option: str, text: str, known: Sequence[str]
) -> list[str]:
    """Parse names separated by commas; an unknown one ends the process with a message."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            parser.error(f"{option}: {name!r} is not one of {', '.join(known)}")
    return names


def add_round_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command whose measured functions take turns: rounds, speed, folder."""
    parser.add_argument("--pairs", type=int, default=11, help="rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two short rounds of everything")
    parser.add_argument("--out", type=Path, help="folder for the results")


def add_steps_option(parser: argparse.ArgumentParser, default: int) -> None:
    """Add the option of the environment steps of a measurement."""
    parser.add_argument(
        "--steps",
        type=int,
        default=default,
        help="environment steps of a measurement (default: %(default)s)",
    )


def start_results(module: str, arguments: Sequence[str], *, is_quick: bool) -> dict[str, Any]:
    """Return the head of a command's results: command, date, machine, and load.

    Args:
        module: Name of the command's module.
        arguments: Arguments of the command.
        is_quick: Whether the run only shows that everything works.
    """
    return {
        "command": shlex.join(["python", "-m", module, *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": is_quick,
        "machine": machine.describe(),
        "load": {"before": machine.get_load_average()},
    }


def save_results(
    results: dict[str, Any],
    folder: Path,
    stem: str,
    render: Callable[[Mapping[str, Any]], str],
) -> None:
    """Add the load after the run, write the results as JSON and Markdown, and print the latter."""
    results["load"]["after"] = machine.get_load_average()
    text = render(results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    print(text)
