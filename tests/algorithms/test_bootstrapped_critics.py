"""CrossQ, C51 critics and REDQ against plain loops in float64, on devices, on probes, and as settings."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import (
    AWACConfig,
    CQLConfig,
    CrossQConfig,
    DDPGConfig,
    MADDPGConfig,
    PPOConfig,
    REDQConfig,
    RNNSACConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
)
from jaxrl.core.types import Columns, Transition
from jaxrl.envs import make
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.learners.actor_critic import ATOMS_CLIPPED, LOG_ALPHA
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES
from jaxrl.modules.networks import BatchRenorm, MomentRows
from jaxrl.modules.policy_and_critics import CRITIC, POLICY
from tests import actor_critics as ac
from tests import recorded

ALPHA, EPSILON = 0.7, 1e-3
ATOMS, V_MIN, V_MAX = 7, -1.5, 2.0
SUPPORT = np.linspace(V_MIN, V_MAX, ATOMS)
C51 = {"num_atoms": ATOMS, "v_min": V_MIN, "v_max": V_MAX}
CROSSED = {"use_target_network": False}
MOMENTS = ("running_mean", "running_var", "num_updates")
RENORMED = {"critic_use_batchrenorm": True}


def learner_of(config: Any, model: Any = RENORMED, space: Any = ac.BOX, **training: Any) -> Any:
    """A small learner, with renormalized critics unless told otherwise."""
    observed = ac.OBSERVED if isinstance(space, spaces.Box) else ac.MASKED
    config.rl_module(model_config={"fcnet_hiddens": [8, 8], **model}).training(**training)
    module = config.get_rl_module_spec(observed, space).build()
    return config.get_learner_class()(module=module, settings=config.training_settings)


def state_of(learner: Any, num_updates: float) -> Any:
    """A state whose moments are those of a run, after a number of updates."""
    state = ac.state_of(learner)

    def settle(path: Any, x: Any) -> Any:
        name = path[-1].key
        value = jnp.abs(x) + 0.1 if name == "running_var" else x
        return jnp.full_like(x, num_updates) if name == "num_updates" else value

    settled = jax.tree_util.tree_map_with_path(settle, state.sgd.params)
    return replace(state, sgd=replace(state.sgd, params=settled))


# --- the formulas in float64 ---


def renorm(p: Any, x: np.ndarray, mask: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows by batch renormalization, and the moments after them; by running moments with no mask."""
    p = {name: np.asarray(value, np.float64) for name, value in p.items()}
    running = np.sqrt(p["running_var"] + EPSILON)
    if mask is None:
        y, after = (x - p["running_mean"]) / running, {}
    else:
        mean, var = x[mask].mean(axis=0), x[mask].var(axis=0)
        deviation, r, d = np.sqrt(var + EPSILON), 1.0, 0.0
        if p["num_updates"] >= BatchRenorm.WARM_UP:
            r = np.clip(deviation / running, 1 / 3, 3)
            d = np.clip((mean - p["running_mean"]) / running, -5, 5)
        y = (x - mean) / deviation * r + d
        after = {
            "running_mean": 0.99 * p["running_mean"] + 0.01 * mean,
            "running_var": 0.99 * p["running_var"] + 0.01 * var,
            "num_updates": min(p["num_updates"] + 1, BatchRenorm.WARM_UP),
        }
    return y * p["scale"] + p["bias"], after


