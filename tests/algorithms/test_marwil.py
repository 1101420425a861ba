"""MARWIL's and BC's losses against plain loops, the moving average, the guard, bandits."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import BCConfig, MARWILConfig, RLModuleSpec
from jaxrl.algorithms.marwil import BCLearner, MARWILLearner, move_average
from jaxrl.core.types import (
    Columns,
    ObsSequence,
    ObsWithCarry,
    Progress,
    ReturnColumns,
    SuccessorObs,
    Transition,
)
from jaxrl.errors import ConfigError, UnknownSettingError
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from tests import actor_critics as ac
from tests import recorded
from tests.nested import drawn
from tests.recurrent import MEMORY

DISCRETE = spaces.Discrete(ac.ACTIONS)
START, RATE, BETA, VF_COEFF = 1.0, 0.25, 0.7, 0.6
SETTINGS = {
    "beta": BETA,
    "vf_coeff": VF_COEFF,
    "moving_average_sqd_adv_norm_start": START,
    "moving_average_sqd_adv_norm_update_rate": RATE,
}


@functools.cache
def marwil(masked: bool = True) -> tuple[MARWILLearner, Any, Transition]:
    """A learner, its state and rows, of discrete actions with masks or of a Box."""
    spaces_of = (DISCRETE, ac.MASKED) if masked else (ac.BOX, ac.OBSERVED)
    learner = ac.learner_of(MARWILConfig(), *spaces_of, **SETTINGS)
    batch = recorded.legal(ac.batch_of(spaces_of[0], masked=masked))
    return learner, jax.jit(learner.init)(jax.random.key(0)), recorded.with_returns(batch)


def outputs(learner: Any, params: Any, obs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the distribution and values, in float64."""
    out = jax.device_get(learner.module.forward_train(params, {Columns.OBS: obs}))
    return tuple(np.asarray(out[n], np.float64) for n in ("action_dist_inputs", "vf_preds"))


def log_prob_of(inputs: np.ndarray, action: Any, mask: Any) -> float:
    """The log-probability of a masked choice, or the density of two normal numbers."""
    if mask is not None:
        return float(np.log(ac.softmax(inputs, mask)[action]))
    mean, log_std = inputs[:2], inputs[2:]
    z = (np.asarray(action, np.float64) - mean) / np.exp(log_std)
    return float(np.sum(-0.5 * z * z - log_std - 0.5 * np.log(2 * np.pi)))


def losses_of(learner: Any, params: Any, batch: Any, norm: float) -> dict[str, float]:
    """The losses and the moving average, row by row."""
    inputs, values = outputs(learner, params, batch.obs)
    _, end_values = outputs(learner, params, batch.extras[ReturnColumns.END_OBS])
    b = jax.device_get(batch)
    masks = b.obs["action_mask"] if isinstance(b.obs, dict) else [None] * ac.ROWS
    end = b.extras[ReturnColumns.END_DISCOUNT] * end_values
    advantage = b.extras[ReturnColumns.RETURN_TO_GO] + end - values
    counted = [i for i in range(ac.ROWS) if b.weight[i] > 0]
    norm += RATE * (np.mean([advantage[i] ** 2 for i in counted]) - norm)
    policy_loss = vf_loss = 0.0
    for i in counted:
        log_prob = log_prob_of(inputs[i], b.action[i], masks[i])
        weight = np.exp(BETA * advantage[i] / np.sqrt(norm))
        policy_loss -= b.weight[i] * weight * log_prob / ac.ROWS
        vf_loss += 0.5 * b.weight[i] * advantage[i] ** 2 / ac.ROWS
    return {
        "policy_loss": policy_loss,
        "vf_loss": vf_loss,
        "total_loss": policy_loss + VF_COEFF * vf_loss,
        "moving_avg_sqd_adv_norm": norm,
    }


