"""SAC's losses against plain loops in float64, the order of its steps, the guard, probes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, SACConfig
from jaxrl.algorithms.sac import SACLearner
from jaxrl.core.types import Columns, Transition
from jaxrl.envs import make
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.learners.actor_critic import LOG_ALPHA
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES
from jaxrl.modules.policy_and_critics import CRITIC, POLICY
from tests import actor_critics as ac

DISCRETE = spaces.Discrete(ac.ACTIONS)
ALPHA = 0.7


@functools.cache
def continuous(**settings: Any) -> tuple[SACLearner, Any, Transition]:
    learner = ac.learner_of(SACConfig(), initial_alpha=ALPHA, **settings)
    return learner, ac.state_of(learner), ac.batch_of()


@functools.cache
def discrete() -> tuple[SACLearner, Any, Transition]:
    learner = ac.learner_of(SACConfig(), DISCRETE, ac.MASKED, initial_alpha=ALPHA)
    return learner, ac.state_of(learner), ac.batch_of(DISCRETE, masked=True)


def soft_value(policy: Any, critics: Any, obs: Any, noise: Any) -> tuple[float, float]:
    """min Q - alpha log pi, and log pi, of one observation and one draw."""
    action, log_prob = ac.squashed(ac.policy_output(policy, obs), noise)
    q = ac.critics_output(critics, obs, action)[:, 0].min()
    return q - ALPHA * log_prob, log_prob


def soft_values_of_all(policy: Any, critics: Any, obs: Any, mask: Any) -> tuple[float, float]:
    """The same as an expectation over all legal actions."""
    probs = ac.softmax(ac.policy_output(policy, obs), mask)
    q = ac.critics_output(critics, obs).min(axis=0)
    value = log_prob = 0.0
    for a in range(ac.ACTIONS):
        if mask[a]:
            value += probs[a] * (q[a] - ALPHA * np.log(probs[a]))
            log_prob += probs[a] * np.log(probs[a])
    return value, log_prob


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("settings", [{}, {"twin_q": False, "td_error_loss_fn": "mse"}])
def test_continuous_losses_equal_plain_loops(settings: dict[str, Any]) -> None:
    learner, state, batch = continuous(**settings)
    after, metrics = ac.updated(learner, state, batch)
    before, new, b = jax.device_get((state.sgd.params, after.sgd.params, batch))
    target_key, actor_key = jax.random.split(jax.random.key(3))
    drawn = {"target": ac.normal(target_key), "actor": ac.normal(actor_key)}
    qf_loss, policy_loss, alpha_loss, errors = 0.0, 0.0, 0.0, np.zeros(ac.ROWS)
    assert len(before[CRITIC]) == (1 if settings else 2)
    for i in range(ac.ROWS):
        following = soft_value(
            before[POLICY], state.target.params, b.next_obs[i], drawn["target"][i]
        )
        y = b.reward[i] + b.discount[i] * following[0]
        q = ac.critics_output(before[CRITIC], b.obs[i], b.action[i])[:, 0]
        for e in q - y:
            qf_loss += b.weight[i] * (e * e if settings else ac.huber(e))
            errors[i] += abs(e) / len(q)
        # The policy is improved by the critics after their step.
        value, log_prob = soft_value(before[POLICY], new[CRITIC], b.obs[i], drawn["actor"][i])
        policy_loss -= b.weight[i] * value
        alpha_loss -= np.log(ALPHA) * b.weight[i] * (log_prob - ac.SIZE)
    assert 2 < np.sum(errors > 1) < ac.ROWS - 2
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-4, atol=1e-5)
    expected = {"qf_loss": qf_loss, "policy_loss": policy_loss, "alpha_loss": alpha_loss}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value / ac.ROWS, rtol=1e-4, err_msg=name)
    total = sum(expected.values()) / ac.ROWS
    np.testing.assert_allclose(metrics["total_loss"], total, rtol=1e-4)
    np.testing.assert_allclose(metrics["target_entropy"], -ac.SIZE)


def test_discrete_losses_equal_plain_loops_over_legal_actions() -> None:
    learner, state, batch = discrete()
    after, metrics = ac.updated(learner, state, batch)
    before, new, b = jax.device_get((state.sgd.params, after.sgd.params, batch))
    mask, next_mask = b.obs["action_mask"], b.next_obs["action_mask"]
    qf_loss = policy_loss = alpha_loss = 0.0
    for i in range(ac.ROWS):
        obs, next_obs = b.obs["obs"][i], b.next_obs["obs"][i]
        following = soft_values_of_all(before[POLICY], state.target.params, next_obs, next_mask[i])
        y = b.reward[i] + b.discount[i] * following[0]
        q = ac.critics_output(before[CRITIC], obs)[:, b.action[i]]
        qf_loss += b.weight[i] * sum(ac.huber(e) for e in q - y)
        value, log_prob = soft_values_of_all(before[POLICY], new[CRITIC], obs, mask[i])
        policy_loss -= b.weight[i] * value
        # Two of the three actions are legal everywhere.
        alpha_loss -= np.log(ALPHA) * b.weight[i] * (log_prob + 0.98 * np.log(2))
    for name, value in (
        ("qf_loss", qf_loss),
        ("policy_loss", policy_loss),
        ("alpha_loss", alpha_loss),
    ):
        np.testing.assert_allclose(metrics[name], value / ac.ROWS, rtol=1e-4, err_msg=name)


def test_without_a_mask_auto_aims_below_the_largest_entropy() -> None:
    learner = ac.learner_of(SACConfig(), DISCRETE)
    target = learner.compute_target_entropy(jnp.zeros((5, 4)), jnp.zeros(5))
    np.testing.assert_allclose(target, np.full(5, 0.98 * np.log(3)), rtol=1e-6)
    learner = ac.learner_of(SACConfig(), target_entropy=-3.0)
    np.testing.assert_array_equal(
        learner.compute_target_entropy(jnp.zeros((5, 4)), jnp.zeros(5)), -3.0
    )


@pytest.mark.parametrize("of", [continuous, discrete])
def test_the_temperature_rises_below_the_target_entropy_and_falls_above_it(of: Any) -> None:
    learner, state, batch = of()
    for entropy, sign in ((-9.0, -1.0), (9.0, 1.0)):
        log_prob = jnp.full(ac.ROWS, -entropy)
        slope, _ = jax.grad(learner.alpha_loss, has_aux=True)(jnp.log(ALPHA), batch, log_prob)
        assert sign * slope > 1.0  # descending, alpha moves against it
    after, metrics = ac.updated(learner, state, batch)
    moved = after.temperature.params[LOG_ALPHA] - state.temperature.params[LOG_ALPHA]
    np.testing.assert_allclose(jnp.abs(moved), 3e-4, rtol=1e-3)  # Adam's first step is its rate
    np.testing.assert_allclose(metrics["alpha_value"], ALPHA, rtol=1e-6)


def test_each_part_has_its_own_rate_and_the_target_follows_the_critics() -> None:
    learner, state, batch = continuous()
    state = ac.with_values(state, actor_lr=0.0, critic_lr=2e-3, alpha_lr=1e-3, tau=0.25)
    after, metrics = ac.updated(learner, state, batch)
    ac.assert_trees_equal(after.sgd.params[POLICY], state.sgd.params[POLICY])
    largest = jax.tree.map(
        lambda x, y: jnp.abs(x - y).max(), after.sgd.params[CRITIC], state.sgd.params[CRITIC]
    )
    np.testing.assert_allclose(jnp.max(jnp.stack(jax.tree.leaves(largest))), 2e-3, rtol=1e-3)
    moved = after.temperature.params[LOG_ALPHA] - state.temperature.params[LOG_ALPHA]
    np.testing.assert_allclose(jnp.abs(moved), 1e-3, rtol=1e-3)
    assert (metrics["curr_actor_lr"], metrics["curr_critic_lr"]) == (0.0, np.float32(2e-3))
    expected = jax.tree.map(
        lambda new, old: 0.25 * new + 0.75 * old, after.sgd.params[CRITIC], state.target.params
    )
    ac.assert_trees_close(after.target.params, expected)


@pytest.mark.parametrize("of", [continuous, discrete])
def test_rows_without_weight_change_nothing(of: Any) -> None:
    ac.assert_hidden_rows_change_nothing(*of())


class BrokenActor(SACLearner):
    """Its policy's loss is no number; the critics' is."""

    def actor_loss(self, *arguments: Any) -> Any:
        loss, metrics = super().actor_loss(*arguments)
        return loss * jnp.nan, metrics


def test_a_nonfinite_part_leaves_all_parts_as_they_were() -> None:
    learner, state, batch = continuous()
    ac.assert_nonfinite_updates_change_nothing(learner, state, batch)
    broken = BrokenActor(module=learner.module, settings=learner.settings)
    after, metrics = ac.updated(broken, state, batch)
    assert metrics[NUM_NONFINITE_UPDATES] == 1.0
    ac.assert_trees_equal(after, state)


def test_gradient_norms_are_named_by_part() -> None:
    learner, state, batch = continuous()
    _, metrics = ac.updated(learner, state, batch)
    tensors = [x for name, x in metrics.items() if name.startswith("grad_norm/")]
    assert "grad_norm/policy.head.out.kernel" in metrics
    assert "grad_norm/critic.critics_1.head.out.kernel" in metrics
    assert "grad_norm/log_alpha" in metrics
    np.testing.assert_allclose(metrics["grad_norm"], np.sqrt(np.sum(np.square(tensors))), rtol=1e-5)


# --- settings ---


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.MultiDiscrete([2, 3]),
            r"take actions of a Box, but action_space is MultiDiscrete.*DQN.*PPO",
        ),
        (spaces.Box(-np.inf, np.inf, (2,)), r"no finite width .* finite bounds"),
    ],
)
def test_action_spaces_that_do_not_fit_are_refused(space: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        ac.learner_of(SACConfig(), space)


@pytest.mark.parametrize("name", ["vf_share_layers", "free_log_std"])
def test_model_settings_without_a_meaning_are_refused(name: str) -> None:
    config = SACConfig().rl_module(model_config={name: True})
    with pytest.raises(ConfigError, match=f"{name}=True is for"):
        config.get_rl_module_spec(ac.OBSERVED, ac.BOX).build()


# --- probes ---


def trained(env: str, **training: Any) -> Algorithm:
    """After an iteration on a probe."""
    fast = {"gamma": 0.8, "actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.05}
    soft = {"alpha_lr": 0.0, "initial_alpha": 1e-3, "td_error_loss_fn": "mse"}
    algorithm = ac.on_probe(SACConfig(), f"jaxrl:{env}", **fast, **soft, **training).build()
    algorithm.train()
    return algorithm


def values_of(algorithm: Algorithm, obs: Any) -> np.ndarray:
    """The smaller critic's value of the greedy action."""
    module: Any = algorithm.get_module()
    params, obs = algorithm.get_weights()["default_policy"], jax.tree.map(jnp.asarray, obs)
    action = module.policy_dist(params[POLICY], obs).mode()
    q = module.compute_q_values(params[CRITIC], obs, action).min(axis=0)
    return np.asarray(q if q.ndim == 1 else jnp.take_along_axis(q, action[:, None], 1)[:, 0])


