"""CQL's losses against plain loops in float64, its phases, its learned factor, bandits."""

import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import CQLConfig, SACConfig
from jaxrl.algorithms.cql import LOG_ALPHA_PRIME, CQLLearner
from jaxrl.core.types import Counter, Progress, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.actor_critic import LOG_ALPHA
from jaxrl.modules.policy_and_critics import CRITIC, POLICY
from tests import actor_critics as ac
from tests import recorded

DISCRETE = spaces.Discrete(ac.ACTIONS)
ALPHA, WEIGHT, TEMPERATURE, DRAWN, BC_ITERS, THRESH = 0.7, 2.0, 0.6, 4, 10, 1.5
SETTINGS = {
    "initial_alpha": ALPHA,
    "min_q_weight": WEIGHT,
    "temperature": TEMPERATURE,
    "num_actions": DRAWN,
    "bc_iters": BC_ITERS,
    "lagrangian_thresh": THRESH,
}
CLONING, IMPROVING = BC_ITERS - 1, BC_ITERS


@functools.cache
def continuous(**settings: Any) -> tuple[CQLLearner, Any, Transition]:
    learner = ac.learner_of(CQLConfig(), **SETTINGS, **settings)
    return learner, ac.state_of(learner), ac.batch_of()


@functools.cache
def discrete(**settings: Any) -> tuple[CQLLearner, Any, Transition]:
    given = {name: value for name, value in SETTINGS.items() if name != "num_actions"}
    learner = ac.learner_of(CQLConfig(), DISCRETE, ac.MASKED, **given, **settings)
    return learner, ac.state_of(learner), recorded.legal(ac.batch_of(DISCRETE, masked=True))


def updated(learner: Any, state: Any, batch: Any, num_updates: int = IMPROVING) -> Any:
    """One update after a number of them."""
    counted = Counter.from_number(num_updates)
    progress = replace(Progress.zeros(), updates=counted)
    return ac.compiled(learner)(state, batch, progress, jax.random.key(3))


def gap_of(values: Any, value: float) -> float:
    """The soft maximum of all values, above that of the row's action."""
    terms = np.exp(np.asarray(values) / TEMPERATURE)
    return TEMPERATURE * np.log(terms.sum()) - value


def continuous_losses(state: Any, after: Any, batch: Any, *, backup: bool) -> dict[str, float]:
    """The losses of all rows, of the critics before and of the policy by those after the step."""
    before, new, b = jax.device_get((state.sgd.params, after.sgd.params, batch))
    critic_key, actor_key = jax.random.split(jax.random.key(3))
    target_key, draw_key = jax.random.split(critic_key)
    uniform_key, here_key, next_key = jax.random.split(draw_key, 3)
    shape = (ac.ROWS, DRAWN, ac.SIZE)
    unit = np.asarray(jax.random.uniform(uniform_key, shape), np.float64)
    here, after_ = (np.asarray(jax.random.normal(key, shape)) for key in (here_key, next_key))
    low, width = ac.BOX.low.astype(float), (ac.BOX.high - ac.BOX.low).astype(float)
    target_noise, actor_noise = ac.normal(target_key), ac.normal(actor_key)
    td_loss = penalty = policy_loss = cloning_loss = 0.0
    for i in range(ac.ROWS):
        outputs = [ac.policy_output(before[POLICY], obs[i]) for obs in (b.obs, b.next_obs)]
        action, log_prob = ac.squashed(outputs[1], target_noise[i])
        following = ac.critics_output(state.target.params, b.next_obs[i], action)[:, 0].min()
        following -= 0.0 if backup else ALPHA * log_prob
        y = b.reward[i] + b.discount[i] * following
        q = ac.critics_output(before[CRITIC], b.obs[i], b.action[i])[:, 0]
        td_loss += b.weight[i] * np.sum((q - y) ** 2)
        drawn = [(low + unit[i, j] * width, -np.log(width).sum()) for j in range(DRAWN)]
        drawn += [ac.squashed(outputs[0], here[i, j]) for j in range(DRAWN)]
        drawn += [ac.squashed(outputs[1], after_[i, j]) for j in range(DRAWN)]
        for k in range(2):
            values = [
                ac.critics_output(before[CRITIC], b.obs[i], action)[k, 0] - density
                for action, density in drawn
            ]
            penalty += WEIGHT * b.weight[i] * gap_of(values, q[k])
        action, log_prob = ac.squashed(outputs[0], actor_noise[i])
        value = ac.critics_output(new[CRITIC], b.obs[i], action)[:, 0].min()
        policy_loss += b.weight[i] * (ALPHA * log_prob - value)
        likelihood = density_of(outputs[0], b.action[i])
        cloning_loss += b.weight[i] * (ALPHA * log_prob - likelihood)
    sums = {"td": td_loss, "penalty": penalty, "policy": policy_loss, "cloning": cloning_loss}
    return {name: value / ac.ROWS for name, value in sums.items()}


