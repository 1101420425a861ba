"""Rows of recorded data, made by hand, and learners that are fitted to them."""

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Counter, Progress, ReturnColumns, Transition

NUM_ROWS = 200
OBSERVED = spaces.Box(-1.0, 1.0, (2,))


def with_returns(batch: Transition) -> Transition:
    """The rows with what followed them, of which every third ends in a termination."""
    rng, shape = np.random.default_rng(5), batch.reward.shape
    discount = np.where(np.arange(batch.reward.size) % 3 > 0, 0.7, 0.0).reshape(shape)
    extras = {
        ReturnColumns.RETURN_TO_GO: jnp.asarray(2.0 * rng.normal(size=shape), jnp.float32),
        ReturnColumns.END_DISCOUNT: jnp.asarray(discount, jnp.float32),
        ReturnColumns.END_OBS: jax.tree.map(lambda x: x[::-1], batch.next_obs),
    }
    return replace(batch, extras=extras)


def legal(batch: Transition) -> Transition:
    """The rows with the next legal action in place of an illegal one."""
    if not isinstance(batch.obs, dict):
        return batch
    action, mask = batch.action, batch.obs["action_mask"]
    for _ in range(mask.shape[-1]):
        is_legal = jnp.take_along_axis(mask, action[:, None], 1)[:, 0] > 0
        action = jnp.where(is_legal, action, (action + 1) % mask.shape[-1])
    return replace(batch, action=action)


def bandit(actions: Any, rewards: Any, mask: Any = None) -> Transition:
    """One observation everywhere, and episodes of one step that terminate.

    Args:
        actions: Action of each row.
        rewards: Reward of each row.
        mask: Legal actions, or None for an observation without a mask.
    """
    rows = len(rewards)
    obs: Any = jnp.ones((rows, 2))
    if mask is not None:
        obs = {"action_mask": jnp.tile(jnp.asarray(mask, jnp.int8), (rows, 1)), "obs": obs}
    reward, zeros = jnp.asarray(rewards, jnp.float32), jnp.zeros(rows)
    return Transition(
        obs=obs,
        action=jnp.asarray(actions),
        reward=reward,
        discount=zeros,
        next_obs=obs,
        weight=jnp.ones(rows),
        extras={
            ReturnColumns.RETURN_TO_GO: reward,
            ReturnColumns.END_DISCOUNT: zeros,
            ReturnColumns.END_OBS: obs,
        },
    )


def two_arms() -> Transition:
    """Nine in ten rows take arm 0 for nothing, one takes arm 1 for a reward of 1."""
    actions = (np.arange(NUM_ROWS) % 10 == 0).astype(np.int32)
    return bandit(actions, actions.astype(np.float32))


def fitted(learner: Any, batch: Transition, num_updates: int, state: Any = None) -> Any:
    """The learner's state after updates on the same rows."""

    def step(index: Any, state: Any) -> Any:
        count = Counter.from_number(jnp.asarray(index, jnp.float32))
        progress = Progress(env_steps=count, updates=count, train_batches=count)
        key = jax.random.fold_in(jax.random.key(1), index)
        return learner.update(state, batch, progress, key)[0]

    state = jax.jit(learner.init)(jax.random.key(0)) if state is None else state
    run = jax.jit(lambda state, number: jax.lax.fori_loop(0, number, step, state))
    return run(state, jnp.asarray(num_updates))


def probs_of(learner: Any, params: Any, obs: Any) -> np.ndarray:
    """Probabilities of the actions at the first row."""
    inputs = learner.module.forward_train(params, {"obs": obs})["action_dist_inputs"]
    return np.asarray(learner.module.action_dist(inputs, obs).probs())[0]


def split_over_devices(learner: Any, state: Any, batch: Transition, seed: int = 3) -> Any:
    """State and metrics of two devices with half of the rows each, along a first axis of two."""
    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    part = dataclasses.replace(learner, axis_name="devices")
    update = jax.vmap(part.update, in_axes=(None, 0, None, None), axis_name="devices")
    return jax.jit(update)(state, halves, Progress.zeros(), jax.random.key(seed))


def assert_devices_agree(learner: Any, state: Any, batch: Transition) -> None:
    """Two devices, of which one has fewer transitions, update as one with all rows does."""
    rows = batch.weight.shape[0]
    is_row = np.arange(rows) >= rows // 2 - 3
    weight = jnp.where(is_row.reshape(rows, *(1,) * (batch.weight.ndim - 1)), batch.weight, 0.0)
    batch = replace(batch, weight=weight)
    want, want_metrics = jax.jit(learner.update)(state, batch, Progress.zeros(), jax.random.key(3))
    got, metrics = split_over_devices(learner, state, batch)
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            continue
        for one in np.asarray(x):
            np.testing.assert_allclose(one, y, rtol=2e-4, atol=1e-5)
    assert metrics.keys() == want_metrics.keys()
    for name in metrics.keys() - {"td_error"}:
        np.testing.assert_allclose(
            metrics[name].mean(), want_metrics[name], rtol=2e-4, atol=1e-5, err_msg=name
        )
