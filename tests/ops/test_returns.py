"""Return estimators against NumPy loops, rlax and identities."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxrl.ops import returns
from jaxrl.testing import references

T, B, GAMMA, LAMBDA = 23, 5, 0.97, 0.9
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


def _data(seed=0, shape=(T, B), end_rate=0.15, mask_rate=0.1):
    rng = np.random.default_rng(seed)
    terminated = rng.random(shape) < end_rate
    return {
        "r_t": rng.normal(size=shape).astype(np.float32),
        "v_tm1": rng.normal(size=shape).astype(np.float32),
        "v_t": rng.normal(size=shape).astype(np.float32),
        "rho_tm1": rng.lognormal(size=shape).astype(np.float32),
        "terminated": terminated,
        # some rows are both: a time limit reached in the step that ends the task
        "truncated": rng.random(shape) < end_rate,
        "mask": rng.random(shape) >= mask_rate,
    }


ESTIMATORS = {
    "gae": (
        partial(returns.gae, gamma=GAMMA, lambda_=LAMBDA),
        partial(references.gae, gamma=GAMMA, lambda_=LAMBDA),
        ("r_t", "v_tm1", "v_t", "terminated", "truncated", "mask"),
    ),
    "lambda_returns": (
        partial(returns.lambda_returns, gamma=GAMMA, lambda_=LAMBDA),
        partial(references.lambda_returns, gamma=GAMMA, lambda_=LAMBDA),
        ("r_t", "v_t", "terminated", "truncated", "mask"),
    ),
    "discounted_returns": (
        partial(returns.discounted_returns, gamma=GAMMA),
        partial(references.n_step_returns, gamma=GAMMA, n=T),
        ("r_t", "v_t", "terminated", "truncated", "mask"),
    ),
    **{
        f"n_step_returns_{n}": (
            partial(returns.n_step_returns, gamma=GAMMA, n=n),
            partial(references.n_step_returns, gamma=GAMMA, n=n),
            ("r_t", "v_t", "terminated", "truncated", "mask"),
        )
        for n in (1, 3, 40)
    },
    "vtrace": (
        partial(returns.vtrace, gamma=GAMMA, lambda_=0.95, clip_rho=1.2, clip_pg_rho=1.1),
        partial(references.vtrace, gamma=GAMMA, lambda_=0.95, clip_rho=1.2, clip_pg_rho=1.1),
        ("r_t", "v_tm1", "v_t", "rho_tm1", "terminated", "truncated", "mask"),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equals_the_numpy_loop_eager_jitted_and_vmapped(name):
    ours, reference, inputs = ESTIMATORS[name]
    data = _data()
    args = [data[n] for n in inputs]
    columns = [reference(*(x[:, b] for x in args)) for b in range(B)]
    expected = jax.tree.map(lambda *xs: np.stack(xs, axis=1), *columns)

    arrays = [jnp.asarray(x) for x in args]
    single = ours(*(x[:, 2] for x in arrays))
    for result in (
        ours(*arrays),
        jax.jit(ours)(*arrays),
        jax.vmap(ours, in_axes=1, out_axes=1)(*arrays),
    ):
        jax.tree.map(partial(np.testing.assert_allclose, **TOLERANCE), result, expected)
    jax.tree.map(lambda x, e: np.testing.assert_allclose(x, e[:, 2], **TOLERANCE), single, expected)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(single))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_mask_is_a_mask_of_ones(name):
    ours, _, inputs = ESTIMATORS[name]
    data = {k: jnp.asarray(v) for k, v in _data(1).items()}
    without = ours(**{n: data[n] for n in inputs if n != "mask"}, mask=None)
    ones = ours(**{n: data[n] for n in inputs if n != "mask"}, mask=jnp.ones((T, B), bool))
    jax.tree.map(np.testing.assert_array_equal, without, ones)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_masked_rows_may_hold_anything(name):
    ours, _, inputs = ESTIMATORS[name]
    data = _data(2)
    poisoned = {
        k: np.where(data["mask"], v, np.nan) if v.dtype == np.float32 else v
        for k, v in data.items()
    }
    clean = ours(**{n: jnp.asarray(data[n]) for n in inputs})
    dirty = ours(**{n: jnp.asarray(poisoned[n]) for n in inputs})
    for x, y in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(x[data["mask"]], y[data["mask"]])


def test_hand_numbers():
    """Three steps: a reward each, the last one terminates."""
    r = jnp.array([1.0, 2.0, 3.0])
    v, v_next = jnp.array([0.5, 1.0, 1.5]), jnp.array([1.0, 1.5, 100.0])
    terminated, no = jnp.array([False, False, True]), jnp.zeros(3, bool)
    # deltas: 1 + .5*1 - .5 = 1;  2 + .5*1.5 - 1 = 1.75;  3 - 1.5 = 1.5; trace .25
    advantage = returns.gae(r, v, v_next, terminated, no, None, 0.5, 0.5)
    np.testing.assert_allclose(advantage, [1 + 0.25 * (1.75 + 0.25 * 1.5), 2.125, 1.5], rtol=1e-6)
    np.testing.assert_allclose(
        returns.discounted_returns(r, v_next, terminated, no, None, 0.5), [2.75, 3.5, 3.0]
    )


def test_gae_equals_rlax():
    data = _data(3, shape=(T,), mask_rate=0.0)
    r, v_all = data["r_t"], np.append(data["v_tm1"], np.float32(0.3))
    terminated, none = data["terminated"], np.zeros(T, bool)
    discount = GAMMA * (1.0 - terminated.astype(np.float32))
    expected = rlax.truncated_generalized_advantage_estimation(
        jnp.asarray(r), jnp.asarray(discount), LAMBDA, jnp.asarray(v_all)
    )
    ours = returns.gae(
        *map(jnp.asarray, (r, v_all[:-1], v_all[1:], terminated, none)), None, GAMMA, LAMBDA
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_lambda_returns_with_discounts_of_each_step_equal_rlax():
    data = _data(5, mask_rate=0.0)
    r, v_t = jnp.asarray(data["r_t"]), jnp.asarray(data["v_t"])
    discount = jnp.asarray(np.random.default_rng(6).uniform(size=r.shape), jnp.float32)
    expected = jax.vmap(partial(rlax.lambda_returns, lambda_=LAMBDA), in_axes=1, out_axes=1)(
        r, discount, v_t
    )
    for compute in (returns.discounted_lambda_returns, jax.jit(returns.discounted_lambda_returns)):
        np.testing.assert_allclose(
            compute(r, discount, v_t, LAMBDA), expected, rtol=1e-5, atol=1e-5
        )
    np.testing.assert_allclose(
        returns.discounted_lambda_returns(r, jnp.full_like(r, GAMMA), v_t, 1.0)[0],
        returns.discounted_returns(
            r, v_t, jnp.zeros(r.shape, bool), jnp.zeros(r.shape, bool), None, GAMMA
        )[0],
        rtol=1e-5,
    )


def test_lambda_returns_and_n_step_equal_rlax():
    data = _data(4, shape=(T,), mask_rate=0.0)
    r, v_t, none = jnp.asarray(data["r_t"]), jnp.asarray(data["v_t"]), jnp.zeros(T, bool)
    terminated = jnp.asarray(data["terminated"])
    discount = GAMMA * (1.0 - terminated.astype(jnp.float32))
    np.testing.assert_allclose(
        returns.lambda_returns(r, v_t, terminated, none, None, GAMMA, LAMBDA),
        rlax.lambda_returns(r, discount, v_t, LAMBDA),
        rtol=1e-5,
        atol=1e-5,
    )
    np.testing.assert_allclose(
        returns.n_step_returns(r, v_t, terminated, none, None, GAMMA, 4),
        rlax.n_step_bootstrapped_returns(r, discount, v_t, 4),
        rtol=1e-5,
        atol=1e-5,
    )


def test_vtrace_equals_rlax():
    data = {k: jnp.asarray(v) for k, v in _data(5, shape=(T,), mask_rate=0.0).items()}
    v_tm1, none = data["v_tm1"], jnp.zeros(T, bool)
    v_t = jnp.append(v_tm1[1:], 0.7)
    discount = GAMMA * (1.0 - data["terminated"].astype(jnp.float32))
    rows = (data["r_t"], v_tm1, v_t, data["rho_tm1"], data["terminated"], none)
    targets, advantages = returns.vtrace(*rows, None, GAMMA, 0.9)
    expected = rlax.vtrace_td_error_and_advantage(
        v_tm1, v_t, data["r_t"], discount, data["rho_tm1"], 0.9
    )
    np.testing.assert_allclose(targets - v_tm1, expected.errors, rtol=1e-5, atol=1e-5)
    # rlax mixes lambda into the advantage's target too; the paper, and RLlib, do not.
    plain = rlax.vtrace_td_error_and_advantage(
        v_tm1, v_t, data["r_t"], discount, data["rho_tm1"], 1.0
    )
    _, plain_advantages = returns.vtrace(*rows, None, GAMMA, 1.0)
    np.testing.assert_allclose(plain_advantages, plain.pg_advantage, rtol=1e-5, atol=1e-5)
    assert advantages.shape == (T,)


def _masked(seed=6):
    return {k: jnp.asarray(v) for k, v in _data(seed).items()}


def _connected(seed):
    """Data where a successor's value is the next row's own, these values, and the ends."""
    d = _masked(seed)
    inside = returns._is_continued(d["terminated"], d["truncated"], d["mask"])
    v_t = jnp.where(inside, jnp.roll(d["v_tm1"], -1, axis=0), d["v_t"])
    return d, v_t, (d["terminated"], d["truncated"], d["mask"])


@pytest.mark.parametrize("lambda_", [LAMBDA, 1.0])
def test_gae_plus_value_is_the_lambda_return(lambda_):
    """With a lambda of 1, it is that of Monte Carlo."""
    d, v_t, ends = _connected(7)
    advantage = returns.gae(d["r_t"], d["v_tm1"], v_t, *ends, GAMMA, lambda_)
    if lambda_ == 1.0:
        whole = returns.discounted_returns(d["r_t"], v_t, *ends, GAMMA)
    else:
        whole = returns.lambda_returns(d["r_t"], v_t, *ends, GAMMA, lambda_)
    expected = jnp.where(d["mask"], whole - d["v_tm1"], 0.0)
    np.testing.assert_allclose(advantage, expected, **TOLERANCE)


def test_vtrace_on_policy_is_the_lambda_return():
    d, v_t, ends = _connected(8)
    targets, _ = returns.vtrace(d["r_t"], d["v_tm1"], v_t, jnp.ones((T, B)), *ends, GAMMA, LAMBDA)
    expected = returns.lambda_returns(d["r_t"], v_t, *ends, GAMMA, LAMBDA)
    np.testing.assert_allclose(jnp.where(d["mask"], targets, 0.0), expected, **TOLERANCE)


@pytest.mark.parametrize("kind", ["terminated", "truncated", "masked"])
def test_cutting_a_trajectory_at_an_end_changes_nothing(kind):
    d = {k: jnp.asarray(v) for k, v in _data(9, shape=(T,), end_rate=0.0, mask_rate=0.0).items()}
    cut = 10
    column = {"terminated": "terminated", "truncated": "truncated", "masked": "mask"}[kind]
    d[column] = d[column].at[cut].set(kind != "masked")

    def run(rows):
        names = ("r_t", "v_tm1", "v_t", "terminated", "truncated", "mask")
        return returns.gae(*(d[n][rows] for n in names), GAMMA, LAMBDA)

    whole = run(slice(None))
    parts = jnp.concatenate([run(slice(0, cut + 1)), run(slice(cut + 1, None))])
    np.testing.assert_array_equal(whole, parts)


def test_a_truncation_bootstraps_and_a_termination_does_not():
    """Fails if a truncation is treated as a termination: the final value would be lost."""
    no, last = jnp.zeros(4, bool), jnp.arange(4) == 3
    r, v, v_next = jnp.ones(4), jnp.full(4, 10.0), jnp.full(4, 10.0)
    truncated = returns.gae(r, v, v_next, no, last, None, 0.9, 1.0)
    terminated = returns.gae(r, v, v_next, last, no, None, 0.9, 1.0)
    # v = 10 is the exact value of a reward of 1 for ever, so a truncation costs nothing
    np.testing.assert_allclose(truncated, np.zeros(4), atol=1e-5)
    np.testing.assert_allclose(terminated, [-10 * 0.9**k for k in (4, 3, 2, 1)], rtol=1e-5)


def test_both_ends_at_once_is_a_termination():
    flag = jnp.ones(1, bool)
    advantage = returns.gae(jnp.ones(1), jnp.zeros(1), jnp.full(1, 5.0), flag, flag, None, 0.9, 1.0)
    np.testing.assert_array_equal(advantage, [1.0])


def test_return_is_known_up_to_a_termination():
    terminated = jnp.array([0, 0, 1, 0, 0, 0], bool)
    truncated = jnp.array([0, 0, 0, 0, 1, 0], bool)
    np.testing.assert_array_equal(
        returns.is_return_known(terminated, truncated), [1, 1, 1, 0, 0, 0]
    )
    mask = jnp.array([1, 0, 1, 1, 1, 1], bool)
    np.testing.assert_array_equal(
        returns.is_return_known(terminated, truncated, mask), [0, 0, 1, 0, 0, 0]
    )
