"""`jaxrl diff` and `jaxrl league`: two runs compared to the bit, and the players of a league."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxrl import metrics
from jaxrl.cli import terminal
from jaxrl.cli.records import RunRecord, find_run, load_record, resolve_checkpoint
from jaxrl.config.serialize import (
    DATACLASS_KEY,
    FLOAT_KEY,
    IMPORT_KEY,
    RECORDING_SETTINGS,
    TUPLE_KEY,
    unify_numbers,
)
from jaxrl.errors import ConfigError, escape
from jaxrl.runs import results
from jaxrl.runs.league_table import GameTable, read_league
from jaxrl.runs.manifest import ITERATION

ROUNDING, SMALL_ROUNDING = 1e-3, 1e-6
"""Relative and absolute difference that rounding may make in a mean over several train batches.

The clock decides how many train batches one call of the compiled program covers. The state does not
depend on it, but sums over the train batches of an iteration are rounded after each call.
"""
MISSING = "-"
"""Text for a value that only the other run has."""
UNKNOWN = "not recorded"
GIT = "git"
HASH_LENGTH = 12
"""Number of digits of a hash that are shown."""
MAX_SHOWN = 8
"""Maximum number of differing values of an iteration or checkpoint that are shown."""
PICTURES = (".png", ".svg", ".pdf")
"""Kinds of images of a league."""
_ENCODED_KEYS = frozenset((IMPORT_KEY, TUPLE_KEY, FLOAT_KEY, DATACLASS_KEY))
_LABELS = {
    "versions": "{} version",
    "devices": "devices: {}",
    "jax_options": "{}",
    "compile_options": "compile option {}",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Value that differs between two runs, as text."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.name} is {self.first} and {self.second}"


def compare_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Compare two runs' `params.json`, without settings of how a run is recorded."""
    described = [
        {"algorithm": params.get("algo"), "algo_class": params.get("algo_class")}
        | _flatten_settings(
            unify_numbers(
                {n: v for n, v in params["settings"].items() if n not in RECORDING_SETTINGS}
            )
        )
        for params in (first, second)
    ]
    return _compare(*described, missing=MISSING)


def _flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries to names such as `model_config.fcnet_hiddens`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value and not _ENCODED_KEYS & value.keys():
            flat.update(_flatten_settings(cast(dict[str, Any], value), f"{prefix}{name}."))
        else:
            flat[prefix + name] = _decode_for_display(value)
    return flat


def _decode_for_display(value: object) -> object:
    """Replace encoded imports, tuples and infinities by what they stand for."""
    if isinstance(value, dict):
        encoded = cast(dict[str, object], value)
        for key in (IMPORT_KEY, TUPLE_KEY, FLOAT_KEY):
            if key in encoded:
                return encoded[key]
        return encoded
    return value


