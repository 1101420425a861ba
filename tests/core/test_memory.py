"""The contract of every memory: step by step and as a sequence are one function."""

import dataclasses
import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import where_rows
from jaxrl.errors import ConfigError
from jaxrl.modules.attention import GTrXL
from jaxrl.modules.recurrent import (
    GRU,
    LRU,
    LSTM,
    RECURRENT_CORES,
    FlaxCell,
    MinGRU,
    RecurrentStack,
    make_recurrent_core,
)

T, B, N = 12, 4, 5
SIZE = 6


class Leaky(nn.RNNCellBase):
    """A cell whose carry is a dict that starts neither at zero nor without a key."""

    features: int = SIZE

    @nn.compact
    def __call__(self, carry, x):
        fast = jnp.tanh(nn.Dense(self.features)(x) + nn.Dense(self.features)(carry["slow"]))
        slow = 0.9 * carry["slow"] + 0.1 * fast
        return {"slow": slow, "steps": carry["steps"] + 1.0}, fast + carry["steps"][:, None]

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        slow = jax.random.normal(rng, (input_shape[0], self.features))
        return {"slow": slow, "steps": jnp.full(input_shape[:1], -3.0)}

    @property
    def num_feature_axes(self):
        return 1


MEMORIES = {
    **{name: make_recurrent_core(name, SIZE) for name in RECURRENT_CORES},
    "gtrxl": GTrXL(num_units=2, dim=SIZE, num_heads=2, head_dim=3, memory=4),
    "custom cell": FlaxCell(Leaky()),
    "flax cell": FlaxCell(nn.MGUCell(SIZE)),
    "stack": RecurrentStack((LSTM(SIZE), LRU(3), FlaxCell(Leaky()))),
}
every_memory = pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)


def params_of(memory, seed=0):
    return compiled(memory).init(jax.random.key(seed), jnp.zeros((B, N)), memory.initial_carry(B))


@functools.cache
def compiled(memory):
    """The memory's functions, compiled once for all tests."""
    return types.SimpleNamespace(
        init=jax.jit(memory.init),
        step=jax.jit(memory.apply),
        sequence=jax.jit(functools.partial(memory.apply, method="sequence")),
        reset=jax.jit(where_rows),
    )


def inputs(seed=0, t=T, b=B):
    """Rows, and episode starts that differ by column: some at once, some one after another."""
    x = jax.random.normal(jax.random.key(seed), (t, b, N))
    is_first = np.random.default_rng(seed).random((t, b)) < 0.2
    is_first[0, 0], is_first[0, 1], is_first[3:5, 2] = True, False, True
    return x, jnp.array(is_first)


def used_carry(memory, params, seed=7):
    """The carry after a few rows, so that it is no initial one."""
    x, _ = inputs(seed, 4)
    never = jnp.zeros((4, B), bool)
    carries = sequence(memory, params, x, memory.initial_carry(B), never)[1]
    return jax.tree.map(lambda leaf: leaf[-1], carries)


def sequence(memory, params, x, carry, is_first):
    return compiled(memory).sequence(params, x, carry, is_first)


def step_by_step(memory, params, x, carry, is_first):
    """The naive loop over `__call__`: the features and carries of all rows."""
    initial = memory.initial_carry(x.shape[1])
    ys, carries = [], []
    for row, first in zip(x, is_first, strict=True):
        carry = compiled(memory).reset(first, initial, carry)
        y, carry = compiled(memory).step(params, row, carry)
        ys.append(y)
        carries.append(carry)
    return jnp.stack(ys), jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)


def assert_close(got, wanted, rtol=2e-5, atol=2e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), got, wanted)


@pytest.mark.representatives("gtrxl", "lstm", "custom cell")
@every_memory
def test_sequence_is_the_loop_over_steps(memory):
    params = params_of(memory)
    x, is_first = inputs()
    carry = used_carry(memory, params)
    y, carries = sequence(memory, params, x, carry, is_first)
    wanted_y, wanted_carries = step_by_step(memory, params, x, carry, is_first)
    assert_close(y, wanted_y)
    assert_close(carries, wanted_carries)
    assert y.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(carries)} == {jnp.dtype("float32")}


