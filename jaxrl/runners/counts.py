"""What runners on the host have counted, as a checkpoint has it: checked before it is believed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from jaxrl.runners.metrics_logger import problem_of_state
from jaxrl.runners.step_ledger import Ledger


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a value of JSON must be, in words and as a test."""

    wants: str
    holds: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_count, cast(list[Any], values)))


def _are_named_counts(values: Any) -> bool:
    return isinstance(values, dict) and all(map(_is_count, cast(dict[Any, Any], values).values()))


COUNT = Kind("a whole number from 0 to 2**63 - 1", _is_count)
NAMED_COUNTS = Kind("a mapping of names to whole numbers of at least 0", _are_named_counts)
MAPPING = Kind("a mapping", lambda value: isinstance(value, dict))

WEIGHTS_VERSION = "weights_version"
"""The name of the version of the weights that are acted with, where they outlast an iteration."""

_COUNTS: Mapping[str, Kind] = {
    "num_sub_env_restarts": COUNT,
    "num_env_runner_restarts": COUNT,
    "env_steps": Kind("a list of whole numbers of at least 0", _are_counts),
    "ledger": MAPPING,
    "logged": MAPPING,
    WEIGHTS_VERSION: COUNT,
}
_LEDGER: Mapping[str, Kind] = {
    **dict.fromkeys(("received", "trained", "queued", "maybe_lost"), COUNT),
    "discarded": NAMED_COUNTS,
}


def problem_of(counts: Mapping[str, Any], prefix: str) -> str | None:
    """What is wrong with what `Loop.get_counts` is said to have returned; None if nothing is.

    Args:
        counts: From a checkpoint.
        prefix: Before the names, as in "host.runner_counts.".
    """
    ledger = counts.get("ledger", {})
    problem = mismatch(counts, _COUNTS, prefix) or mismatch(ledger, _LEDGER, f"{prefix}ledger.")
    if problem is not None:
        return problem
    try:
        Ledger.from_state(ledger)
    except ValueError as error:
        return f"{prefix}ledger is none: {error}".removesuffix(".")
    problem = problem_of_state(counts.get("logged", {}))
    return None if problem is None else f"{prefix}logged {problem}"


def mismatch(values: Mapping[str, Any], kinds: Mapping[str, Kind], prefix: str) -> str | None:
    """The first of the values that is of another kind, or of no name that is known; None without."""
    for name, value in values.items():
        if name not in kinds:
            return f"{prefix}{name} has no place here"
        if not kinds[name].holds(value):
            return f"{prefix}{name} must be {kinds[name].wants}, got {str(value)[:80]!r}"
    return None
