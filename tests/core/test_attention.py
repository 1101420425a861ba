"""GTrXL against its equations in plain loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.modules.attention import GTrXL, encode_distances, shift_by_distance

T, B, N, M, DIM, HEADS, HEAD_DIM = 9, 3, 4, 3, 6, 2, 5


def small(**changes):
    settings = {
        "num_units": 2,
        "dim": DIM,
        "num_heads": HEADS,
        "head_dim": HEAD_DIM,
        "memory": M,
        "position_wise_mlp_dim": 7,
    }
    return GTrXL(**{**settings, **changes})


def randomised(params, seed):
    """Parameters of which none is zero, so that each matters."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return tree.unflatten(
        [
            leaf + 0.3 * jax.random.normal(k, leaf.shape)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
    )


def setting(memory):
    """Parameters, rows of which some start an episode, and a carry of another number of rows each."""
    x = jax.random.normal(jax.random.key(1), (T, B, N))
    init = jax.jit(memory.init)(jax.random.key(0), x[0], memory.initial_carry(B))
    inputs = jax.random.normal(jax.random.key(2), (B, memory.num_units, M, memory.dim))
    count = np.array([0.0, 2.0, 3.0], np.float32)
    known = np.arange(M)[None] >= M - count[:, None]
    carry = memory.initial_carry(B)
    carry = type(carry)(inputs=inputs * known[:, None, :, None], count=jnp.array(count))
    is_first = np.zeros((T, B), bool)
    is_first[0, 0] = is_first[6, 1] = is_first[4, 2] = is_first[5, 2] = True
    return randomised(init, 3), x, carry, jnp.array(is_first)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def layer_norm(p, x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * p["scale"] + p["bias"]


def dense(p, x):
    return x @ p["kernel"] + p.get("bias", 0.0)


def gate(p, x, y):
    w_r, w_z, w_g = np.split(p["y"]["kernel"], 3, axis=1)
    u_r, u_z = np.split(p["x"]["kernel"], 2, axis=1)
    r = sigmoid(y @ w_r + x @ u_r)
    z = sigmoid(y @ w_z + x @ u_z - p["bias"])
    return (1 - z) * x + z * np.tanh(y @ w_g + (r * x) @ p["reset_x"]["kernel"])


def sinusoid(distance, dim):
    half = [distance / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return np.array([*np.sin(half), *np.cos(half)])


def attend(p, rows):
    """Attend from the last row to all rows, one head and one row at a time."""
    query, heads = dense(p["query"], rows[-1]), []
    for h in range(HEADS):
        part = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
        q, scores, values = query[part], [], []
        for age, row in enumerate(rows[::-1]):
            k = dense(p["key"], row)[part]
            r = dense(p["distance"], sinusoid(age, len(row)))[part]
            score = (q + p["content_bias"][h]) @ k + (q + p["distance_bias"][h]) @ r
            scores.append(score / np.sqrt(HEAD_DIM))
            values.append(dense(p["value"], row)[part])
        weights = np.exp(scores - np.max(scores))
        heads.append(weights / weights.sum() @ np.array(values))
    return dense(p["out"], np.concatenate(heads))


def unit(p, rows):
    """Rows are what this unit remembers of the episode, and its present input."""
    x = rows[-1]
    seen = attend(p["attention"], [layer_norm(p["norm_attention"], row) for row in rows])
    y = gate(p["gate_attention"], x, np.maximum(seen, 0))
    hidden = np.maximum(dense(p["mlp_hidden"], layer_norm(p["norm_mlp"], y)), 0)
    return gate(p["gate_mlp"], y, np.maximum(dense(p["mlp_out"], hidden), 0))


def reference(params, x, carry, is_first, num_units):
    """Column by column, row by row, with lists of what is remembered."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    x, is_first = np.asarray(x, np.float64), np.asarray(is_first)
    y = np.zeros((*x.shape[:2], DIM))
    for b in range(x.shape[1]):
        count = int(carry.count[b])
        remembered = [list(np.asarray(u, np.float64)[M - count :]) for u in carry.inputs[b]]
        for t in range(len(x)):
            row = dense(p["features"], x[t, b])
            for i in range(num_units):
                remembered[i] = ([] if is_first[t, b] else remembered[i][-M:]) + [row]
                row = unit(p[f"units_{i}"], remembered[i])
            y[t, b] = row
    return y


@pytest.mark.representatives("2")
@pytest.mark.parametrize("num_units", [1, 2])
def test_gtrxl_is_its_equations(num_units):
    memory = small(num_units=num_units)
    params, x, carry, is_first = setting(memory)
    run = jax.jit(functools.partial(memory.apply, method="sequence"))
    y, _ = run(params, x, carry, is_first)
    wanted = reference(params, x, carry, is_first, num_units)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_a_row_sees_so_many_rows_before_it_and_no_more():
    memory = small(num_units=1)
    params, x, carry, _ = setting(memory)
    never = jnp.zeros((T, B), bool)

    def last(x):
        return jnp.sum(memory.apply(params, x, carry, never, method="sequence")[0][-1])

    gradient = np.abs(jax.jit(jax.grad(last))(x)).max(axis=(1, 2))
    assert (gradient[-1 - M :] > 1e-4).all()
    np.testing.assert_array_equal(gradient[: -1 - M], 0.0)


def test_carry_counts_the_rows_of_the_episode():
    memory = small()
    params, x, carry, is_first = setting(memory)
    run = jax.jit(functools.partial(memory.apply, method="sequence"))
    _, carries = run(params, x, carry, is_first)
    wanted = np.array(
        [
            [1, 2, 3, 3, 3, 3, 3, 3, 3],
            [3, 3, 3, 3, 3, 3, 1, 2, 3],
            [3, 3, 3, 3, 1, 1, 2, 3, 3],
        ]
    ).T
    np.testing.assert_array_equal(carries.count, wanted)
    known = np.arange(M) >= M - wanted[:, :, None]
    is_zero = (np.asarray(carries.inputs) == 0.0).all(axis=(2, 4))
    np.testing.assert_array_equal(is_zero, ~known)


@pytest.mark.parametrize("dim", [6, 7])
def test_distance_encoding_is_of_descending_distances(dim):
    encoding = encode_distances(5, dim)
    assert encoding.shape == (5, dim)
    half = (dim + 1) // 2
    for row, distance in zip(encoding, [4, 3, 2, 1, 0], strict=True):
        angles = [distance / 10000 ** (2 * i / dim) for i in range(half)]
        wanted = np.array([*np.sin(angles), *np.cos(angles)])[:dim]
        np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-6)


def test_scores_are_moved_to_the_rows_that_they_are_of():
    scores = jnp.arange(1.0, 13.0).reshape(1, 4, 3)
    wanted = np.zeros((4, 6))
    for t in range(4):
        wanted[t, t : t + 3] = scores[0, t]
    np.testing.assert_array_equal(shift_by_distance(scores)[0], wanted)


def test_gate_bias_keeps_a_unit_near_the_identity():
    """At 2, its default, a gate passes most of its input; far below 0, little of it."""
    memory = small(num_units=1, init_gru_gate_bias=9.0)
    x = jax.random.normal(jax.random.key(1), (B, N))
    carry = memory.initial_carry(B)
    init, apply = jax.jit(memory.init), jax.jit(memory.apply)
    made = jax.tree.map(np.asarray, init(jax.random.key(0), x, carry))
    features = dense(made["params"]["features"], np.asarray(x))
    gates = [made["params"]["units_0"][name] for name in ("gate_attention", "gate_mlp")]
    assert all((gate["bias"] == 9.0).all() for gate in gates)

    def changed(bias):
        for gate in gates:
            gate["bias"] = np.full(DIM, bias, np.float32)
        return np.linalg.norm(apply(made, x, carry)[0] - features) / np.linalg.norm(features)

    assert changed(9.0) < 0.01 < changed(GTrXL().init_gru_gate_bias) < 0.5 < changed(-9.0)
