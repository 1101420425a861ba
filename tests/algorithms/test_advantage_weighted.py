"""IQL, AWAC and CRR: losses against plain loops in float64, bandits, and settings."""

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import AWACConfig, CRRConfig, IQLConfig
from jaxrl.core.types import Columns, Transition
from jaxrl.errors import ConfigError
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, VALUE
from tests import actor_critics as ac
from tests import recorded

DISCRETE = spaces.Discrete(ac.ACTIONS)
EXPECTILE, BETA, TEMPERATURE, MAX_WEIGHT, DRAWN = 0.7, 2.0, 0.6, 2.5, 3
AWAC_SETTINGS = {
    "temperature": TEMPERATURE,
    "max_weight": MAX_WEIGHT,
    "n_action_sample": DRAWN,
}
IQL_SETTINGS = {"expectile": EXPECTILE, "beta": BETA}
Case = tuple[Any, Any, Transition]


@functools.cache
def iql(*, is_discrete: bool) -> Case:
    return make_case(IQLConfig(), is_discrete, IQL_SETTINGS)


@functools.cache
def awac(*, is_discrete: bool, **settings: Any) -> Case:
    return make_case(AWACConfig(), is_discrete, {**AWAC_SETTINGS, **settings})


def make_case(config: Any, is_discrete: bool, settings: dict[str, Any]) -> Case:
    if not is_discrete:
        learner = ac.learner_of(config, **settings)
        return learner, ac.state_of(learner), ac.batch_of()
    learner = ac.learner_of(config, DISCRETE, ac.MASKED, **settings)
    batch = recorded.legal(ac.batch_of(DISCRETE, masked=True))
    return learner, ac.state_of(learner), batch


class Loops:
    """Networks of a case in float64, a row at a time."""

    def __init__(self, batch: Transition) -> None:
        self.batch = jax.device_get(batch)
        self.is_discrete = isinstance(self.batch.obs, dict)

    def get_obs(self, i: int, *, is_next: bool = False) -> tuple[np.ndarray, Any]:
        obs = self.batch.next_obs if is_next else self.batch.obs
        return (obs["obs"][i], obs["action_mask"][i]) if self.is_discrete else (obs[i], None)

    def compute_taken(self, critic: Any, i: int) -> np.ndarray:
        """Both critics' values of the row's action."""
        obs, action = self.get_obs(i)[0], self.batch.action[i]
        if self.is_discrete:
            return ac.critics_output(critic, obs)[:, action]
        return ac.critics_output(critic, obs, action)[:, 0]

    def compute_likelihood(self, policy: Any, i: int) -> float:
        obs, mask = self.get_obs(i)
        inputs = ac.policy_output(policy, obs)
        if self.is_discrete:
            return float(np.log(ac.softmax(inputs, mask)[self.batch.action[i]]))
        low, high = ac.BOX.low.astype(float), ac.BOX.high.astype(float)
        u = np.arctanh(2.0 * (self.batch.action[i].astype(float) - low) / (high - low) - 1.0)
        noise = (u - inputs[: ac.SIZE]) / np.exp(np.clip(inputs[ac.SIZE :], -20.0, 2.0))
        return float(ac.squashed(inputs, noise)[1])

    def compute_policy_values(
        self, policy: Any, critic: Any, i: int, noise: Any, *, is_next: bool = False
    ) -> tuple[float, float]:
        """Mean and maximum of the smaller critic over the policy's actions."""
        obs, mask = self.get_obs(i, is_next=is_next)
        inputs = ac.policy_output(policy, obs)
        if self.is_discrete:
            q = ac.critics_output(critic, obs).min(axis=0)
            return float(ac.softmax(inputs, mask) @ q), float(q[mask > 0].max())
        actions = [ac.squashed(inputs, draw)[0] for draw in noise]
        q = np.array([ac.critics_output(critic, obs, action)[:, 0].min() for action in actions])
        return float(q.mean()), float(q.max())


@pytest.mark.parametrize("is_discrete", [False, True])
def test_losses_of_iql_equal_plain_loops(is_discrete: bool) -> None:
    learner, state, batch = iql(is_discrete=is_discrete)
    after, metrics = ac.updated(learner, state, batch)
    loops, b = Loops(batch), jax.device_get(batch)
    old, new = (s.sgd.params for s in (state, after))
    vf_loss = qf_loss = policy_loss = 0.0
    for i in range(ac.ROWS):
        (obs, _), (next_obs, _) = loops.get_obs(i), loops.get_obs(i, is_next=True)
        taken = loops.compute_taken(state.target.params, i).min()
        error = taken - ac.policy_output(old[VALUE], obs)[0]
        vf_loss += b.weight[i] * abs(EXPECTILE - (error < 0.0)) * error**2
        weight = min(np.exp(BETA * (taken - ac.policy_output(new[VALUE], obs)[0])), 100.0)
        policy_loss -= b.weight[i] * weight * loops.compute_likelihood(old[POLICY], i)
        y = b.reward[i] + b.discount[i] * ac.policy_output(new[VALUE], next_obs)[0]
        qf_loss += b.weight[i] * np.sum((loops.compute_taken(old[CRITIC], i) - y) ** 2)
    np.testing.assert_allclose(metrics["vf_loss"], vf_loss / ac.ROWS, rtol=1e-4)
    np.testing.assert_allclose(metrics["qf_loss"], qf_loss / ac.ROWS, rtol=1e-4)
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss / ac.ROWS, rtol=1e-4)
    total = (vf_loss + qf_loss + policy_loss) / ac.ROWS
    np.testing.assert_allclose(metrics["total_loss"], total, rtol=1e-4)


