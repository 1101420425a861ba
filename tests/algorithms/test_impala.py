"""IMPALA's targets and loss against plain loops, on and off the policy that acted."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Progress, Rollout
from jaxrl.envs import make
from jaxrl.testing import references
from tests.algorithms.test_ppo_variants import (
    GAMMA,
    assert_same_gradient,
    experience,
    log_probs,
    returns_to_go,
    updated,
)
from tests.helpers import small

STEPS, ENVS = 12, 4


def recorded(seed: int = 0) -> Rollout:
    """Twelve steps of four environments, with ends of both kinds, and rows that are none."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, ENVS)

    def flags(rate: float) -> Any:
        return jnp.asarray(rng.random(shape) < rate)

    terminated = flags(0.15)
    return Rollout(
        obs=jnp.asarray(rng.normal(size=(*shape, 4)), jnp.float32),
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=terminated,
        truncated=flags(0.15) & ~terminated,
        final_obs=jnp.asarray(rng.normal(size=(*shape, 4)), jnp.float32),
        is_first=jnp.zeros(shape, bool),
        mask=~flags(0.1),
        extras={"action_logp": jnp.asarray(np.log(rng.uniform(0.1, 0.9, shape)), jnp.float32)},
    )


@functools.cache
def learner_and_state(algo: str, **training: Any) -> tuple[Any, Any]:
    """A learner, and its first state with heads that matter."""
    learner = assemble(
        small(algo, optimizer="sgd", lr=1.0, gamma=GAMMA, **training)
    ).train_step.learner
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.4, jnp.float32), state.sgd.params
    )
    return learner, replace(state, sgd=replace(state.sgd, params=params))


def prepared(learner: Any, state: Any, rollout: Rollout) -> tuple[Any, Any]:
    return jax.jit(learner.prepare)(state, rollout, Progress.zeros())