@pytest.mark.parametrize("masked", [True, False])
def test_losses_equal_plain_loops(masked: bool) -> None:
    learner, state, batch = marwil(masked)
    after, metrics = ac.updated(learner, state, batch)
    want = losses_of(learner, state.sgd.params, batch, START)
    for name, value in want.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(after.sqd_adv_norm, want["moving_avg_sqd_adv_norm"], rtol=1e-5)
    assert abs(after.sqd_adv_norm - START) > 0.1
    again, metrics = ac.updated(learner, after, batch)
    want = losses_of(learner, after.sgd.params, batch, float(after.sqd_adv_norm))
    np.testing.assert_allclose(metrics["total_loss"], want["total_loss"], rtol=1e-4)
    assert Columns.TD_ERROR not in metrics
    assert not np.array_equal(again.sqd_adv_norm, after.sqd_adv_norm)


def test_the_moving_average_moves_at_its_default_rate() -> None:
    """100,000 updates in float32 against float64."""
    learner = ac.learner_of(MARWILConfig(), DISCRETE, ac.MASKED, beta=BETA)
    _, state, batch = marwil()
    state = replace(jax.jit(learner.init)(jax.random.key(0)), sgd=state.sgd)
    after, metrics = ac.updated(learner, state, batch)
    start, rate = 100.0, float(np.float32(1e-8))
    mean_square = losses_of(learner, state.sgd.params, batch, 0.0)["moving_avg_sqd_adv_norm"] / RATE
    average = float(after.sqd_adv_norm) + float(after.sqd_adv_norm_rest)
    np.testing.assert_allclose(average - start, rate * (mean_square - start), rtol=1e-4)
    assert "sqd_adv_mean" not in metrics
    squares = np.random.default_rng(0).gamma(0.5, 40.0, 100_000).astype(np.float32)

    def step(carry: Any, square: Any) -> Any:
        return move_average(*carry, square, jnp.float32(1e-8)), None

    first = (jnp.float32(start), jnp.float32(0.0))
    (moved, rest), _ = jax.jit(lambda x: jax.lax.scan(step, first, x))(squares)
    expected = start
    for square in squares.astype(np.float64):
        expected += rate * (square - expected)
    assert expected < start - 0.05
    np.testing.assert_allclose(float(moved) + float(rest), expected, atol=1e-9)


def test_gradients_flow_through_log_probabilities_and_values_alone() -> None:
    """Differences of the loop, of which weights, ends and moving average stay as they are."""
    learner, state, batch = marwil()
    params = state.sgd.params
    values = learner.settings.at(state.hparams, Progress.zeros())

    def loss(params: Any) -> Any:
        return learner.compute_loss(params, batch, values, jax.random.key(0))[0]

    slopes = jax.jit(jax.grad(loss))(params)
    _, fixed_values = outputs(learner, params, batch.obs)
    _, ends = outputs(learner, params, batch.extras[ReturnColumns.END_OBS])
    extras = {key: np.asarray(batch.extras[key]) for key in ("return_to_go", "end_discount")}
    targets = extras["return_to_go"] + extras["end_discount"] * ends
    weight = np.asarray(batch.weight, np.float64)
    norm = losses_of(learner, params, batch, START)["moving_avg_sqd_adv_norm"]
    factor = weight * np.exp(BETA * (targets - fixed_values) / np.sqrt(norm))

    def slope_of(change: Any) -> float:
        out = []
        for sign in (1.0, -1.0):
            inputs, value = outputs(learner, change(sign * 1e-2), batch.obs)
            masks = np.asarray(batch.obs["action_mask"])
            log_probs = [
                log_prob_of(inputs[i], int(batch.action[i]), masks[i]) for i in range(ac.ROWS)
            ]
            vf_loss = 0.5 * np.mean(weight * (targets - value) ** 2)
            out.append(-np.mean(factor * log_probs) + VF_COEFF * vf_loss)
        return (out[0] - out[1]) / 2e-2

    for head in ("pi_head", "vf_head"):

        def moved(step: float, head: str = head) -> Any:
            bias = params[head]["out"]["bias"].at[0].add(step)
            return {**params, head: {"out": {**params[head]["out"], "bias": bias}}}

        np.testing.assert_allclose(
            slopes[head]["out"]["bias"][0], slope_of(moved), rtol=2e-2, atol=1e-4
        )


