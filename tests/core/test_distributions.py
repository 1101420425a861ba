"""Distributions against distrax, scipy, NumPy loops and Monte Carlo; masks; action spaces."""

from functools import partial

import distrax
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces

from jaxrl.distributions.base import (
    Categorical,
    Deterministic,
    DiagGaussian,
    MultiCategorical,
    SquashedGaussian,
)
from jaxrl.distributions.from_space import get_action_start, get_input_dim, make_action_distribution
from jaxrl.errors import SpaceError

B = 6
BOX = spaces.Box(-np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
UNEVEN = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
FAMILIES = {
    "categorical": partial(make_action_distribution, spaces.Discrete(4)),
    "multi": partial(make_action_distribution, spaces.MultiDiscrete([3, 2, 4])),
    "multi_even": partial(make_action_distribution, spaces.MultiDiscrete([[2, 2], [2, 2]])),
    "gaussian": partial(make_action_distribution, BOX),
    "squashed": partial(make_action_distribution, UNEVEN, continuous="squashed"),
    "deterministic": partial(make_action_distribution, UNEVEN, continuous="deterministic"),
    "uniform": partial(make_action_distribution, UNEVEN, continuous="uniform"),
}


def _normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _make(name, seed=0, batch=(B,)):
    family = FAMILIES[name]()
    return family.from_inputs(_normal(seed, *batch, family.input_dim))


@pytest.mark.parametrize("name", FAMILIES)
def test_shapes_and_eager_jit_vmap_agree(name):
    family, p, q = FAMILIES[name](), _make(name, 0), _make(name, 1)
    assert isinstance(p, family.family)
    keys = jax.random.split(jax.random.key(0), B)
    actions = jax.vmap(lambda d, k: d.sample(k))(p, keys)
    assert actions.shape == p.mode().shape == (B, *family.event_shape)
    assert actions.dtype == p.mode().dtype

    def everything(p, q, a):
        return p.log_prob(a), p.entropy(), p.kl(q), p.mode()

    eager = everything(p, q, actions)
    assert [x.shape for x in eager[:3]] == [(B,)] * 3
    for other in (jax.jit(everything)(p, q, actions), jax.vmap(everything)(p, q, actions)):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), eager, other)


