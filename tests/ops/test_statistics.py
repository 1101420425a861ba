"""Running moments against NumPy on everything seen."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxrl.ops.statistics import RunningMoments
from jaxrl.testing import references


def _batches(num=6, shape=(7, 4, 3)):
    rng = np.random.default_rng(0)
    rows = (3.0 + 10.0 * rng.normal(size=(num, *shape)) * np.arange(1, 4)).astype(np.float32)
    return rows, rng.random((num, *shape[:2])) < 0.7


@pytest.mark.parametrize("jitted", [False, True])
def test_updates_equal_numpy_on_all_rows(jitted):
    rows, masks = _batches()
    update = RunningMoments.update
    update = jax.jit(update) if jitted else update
    moments = RunningMoments.zeros((3,))
    for batch, mask in zip(rows, masks, strict=True):
        moments = update(moments, jnp.where(mask[..., None], batch, jnp.nan), jnp.asarray(mask))
    mean, variance = references.mean_and_variance(rows, masks)
    assert moments.count == masks.sum()
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(moments.variance(), variance, rtol=1e-5)
    np.testing.assert_allclose(moments.std(), np.sqrt(variance), rtol=1e-5)


def test_scalar_stream_without_a_mask():
    rows, _ = _batches(shape=(50, 1))
    moments = RunningMoments.zeros(())
    for batch in rows[..., 0, 0]:
        moments = moments.update(jnp.asarray(batch))
    np.testing.assert_allclose(moments.mean, rows[..., 0, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(moments.variance(), rows[..., 0, 0].var(ddof=1), rtol=1e-5)


def test_merge_equals_one_stream_and_empty_is_neutral():
    rows, masks = (jnp.asarray(x) for x in _batches())
    zero = RunningMoments.zeros((3,))
    left, right = zero.update(rows[:2], masks[:2]), zero.update(rows[2:], masks[2:])
    both = zero.update(rows, masks)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), left.merge(right), both)
    for merged in (left.merge(zero), zero.merge(left), left.update(rows, jnp.zeros_like(masks))):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), merged, left)


def test_a_large_offset_does_not_cancel():
    """E[x²] − E[x]² in float32 would give garbage here."""
    rng = np.random.default_rng(1)
    moments = RunningMoments.zeros(())
    rows = (1e4 + rng.normal(size=(200, 64))).astype(np.float32)
    update = jax.jit(RunningMoments.update)
    for batch in rows:
        moments = update(moments, jnp.asarray(batch))
    np.testing.assert_allclose(moments.std(), rows.astype(np.float64).std(), rtol=1e-3)


def test_a_batch_still_counts_in_a_long_run():
    long = RunningMoments(count=jnp.asarray(1e9), mean=jnp.asarray(1.0), m2=jnp.asarray(4e9))
    later = long.update(jnp.full((4096,), 3.0))
    assert later.count > long.count
    np.testing.assert_allclose(later.mean - 1.0, 2.0 * 4096 / 1e9, rtol=0.05)


def test_normalize():
    moments = RunningMoments(
        count=jnp.asarray(101.0), mean=jnp.array([1.0, 0.0]), m2=jnp.array([400.0, 100.0])
    )
    x = jnp.array([[3.0, 0.5], [1.0, -70.0]])
    np.testing.assert_allclose(moments.normalize(x, clip=5.0), [[1, 0.5], [0, -5]], rtol=1e-4)
    fresh = RunningMoments.zeros((2,))
    np.testing.assert_allclose(fresh.normalize(x), jnp.clip(x, -10, 10), rtol=1e-6)


def test_a_constant_entry_normalizes_to_almost_zero():
    """Its mean is off by rounding, which must not be blown up to ±clip."""
    moments, x = RunningMoments.zeros((1,)), jnp.full((97, 1), 123.456, jnp.float32)
    for _ in range(20):
        moments = moments.update(x)
    assert np.abs(moments.normalize(x)).max() < 0.2


def test_over_a_mesh_equals_one_device():
    mesh = Mesh(np.array(jax.devices()[:4]), ("shard",))
    rows, masks = (jnp.asarray(x) for x in _batches())
    rows, masks = rows[0], masks[0].at[:, 0].set(False)  # the first device has no valid row
    rows, masks = jnp.concatenate([rows, rows + 1.0], 1), jnp.concatenate([masks, masks], 1)
    update = jax.jit(
        jax.shard_map(
            lambda m, x, mask: m.update(x, mask, "shard"),
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(None, "shard"), PartitionSpec(None, "shard")),
            out_specs=PartitionSpec(),
        )
    )
    zero = RunningMoments.zeros((3,))
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5),
        update(zero, rows, masks),
        zero.update(rows, masks),
    )


def test_a_program_that_computes_its_mask_has_equal_sums():
    """To the bit, so that one agent among several is normalized as a single one."""

    def compute_mask(state):
        angle = (state[:, 0] + jnp.pi) % (2.0 * jnp.pi) - jnp.pi
        return jnp.isfinite(jnp.square(angle) + 0.1 * jnp.square(state[:, 1]))[None]

    # The tests' own flags, which are taken back here, compile with fewer fusions.
    options = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
    options = {name: x for name, x in options.items() if name in os.environ.get("XLA_FLAGS", "")}
    compiled = partial(jax.jit, compiler_options=options)
    plain = compiled(lambda rows: RunningMoments.zeros((3,)).update(rows))
    masked = compiled(
        lambda rows, state: RunningMoments.zeros((3,)).update(rows, compute_mask(state))
    )
    rng = np.random.default_rng(0)
    for rows in rng.normal(size=(10, 1, 16, 3)).astype(np.float32):
        state = rng.normal(size=(16, 2)).astype(np.float32)
        jax.tree.map(np.testing.assert_array_equal, plain(rows), masked(rows, state))
