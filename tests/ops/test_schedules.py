"""Schedules: interpolation on traced knots, and what settings are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import ConfigError
from jaxrl.ops.schedules import Schedule

KNOTS = [[0, 1.0], [100, 0.5], [300, 2.0]]


@pytest.mark.parametrize(
    ("step", "value"),
    [(0, 1.0), (50, 0.75), (100, 0.5), (200, 1.25), (300, 2.0), (1e9, 2.0)],
)
def test_linear_between_knots_constant_after(step, value):
    schedule = Schedule.from_setting(KNOTS)
    np.testing.assert_allclose(schedule.value_at(step), value, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(Schedule.value_at)(schedule, jnp.float32(step)), value, rtol=1e-6
    )


def test_a_number_is_constant():
    schedule = Schedule.from_setting(3e-4)
    assert schedule.value_at(0.0) == schedule.value_at(jnp.float32(1e8)) == np.float32(3e-4)


def test_knots_are_traced_and_vmap():
    def traced(schedule, step):
        traces.append(1)
        return schedule.value_at(step)

    traces = []
    jitted = jax.jit(traced)
    a, b = Schedule.from_setting(KNOTS), Schedule.from_setting([[0, 0.0], [10, 1.0], [20, 5.0]])
    assert jitted(a, jnp.float32(50)) == 0.75
    assert jitted(b, jnp.float32(5)) == 0.5
    assert len(traces) == 1
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), a, b)
    steps = jnp.array([50.0, 5.0])
    np.testing.assert_allclose(jax.vmap(Schedule.value_at)(both, steps), [0.75, 0.5])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([[10, 1.0], [20, 2.0]], "must be at step 0"),
        ([[0, 1.0], [20, 2.0], [20, 3.0]], "steps must increase"),
        ([[0, 1.0], [20, 2.0], [10, 3.0]], "steps must increase"),
        ([], "list of \\[step, value\\] pairs"),
        ([0, 1], "list of"),
        ([[0, 1, 2]], "list of"),
        ([[0, float("nan")]], "list of"),
        ("fast", "list of"),
        (None, "list of"),
        (True, "list of"),
        (float("inf"), "finite"),
    ],
)
def test_refuses(setting, message):
    with pytest.raises(ConfigError, match=message) as error:
        Schedule.from_setting(setting, name="lr")
    assert str(error.value).startswith("lr ")
