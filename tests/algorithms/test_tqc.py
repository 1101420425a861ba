"""TQC's targets and losses against plain loops in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import TQCConfig
from jaxrl.algorithms.sac import DrawnActions
from jaxrl.core.types import Columns
from jaxrl.errors import SpaceError
from jaxrl.modules.policy_and_critics import CRITIC, POLICY
from tests import actor_critics as ac

ALPHA, QUANTILES, CRITICS, DROPPED = 0.7, 5, 3, 2


def atoms_of(critics: Any, obs: Any, action: Any) -> np.ndarray:
    return ac.critics_output(critics, obs, action)  # [critics, quantiles]


def quantile_huber(quantiles: np.ndarray, targets: np.ndarray) -> float:
    """The mean over all pairs (Kuznetsov et al. 2020, eq. 8-9)."""
    total = 0.0
    for m, theta in enumerate(quantiles):
        tau = (2 * m + 1) / (2 * len(quantiles))
        for y in targets:
            u = y - theta
            total += abs(tau - (u < 0)) * ac.huber(u)
    return total / (len(quantiles) * len(targets))


@pytest.mark.allow_key_reuse
def test_targets_and_losses_equal_plain_loops() -> None:
    learner = ac.learner_of(
        TQCConfig(),
        initial_alpha=ALPHA,
        n_quantiles=QUANTILES,
        n_critics=CRITICS,
        top_quantiles_to_drop_per_net=DROPPED,
    )
    state, batch = ac.state_of(learner), ac.batch_of()
    after, metrics = ac.updated(learner, state, batch)
    before, new, b = jax.device_get((state.sgd.params, after.sgd.params, batch))
    target_key, actor_key = jax.random.split(jax.random.key(3))
    drawn = {"target": ac.normal(target_key), "actor": ac.normal(actor_key)}
    assert len(before[CRITIC]) == CRITICS
    kept = QUANTILES * CRITICS - DROPPED * CRITICS
    qf_loss = policy_loss = alpha_loss = 0.0
    errors = np.zeros(ac.ROWS)
    for i in range(ac.ROWS):
        inputs = ac.policy_output(before[POLICY], b.next_obs[i])
        action, log_prob = ac.squashed(inputs, drawn["target"][i])
        atoms = atoms_of(state.target.params, b.next_obs[i], action)
        pooled = np.sort(np.ravel(atoms))
        y = b.reward[i] + b.discount[i] * (pooled[:kept] - ALPHA * log_prob)
        learned = atoms_of(before[CRITIC], b.obs[i], b.action[i])
        qf_loss += b.weight[i] * sum(quantile_huber(theta, y) for theta in learned)
        errors[i] = abs(learned.mean() - y.mean())
        inputs = ac.policy_output(before[POLICY], b.obs[i])
        action, log_prob = ac.squashed(inputs, drawn["actor"][i])
        q = atoms_of(new[CRITIC], b.obs[i], action).mean()
        policy_loss -= b.weight[i] * (q - ALPHA * log_prob)
        alpha_loss -= np.log(ALPHA) * b.weight[i] * (log_prob - ac.SIZE)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-4, atol=1e-5)
    for name, value in (
        ("qf_loss", qf_loss),
        ("policy_loss", policy_loss),
        ("alpha_loss", alpha_loss),
    ):
        np.testing.assert_allclose(metrics[name], value / ac.ROWS, rtol=1e-4, err_msg=name)
    drawn = DrawnActions(action=batch.action, log_prob=batch.reward)
    out, alpha = jnp.zeros((CRITICS, ac.ROWS, QUANTILES)), jnp.float32(ALPHA)
    targets, _ = learner.compute_td_targets(out, batch, drawn, alpha)
    assert targets.shape == (ac.ROWS, kept)


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"TQC acts in a Box, not in Discrete.*SAC or DQN"):
        ac.learner_of(TQCConfig(), spaces.Discrete(2))
