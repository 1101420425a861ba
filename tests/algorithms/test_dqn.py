"""DQN's losses against plain loops, its target network, and every part of Rainbow on probes."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, DQNConfig, RainbowConfig
from jaxrl.algorithms.dqn import DQNLearner
from jaxrl.core.types import Columns, Progress, Transition
from jaxrl.envs import make
from jaxrl.modules.exploration import NOISE
from jaxrl.testing import references
from tests import actor_critics as ac
from tests.helpers import slow_but

ROWS, ACTIONS = ac.ROWS, ac.ACTIONS
DISCRETE = spaces.Discrete(ACTIONS)


def learner_of(**training: Any) -> DQNLearner:
    """The learner of a small network that sees masks."""
    return ac.learner_of(DQNConfig(), DISCRETE, ac.MASKED, **training)


def batch_of() -> Transition:
    """Rows of which all have an illegal action."""
    return ac.batch_of(DISCRETE, masked=True)


def outputs(learner: DQNLearner, params: Any, obs: Any) -> Any:
    return jax.device_get(jax.jit(learner.module.forward_train)(params, {Columns.OBS: obs}))


def chosen(learner: DQNLearner, state: Any, batch: Transition) -> list[int]:
    """The best legal action of every successor, by a loop."""
    params = state.sgd.params if learner.settings.double_q else state.target.params
    values = outputs(learner, params, batch.next_obs)[Columns.ACTION_DIST_INPUTS]
    mask = np.asarray(batch.next_obs["action_mask"])
    best: list[int] = []
    for row in range(ROWS):
        legal = [a for a in range(ACTIONS) if mask[row, a]]
        best.append(max(legal, key=lambda a: values[row, a]))
    unmasked = np.argmax(values, axis=-1)
    assert 2 < np.sum(unmasked != best) < ROWS - 2  # the mask matters here
    return best


@pytest.mark.parametrize("loss_fn", ["huber", "mse"])
@pytest.mark.parametrize("double_q", [True, False])
def test_the_loss_of_values_equals_a_plain_loop(double_q: bool, loss_fn: str) -> None:
    learner = learner_of(double_q=double_q, td_error_loss_fn=loss_fn, dueling=double_q)
    state, batch = ac.state_of(learner), batch_of()
    _, metrics = ac.updated(learner, state, batch)
    best = chosen(learner, state, batch)
    following = outputs(learner, state.target.params, batch.next_obs)
    following = following[Columns.ACTION_DIST_INPUTS]
    value = outputs(learner, state.sgd.params, batch.obs)[Columns.ACTION_DIST_INPUTS]
    b: Any = jax.device_get(batch)
    total, errors = 0.0, np.zeros(ROWS)
    for i in range(ROWS):
        target = b.reward[i] + b.discount[i] * following[i, best[i]]
        e = errors[i] = value[i, b.action[i]] - target
        huber = 0.5 * e * e if abs(e) <= 1 else abs(e) - 0.5
        total += b.weight[i] * (huber if loss_fn == "huber" else e * e)
    assert 4 < np.sum(np.abs(errors) > 1) < ROWS - 4
    np.testing.assert_allclose(metrics["total_loss"], total / ROWS, rtol=1e-4)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-4, atol=1e-5)
    counts = b.weight > 0
    taken = value[np.arange(ROWS), b.action]
    np.testing.assert_allclose(metrics["qf_mean"], taken[counts].mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["td_error_mean"], np.abs(errors)[counts].mean(), rtol=1e-4)


@pytest.mark.parametrize("double_q", [True, False])
def test_the_loss_of_c51_equals_a_plain_loop(double_q: bool) -> None:
    learner = learner_of(double_q=double_q, num_atoms=7, v_min=-1.5, v_max=2.0)
    state, batch = ac.state_of(learner), batch_of()
    _, metrics = ac.updated(learner, state, batch)
    best = chosen(learner, state, batch)
    following = outputs(learner, state.target.params, batch.next_obs)["atom_logits"]
    logits = outputs(learner, state.sgd.params, batch.obs)["atom_logits"]
    b: Any = jax.device_get(batch)
    entropy = np.zeros(ROWS)
    for i in range(ROWS):
        raw = np.exp(following[i, best[i]].astype(np.float64))
        support = np.linspace(-1.5, 2.0, 7)
        m = references.categorical_projection(b.reward[i], b.discount[i], raw / raw.sum(), support)
        mine = logits[i, b.action[i]].astype(np.float64)
        entropy[i] = -(m * (mine - np.log(np.exp(mine).sum()))).sum()
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], entropy, rtol=1e-4)
    np.testing.assert_allclose(metrics["total_loss"], (b.weight * entropy).mean(), rtol=1e-4)


@pytest.mark.parametrize("double_q", [True, False])
def test_the_loss_of_quantiles_equals_a_plain_loop(double_q: bool) -> None:
    learner = learner_of(double_q=double_q, num_quantiles=5)
    state, batch = ac.state_of(learner), batch_of()
    _, metrics = ac.updated(learner, state, batch)
    best = chosen(learner, state, batch)
    following = outputs(learner, state.target.params, batch.next_obs)["quantiles"]
    quantiles = outputs(learner, state.sgd.params, batch.obs)["quantiles"]
    b: Any = jax.device_get(batch)
    loss = np.zeros(ROWS)
    for i in range(ROWS):
        target = b.reward[i] + b.discount[i] * following[i, best[i]]
        loss[i] = references.quantile_huber_loss(quantiles[i, b.action[i]], target, 1.0)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["total_loss"], (b.weight * loss).mean(), rtol=1e-4)


@pytest.mark.allow_key_reuse
def test_each_network_has_noise_of_its_own_in_the_targets() -> None:
    learner = learner_of(noisy=True)
    state, batch = ac.state_of(learner), batch_of()
    key = jax.random.key(5)
    targets = jax.jit(learner.compute_td_targets)(state.sgd.params, state.target.params, batch, key)
    choice_key, target_key = jax.random.split(key)
    values = {}
    for name, params, its_key in (
        ("choosing", state.sgd.params, choice_key),
        ("following", state.target.params, target_key),
    ):
        noise = learner.module.draw_noise(its_key, ROWS)
        rows = {Columns.OBS: batch.next_obs, NOISE: noise}
        out = jax.jit(learner.module.forward_train)(params, rows)
        values[name] = np.asarray(out[Columns.ACTION_DIST_INPUTS])
    legal = np.where(batch.next_obs["action_mask"], values["choosing"], -np.inf)
    following = values["following"][np.arange(ROWS), legal.argmax(axis=-1)]
    expected = np.asarray(batch.reward) + np.asarray(batch.discount) * following
    np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-5)
    other = jax.jit(learner.compute_td_targets)(
        state.sgd.params, state.target.params, batch, jax.random.key(6)
    )
    assert np.abs(np.asarray(targets) - np.asarray(other)).max() > 0.01


def test_an_update_ignores_rows_without_weight_and_is_undone_if_it_is_not_finite() -> None:
    learner = learner_of(target_network_update_freq=0)
    state, batch = ac.state_of(learner), batch_of()
    ac.assert_hidden_rows_change_nothing(learner, state, batch)
    ac.assert_nonfinite_updates_change_nothing(learner, state, batch)


# --- the target network ---


def test_the_target_follows_when_it_is_due() -> None:
    learner = learner_of(target_network_update_freq=100, tau=0.25)
    state, batch = ac.state_of(learner), batch_of()
    start, update = Progress.zeros(), jax.jit(learner.update)
    for steps, renewed in ((99, False), (100, True), (199, False), (200, True)):
        progress = replace(start, env_steps=start.env_steps.add(steps))
        after, _ = update(state, batch, progress, jax.random.key(steps))
        expected = jax.tree.map(
            lambda new, old, due=renewed: 0.25 * new + 0.75 * old if due else old,
            after.sgd.params,
            state.target.params,
        )
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
            after.target.params,
            expected,
        )
        state = after


def test_a_target_that_follows_every_update() -> None:
    learner = learner_of(target_network_update_freq=0)
    after, _ = ac.updated(learner, ac.state_of(learner), batch_of())
    jax.tree.map(np.testing.assert_array_equal, after.target.params, after.sgd.params)


# --- settings ---


def test_settings_of_rllib_that_say_what_is_done_anyway_pass() -> None:
    config = DQNConfig().training(
        adam_epsilon=1e-8,
        categorical_distribution_temperature=1.0,
        before_learn_on_batch=None,
    )
    assert not config.explicit


def test_rainbow_is_values() -> None:
    training = RainbowConfig().training_settings
    assert type(training) is type(DQNConfig().training_settings)
    assert training.double_q and training.dueling and training.noisy  # noqa: PT018
    assert (training.num_atoms, training.n_step, training.epsilon) == (51, 3, 0.0)
    assert training.replay_buffer_config["type"] == "prioritized"


# --- probes ---

OFF: dict[str, Any] = {
    "double_q": False,
    "dueling": False,
    "replay_buffer_config": {"type": "uniform", "capacity": 4000},
}
ATOMS = {"num_atoms": 11, "v_min": -10.0, "v_max": 10.0}
PARTS: dict[str, dict[str, Any]] = {
    "none": {},
    "double": {"double_q": True},
    "dueling": {"dueling": True},
    "prioritized": {"replay_buffer_config": {"type": "prioritized", "capacity": 4000}},
    "n_step": {"n_step": 3},
    "c51": ATOMS,
    "quantiles": {"num_quantiles": 5, "epsilon": 0.4, "epsilon_ladder": 7.0},
    "noisy": {"noisy": True, "epsilon": 0.0},
}
PARTS["rainbow"] = {
    name: value
    for part in ("double", "dueling", "prioritized", "n_step", "c51", "noisy")
    for name, value in PARTS[part].items()
}


def trained(env: str, part: str, **training: Any) -> Algorithm:
    """After an iteration on a probe."""
    given = {"gamma": 0.8, "lr": 3e-3, "target_network_update_freq": 128, "epsilon": 0.3}
    config = ac.on_probe(DQNConfig(), f"jaxrl:{env}", **{**given, **OFF, **PARTS[part], **training})
    algorithm = config.build()
    algorithm.train()
    return algorithm


def values_of(algorithm: Algorithm, obs: Any) -> np.ndarray:
    params = algorithm.get_weights()["default_policy"]
    return np.asarray(algorithm.get_module().compute_values(params, obs))


@pytest.mark.representatives("rainbow")
@pytest.mark.parametrize(
    "part", slow_but("none", "n_step", "rainbow", of=[p for p in PARTS if p != "dueling"])
)
def test_every_part_alone_and_together_looks_beyond_a_truncation(part: str) -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    with trained("probe-truncation-v0", part) as algorithm:
        value = values_of(algorithm, np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(value, 5.0, rtol=0.06)


@pytest.mark.slow
@pytest.mark.usefixtures("truncation_is_termination")
def test_a_target_that_takes_truncation_for_termination_fails_that_test() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_every_part_alone_and_together_looks_beyond_a_truncation("none")


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_rainbow_learns_legal_actions_and_plays_them_from_a_checkpoint(tmp_path: Any) -> None:
    table = make("jaxrl:probe-mask-v0").env.value_table(0.8)  # pyright: ignore
    observations = [
        {"action_mask": np.int8([i != 2 - a for i in range(3)]), "obs": obs}
        for obs, a in zip(table.obs, table.actions, strict=True)
    ]
    with trained("probe-mask-v0", "rainbow") as algorithm:
        stacked = jax.tree.map(lambda *x: np.stack(x), *observations)
        np.testing.assert_allclose(values_of(algorithm, stacked), table.values, atol=0.1)
        played = [algorithm.compute_single_action(obs, explore=False) for obs in observations]
        np.testing.assert_array_equal(played, table.actions)
        path = algorithm.save(str(tmp_path / "checkpoint"))
    with Algorithm.from_checkpoint(path) as again:
        assert type(again.config) is DQNConfig
        played = [again.compute_single_action(obs) for obs in observations]
        np.testing.assert_array_equal(played, table.actions)


@pytest.mark.slow
def test_values_are_discounted() -> None:
    table = make("jaxrl:probe-discount-v0").env.value_table(0.8)  # pyright: ignore
    with trained("probe-discount-v0", "dueling") as algorithm:
        np.testing.assert_allclose(values_of(algorithm, table.obs), table.values, atol=0.06)