@pytest.mark.representatives("exp-mean-False", "exp-max-True", "bin-max-True")
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("is_discrete", [False, True])
@pytest.mark.parametrize("advantage_type", ["mean", "max"])
@pytest.mark.parametrize("weight_type", ["exp", "bin"])
def test_losses_of_awac_equal_plain_loops(
    is_discrete: bool, advantage_type: str, weight_type: str
) -> None:
    learner, state, batch = awac(
        is_discrete=is_discrete, advantage_type=advantage_type, weight_type=weight_type
    )
    after, metrics = ac.updated(learner, state, batch)
    loops, b = Loops(batch), jax.device_get(batch)
    old, new = (s.sgd.params for s in (state, after))
    keys = jax.random.split(jax.random.key(3))
    following, here = (
        np.asarray(jax.random.normal(key, (ac.ROWS, number, ac.SIZE)))
        for key, number in zip(keys, (1, DRAWN), strict=True)
    )
    qf_loss = policy_loss = 0.0
    for i in range(ac.ROWS):
        value, _ = loops.compute_policy_values(
            old[POLICY], state.target.params, i, following[i], is_next=True
        )
        y = b.reward[i] + b.discount[i] * value
        qf_loss += b.weight[i] * np.sum((loops.compute_taken(old[CRITIC], i) - y) ** 2)
        values = loops.compute_policy_values(old[POLICY], new[CRITIC], i, here[i])
        baseline = values[0] if advantage_type == "mean" else values[1]
        advantage = loops.compute_taken(new[CRITIC], i).min() - baseline
        weight = min(np.exp(advantage / TEMPERATURE), MAX_WEIGHT)
        weight = weight if weight_type == "exp" else float(advantage > 0.0)
        policy_loss -= b.weight[i] * weight * loops.compute_likelihood(old[POLICY], i)
    np.testing.assert_allclose(metrics["qf_loss"], qf_loss / ac.ROWS, rtol=1e-4)
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss / ac.ROWS, rtol=1e-4, atol=1e-5)


CASES = [
    functools.partial(make, is_discrete=is_discrete)
    for make in (iql, awac)
    for is_discrete in (False, True)
]
IDS = ["iql-Box", "iql-Discrete", "awac-Box", "awac-Discrete"]


@pytest.mark.parametrize("of", CASES, ids=IDS)
def test_rows_without_weight_change_nothing(of: Any) -> None:
    ac.assert_hidden_rows_change_nothing(*of())
    assert Columns.TD_ERROR in ac.updated(*of())[1]


@pytest.mark.parametrize("of", CASES, ids=IDS)
def test_a_nonfinite_update_changes_nothing(of: Any) -> None:
    ac.assert_nonfinite_updates_change_nothing(*of())


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("iql-Box", "awac-Discrete")
@pytest.mark.parametrize("of", CASES, ids=IDS)
def test_two_devices_are_one(of: Any) -> None:
    recorded.assert_devices_agree(*of())


def test_targets_follow_the_critics_by_tau() -> None:
    learner, state, batch = iql(is_discrete=True)
    after, _ = ac.updated(learner, ac.with_values(state, tau=0.25), batch)
    want = jax.tree.map(
        lambda new, old: 0.25 * new + 0.75 * old, after.sgd.params[CRITIC], state.target.params
    )
    ac.assert_trees_close(after.target.params, want)


# --- bandits ---

FAST = {"actor_lr": 3e-3, "critic_lr": 3e-3}


def fit(config: Any, action_space: Any, batch: Transition, **settings: Any) -> tuple[Any, Any]:
    learner = ac.learner_of(config, action_space, recorded.OBSERVED, **FAST, **settings)
    return learner, recorded.fitted(learner, batch, 1500).sgd.params


@functools.cache
def make_iql() -> tuple[Any, Any, Any]:
    """Return a learner on two arms, its first state, and a program of its updates."""
    learner = ac.learner_of(
        IQLConfig(), spaces.Discrete(2), recorded.OBSERVED, **FAST, value_lr=3e-3, tau=0.1
    )
    batch = recorded.two_arms()
    run = jax.jit(lambda state: recorded.fitted(learner, batch, 1500, state))
    return learner, jax.jit(learner.init)(jax.random.key(0)), run


