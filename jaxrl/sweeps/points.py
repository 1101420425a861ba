"""What a sweep has found: the points of its settings, each summed up over its lanes."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.metrics import score
from jaxrl.sweeps.statistics import bootstrap_interval, interquartile_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a sweep over all its seeds.

    Args:
        number: Its place in the sweep.
        values: Of the settings that are swept.
        lanes: Its lanes' indices.
        scores: Of those that have one.
        score: Their interquartile mean (Agarwal et al. 2021), NaN without any.
        interval: Of 95 %, by bootstrap over the lanes; of no width for a single one.
    """

    number: int
    values: Mapping[str, Any]
    lanes: tuple[int, ...]
    scores: tuple[float, ...]
    score: float
    interval: tuple[float, float]

    @staticmethod
    def of(
        number: int, values: Mapping[str, Any], lanes: tuple[int, ...], scores: Sequence[float]
    ) -> "Point":
        """The point with its statistics."""
        score = float(interquartile_mean(scores)) if scores else math.nan
        return Point(
            number=number,
            values=values,
            lanes=lanes,
            scores=tuple(scores),
            score=score,
            interval=bootstrap_interval(scores) if len(scores) > 1 else (score, score),
        )


def points_of(
    lanes: Sequence[tuple[int, Mapping[str, Any]]],
    results: Mapping[int, Mapping[str, Any]],
    metric: str,
) -> list[Point]:
    """The points of lanes, the best first; those without a score are last.

    Args:
        lanes: Of each lane the number and the values of its point; those of a point are neighbours.
        results: Of lanes that count for a score, by index.
        metric: The result key that is the score.
    """
    found: list[Point] = []
    for number, members in itertools.groupby(range(len(lanes)), lambda index: lanes[index][0]):
        indices = tuple(members)
        seen = [score(results[index], metric) for index in indices if index in results]
        scores = [found for found in seen if found is not None]
        found.append(Point.of(number, lanes[indices[0]][1], indices, scores))
    return sorted(found, key=lambda point: (math.isnan(point.score), -point.score))
