"""The circular buffer against a model of it: first in first out, and every batch K times."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.buffers.circular import CircularBuffer, CircularBufferState

pytestmark = pytest.mark.allow_key_reuse

SIZES = [(1, 1), (1, 3), (2, 2), (8, 2), (5, 3), (16, 20)]


@functools.cache
def functions(num_batches: int, iterations: int) -> tuple[CircularBufferState, Any, Any]:
    """The first state and the two functions, compiled; batches hold their own number."""
    circular = CircularBuffer(num_batches=num_batches, iterations_per_batch=iterations)
    shapes = {"number": jax.ShapeDtypeStruct((3, 2), jnp.int32)}
    return circular.init(shapes), jax.jit(circular.add), jax.jit(circular.sample)


def batch(number: int) -> dict[str, Any]:
    return {"number": jnp.full((3, 2), number, jnp.int32)}


class Model:
    """A list of `[number, uses left]`, the oldest first."""

    def __init__(self, size: int, iterations: int) -> None:
        self.size, self.iterations = size, iterations
        self.held: list[list[int]] = []
        self.dropped = 0

    def add(self, number: int) -> None:
        if len(self.held) == self.size:
            self.dropped += self.held.pop(0)[1]
        self.held.append([number, self.iterations])

    def can_draw(self) -> bool:
        return len(self.held) > self.size // 2 and any(left for _, left in self.held)

    def draw(self, number: int) -> None:
        entry = next(entry for entry in self.held if entry[0] == number)
        assert entry[1] > 0
        entry[1] -= 1


@settings(max_examples=30, deadline=None)
@given(
    size=st.sampled_from(SIZES[:5]),
    rounds=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    seed=st.integers(0, 2**20),
)
def test_any_order_of_adds_and_draws(size: tuple[int, int], rounds: list[int], seed: int) -> None:
    state, add, draw = functions(*size)
    model = Model(*size)
    for number, draws in enumerate(rounds):
        state = add(state, batch(number))
        model.add(number)
        for i in range(draws):
            key = jax.random.fold_in(jax.random.key(seed), number * 10 + i)
            state, drawn = draw(state, key)
            assert bool(drawn.valid) == model.can_draw()
            if drawn.valid:
                held = np.asarray(drawn.batch["number"])
                assert (held == held[0, 0]).all()
                model.draw(int(held[0, 0]))
        held = {entry[0]: entry[1] for entry in model.held}
        kept = np.asarray(state.batches["number"])[:, 0, 0]
        for slot in range(size[0]):
            left = int(state.uses_left[slot])
            assert left == held.get(int(kept[slot]), 0) or int(state.filled) <= slot


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_batch_is_used_exactly_k_times(size: tuple[int, int], seed: int) -> None:
    num_batches, iterations = size
    state, add, draw = functions(*size)
    rounds = 5 * num_batches + 10
    uses = np.zeros(rounds, int)
    ages = []
    for number in range(rounds):
        state = add(state, batch(number))
        valid = []
        for i in range(iterations):
            key = jax.random.fold_in(jax.random.key(seed), number * iterations + i)
            state, drawn = draw(state, key)
            valid.append(bool(drawn.valid))
            if drawn.valid:
                used = int(drawn.batch["number"][0, 0])
                uses[used] += 1
                ages.append(number - used)
        assert valid == [number >= num_batches // 2] * iterations
        assert state.uses_left.sum() == iterations * min(number + 1, num_batches // 2)
    gone = rounds - num_batches
    np.testing.assert_array_equal(uses[: gone + 1], iterations)
    assert uses.max() == iterations
    assert max(ages) <= num_batches - 1
    if num_batches > 2:
        steady = ages[iterations * num_batches :]
        assert set(steady) >= set(range(num_batches - 1)), "batches of all ages are used"
        assert np.mean(steady) == pytest.approx(num_batches // 2, abs=0.7)


def test_draws_are_uniform_over_what_is_left() -> None:
    state, add, draw = functions(8, 2)
    for number in range(5):
        state = add(state, batch(number))
    keys = jax.random.split(jax.random.key(3), 4000)
    _, drawn = jax.vmap(draw, (None, 0))(state, keys)
    assert drawn.valid.all()
    counts = np.bincount(np.asarray(drawn.index), minlength=8) / 4000
    np.testing.assert_allclose(counts, [0.2] * 5 + [0.0] * 3, atol=0.03)


def test_adding_copies_no_batch_but_the_new_one() -> None:
    circular = CircularBuffer(num_batches=64, iterations_per_batch=2)
    shapes = {"x": jax.ShapeDtypeStruct((1024,), jnp.float32)}
    state = circular.init(shapes)

    def rounds(state: CircularBufferState, key: Any) -> tuple[CircularBufferState, Any]:
        def body(carry: Any, i: Any) -> Any:
            state, total = carry
            now = jax.random.fold_in(key, i)
            state = circular.add(state, {"x": jnp.full((1024,), i, jnp.float32)})
            state, drawn = circular.sample(state, now)
            return (state, total + drawn.batch["x"].sum()), ()

        return jax.lax.scan(body, (state, jnp.float32(0)), jnp.arange(5))[0]

    compiled = jax.jit(rounds, donate_argnums=0).lower(state, jax.random.key(0)).compile()
    memory = compiled.memory_analysis()
    whole = 64 * 1024 * 4
    assert memory.alias_size_in_bytes >= whole
    assert memory.temp_size_in_bytes < whole / 4
