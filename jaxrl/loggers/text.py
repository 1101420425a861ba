"""Formatting of numbers, durations and results as short text."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from jaxrl.metrics import lookup
from jaxrl.runs import results

_BARS = "▁▂▃▄▅▆▇█"
_SHORT_NAMES = {
    "mean_kl_loss": "kl",
    "curr_lr": "lr",
    "default_optimizer_learning_rate": "lr",
    "vf_explained_var": "explained var",
}
_LEARNER_STATS = (
    "policy_loss",
    "vf_loss",
    "total_loss",
    "mean_kl_loss",
    "entropy",
    "curr_lr",
    "default_optimizer_learning_rate",
    "grad_norm",
    "vf_explained_var",
)


def format_number(value: float) -> str:
    """Format a number with up to four digits: `1,234,567`, `123.4`, `0.0312`, `3e-05`, `nan`."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e3:
        return f"{value:.3g}" if abs(value) >= 1e15 else f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def format_rate(value: float) -> str:
    """Format a rate: `812`, `45.1k`, `3.21M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """Format a duration: `3.2 s`, `1:05`, `2:03:04`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_sparkline(values: Sequence[float], width: int = 30) -> str:
    """Format values as bars of eight heights, averaged down to `width` characters."""
    if not values:
        return ""
    parts = min(width, len(values))
    edges = [round(i * len(values) / parts) for i in range(parts + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def learner_stats(result: results.Result) -> Iterator[tuple[str, float]]:
    """Yield the well-known learner statistics of each module, under short names."""
    learners = lookup(result, "learners")
    if not isinstance(learners, Mapping):
        return
    modules = [name for name, stats in learners.items() if isinstance(stats, Mapping)]
    for module in modules:
        prefix = "" if len(modules) == 1 else f"{module} "
        stats = learners[module]
        losses = [name for name in stats if name.endswith("_loss") and name not in _LEARNER_STATS]
        for name in (*losses, *_LEARNER_STATS):
            value = results.to_plain(stats.get(name))
            if isinstance(value, int | float):  # may be non-finite
                yield prefix + _SHORT_NAMES.get(name, name.replace("_", " ")), value


_FAULT_COUNTS = frozenset(
    (
        "num_nonfinite_updates",
        "num_rollbacks",
        "num_nonfinite_env_steps",
        "num_env_runner_restarts",
        "num_sub_env_restarts",
        "num_env_steps_maybe_lost_lifetime",
    )
)


def fault_counts(result: results.Result) -> Iterator[tuple[str, float]]:
    """Yield the nonzero fault counts under `fault_tolerance`, under short names."""
    counts = lookup(result, "fault_tolerance")
    if isinstance(counts, Mapping):
        for name in counts:
            value = results.get_number(counts, name)
            if value and name in _FAULT_COUNTS:
                yield name.removeprefix("num_").replace("_", " "), value


def format_returns(stats: Mapping[str, object]) -> str | None:
    """Format the returns of an `env_runners` dictionary: `123.4 (20 to 500)`; None without any."""
    mean = results.get_number(stats, "episode_return_mean")
    if mean is None:
        return None
    low, high = (results.get_number(stats, f"episode_return_{end}") for end in ("min", "max"))
    band = (
        "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"
    )
    return format_number(mean) + band


def format_stage(result: results.Result) -> str:
    """Format the stage of a curriculum as in the result: `stage 2`; empty without stages."""
    stage = results.get_number(result, "curriculum/stage")
    return "" if stage is None else f"stage {format_number(stage)}"


def format_line(result: results.Result, steps_per_s: float | None = None) -> str:
    """Format the result of an iteration as one line for logs."""
    parts = [f"iteration {format_number(results.get_number(result, results.ITERATION) or 0)}"]
    is_offline = results.is_offline(result)
    unit = "rows" if is_offline else "steps"
    parts.append(f"{unit} {format_number(results.get_steps(result))}")
    stage = format_stage(result)
    if stage:
        parts.append(stage)
    stats = lookup(result, "env_runners")
    band = format_returns(stats) if isinstance(stats, Mapping) else None
    if not is_offline:
        parts.append(f"return {band}" if band else "no episode has ended yet")
    length = results.get_number(result, results.LEN_MEAN)
    if length is not None:
        parts.append(f"length {format_number(length)}")
    parts += [f"{name} {format_number(value)}" for name, value in learner_stats(result)]
    if steps_per_s:
        parts.append(f"{format_rate(steps_per_s)} {unit}/s")
    seconds = results.get_number(result, results.TIME_TOTAL)
    if seconds is not None:
        parts.append(format_duration(seconds))
    parts += [f"{name.upper()} {format_number(value)}" for name, value in fault_counts(result)]
    evaluated = format_returns(results.get_new_evaluation(result))
    if evaluated:
        parts.append(f"evaluated return {evaluated}")
    return "  ".join(parts)