@every_memory
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_reset_one_row_off_is_seen(memory, shift):
    """The comparison above tells a reset at the wrong row."""
    params = params_of(memory)
    x, is_first = inputs()
    carry = used_carry(memory, params)
    y, carries = sequence(memory, params, x, carry, is_first)
    wrong_y, wrong_carries = step_by_step(
        memory, params, x, carry, jnp.roll(is_first, shift, axis=0)
    )
    assert np.abs(y - wrong_y).max() > 1e-2
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), carries, wrong_carries)
    assert max(jax.tree.leaves(differences)) > 1e-2


@pytest.mark.representatives("0-gtrxl", "2-lru", "1-custom cell")
@every_memory
@pytest.mark.parametrize("seed", range(3))
def test_chunks_that_hand_over_the_carry_are_the_whole(memory, seed):
    params = params_of(memory)
    x, is_first = inputs(seed)
    carry = used_carry(memory, params)
    wanted = sequence(memory, params, x, carry, is_first)
    cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, T), 3, replace=False))
    parts = []
    for rows in np.split(np.arange(T), cuts):
        parts.append(sequence(memory, params, x[rows], carry, is_first[rows]))
        carry = jax.tree.map(lambda leaf: leaf[-1], parts[-1][1])
    assert_close(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts), wanted)


@every_memory
def test_carry_after_an_episode_is_still_the_episodes(memory):
    """`carries[t]` gives the features of row t's successor although row t + 1 starts anew."""
    params = params_of(memory)
    x, _ = inputs()
    never, once = jnp.zeros((T, B), bool), jnp.zeros((T, B), bool).at[5].set(True)
    carry = used_carry(memory, params)
    _, carries = sequence(memory, params, x, carry, once)
    after = jax.tree.map(lambda leaf: leaf[4], carries)
    successor, _ = compiled(memory).step(params, x[5], after)
    assert_close(successor, sequence(memory, params, x, carry, never)[0][5])


@every_memory
def test_an_episode_does_not_depend_on_what_came_before(memory):
    params = params_of(memory)
    x, _ = inputs()
    other, _ = inputs(1)
    starts = jnp.zeros((T, B), bool).at[5].set(True)
    y, _ = sequence(memory, params, x, used_carry(memory, params), starts)
    mixed = jnp.concatenate([other[:5], x[5:]])
    other_y, _ = sequence(memory, params, mixed, memory.initial_carry(B), starts)
    np.testing.assert_array_equal(y[5:], other_y[5:])
    assert np.abs(y[:5] - other_y[:5]).max() > 1e-2


@every_memory
def test_columns_do_not_mix(memory):
    params = params_of(memory)
    x, is_first = inputs()
    carry = used_carry(memory, params)
    y, _ = sequence(memory, params, x, carry, is_first)
    one = jax.tree.map(lambda leaf: leaf[2:3], carry)
    alone, _ = sequence(memory, params, x[:, 2:3], one, is_first[:, 2:3])
    assert_close(alone, y[:, 2:3])


@pytest.mark.representatives("lstm", "lru")
@every_memory
def test_gradients_are_those_of_the_loop(memory):
    params = params_of(memory)
    x, is_first = inputs()
    carry = used_carry(memory, params)
    weights = jax.random.normal(jax.random.key(5), (T, B, 1))

    def by_sequence(params, x, carry):
        return memory.apply(params, x, carry, is_first, method="sequence")

    def by_steps(params, x, carry):
        def body(carry, row):
            x, first = row
            carry = where_rows(first, memory.initial_carry(B), carry)
            y, carry = memory.apply(params, x, carry)
            return carry, (y, carry)

        return jax.lax.scan(body, carry, (x, is_first))[1]

    def loss(function, params, x, carry):
        y, carries = function(params, x, carry)
        last = sum(jnp.sum(jnp.sin(leaf[-1])) for leaf in jax.tree.leaves(carries))
        return jnp.sum(weights * jnp.sin(y)) + last

    def gradient(function):
        return jax.jit(jax.grad(lambda *args: loss(function, *args), (0, 1, 2)))

    got = gradient(by_sequence)(params, x, carry)
    wanted = gradient(by_steps)(params, x, carry)
    assert_close(got, wanted, rtol=2e-4, atol=5e-5)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(got[2])) > 1e-3
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(got[0]))


