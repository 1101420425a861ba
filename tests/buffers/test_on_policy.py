"""Minibatches: a permutation of every shard, the same however many devices hold the shards."""

from fractions import Fraction

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


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("size", [12, 28, 76])
def test_a_minibatch_that_does_not_divide_the_batch_continues_in_the_next_epoch(
    size: int, epochs: int
) -> None:
    number, everything = STEPS * ENVS, {t * 100 + e for t in range(STEPS) for e in range(ENVS)}
    experience = OnPolicyMinibatches(
        num_epochs=epochs, num_minibatches=Fraction(number, size), num_shards=SHARDS
    )
    assert experience.num_updates == -(-epochs * number // size)
    shards = np.concatenate(  # the order of each shard, over all updates
        [
            rows_of(experience, i, 0, SHARDS).reshape(SHARDS, size // SHARDS)
            for i in range(experience.num_updates)
        ],
        axis=1,
    )
    each = number // SHARDS
    passes = [shards[:, i * each : (i + 1) * each] for i in range(epochs)]
    for rows in passes:
        assert set(rows.ravel().tolist()) == everything
    assert len({tuple(rows.ravel()) for rows in passes}) == epochs
    rest = shards[:, epochs * each :].ravel().tolist()  # from an additional epoch
    assert len(set(rest)) == len(rest) == experience.num_updates * size - epochs * number
    assert rest == [] or rest != passes[0][:, : len(rest) // SHARDS].ravel().tolist()


def test_without_reshuffling_the_cycle_repeats() -> None:
    experience = OnPolicyMinibatches(
        num_epochs=3, num_minibatches=Fraction(80, 32), num_shards=SHARDS, reshuffle=False
    )
    assert experience.num_updates == 8
    np.testing.assert_array_equal(
        rows_of(experience, 0, 0, SHARDS), rows_of(experience, 5, 0, SHARDS)
    )
    assert not np.array_equal(rows_of(experience, 0, 0, SHARDS), rows_of(experience, 3, 0, SHARDS))


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