def by_loop(
    learner: Any, params: Any, rho: np.ndarray, rollout: Rollout, **bounds: float
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace column by column; the successor at a truncation is the final observation."""
    values = np.asarray(learner.module.compute_values(params, rollout.obs))
    finals = np.asarray(learner.module.compute_values(params, rollout.final_obs))
    host: Any = jax.device_get(rollout)
    following = np.concatenate([values[1:], finals[-1:]])
    following[host.truncated] = finals[host.truncated]
    columns = [
        references.vtrace(
            *(x[:, b] for x in (host.reward, values, following, rho)),
            *(x[:, b] for x in (host.terminated, host.truncated, host.mask)),
            GAMMA,
            **bounds,
        )
        for b in range(rho.shape[1])
    ]
    targets, advantages = zip(*columns, strict=True)
    return np.stack(targets, axis=1), np.stack(advantages, axis=1)


def test_targets_are_vtraces() -> None:
    bounds = {"lambda_": 0.9, "clip_rho": 1.2, "clip_pg_rho": 0.8}
    learner, state = learner_and_state(
        "IMPALA",
        lambda_=0.9,
        vtrace_clip_rho_threshold=1.2,
        vtrace_clip_pg_rho_threshold=0.8,
    )
    rollout = recorded()
    batch, metrics = prepared(learner, state, rollout)
    taken, _ = log_probs(learner.module, state.sgd.params, rollout)
    rho = np.asarray(jnp.exp(taken - rollout.extras["action_logp"]))
    assert 0.2 < (rho > 1.2).mean() < 0.8
    targets, advantages = by_loop(learner, state.sgd.params, rho, rollout, **bounds)
    mask = np.asarray(rollout.mask)
    np.testing.assert_allclose(
        np.asarray(batch.value_targets)[mask], targets[mask], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(batch.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.weight, mask / mask.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["mean_rho"], np.minimum(rho, 1.2)[mask].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["rho_clip_fraction"], (rho > 1.2)[mask].mean(), rtol=1e-5)

    shorter = replace(rollout, truncated=jnp.zeros_like(rollout.truncated))
    other, _ = prepared(learner, state, shorter)
    assert np.abs(np.asarray(other.value_targets - batch.value_targets)).max() > 0.05


def test_rounding_on_policy_is_not_clipping() -> None:
    learner, state = learner_and_state("IMPALA")
    rollout = recorded()
    taken, _ = log_probs(learner.module, state.sgd.params, rollout)
    rounded = taken * jnp.where(jnp.arange(taken.size) % 2, 1 - 3e-7, 1 + 3e-7).reshape(taken.shape)
    rollout = replace(rollout, extras={**rollout.extras, "action_logp": rounded})
    _, metrics = prepared(learner, state, rollout)
    assert metrics["rho_clip_fraction"] == 0.0
    np.testing.assert_allclose(metrics["mean_rho"], 1.0, rtol=1e-5)


def test_without_correction_the_ratio_is_one() -> None:
    learner, state = learner_and_state("IMPALA", vtrace=False)
    rollout = recorded()
    batch, metrics = prepared(learner, state, rollout)
    ones = np.ones((STEPS, ENVS))
    targets, advantages = by_loop(learner, state.sgd.params, ones, rollout)
    mask = np.asarray(rollout.mask)
    np.testing.assert_allclose(
        np.asarray(batch.value_targets)[mask], targets[mask], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(batch.advantages, advantages, rtol=1e-4, atol=1e-5)
    assert metrics["mean_rho"] == 1.0


def test_on_policy_targets_are_returns() -> None:
    """With rho = 1 and lambda = 1: rewards to the end of the episode, or of the recording."""
    learner, state, rollout, batch = experience("IMPALA")
    host = jax.device_get(rollout)
    assert host.truncated.any()
    bootstrap = np.asarray(learner.module.compute_values(state.sgd.params, rollout.final_obs))
    returns = returns_to_go(host, bootstrap)
    np.testing.assert_allclose(batch.value_targets, returns, rtol=1e-4, atol=1e-4)
    values = np.asarray(learner.module.compute_values(state.sgd.params, rollout.obs))
    np.testing.assert_allclose(batch.advantages, returns - values, rtol=1e-4, atol=1e-4)


def test_one_update_is_the_papers() -> None:
    """-A ∇log π + c_vf ½ ∇(v - vs)² - c_ent ∇H, with A and vs held fixed."""
    learner, state = learner_and_state(
        "IMPALA", vf_loss_coeff=0.3, entropy_coeff=0.05, grad_clip=None
    )
    rollout = recorded(1)
    batch, _ = prepared(learner, state, rollout)
    params, module = state.sgd.params, learner.module
    taken, _ = log_probs(module, params, rollout)
    rho = np.asarray(jnp.exp(taken - rollout.extras["action_logp"]))
    targets, advantages = (
        jnp.asarray(x, jnp.float32) for x in by_loop(learner, params, rho, rollout)
    )

    def loss(params: Any) -> Any:
        taken, entropy = log_probs(module, params, rollout)
        error = module.compute_values(params, rollout.obs) - targets
        rows = -advantages * taken + 0.3 * 0.5 * jnp.square(error) - 0.05 * entropy
        return jnp.where(rollout.mask, rows, 0.0).sum() / rollout.mask.sum()

    assert_same_gradient(updated(learner, state, batch), jax.grad(loss)(params))


@pytest.mark.representatives("minibatch")
@pytest.mark.parametrize("setting", [True, "minibatch"])
def test_advantages_can_be_normalised(setting: Any) -> None:
    learner, state = learner_and_state("IMPALA", normalize_advantages=setting, grad_clip=None)
    plain, _ = learner_and_state("IMPALA", grad_clip=None)
    rollout = recorded(2)
    batch, _ = prepared(learner, state, rollout)
    reference, _ = prepared(plain, state, rollout)
    mask = np.asarray(rollout.mask)
    rows = np.asarray(reference.advantages)[mask]
    standard = (np.asarray(reference.advantages) - rows.mean()) / rows.std()
    if setting is True:
        np.testing.assert_allclose(batch.advantages, standard, rtol=1e-3, atol=1e-4)
    wanted = replace(reference, advantages=jnp.asarray(standard, jnp.float32))
    assert_same_gradient(updated(learner, state, batch), updated(plain, state, wanted))


# --- in the compiled program ---


def run_of(algo: str, env: str, batches: int, **training: Any) -> tuple[Any, Any]:
    """The assembly and the state after so many train batches."""
    config = small(algo, env=f"jaxrl:{env}", lr=0.01, entropy_coeff=0.003, **training)
    assembly = assemble(config.rl_module(model_config={"fcnet_hiddens": [16]}))
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    return assembly, jax.jit(runner.run_batches)(state, jnp.int32(batches))[0]


def check_probe(algo: str, env: str, batches: int, **training: Any) -> None:
    """Values and most likely actions against those that are known."""
    gamma = 0.8
    assembly, state = run_of(algo, env, batches, gamma=gamma, **training)
    table = make(f"jaxrl:{env}").env.value_table(gamma)  # pyright: ignore
    out = assembly.module.forward_train(state.learner.sgd.params, {"obs": jnp.asarray(table.obs)})
    np.testing.assert_allclose(out["vf_preds"], table.values, atol=0.15)
    if table.actions is not None:
        actions = assembly.module.action_dist(out["action_dist_inputs"]).mode()
        tolerance = 0.25 if "continuous" in env else 0.0  # untrained it is off by 0.5
        np.testing.assert_allclose(actions, table.actions, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["probe-discount-v0", "probe-obs-action-continuous-v0"])
def test_probes_are_learned_from_actors_that_lag(env: str) -> None:
    check_probe("IMPALA", env, 300, broadcast_interval=3)


def test_truncation_is_not_termination() -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    assembly, state = run_of("IMPALA", "probe-truncation-v0", 400, gamma=0.9)
    value = assembly.module.compute_values(state.learner.sgd.params, jnp.zeros((1, 1)))
    np.testing.assert_allclose(value, 10.0, rtol=0.05)


@pytest.mark.representatives("True")
@pytest.mark.parametrize("vtrace", [True, False])
def test_the_correction_finds_the_policys_own_value(vtrace: bool) -> None:
    """Actors that never get new weights act at random: their value is 0, the policy's is 1.

    (Clipping rho at 1 makes it the value of min(μ, π), which here is π's.)
    """
    assembly, state = run_of(
        "IMPALA", "probe-obs-action-v0", 300, broadcast_interval=1_000_000, vtrace=vtrace
    )
    obs = jnp.asarray([[-1.0], [1.0]])
    out = assembly.module.forward_train(state.learner.sgd.params, {"obs": obs})
    np.testing.assert_allclose(out["vf_preds"], np.full(2, 1.0 if vtrace else 0.0), atol=0.2)
    actions = assembly.module.action_dist(out["action_dist_inputs"]).mode()
    np.testing.assert_array_equal(actions, [0, 1])


@pytest.mark.allow_key_reuse
def test_actors_act_with_the_latest_broadcast() -> None:
    interval = 3
    assembly = assemble(small("IMPALA", broadcast_interval=interval, lr=0.02))
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    step = jax.jit(runner.step)
    latest, ratios = state.learner.sgd.params, []
    for number in range(1, 8):
        jax.tree.map(np.testing.assert_array_equal, state.behaviour, latest)
        state, metrics = step(state)
        ratios.append(float(metrics["mean_rho"]))
        if number % interval == 0:
            latest = state.learner.sgd.params
    on_policy = [ratio > 0.99999 for ratio in ratios]
    assert on_policy == [True, False, False] * 2 + [True]

    assembly = assemble(small("IMPALA"))
    state = jax.eval_shape(assembly.run.init, jax.random.key(0), assembly.made.params)
    assert state.behaviour is None