def test_behavior_cloning_is_the_mean_log_probability_and_leaves_values_alone() -> None:
    learner = ac.learner_of(BCConfig(), DISCRETE, ac.MASKED)
    assert type(learner) is BCLearner
    assert not learner.needs_returns
    state = jax.jit(learner.init)(jax.random.key(0))
    batch = recorded.legal(ac.batch_of(DISCRETE, masked=True))
    after, metrics = ac.updated(learner, state, batch)
    inputs, _ = outputs(learner, state.sgd.params, batch.obs)
    masks, b = np.asarray(batch.obs["action_mask"]), jax.device_get(batch)
    want = -sum(b.weight[i] * log_prob_of(inputs[i], b.action[i], masks[i]) for i in range(ac.ROWS))
    np.testing.assert_allclose(metrics["total_loss"], want / ac.ROWS, rtol=1e-5)
    assert "vf_loss" not in metrics
    for name in ("vf_encoder", "vf_head"):
        ac.assert_trees_equal(after.sgd.params[name], state.sgd.params[name])
    assert not hasattr(after, "sqd_adv_norm")


def test_the_program_of_behavior_cloning_computes_no_value() -> None:
    """Its compiled operations are those of a module whose value head has twice the width."""
    flops = []
    for hiddens in ([8], [512]):
        config = BCConfig().rl_module(model_config={"fcnet_hiddens": [8]})
        module = config.get_rl_module_spec(ac.OBSERVED, DISCRETE).build()
        wide = config.rl_module(model_config={"fcnet_hiddens": hiddens})
        module.network = module.network.clone(
            vf_encoder=wide.get_rl_module_spec(ac.OBSERVED, DISCRETE).build().network.vf_encoder
        )
        learner = BCLearner(module=module, settings=config.training_settings)

        def loss(params: Any, learner: Any = learner) -> Any:
            return learner.compute_loss(params, ac.batch_of(DISCRETE), None, jax.random.key(0))[0]

        params = module.init(jax.random.key(0))
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        flops.append(compiled.cost_analysis()["flops"])
    assert flops[0] == flops[1] > 0


def test_beta_of_zero_is_behavior_cloning() -> None:
    config = MARWILConfig().training(beta=0.0)
    assert config.get_learner_class() is BCLearner
    assert not config.training_settings.needs_values
    assert MARWILConfig().get_learner_class() is MARWILLearner
    assert MARWILConfig().training_settings.needs_values


def test_the_log_standard_deviation_is_maximized() -> None:
    plain, state, batch = marwil(masked=False)
    learner = ac.learner_of(MARWILConfig(), **SETTINGS, bc_logstd_coeff=0.3)
    _, metrics = ac.updated(learner, state, batch)
    _, without = ac.updated(plain, state, batch)
    inputs, values = outputs(learner, state.sgd.params, batch.obs)
    _, ends = outputs(learner, state.sgd.params, batch.extras[ReturnColumns.END_OBS])
    extras = jax.device_get(batch.extras)
    advantage = extras["return_to_go"] + extras["end_discount"] * ends - values
    weight = np.exp(BETA * advantage / np.sqrt(metrics["moving_avg_sqd_adv_norm"]))
    term = -np.mean(batch.weight * weight * 0.3 * inputs[:, 2:].mean(axis=1))
    assert abs(term) > 1e-4
    np.testing.assert_allclose(
        metrics["policy_loss"] - without["policy_loss"], term, rtol=1e-2, atol=1e-6
    )
    discrete = ac.learner_of(MARWILConfig(), DISCRETE, bc_logstd_coeff=0.3)
    with pytest.raises(ConfigError, match=r"bc_logstd_coeff=0.3 requires normal actions in a Box"):
        discrete.init(jax.random.key(0))


@pytest.mark.parametrize("masked", [True, False])
def test_rows_without_weight_change_nothing(masked: bool) -> None:
    ac.assert_hidden_rows_change_nothing(*marwil(masked))


def test_a_nonfinite_update_changes_nothing() -> None:
    ac.assert_nonfinite_updates_change_nothing(*marwil())


@pytest.mark.parametrize("masked", [True, False])
def test_two_devices_are_one(masked: bool) -> None:
    recorded.assert_devices_agree(*marwil(masked))


