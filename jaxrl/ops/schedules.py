"""Piecewise-linear schedules over traced knots, so that changing one never recompiles."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree
from jaxrl.errors import ConfigError


@pytree
class Schedule:
    """Values at times (environment steps), linear between them, constant after the last."""

    times: Float[Array, " K"]
    values: Float[Array, " K"]

    @classmethod
    def from_setting(cls, setting: object, name: str = "schedule") -> "Schedule":
        """From a number, or RLlib's `[[t, v], ...]` that starts at t = 0.

        Raises:
            ConfigError: If it is neither, naming `name`.
        """
        knots = check_schedule(setting, name)
        table = np.asarray(knots, np.float32)
        return cls(times=jnp.asarray(table[:, 0]), values=jnp.asarray(table[:, 1]))

    def value_at(self, step: float | Float[Array, ""]) -> Float[Array, ""]:
        """The value at a number of environment steps (float32: exact up to 2**24)."""
        if self.times.shape[0] == 1:
            return self.values[0]
        return jnp.interp(step, self.times, self.values)


def check_schedule(setting: object, name: str = "schedule") -> list[tuple[float, float]]:
    """The knots of a number or a `[[t, v], ...]`, on the host.

    Raises:
        ConfigError: Unless times start at 0 and increase and all numbers are finite.
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
        if later <= earlier:
            raise ConfigError(
                f"{name} has step {later:g} after step {earlier:g}; steps must increase."
            )
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
