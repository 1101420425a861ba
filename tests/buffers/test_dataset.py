"""Recorded rows: successors, folds, returns, epochs and sequences, against loops over the parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.offline import concatenate_sources
from jaxrl.buffers.dataset import (
    Dataset,
    DatasetPosition,
    DatasetSampler,
    DrawnRows,
    compute_returns_to_go,
)
from jaxrl.core.types import ObsSequence, ReturnColumns, SuccessorObs
from jaxrl.episodes.packing import EpisodePart
from jaxrl.training.sharding import DEVICE_AXIS, REPLICATED, SHARDED, shard_over_devices

GAMMA = 0.9
LENGTHS = {"one": 1, "two": 2, "seven": 7}
ENDS = {"one": "terminated", "two": "truncated", "seven": "is_cut"}


def make_part(name: str, first: int = 0) -> EpisodePart:
    """Make a part whose observations are 100 x its length + t, the final one included."""
    length = LENGTHS[name]
    return EpisodePart(
        episode_id=name,
        t_started=first,
        obs=(100.0 * length + np.arange(length + 1)).astype(np.float32)[:, None],
        action=np.arange(length, dtype=np.int32),
        reward=np.arange(1.0, length + 1).astype(np.float32),
        extras={},
        version=np.zeros(length, np.int64),
        **{ENDS[name]: True},
    )


PARTS = [make_part(name) for name in LENGTHS]


@pytest.fixture(name="data")
def make_data() -> Dataset:
    return jax.tree.map(jnp.asarray, concatenate_sources([PARTS]))


def make_sampler(**changes: Any) -> DatasetSampler:
    fields = {"batch_size": 8, "num_updates": 1, "num_shards": 8}
    return DatasetSampler(**(fields | changes))


def gather_all(sampler: DatasetSampler, data: Dataset, **arguments: Any) -> Any:
    rows = jnp.arange(data.num_rows, dtype=jnp.int32)
    drawn = DrawnRows(rows=rows, learns=jnp.ones(rows.shape, bool))
    returns = compute_returns_to_go(data, jnp.float32(GAMMA)) if sampler.needs_returns else None
    return sampler.gather(data, drawn, returns, jnp.float32(GAMMA), jax.random.key(0))


def fold(part: EpisodePart, t: int, n: int) -> tuple[float, int, float]:
    """Return the reward, the successor's index and the discount of n steps from t, in a loop."""
    end = min(t + n, len(part))
    reward = sum(GAMMA**k * part.reward[t + k] for k in range(end - t))
    ends_task = part.terminated and end == len(part)
    return reward, end, 0.0 if ends_task else GAMMA ** (end - t)


@pytest.mark.parametrize("n", [1, 3])
def test_rows_have_their_own_successors_and_bootstrap_where_a_part_is_cut(
    data: Dataset, n: int
) -> None:
    batch = gather_all(make_sampler(batch_size=10, num_shards=1, n_step=(n, n)), data)
    row = 0
    for part in PARTS:
        for t in range(len(part)):
            reward, successor, discount = fold(part, t, n)
            assert batch.obs[row, 0] == part.obs[t, 0]
            assert batch.next_obs[row, 0] == part.obs[successor, 0]
            assert batch.action[row] == t
            np.testing.assert_allclose(batch.reward[row], reward, rtol=1e-6)
            np.testing.assert_allclose(batch.discount[row], discount, rtol=1e-6)
            row += 1
    assert row == data.num_rows


def test_returns_go_to_the_end_of_the_part(data: Dataset) -> None:
    batch = gather_all(make_sampler(batch_size=10, num_shards=1, needs_returns=True), data)
    row = 0
    for part in PARTS:
        for t in range(len(part)):
            reward, _, discount = fold(part, t, len(part))
            extras = {name: value[row] for name, value in batch.extras.items()}
            np.testing.assert_allclose(extras[ReturnColumns.RETURN_TO_GO], reward, rtol=1e-6)
            np.testing.assert_allclose(extras[ReturnColumns.END_DISCOUNT], discount, rtol=1e-6)
            assert extras[ReturnColumns.END_OBS][0] == part.obs[-1, 0]
            row += 1