# --- actions and memories of every kind ---

NESTED = spaces.Dict({"arm": ac.BOX, "tool": spaces.Discrete(3), "keys": spaces.MultiBinary(2)})
ACTION_SPACES = [spaces.MultiDiscrete([2, 4]), NESTED]


@pytest.mark.representatives("nested")
@pytest.mark.parametrize("space", ACTION_SPACES, ids=["choices", "nested"])
def test_every_kind_of_action_is_imitated(space: Any) -> None:
    learner = ac.learner_of(MARWILConfig(), space, beta=1.0, lr=0.01)
    batch = recorded.with_returns(ac.batch_of(DISCRETE))
    action = jax.vmap(lambda key: drawn(space, key))(jax.random.split(jax.random.key(7), ac.ROWS))
    batch = replace(batch, action=action, weight=jnp.ones(ac.ROWS))
    state = jax.jit(learner.init)(jax.random.key(0))
    _, first = ac.updated(learner, state, batch)
    inputs, _ = outputs(learner, state.sgd.params, batch.obs)
    dist = learner.module.action_dist(jnp.asarray(inputs, jnp.float32), batch.obs)
    rows = np.asarray(dist.log_prob(batch.action))
    assert np.ptp(rows) > 0.1
    _, last = ac.updated(learner, recorded.fitted(learner, batch, 50, state), batch)
    assert last["policy_loss"] < first["policy_loss"]


def test_squashed_actions_at_the_bounds_are_imitated() -> None:
    config = BCConfig().training(lr=0.03)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=StochasticPolicyModule))
    learner = ac.learner_of(config)
    actions = np.where(np.arange(40)[:, None] % 2, ac.BOX.low, ac.BOX.high).astype(np.float32)
    actions[:20] = ac.BOX.high
    batch = replace(recorded.bandit(actions, np.zeros(40)), obs=jnp.ones((40, 4)))
    state = recorded.fitted(learner, batch, 20)
    _, metrics = ac.updated(learner, state, batch)
    assert metrics[NUM_NONFINITE_UPDATES] == 0.0
    assert np.isfinite(metrics["total_loss"])
    ac_params = state.sgd.params["policy"]
    assert np.isfinite(np.concatenate([x.ravel() for x in jax.tree.leaves(ac_params)])).all()


def test_sequences_are_losses_of_their_rows() -> None:
    """A memory's loss over sequences is that of its outputs, row by row, after the burn-in."""
    length, burn_in, number = 4, 2, 6
    config = MARWILConfig().training(**SETTINGS).rl_module(model_config=MEMORY)
    module = config.get_rl_module_spec(ac.OBSERVED, DISCRETE).build()
    learner = MARWILLearner(module=module, settings=config.training_settings)
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    sequence = ObsSequence(
        obs=normal(number, length + burn_in, 4),
        carry=None,
        is_first=jnp.asarray(rng.random((number, length + burn_in)) < 0.2),
        burn_in=burn_in,
    )
    after = jnp.tile(jnp.arange(length, dtype=jnp.int32), (number, 1))
    end_obs = SuccessorObs(obs=normal(number, length, 4), after=after, sequence=sequence)
    batch = Transition(
        obs=sequence,
        action=jnp.asarray(rng.integers(0, 3, (number, length)), jnp.int32),
        reward=normal(number, length),
        discount=jnp.zeros((number, length)),
        next_obs=end_obs,
        weight=jnp.asarray(rng.choice([0.0, 1.0], (number, length)), jnp.float32),
        extras={
            ReturnColumns.RETURN_TO_GO: normal(number, length),
            ReturnColumns.END_DISCOUNT: jnp.full((number, length), 0.5),
            ReturnColumns.END_OBS: end_obs,
        },
    )
    _, metrics = jax.jit(learner.update)(state, batch, Progress.zeros(), jax.random.key(0))
    out = module.forward_train(state.sgd.params, {Columns.OBS: sequence})
    carries = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out[Columns.STATE_OUT])
    ends = ObsWithCarry(obs=end_obs.obs.reshape(-1, 4), carry=carries)
    end_values = np.asarray(module.compute_values(state.sgd.params, ends)).reshape(number, length)
    extras = batch.extras
    advantage = np.asarray(extras["return_to_go"] - out[Columns.VF_PREDS]) + 0.5 * end_values
    counted = np.asarray(batch.weight) > 0
    norm = START + RATE * (np.mean(advantage[counted] ** 2) - START)
    logits = np.asarray(out[Columns.ACTION_DIST_INPUTS], np.float64)
    chosen = np.take_along_axis(logits, np.asarray(batch.action)[..., None], -1)[..., 0]
    log_prob = chosen - np.log(np.exp(logits).sum(-1))
    weight = np.where(counted, np.exp(BETA * advantage / np.sqrt(norm)), 0.0)
    np.testing.assert_allclose(metrics["policy_loss"], -np.mean(weight * log_prob), rtol=1e-4)
    np.testing.assert_allclose(
        metrics["vf_loss"], 0.5 * np.mean(np.where(counted, advantage**2, 0.0)), rtol=1e-4
    )