def fit_iql(**values: float) -> tuple[Any, Any]:
    """Return the learner and its parameters, given hyperparameters that are traced."""
    learner, state, run = make_iql()
    assert values.keys() <= state.hparams.keys()
    return learner, run(ac.with_values(state, **values)).sgd.params


@pytest.mark.parametrize(("expectile", "value"), [(0.5, 0.1), (0.95, 0.68), (0.999, 0.99)])
def test_the_value_is_the_expectile_of_the_arms(expectile: float, value: float) -> None:
    """Solve 0.9 (1 - tau) v = 0.1 tau (1 - v), of 0.9 at 0 and 0.1 at 1."""
    batch = recorded.two_arms()
    learner, params = fit_iql(expectile=expectile)
    exact = 0.1 * expectile / (0.1 * expectile + 0.9 * (1.0 - expectile))
    assert exact == pytest.approx(value, abs=0.01)
    got = learner.module.compute_values(params, batch.obs)[0]
    assert got == pytest.approx(exact, abs=0.04)


@pytest.mark.parametrize("beta", [0.0, 8.0])
def test_beta_leads_from_cloning_to_the_good_arm(beta: float) -> None:
    batch = recorded.two_arms()
    learner, params = fit_iql(beta=beta)
    prob = recorded.probs_of(learner, params, batch.obs)[1]
    if beta == 0.0:
        assert prob == pytest.approx(0.1, abs=0.03)
    else:
        assert prob > 0.9


@pytest.mark.representatives("AWAC")
@pytest.mark.parametrize(
    "config", [AWACConfig().training(temperature=0.1), CRRConfig()], ids=["AWAC", "CRR"]
)
def test_the_good_arm_is_found(config: Any) -> None:
    batch = recorded.two_arms()
    learner, params = fit(config, spaces.Discrete(2), batch, tau=0.1)
    assert recorded.probs_of(learner, params, batch.obs)[1] > 0.9


@pytest.mark.representatives("IQL")
@pytest.mark.parametrize(
    "config",
    [
        IQLConfig().training(beta=3.0, value_lr=3e-3),
        AWACConfig().training(temperature=0.3),
    ],
    ids=["IQL", "AWAC"],
)
def test_an_action_without_rows_is_avoided(config: Any) -> None:
    """Critics that value the third arm most do not lead the policy to it."""
    batch = recorded.two_arms()
    learner = ac.learner_of(config, spaces.Discrete(3), recorded.OBSERVED, **FAST)
    state = jax.jit(learner.init)(jax.random.key(0))
    critics = jax.tree.map(lambda x: x, state.sgd.params[CRITIC])
    for critic in critics.values():
        critic["head"]["out"]["bias"] = critic["head"]["out"]["bias"].at[-1].set(3.0)
    state = replace(state, sgd=replace(state.sgd, params={**state.sgd.params, CRITIC: critics}))
    params = recorded.fitted(learner, batch, 600, state).sgd.params
    assert recorded.probs_of(learner, params, batch.obs)[2] < 0.02


@pytest.mark.representatives("IQL")
@pytest.mark.parametrize(
    "config",
    [IQLConfig().training(beta=10.0, value_lr=3e-3), AWACConfig().training(temperature=0.1)],
    ids=["IQL", "AWAC"],
)
def test_a_box_is_left_at_the_best_of_its_rows(config: Any) -> None:
    """The reward is twice the action, of which the rows have none above 0.5."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.5, 0.5, (128, 1)).astype(np.float32)
    batch = recorded.bandit(actions, 2.0 * actions[:, 0])
    learner, params = fit(config, spaces.Box(-1.0, 1.0, (1,)), batch, tau=0.1)
    chosen = float(learner.module.policy_dist(params[POLICY], batch.obs).mode()[0, 0])
    assert 0.2 < chosen < 0.55


# --- settings ---


@pytest.mark.parametrize("name", ["temperature", "max_weight"])
def test_weights_of_zero_and_one_have_no_scale(name: str) -> None:
    config = CRRConfig().offline_data(input_="data").training(**{name: 0.5})
    with pytest.raises(ConfigError, match=f"{name}=0.5 has no effect with weight_type='bin'"):
        config.validate()
    config.training(weight_type="exp").validate()


def test_a_small_beta_is_explained() -> None:
    space = {"observation_space": ac.OBSERVED, "action_space": DISCRETE}
    config = IQLConfig().environment(**space).offline_data(input_="data")
    assert any("beta=0.1 weighs advantages of 1 by 1.1" in note for note in config.notes)
    assert not any("beta" in note for note in config.training(beta=3.0).notes)
