"""Uniformly random actions: in the space, legal, uniform, with the log-probability they have."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import SACConfig
from jaxrl.core.hparams import build_hparams, current_values
from jaxrl.core.types import Counter, Progress
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.exploration import (
    draw_random_noise,
    is_warming_up,
    make_random_action,
    make_uniform_distribution,
)

N = 6000


def act(space, mask=None):
    draws = draw_random_noise(space, jax.random.split(jax.random.key(0), N))
    actions, log_prob = jax.jit(lambda d, m: make_random_action(space, d, m))(draws, mask)
    return np.asarray(actions), np.asarray(log_prob)


def test_discrete_actions_are_uniform_over_what_is_legal():
    mask = jnp.broadcast_to(jnp.asarray([1, 0, 1, 1], jnp.int8)[None], (N, 4))
    actions, log_prob = act(spaces.Discrete(4, start=7), mask)
    counts = np.bincount(actions, minlength=4)
    assert counts[1] == 0
    assert actions.dtype == np.int32
    assert np.all(np.abs(counts[[0, 2, 3]] / N - 1 / 3) < 0.03)
    np.testing.assert_allclose(log_prob, np.log(1 / 3), rtol=1e-5)


def test_each_choice_of_a_multidiscrete_is_masked_for_itself():
    mask = jnp.broadcast_to(jnp.asarray([1, 0, 1, 1, 1])[None], (N, 5))
    actions, log_prob = act(spaces.MultiDiscrete([2, 3]), mask)
    assert actions.shape == (N, 2)
    assert not actions[:, 0].any()
    assert set(actions[:, 1]) == {0, 1, 2}
    np.testing.assert_allclose(log_prob, np.log(1 / 3), rtol=1e-5)


def test_a_box_is_filled_evenly():
    low, high = np.float32([[-1.0, 2.0]]), np.float32([[3.0, 2.5]])
    actions, log_prob = act(spaces.Box(low, high))
    assert actions.shape == (N, 1, 2)
    assert np.all((actions >= low) & (actions <= high))
    np.testing.assert_allclose(actions.mean(axis=0), (low + high) / 2, atol=0.05)
    np.testing.assert_allclose(actions.var(axis=0), (high - low) ** 2 / 12, rtol=0.05)
    np.testing.assert_allclose(log_prob, -np.log(4.0 * 0.5), rtol=1e-5)


def test_a_box_without_bounds_is_refused():
    space = spaces.Box(-np.inf, np.inf, (2,))
    with pytest.raises(SpaceError, match=r"infinite bound.*initial_random_timesteps=0"):
        make_uniform_distribution(space)
    make_uniform_distribution(spaces.Discrete(2))


def test_warming_up_ends_at_the_number_of_steps():
    hparams = {"initial_random_timesteps": jnp.asarray(10.0)}
    start = Progress.zeros()
    for steps, warm in ((0, True), (9, True), (10, False), (11, False)):
        progress = replace(start, env_steps=start.env_steps.add(steps))
        assert bool(is_warming_up(hparams, progress)) is warm


@pytest.mark.parametrize("last", [2**24 + 1, 2**32, 10**10 + 1, 2**62 + 1])
def test_warming_up_ends_at_the_step_however_late(last: int) -> None:
    settings = SACConfig().training(initial_random_timesteps=last).training_settings
    hparams = build_hparams(settings)
    now = jax.jit(lambda progress: is_warming_up(current_values(hparams, progress), progress))
    for steps, warm in ((last - 1, True), (last, False), (last + 1, False)):
        assert bool(now(replace(Progress.zeros(), env_steps=Counter.from_number(steps)))) is warm


def test_a_warm_up_that_no_run_can_count_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"initial_random_timesteps must be .* below 2\*\*63"):
        SACConfig().training(initial_random_timesteps=2**63)