def renormed_critic(critic: Any, x: np.ndarray, mask: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Outputs `[N, n]` of one critic, and its moments after the rows of the mask."""
    joint, after = critic["joint"], {}
    x, after["renorm_in"] = renorm(joint["renorm_in"], np.asarray(x, np.float64), mask)
    for i in range(2):
        x = np.maximum(ac.dense(joint[f"dense_{i}"], x), 0.0)
        x, after[f"renorm_{i}"] = renorm(joint[f"renorm_{i}"], x, mask)
    return ac.dense(critic["head"]["out"], x), after


def next_actions(policy: Any, next_obs: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    pairs = [
        ac.squashed(ac.policy_output(policy, obs), e)
        for obs, e in zip(next_obs, noise, strict=True)
    ]
    return np.stack([action for action, _ in pairs]), np.array([p for _, p in pairs])


def project(rewards: Any, discounts: Any, probs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 of Bellemare et al. 2017, and the probability that is outside of the support."""
    gap, out = SUPPORT[1] - SUPPORT[0], np.zeros((len(rewards), ATOMS))
    outside = np.zeros(len(rewards))
    for n, (reward, discount) in enumerate(zip(rewards, discounts, strict=True)):
        for z, p in zip(SUPPORT, probs[n], strict=True):
            shifted = float(reward) + float(discount) * z
            outside[n] += p * (shifted < V_MIN or shifted > V_MAX)
            b = (min(max(shifted, V_MIN), V_MAX) - V_MIN) / gap
            low = int(np.floor(b))
            out[n, low] += p * (1.0 - (b - low))
            if b > low:
                out[n, low + 1] += p * (b - low)
    return out, outside


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# --- CrossQ ---


@functools.cache
def crossed(num_updates: float) -> tuple[Any, Any, Transition]:
    learner = learner_of(SACConfig(), initial_alpha=ALPHA, td_error_loss_fn="mse", **CROSSED)
    return learner, state_of(learner, num_updates), ac.batch_of()


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("100000")
@pytest.mark.parametrize("num_updates", [3, BatchRenorm.WARM_UP])
def test_the_joint_pass_gives_targets_and_moments_of_plain_loops(num_updates: int) -> None:
    learner, state, batch = crossed(float(num_updates))
    after, metrics = ac.updated(learner, state, batch)
    before, new, b = jax.device_get((state.sgd.params, after.sgd.params, batch))
    key, actor_key = jax.random.split(jax.random.key(3))
    actions, log_prob = next_actions(before[POLICY], b.next_obs, ac.normal(key))
    rows = np.concatenate([np.c_[b.obs, b.action], np.c_[b.next_obs, actions]])
    mask = np.tile(b.weight > 0.0, 2)
    passes = {name: renormed_critic(before[CRITIC][name], rows, mask) for name in before[CRITIC]}
    out = np.stack([values[:, 0] for values, _ in passes.values()])
    q, following = out[:, : ac.ROWS], out[:, ac.ROWS :]
    y = b.reward + b.discount * (following.min(axis=0) - ALPHA * log_prob)
    np.testing.assert_allclose(
        metrics["qf_loss"], ((q - y) ** 2 * b.weight).mean(axis=1).sum(), rtol=1e-4
    )
    np.testing.assert_allclose(
        metrics[Columns.TD_ERROR], np.abs(q - y).mean(axis=0), rtol=1e-3, atol=1e-4
    )
    for name, (_, moments) in passes.items():
        for layer, expected in moments.items():
            for moment in MOMENTS:
                got = new[CRITIC][name]["joint"][layer][moment]
                np.testing.assert_allclose(got, expected[moment], rtol=1e-4, atol=1e-6)
    # The policy is improved by the new critics at their running moments.
    actions, log_prob = next_actions(before[POLICY], b.obs, ac.normal(actor_key))
    rows = np.c_[b.obs, actions]
    q = np.stack([renormed_critic(critic, rows, None)[0][:, 0] for critic in new[CRITIC].values()])
    expected = np.mean(b.weight * (ALPHA * log_prob - q.min(axis=0)))
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-4)