@pytest.mark.allow_key_reuse
def test_critics_look_beyond_a_truncation_and_actions_stay_in_the_space() -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    obs, space = np.zeros(1, np.float32), spaces.Box(-1.0, 1.0, (1,))
    with trained("probe-truncation-continuous-v0", initial_random_timesteps=500) as algorithm:
        value = values_of(algorithm, obs[None])
        greedy = [algorithm.compute_single_action(obs, explore=False) for _ in range(2)]
        sampled = [algorithm.compute_single_action(obs, explore=True) for _ in range(2)]
    np.testing.assert_allclose(value, 5.0, rtol=0.06)
    np.testing.assert_array_equal(greedy[0], greedy[1])
    assert not np.array_equal(sampled[0], sampled[1])
    assert all(space.contains(np.asarray(action)) for action in (*greedy, *sampled))


@pytest.mark.slow
@pytest.mark.usefixtures("truncation_is_termination")
def test_a_target_that_takes_truncation_for_termination_fails_that_test() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_critics_look_beyond_a_truncation_and_actions_stay_in_the_space()


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_a_discrete_policy_learns_legal_actions() -> None:
    table = make("jaxrl:probe-mask-v0").env.value_table(0.8)  # pyright: ignore
    observations = [
        {"action_mask": np.int8([i != 2 - a for i in range(3)]), "obs": obs}
        for obs, a in zip(table.obs, table.actions, strict=True)
    ]
    with trained("probe-mask-v0") as algorithm:
        played = [algorithm.compute_single_action(obs, explore=False) for obs in observations]
        np.testing.assert_array_equal(played, table.actions)
        stacked = jax.tree.map(lambda *x: np.stack(x), *observations)
        np.testing.assert_allclose(values_of(algorithm, stacked), table.values, atol=0.1)
