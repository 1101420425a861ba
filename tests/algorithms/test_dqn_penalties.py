"""DQN's penalties for recorded data against plain loops: CQL's, and DQfD's margins."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import DQNConfig
from jaxrl.core.types import IS_RECORDED, Columns, Transition
from tests import actor_critics as ac
from tests import recorded

DISCRETE = spaces.Discrete(ac.ACTIONS)
CQL_ALPHA = 0.6
HEADS: dict[str, dict[str, Any]] = {
    "values": {},
    "rescaled": {"use_h_function": True},
    "atoms": {"num_atoms": 7, "v_min": -4.0, "v_max": 4.0},
    "quantiles": {"num_quantiles": 5},
}


@functools.cache
def dqn(head: str = "values", **settings: Any) -> tuple[Any, Any, Transition]:
    learner = ac.learner_of(DQNConfig(), DISCRETE, ac.MASKED, **HEADS[head], **settings)
    batch = recorded.legal(ac.batch_of(DISCRETE, masked=True))
    return learner, ac.state_of(learner), batch


def means_of(learner: Any, state: Any, batch: Transition) -> np.ndarray:
    """The values of all actions before the step, of distributions their means."""
    out = learner.module.forward_train(state.sgd.params, {Columns.OBS: batch.obs})
    return np.asarray(out[Columns.ACTION_DIST_INPUTS], np.float64)


@pytest.mark.representatives("values")
@pytest.mark.parametrize("head", HEADS)
def test_the_conservative_penalty_equals_a_plain_loop_over_legal_actions(head: str) -> None:
    plain, state, batch = dqn(head)
    learner, _, _ = dqn(head, cql_alpha=CQL_ALPHA)
    _, metrics = ac.updated(learner, state, batch)
    _, without = ac.updated(plain, state, batch)
    values, b, terms = means_of(learner, state, batch), jax.device_get(batch), []
    for i in range(ac.ROWS):
        legal = [values[i, a] for a in range(ac.ACTIONS) if b.obs["action_mask"][i, a]]
        terms.append(CQL_ALPHA * (np.log(np.exp(legal).sum()) - values[i, b.action[i]]))
    expected = np.mean(b.weight * terms)
    np.testing.assert_allclose(metrics["total_loss"] - without["total_loss"], expected, rtol=1e-3)
    np.testing.assert_allclose(metrics["cql_loss"], expected, rtol=1e-4)
    np.testing.assert_array_equal(metrics[Columns.TD_ERROR], without[Columns.TD_ERROR])


@pytest.mark.parametrize("has_sources", [False, True])
def test_margins_equal_a_plain_loop_over_legal_actions(has_sources: bool) -> None:
    """All rows are demonstrations, unless they say which ones are."""
    plain, state, batch = dqn()
    learner, _, _ = dqn(margin_coeff=1.5, margin=0.3)
    is_recorded = np.ones(ac.ROWS, np.float32)
    if has_sources:
        is_recorded[::2] = 0.0
        batch = replace(batch, extras={IS_RECORDED: jnp.asarray(is_recorded)})
    _, metrics = ac.updated(learner, state, batch)
    _, without = ac.updated(plain, state, batch)
    values, b, terms = means_of(learner, state, batch), jax.device_get(batch), []
    for i in range(ac.ROWS):
        legal = [a for a in range(ac.ACTIONS) if b.obs["action_mask"][i, a]]
        most = max(values[i, a] + 0.3 * (a != b.action[i]) for a in legal)
        terms.append(1.5 * is_recorded[i] * (most - values[i, b.action[i]]))
    expected = np.mean(b.weight * terms)
    assert expected > 0.0
    np.testing.assert_allclose(metrics["total_loss"] - without["total_loss"], expected, rtol=1e-3)
    np.testing.assert_allclose(metrics["margin_loss"], expected, rtol=1e-4)


def test_without_weights_there_is_no_penalty() -> None:
    learner, state, batch = dqn()
    _, metrics = ac.updated(learner, state, batch)
    assert not {"cql_loss", "margin_loss"} & metrics.keys()
    same = dqn(cql_alpha=0.0, margin_coeff=0.0)[0]
    first, second = (ac.updated(one, state, batch)[0] for one in (learner, same))
    ac.assert_trees_equal(first, second)


def test_rows_without_weight_change_nothing_and_devices_agree() -> None:
    case = dqn(cql_alpha=CQL_ALPHA)
    ac.assert_hidden_rows_change_nothing(*case)
    recorded.assert_devices_agree(*case)


@pytest.mark.parametrize("cql_alpha", [0.0, 0.5])
def test_an_action_without_rows_is_avoided_with_the_penalty_alone(cql_alpha: float) -> None:
    learner = ac.learner_of(
        DQNConfig(),
        spaces.Discrete(3),
        recorded.OBSERVED,
        cql_alpha=cql_alpha,
        lr=3e-3,
        dueling=False,
    )
    batch = recorded.two_arms()
    params = jax.tree.map(lambda x: x, jax.jit(learner.init)(jax.random.key(0)).sgd.params)
    bias = [
        path for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0] if leaf.shape == (3,)
    ]
    assert len(bias) == 1
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: x.at[2].set(3.0) if path == bias[0] else x, params
    )
    state = jax.jit(learner.init)(jax.random.key(0))
    state = replace(state, sgd=replace(state.sgd, params=params))
    after = recorded.fitted(learner, batch, 400, state)
    values = np.asarray(
        learner.module.forward_train(after.sgd.params, {Columns.OBS: batch.obs})[
            Columns.ACTION_DIST_INPUTS
        ]
    )[0]
    assert (int(np.argmax(values)) == 2) == (cql_alpha == 0.0)
