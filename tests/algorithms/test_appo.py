"""APPO's loss against a plain loop, its target network's cadence, and its buffer in the program."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Progress
from jaxrl.errors import ConfigError
from tests import actor_critics as ac
from tests.algorithms.test_impala import (
    by_loop,
    check_probe,
    learner_and_state,
    prepared,
    recorded,
)
from tests.algorithms.test_ppo_variants import assert_same_gradient, log_probs, updated
from tests.helpers import assert_equal, small


def with_target(state: Any, seed: int = 3) -> Any:
    """The state with a target network that is not the policy."""
    rng = np.random.default_rng(seed)
    target = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32), state.sgd.params
    )
    return replace(state, target=target)


def test_the_loss_equals_a_plain_loop() -> None:
    learner, state = learner_and_state(
        "APPO", use_kl_loss=True, kl_coeff=0.3, clip_param=0.2, target_worker_clipping=1.1
    )
    state, rollout = with_target(state), recorded()
    batch, metrics = prepared(learner, state, rollout)

    # V-trace of the target policy, with the present values
    target_taken, _ = log_probs(learner.module, state.target, rollout)
    rho = np.asarray(jnp.exp(target_taken - rollout.extras["action_logp"]))
    targets, advantages = by_loop(learner, state.sgd.params, rho, rollout)
    mask = np.asarray(rollout.mask)
    np.testing.assert_allclose(
        np.asarray(batch.value_targets)[mask], targets[mask], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(batch.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["mean_rho"], np.minimum(rho, 1)[mask].mean(), rtol=1e-5)

    # the loss, row by row
    values = replace(learner.settings.at(state.hparams, Progress.zeros()), kl_coeff=state.kl_coeff)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    loss, reported = jax.jit(lambda params, key: learner.compute_loss(params, flat, values, key))(
        state.sgd.params, jax.random.key(1)
    )
    module, rows = learner.module, replace(rollout, obs=flat.obs, action=flat.action)
    now, entropy = (np.asarray(x) for x in log_probs(module, state.sgd.params, rows))
    out = module.forward_train(state.sgd.params, {"obs": flat.obs})
    new_log = np.asarray(jax.nn.log_softmax(out["action_dist_inputs"]))
    old = module.forward_train(state.target, {"obs": flat.obs})["action_dist_inputs"]
    old_log = np.asarray(jax.nn.log_softmax(old))
    acted = np.asarray(rollout.extras["action_logp"]).reshape(-1)
    sums = dict.fromkeys(("policy_loss", "vf_loss", "entropy", "mean_kl_loss", "mean_IS"), 0.0)
    clipped = bounded = 0
    for i in np.flatnonzero(mask.reshape(-1)):
        log_target = old_log[i, int(flat.action[i])]
        worker = min(np.exp(acted[i] - log_target), 1.1)
        bounded += worker == 1.1
        ratio = worker * np.exp(now[i] - acted[i])
        clipped += abs(ratio - 1) > 0.2
        advantage = advantages.reshape(-1)[i]
        sums["policy_loss"] -= min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        error = float(out["vf_preds"][i]) - targets.reshape(-1)[i]
        sums["vf_loss"] += 0.5 * error**2
        sums["entropy"] += entropy[i]
        sums["mean_kl_loss"] += (np.exp(old_log[i]) * (old_log[i] - new_log[i])).sum()
        sums["mean_IS"] += worker
    assert 5 < clipped < mask.sum() - 5
    assert 5 < bounded < mask.sum() - 5
    means = {name: total / mask.sum() for name, total in sums.items()}
    for name, value in means.items():
        np.testing.assert_allclose(reported[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(reported["clip_fraction"], clipped / mask.sum(), rtol=1e-5)
    want = (
        means["policy_loss"]
        + 0.5 * means["vf_loss"]
        - 0.01 * means["entropy"]
        + 0.3 * means["mean_kl_loss"]
    )
    np.testing.assert_allclose(loss, want, rtol=1e-4)


def test_the_gradient_is_that_of_the_formula() -> None:
    """Slopes in logits and values, in float64; V-trace's targets and advantages are fixed."""
    learner, state = learner_and_state(
        "APPO", use_kl_loss=True, kl_coeff=0.3, clip_param=0.2, target_worker_clipping=1.1
    )
    state = with_target(state)
    batch = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:]), prepared(learner, state, recorded())[0]
    )
    values = replace(learner.settings.at(state.hparams, Progress.zeros()), kl_coeff=state.kl_coeff)
    forward = learner.module.forward_train
    out, target = (forward(p, {"obs": batch.obs}) for p in (state.sgd.params, state.target))
    found = ac.loss_slopes(learner, out, batch, values)
    b, logits = jax.device_get(batch), out["action_dist_inputs"]
    old = target["action_dist_inputs"]
    taken = np.take_along_axis(ac.log_softmax(old), b.action[:, None], axis=1)[:, 0]
    factor = np.minimum(np.exp(b.log_prob - taken), 1.1)
    slopes = (
        ac.surrogate_slopes(logits, b.action, b.log_prob, b.advantages, 0.2, factor)
        - 0.01 * ac.entropy_slopes(logits)
        + 0.3 * ac.kl_slopes(old, logits)
    )
    weight = np.asarray(b.weight, np.float64) / len(b.weight)
    assert 0 < (weight == 0).sum() < len(weight)
    expected = weight[:, None] * slopes
    np.testing.assert_allclose(found["action_dist_inputs"], expected, rtol=1e-4, atol=1e-7)
    error = np.asarray(out["vf_preds"], np.float64) - b.value_targets
    np.testing.assert_allclose(found["vf_preds"], 0.5 * weight * error, rtol=1e-4, atol=1e-7)


