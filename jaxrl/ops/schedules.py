"""Piecewise-linear schedules over traced knots, so that changing one never recompiles."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Counter
from jaxrl.errors import ConfigError


@pytree
class Schedule:
    """Values at times (environment steps), linear in between, constant after the last.

    Times are 64-bit counts, `[K]`, so that single steps are resolved however long the run.
    """

    times: Counter
    values: Float[Array, " K"]

    @classmethod
    def from_setting(cls, setting: object, name: str = "schedule") -> "Schedule":
        """Build a schedule from a number, or from RLlib's `[[t, v], ...]` that starts at t = 0.

        Raises:
            ConfigError: If it is neither; the message names `name`.
        """
        knots = parse_schedule(setting, name)
        times = [round(time) for time, _ in knots]
        return cls(
            times=Counter(
                low=jnp.asarray([time % 2**32 for time in times], jnp.uint32),
                high=jnp.asarray([time >> 32 for time in times], jnp.uint32),
            ),
            values=jnp.asarray([value for _, value in knots], jnp.float32),
        )

    def value_at(self, step: Counter | float | Float[Array, ""]) -> Float[Array, ""]:
        """Evaluate at a number of environment steps: a counter, or a number held as float32."""
        number = self.values.shape[0]
        if number == 1:
            return self.values[0]
        if not isinstance(step, Counter):
            step = Counter.from_number(jnp.asarray(step, jnp.float32))
        is_reached = ~Counter(low=step.low[None], high=step.high[None]).is_below(self.times)
        last = jnp.maximum(is_reached.sum(dtype=jnp.int32) - 1, 0)
        following = jnp.minimum(last + 1, number - 1)
        since = _steps_between(self._time_at(last), step)
        until = _steps_between(step, self._time_at(following))
        length = jnp.maximum(_steps_between(self._time_at(last), self._time_at(following)), 1.0)
        before, after = self.values[last], self.values[following]
        # From the nearer knot: far from one, float32 would round small differences away.
        value = jnp.where(
            since <= until,
            before + since / length * (after - before),
            after + until / length * (before - after),
        )
        return jnp.where(last == number - 1, before, value)

    def _time_at(self, index: Int[Array, ""]) -> Counter:
        return Counter(low=self.times.low[index], high=self.times.high[index])


def _steps_between(earlier: Counter, later: Counter) -> Float[Array, ""]:
    """Return the steps from one count to a later one, exact before it is rounded to float32."""
    borrowed = (later.low < earlier.low).astype(jnp.uint32)
    difference = Counter(low=later.low - earlier.low, high=later.high - earlier.high - borrowed)
    return difference.as_float()


def parse_schedule(setting: object, name: str = "schedule") -> list[tuple[float, float]]:
    """Parse a number or `[[t, v], ...]` into knots, on the host.

    Raises:
        ConfigError: If times do not start at 0, do not increase or reach 2**63, or a number is not
            finite.
    """
    if _is_number(setting):
        return [(0.0, float(cast(float, setting)))]
    rows = list(cast(Sequence[Any], setting)) if isinstance(setting, list | tuple) else []
    if not rows or not all(_is_knot(row) for row in rows):
        raise ConfigError(
            f"{name} is {setting!r}; it must be a finite number or a list of [step, value] pairs "
            "such as [[0, 3e-4], [1000000, 0.0]]."
        )
    knots = [(float(t), float(v)) for t, v in rows]
    if knots[0][0] != 0.0:
        raise ConfigError(
            f"{name} starts at step {rows[0][0]}; the first pair must be at step 0, such as "
            f"[0, {rows[0][1]}]."
        )
    for (earlier, _), (later, _) in itertools.pairwise(knots):
        if round(later) <= round(earlier):
            raise ConfigError(
                f"{name} has step {later:g} after step {earlier:g}; steps must increase."
            )
    if knots[-1][0] >= 2**63:
        raise ConfigError(f"{name} has step {knots[-1][0]:g}; steps must be below 2**63.")
    return knots


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return is_number and not isinstance(value, bool) and math.isfinite(value)


def _is_knot(row: object) -> bool:
    return (
        isinstance(row, list | tuple)
        and len(cast(Sequence[Any], row)) == 2
        and all(_is_number(x) for x in cast(Sequence[Any], row))
    )