@every_memory
def test_vmap_is_the_loop_over_members(memory):
    """A population: parameters, rows, carries and starts with a leading axis."""
    members = [
        (params, *inputs(seed), used_carry(memory, params))
        for seed in range(2)
        for params in [params_of(memory, seed)]
    ]
    params, x, is_first, carry = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    got = jax.jit(jax.vmap(compiled(memory).sequence))(params, x, carry, is_first)
    for i, (params, x, is_first, carry) in enumerate(members):
        wanted = sequence(memory, params, x, carry, is_first)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], got), wanted)


@every_memory
def test_other_data_compiles_nothing(memory):
    params = params_of(memory)
    traces = []

    @jax.jit
    def run(x, carry, is_first):
        traces.append(1)
        y, carries = memory.apply(params, x, carry, is_first, method="sequence")
        return y, jax.tree.map(lambda leaf: leaf[-1], carries)

    carry = memory.initial_carry(B)
    for seed in range(3):
        x, is_first = inputs(seed)
        *_, carry = run(x, carry, is_first)
    assert len(traces) == 1


@every_memory
def test_parameters_are_the_same_whichever_method_makes_them(memory):
    x, is_first = inputs()
    carry = memory.initial_carry(B)
    key = jax.random.key(3)
    by_step = compiled(memory).init(key, x[0], carry)
    init = jax.jit(functools.partial(memory.init, method="sequence"))
    by_sequence = init(jax.random.clone(key), x, carry, is_first)
    assert jax.tree.structure(by_step) == jax.tree.structure(by_sequence)
    jax.tree.map(np.testing.assert_array_equal, by_step, by_sequence)


@every_memory
def test_initial_carry_is_the_same_for_each_row_of_any_batch(memory):
    one, many = memory.initial_carry(1), memory.initial_carry(B)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.broadcast_to(a, b.shape), b), one, many
    )


class Holder(nn.Module):
    """A network that holds a memory as a user of it does."""

    memory: nn.Module

    def __call__(self, x):
        return self.memory(x, self.memory.initial_carry(x.shape[0]))[0]


@pytest.mark.representatives("lstm")
@every_memory
def test_initial_carry_can_be_asked_for_inside_of_a_network(memory):
    network = Holder(memory)
    x = inputs()[0][0]
    params = jax.jit(network.init)(jax.random.key(0), x)
    assert list(params["params"]) == ["memory"]
    inner = {"params": params["params"]["memory"]}
    wanted, _ = compiled(memory).step(inner, x, memory.initial_carry(B))
    assert_close(jax.jit(network.apply)(params, x), wanted)


def split_gates(params, names):
    """flax's separate kernels as columns of ours."""
    p = params["params"]
    return [jnp.concatenate([p[side + g]["kernel"] for g in names], -1) for side in "ih"]


def run_cell(cell, params, x, carry, is_first):
    def body(carry, row):
        x, first = row
        fresh = cell.initialize_carry(jax.random.key(0), x.shape)
        carry = jax.tree.map(lambda a, b: jnp.where(first[:, None], a, b), fresh, carry)
        return cell.apply(params, carry, x)

    return jax.jit(lambda *rows: jax.lax.scan(body, carry, rows)[1])(x, is_first)


