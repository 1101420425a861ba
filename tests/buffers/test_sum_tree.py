"""The sum tree against NumPy, and what is wrong with flashbax's."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashbax.buffers import sum_tree as flashbax_tree
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxrl.buffers.sum_tree import SumTree

SIZES = [1, 3, 64, 65, 300_000]
ROWS = 512

set_leaves = jax.jit(SumTree.set)
find_leaves = jax.jit(SumTree.find_leaves)


@functools.partial(jax.jit, static_argnums=(1, 2))
def stratified_leaves(tree: SumTree, num: int, draws: int, seed: int) -> Any:
    """`[draws, num]`."""
    keys = jax.random.split(jax.random.key(seed), draws)
    return jax.vmap(lambda key: tree.sample_stratified(num, key))(keys)


class Model:
    """The values as a NumPy array; sums in float64."""

    def __init__(self, capacity: int) -> None:
        self.values = np.zeros(capacity, np.float32)

    def set(self, index: Any, value: Any) -> None:
        inside = (index >= 0) & (index < len(self.values))
        self.values[index[inside]] = 0.0
        np.maximum.at(self.values, index[inside], value[inside])

    @property
    def total(self) -> float:
        return float(self.values.sum(dtype=np.float64))

    def find(self, mass: Any) -> Any:
        return np.searchsorted(self.values.cumsum(dtype=np.float64), mass, side="right")


def values_of(tree: SumTree, capacity: int) -> Any:
    return np.asarray(tree.nodes)[tree.num_leaves :][:capacity]


def total_of(tree: SumTree) -> Any:
    return np.asarray(tree.nodes)[1]


def spread(rng: np.random.Generator, size: int) -> Any:
    """Values of magnitudes from 1e-6 to 1e6, one in four of them zero."""
    return (10.0 ** rng.uniform(-6, 6, size) * (rng.random(size) < 0.75)).astype(np.float32)


@functools.cache
def zero(capacity: int) -> SumTree:
    return SumTree.zeros(capacity)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 2**31 - 1), st.integers(1, 6))
@example(1, 0, 2)
@example(300_000, 1, 3)
def test_values_and_sums_are_those_of_numpy(capacity: int, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    tree, model = zero(capacity), Model(capacity)
    assert capacity <= tree.num_leaves < 2 * capacity
    for _ in range(rounds):
        # Few leaves among many rows: an index occurs often, and with different values.
        index = rng.integers(0, min(capacity, rng.integers(1, 2 * ROWS)), ROWS, np.int32)
        value = spread(rng, ROWS)
        tree = set_leaves(tree, index, value)
        model.set(index, value)
        np.testing.assert_array_equal(values_of(tree, capacity), model.values)
        np.testing.assert_allclose(total_of(tree), model.total, rtol=2e-6)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 2**31 - 1))
@example(1, 0)
@example(300_000, 1)
def test_find_is_exact_where_the_sums_are(capacity: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, model = zero(capacity), Model(capacity)
    index = rng.permutation(np.arange(ROWS) % capacity).astype(np.int32)
    value = rng.integers(0, 4, ROWS).astype(np.float32)
    value[0] = 1.0
    tree = set_leaves(tree, index, value)
    model.set(index, value)
    mass = rng.uniform(0, model.total, ROWS).astype(np.float32)
    mass[: ROWS // 2] = np.floor(mass[: ROWS // 2])  # an end of one leaf is the start of another
    mass = np.minimum(mass, np.nextafter(np.float32(model.total), np.float32(0)))
    np.testing.assert_array_equal(find_leaves(tree, mass), model.find(mass))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 2**31 - 1), st.integers(1, ROWS))
def test_no_leaf_of_value_zero_is_found(capacity: int, seed: int, rows: int) -> None:
    """Magnitudes far apart, so that sums round, and masses at the total and above it."""
    rng = np.random.default_rng(seed)
    tree, model = zero(capacity), Model(capacity)
    index = np.where(np.arange(ROWS) < rows, rng.integers(0, capacity, ROWS), -1).astype(np.int32)
    value = spread(rng, ROWS)
    value[0] = 1e-6
    tree = set_leaves(tree, index, value)
    model.set(index, value)
    total = total_of(tree)
    ends = np.asarray([0.0, total, np.nextafter(total, np.float32(np.inf)), total * 2], np.float32)
    sums = model.values.cumsum(dtype=np.float64)[index]
    mass = np.concatenate([ends, rng.uniform(0, total, ROWS), sums]).astype(np.float32)
    assert np.all(model.values[find_leaves(tree, mass)] > 0.0)
    drawn = stratified_leaves(tree, ROWS, 1, seed)
    assert np.all(model.values[drawn] > 0.0)


def test_an_empty_tree_finds_its_first_leaf() -> None:
    assert np.all(find_leaves(zero(65), np.zeros(3, np.float32)) == 0)
    assert np.all(stratified_leaves(zero(65), 3, 1, 0) == 0)


def test_what_is_no_leaf_and_what_is_negative_changes_nothing() -> None:
    tree = set_leaves(zero(8), np.asarray([3]), np.ones(1, np.float32))
    after = set_leaves(tree, np.asarray([-1, -9, 8, 2**30]), np.ones(4, np.float32))
    np.testing.assert_array_equal(after.nodes, tree.nodes)
    negative = set_leaves(tree, np.asarray([3, 4]), np.asarray([-1.0, -2.0], np.float32))
    np.testing.assert_array_equal(negative.nodes, zero(8).nodes)


def test_draws_are_in_proportion() -> None:
    values = np.asarray([0, 1, 2, 0, 3.5, 0.25, 8, 0, 0, 4, 1, 1], np.float32)
    tree = set_leaves(zero(len(values)), np.arange(len(values)), values)
    chance = values[values > 0].astype(np.float64) / values.sum(dtype=np.float64)

    def p_value(drawn: Any) -> float:
        counts = np.bincount(np.asarray(drawn).reshape(-1), minlength=len(values))
        assert counts[values == 0].sum() == 0
        return stats.chisquare(counts[values > 0], counts.sum() * chance).pvalue

    mass = np.random.default_rng(1).uniform(0, values.sum(), 40_000).astype(np.float32)
    assert p_value(find_leaves(tree, mass)) > 1e-3
    drawn = stratified_leaves(tree, 16, 2500, 0)
    assert p_value(drawn) > 1e-3
    assert p_value(stratified_leaves(tree, 1, 40_000, 1)) > 1e-3
    cumulative = values.cumsum(dtype=np.float64) / values.sum(dtype=np.float64)
    for row in range(16):  # each from its own part, and from all of it
        first, last = np.searchsorted(cumulative, [row / 16, (row + 1) / 16 - 1e-6], side="right")
        assert np.asarray(drawn)[:, row].min() == first
        assert np.asarray(drawn)[:, row].max() == last


def test_a_million_leaves_are_told_apart() -> None:
    """2**20 leaves of value 1: float32 has steps of 1/16 near the total, the draws finer ones."""
    size = 2**20
    tree = jax.jit(SumTree.set)(zero(size), jnp.arange(size), jnp.ones(size))
    assert total_of(tree) == size
    rest = np.asarray([0.0, 0.01, 0.99, 1.0, 1.01, 1.99], np.float32)
    start = np.full(rest.shape, size - 2, np.float32)
    np.testing.assert_array_equal(tree._descend(start, rest) - (size - 2), [0, 0, 0, 1, 1, 1])


def test_a_stack_of_trees_is_each_tree() -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 65, (3, ROWS), np.int32)
    value = spread(rng, 3 * ROWS).reshape(3, ROWS)
    mass = rng.uniform(0, 1e6, (3, ROWS)).astype(np.float32)
    stack = jax.tree.map(lambda *x: jnp.stack(x), *(zero(65),) * 3)
    stack = jax.jit(jax.vmap(SumTree.set))(stack, index, value)
    found = jax.jit(jax.vmap(SumTree.find_leaves))(stack, mass)
    assert stack.num_leaves == zero(65).num_leaves
    for i in range(3):
        tree = set_leaves(zero(65), index[i], value[i])
        np.testing.assert_array_equal(np.asarray(stack.nodes)[i], tree.nodes)
        np.testing.assert_array_equal(np.asarray(found)[i], find_leaves(tree, mass[i]))


def test_compiled_and_not_are_the_same() -> None:
    rng = np.random.default_rng(0)
    index, value = rng.integers(0, 65, ROWS, np.int32), spread(rng, ROWS)
    tree = zero(65).set(jnp.asarray(index), jnp.asarray(value))
    np.testing.assert_array_equal(tree.nodes, set_leaves(zero(65), index, value).nodes)
    np.testing.assert_array_equal(tree.get(jnp.arange(65)), values_of(tree, 65))
    assert tree.total() == total_of(tree)
    mass = rng.uniform(0, total_of(tree), ROWS).astype(np.float32)
    np.testing.assert_array_equal(tree.find_leaves(jnp.asarray(mass)), find_leaves(tree, mass))


CAPACITY = 4096


def many_sets(tree: Any, put: Any, magnitudes: tuple[float, float], keys: Any) -> Any:
    """The tree, and its leaves, after 256 sets for each key at leaves that are all different."""

    def step(carry: Any, key: Any) -> Any:
        tree, values = carry
        of_leaves, of_values = jax.random.split(key)
        first = jax.random.randint(of_leaves, (), 0, CAPACITY)
        index = (first + 17 * jnp.arange(256)) % CAPACITY
        value = 10.0 ** jax.random.uniform(
            of_values, (256,), minval=magnitudes[0], maxval=magnitudes[1]
        )
        return (put(tree, index, value), values.at[index].set(value)), None

    carry = (tree, jnp.zeros(CAPACITY))
    (tree, values), _ = jax.jit(lambda c, k: jax.lax.scan(step, c, k))(carry, keys)
    return tree, np.asarray(values, np.float64)


@pytest.fixture(scope="module")
def after_a_million() -> dict[str, Any]:
    """Both trees after a million sets of magnitudes 1e-6 to 1e6, then one small set of each leaf."""
    results: dict[str, Any] = {}
    small = 10.0 ** np.random.default_rng(0).uniform(-6, 0, CAPACITY).astype(np.float32)
    small[::2] = 0.0
    for name, tree, put in [
        ("ours", SumTree.zeros(CAPACITY), SumTree.set),
        ("flashbax", flashbax_tree.init(CAPACITY), flashbax_tree.set_batch_scan),
    ]:
        keys = jax.random.split(jax.random.key(0), 4000)
        tree, values = many_sets(tree, put, (-6.0, 6.0), keys)
        last = jax.jit(put)(tree, jnp.arange(CAPACITY), jnp.asarray(small))
        results[name] = tree, values, last
    return results | {"small": small}


def test_a_million_sets_leave_the_sums_right(after_a_million: dict[str, Any]) -> None:
    tree, values, last = after_a_million["ours"]
    np.testing.assert_array_equal(values_of(tree, CAPACITY), values.astype(np.float32))
    np.testing.assert_allclose(total_of(tree), values.sum(), rtol=1e-6)
    small = after_a_million["small"]
    np.testing.assert_allclose(total_of(last), small.sum(dtype=np.float64), rtol=1e-6)
    assert np.all(small[stratified_leaves(last, ROWS, 20, 0)] > 0.0)


def test_flashbax_loses_its_sums_and_draws_leaves_of_priority_zero(
    after_a_million: dict[str, Any],
) -> None:
    """This is the reason for not using its tree; if this fails, look whether it can be used."""
    _, _, last = after_a_million["flashbax"]
    small = after_a_million["small"]
    true_total = small.sum(dtype=np.float64)
    assert abs(float(flashbax_tree._total_priority(last)) / true_total - 1.0) > 0.1
    drawn = flashbax_tree.stratified_sample(last, 10_000, jax.random.key(1))
    assert np.mean(small[np.asarray(drawn)] == 0.0) > 0.1


def test_flashbax_draws_a_leaf_of_priority_zero_after_four_sets() -> None:
    tree = flashbax_tree.init(4)
    put = jax.jit(flashbax_tree.set_batch_scan)
    tree = put(tree, jnp.asarray([0, 1]), jnp.asarray([1e6, 0.01]))
    tree = put(tree, jnp.asarray([0]), jnp.asarray([0.0]))
    values = flashbax_tree.get_batch(tree, jnp.arange(4))
    np.testing.assert_allclose(values, [0.0, 0.01, 0.0, 0.0])
    drawn = flashbax_tree.stratified_sample(tree, 100, jax.random.key(0))
    assert np.all(np.asarray(drawn) == 3)
