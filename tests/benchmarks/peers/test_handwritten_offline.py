"""The hand-written peer of recorded data learns what its papers promise, on a bandit."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers.handwritten_offline import algorithms
from benchmarks.settings import OfflineSetting

NUM_ROWS = 2000
BEST = 0.6


def write(path: Path, **changes: Any) -> str:
    """Write episodes of one step: random actions, of which that near `BEST` has the best reward."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1.0, 1.0, (NUM_ROWS, 1)).astype(np.float32)
    columns = {
        "observations": np.ones((NUM_ROWS, 2), np.float32),
        "actions": action,
        "rewards": -10.0 * np.square(action[:, 0] - BEST),
        "terminals": np.ones(NUM_ROWS, np.bool_),
        "timeouts": np.zeros(NUM_ROWS, np.bool_),
    }
    np.savez(path, **(columns | changes))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["TD3+BC", "IQL"])
def test_a_bandits_good_actions_are_found(tmp_path: Path, algorithm: str) -> None:
    setting = OfflineSetting(
        algorithm=algorithm, hidden_size=16, batch_size=64, num_updates=1500, lr=3e-3
    )
    rows = algorithms.load(write(tmp_path / "data.npz"), setting.gamma)
    learner = algorithms.Learner(setting, 2, 1)
    state = learner.init(jax.random.key(0))
    state = jax.jit(learner.train)(state, rows)
    assert int(state.step) == 1500
    chosen = float(algorithms.act(state.params["policy"], jnp.ones((1, 2)))[0, 0])
    assert chosen == pytest.approx(BEST, abs=0.25)  # imitation alone has the mean, 0
    values = algorithms.apply_critics(
        state.params["critics"], jnp.ones((2, 2)), jnp.array([[BEST], [-0.5]])
    )
    np.testing.assert_allclose(values, [[0.0, -12.1]] * 2, atol=1.5)


def test_cut_rows_are_left_out_and_terminations_do_not_bootstrap(tmp_path: Path) -> None:
    observations = np.arange(8, dtype=np.float32).reshape(4, 2)
    path = write(
        tmp_path / "data.npz",
        observations=observations,
        actions=np.zeros((4, 1), np.float32),
        rewards=np.arange(4, dtype=np.float32),
        terminals=np.array([False, False, True, False]),
        timeouts=np.array([False, True, False, False]),
    )
    rows = algorithms.load(path, 0.9)
    np.testing.assert_array_equal(rows.reward, [0.0, 2.0])
    np.testing.assert_allclose(rows.discount, [0.9, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(rows.next_obs[0], observations[1])


@pytest.mark.slow
def test_a_bandits_good_action_is_found_by_cql_with_values_below_its_own(tmp_path: Path) -> None:
    state = train_cql(write(tmp_path / "data.npz"))
    chosen = float(algorithms.act(state.params["policy"], jnp.ones((1, 2)))[0, 0])
    assert chosen == pytest.approx(BEST, abs=0.25)
    values = algorithms.apply_critics(
        state.params["critics"], jnp.ones((1, 2)), jnp.array([[BEST]])
    )
    assert (values < -0.5).all()
    assert (values > -10.0).all()


@pytest.mark.slow
def test_cql_lowers_the_values_of_actions_outside_of_the_data(tmp_path: Path) -> None:
    action = np.random.default_rng(0).uniform(0.2, 0.8, (NUM_ROWS, 1)).astype(np.float32)
    path = write(tmp_path / "data.npz", actions=action, rewards=np.zeros(NUM_ROWS, np.float32))
    state = train_cql(path)
    values = algorithms.apply_critics(
        state.params["critics"], jnp.ones((2, 2)), jnp.array([[0.5], [-0.9]])
    )
    assert (values[:, 0] > values[:, 1] + 1.0).all()


def train_cql(path: str) -> algorithms.State:
    """Train CQL and return its state."""
    setting = OfflineSetting(
        algorithm="CQL", hidden_size=16, batch_size=64, num_updates=1500, lr=3e-3
    )
    rows = algorithms.load(path, setting.gamma)
    learner = algorithms.Learner(setting, 2, 1)
    state = learner.init(jax.random.key(0))
    return jax.jit(learner.train)(state, rows)


def test_drawn_actions_of_cql_have_the_density_of_a_squashed_normal_distribution() -> None:
    policy = {"net": algorithms.init_mlp(jax.random.key(1), (2, 8, 8, 6))}
    obs = jnp.array([[0.5, -1.0], [2.0, 0.3]])
    noise = jax.random.normal(jax.random.key(2), (5, 2, 3))
    actions, log_density = algorithms.draw(policy, obs, noise)
    assert actions.shape == (5, 2, 3)
    mean, log_std = jnp.split(algorithms.apply_mlp(policy["net"], obs), 2, axis=-1)
    normal = jax.scipy.stats.norm.logpdf(jnp.arctanh(actions), mean[None], jnp.exp(log_std)[None])
    expected = (normal - jnp.log(1.0 - jnp.square(actions))).sum(axis=-1)
    np.testing.assert_allclose(log_density, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(algorithms.act(policy, obs), jnp.tanh(mean), rtol=1e-6)