@pytest.mark.parametrize("name", FAMILIES)
def test_leading_axes_of_any_number(name):
    family = FAMILIES[name]()

    @jax.jit
    def everything(inputs):
        p = family.from_inputs(inputs)
        return p.mode(), p.log_prob(p.mode()), p.entropy()

    inputs = _normal(3, B, family.input_dim)
    flat, single = everything(inputs), everything(inputs[0])
    stacked = everything(inputs.reshape(2, 3, -1))
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda x, y: close(x.reshape(y.shape), y), stacked, flat)
    jax.tree.map(lambda x, y: close(x, y[0]), single, flat)
    assert stacked[1].shape == (2, 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_kl_with_itself_is_zero_and_with_another_is_not(name):
    p, q = _make(name, 0), _make(name, 1)
    np.testing.assert_allclose(p.kl(p), np.zeros(B), atol=1e-6)
    if name != "uniform":  # all uniform distributions over a Box are the same
        assert (p.kl(q) > 1e-3).all()


def test_a_batch_is_sampled_independently_per_row_and_per_key():
    p = _make("gaussian")
    same = DiagGaussian(mean=jnp.zeros((B, 2, 3)), log_std=jnp.zeros((B, 2, 3)), event_shape=(2, 3))
    sample = same.sample(jax.random.key(0))
    assert len(np.unique(sample)) == sample.size
    keys = jax.random.split(jax.random.key(1), B)
    with jax.debug_key_reuse(False):
        row = jax.vmap(lambda d, k: d.sample(k))(p, keys)[2]
        alone = jax.tree.map(lambda x: x[2], p).sample(keys[2])
    np.testing.assert_allclose(row, alone, rtol=1e-6)


def test_categorical_equals_distrax_and_its_frequencies():
    logits, other = 2.0 * _normal(0, B, 4), _normal(1, B, 4)
    p, reference = Categorical(logits=logits), distrax.Categorical(logits=logits)
    actions = jnp.arange(B) % 4
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(p.log_prob(actions), reference.log_prob(actions), **tolerance)
    np.testing.assert_allclose(p.entropy(), reference.entropy(), **tolerance)
    np.testing.assert_allclose(
        p.kl(Categorical(logits=other)),
        reference.kl_divergence(distrax.Categorical(logits=other)),
        **tolerance,
    )
    np.testing.assert_array_equal(p.mode(), reference.mode())
    draws = jax.jit(jax.vmap(p.sample))(jax.random.split(jax.random.key(0), 5_000))
    frequency = np.stack([(np.asarray(draws) == a).mean(axis=0) for a in range(4)], axis=-1)
    np.testing.assert_allclose(frequency, p.probs(), atol=0.03)


def test_multi_categorical_is_a_product_of_categoricals():
    sizes, p, q = (3, 2, 4), _make("multi", 0), _make("multi", 1)
    inputs, others = _normal(0, B, 9), _normal(1, B, 9)
    parts = [Categorical(logits=x) for x in jnp.split(inputs, [3, 5], axis=-1)]
    other_parts = [Categorical(logits=x) for x in jnp.split(others, [3, 5], axis=-1)]
    actions = jnp.stack([jnp.arange(B) % n for n in sizes], axis=-1)
    log_prob = sum(c.log_prob(actions[:, i]) for i, c in enumerate(parts))
    np.testing.assert_allclose(p.log_prob(actions), log_prob, rtol=1e-5)
    np.testing.assert_allclose(p.entropy(), sum(c.entropy() for c in parts), rtol=1e-5)
    kl = sum(c.kl(d) for c, d in zip(parts, other_parts, strict=True))
    np.testing.assert_allclose(p.kl(q), kl, rtol=1e-5)
    np.testing.assert_array_equal(p.mode(), jnp.stack([c.mode() for c in parts], axis=-1))
    draws = np.asarray(jax.vmap(p.sample)(jax.random.split(jax.random.key(0), 5_000)))
    assert draws.min() == 0
    assert (draws.max(axis=(0, 1)) == np.array(sizes) - 1).all()
    for i, part in enumerate(parts):
        frequency = np.stack([(draws[..., i] == a).mean(axis=0) for a in range(sizes[i])], -1)
        np.testing.assert_allclose(frequency, part.probs(), atol=0.03)


@pytest.mark.parametrize("name", ["categorical", "multi", "multi_even"])
def test_masked_actions_have_probability_zero(name):
    family = FAMILIES[name]()
    mask = np.zeros((B, family.input_dim), bool)
    choices = [3, 2, 4] if name == "multi" else [2] * 4 if name == "multi_even" else [4]
    legal = [n - 1 for n in choices]
    starts = np.cumsum([0, *choices[:-1]])
    mask[:, starts + legal] = True
    mask[0, starts] = True  # the first row may also play 0 everywhere
    inputs = _normal(0, B, family.input_dim)
    p = family.from_inputs(inputs, jnp.asarray(mask))
    draws = np.asarray(jax.vmap(p.sample)(jax.random.split(jax.random.key(0), 500)))
    flat = draws.reshape(500, B, -1)
    assert (flat[:, 1:] == legal).all()
    assert set(np.unique(flat[:, 0, 0])) == {0, legal[0]}
    assert (np.asarray(p.mode()).reshape(B, -1)[1:] == legal).all()

    np.testing.assert_allclose(p.entropy()[1:], np.zeros(B - 1), atol=1e-6)
    assert jnp.exp(p.log_prob(jnp.full_like(p.mode(), 1 if name == "multi" else 0)))[1:].max() == 0
    q = family.from_inputs(jnp.roll(inputs, 1, axis=0), jnp.asarray(mask))
    assert jnp.isfinite(p.entropy()).all()
    assert jnp.isfinite(p.kl(q)).all()

    def loss(x):
        d = family.from_inputs(x, jnp.asarray(mask))
        return jnp.sum(d.entropy() + d.log_prob(p.mode()) + d.kl(q))

    grad = np.asarray(jax.jit(jax.grad(loss))(inputs))
    assert np.isfinite(grad).all()
    assert (grad[~mask] == 0.0).all()


def test_everything_masked_is_finite():
    p = Categorical.from_inputs(_normal(0, 4), jnp.zeros(4, bool))
    np.testing.assert_allclose(p.probs(), np.full(4, 0.25))
    np.testing.assert_allclose(p.entropy(), np.log(4.0), rtol=1e-6)


def test_integer_masks_are_understood():
    mask = jnp.array([0, 1, 0], jnp.int8)
    assert Categorical.from_inputs(jnp.array([5.0, 0.0, 9.0]), mask).mode() == 1


def test_diag_gaussian_equals_scipy_and_distrax():
    p, q = _make("gaussian", 0), _make("gaussian", 1)
    mean, std = np.asarray(p.mean).reshape(B, 6), np.exp(np.asarray(p.log_std)).reshape(B, 6)
    action = _normal(2, B, 2, 3)
    expected = scipy.stats.norm.logpdf(np.asarray(action).reshape(B, 6), mean, std).sum(axis=1)
    np.testing.assert_allclose(p.log_prob(action), expected, rtol=1e-4)
    expected = scipy.stats.norm.entropy(mean, std).sum(axis=1)
    np.testing.assert_allclose(p.entropy(), expected, rtol=1e-5)
    reference = [
        distrax.MultivariateNormalDiag(d.mean.reshape(B, 6), jnp.exp(d.log_std).reshape(B, 6))
        for d in (p, q)
    ]
    np.testing.assert_allclose(p.kl(q), reference[0].kl_divergence(reference[1]), rtol=1e-4)
    draws = np.asarray(jax.vmap(p.sample)(jax.random.split(jax.random.key(0), 5_000)))
    np.testing.assert_allclose(draws.mean(axis=0), p.mean, atol=0.5)
    np.testing.assert_allclose(draws.std(axis=0), jnp.exp(p.log_std), rtol=0.06)


def test_log_std_is_clamped():
    inputs = jnp.array([0.0, 100.0])
    box = spaces.Box(-1.0, 1.0, (1,))
    for clip, expected in ((20.0, 20.0), (2.0, 2.0), (float("inf"), 100.0)):
        family = make_action_distribution(box, log_std_clip=clip)
        assert family.from_inputs(inputs).log_std == expected
        assert family.from_inputs(-inputs).log_std == -expected


def test_squashed_gaussian_equals_distrax_inside():
    p = _make("squashed")
    low, high = UNEVEN.low, UNEVEN.high
    bijector = distrax.Chain(
        [
            distrax.ScalarAffine(shift=jnp.asarray(low), scale=jnp.asarray(high - low)),
            distrax.ScalarAffine(shift=0.5, scale=0.5),
            distrax.Tanh(),
        ]
    )
    base = distrax.MultivariateNormalDiag(p.mean, jnp.exp(p.log_std))
    reference = distrax.Transformed(base, distrax.Block(bijector, 1))
    action, log_prob = p.sample_and_log_prob(jax.random.key(0))
    assert (np.asarray(action) >= low).all()
    assert (np.asarray(action) <= high).all()
    with jax.numpy_rank_promotion("allow"):
        expected = reference.log_prob(action)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(p.log_prob(action), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_squashed_gaussian_density_integrates_to_one():
    p = SquashedGaussian(
        mean=jnp.array([0.7]), log_std=jnp.array([-0.3]), low=(-2.0,), high=(5.0,), event_shape=(1,)
    )
    x = jnp.linspace(-2.0, 5.0, 20_001)[:, None]
    density = jnp.exp(jax.vmap(lambda a: p.log_prob(a))(x))
    np.testing.assert_allclose(np.trapezoid(density, x[:, 0]), 1.0, rtol=1e-3)


@pytest.mark.parametrize("log_std", [-3.0, -0.5, 0.5, 2.0])
def test_squashed_entropy_equals_monte_carlo(log_std):
    p = SquashedGaussian(
        mean=jnp.array([0.4, -1.5]),
        log_std=jnp.full(2, log_std),
        low=(-2.0, 0.0),
        high=(1.0, 5.0),
        event_shape=(2,),
    )
    keys = jax.random.split(jax.random.key(0), 50_000)
    _, log_prob = jax.jit(jax.vmap(p.sample_and_log_prob))(keys)
    np.testing.assert_allclose(p.entropy(), -log_prob.mean(), rtol=0.02, atol=0.03)


def test_squashed_gaussian_is_finite_at_the_bounds():
    @jax.jit
    def loss(mean, log_std, action):
        p = SquashedGaussian(mean=mean, log_std=log_std, low=(-1.0,), high=(3.0,), event_shape=(1,))
        sample, log_prob = p.sample_and_log_prob(jax.random.key(0))
        return jnp.sum(p.log_prob(action) + log_prob + p.entropy() + sample)

    for action in (-1.0, 3.0):
        for mean in (-40.0, 0.0, 40.0):
            value, grads = jax.value_and_grad(loss, argnums=(0, 1))(
                jnp.array([mean]), jnp.array([0.5]), jnp.array([action])
            )
            assert jnp.isfinite(value)
            assert all(jnp.isfinite(g).all() for g in grads)


def test_squashed_densities_equal_float64_however_far_out():
    """By the logarithm of 1 / cosh², which float64 can do up to |u| of 350."""
    u = np.linspace(-30.0, 30.0, 121)
    for log_std in (-5.0, 0.0, 2.0):
        noise = np.linspace(-2.0, 2.0, 121)
        mean = u - np.exp(log_std) * noise
        p = SquashedGaussian(
            mean=jnp.asarray(mean[:, None], jnp.float32),
            log_std=jnp.full((121, 1), log_std),
            low=(-1.0,),
            high=(3.0,),
            event_shape=(1,),
        )
        action, log_prob = p.from_noise_and_log_prob(jnp.asarray(noise[:, None], jnp.float32))
        gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
        expected = gaussian - np.log(2.0 / np.cosh(u) ** 2)
        np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(action[:, 0], 1.0 + 2.0 * np.tanh(u), atol=1e-4)
        inside = np.abs(u) < 3.0
        np.testing.assert_allclose(
            p.log_prob(action)[inside], expected[inside], rtol=0.01, atol=0.02
        )


def test_squashed_deviations_have_an_upper_limit():
    family = make_action_distribution(UNEVEN, continuous="squashed")
    p = family.from_inputs(jnp.array([[0.0, 0.0, 9.0, -30.0]]))
    np.testing.assert_array_equal(p.log_std, [[2.0, -20.0]])


def test_squashed_samples_stay_in_the_space_when_saturated():
    family = make_action_distribution(UNEVEN, continuous="squashed")
    for sign in (-1.0, 1.0):
        p = family.from_inputs(jnp.array([[sign * 50.0, sign * 50.0, 1.0, 1.0]]))
        assert UNEVEN.contains(np.asarray(p.mode()[0]))
        assert UNEVEN.contains(np.asarray(p.sample(jax.random.key(0))[0]))


def test_deterministic():
    p = Deterministic(value=jnp.array([[1.0, 2.0], [3.0, 4.0]]), event_shape=(2,))
    assert (p.sample(jax.random.key(0)) == p.mode()).all()
    action = jnp.array([[1.0, 2.0], [3.0, 5.0]])
    np.testing.assert_array_equal(p.log_prob(action), [0.0, -np.inf])
    np.testing.assert_array_equal(p.entropy(), [0.0, 0.0])


@pytest.mark.parametrize(
    ("space", "family", "dim"),
    [
        (spaces.Discrete(5), Categorical, 5),
        (spaces.Discrete(5, start=-2), Categorical, 5),
        (spaces.MultiDiscrete([2, 3]), MultiCategorical, 5),
        (BOX, DiagGaussian, 12),
        (spaces.Box(-1.0, 1.0, ()), DiagGaussian, 2),
    ],
)
def test_spaces_have_their_distribution(space, family, dim):
    distribution = make_action_distribution(space)
    assert distribution.family is family
    assert distribution.input_dim == get_input_dim(space) == dim
    action = distribution.from_inputs(jnp.zeros(dim)).mode() + get_action_start(space)
    assert space.contains(np.asarray(action, space.dtype))


def test_start_is_added_by_a_helper():
    assert get_action_start(spaces.Discrete(5, start=-2)) == -2
    np.testing.assert_array_equal(
        get_action_start(spaces.MultiDiscrete([2, 3], start=np.array([1, 4]))), [1, 4]
    )
    assert get_action_start(spaces.MultiDiscrete([2, 3])) == 0
    assert get_action_start(BOX) == 0


@pytest.mark.parametrize(
    ("space", "kwargs", "message"),
    [
        (spaces.Text(3), {}, "Text"),
        (spaces.Dict({"arm": BOX, "leg": spaces.Tuple([spaces.Text(2)])}), {}, r"\['leg'\]\[0\]"),
        (spaces.Box(0, 3, (2,), np.int32), {}, "use Discrete or MultiDiscrete"),
        (spaces.Box(-np.inf, 1.0, (2,)), {"continuous": "squashed"}, "finite"),
    ],
)
def test_refused_spaces_are_named(space: gymnasium.Space, kwargs, message):
    with pytest.raises(SpaceError, match=message):
        make_action_distribution(space, **kwargs)