def random_like(params, seed):
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return tree.unflatten(
        [0.5 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_memories_are_those_of_flax(kind):
    x, is_first = inputs()
    zeros = jnp.zeros((B, SIZE))
    if kind == "lstm":
        cell, memory, start = nn.OptimizedLSTMCell(SIZE), LSTM(SIZE), (zeros, zeros)
        gates, bias_from = "ifgo", "h"
    else:
        cell, memory, start = nn.GRUCell(SIZE), GRU(SIZE), zeros
        gates, bias_from = "rzn", "i"
    theirs = random_like(cell.init(jax.random.key(0), start, x[0]), 1)
    kernel, recurrent = split_gates(theirs, gates)
    bias = jnp.concatenate([theirs["params"][bias_from + g]["bias"] for g in gates])
    ours = {"inputs": {"kernel": kernel, "bias": bias}, "recurrent_kernel": recurrent}
    if kind == "gru":
        ours["recurrent_bias"] = theirs["params"]["hn"]["bias"]
    ours = {"params": ours}
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, params_of(memory))
    carry = used_carry(memory, ours)
    y, _ = sequence(memory, ours, x, carry, is_first)
    their_carry = (carry.cell, carry.hidden) if kind == "lstm" else carry
    assert_close(y, run_cell(cell, theirs, x, their_carry, is_first))


@pytest.mark.parametrize(("memory", "gates"), [(LSTM(SIZE), 4), (GRU(SIZE), 3)])
def test_recurrent_kernels_start_orthogonal_and_differ_by_gate(memory, gates):
    params = params_of(memory)["params"]
    blocks = np.split(np.asarray(params["recurrent_kernel"]), gates, axis=-1)
    for block in blocks:
        np.testing.assert_allclose(block @ block.T, np.eye(SIZE), atol=1e-5)
    assert np.abs(blocks[0] - blocks[1]).max() > 0.1


def test_lstm_starts_with_an_open_forget_gate():
    bias = params_of(LSTM(SIZE))["params"]["inputs"]["bias"]
    wanted = np.zeros(4 * SIZE)
    wanted[SIZE : 2 * SIZE] = 1.0
    np.testing.assert_array_equal(bias, wanted)


def numpy_lru(params, x, carry, is_first):
    """Orvieto et al.'s block in complex128, one row after another."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    decay = np.exp(-np.exp(p["log_decay"]) + 1j * np.exp(p["log_phase"]))
    to_real, to_imag = np.split(p["to_state"]["kernel"], 2, axis=1)
    from_real, from_imag = np.split(p["from_state"]["kernel"], 2)
    state = np.asarray(carry.real, np.complex128) + 1j * np.asarray(carry.imag)
    ys, states = [], []
    for row, first in zip(np.asarray(x, np.float64), np.asarray(is_first), strict=True):
        features = row @ p["features"]["kernel"] + p["features"]["bias"]
        centred = features - features.mean(-1, keepdims=True)
        normed = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-6)
        normed = normed * p["norm"]["scale"] + p["norm"]["bias"]
        state = np.where(first[:, None], 0.0, state)
        state = decay * state + np.exp(p["log_gamma"]) * (normed @ (to_real + 1j * to_imag))
        out = (state @ (from_real - 1j * from_imag)).real + p["skip"] * normed
        out = 0.5 * out * (1 + np.tanh(np.sqrt(2 / np.pi) * (out + 0.044715 * out**3)))
        value, gate = np.split(out @ p["gate"]["kernel"] + p["gate"]["bias"], 2, axis=1)
        ys.append(features + value / (1 + np.exp(-gate)))
        states.append(state)
    return np.array(ys), np.array(states)


def test_lru_is_the_complex_loop():
    x, is_first = inputs()
    memory = LRU(SIZE)
    params = jax.tree.map(
        lambda a, b: a + 0.3 * b, params_of(memory), random_like(params_of(memory), 1)
    )
    carry = used_carry(memory, params)
    y, carries = sequence(memory, params, x, carry, is_first)
    wanted_y, wanted_states = numpy_lru(params, x, carry, is_first)
    np.testing.assert_allclose(y, wanted_y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(carries.real, wanted_states.real, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(carries.imag, wanted_states.imag, rtol=1e-4, atol=1e-5)


def test_mingru_is_the_loop_of_its_paper():
    """Feng et al. 2024, section 3.1.2, in float64, one row after another."""
    x, is_first = inputs()
    memory = MinGRU(SIZE)
    params = params_of(memory)
    carry = used_carry(memory, params)
    y, carries = sequence(memory, params, x, carry, is_first)
    layer = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"]["inputs"])
    rows, hidden = np.asarray(x, np.float64), np.asarray(carry, np.float64)
    for t in range(T):
        gate, candidate = np.split(rows[t] @ layer["kernel"] + layer["bias"], 2, axis=1)
        z = 1 / (1 + np.exp(-gate))
        hidden = np.where(np.asarray(is_first)[t][:, None], 0.0, hidden)
        hidden = (1 - z) * hidden + z * candidate
        np.testing.assert_allclose(y[t], hidden, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(carries[t], hidden, rtol=1e-5, atol=1e-6)


def test_lru_starts_on_the_ring_and_keeps_the_inputs_variance():
    n = 4000
    memory = LRU(n, min_radius=0.6, max_radius=0.9, max_phase=1.0)

    def initialise(key):
        params = memory.init(key, jnp.zeros((1, 1)), memory.initial_carry(1))["params"]
        return {name: params[name] for name in ("log_decay", "log_phase", "log_gamma")}

    params = jax.jit(initialise)(jax.random.key(0))  # what is not returned is not made
    radius = np.exp(-np.exp(params["log_decay"]))
    assert 0.6 <= radius.min() < 0.61
    assert 0.89 < radius.max() <= 0.9
    # Uniform on the ring's area: the squared radius is uniform.
    np.testing.assert_allclose((radius**2).mean(), (0.36 + 0.81) / 2, rtol=0.01)
    phase = np.exp(params["log_phase"])
    assert 0.0 < phase.min() < 0.01
    assert 0.99 < phase.max() <= 1.0
    np.testing.assert_allclose(np.exp(params["log_gamma"]) ** 2, 1 - radius**2, rtol=1e-4)


class NeedsMore(Leaky):
    depth: int = dataclasses.field(kw_only=True)


@pytest.mark.parametrize(
    ("kind", "made"),
    [*RECURRENT_CORES.items(), (nn.MGUCell, FlaxCell), (Leaky, FlaxCell)],
)
def test_make_memory_makes_layers_of_that_size(kind, made):
    memory = make_recurrent_core(kind, 7)
    assert isinstance(memory, made)
    stack = make_recurrent_core(kind, 7, num_layers=3)
    assert isinstance(stack, RecurrentStack)
    assert [type(layer) for layer in stack.layers] == [made] * 3
    for made_memory in (memory, stack):
        carry = made_memory.initial_carry(B)
        params = jax.eval_shape(made_memory.init, jax.random.key(0), jnp.zeros((B, N)), carry)
        y, _ = jax.eval_shape(made_memory.apply, params, jnp.zeros((B, N)), carry)
        assert y.shape == (B, 7)
    assert set(params["params"]) == {"layers_0", "layers_1", "layers_2"}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("lstn", "recurrent_layer_type is 'lstn'.*Did you mean 'lstm'"),
        (None, "recurrent_layer_type is None.*Known: lstm, gru, lru, mingru"),
        (nn.Dense, "recurrent_layer_type is .*Dense.*subclasses of flax.linen.RNNCellBase"),
        (NeedsMore, "recurrent_layer_type is NeedsMore.*features=4 alone.*depth"),
    ],
)
def test_unknown_kinds_are_refused(kind, said):
    with pytest.raises(ConfigError, match=said):
        make_recurrent_core(kind, 4)
