"""Which terms of a loss were not finite where updates were skipped: counted, and told of."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.types import Metrics
from jaxrl.learners.learner import NONFINITE

logger = logging.getLogger(__name__)

PREFIX = "nonfinite/"
"""Before a metric's name: in how many skipped updates it was not finite. Such counts are summed."""

T = TypeVar("T")
_JOINT = ("total_loss", "grad_norm")


def nonfinite_rows(table: Float[Array, "*U M"], skipped: Bool[Array, "*U"]) -> Float[Array, "*U M"]:
    """1 where a metric of a skipped update is not finite, else 0."""
    return (skipped[..., None] & ~jnp.isfinite(table)).astype(jnp.float32)


def counted(names: Sequence[str], counts: Float[Array, " M"]) -> Metrics:
    """The counts of metrics, each under its name with the prefix."""
    return {PREFIX + name: counts[i] for i, name in enumerate(names) if name != NONFINITE}


def without_counts(metrics: Mapping[str, T]) -> dict[str, T]:
    """The metrics alone."""
    return {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}


def only_counts(metrics: Mapping[str, T]) -> dict[str, T]:
    """The counts alone, by the names of their metrics."""
    return {n.removeprefix(PREFIX): x for n, x in metrics.items() if n.startswith(PREFIX)}


def tell(counts: Mapping[str, float], skipped: int, on_nonfinite: str) -> None:
    """Log which terms were not finite in updates that were skipped, and what to look at.

    Args:
        counts: In how many of them each metric was not finite.
        skipped: Their number.
        on_nonfinite: The setting.
    """
    bad = sorted((name for name, count in counts.items() if count), key=lambda n: -counts[n])
    terms = [name for name in bad if name not in _JOINT and not name.startswith("grad_norm/")]
    gradients = [name.removeprefix("grad_norm/") for name in bad if name.startswith("grad_norm/")]
    if terms:
        what = f"not finite: {_listed(terms)}"
        look = "look at what these divide by or take the logarithm of, at the size of rewards and "
        look += "observations, and at lr"
    elif "total_loss" in bad:
        what = "not finite: total_loss, while every other metric was finite"
        look = "look at the terms of the loss that are no metric, and report them as metrics"
    else:
        where = f" of {_listed(gradients)}" if gradients else ""
        what = f"not finite: the gradient{where}, of a finite loss"
        look = (
            "look at square roots, norms and logarithms at 0, whose gradient is infinite, and at "
        )
        look += "lr" if gradients else "lr; reporting(log_gradients=True) names the tensors"
    logger.warning(
        "Updates that were skipped: %d; %s; %s. on_nonfinite=%r says what follows; this is told once.",
        skipped,
        what,
        look,
        on_nonfinite,
    )


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return ", ".join(shown[:5]) + more