# --- bandits ---


def bandit_learner(config: Any, **settings: Any) -> Any:
    return ac.learner_of(config, spaces.Discrete(2), recorded.OBSERVED, lr=0.01, **settings)


def test_behavior_cloning_imitates_the_behavior() -> None:
    learner, batch = bandit_learner(BCConfig()), recorded.two_arms()
    state = recorded.fitted(learner, batch, 300)
    probs = recorded.probs_of(learner, state.sgd.params, batch.obs)
    np.testing.assert_allclose(probs, [0.9, 0.1], atol=0.01)


@pytest.mark.parametrize(("beta", "good"), [(1.0, 0.757), (10.0, 1.0)])
def test_larger_beta_takes_the_good_arm(beta: float, good: float) -> None:
    """V = 0.1, so that A / c is 3 and -1/3; shares are 0.1 exp(3 beta) and 0.9 exp(-beta / 3)."""
    learner = bandit_learner(
        MARWILConfig(),
        beta=beta,
        moving_average_sqd_adv_norm_start=1.0,
        moving_average_sqd_adv_norm_update_rate=0.1,
    )
    batch = recorded.two_arms()
    state = recorded.fitted(learner, batch, 600)
    np.testing.assert_allclose(state.sqd_adv_norm, 0.09, rtol=0.02)
    np.testing.assert_allclose(
        recorded.probs_of(learner, state.sgd.params, batch.obs)[1], good, atol=0.01
    )
    values = learner.module.compute_values(state.sgd.params, batch.obs)
    np.testing.assert_allclose(values, 0.1, atol=0.01)


@pytest.mark.parametrize("discount", [0.9, 0.0])
def test_cut_parts_bootstrap_and_terminated_ones_do_not(discount: float) -> None:
    """Reward 1 and the same observation: V is 1 / (1 - gamma) where the part was cut."""
    rows = 32
    batch = recorded.bandit(np.zeros(rows, np.int32), np.ones(rows))
    extras = {**batch.extras, ReturnColumns.END_DISCOUNT: jnp.full(rows, discount)}
    learner = bandit_learner(MARWILConfig())
    state = recorded.fitted(learner, replace(batch, extras=extras), 1500)
    values = learner.module.compute_values(state.sgd.params, batch.obs)
    np.testing.assert_allclose(values, 1.0 / (1.0 - discount), rtol=0.03)


# --- settings ---


@pytest.mark.parametrize("name", ["lambda_", "vf_coeff", "moving_average_sqd_adv_norm_start"])
def test_advantages_have_no_settings_without_beta(name: str) -> None:
    config = MARWILConfig().offline_data(input_="data").training(**{name: 0.5})
    config.validate()
    with pytest.raises(ConfigError, match=f"{name}=0.5 has no effect with beta=0"):
        config.training(beta=0.0).validate()


def test_behavior_cloning_takes_values_of_the_others_that_ask_for_nothing() -> None:
    BCConfig().training(beta=0.0, vf_coeff=1.0, lambda_=1.0)
    with pytest.raises(UnknownSettingError, match="'beta'"):
        BCConfig().training(beta=0.5)
