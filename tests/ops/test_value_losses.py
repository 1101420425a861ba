"""Value-based formulas against plain loops and rlax: eager, jitted and vmapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxrl.ops import value_losses
from jaxrl.testing import references

N, ACTIONS, ATOMS = 40, 3, 11
SUPPORT = jnp.linspace(-2.0, 3.0, ATOMS)


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def check(fn, expected, *args, rtol=1e-5):
    """Eager, jitted, one row at a time, and with two batch axes."""
    for result in (fn(*args), jax.jit(fn)(*args), jax.vmap(fn)(*args)):
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=1e-5)
    folded = fn(*(x.reshape(2, N // 2, *x.shape[1:]) for x in args))
    np.testing.assert_allclose(folded.reshape(expected.shape), expected, rtol=rtol, atol=1e-5)


def test_what_belongs_to_an_action():
    values, several = normal(0, N, ACTIONS), normal(1, N, ACTIONS, ATOMS)
    action = jnp.asarray(np.random.default_rng(2).integers(0, ACTIONS, N), jnp.int32)
    rows = np.arange(N)
    check(value_losses.batched_index, np.asarray(values)[rows, action], values, action)
    check(value_losses.batched_index_rows, np.asarray(several)[rows, action], several, action)


def test_values_of_other_actions_may_be_anything():
    values = jnp.asarray([[1.0, jnp.nan, -jnp.inf]])
    action = jnp.zeros((1,), jnp.int32)
    assert value_losses.batched_index(values, action) == 1.0
    assert value_losses.batched_index_rows(values[..., None], action) == 1.0
    grad = jax.grad(lambda x: value_losses.batched_index(x, action).sum())(values)
    np.testing.assert_array_equal(grad, [[1.0, 0.0, 0.0]])


def projected(reward, discount, probs):
    return value_losses.categorical_projection(reward, discount, probs, SUPPORT)


def test_categorical_projection():
    # Rewards reach past both ends of the support; some rows end, some land on an atom exactly.
    reward = 3.0 * normal(3, N)
    discount = jnp.where(jnp.arange(N) % 4 == 0, 0.0, 0.9)
    reward = reward.at[:4].set(jnp.asarray([0.5, -2.0, 3.0, 0.25]))
    probs = jax.nn.softmax(2.0 * normal(4, N, ATOMS))
    rows = zip(*map(np.asarray, (reward, discount, probs)), strict=True)
    expected = np.stack([references.categorical_projection(*row, SUPPORT) for row in rows])
    check(projected, expected, reward, discount, probs)
    np.testing.assert_allclose(expected.sum(axis=-1), 1.0, rtol=1e-5)
    theirs = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(
        reward[:, None] + discount[:, None] * SUPPORT[None], probs, SUPPORT
    )
    np.testing.assert_allclose(projected(reward, discount, probs), theirs, atol=1e-5)


def test_the_projection_keeps_the_mean_inside_the_support_and_no_gradient():
    reward, discount = 0.2 * normal(5, N), jnp.full((N,), 0.5)
    probs = jax.nn.softmax(normal(6, N, ATOMS))
    mean = jnp.sum(projected(reward, discount, probs) * SUPPORT[None], axis=-1)
    wanted = reward + discount * jnp.sum(probs * SUPPORT[None], axis=-1)
    np.testing.assert_allclose(mean, wanted, atol=1e-5)
    grad = jax.grad(lambda r: projected(r, discount, probs)[:, 0].sum())(reward)
    np.testing.assert_array_equal(grad, np.zeros(N))


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_the_loss_of_c51_is_that_of_rlax():
    logits, following = normal(7, N, ACTIONS, ATOMS), normal(8, N, ACTIONS, ATOMS)
    choosing = normal(9, N, ACTIONS)
    rng = np.random.default_rng(10)
    action = jnp.asarray(rng.integers(0, ACTIONS, N), jnp.int32)
    reward, discount = normal(11, N), jnp.asarray(rng.random(N), jnp.float32)
    best = jnp.argmax(choosing, axis=-1)
    probs = jax.nn.softmax(value_losses.batched_index_rows(following, best))
    target = projected(reward, discount, probs)
    taken = value_losses.batched_index_rows(logits, action)
    theirs = jax.vmap(rlax.categorical_double_q_learning, (None, 0, 0, 0, 0, None, 0, 0))(
        SUPPORT, logits, action, reward, discount, SUPPORT, following, choosing
    )
    np.testing.assert_allclose(value_losses.cross_entropy(taken, target), theirs, rtol=1e-4)
    log_probs = np.asarray(taken, np.float64)
    log_probs = log_probs - np.log(np.exp(log_probs).sum(axis=-1, keepdims=True))
    expected = -(np.asarray(target) * log_probs).sum(axis=-1)
    check(value_losses.cross_entropy, expected, taken, target)


@pytest.mark.parametrize("kappa", [1.0, 0.3])
@pytest.mark.parametrize("samples", [7, 13])
def test_quantile_huber_loss(kappa, samples):
    quantiles, target = normal(12, N, 7), 2.0 * normal(13, N, samples)

    def ours(quantiles, target):
        return value_losses.quantile_huber_loss(quantiles, target, kappa)

    expected = np.asarray(
        [
            references.quantile_huber_loss(*row, kappa)
            for row in zip(np.asarray(quantiles), np.asarray(target), strict=True)
        ]
    )
    check(ours, expected, quantiles, target)
    midpoints = (jnp.arange(7.0) + 0.5) / 7
    theirs = jax.vmap(rlax.quantile_regression_loss, (0, None, 0, None))(
        quantiles, midpoints, target, kappa
    )
    np.testing.assert_allclose(kappa * ours(quantiles, target), theirs, rtol=1e-4)


def test_quantile_regression_finds_the_quantiles_of_its_samples():
    target = jnp.asarray(np.random.default_rng(14).exponential(size=(1, 4001)), jnp.float32)
    loss = jax.grad(lambda q: value_losses.quantile_huber_loss(q, target, 0.05).sum())
    quantiles = jnp.ones((1, 4))

    def step(_, q):
        return q - 0.05 * loss(q)

    found = jax.jit(lambda q: jax.lax.fori_loop(0, 3000, step, q))(quantiles)
    wanted = np.quantile(np.asarray(target), [0.125, 0.375, 0.625, 0.875])
    np.testing.assert_allclose(found[0], wanted, atol=0.05)


def test_targets_get_no_gradient():
    quantiles, target = normal(15, 1, 4), normal(16, 1, 4)
    grad = jax.grad(lambda t: value_losses.quantile_huber_loss(quantiles, t).sum())(target)
    np.testing.assert_array_equal(grad, np.zeros((1, 4)))


def test_conservative_gap_is_the_soft_maximum_above_the_value():
    values, value = normal(20, N, ACTIONS), normal(21, N)
    expected = 0.5 * np.log(np.exp(np.asarray(values, np.float64) / 0.5).sum(-1)) - value
    check(lambda x, y: value_losses.conservative_gap(x, y, 0.5), expected, values, value)
    cold = value_losses.conservative_gap(values, value, 1e-4)
    np.testing.assert_allclose(cold, values.max(-1) - value, atol=1e-3)
    illegal = jnp.concatenate([values, jnp.full((N, 1), -1e9)], axis=-1)
    without = value_losses.conservative_gap(values, value)
    np.testing.assert_array_equal(value_losses.conservative_gap(illegal, value), without)


def test_large_margin_is_the_best_other_action_above_the_own():
    values, action = normal(22, N, ACTIONS), jnp.arange(N) % ACTIONS
    rows, chosen = np.asarray(values, np.float64), np.asarray(action)
    expected = [
        max(q + 0.8 * (j != a) for j, q in enumerate(row)) - row[a]
        for row, a in zip(rows, chosen, strict=True)
    ]
    check(lambda x, a: value_losses.large_margin(x, a, 0.8), np.asarray(expected), values, action)
    best = jnp.argmax(values, axis=-1)
    assert jnp.all(value_losses.large_margin(values, best, 0.0) == 0.0)


@pytest.mark.parametrize("expectile", [0.5, 0.8])
def test_expectile_loss_is_an_asymmetric_square(expectile):
    error = normal(24, N)
    expected = [(expectile if u > 0 else 1 - expectile) * u * u for u in np.asarray(error)]
    check(lambda u: value_losses.expectile_loss(u, expectile), np.asarray(expected), error)


@pytest.mark.parametrize(("expectile", "estimate"), [(0.5, 0.2), (0.8, 0.5), (0.99, 0.9612)])
def test_expectiles_of_two_outcomes(expectile, estimate):
    """One in five targets is 1, the others 0: tau (1 - m) / 5 = (1 - tau) m 4 / 5."""
    targets = jnp.asarray([1.0, 0.0, 0.0, 0.0, 0.0])

    def slope(m):
        return jax.grad(lambda m: value_losses.expectile_loss(targets - m, expectile).sum())(m)

    np.testing.assert_allclose(slope(jnp.asarray(estimate)), 0.0, atol=1e-3)
    assert slope(jnp.asarray(estimate - 0.05)) < -0.01 < 0.01 < slope(jnp.asarray(estimate + 0.03))
