"""What is told of a run, from its outcome."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Outcome: TypeAlias = Mapping[str, Any]
"""What `Job.outcome` gives: `curve`, `evaluated`, `seconds`, `compile_s`, `memory_gib`, ..."""


def final_return(outcome: Outcome) -> float:
    """The mean return of the evaluation at the end, by the most likely actions."""
    return float(outcome["evaluated"])


def training_return(outcome: Outcome) -> float | None:
    """The last mean return of training episodes; None if none has ended."""
    returns = outcome["curve"]["returns"]
    return returns[-1] if returns else None


def at_threshold(outcome: Outcome, threshold: float | None, of: str) -> float | None:
    """The steps or seconds after which the training return first was at a threshold."""
    curve = outcome["curve"]
    for value, reached in zip(curve["returns"], curve[of], strict=True):
        if threshold is not None and value >= threshold:
            return reached
    return None


def steps_per_second(outcome: Outcome) -> float:
    """Of all runs that shared the process at once, without compiling."""
    return outcome["num_lanes"] * outcome["env_steps"] / outcome["seconds"]


METRICS: Mapping[str, str] = {
    "return": "return (IQM)",
    "training_return": "training return (IQM)",
    "threshold": "learned (threshold)",
    "reference": "reference",
    "steps_to_threshold": "steps to threshold",
    "seconds_to_threshold": "seconds to threshold",
    "seconds": "seconds",
    "steps_per_second": "steps/s",
    "compile_s": "seconds to compile",
    "memory_gib": "memory GiB",
}
"""The names that a suite chooses from, and the headings of their columns."""

FIGURES: Mapping[str, Callable[[Outcome], float]] = {
    "seconds": lambda outcome: float(outcome["seconds"]),
    "steps_per_second": steps_per_second,
    "compile_s": lambda outcome: float(outcome["compile_s"]),
    "memory_gib": lambda outcome: float(outcome["memory_gib"]),
}
"""Those that are the same for every seed of a process."""


def thinned(values: Sequence[Any], number: int) -> list[Any]:
    """At most so many of the values, evenly, and the last of them."""
    every = -(-len(values) // number)
    return [*values[::-1][::every]][::-1] if every > 1 else list(values)