def test_gradients_of_the_joint_pass_are_those_of_finite_differences() -> None:
    """Through the moments of the batch, but not through what follows the rows, nor r and d."""
    learner, state, batch = crossed(float(BatchRenorm.WARM_UP))
    critic = jax.device_get(state.sgd.params[CRITIC]["critics_0"])
    rows = np.concatenate([np.c_[batch.obs, batch.action]] * 2)
    mask = np.tile(np.asarray(batch.weight) > 0.0, 2)
    module, params = learner.module, {"critics_0": critic, "critics_1": critic}
    moment_rows = MomentRows(mask=jnp.asarray(mask), axis_name=None)

    def loss(params: Any) -> Any:
        obs, action = jnp.asarray(rows[:, :4]), jnp.asarray(rows[:, 4:])
        out, _ = module.train_critics(params, obs, action, moment_rows)
        return jnp.sum(jnp.square(out[0]))

    slopes = jax.grad(loss)(params)["critics_0"]["joint"]["dense_1"]["kernel"]
    layer = critic["joint"]["renorm_1"]
    frozen = np.asarray(rows, np.float64)
    frozen, _ = renorm(critic["joint"]["renorm_in"], frozen, mask)
    frozen = np.maximum(ac.dense(critic["joint"]["dense_0"], frozen), 0.0)
    frozen, _ = renorm(critic["joint"]["renorm_0"], frozen, mask)
    kernel = np.asarray(critic["joint"]["dense_1"]["kernel"], np.float64)
    bias = np.asarray(critic["joint"]["dense_1"]["bias"], np.float64)
    running = np.sqrt(np.asarray(layer["running_var"], np.float64) + EPSILON)
    x = np.maximum(frozen @ kernel + bias, 0.0)
    deviation = np.sqrt(x[mask].var(axis=0) + EPSILON)
    r = np.clip(deviation / running, 1 / 3, 3)
    d = np.clip((x[mask].mean(axis=0) - np.asarray(layer["running_mean"])) / running, -5, 5)

    def value(kernel: Any) -> float:
        x = np.maximum(frozen @ kernel + bias, 0.0)
        mean, deviation = x[mask].mean(axis=0), np.sqrt(x[mask].var(axis=0) + EPSILON)
        y = ((x - mean) / deviation * r + d) * layer["scale"] + layer["bias"]
        return float(np.square(ac.dense(critic["head"]["out"], y)).sum())

    step, moved = 1e-6, np.zeros_like(kernel)
    moved[2, 3] = step
    expected = (value(kernel + moved) - value(kernel - moved)) / (2 * step)
    np.testing.assert_allclose(slopes[2, 3], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("optimizer", [{"name": "adamw", "weight_decay": 0.5}])
def test_an_optimizer_leaves_moments_alone(optimizer: dict[str, Any]) -> None:
    """Their values after a step are those of another optimizer's."""
    _, state, batch = crossed(3.0)
    learner = learner_of(
        SACConfig(), initial_alpha=ALPHA, td_error_loss_fn="mse", optimizer=optimizer, **CROSSED
    )
    plain, decayed = (
        ac.updated(one, state_of(one, 3.0), batch)[0] for one in (crossed(3.0)[0], learner)
    )
    for name in MOMENTS:
        one, other = (
            s.sgd.params[CRITIC]["critics_1"]["joint"]["renorm_0"][name] for s in (plain, decayed)
        )
        np.testing.assert_array_equal(one, other)
    assert state.target.params == {}


@pytest.mark.parametrize("name", ["obs", "reward"])
def test_a_nonfinite_update_changes_no_critic_and_no_moment(name: str) -> None:
    learner, state, batch = crossed(3.0)
    value = getattr(batch, name)
    broken = replace(batch, **{name: value.at[jnp.argmax(batch.weight)].set(jnp.nan)})
    after, metrics = ac.updated(learner, state, broken)
    assert metrics[NUM_NONFINITE_UPDATES] == 1.0
    ac.assert_trees_equal(after.sgd.params[CRITIC], state.sgd.params[CRITIC])


@pytest.mark.representatives("C51")
@pytest.mark.parametrize("kind", ["SAC", "discrete SAC", "TD3", "TQC", "C51"])
def test_devices_agree_and_rows_without_weight_change_nothing(kind: str) -> None:
    space = spaces.Discrete(ac.ACTIONS) if kind == "discrete SAC" else ac.BOX
    config = {"TD3": TD3Config, "TQC": TQCConfig}.get(kind, SACConfig)()
    more = {**C51, "num_critics": 3, "num_target_critics": 2} if kind == "C51" else {}
    # Steps of Adam would be the signs of gradients that are 0 but for rounding.
    plain = {"optimizer": "sgd", "critic_lr": 0.1, "actor_lr": 0.1, "policy_delay": 1}
    learner = learner_of(config, space=space, **plain, **CROSSED, **more)
    state = state_of(learner, float(BatchRenorm.WARM_UP))
    batch = ac.batch_of(space, masked=space is not ac.BOX)
    recorded.assert_devices_agree(learner, state, batch)
    if space is not ac.BOX:
        return
    hidden = batch.weight == 0.0
    other = replace(batch, reward=jnp.where(hidden, 1e3, batch.reward))
    other = replace(other, obs=jnp.where(hidden[:, None], 9.0, batch.obs))
    first, second = (ac.updated(learner, state, rows)[0] for rows in (batch, other))
    ac.assert_trees_close(first, second)


# --- C51 ---


def categorical_loss(critics: Any, target: Any, batch: Any, actions: Any, cost: Any) -> Any:
    """The loss, the means of the atoms, and the probability outside of the support."""
    b = jax.device_get(batch)
    rows, following = np.c_[b.obs, b.action], np.c_[b.next_obs, actions]
    logits = np.stack(
        [[ac.critic_output(c, r[:4], r[4:]) for r in following] for c in target.values()]
    )
    means = softmax(logits) @ SUPPORT
    smallest = means.argmin(axis=0)
    probs = softmax(logits[smallest, np.arange(ac.ROWS)])
    assert 0 < smallest.sum() < ac.ROWS * (len(target) - 1)
    y, outside = project(b.reward - b.discount * cost, b.discount, probs)
    out = np.stack([[ac.critic_output(c, r[:4], r[4:]) for r in rows] for c in critics.values()])
    entropy = -(y[None] * np.log(softmax(out))).sum(axis=-1)
    errors = np.abs(softmax(out) @ SUPPORT - y @ SUPPORT).mean(axis=0)
    return (b.weight * entropy).mean(axis=1).sum(), errors, outside[b.weight > 0].mean()


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("SACConfig")
@pytest.mark.parametrize("config", [SACConfig, TD3Config])
def test_categorical_targets_and_losses_equal_plain_loops(config: Any) -> None:
    learner = learner_of(
        config(), {}, **C51, **({"initial_alpha": ALPHA} if config is SACConfig else {})
    )
    state, batch = ac.state_of(learner), ac.batch_of()
    after, metrics = ac.updated(learner, state, batch)
    before, target, new = jax.device_get((state.sgd.params, state.target.params, after.sgd.params))
    if config is SACConfig:
        key, actor_key = jax.random.split(jax.random.key(3))
        actions, log_prob = next_actions(before[POLICY], np.asarray(batch.next_obs), ac.normal(key))
        cost, critics = ALPHA * log_prob, target
    else:
        half = (ac.BOX.high - ac.BOX.low) / 2
        out = np.stack([ac.policy_output(target[POLICY], o) for o in np.asarray(batch.next_obs)])
        noise = np.clip(0.2 * ac.normal(jax.random.key(3)), -0.5, 0.5)
        actions = np.clip(ac.BOX.low + half * (np.tanh(out) + 1 + noise), ac.BOX.low, ac.BOX.high)
        cost, critics = np.zeros(ac.ROWS), target[CRITIC]
    loss, errors, outside = categorical_loss(before[CRITIC], critics, batch, actions, cost)
    np.testing.assert_allclose(metrics["qf_loss"], loss, rtol=1e-4)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-3, atol=1e-5)
    assert 0.05 < outside < 0.95
    np.testing.assert_allclose(metrics[ATOMS_CLIPPED], outside, rtol=1e-4)
    if config is SACConfig:
        b = jax.device_get(batch)
        actions, log_prob = next_actions(before[POLICY], b.obs, ac.normal(actor_key))
        q = [
            min(float(softmax(out) @ SUPPORT) for out in ac.critics_output(new[CRITIC], o, a))
            for o, a in zip(b.obs, actions, strict=True)
        ]
        expected = np.mean(b.weight * (ALPHA * log_prob - np.array(q)))
        np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-4)


