"""A2C and PG are PPO's settings: their gradients are the textbook ones."""

import dataclasses
import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Progress
from tests.algorithms.test_ppo import learner_and_batch
from tests.helpers import small

VF_COEFF, ENTROPY_COEFF, GAMMA = 0.5, 0.01, 0.9


@functools.cache
def experience(algo: str) -> tuple[Any, Any, Any, Any]:
    """The learner, its first state, the first rollout and the batch made of it."""
    config = small(algo, optimizer="sgd", lr=1.0, gamma=GAMMA)
    assembly = assemble(config.environment(max_episode_steps=5))
    runner, sampler = assembly.run, assembly.rollout_worker

    def first(key: Any, params: Any) -> Any:
        state = runner.init(key, params)
        _, _, rollout, _ = sampler.rollout(
            runner.make_actor_state(state),
            state.env,
            state.carry,
            params,
            assembly.train_step.num_steps,
        )
        batch, _ = assembly.train_step.learner.prepare(state.learner, rollout, Progress.zeros())
        return state.learner, rollout, batch

    return assembly.train_step.learner, *jax.jit(first)(jax.random.key(3), assembly.made.params)


def program(config: Any) -> str:
    """One train batch, as JAX traces it."""
    assembly = assemble(config)
    state = jax.eval_shape(assembly.run.init, jax.random.key(0), assembly.made.params)
    text = str(jax.make_jaxpr(assembly.run.step)(state))
    return re.sub(r"0x[0-9a-f]+", "address", text)


def updated(learner: Any, state: Any, batch: Any) -> Any:
    """The step that one update over the whole batch made: the gradient, the rate being 1."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    after, metrics = jax.jit(learner.update)(state, flat, Progress.zeros(), jax.random.key(0))
    assert metrics["num_nonfinite_updates"] == 0
    return jax.tree.map(jnp.subtract, state.sgd.params, after.sgd.params)


def log_probs(module: Any, params: Any, rollout: Any) -> tuple[Any, Any]:
    """log π of the actions and the entropies, written out; `[T, B]`."""
    logits = module.forward_train(params, {"obs": rollout.obs})["action_dist_inputs"]
    log_pi = logits - jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True)
    taken = jnp.where(rollout.action == 0, log_pi[..., 0], log_pi[..., 1])
    return taken, -(jnp.exp(log_pi) * log_pi).sum(axis=-1)


def returns_to_go(rollout: Any, bootstrap: np.ndarray) -> np.ndarray:
    """Discounted rewards up to the episode's end; from there the value of the final observation."""
    steps, envs = rollout.reward.shape
    result = np.zeros((steps, envs))
    for b in range(envs):
        after = bootstrap[-1, b]
        for t in reversed(range(steps)):
            if rollout.terminated[t, b]:
                after = 0.0
            elif rollout.truncated[t, b]:
                after = bootstrap[t, b]
            result[t, b] = after = rollout.reward[t, b] + GAMMA * after
    return result


def assert_same_gradient(got: Any, want: Any) -> None:
    for (path, leaf), other in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        np.testing.assert_allclose(leaf, other, rtol=2e-4, atol=2e-5, err_msg=str(path))
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(want)) > 0.01


def test_a2cs_first_gradient_is_the_policy_gradient() -> None:
    """-(R - v) ∇log π + c_vf ∇(v - R)² - c_ent ∇H, with n-step returns R (lambda is 1)."""
    learner, state, rollout, batch = experience("A2C")
    module, params, host = learner.module, state.sgd.params, jax.device_get(rollout)
    assert host.truncated.any()
    bootstrap = np.asarray(module.compute_values(params, rollout.final_obs))
    returns = jnp.asarray(returns_to_go(host, bootstrap), jnp.float32)
    advantages = returns - module.compute_values(params, rollout.obs)

    def loss(params: Any) -> Any:
        taken, entropy = log_probs(module, params, rollout)
        values = module.compute_values(params, rollout.obs)
        return (
            -(advantages * taken).mean()
            + VF_COEFF * jnp.square(values - returns).mean()
            - ENTROPY_COEFF * entropy.mean()
        )

    assert_same_gradient(updated(learner, state, batch), jax.grad(loss)(params))


