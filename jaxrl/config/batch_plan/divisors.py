"""Divisors of counts, and the number among some that is nearest to another."""

import functools
from collections.abc import Iterable

MAX_COUNT = 2**31 - 1
"""The most rows, environments or parts of anything: arrays are indexed with 32 bits."""


def divisors(number: int, multiple_of: int = 1) -> list[int]:
    """List the divisors of a count that are multiples of another, in ascending order."""
    return [d for d in _divisors(number) if d % multiple_of == 0]


@functools.lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    """All products of prime factors; at most some 23,000 divisions for a number up to MAX_COUNT."""
    if number > 2 * MAX_COUNT:
        raise ValueError(f"{number} is beyond what is counted; check it against MAX_COUNT first.")
    found, left, factor = [1], number, 2
    while left > 1:
        if factor * factor > left:
            factor = left  # what is left is a prime
        powers = [1]
        while left % factor == 0:
            left //= factor
            powers.append(powers[-1] * factor)
        if len(powers) > 1:
            found = [d * power for d in found for power in powers]
        factor += 1 if factor == 2 else 2
    return tuple(sorted(found))


def nearest(values: Iterable[int], target: float) -> int | None:
    """The value with the smallest ratio to the target; of two, the larger."""
    return min(values, key=lambda v: (max(v / target, target / v), -v), default=None)