def probed(config: Any, **training: Any) -> Any:
    """A run on a probe whose value is a discounted reward."""
    fast = {"gamma": 0.8, "actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.05}
    atoms = {"num_atoms": 21, "v_min": -0.5, "v_max": 1.5, "initial_random_timesteps": 0}
    env = "jaxrl:probe-discount-continuous-v0"
    return ac.on_probe(config, env, **fast, **atoms, **training).build()


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("TD3")
@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_categorical_values_of_a_probe_are_exact(name: str) -> None:
    table: Any = make("jaxrl:probe-discount-continuous-v0").env.value_table(0.8)  # pyright: ignore
    soft = {"alpha_lr": 0.0, "initial_alpha": 1e-3}
    config, more = (SACConfig(), soft) if name == "SAC" else (TD3Config(), {})
    with probed(config, **more) as algorithm:
        result = algorithm.train()["learners"]["default_policy"]
        module: Any = algorithm.get_module()
        params, obs = algorithm.get_weights()["default_policy"], jnp.asarray(table.obs)
        action = module.policy_dist(params[POLICY], obs).mode()
        value = module.compute_q_values(params[CRITIC], obs, action).min(axis=0)
    np.testing.assert_allclose(value, table.values, atol=0.05)
    assert 0.0 <= result[ATOMS_CLIPPED] < 0.05


# --- REDQ ---


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("SACConfig")
@pytest.mark.parametrize("config", [SACConfig, DDPGConfig])
def test_targets_use_the_smallest_of_some_critics_and_the_policy_the_mean_of_all(
    config: Any,
) -> None:
    soft = {"initial_alpha": ALPHA} if config is SACConfig else {}
    settings = {"num_critics": 5, "num_target_critics": 2, "td_error_loss_fn": "mse"}
    learner = learner_of(config(), {}, **settings, **soft)
    state, batch = ac.state_of(learner), ac.batch_of()
    b = jax.device_get(batch)
    chosen_sets = set()
    for seed in (3, 4, 5):
        after, metrics = ac.updated(learner, state, batch, seed)
        before, target, new = jax.device_get(
            (state.sgd.params, state.target.params, after.sgd.params)
        )
        key = jax.random.key(seed)
        key, actor_key = jax.random.split(key) if soft else (key, key)
        choice_key, key = jax.random.split(key)
        chosen = np.asarray(jax.random.choice(choice_key, 5, (2,), replace=False))
        chosen_sets.add(tuple(sorted(chosen)))
        if soft:
            actions, log_prob = next_actions(before[POLICY], b.next_obs, ac.normal(key))
            cost, critics = ALPHA * log_prob, target
        else:
            out = np.stack([ac.policy_output(target[POLICY], o) for o in b.next_obs])
            actions = ac.BOX.low + (ac.BOX.high - ac.BOX.low) / 2 * (np.tanh(out) + 1)
            cost, critics = 0.0, target[CRITIC]
        following = [
            ac.critics_output(critics, o, a) for o, a in zip(b.next_obs, actions, strict=True)
        ]
        y = b.reward + b.discount * (np.stack(following)[:, chosen, 0].min(axis=1) - cost)
        q = np.stack(
            [
                ac.critics_output(before[CRITIC], o, a)[:, 0]
                for o, a in zip(b.obs, b.action, strict=True)
            ]
        )
        expected = (b.weight[:, None] * (q - y[:, None]) ** 2).mean(axis=0).sum()
        np.testing.assert_allclose(metrics["qf_loss"], expected, rtol=1e-4)
        if soft:
            actions, log_prob = next_actions(before[POLICY], b.obs, ac.normal(actor_key))
        else:
            out = np.stack([ac.policy_output(before[POLICY], o) for o in b.obs])
            actions, log_prob = (
                ac.BOX.low + (ac.BOX.high - ac.BOX.low) / 2 * (np.tanh(out) + 1),
                0.0,
            )
        q = np.stack(
            [
                ac.critics_output(new[CRITIC], o, a)[:, 0]
                for o, a in zip(b.obs, actions, strict=True)
            ]
        )
        expected = np.mean(b.weight * ((ALPHA * log_prob if soft else 0.0) - q.mean(axis=1)))
        np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-4)
    assert len(chosen_sets) > 1


