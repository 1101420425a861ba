"""Schedules: interpolation on traced knots, and what settings are refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.hparams import current_values
from jaxrl.core.types import Counter, Progress
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


@pytest.mark.parametrize("first", [0.0, 5e-4])
@pytest.mark.parametrize("end", [10**10, 2**32 + 1, 2**62, 10**6])
def test_late_steps_count_one_by_one(end, first):
    """To a value that is not 0 float32 itself ends some steps before; to 0 it does not."""
    schedule = Schedule.from_setting([[0, first + 1e-3], [end, first]])
    value_at = jax.jit(Schedule.value_at)
    for left in (0, 1, 2, 500, end // 3, end - 1, end):
        step = end - left
        counter = Counter(low=jnp.uint32(step % 2**32), high=jnp.uint32(step >> 32))
        want = first + 1e-3 * (left / end)
        np.testing.assert_allclose(value_at(schedule, counter), want, rtol=1e-6)
    last = 2**64 - 1
    counter = Counter(low=jnp.uint32(last % 2**32), high=jnp.uint32(last >> 32))
    assert value_at(schedule, counter) == np.float32(first)


def test_hyperparameters_follow_late_steps():
    progress = dataclasses.replace(
        Progress.zeros(), env_steps=Counter.zeros().add(2**32 - 1).add(2**32 - 1)
    )
    schedule = Schedule.from_setting([[0, 1.0], [2**33, 0.0]])
    value = current_values({"lr": schedule}, progress)["lr"]
    assert float(value) == pytest.approx(2 / 2**33)


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
        ([[0, 1.0], [0.4, 2.0]], "steps must increase"),
        ([[0, 1.0], [2e19, 2.0]], "must be below 2\\*\\*63"),
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