def test_with_a_fresh_target_the_first_gradient_is_impalas() -> None:
    """If policy, target and acting policy are one, the surrogate's gradient is A ∇log π."""
    appo, state = learner_and_state("APPO", grad_clip=None)
    impala, other = learner_and_state("IMPALA", grad_clip=None)
    rollout = recorded(4)
    taken, _ = log_probs(appo.module, state.sgd.params, rollout)
    rollout = replace(rollout, extras={"action_logp": taken})
    state = replace(state, target=state.sgd.params)
    mine, theirs = prepared(appo, state, rollout)[0], prepared(impala, other, rollout)[0]
    assert_same_gradient(updated(appo, state, mine), updated(impala, other, theirs))


def test_the_target_network_is_renewed_when_due() -> None:
    learner, state = learner_and_state(
        "APPO",
        target_network_update_freq=1.5,
        tau=0.25,
        circular_buffer_num_batches=2,
        circular_buffer_iterations_per_batch=2,
    )
    state = with_target(state)
    first, policy = state.target, state.sgd.params
    finish = jax.jit(learner.finish)
    for age in range(1, 6):  # 1.5 x 2 x 2 batches
        state = finish(state, {}, Progress.zeros())
        assert int(state.target_age) == age
        assert_equal(state.target, first)
    state = finish(state, {}, Progress.zeros())
    assert int(state.target_age) == 0
    mixed = jax.tree.map(lambda new, old: 0.25 * new + 0.75 * old, policy, first)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), state.target, mixed)


def test_a_renewed_target_is_the_policy_bit_for_bit() -> None:
    learner, state = learner_and_state("APPO", target_network_update_freq=0.001)
    after = jax.jit(learner.finish)(with_target(state), {}, Progress.zeros())
    assert_equal(after.target, state.sgd.params)


@pytest.mark.parametrize(("kl", "factor"), [(0.05, 1.5), (0.001, 0.5), (0.012, 1.0)])
def test_the_penalty_adapts(kl: float, factor: float) -> None:
    learner, state = learner_and_state("APPO", use_kl_loss=True, kl_target=0.01)
    after = learner.finish(state, {"mean_kl_loss": jnp.float32(kl)}, Progress.zeros())
    np.testing.assert_allclose(after.kl_coeff, factor, rtol=1e-6)


# --- in the compiled program ---


@pytest.mark.slow
@pytest.mark.parametrize("env", ["probe-obs-action-v0", "probe-obs-action-continuous-v0"])
def test_probes_are_learned(env: str) -> None:
    check_probe("APPO", env, 200, circular_buffer_num_batches=8, clip_param=0.2)


@pytest.mark.allow_key_reuse
def test_each_batch_is_learned_from_k_times_in_a_buffer_written_in_place() -> None:
    size, iterations, epochs = 64, 3, 2
    config = small(
        "APPO",
        circular_buffer_num_batches=size,
        circular_buffer_iterations_per_batch=iterations,
        num_epochs=epochs,
        target_network_update_freq=0.25,
    )
    assert config.plan().updates_per_iteration == iterations * epochs
    assembly = assemble(config)
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    first = jax.device_get(state.learner)
    run = jax.jit(runner.run_batches, donate_argnums=0).lower(state, jnp.int32(1)).compile()
    whole = sum(x.nbytes for x in jax.tree.leaves(state.buffer.batches))
    memory: Any = run.memory_analysis()
    assert memory.alias_size_in_bytes > whole
    assert memory.temp_size_in_bytes < whole / 4

    for number in range(1, size + 20):
        state, row = run(state, jnp.int32(1))
        learned = max(0, number - size // 2)
        assert int(state.progress.updates) == learned * iterations * epochs
        assert int(state.guard.num_nonfinite) == 0
        assert int(row.summary.learned_batches) == (number > size // 2)
        assert int(state.buffer.uses_left.sum()) == iterations * min(number, size // 2)
        assert int(state.learner.target_age) == learned * iterations % (size * iterations // 4)
        rewards = np.asarray(state.buffer.batches.reward)
        assert (rewards.any(axis=(1, 2)) == (np.arange(size) < number)).all()
        if not learned:
            assert_equal(state.learner, first)
    assert np.isfinite([float(x) for x in row.summary.metrics.values()]).all()


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = small("APPO", circular_buffer_num_batches=3, broadcast_interval=2)
    with config.build() as algorithm:
        algorithm.train()
        algorithm.train()
        path = algorithm.save(str(tmp_path / "saved"))
        algorithm.train()
        algorithm.train()
        with Algorithm.from_checkpoint(path) as other:
            other.train()
            other.train()
            assert_equal(algorithm.state, other.state)


# --- from runners on the host ---


@pytest.mark.slow
def test_a_host_environments_batches_fill_the_same_buffer() -> None:
    config = small("APPO", "gymnasium:CartPole-v1", circular_buffer_num_batches=3)
    config.training(circular_buffer_iterations_per_batch=3)
    config.env_runners(observation_filter="MeanStdFilter")
    with config.build() as algorithm:
        for number in range(1, 5):
            learned = algorithm.train()["learners"]["default_policy"]
            assert learned["num_updates_lifetime"] == max(0, number - 1) * 3
            filled = np.asarray(algorithm.state.buffer.batches.mask).all(axis=(1, 2))
            assert (filled == (np.arange(3) < number)).all()
        assert 0.0 < learned["mean_rho"] <= 1.0


def test_whole_episodes_do_not_fit_a_buffer() -> None:
    config = small("APPO", "gymnasium:CartPole-v1", circular_buffer_num_batches=3)
    config.env_runners(batch_mode="complete_episodes")
    with pytest.raises(ConfigError, match=r"circular_buffer_num_batches=3 .* one shape"):
        assemble(config)
