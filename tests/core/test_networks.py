"""Activations, initialisers and encoders by name, and what names are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import ConfigError
from jaxrl.modules.networks import (
    ACTIVATIONS,
    CNN,
    INITIALIZERS,
    MLP,
    ResidualMLP,
    get_activation,
    get_default_conv_filters,
    get_initializer,
    parse_conv_filters,
)

SHAPE = (200, 300)
# mean, standard deviation and largest absolute value of a [200, 300] kernel
INITIALIZER_STATISTICS = {
    ("default", ()): (0.0, np.sqrt(1 / 600), np.sqrt(1 / 200)),
    ("xavier_uniform_", (("gain", 2.0),)): (0.0, np.sqrt(8 / 500), np.sqrt(24 / 500)),
    ("glorot_uniform", ()): (0.0, np.sqrt(2 / 500), np.sqrt(6 / 500)),
    ("xavier_normal", (("gain", 2.0),)): (0.0, np.sqrt(8 / 500), None),
    ("glorot_normal", ()): (0.0, np.sqrt(2 / 500), None),
    ("kaiming_uniform_", ()): (0.0, np.sqrt(2 / 200), np.sqrt(6 / 200)),
    ("he_uniform", ()): (0.0, np.sqrt(2 / 200), np.sqrt(6 / 200)),
    ("kaiming_normal", ()): (0.0, np.sqrt(2 / 200), None),
    ("he_normal", ()): (0.0, np.sqrt(2 / 200), None),
    ("lecun_uniform", ()): (0.0, np.sqrt(1 / 200), np.sqrt(3 / 200)),
    ("lecun_normal", ()): (0.0, np.sqrt(1 / 200), None),
    ("normal_", (("mean", 1.0), ("std", 0.3))): (1.0, 0.3, None),
    ("trunc_normal_", (("std", 0.5), ("a", -0.5), ("b", 0.5))): (0.0, 0.27, 0.5),
    ("truncated_normal", (("mean", 1.0), ("std", 0.1), ("a", 0.9), ("b", 1.1))): (
        1.0,
        0.054,
        1.1,
    ),
    ("uniform_", (("a", -0.2), ("b", 0.4))): (0.1, 0.6 / np.sqrt(12), 0.4),
    ("constant_", (("val", 0.7),)): (0.7, 0.0, 0.7),
    ("zeros_", ()): (0.0, 0.0, 0.0),
    ("ones", ()): (1.0, 0.0, 1.0),
}


@pytest.mark.parametrize(("name", "kwargs"), INITIALIZER_STATISTICS)
def test_initializers_have_the_spread_that_their_name_says(name, kwargs):
    mean, std, bound = INITIALIZER_STATISTICS[name, kwargs]
    kernel = get_initializer(name, dict(kwargs))(jax.random.key(0), SHAPE, jnp.float32)
    np.testing.assert_allclose(kernel.mean(), mean, atol=0.005)
    np.testing.assert_allclose(kernel.std(), std, rtol=0.02, atol=1e-6)
    if bound is not None:
        np.testing.assert_allclose(np.abs(kernel).max(), bound, rtol=0.01)


def test_every_initializer_is_covered():
    tested = {name.rstrip("_") for name, _ in INITIALIZER_STATISTICS}
    assert tested == set(INITIALIZERS) - {"orthogonal"}


def test_orthogonal_has_orthogonal_columns_of_its_gain():
    kernel = get_initializer("orthogonal", {"gain": 0.5})(jax.random.key(0), (20, 8), jnp.float32)
    np.testing.assert_allclose(kernel.T @ kernel, 0.25 * np.eye(8), atol=1e-5)


def test_defaults_and_callables():
    bias = get_initializer(None, for_bias=True)(jax.random.key(0), (5,), jnp.float32)
    np.testing.assert_array_equal(bias, np.zeros(5))
    ones = jax.nn.initializers.ones
    assert get_initializer(ones) is ones


def test_default_biases_are_torchs_by_the_number_of_inputs():
    initializer = get_initializer("default", for_bias=True)
    mlp = MLP(hiddens=(500, 500), bias_init=initializer)
    params = mlp.init(jax.random.key(0), jnp.zeros((1, 4)))["params"]
    for name, inputs in (("dense_0", 4), ("dense_1", 500)):
        bias = np.asarray(params[name]["bias"])
        assert 0.9 * inputs**-0.5 < np.abs(bias).max() <= inputs**-0.5
        assert abs(bias.mean()) < 0.1 * inputs**-0.5
    cnn = CNN(filters=((300, (3, 3), (1, 1), "valid"),), bias_init=initializer)
    bias = cnn.init(jax.random.key(0), jnp.zeros((1, 5, 5, 2)))["params"]["conv_0"]["bias"]
    assert 0.9 * 18**-0.5 < np.abs(np.asarray(bias)).max() <= 18**-0.5
    with pytest.raises(ConfigError, match="use 'uniform'"):
        initializer(jax.random.key(0), (3,))


@pytest.mark.parametrize(
    ("name", "kwargs", "for_bias", "message"),
    [
        ("orthogonl", None, False, "Did you mean 'orthogonal'"),
        ("orthogonal", {"gian": 1.0}, False, "Did you mean 'gain'"),
        ("orthogonal", {"gain": "big"}, False, "must be a number"),
        ("orthogonal", None, True, "not an initializer of biases"),
        ("constant", None, False, "lacks 'val'"),
        ("he_normal", {"gain": 1.0}, False, "it takes: none"),
        (3, None, False, "unknown"),
        (jax.nn.initializers.ones, {"gain": 1.0}, False, "combined with a callable"),
    ],
)
def test_refused_initializers(name, kwargs, for_bias, message):
    with pytest.raises(ConfigError, match=message):
        get_initializer(name, kwargs, "fcnet_kernel_initializer", for_bias=for_bias)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_element_wise_and_monotone_enough(name):
    x = jnp.linspace(-3.0, 3.0, 13)
    y = get_activation(name)(x)
    assert y.shape == x.shape
    assert y[-1] > y[0]


def test_activations_by_value():
    x = jnp.array([-1.0, 2.0])
    np.testing.assert_allclose(get_activation("ReLU")(x), [0.0, 2.0])
    np.testing.assert_allclose(get_activation("swish")(x), x * jax.nn.sigmoid(x), rtol=1e-6)
    np.testing.assert_allclose(get_activation(None)(x), x)
    with pytest.raises(ConfigError, match=r"conv_activation .*Did you mean 'tanh'"):
        get_activation("tahn", "conv_activation")


def test_mlp_equals_numpy():
    mlp = MLP(hiddens=(7, 3), activation=jnp.tanh)
    x = jax.random.normal(jax.random.key(0), (2, 4, 5))
    variables = mlp.init(jax.random.key(1), x)
    params, h = variables["params"], np.asarray(x)
    for i in range(2):
        layer = params[f"dense_{i}"]
        h = np.tanh(h @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    np.testing.assert_allclose(mlp.apply(variables, x), h, rtol=1e-5, atol=1e-6)


def test_layernorm_follows_each_layer():
    mlp = MLP(hiddens=(7, 3), activation=get_activation("linear"), use_layernorm=True)
    x = jax.random.normal(jax.random.key(0), (4, 5))
    y = mlp.apply(mlp.init(jax.random.key(1), x), x)
    np.testing.assert_allclose(y.mean(axis=-1), np.zeros(4), atol=1e-5)
    np.testing.assert_allclose(y.std(axis=-1), np.ones(4), rtol=1e-3)


def numpy_layernorm(x, p):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(centred.var(axis=-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def test_residual_blocks_equal_numpy():
    blocks = ResidualMLP(hiddens=(6, 6))
    x = jax.random.normal(jax.random.key(0), (2, 4, 5))
    drawn = blocks.init(jax.random.key(1), x)["params"]
    rng = np.random.default_rng(2)  # biases and scales are constants at the start
    params = jax.tree.map(lambda leaf: leaf + np.float32(rng.normal(size=leaf.shape)), drawn)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def dense(name, h):
        return h @ p[name]["kernel"] + p[name]["bias"]

    h = dense("embedding", np.asarray(x, np.float64))
    for i in range(2):
        expanded = dense(f"expansion_{i}", numpy_layernorm(h, p[f"norm_{i}"]))
        h = h + dense(f"dense_{i}", np.maximum(expanded, 0.0))
    h = numpy_layernorm(h, p["norm"])
    np.testing.assert_allclose(blocks.apply({"params": params}, x), h, rtol=2e-4, atol=2e-5)


def test_residual_blocks_start_as_their_authors_do():
    x = jnp.zeros((1, 40))
    params = ResidualMLP(hiddens=(40,)).init(jax.random.key(0), x)["params"]
    embedding = params["embedding"]["kernel"]
    np.testing.assert_allclose(embedding.T @ embedding, np.eye(40), atol=1e-5)
    for name, inputs in (("expansion_0", 40), ("dense_0", 160)):
        np.testing.assert_allclose(params[name]["kernel"].std(), (2 / inputs) ** 0.5, rtol=0.05)
        assert not params[name]["bias"].any()


@pytest.mark.slow
def test_layernorm_follows_each_convolution():
    """Over the channels, which lie first in the output: standardised at every pixel."""
    x = jax.random.normal(jax.random.key(0), (4, 6, 5, 2))
    filters = ((7, (3, 3), (1, 1), "same"), (3, (3, 3), (1, 1), "valid"))
    plain, cnn = (
        CNN(filters=filters, activation=get_activation("linear"), use_layernorm=use)
        for use in (False, True)
    )
    params = cnn.init(jax.random.key(1), x)["params"]
    assert sorted(params) == ["conv_0", "conv_1", "norm_0", "norm_1"]
    assert params["norm_0"]["scale"].shape == (7,)
    assert sorted(plain.init(jax.random.key(2), x)["params"]) == ["conv_0", "conv_1"]
    y = cnn.apply({"params": params}, x).reshape(4, 3, 4, 3)
    np.testing.assert_allclose(y.mean(axis=1), np.zeros((4, 4, 3)), atol=1e-5)
    np.testing.assert_allclose(y.std(axis=1), np.ones((4, 4, 3)), rtol=1e-3)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((84, 84, 4), 3136), ((64, 64, 3), 2048), ((10, 10, 4), 1024), ((3, 3, 1), 16)],
)
def test_default_filters(shape, size):
    filters = get_default_conv_filters(shape)
    cnn = CNN(filters=filters)
    obs = jax.ShapeDtypeStruct((2, 3, *shape), jnp.float32)
    out = jax.eval_shape(lambda x: cnn.init_with_output(jax.random.key(0), x)[0], obs)
    assert out.shape == (2, 3, size)


def test_sizes_without_a_default():
    assert get_default_conv_filters((210, 160, 3)) is None
    assert get_default_conv_filters((2, 2, 3)) is None


def test_conv_filters_are_rllib_s_lists():
    assert parse_conv_filters([[16, 4, 2], (32, [3, 5], (1, 2), "valid")]) == (
        (16, (4, 4), (2, 2), "same"),
        (32, (3, 5), (1, 2), "valid"),
    )


@pytest.mark.parametrize(
    "value",
    ["small", [[16, 4]], [[16, 4, 2, "full"]], [[16, 0, 2]], [[16.0, 4, 2]], [3], [[16, [3], 2]]],
)
def test_refused_conv_filters(value):
    with pytest.raises(ConfigError, match="conv_filters"):
        parse_conv_filters(value)


def operands_of_qr(jaxpr: Any) -> list[int]:
    """The ranks of what is decomposed, in a program and all that it calls."""
    ranks = [e.invars[0].aval.ndim for e in jaxpr.eqns if e.primitive.name == "qr"]
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                ranks += operands_of_qr(inner)
    return ranks


def test_orthogonal_kernels_of_several_runs_are_drawn_one_after_another() -> None:
    """Batches of QR decompositions can hang XLA's threads on the CPU."""
    draw = get_initializer("orthogonal", {"gain": 2.0})
    keys = jax.random.split(jax.random.key(0), 3)
    several = jax.vmap(lambda key: draw(key, (6, 4)))
    ranks = operands_of_qr(jax.make_jaxpr(several)(keys).jaxpr)
    assert ranks
    assert set(ranks) == {2}
    one = jnp.stack([draw(key, (6, 4)) for key in keys])
    np.testing.assert_allclose(several(keys), one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one[0].T @ one[0], 4.0 * np.eye(4), atol=1e-5)