def test_parts_of_an_episode_become_one() -> None:
    whole = make_part("seven")
    head, tail = whole.split(3)
    joined = concatenate_sources([[head, tail, make_part("one")]])
    alone = concatenate_sources([[whole, make_part("one")]])
    jax.tree.map(np.testing.assert_array_equal, joined, alone)


def test_a_gap_in_an_episode_is_no_successor() -> None:
    whole = make_part("seven")
    head, tail = whole.split(3)
    data = concatenate_sources([[head, tail.split(2)[1]]])
    assert data.truncated.tolist() == [False, False, True, False, True]
    assert data.is_first.tolist() == [True, False, False, True, False]
    assert data.last.tolist() == [2, 2, 2, 4, 4]


def draw_updates(sampler: DatasetSampler, data: Dataset, num_updates: int, devices: int) -> Any:
    """Return the rows of several updates `[U, N]`, drawn by a number of devices."""
    key = jax.random.key(3)

    def draw(data: Dataset, position: Any, update: Any) -> Any:
        axis = DEVICE_AXIS if devices > 1 else None
        return sampler.draw(data, position, jax.random.fold_in(key, update), key, axis).rows

    if devices > 1:
        inputs = REPLICATED, REPLICATED, REPLICATED
        draw = shard_over_devices(jax.devices()[:devices], draw, inputs, SHARDED)
    compiled, position, rows = jax.jit(draw), sampler.init_position(), []
    for update in range(num_updates):
        rows.append(np.asarray(compiled(data, position, np.int32(update))))
        position = sampler.advance(data, position)
    return np.stack(rows)


@pytest.mark.parametrize("devices", [1, 8])
def test_epochs_have_every_row_once(data: Dataset, devices: int) -> None:
    sampler = make_sampler(order="epochs")
    rows = draw_updates(sampler, data, 5, devices).reshape(-1)  # four epochs of ten rows
    epochs = rows.reshape(4, 10)
    assert (np.sort(epochs, axis=1) == np.arange(10)).all()
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("order", ["uniform", "epochs"])
def test_rows_do_not_depend_on_the_number_of_devices(data: Dataset, order: Any) -> None:
    sampler = make_sampler(order=order)
    one, eight = (draw_updates(sampler, data, 3, devices) for devices in (1, 8))
    np.testing.assert_array_equal(one, eight)


def test_uniform_draws_have_no_position(data: Dataset) -> None:
    sampler = make_sampler()
    assert sampler.init_position() is None
    assert sampler.advance(data, None) is None
    rows = draw_updates(sampler, data, 50, 1)
    assert set(rows.reshape(-1).tolist()) == set(range(10))


def test_the_position_counts_epochs() -> None:
    data = jax.tree.map(jnp.asarray, concatenate_sources([PARTS]))
    sampler, position = make_sampler(order="epochs"), DatasetPosition.start()
    for _ in range(6):
        position = sampler.advance(data, position)
    assert (int(position.epoch), int(position.offset)) == (4, 8)


def test_sequences_reset_at_every_part_and_end_with_the_data(data: Dataset) -> None:
    sampler = make_sampler(
        batch_size=2, num_shards=1, sequence_length=4, burn_in=2, order="epochs", n_step=(2, 2)
    )
    assert sampler.count_samples(data) == 3
    drawn = DrawnRows(rows=jnp.asarray([0, 8]), learns=jnp.ones(2, bool))
    batch = sampler.gather(data, drawn, None, jnp.float32(GAMMA), jax.random.key(0))
    sequence, successors = batch.obs, batch.next_obs
    assert isinstance(sequence, ObsSequence)
    assert isinstance(successors, SuccessorObs)
    assert sequence.is_first.tolist() == [
        [False, False, True, True, False, True],
        [False, False, False, False, True, True],
    ]
    assert sequence.obs[0, :, 0].tolist() == [705.0, 706.0, 100.0, 200.0, 201.0, 700.0]
    assert batch.weight.tolist() == [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
    # folds end with the part, and with the sequence
    assert successors.obs[0, :, 0].tolist() == [101.0, 202.0, 202.0, 701.0]
    assert successors.after[0].tolist() == [0, 2, 2, 3]
    np.testing.assert_allclose(batch.discount[0], [0.0, GAMMA**2, GAMMA, GAMMA], rtol=1e-6)
    np.testing.assert_allclose(batch.reward[0], [1.0, 1.0 + 2 * GAMMA, 2.0, 1.0], rtol=1e-6)
