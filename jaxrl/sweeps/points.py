"""Points of a sweep: combinations of values, each with statistics over its lanes."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.errors import ConfigError
from jaxrl.metrics import get_score
from jaxrl.sweeps.statistics import UNDECIDED, Interval, estimate_iqm


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One combination of swept values with the scores of all its seeds.

    Args:
        number: Position of the point in the sweep.
        values: Values of the swept settings.
        lanes: Indices of the point's lanes.
        scores: Scores of the lanes that have one.
        score: Interquartile mean of the scores, rliable's (Agarwal et al. 2021); NaN without any.
        interval: Its 95 % interval over the lanes; NaN for less than three of them.
    """

    number: int
    values: Mapping[str, Any]
    lanes: tuple[int, ...]
    scores: tuple[float, ...]
    score: float
    interval: tuple[float, float]

    @property
    def estimate(self) -> Interval:
        """Return the score with its interval, which decides between points."""
        low, high = self.interval
        return Interval(value=self.score, low=low, high=high, count=len(self.scores))

    @staticmethod
    def from_scores(
        number: int, values: Mapping[str, Any], lanes: tuple[int, ...], scores: Sequence[float]
    ) -> "SweepPoint":
        """Return the point with the statistics of its scores."""
        found = estimate_iqm(scores) if scores else None
        return SweepPoint(
            number=number,
            values=values,
            lanes=lanes,
            scores=tuple(scores),
            score=found.value if found else math.nan,
            interval=(found.low, found.high) if found else (math.nan, math.nan),
        )


def group_points(
    lanes: Sequence[tuple[int, Mapping[str, Any]]],
    results: Mapping[int, Mapping[str, Any]],
    metric: str,
    mode: str = "max",
) -> list[SweepPoint]:
    """Group lanes into points, best first; points without a score are last.

    Args:
        lanes: Number and values of the point of each lane; lanes of a point are adjacent.
        results: Results of the lanes that have a score, by index.
        metric: Path of the score in a result.
        mode: "max" or "min", whether a high or a low score is better.
    """
    points: list[SweepPoint] = []
    for number, members in itertools.groupby(range(len(lanes)), lambda index: lanes[index][0]):
        indices = tuple(members)
        values = [get_score(results[index], metric) for index in indices if index in results]
        scores = [value for value in values if value is not None]
        points.append(SweepPoint.from_scores(number, lanes[indices[0]][1], indices, scores))
    sign = 1.0 if mode == "max" else -1.0
    return sorted(points, key=lambda point: (math.isnan(point.score), -sign * point.score))


def judge_first(points: Sequence[SweepPoint]) -> str:
    """Say whether the first point's interval lies beside all others; "" if no other has a score."""
    estimates = [point.estimate for point in points if point.scores]
    if len(estimates) < 2:
        return ""
    verdict = estimates[0].compare_to_all(estimates[1:])
    decided = {side: f"{side} all others" for side in ("above", "below")}
    return {**decided, UNDECIDED: f"{UNDECIDED}: the intervals overlap"}.get(verdict, verdict)


def check_mode(mode: str) -> None:
    """Raise if a mode is neither "max" nor "min"."""
    if mode not in ("max", "min"):
        raise ConfigError(f"mode must be 'max' or 'min', got {mode!r}.")
