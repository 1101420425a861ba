"""Sessions of InterestEvolution under policies that know its rules: the best that is known, and simple ones."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from jaxrl.envs.recommender import InterestEvolution, InterestEvolutionParams

Policy = Callable[[Any, Any], Any]
"""Slate of a state, given a key."""


def sessions(env: InterestEvolution, policy: Policy, number: int, seed: int = 0) -> np.ndarray:
    """Clicks of each session until it terminates, which no policy can put off for 60 steps."""
    params = env.default_params

    def play(key: Any) -> Any:
        reset_key, step_key = jax.random.split(key)
        state, _ = env.reset(reset_key, params)

        def step(carry: Any, key: Any) -> Any:
            state, clicks, is_over = carry
            policy_key, step_key = jax.random.split(key)
            state, out = env.step(step_key, state, policy(policy_key, state), params)
            clicks += jnp.where(is_over, 0.0, out.reward)
            return (state, clicks, is_over | out.terminated), None

        start = (state, jnp.float32(0.0), jnp.zeros((), bool))
        (_, clicks, is_over), _ = jax.lax.scan(step, start, jax.random.split(step_key, 60))
        return clicks, is_over

    clicks, is_over = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(seed), number))
    assert bool(is_over.all())
    return np.asarray(clicks)


def show_random(env: InterestEvolution) -> Policy:
    """Distinct candidates at random."""

    def policy(key: Any, state: Any) -> Any:
        return jax.random.permutation(key, env.num_candidates)[: env.slate_size]

    return policy


def show_liked(env: InterestEvolution) -> Policy:
    """The candidates that are likeliest to be clicked."""

    def policy(key: Any, state: Any) -> Any:
        return jax.lax.top_k(state.interests[state.topics], env.slate_size)[1]

    return policy


def show_good(env: InterestEvolution) -> Policy:
    """The candidates of the best quality, whoever looks at them."""

    def policy(key: Any, state: Any) -> Any:
        return jax.lax.top_k(env.topic_quality[state.topics], env.slate_size)[1]

    return policy


class Plan:
    """Value iteration for slates of two, on grids of interests and time.

    Time only ever runs out, so that one sweep from its end is enough. A document is as good as its
    topic; all else is the environment's, and values between grid points are interpolated. `values`
    are the clicks still to come, `[times, interest of the first topic, ...]`.
    """

    def __init__(self, env: InterestEvolution, levels: int, step: float = 0.1) -> None:
        params = jax.tree.map(float, env.default_params)
        self.env, self.params, self.levels, self.time_step = env, params, levels, step
        assert env.slate_size == 2
        quality = np.linspace(-1.0, 1.0, env.num_topics)
        self.click_times = params.watch_time * (1.0 - params.refund * quality)
        assert step <= min(self.click_times.min(), params.no_click_time) + 1e-6
        self.grid = np.linspace(-1.0, 1.0, levels)
        self.pairs = list(itertools.combinations_with_replacement(range(env.num_topics), 2))
        self.values = self._iterate()

    def _iterate(self) -> np.ndarray:
        topics, shape = self.env.num_topics, (self.levels,) * self.env.num_topics
        times = round(self.params.time_budget / self.time_step) + 1
        values = np.zeros((times, *shape), np.float32)
        scores = np.exp(self.params.choice_scale * self.grid).astype(np.float32)
        weights = [
            scores.reshape([-1 if axis == t else 1 for axis in range(topics)])
            for t in range(topics)
        ]
        null = np.float32(math.exp(self.params.no_click_score))
        offers = self._offers()
        for i in range(1, times):
            wait = null * self._at_time(values, i, self.params.no_click_time)
            gains = [
                weights[t] * (1.0 + self._after_click(self._at_time(values, i, spent), t))
                for t, spent in enumerate(self.click_times)
            ]
            of_pairs = np.stack(
                [
                    np.broadcast_to(
                        (gains[t] + gains[u] + wait) / (weights[t] + weights[u] + null), shape
                    )
                    for t, u in self.pairs
                ]
            )
            for probability, possible in offers:
                values[i] += probability * of_pairs[possible].max(0)
        return values

    def _at_time(self, values: np.ndarray, i: int, spent: float) -> np.ndarray:
        """Values after some time is spent, 0 when it is used up."""
        left = i - spent / self.time_step
        if left <= 1e-6:
            return np.zeros(values.shape[1:], np.float32)
        low = min(math.floor(left + 1e-6), i - 1)
        share = np.float32(max(left - low, 0.0))
        return values[low] if share < 1e-6 else (1 - share) * values[low] + share * values[low + 1]

    def _after_click(self, values: np.ndarray, topic: int) -> np.ndarray:
        """Values with the interest in a topic drawn to it."""
        drawn = self.grid + self.params.drift * (1.0 - self.grid)
        at = (drawn + 1.0) / 2.0 * (self.levels - 1)
        low = np.minimum(at.astype(int), self.levels - 2)
        share = (at - low).astype(np.float32)
        share = share.reshape([-1 if axis == topic else 1 for axis in range(values.ndim)])
        return (1 - share) * values.take(low, topic) + share * values.take(low + 1, topic)

    def _offers(self) -> list[tuple[np.float32, list[int]]]:
        """Probability that none, one, or more of each topic are among the candidates, and the pairs."""
        number, topics = self.env.num_candidates, self.env.num_topics
        series = np.array([1.0 / math.factorial(j) for j in range(number + 1)])
        kinds = [np.where(np.arange(number + 1) == j, series, 0.0) for j in (0, 1)]
        kinds.append(np.where(np.arange(number + 1) >= 2, series, 0.0))
        offers = []
        for counts in itertools.product(range(3), repeat=topics):
            product = np.ones(1)
            for count in counts:
                product = np.convolve(product, kinds[count])[: number + 1]
            probability = product[number] * math.factorial(number) / topics**number
            possible = [
                j
                for j, (t, u) in enumerate(self.pairs)
                if counts[t] >= 1 and counts[u] >= (2 if t == u else 1)
            ]
            if probability > 0.0:
                offers.append((np.float32(probability), possible))
        return offers

    def interpolate(self, time: Any, interests: Any) -> Any:
        """The value of a user between grid points."""
        at = [time / self.time_step, *((interests + 1.0) / 2.0 * (self.levels - 1))]
        value = map_coordinates(jnp.asarray(self.values), at, order=1, mode="nearest")
        return jnp.where(time > 0.0, value, 0.0)

    def expect(self, keys: Any) -> float:
        """The mean value of new users, one for each key."""
        states, _ = jax.vmap(self.env.reset, in_axes=(0, None))(keys, self.env.default_params)
        return float(jax.vmap(self.interpolate)(states.time, states.interests).mean())

    def policy(self) -> Policy:
        """The pair of candidates with the largest value, as interpolated."""
        env = self.env
        pairs = np.array(list(itertools.combinations(range(env.num_candidates), 2)), np.int32)
        params: InterestEvolutionParams = self.params

        def policy(key: Any, state: Any) -> Any:
            interests = state.interests
            drawn = interests + params.drift * (1.0 - interests)
            after = jnp.where(jnp.eye(env.num_topics, dtype=bool), drawn, interests)
            left = state.time - jnp.asarray(self.click_times, jnp.float32)
            gains = 1.0 + jax.vmap(self.interpolate)(left, after)
            wait = self.interpolate(state.time - params.no_click_time, interests)
            weights = jnp.exp(params.choice_scale * interests)[state.topics]
            null = jnp.exp(params.no_click_score)
            shown, worth = weights[pairs], (weights * gains[state.topics])[pairs]
            total = (worth.sum(-1) + null * wait) / (shown.sum(-1) + null)
            return jnp.asarray(pairs)[jnp.argmax(total)]

        return policy