# --- the delay of SAC's policy ---


def test_a_delayed_policy_and_temperature_step_with_every_third_update() -> None:
    learner = ac.learner_of(SACConfig(), policy_delay=3)
    state, batch = ac.state_of(learner), ac.batch_of()
    losses = []
    for update in range(1, 7):
        after, metrics = ac.updated(learner, state, batch, seed=update)
        parts = [(s.sgd.params[POLICY], s.temperature.params[LOG_ALPHA]) for s in (state, after)]
        changed = [bool((x != y).any()) for x, y in zip(*map(jax.tree.leaves, parts), strict=True)]
        assert all(changed) if update % 3 == 0 else not any(changed)
        moved = jax.tree.map(
            lambda x, y: bool((x != y).any()),
            (after.sgd.params[CRITIC], after.target.params),
            (state.sgd.params[CRITIC], state.target.params),
        )
        assert all(jax.tree.leaves(moved))
        losses.append((float(metrics["policy_loss"]), float(metrics["alpha_loss"])))
        state = after
    assert losses[0] == losses[1] == (0.0, 0.0) != losses[2] == losses[3] == losses[4] != losses[5]
    _, metrics = ac.updated(learner, learner.without_delays(state), batch)
    assert losses[5][0] != float(metrics["policy_loss"])
    broken, metrics = ac.updated(learner, state, replace(batch, reward=batch.reward * jnp.nan))
    ac.assert_trees_equal(broken, state)