def compare_sessions(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    """Compare two manifests, session by session."""
    found: list[Difference] = []
    for number, (one, other) in enumerate(itertools.zip_longest(first, second)):
        prefix = "" if number == 0 else f"session {number + 1}: "
        missing = UNKNOWN if number == 0 else MISSING
        described = [
            _flatten_session(session or {}, is_first=number == 0) for session in (one, other)
        ]
        if number and (one is None or other is None):  # one row says enough
            described = [dict(list(entries.items())[:1]) for entries in described]
        found += [
            dataclasses.replace(difference, name=prefix + difference.name)
            for difference in _compare(*described, missing=missing)
        ]
    return found


def _flatten_session(session: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    if not is_first and session:
        flat["resumed after iteration"] = session[ITERATION]
        if "config_sha256" in session:
            flat["hash of the config"] = session["config_sha256"]
    if "xla_flags" in session:
        flat["XLA_FLAGS"] = session["xla_flags"]
    for group, label in _LABELS.items():
        entries = unify_numbers(dict(session.get(group, {})))
        flat.update({label.format(name): value for name, value in entries.items()})
    if GIT in session:
        flat[GIT] = _describe_git(session[GIT])
    return flat


def _describe_git(state: Mapping[str, Any] | None) -> str:
    """Describe the `git` of a session in one line."""
    if state is None:
        return "no repository"
    commit, digest = (str(state.get(name))[:HASH_LENGTH] for name in ("commit", "diff_sha256"))
    if state.get("dirty") is None:
        return f"{commit}, changes unknown"
    return f"{commit}, changes {digest}" if state["dirty"] else commit


def _compare(
    first: Mapping[str, Any], second: Mapping[str, Any], *, missing: str
) -> list[Difference]:
    """Compare two dictionaries, in the order of their names; None and absent are not the same."""
    return [
        Difference(
            name=escape(name),
            first=format_value(first[name]) if name in first else missing,
            second=format_value(second[name]) if name in second else missing,
        )
        for name in dict.fromkeys((*first, *second))
        if (name in first) != (name in second) or not is_equal(first.get(name), second.get(name))
    ]


def _is_rounding(first: object, second: object) -> bool:
    """Return whether two values differ at most by the rounding of a mean of many float32."""
    if not isinstance(first, float) or not isinstance(second, float):
        return False
    return math.isclose(first, second, rel_tol=ROUNDING, abs_tol=SMALL_ROUNDING)


def is_equal(first: object, second: object) -> bool:
    """Return whether two JSON values are equal to the bit; 0.0 and -0.0 are not."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def format_value(value: object) -> str:
    """Format a JSON value with all its digits."""
    return escape(value) or '""' if isinstance(value, str) else json.dumps(value)


# --- results ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultComparison:
    """Outcome of comparing the results of two runs.

    Args:
        num_iterations: Number of iterations that both runs have.
        num_values: Number of values compared.
        num_rounded: Number of values among them that are equal up to rounding; see `ROUNDING`.
        iteration: First iteration whose results differ; None if none do.
        differences: Values of that iteration that differ, in the order of the result.
        only_first: Number of iterations that only the first run has.
        only_second: Number of iterations that only the second run has.
    """

    num_iterations: int
    num_values: int
    num_rounded: int
    iteration: int | None
    differences: list[Difference]
    only_first: int
    only_second: int


def compare_results(
    first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]]
) -> ResultComparison:
    """Compare the results of two runs at equal iterations, up to the first that differ."""
    num_iterations, num_values, num_rounded, only = 0, 0, 0, [0, 0]
    iteration: int | None = None
    differences: list[Difference] = []
    for one, other in _align(first, second):
        if one is None or other is None:
            only[one is None] += 1
            continue
        num_iterations += 1
        if iteration is not None:
            continue
        num_values += len(select_repeatable(one))
        differences, rounded = compare_result(one, other)
        num_rounded += rounded
        if differences:
            iteration = get_iteration(one)
    return ResultComparison(
        num_iterations=num_iterations,
        num_values=num_values,
        num_rounded=num_rounded,
        iteration=iteration,
        differences=differences,
        only_first=only[0],
        only_second=only[1],
    )


def compare_result(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[list[Difference], int]:
    """Compare all values of two results but those of times, places and the process.

    Returns:
        Values that differ, and the number of others that are equal only up to rounding.
    """
    one, other = select_repeatable(first), select_repeatable(second)
    found = _compare(one, other, missing=MISSING)
    if not (_has_several_batches(one) and _has_several_batches(other)):
        return found, 0
    kept = [
        value for value in found if not _is_rounding(one.get(value.name), other.get(value.name))
    ]
    return kept, len(found) - len(kept)


def describe_values(num_values: int, num_rounded: int, num_iterations: int) -> str:
    """Describe how many values were found equal."""
    text = f"{num_values:,} values of {num_iterations:,} iterations"
    if not num_rounded:
        return text
    return f"{text} ({num_rounded:,} means over several train batches only up to rounding)"


def _has_several_batches(result: Mapping[str, Any]) -> bool:
    return int(results.get_number(result, "num_training_step_calls_per_iteration") or 0) > 1


def select_repeatable(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a result by path that an equal run repeats."""
    flat = metrics.flatten(result)
    return {
        path: value
        for path, value in flat.items()
        if results.UNREPEATABLE_KEYS.isdisjoint(path.split("/"))
    }


def _align(
    first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    """Yield the results of both by iteration; None where a run has none."""
    ones, others = iter(first), iter(second)
    one, other = next(ones, None), next(others, None)
    while one is not None or other is not None:
        if other is None or (one is not None and get_iteration(one) < get_iteration(other)):
            yield one, None
            one = next(ones, None)
        elif one is None or get_iteration(other) < get_iteration(one):
            yield None, other
            other = next(others, None)
        else:
            yield one, other
            one, other = next(ones, None), next(others, None)


def get_iteration(result: Mapping[str, Any]) -> int:
    """Return the iteration of a recorded result; 0 if it has none."""
    return int(results.get_number(result, results.ITERATION) or 0)


# --- jaxrl diff ---


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
    console = terminal.open_console()
    if not any(sections.values()):
        compared = "settings and manifests" if a.sessions else "settings"
        console.print(_describe_equality(compared, outcome), soft_wrap=True, highlight=False)
        return 0
    for letter, run in (("A", a), ("B", b)):
        console.print(f"{letter}  {run.path}", soft_wrap=True, highlight=False, markup=False)
    print_table(console, make_table(sections, ("A", "B")))
    return 1


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
    for line in terminal.format_table(table, console):
        console.file.write(f"{line}\n")


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


# --- jaxrl league ---


def show_league(run: str, picture: Path | None) -> None:
    """Print the shares that players won and their ratings, and draw them if a file is given."""
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise ConfigError(f"--picture {picture} must end with one of {', '.join(PICTURES)}.")
    table = read_league(resolve_checkpoint(find_run(run)))
    print_table(terminal.open_console(), _make_league_table(table))
    if picture is not None:
        from jaxrl.loggers.plots import draw_league

        draw_league(table, picture)


def _make_league_table(table: GameTable) -> Table:
    """Return a table with a row for each player: Elo, games, and the share won of each opponent.

    Opponents are named by the number of their row.
    """
    numbers = (str(i + 1) for i in range(len(table.opponents)))
    shown = Table("", "player", "Elo", "games", *numbers, box=None, pad_edge=False)
    elo, games, shares = table.compute_elo(), table.count_games(), table.compute_shares()
    for i, name in enumerate(table.players):
        cells = (MISSING if np.isnan(share) else f"{share:.2f}" for share in shares[i])
        shown.add_row(str(i + 1), Text(name), f"{elo[name]:.0f}", f"{games[i].sum():,}", *cells)
    return shown
