"""Counts of non-finite loss terms in skipped updates, and the warning about them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.types import Metrics
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES

if TYPE_CHECKING:
    from jaxrl.config.settings.run import FaultToleranceSettings
    from jaxrl.training.report import IterationTotals

logger = logging.getLogger(__name__)

NONFINITE_PREFIX = "nonfinite/"
"""Prefix of a metric's name for the number of skipped updates in which it was not finite.

Such counts are summed instead of averaged.
"""

T = TypeVar("T")
_JOINT = ("total_loss", "grad_norm")


def mask_nonfinite(table: Float[Array, "*U M"], skipped: Bool[Array, "*U"]) -> Float[Array, "*U M"]:
    """Return 1 where a metric of a skipped update is not finite, else 0."""
    return (skipped[..., None] & ~jnp.isfinite(table)).astype(jnp.float32)


def prefix_counts(names: Sequence[str], counts: Float[Array, " M"]) -> Metrics:
    """Return the counts as metrics, each under its metric's name with the prefix."""
    return {
        NONFINITE_PREFIX + name: counts[i]
        for i, name in enumerate(names)
        if name != NUM_NONFINITE_UPDATES
    }


def drop_counts(metrics: Mapping[str, T]) -> dict[str, T]:
    """Return the metrics without their non-finite counts."""
    return {name: value for name, value in metrics.items() if not name.startswith(NONFINITE_PREFIX)}


def select_counts(metrics: Mapping[str, T]) -> dict[str, T]:
    """Return the non-finite counts alone, by the names of their metrics."""
    return {
        n.removeprefix(NONFINITE_PREFIX): x
        for n, x in metrics.items()
        if n.startswith(NONFINITE_PREFIX)
    }


class NonfiniteMonitor:
    """Reaction of a run to updates that were skipped because they were not finite."""

    def __init__(self, settings: "FaultToleranceSettings") -> None:
        self._settings = settings
        self._has_warned = False

    def warn_once(self, totals: "IterationTotals") -> None:
        """Log the first time which terms were not finite, regardless of the configured loggers."""
        counts = totals.nonfinite_counts
        if not self._has_warned and any(counts.values()):
            self._has_warned = True
            skipped = int(totals.fetch_report().latest.num_nonfinite)
            warn_nonfinite(counts, skipped, self._settings.on_nonfinite)

    def describe_divergence(self, totals: "IterationTotals") -> str | None:
        """Return why the run has to end; None if it may continue."""
        if self._settings.on_nonfinite != "raise" or not totals.train_batches:
            return None
        tolerance = self._settings.nonfinite_updates_tolerance
        num_consecutive = int(totals.fetch_report().latest.in_a_row)
        if num_consecutive < tolerance:
            return None
        return (
            f"{num_consecutive} updates in a row had a non-finite loss or gradient "
            f"(nonfinite_updates_tolerance={tolerance})"
        )


def warn_nonfinite(counts: Mapping[str, float], num_skipped: int, on_nonfinite: str) -> None:
    """Log which terms were not finite in skipped updates, and likely causes.

    Args:
        counts: Number of skipped updates in which each metric was not finite.
        num_skipped: Number of skipped updates.
        on_nonfinite: Value of the setting.
    """
    bad = sorted((name for name, count in counts.items() if count), key=lambda n: -counts[n])
    terms = [name for name in bad if name not in _JOINT and not name.startswith("grad_norm/")]
    gradients = [name.removeprefix("grad_norm/") for name in bad if name.startswith("grad_norm/")]
    if terms:
        what = f"not finite: {_join_names(terms)}"
        look = "check their divisors and the arguments of logarithms, the scale of rewards and "
        look += "observations, and lr"
    elif "total_loss" in bad:
        what = "not finite: total_loss, while every other metric was finite"
        look = "check the terms of the loss that are not metrics, and report them as metrics"
    else:
        where = f" of {_join_names(gradients)}" if gradients else ""
        what = f"not finite: the gradient{where}, of a finite loss"
        look = "check square roots, norms and logarithms at 0, whose gradient is infinite, and "
        look += "lr" if gradients else "lr; reporting(log_gradients=True) names the tensors"
    logger.warning(
        "Updates that were skipped: %d; %s; %s. This is logged once; on_nonfinite=%r decides how "
        "the run continues.",
        num_skipped,
        what,
        look,
        on_nonfinite,
    )


def _join_names(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return ", ".join(shown[:5]) + more