# --- settings ---


@pytest.mark.parametrize(
    ("config", "training", "model", "message"),
    [
        (
            SACConfig,
            {**CROSSED, "tau": 0.1},
            {},
            r"^tau=0.1 has no effect with use_target_network=False",
        ),
        (
            TD3Config,
            {**CROSSED, "target_network_update_freq": 8},
            {},
            r"^target_network_update_freq=8 has no effect with use_target_network=False",
        ),
        (
            SACConfig,
            {"v_min": -3.0},
            {},
            r"^v_min=-3.0 has no effect with num_atoms=1, which disables C51",
        ),
        (
            TD3Config,
            {"num_atoms": 11, "v_min": 3.0, "v_max": 3.0},
            {},
            r"^v_min must be below v_max, got 3.0 and 3.0",
        ),
        (
            SACConfig,
            {"num_atoms": 11, "td_error_loss_fn": "mse"},
            {},
            r"^td_error_loss_fn='mse' has no effect with num_atoms=11, whose loss is the cross-entropy",
        ),
        (SACConfig, {"num_atoms": 0}, {}, r"^num_atoms must be at least 1"),
        (SACConfig, {"num_critics": 0}, {}, r"^num_critics must be at least 1"),
        (
            SACConfig,
            {"num_target_critics": 3},
            {},
            r"^num_target_critics=3 cannot be drawn from 2 critics; set num_critics to 3 or more",
        ),
        (
            AWACConfig,
            {"num_critics": 3, "twin_q": False},
            {},
            r"^twin_q=False has no effect with num_critics=3, which is the number of critics",
        ),
        (
            PPOConfig,
            {},
            RENORMED,
            r"critics Q\(s, a\) of SAC, .*ActorCriticModule has none",
        ),
        (CQLConfig, {}, RENORMED, r"this algorithm learns its critics otherwise: leave it out"),
        (AWACConfig, {}, RENORMED, r"this algorithm learns its critics otherwise"),
        (RNNSACConfig, {}, RENORMED, r"critic_use_batchrenorm=True .* use_lstm .* makes sequences"),
        (RNNSACConfig, CROSSED, {}, r"^use_target_network=False joins single rows .* use_lstm"),
    ],
)
def test_wrong_settings_are_one_sentence(
    config: Any, training: Any, model: Any, message: str
) -> None:

    def build() -> None:
        made = config().environment("Pendulum-v1").training(**training)
        made.rl_module(model_config=model)
        if not made.requires_data:
            made.validate()
        made.get_rl_module_spec(ac.OBSERVED, ac.BOX).build()

    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_atoms_of_discrete_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"num_atoms=7 is for critics of actions of a Box, .*DQN"):
        learner_of(SACConfig(), {}, spaces.Discrete(ac.ACTIONS), **C51)


@pytest.mark.parametrize("settings", [C51, CROSSED, {"num_critics": 3, "num_target_critics": 2}])
def test_teams_refuse_what_their_critics_do_not_have(settings: dict[str, Any]) -> None:
    from jaxrl.envs import make_multi_agent

    config = MADDPGConfig().environment(
        make_multi_agent("Pendulum-v1"), env_config={"num_agents": 2}
    )
    with pytest.raises(ConfigError, match=r"is not supported by MADDPG: .*critic"):
        config.training(**settings).validate()


def test_presets_are_sac_with_the_values_of_their_papers() -> None:
    crossq, redq = CrossQConfig(), REDQConfig()
    model = crossq.get_default_rl_module_spec().model_config
    assert model["critic_use_batchrenorm"]
    assert model["critic_fcnet_hiddens"] == [2048, 2048]
    assert (crossq["policy_delay"], crossq["use_target_network"], crossq["actor_lr"]) == (
        3,
        False,
        1e-3,
    )
    assert crossq["optimizer"] == {"name": "adam", "b1": 0.5}
    assert (redq["num_critics"], redq["num_target_critics"], redq["policy_delay"]) == (10, 2, 20)
    plan = redq.environment("Pendulum-v1").env_runners(num_envs_per_env_runner=1).plan()
    assert plan.updates_per_iteration == 20 * plan.rollout_fragment_length
