"""Minibatches: a permutation of every shard, the same however many devices hold the shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.buffers.on_policy import OnPolicyMinibatches

pytestmark = pytest.mark.allow_key_reuse

STEPS, ENVS, SHARDS = 5, 16, 4
_rows = jax.jit(OnPolicyMinibatches.minibatch_rows, static_argnums=(0, 3, 4))
_orders = jax.jit(OnPolicyMinibatches.sample_orders, static_argnums=0)


def rows_of(experience: OnPolicyMinibatches, update: int, first: int, number: int) -> np.ndarray:
    """The rows as (step, global environment), when a device holds `number` shards from `first`."""
    per_shard = ENVS // SHARDS
    envs = number * per_shard
    shards = jnp.arange(first, first + number, dtype=jnp.int32)
    orders = _orders(experience, jax.random.key(1), shards)
    rows = np.asarray(_rows(experience, jnp.int32(update), orders, STEPS, envs))
    return rows // envs * 100 + rows % envs + first * per_shard


@pytest.mark.parametrize("minibatches", [1, 5, 20])
def test_every_row_once_an_epoch(minibatches: int) -> None:
    experience = OnPolicyMinibatches(num_epochs=2, num_minibatches=minibatches, num_shards=SHARDS)
    everything = {t * 100 + e for t in range(STEPS) for e in range(ENVS)}
    orders = []
    for epoch in range(2):
        parts = [
            rows_of(experience, epoch * minibatches + i, 0, SHARDS) for i in range(minibatches)
        ]
        order = np.concatenate(parts)
        assert len(order) == len(everything)
        assert set(order.tolist()) == everything
        orders.append(order)
    assert not np.array_equal(*orders)


def test_without_reshuffling_the_first_epoch_repeats() -> None:
    experience = OnPolicyMinibatches(
        num_epochs=2, num_minibatches=5, num_shards=SHARDS, reshuffle=False
    )
    np.testing.assert_array_equal(
        rows_of(experience, 2, 0, SHARDS), rows_of(experience, 7, 0, SHARDS)
    )


@pytest.mark.parametrize("devices", [2, 4])
def test_membership_does_not_depend_on_devices(devices: int) -> None:
    experience = OnPolicyMinibatches(num_epochs=1, num_minibatches=5, num_shards=SHARDS)
    per_device = SHARDS // devices
    for update in range(5):
        alone = rows_of(experience, update, 0, SHARDS)
        shared = [rows_of(experience, update, d * per_device, per_device) for d in range(devices)]
        np.testing.assert_array_equal(np.sort(alone), np.sort(np.concatenate(shared)))


def test_each_shard_gives_an_equal_part() -> None:
    experience = OnPolicyMinibatches(num_epochs=1, num_minibatches=5, num_shards=SHARDS)
    shard = rows_of(experience, 3, 0, SHARDS) % 100 // (ENVS // SHARDS)
    np.testing.assert_array_equal(np.bincount(shard), [STEPS * ENVS // SHARDS // 5] * SHARDS)
