"""TD3's losses against plain loops in float64, its delay, its noise, DDPG as its values."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import DDPGConfig, TD3Config
from jaxrl.algorithms.td3 import TD3Learner
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns, Transition
from jaxrl.errors import SpaceError
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES
from jaxrl.modules.policy_and_critics import CRITIC, POLICY
from tests import actor_critics as ac
from tests import recorded

LOW, HIGH = np.asarray(ac.BOX.low, np.float64), np.asarray(ac.BOX.high, np.float64)
HALF = (HIGH - LOW) / 2


@functools.cache
def td3() -> tuple[TD3Learner, Any, Transition]:
    learner = ac.learner_of(TD3Config(), tau=0.25)
    return learner, ac.state_of(learner), ac.batch_of()


@functools.cache
def ddpg() -> tuple[TD3Learner, Any, Transition]:
    learner = ac.learner_of(DDPGConfig(), td_error_loss_fn="huber")
    return learner, ac.state_of(learner), ac.batch_of()


def action_of(policy: Any, obs: Any) -> np.ndarray:
    return LOW + HALF * (np.tanh(ac.policy_output(policy, obs)) + 1.0)


def critic_loss(state: Any, batch: Any, noise: Any, loss: Any) -> tuple[float, np.ndarray]:
    """Compute the loss of all rows, for noise in halves of the range, and the absolute errors."""
    before, target, b = jax.device_get((state.sgd.params, state.target.params, batch))
    total, errors = 0.0, np.zeros(ac.ROWS)
    for i in range(ac.ROWS):
        action = action_of(target[POLICY], b.next_obs[i]) + HALF * noise[i]
        action = np.minimum(np.maximum(action, LOW), HIGH)
        following = ac.critics_output(target[CRITIC], b.next_obs[i], action)[:, 0].min()
        y = b.reward[i] + b.discount[i] * following
        q = ac.critics_output(before[CRITIC], b.obs[i], b.action[i])[:, 0]
        total += b.weight[i] * sum(loss(e) for e in q - y)
        errors[i] = np.abs(q - y).mean()
    return total / ac.ROWS, errors


def policy_loss(policy: Any, critics: Any, batch: Any) -> float:
    """By the first critic alone."""
    b, total = jax.device_get(batch), 0.0
    for i in range(ac.ROWS):
        action = action_of(policy, b.obs[i])
        total -= b.weight[i] * ac.critics_output(critics, b.obs[i], action)[0, 0]
    return total / ac.ROWS


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("sigma", [0.2, 5.0])
def test_targets_are_of_smoothed_actions_and_losses_equal_plain_loops(sigma: float) -> None:
    learner, state, batch = td3()
    state = ac.with_values(replace(state, age=jnp.int32(1)), target_noise=sigma)
    after, metrics = ac.updated(learner, state, batch)
    noise = np.clip(sigma * ac.normal(jax.random.key(3)), -0.5, 0.5)
    assert np.mean(np.abs(noise) == 0.5) > (0.8 if sigma > 1 else 0.0)
    qf_loss, errors = critic_loss(state, batch, noise, lambda e: e * e)
    np.testing.assert_allclose(metrics["qf_loss"], qf_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-4, atol=1e-5)
    # The policy's step is due, and is by the critics after theirs.
    expected = policy_loss(state.sgd.params[POLICY], after.sgd.params[CRITIC], batch)
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["total_loss"], qf_loss + expected, rtol=1e-4)


def test_ddpg_is_one_critic_without_noise_or_delay() -> None:
    learner, state, batch = ddpg()
    after, metrics = ac.updated(learner, state, batch)
    assert list(state.sgd.params[CRITIC]) == ["critics_0"]
    qf_loss, _ = critic_loss(state, batch, np.zeros((ac.ROWS, ac.SIZE)), ac.huber)
    np.testing.assert_allclose(metrics["qf_loss"], qf_loss, rtol=1e-4)
    again, _ = ac.updated(learner, state, batch, seed=4)
    ac.assert_trees_equal(after, again)  # nothing is drawn
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), after.sgd.params, state.sgd.params)
    assert all(jax.tree.leaves(changed))
    expected = policy_loss(state.sgd.params[POLICY], after.sgd.params[CRITIC], batch)
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-4)


def test_the_policy_and_the_targets_step_with_every_second_update() -> None:
    learner, state, batch = td3()
    losses = []
    for update in range(1, 6):
        after, metrics = ac.updated(learner, state, batch, seed=update)
        due = update % 2 == 0
        changed = [
            not np.array_equal(x, y)
            for x, y in zip(
                jax.tree.leaves((after.sgd.params[POLICY], after.target.params)),
                jax.tree.leaves((state.sgd.params[POLICY], state.target.params)),
                strict=True,
            )
        ]
        assert all(changed) if due else not any(changed)
        if due:
            expected = jax.tree.map(
                lambda new, old: 0.25 * new + 0.75 * old, after.sgd.params, state.target.params
            )
            ac.assert_trees_close(after.target.params, expected)
        moved = jax.tree.map(
            lambda x, y: bool((x != y).any()), after.sgd.params[CRITIC], state.sgd.params[CRITIC]
        )
        assert all(jax.tree.leaves(moved))
        losses.append(float(metrics["policy_loss"]))
        state = after
    # Between its steps the policy's latest loss is reported again.
    assert losses[0] == 0.0
    assert losses[1] == losses[2] != losses[3] == losses[4]


@pytest.mark.parametrize("age", [0, 1])
def test_a_nonfinite_update_changes_nothing_at_all(age: int) -> None:
    learner, state, batch = td3()
    ac.assert_nonfinite_updates_change_nothing(learner, replace(state, age=jnp.int32(age)), batch)


class BrokenActor(TD3Learner):
    """Its policy's loss is no number; the critics' is."""

    def actor_loss(self, *arguments: Any) -> Any:
        loss, metrics = super().actor_loss(*arguments)
        return loss * jnp.nan, metrics


def test_a_nonfinite_policy_step_takes_the_critics_back_too() -> None:
    learner, state, batch = ddpg()
    learner = BrokenActor(module=learner.module, settings=learner.settings, log_gradients=True)
    after, metrics = ac.updated(learner, state, batch)
    assert metrics[NUM_NONFINITE_UPDATES] == 1.0
    ac.assert_trees_equal(after, state)


def test_rows_without_weight_change_nothing() -> None:
    learner, state, batch = td3()
    ac.assert_hidden_rows_change_nothing(learner, replace(state, age=jnp.int32(1)), batch)


def test_settings_that_rllib_had_are_understood() -> None:
    config = TD3Config().training(use_huber=True, huber_threshold=1.0, l2_reg=0.0)
    assert config.explicit == {"td_error_loss_fn"}
    assert config.training_settings.td_error_loss_fn == "huber"


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"actions of a Box, but action_space is Discrete"):
        ac.learner_of(TD3Config(), spaces.Discrete(2))


# --- through the runner ---

GREEDY = {"initial_random_timesteps": 0}


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("ou")
@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_noise_is_drawn_as_set_and_a_process_starts_anew_with_each_episode(kind: str) -> None:
    """By the draws that the rollout got, step by step; episodes are of five steps."""
    settings = {"exploration_noise": kind, "exploration_sigma": 0.05, "ou_theta": 0.15, **GREEDY}
    config = ac.on_probe(TD3Config(), "Pendulum-v1", **settings).environment(max_episode_steps=5)
    assembly = assemble(config)
    runner, sampler, steps = assembly.run, assembly.rollout_worker, 200
    state = jax.jit(assembly.run.init)(jax.random.key(0), assembly.made.params)
    rollout = jax.jit(
        lambda s: sampler.rollout(runner.make_actor_state(s), s.env, s.carry, s.env_params, steps)[
            2
        ]
    )(state)
    draws = jax.jit(lambda s: sampler.sample_inputs(s.env, steps, s.env_params).draws.noise)(state)
    draws, is_first = np.asarray(draws, np.float64), np.asarray(rollout.is_first)
    process = np.zeros((steps, 8, 1))
    for t in range(steps):
        before = np.zeros((8, 1)) if t == 0 or kind == "gaussian" else process[t - 1]
        before = np.where(is_first[t][:, None], 0.0, before)
        process[t] = 0.85 * before + 0.05 * draws[t]
    greedy = np.asarray(rollout.extras[Columns.ACTION_DIST_INPUTS], np.float64)
    expected = np.clip(greedy + process, -1.0, 1.0)  # the range's half is 1
    np.testing.assert_allclose(rollout.action, expected, atol=2e-6)
    assert is_first[::5].all()
    assert is_first.sum() == steps * 8 / 5
    noise = (np.asarray(rollout.action) - greedy)[np.abs(expected) < 1.0]
    variance = [0.05**2 * sum(0.85 ** (2 * k) for k in range(age + 1)) for age in range(5)]
    expected_std = 0.05 if kind == "gaussian" else np.sqrt(np.mean(variance))
    np.testing.assert_allclose(noise.std(), expected_std, rtol=0.08)


@pytest.mark.representatives("in_graph")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_each_environment_explores_with_its_own_deviation(placement: str) -> None:
    """The first of eight environments acts greedily, the last with a deviation of 0.07."""
    spread = {"exploration_sigma": 0.0, "exploration_sigma_max": 0.07, **GREEDY}
    config = ac.on_probe(TD3Config(), "Pendulum-v1", **spread).env_runners(placement=placement)
    config.training(num_steps_sampled_before_learning_starts=3968)  # all that the buffer holds
    config.reporting(min_sample_timesteps_per_iteration=3200)
    with config.build() as algorithm:
        algorithm.train()
        rows = jax.device_get(algorithm.state.buffer.rows.experience)
        module: Any = algorithm.get_module()
        policy = algorithm.get_weights()["default_policy"][POLICY]
        greedy = module.compute_policy_action(policy, jnp.asarray(rows.obs))
    noise = (rows.action - greedy)[:, :400, 0]
    np.testing.assert_allclose(noise[0], 0.0, atol=1e-5)
    np.testing.assert_allclose(noise.std(axis=1), 0.01 * np.arange(8), rtol=0.15, atol=1e-5)


@pytest.mark.allow_key_reuse
def test_critics_look_beyond_a_truncation_and_actions_stay_in_the_space() -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    training = {"gamma": 0.8, "tau": 0.05, "critic_lr": 3e-3, "exploration_noise": "ou"} | GREEDY
    config = ac.on_probe(TD3Config(), "jaxrl:probe-truncation-continuous-v0", **training)
    obs, space = np.zeros(1, np.float32), spaces.Box(-1.0, 1.0, (1,))
    with config.build() as algorithm:
        algorithm.train()
        module: Any = algorithm.get_module()
        params = algorithm.get_weights()["default_policy"]
        action = module.compute_policy_action(params[POLICY], jnp.asarray(obs[None]))
        value = module.compute_q_values(params[CRITIC], jnp.asarray(obs[None]), action).min(axis=0)
        greedy = [algorithm.compute_single_action(obs, explore=False) for _ in range(2)]
    np.testing.assert_allclose(value, [5.0], rtol=0.06)
    np.testing.assert_array_equal(greedy[0], greedy[1])
    assert space.contains(np.asarray(greedy[0]))


# --- imitation of the rows' actions ---


@functools.cache
def imitating() -> tuple[TD3Learner, Any, Transition]:
    learner = ac.learner_of(DDPGConfig(), bc_coeff=1.5)
    return learner, ac.state_of(learner), ac.batch_of()


def imitating_loss(policy: Any, critics: Any, batch: Any, scale: float | None = None) -> Any:
    """The loss of all rows and the scale of the values, which is computed unless it is given."""
    b, size, q, distance = jax.device_get(batch), [], np.zeros(ac.ROWS), np.zeros(ac.ROWS)
    for i in range(ac.ROWS):
        action = action_of(policy, b.obs[i])
        q[i] = ac.critics_output(critics, b.obs[i], action)[0, 0]
        distance[i] = np.mean(((action - b.action[i]) / HALF) ** 2)
        size += [abs(q[i])] if b.weight[i] > 0 else []
    scale = 1.5 / np.mean(size) if scale is None else scale
    return np.mean(b.weight * (distance - scale * q)), scale


def test_the_imitating_loss_equals_a_plain_loop() -> None:
    learner, state, batch = imitating()
    after, metrics = ac.updated(learner, state, batch)
    policy, critics = state.sgd.params[POLICY], after.sgd.params[CRITIC]
    expected, scale = imitating_loss(policy, critics, batch)
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-4)

    def loss(policy: Any) -> Any:
        return learner.imitating_actor_loss(policy, critics, batch, jnp.asarray(1.5))[0]

    slope = jax.grad(loss)(policy)["head"]["out"]["bias"][0]

    def moved(step: float) -> Any:
        bias = policy["head"]["out"]["bias"].at[0].add(step)
        return {**policy, "head": {"out": {**policy["head"]["out"], "bias": bias}}}

    # The scale of the values carries no gradient.
    high, low = (imitating_loss(moved(step), critics, batch, scale)[0] for step in (1e-2, -1e-2))
    np.testing.assert_allclose(slope, (high - low) / 2e-2, rtol=1e-2)


def test_without_a_coefficient_nothing_is_imitated() -> None:
    class Refusing(TD3Learner):
        def imitating_actor_loss(self, *arguments: Any) -> Any:
            raise AssertionError

    learner, state, batch = ddpg()
    refusing = Refusing(module=learner.module, settings=learner.settings, log_gradients=True)
    first, second = (ac.updated(one, state, batch)[0] for one in (learner, refusing))
    ac.assert_trees_equal(first, second)
    assert "bc_coeff" not in state.hparams


def test_imitation_ignores_rows_without_weight_and_agrees_over_devices() -> None:
    learner, state, batch = imitating()
    hidden = batch.weight == 0.0
    other = replace(
        batch,
        action=jnp.where(hidden[:, None], 0.5, batch.action),
        obs=jnp.where(hidden[:, None], 3.0, batch.obs),
    )
    first, second = (ac.updated(learner, state, rows)[0] for rows in (batch, other))
    ac.assert_trees_close(first, second)
    recorded.assert_devices_agree(learner, state, batch)


@pytest.mark.slow
def test_imitation_keeps_the_policy_at_the_rows_actions() -> None:
    """The reward rises with the action, of which the rows have none above 0.2."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.2, 0.2, (64, 1)).astype(np.float32)
    batch, space = recorded.bandit(actions, actions[:, 0]), spaces.Box(-1.0, 1.0, (1,))
    chosen = {}
    for coeff in (None, 0.1):
        config = DDPGConfig()
        learner = ac.learner_of(config, space, recorded.OBSERVED, bc_coeff=coeff, actor_lr=3e-3)
        params = recorded.fitted(learner, batch, 300).sgd.params
        chosen[coeff] = float(learner.module.compute_policy_action(params[POLICY], batch.obs)[0, 0])
    assert chosen[None] > 0.8
    assert abs(chosen[0.1]) < 0.2
