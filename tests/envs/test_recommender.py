"""The recommender's rules, and how far apart good and bad slates are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import make
from jaxrl.envs.recommender import InterestEvolution, InterestEvolutionParams
from jaxrl.errors import EnvError
from tests.envs.slate_planning import (
    Plan,
    sessions,
    show_good,
    show_liked,
    show_random,
)

PARAMS = replace(InterestEvolutionParams(), quality_std=np.float32(0.0))


def steps_of(env: InterestEvolution, state: Any, action: Any, number: int = 3000) -> Any:
    """Many independent steps from one state."""
    step = jax.vmap(env.step, in_axes=(0, None, None, None))
    keys = jax.random.split(jax.random.key(1), number)
    return jax.jit(step)(keys, state, jnp.asarray(action, jnp.int32), PARAMS)


def test_a_click_takes_time_by_quality_and_draws_the_interest() -> None:
    env = InterestEvolution(num_candidates=4)
    state, obs = env.reset(jax.random.key(0), PARAMS)
    np.testing.assert_array_equal(obs["response"], [0, 0])
    np.testing.assert_allclose(obs["user"], [*np.asarray(state.interests), 1.0], rtol=1e-6)
    state = replace(state, topics=jnp.asarray([0, 4, 2, 2], jnp.int32))
    after, out = steps_of(env, state, [0, 1])
    response = np.asarray(out.obs["response"])
    clicked = np.where(response.any(-1), response.argmax(-1), 2)
    np.testing.assert_array_equal(out.reward, response.sum(-1))
    scores = np.append(3.0 * np.asarray(state.interests)[[0, 4]], 0.5)
    probs = np.exp(scores) / np.exp(scores).sum()
    shares = np.bincount(clicked, minlength=3) / len(clicked)
    np.testing.assert_allclose(shares, probs, atol=0.03)
    spent = 10.0 - np.asarray(after.time)
    np.testing.assert_allclose(spent, np.array([1.8, 0.2, 0.5])[clicked], atol=1e-5)
    interests = np.asarray(after.interests)
    for choice, topic in ((0, 0), (1, 4)):
        before = float(state.interests[topic])
        moved = interests[clicked == choice]
        np.testing.assert_allclose(moved[:, topic], before + 0.15 * (1.0 - before), atol=1e-5)
        rest = np.delete(moved, topic, axis=1)
        expected = np.delete(np.asarray(state.interests), topic)
        np.testing.assert_allclose(rest, np.broadcast_to(expected, rest.shape))
    np.testing.assert_array_equal(
        interests[clicked == 2], np.broadcast_to(state.interests, (sum(clicked == 2), 5))
    )
    np.testing.assert_array_equal(out.terminated, np.asarray(after.time) <= 0.0)
    topics = np.asarray(out.obs["doc"]).argmax(-1)
    np.testing.assert_array_equal(topics, after.topics)
    np.testing.assert_allclose(np.bincount(topics.ravel()) / topics.size, 0.2, atol=0.02)


def test_a_candidate_that_is_shown_twice_counts_once() -> None:
    env = InterestEvolution(num_candidates=4)
    state, _ = env.reset(jax.random.key(0), PARAMS)
    state = replace(state, topics=jnp.asarray([2, 1, 2, 2], jnp.int32))
    rates = [np.asarray(steps_of(env, state, a)[1].reward).mean() for a in ([0, 0], [0, 2])]
    weights = np.exp(3.0 * float(state.interests[2]) - 0.5)
    np.testing.assert_allclose(
        rates, [weights / (1 + weights), 2 * weights / (1 + 2 * weights)], atol=0.03
    )
    assert not np.asarray(steps_of(env, state, [0, 0])[1].obs["response"])[:, 1].any()


def test_sessions_end_when_the_time_is_used_up() -> None:
    env = InterestEvolution()
    state, _ = env.reset(jax.random.key(0), PARAMS)
    _, out = steps_of(env, replace(state, time=jnp.float32(0.1)), [0, 1], 100)
    assert bool(out.terminated.all())
    assert float(np.asarray(out.obs["user"])[:, -1].max()) == 0.0


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(
    ("levels", "number", "error"),
    [(3, 400, 0.12), pytest.param(5, 2000, 0.05, marks=pytest.mark.slow)],
)
def test_the_best_slates_are_far_from_random_and_from_clicked_ones(
    levels: int, number: int, error: float
) -> None:
    """The best that is known is the policy of value iteration on a discretised user.

    Its clicks are those that it expects, but for what is interpolated, and more than those of a rule that
    knows the qualities.
    """
    env = InterestEvolution()
    plan = Plan(env, levels)
    policies = {
        "random": show_random(env),
        "liked": show_liked(env),
        "good": show_good(env),
        "planned": plan.policy(),
    }
    clicks = {name: sessions(env, policy, number) for name, policy in policies.items()}
    for name, each in clicks.items():
        interval = 1.96 * each.std() / np.sqrt(len(each))
        print(f"{name}: {each.mean():.2f} +- {interval:.2f} clicks of a session")
    means = {name: each.mean() for name, each in clicks.items()}
    assert max(means["random"], means["liked"]) < 7.5
    assert means["good"] < 0.92 * means["planned"]
    assert means["planned"] > 13.0
    expected = plan.expect(jax.random.split(jax.random.key(5), 500))
    assert expected == pytest.approx(means["planned"], rel=error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"slate_size": 11}, "slate_size=11 must be at most num_candidates=10"),
        ({"num_topics": 1}, "num_topics=1 must be an integer of at least 2"),
        ({"num_candidates": 2.0}, "num_candidates=2.0 must be an integer of at least 1"),
        ({"drift": "fast"}, "'drift' must be float32"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvError, match=words):
        make("InterestEvolution-v0", arguments)
