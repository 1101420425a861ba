"""Metrics of a run, computed from its outcome."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Outcome: TypeAlias = Mapping[str, Any]
"""Outcome of a run: `curve`, `evaluated`, `seconds`, `compile_s`, `memory_gib`, ..."""


def get_final_return(outcome: Outcome) -> float:
    """Return the mean return of the final evaluation, which acts greedily."""
    return float(outcome["evaluated"])


def get_training_return(outcome: Outcome) -> float | None:
    """Return the last mean return of training episodes; None if none has ended."""
    returns = outcome["curve"]["returns"]
    return returns[-1] if returns else None


def find_threshold_crossing(outcome: Outcome, threshold: float | None, unit: str) -> float | None:
    """Return the steps or seconds at which the training return first reached a threshold."""
    curve = outcome["curve"]
    for value, reached in zip(curve["returns"], curve[unit], strict=True):
        if threshold is not None and value >= threshold:
            return reached
    return None


def compute_steps_per_second(outcome: Outcome) -> float:
    """Compute the throughput of all runs that share the process, excluding compilation."""
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
"""Column headings of the metrics that a suite can select, by name."""

PROCESS_METRICS: Mapping[str, Callable[[Outcome], float]] = {
    "seconds": lambda outcome: float(outcome["seconds"]),
    "steps_per_second": compute_steps_per_second,
    "compile_s": lambda outcome: float(outcome["compile_s"]),
    "memory_gib": lambda outcome: float(outcome["memory_gib"]),
}
"""Metrics that are the same for every seed of a process."""


def thin(values: Sequence[Any], number: int) -> list[Any]:
    """Return at most `number` evenly spaced values, including the last one."""
    stride = -(-len(values) // number)
    return [*values[::-1][::stride]][::-1] if stride > 1 else list(values)
