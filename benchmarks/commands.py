"""Frame of every command: options, results as JSON and Markdown, and the head of the report."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import machine
from jaxrl.bench.markdown import Table, render_document

Results = Mapping[str, Any]
Options = argparse.Namespace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Command `python -m benchmarks.NAME`, which measures in rounds, prints tables and writes them.

    Args:
        name: Name of the module, and stem of the files of results.
        about: Docstring of the module.
        title: Title of the report.
        measure: Function from the options to the results.
        build_tables: Function from the results to the tables of the report.
        names: Options that select names, all of them by default: the known names by option.
        numbers: Options that are whole numbers: default and help by option.
        quick: Largest values of options in a quick run, in addition to two rounds.
        peer: Help of the option `--peer`, which adds a peer; "" without that option.
    """

    name: str
    about: str | None
    title: str
    measure: Callable[[Options], dict[str, Any]]
    build_tables: Callable[[Results], Iterable[Table | None]]
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
    quick: Mapping[str, int] = dataclasses.field(default_factory=dict)
    peer: str = ""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Measure, write `NAME.json` and `NAME.md`, print the latter, and return the exit code."""
        arguments = sys.argv[1:] if argv is None else list(argv)
        options = self.parse(arguments)
        results = start_results(f"benchmarks.{self.name}", arguments, is_quick=options.quick)
        results |= self.measure(options)
        save_results(results, options.out, self.name, self.render)
        return 0

    def parse(self, arguments: Sequence[str]) -> Options:
        """Parse the options; results of a quick or narrowed run go to a temporary folder."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}", description=self.about
        )
        for option, known in self.names.items():
            separator = _choose_separator(known)
            parser.add_argument(
                f"--{option}",
                default=separator.join(known),
                help=f"names, separated by {separator!r} (default: %(default)s)",
            )
        for option, (default, text) in self.numbers.items():
            text = f"{text} (default: %(default)s)"
            parser.add_argument(f"--{option}", type=int, default=default, help=text)
        if self.peer:
            parser.add_argument("--peer", action="store_true", help=self.peer)
        parser.add_argument("--pairs", type=int, default=11, help="rounds (default: %(default)s)")
        parser.add_argument("--quick", action="store_true", help="two short rounds of everything")
        parser.add_argument("--out", type=Path, help="folder for the results")
        options = parser.parse_args(arguments)
        for option, known in self.names.items():
            text = getattr(options, option)
            setattr(options, option, parse_names(parser, f"--{option}", text, known))
        for option in ("pairs", *self.numbers):
            number = getattr(options, option.replace("-", "_"))
            if number < 0:
                parser.error(f"--{option}: {number} is less than 0")
        is_complete = not options.quick and all(
            getattr(options, name) == list(known) for name, known in self.names.items()
        )
        if options.quick:
            for name, most in {**self.quick, "pairs": 2}.items():
                setattr(options, name, min(most, getattr(options, name)))
        options.out = options.out or machine.choose_results_folder(is_complete=is_complete)
        return options

    def render(self, results: Results) -> str:
        """Render the report as Markdown."""
        return render_document(*build_header(results, self.title), *self.build_tables(results))


def parse_names(
    parser: argparse.ArgumentParser, option: str, text: str, known: Sequence[str]
) -> list[str]:
    """Parse separated names; an unknown one ends the process with a message."""
    separator = _choose_separator(known)
    names = [name.strip() for name in text.split(separator) if name.strip()]
    for name in names:
        if name not in known:
            parser.error(f"{option}: {name!r} is not one of {f'{separator} '.join(known)}")
    return names


def _choose_separator(names: Sequence[str]) -> str:
    return ";" if any("," in name for name in names) else ","


def describe_packages(*packages: str) -> dict[str, Any]:
    """Return the versions of a peer that computes in this process, on one device."""
    return {"devices": 1, "versions": {name: version(name) for name in packages}}


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
    results: dict[str, Any], folder: Path, stem: str, render: Callable[[Results], str]
) -> None:
    """Add the load after the run, write the results as JSON and Markdown, and print the latter."""
    results["load"]["after"] = machine.get_load_average()
    text = render(results)
    write_json(folder / f"{stem}.json", results)
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    print(text)


def write_json(path: Path, results: Results) -> None:
    """Write results to a file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def build_header(
    results: Results, title: str, *, is_timed: bool = True
) -> list[str | Table | None]:
    """Build the title, the machine, the date, the command, and the versions of the peers.

    Args:
        results: Results of a run.
        title: Title of the report.
        is_timed: Whether times were measured, so that a busy machine calls for a warning.
    """
    place, load = results["machine"], results["load"]
    setup = (
        f"{place['cpu']}, {place['cores']} cores, {place['memory_gib']} GiB, "
        f"{place['system']}, Python {place['python']}; load average {load['before']} before, "
        f"{load['after']} after; {results['date']}; `{results['command']}`."
    )
    quick = "**Quick run: it shows that everything works; its figures mean nothing.**"
    busy = "**The machine was busy before the run: only the ratios are meaningful.**"
    rows = [
        (name, str(info["devices"]), ", ".join(f"{k} {v}" for k, v in info["versions"].items()))
        for name, info in results.get("peers", {}).items()
    ]
    return [
        f"# {title}",
        setup,
        quick if results["quick"] else None,
        busy if is_timed and load["before"] > 0.5 else None,
        Table(header=("peer", "max. devices", "versions"), rows=rows) if rows else None,
    ]
