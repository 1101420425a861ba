"""`jaxrl diff`: differences between two runs, as a table."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxrl.cli.comparison import (
    Difference,
    ResultComparison,
    compare_results,
    compare_sessions,
    compare_settings,
    describe_values,
)
from jaxrl.cli.records import RunRecord, load_record

FILE_WIDTH = 160
"""Width of tables in a file or pipe, in characters."""
MAX_SHOWN = 8
"""Maximum number of differing values of an iteration or checkpoint that are shown."""


def diff(first: str, second: str) -> int:
    """Print the differences between two runs.

    Returns:
        Exit code: 0 if there are none, else 1.
    """
    a, b = load_record(first), load_record(second)
    settings = compare_settings(a.params, b.params)
    manifests = compare_sessions(a.sessions, b.sessions)
    outcome = compare_results(a.read_results(), b.read_results())
    sections = {"settings": settings, "manifest": manifests, **_group_results(a, b, outcome)}
    console = open_console()
    if not any(sections.values()):
        compared = "settings and manifests" if a.sessions else "settings"
        console.print(_describe_equality(compared, outcome), soft_wrap=True, highlight=False)
        return 0
    for letter, run in (("A", a), ("B", b)):
        console.print(f"{letter}  {run.path}", soft_wrap=True, highlight=False, markup=False)
    print_table(console, make_table(sections, ("A", "B")))
    return 1


def open_console() -> Console:
    """Return a console for tables, wide enough for long names if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def make_table(sections: Mapping[str, Sequence[Difference]], names: tuple[str, str]) -> Table:
    """Return a table of differences.

    Args:
        sections: Differences by the title of their section; empty sections are left out.
        names: Names of the two runs.
    """
    table = Table("", *names, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for title, differences in sections.items():
        if differences:
            table.add_row(Text(title, style="bold"))
        for difference in differences:
            cells = (f"  {difference.name}", difference.first, difference.second)
            table.add_row(*map(Text, cells))
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table without spaces at the ends of its lines."""
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _group_results(
    a: RunRecord, b: RunRecord, outcome: ResultComparison
) -> dict[str, list[Difference]]:
    """Return the sections on the first results that differ, and on the number of iterations."""
    sections: dict[str, list[Difference]] = {}
    if outcome.iteration is not None:
        title = f"results, iteration {outcome.iteration}"
        sections[title] = shorten(outcome.differences)
    if outcome.only_first or outcome.only_second or a.has_results != b.has_results:
        numbers = Difference(
            name="number",
            first=_count(a, outcome.num_iterations + outcome.only_first),
            second=_count(b, outcome.num_iterations + outcome.only_second),
        )
        sections["iterations"] = [numbers]
    return sections


def shorten(differences: Sequence[Difference]) -> list[Difference]:
    """Return the first differences, and an entry that counts the others."""
    more = len(differences) - MAX_SHOWN
    if more <= 0:
        return list(differences)
    return [
        *differences[:MAX_SHOWN],
        Difference(name=f"and {more} others", first="...", second="..."),
    ]


def _count(run: RunRecord, number: int) -> str:
    return str(number) if run.has_results else "not recorded"


def _describe_equality(compared: str, outcome: ResultComparison) -> str:
    if not outcome.num_iterations:
        return f"equal: {compared}; no results are recorded"
    values = describe_values(outcome.num_values, outcome.num_rounded, outcome.num_iterations)
    return f"equal: {compared}, and {values}"
