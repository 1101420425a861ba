"""Metrics of an update on several devices are those of all rows, however few count on one of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import DQNConfig, SACConfig, TD3Config, TQCConfig
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, Progress
from tests import actor_critics as ac

DISCRETE = spaces.Discrete(ac.ACTIONS)


@pytest.mark.representatives("DQNConfig-space3")
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(
    ("config", "space"),
    [(SACConfig, ac.BOX), (TD3Config, ac.BOX), (TQCConfig, ac.BOX), (DQNConfig, DISCRETE)],
)
def test_they_are_means_over_the_rows_of_all(config: Any, space: Any) -> None:
    learner = ac.learner_of(config(), space)
    state, batch = ac.state_of(learner), ac.batch_of(space)
    # Most rows of the first half are no transitions, all of the second are.
    weight = jnp.where(jnp.arange(ac.ROWS) < ac.ROWS // 2 - 2, 0.0, 1.0)
    batch = replace(batch, weight=weight)
    _, want = ac.updated(learner, state, batch)
    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    part = dataclasses.replace(learner, axis_name="devices")
    update = jax.vmap(part.update, in_axes=(None, 0, None, None), axis_name="devices")
    _, got = jax.jit(update)(state, halves, Progress.zeros(), jax.random.key(3))
    assert got.keys() == want.keys()
    for name in got.keys() - {Columns.TD_ERROR}:
        np.testing.assert_allclose(got[name].mean(), want[name], rtol=1e-4, atol=1e-5, err_msg=name)