def density_of(inputs: np.ndarray, action: Any) -> float:
    """The log density of an action inside of the bounds, by the textbook formula."""
    low, high = ac.BOX.low.astype(float), ac.BOX.high.astype(float)
    u = np.arctanh(2.0 * (np.asarray(action, np.float64) - low) / (high - low) - 1.0)
    noise = (u - inputs[: ac.SIZE]) / np.exp(np.clip(inputs[ac.SIZE :], -20.0, 2.0))
    return ac.squashed(inputs, noise)[1]


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("backup", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_continuous_losses_equal_plain_loops(backup: bool) -> None:
    learner, state, batch = continuous(deterministic_backup=backup)
    after, metrics = updated(learner, state, batch)
    want = continuous_losses(state, after, batch, backup=backup)
    np.testing.assert_allclose(metrics["qf_loss"], want["td"], rtol=1e-4)
    np.testing.assert_allclose(metrics["cql_loss"], want["penalty"] / 2, rtol=1e-4)
    np.testing.assert_allclose(metrics["policy_loss"], want["policy"], rtol=1e-4)
    total = want["td"] + want["penalty"] + want["policy"] + metrics["alpha_loss"]
    np.testing.assert_allclose(metrics["total_loss"], total, rtol=1e-4)
    after, metrics = updated(learner, state, batch, CLONING)
    want = continuous_losses(state, after, batch, backup=backup)
    np.testing.assert_allclose(metrics["policy_loss"], want["cloning"], rtol=1e-3)


def test_discrete_losses_equal_plain_loops_over_legal_actions() -> None:
    learner, state, batch = discrete()
    _, metrics = updated(learner, state, batch)
    before, b = jax.device_get((state.sgd.params, batch))
    mask, next_mask = b.obs["action_mask"], b.next_obs["action_mask"]
    td_loss = penalty = 0.0
    for i in range(ac.ROWS):
        probs = ac.softmax(ac.policy_output(before[POLICY], b.next_obs["obs"][i]), next_mask[i])
        following = ac.critics_output(state.target.params, b.next_obs["obs"][i]).min(axis=0)
        y = b.reward[i] + b.discount[i] * np.sum(probs * following)
        q = ac.critics_output(before[CRITIC], b.obs["obs"][i])
        for k in range(2):
            legal = [q[k, a] for a in range(ac.ACTIONS) if mask[i, a]]
            td_loss += b.weight[i] * (q[k, b.action[i]] - y) ** 2
            penalty += WEIGHT * b.weight[i] * gap_of(legal, q[k, b.action[i]])
    np.testing.assert_allclose(metrics["qf_loss"], td_loss / ac.ROWS, rtol=1e-4)
    np.testing.assert_allclose(metrics["cql_loss"], penalty / ac.ROWS / 2, rtol=1e-4)
    _, metrics = updated(learner, state, batch, CLONING)
    cloning_loss = 0.0
    for i in range(ac.ROWS):
        probs = ac.softmax(ac.policy_output(before[POLICY], b.obs["obs"][i]), mask[i])
        entropy = -sum(p * np.log(p) for p in probs if p > 0)
        cloning_loss -= b.weight[i] * (np.log(probs[b.action[i]]) + ALPHA * entropy)
    np.testing.assert_allclose(metrics["policy_loss"], cloning_loss / ac.ROWS, rtol=1e-4)


def test_an_illegal_action_is_not_pushed_down() -> None:
    """The gradient of the penalty with respect to its values is 0, of all others it is not."""
    learner, state, batch = discrete()
    bias = {name: jnp.zeros(()) for name in "012"}

    def penalty(bias: Any) -> Any:
        critic = jax.tree.map(lambda x: x, state.sgd.params[CRITIC])
        for part in critic.values():
            shift = jnp.stack([bias[name] for name in "012"])
            part["head"]["out"]["bias"] = part["head"]["out"]["bias"] + shift
        values = SimpleNamespace(temperature=TEMPERATURE)
        mask = jnp.tile(jnp.asarray([[1, 0, 1]], jnp.int8), (ac.ROWS, 1))
        rows = replace(
            batch,
            obs={**batch.obs, "action_mask": mask},
            action=jnp.zeros(ac.ROWS, jnp.int32),
        )
        return learner.compute_gaps(critic, rows, None, values).sum()

    slopes = jax.jit(jax.grad(penalty))(bias)
    assert slopes["0"] < -0.1
    assert slopes["1"] == 0.0
    assert slopes["2"] > 0.1


def test_the_factor_follows_the_penalty() -> None:
    plain, state, batch = continuous()
    penalty = float(updated(plain, state, batch)[1]["cql_loss"])
    weight = float(batch.weight.mean())
    for thresh, sign in (((penalty - 1.0) / weight, 1.0), ((penalty + 1.0) / weight, -1.0)):
        learner, _, _ = learning_factor()
        start = jax.jit(learner.init)(jax.random.key(0)).temperature
        params = {**start.params, LOG_ALPHA_PRIME: jnp.asarray(np.log(1.5), jnp.float32)}
        own = replace(state, temperature=replace(start, params=params))
        own = ac.with_values(own, lagrangian_thresh=thresh, critic_lr=1e-2)
        after, metrics = updated(learner, own, batch)
        np.testing.assert_allclose(metrics["alpha_prime_value"], 1.5, rtol=1e-5)
        np.testing.assert_allclose(metrics["alpha_prime_loss"], -sign * 1.5, rtol=1e-3)
        moved = after.temperature.params[LOG_ALPHA_PRIME] - params[LOG_ALPHA_PRIME]
        np.testing.assert_allclose(moved, sign * 1e-2, rtol=1e-3)  # Adam's first step is its rate
        # Two critics, each with the factor times what exceeds the threshold.
        without = metrics["qf_loss"] + metrics["policy_loss"] + metrics["alpha_loss"]
        total = without + 2 * 1.5 * sign + metrics["alpha_prime_loss"]
        np.testing.assert_allclose(metrics["total_loss"], total, rtol=1e-3)
        assert after.temperature.params[LOG_ALPHA] != start.params[LOG_ALPHA]
    assert LOG_ALPHA_PRIME not in state.temperature.params


def test_without_the_penalty_it_is_sac() -> None:
    """Targets with entropies, no imitation, other keys: one critic's step of SAC's."""
    learner, state, batch = discrete(deterministic_backup=False)
    state = ac.with_values(state, min_q_weight=0.0)
    sac = ac.learner_of(
        SACConfig(), DISCRETE, ac.MASKED, td_error_loss_fn="mse", actor_lr=3e-4, initial_alpha=ALPHA
    )
    own = ac.state_of(sac)
    want, _ = ac.updated(sac, own, batch)
    got, _ = updated(learner, state, batch)
    ac.assert_trees_close(got.sgd.params, want.sgd.params)
    ac.assert_trees_close(got.target.params, want.target.params)


@pytest.mark.parametrize("of", [continuous, discrete])
@pytest.mark.parametrize("num_updates", [CLONING, IMPROVING])
def test_rows_without_weight_change_nothing(of: Any, num_updates: int) -> None:
    update = functools.partial(updated, num_updates=num_updates)
    ac.assert_hidden_rows_change_nothing(*of(), update)


@functools.cache
def learning_factor() -> tuple[CQLLearner, Any, Transition]:
    learner = ac.learner_of(CQLConfig(), lagrangian=True, **SETTINGS)
    return learner, ac.state_of(learner), ac.batch_of()


def test_losses_of_half_a_batch_are_half_of_its_losses() -> None:
    """Also the threshold's part of them: losses are means over all rows, by their weights."""
    learner, state, batch = discrete(lagrangian=True)
    rows = batch.weight.shape[0]
    whole = replace(batch, weight=jnp.ones(rows))
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x]), whole)
    half = replace(twice, weight=jnp.where(jnp.arange(2 * rows) < rows, 1.0, 0.0))
    want, got = (updated(learner, state, each)[1] for each in (whole, half))
    names = [name for name in want if name.endswith("loss")]
    assert {"alpha_prime_loss", "total_loss"} <= set(names)
    for name in names:
        np.testing.assert_allclose(2.0 * got[name], want[name], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("of", [discrete, learning_factor])
def test_a_nonfinite_update_changes_nothing(of: Any) -> None:
    ac.assert_nonfinite_updates_change_nothing(*of(), updated)


@pytest.mark.slow
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("of", [discrete, learning_factor])
def test_two_devices_are_one(of: Any) -> None:
    recorded.assert_devices_agree(*of())


# --- bandits ---


def with_bias(params: Any, value: float) -> Any:
    """Critics that value the last action most where nothing is known of it."""
    params = jax.tree.map(lambda x: x, params)
    for critic in params.values():
        critic["head"]["out"]["bias"] = critic["head"]["out"]["bias"].at[-1].set(value)
    return params


@pytest.mark.parametrize("config", [CQLConfig, SACConfig])
def test_an_action_without_rows_is_avoided(config: Any) -> None:
    """SAC takes the third arm, which no row has, for the value that its critics began with."""
    settings = {"bc_iters": 0} if config is CQLConfig else {}
    learner = ac.learner_of(
        config(),
        spaces.Discrete(3),
        recorded.OBSERVED,
        actor_lr=3e-3,
        critic_lr=3e-3,
        alpha_lr=0.0,
        initial_alpha=0.05,
        **settings,
    )
    batch = recorded.two_arms()
    state = jax.jit(learner.init)(jax.random.key(0))
    critics = with_bias(state.sgd.params[CRITIC], 3.0)
    state = replace(state, sgd=replace(state.sgd, params={**state.sgd.params, CRITIC: critics}))
    after = recorded.fitted(learner, batch, 400, state)
    probs = recorded.probs_of(learner, after.sgd.params, batch.obs)
    values = learner.module.compute_q_values(after.sgd.params[CRITIC], batch.obs).min(axis=0)[0]
    if config is SACConfig:
        assert probs[2] > 0.9
        assert values[2] > 2.0
    else:
        assert probs[2] < 0.02
        assert values[2] < values[:2].max()


@pytest.mark.slow
def test_a_box_is_left_at_its_rows_actions() -> None:
    """The reward rises with the action, of which the rows have none above 0.2."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.2, 0.2, (64, 1)).astype(np.float32)
    batch, space = recorded.bandit(actions, actions[:, 0]), spaces.Box(-1.0, 1.0, (1,))
    chosen = {}
    for config in (CQLConfig, SACConfig):
        settings = {"bc_iters": 0, "min_q_weight": 1.0} if config is CQLConfig else {}
        learner = ac.learner_of(
            config(),
            space,
            recorded.OBSERVED,
            actor_lr=3e-3,
            critic_lr=3e-3,
            alpha_lr=0.0,
            initial_alpha=0.01,
            **settings,
        )
        params = recorded.fitted(learner, batch, 400).sgd.params
        chosen[config] = float(learner.module.policy_dist(params[POLICY], batch.obs).mode()[0, 0])
    assert chosen[SACConfig] > 0.7
    assert abs(chosen[CQLConfig]) < 0.35


# --- settings ---


def test_settings_without_effect_are_refused() -> None:
    config = CQLConfig().offline_data(input_="data").training(lagrangian_thresh=2.0)
    with pytest.raises(ConfigError, match=r"lagrangian_thresh=2.0 has no effect with lagrangian=F"):
        config.validate()
    config.training(lagrangian=True).validate()
    learner = ac.learner_of(CQLConfig(), DISCRETE, ac.MASKED, num_actions=4)
    with pytest.raises(ConfigError, match=r"num_actions=4 has no effect in Discrete"):
        learner.init(jax.random.key(0))
