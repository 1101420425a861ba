"""Recommendation of slates to users whose interests change with what they consume.

A user looks at a slate of a few items out of many candidates and clicks at most one of them. What is
liked is not what is good: the topics that users come with an interest in are of poor quality, which
costs the session time, and an interest in the good ones grows only by clicking on them. The dynamics
are those of RecSim's interest evolution (Ie et al. 2019, https://arxiv.org/abs/1909.04847), in other
numbers and with a multinomial logit in place of its cascade, so that slates of what is clicked now
are far from the best ones.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.params import check_count, scalar
from jaxrl.errors import EnvError

NEVER = -1e9
"""Score of an item that is shown a second time, and is not clicked there."""


@pytree
class InterestEvolutionParams:
    """Numbers of users and documents.

    `time_budget` is the time that a session starts with. A step without a click takes
    `no_click_time`, one with a click `watch_time * (1 - refund * quality)`, quality being from -1 to 1.
    Scores of the choice are `choice_scale * interest` of a document's topic, and `no_click_score`.
    `drift` is the share by which the interest in a clicked topic comes closer to 1. Users start with
    interests around `-prejudice * quality`, with the deviation `interest_std`; `quality_std` is the
    deviation of documents from the quality of their topics.
    """

    time_budget: Float[Array, ""] = scalar(10.0)
    watch_time: Float[Array, ""] = scalar(1.0)
    no_click_time: Float[Array, ""] = scalar(0.5)
    refund: Float[Array, ""] = scalar(0.8)
    choice_scale: Float[Array, ""] = scalar(3.0)
    no_click_score: Float[Array, ""] = scalar(0.5)
    drift: Float[Array, ""] = scalar(0.15)
    prejudice: Float[Array, ""] = scalar(0.7)
    interest_std: Float[Array, ""] = scalar(0.4)
    quality_std: Float[Array, ""] = scalar(0.1)


@pytree
class InterestEvolutionState:
    """Interests of the user in the topics, topics of the candidates, and time that is left."""

    interests: Float[Array, "*batch topics"]
    topics: Int[Array, "*batch candidates"]
    time: Float[Array, "*batch"]


class InterestEvolution(JaxEnv[InterestEvolutionState, InterestEvolutionParams]):
    """Session of a user who is shown slates until the time is used up; a click earns 1.

    The action is the slate, candidates by their index; one that is in it twice counts once. Every
    step has new candidates, with topics drawn uniformly; the qualities of topics rise evenly from -1
    to 1. The observation is a Dict:

    - `user` `[num_topics + 1]`: interests from -1 to 1, and the share of the time that is left;
    - `doc` `[num_candidates, num_topics]`: one-hots of the candidates' topics;
    - `response` `[slate_size]`: 1 at the position of the previous slate that was clicked, else 0.
    """

    name = "InterestEvolution-v0"
    has_hidden_state = True
    max_episode_steps = 200

    def __init__(self, num_candidates: int = 10, slate_size: int = 2, num_topics: int = 5) -> None:
        """Create the environment.

        Args:
            num_candidates: Number of documents to choose from in every step.
            slate_size: Number of documents in a slate.
            num_topics: Number of topics of documents and interests.

        Raises:
            EnvError: If a number is not an integer of at least 1, or 2 of topics, or if a slate has
                more documents than there are candidates.
        """
        self.num_candidates = check_count("num_candidates", num_candidates)
        self.slate_size = check_count("slate_size", slate_size)
        self.num_topics = check_count("num_topics", num_topics, 2)
        if slate_size > num_candidates:
            raise EnvError(
                f"slate_size={slate_size} must be at most num_candidates={num_candidates}: a slate "
                "is of distinct documents."
            )

    @property
    def default_params(self) -> InterestEvolutionParams:
        return InterestEvolutionParams()

    def observation_space(self, params: InterestEvolutionParams) -> spaces.Dict:
        high = np.append(np.ones(self.num_topics, np.float32), np.float32(np.inf))
        return spaces.Dict(
            {
                "user": spaces.Box(np.append(-high[:-1], np.float32(0.0)), high, dtype=np.float32),
                "doc": spaces.Box(0.0, 1.0, (self.num_candidates, self.num_topics), np.float32),
                "response": spaces.MultiBinary(self.slate_size),
            }
        )

    def action_space(self, params: InterestEvolutionParams) -> gymnasium.Space[Any]:
        return spaces.MultiDiscrete([self.num_candidates] * self.slate_size)

    @property
    def topic_quality(self) -> Float[Array, " topics"]:
        """Mean quality of each topic's documents."""
        return jnp.linspace(-1.0, 1.0, self.num_topics, dtype=jnp.float32)

    def reset(
        self, key: Key, params: InterestEvolutionParams
    ) -> tuple[InterestEvolutionState, dict[str, Array]]:
        interest_key, topic_key = jax.random.split(key)
        noise = jax.random.normal(interest_key, (self.num_topics,), jnp.float32)
        interests = -params.prejudice * self.topic_quality + params.interest_std * noise
        state = InterestEvolutionState(
            interests=jnp.clip(interests, -1.0, 1.0),
            topics=self.sample_topics(topic_key),
            time=jnp.asarray(params.time_budget, jnp.float32),
        )
        return state, self.observe(state, jnp.zeros((self.slate_size,), jnp.int8), params)

    def sample_topics(self, key: Key) -> Int[Array, " candidates"]:
        """Draw the topics of new candidates. Consumes the key."""
        return jax.random.randint(key, (self.num_candidates,), 0, self.num_topics, jnp.int32)

    def step(
        self,
        key: Key,
        state: InterestEvolutionState,
        action: Int[Array, " slate"],
        params: InterestEvolutionParams,
    ) -> tuple[InterestEvolutionState, TimeStep]:
        choice_key, quality_key, topic_key = jax.random.split(key, 3)
        shown = state.topics[action]
        first = jnp.argmax(action[:, None] == action[None], axis=-1)
        is_repeated = first < jnp.arange(self.slate_size, dtype=jnp.int32)
        scores = jnp.where(is_repeated, NEVER, params.choice_scale * state.interests[shown])
        choice = jax.random.categorical(choice_key, jnp.append(scores, params.no_click_score))
        is_clicked = choice < self.slate_size
        topic = shown[jnp.minimum(choice, self.slate_size - 1)]

        noise = params.quality_std * jax.random.normal(quality_key, (), jnp.float32)
        quality = jnp.clip(self.topic_quality[topic] + noise, -1.0, 1.0)
        watched = params.watch_time * (1.0 - params.refund * quality)
        interest = state.interests[topic]
        drawn_to = state.interests.at[topic].set(interest + params.drift * (1.0 - interest))
        after = InterestEvolutionState(
            interests=jnp.where(is_clicked, drawn_to, state.interests),
            topics=self.sample_topics(topic_key),
            time=state.time - jnp.where(is_clicked, watched, params.no_click_time),
        )
        response = (jnp.arange(self.slate_size, dtype=jnp.int32) == choice).astype(jnp.int8)
        return after, TimeStep(
            obs=self.observe(after, response, params),
            reward=is_clicked.astype(jnp.float32),
            terminated=after.time <= 0.0,
        )

    def observe(
        self,
        state: InterestEvolutionState,
        response: Int[Array, " slate"],
        params: InterestEvolutionParams,
    ) -> dict[str, Array]:
        """Return the observation of a state after a response."""
        left = jnp.maximum(state.time, 0.0) / params.time_budget
        return {
            "user": jnp.append(state.interests, left),
            "doc": jax.nn.one_hot(state.topics, self.num_topics, dtype=jnp.float32),
            "response": response,
        }