def test_pgs_first_gradient_is_reinforces() -> None:
    """-G ∇log π over the rows whose return G is known."""
    learner, state, rollout, batch = experience("PG")
    module, params, host = learner.module, state.sgd.params, jax.device_get(rollout)
    terminated = replace(rollout, terminated=rollout.terminated.at[3, ::2].set(True))
    host = jax.device_get(terminated)
    batch, _ = learner.prepare(state, terminated, Progress.zeros())
    known = np.zeros(host.reward.shape, bool)
    for b in range(known.shape[1]):
        for t in reversed(range(known.shape[0])):
            later = t + 1 < known.shape[0] and known[t + 1, b]
            ended = host.terminated[t, b] or host.truncated[t, b]
            known[t, b] = host.terminated[t, b] or (later and not ended)
    assert known.any()
    assert not known.all()
    np.testing.assert_array_equal(np.asarray(batch.weight) > 0, known)
    returns = returns_to_go(host, np.zeros(known.shape))

    def loss(params: Any) -> Any:
        taken, _ = log_probs(module, params, rollout)
        return -jnp.where(known, returns * taken, 0.0).sum() / known.sum()

    got = updated(learner, state, batch)
    want = jax.grad(loss)(params)
    assert_same_gradient(got["pi_encoder"], want["pi_encoder"])
    assert_same_gradient(got["pi_head"], want["pi_head"])
    for name in ("vf_encoder", "vf_head"):  # not part of the loss
        for leaf in jax.tree.leaves(got[name]):
            np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


@pytest.mark.parametrize("algo", ["A2C", "PG"])
def test_they_are_values_of_ppos_settings(algo: str) -> None:
    theirs = small(algo)
    settings = dataclasses.asdict(theirs.training_settings)
    ppo: Any = PPOConfig().training(**settings)
    assert ppo.training_settings == theirs.training_settings
    del settings["train_batch_size"]
    assert program(small("PPO", **settings)) == program(theirs)
    assert program(small("PPO", **{**settings, "use_kl_loss": True})) != program(theirs)


# --- normalize_advantages="minibatch" ---


def test_advantages_are_normalised_over_each_minibatch() -> None:
    learner, state, batch = learner_and_batch(normalize_advantages="minibatch")
    weight, advantages = np.asarray(batch.weight), np.asarray(batch.advantages)
    rows = advantages[weight > 0]
    standard = jnp.asarray((advantages - rows.mean()) / rows.std(), jnp.float32)
    plain = learner_and_batch(normalize_advantages=False)[0]
    update, key = jax.jit(learner.update), jax.random.key(1)
    _, got = update(state, batch, Progress.zeros(), key)
    _, want = jax.jit(plain.update)(
        state, replace(batch, advantages=standard), Progress.zeros(), jax.random.key(1)
    )
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert abs(float(want["policy_loss"])) > 1e-3

    other = replace(batch, advantages=batch.advantages * 7.0 + 3.0)  # the same but for its unit
    _, scaled = update(state, other, Progress.zeros(), jax.random.key(1))
    np.testing.assert_allclose(scaled["policy_loss"], got["policy_loss"], rtol=1e-3, atol=1e-5)
    _, unscaled = jax.jit(plain.update)(state, other, Progress.zeros(), jax.random.key(1))
    assert abs(float(unscaled["policy_loss"] - got["policy_loss"])) > 0.1


def test_preparing_leaves_them_to_the_minibatch() -> None:
    texts = {}
    for setting in ("minibatch", False, True):
        runner = assemble(small("PPO", normalize_advantages=setting)).train_step
        _, state, rollout, _ = experience("A2C")
        prepare = functools.partial(runner.learner.prepare, state)
        texts[setting] = str(jax.make_jaxpr(prepare)(rollout, Progress.zeros()))
    assert texts["minibatch"] == texts[False]
    assert texts[True] != texts[False]
