"""Simple speaker listener of MPE (Lowe et al. 2017): one knows the goal, the other moves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.particles.base import (
    Body,
    Disc,
    ParticleEnv,
    ParticleParams,
    ParticleState,
    Values,
    World,
    draw_discs,
)

SPEAKER, LISTENER = "speaker_0", "listener_0"
COLORS = np.array([[0.65, 0.15, 0.15], [0.15, 0.65, 0.15], [0.15, 0.15, 0.65]], np.float32)
"""Colors of the landmarks, as the speaker observes that of the goal."""
NUM_LANDMARKS = len(COLORS)
BRIGHTER = 90
"""Difference of the listener's color from that of the goal in pictures."""
LANDMARKS = tuple(
    Body(radius=0.04, color=(int(red), int(green), int(blue)), collides=False)
    for red, green, blue in (200 * COLORS).round()
)
WORD_RADIUS = 0.04
"""Radius of the disc in pictures that has the color of what the speaker said."""


@pytree
class SpeakerListenerState:
    """Bodies (the listener moves; the speaker comes first of the others), goal and message."""

    bodies: ParticleState
    goal: Int[Array, "*batch"]
    message: Float[Array, "*batch 3"]


class SpeakerListener(ParticleEnv[SpeakerListenerState, ParticleParams]):
    """A speaker that sees which landmark is the goal, and a listener that is to go there.

    Both earn minus the squared distance of the listener to the goal. The speaker observes the
    goal's color `[3]` and says one of three words; the listener observes its velocity, the offsets
    of the landmarks and what was said at the last step, one-hot, `[2 + 6 + 3]`, and moves.
    """

    name = "SpeakerListener-v0"
    possible_agents = (SPEAKER, LISTENER)
    teams: Mapping[str, tuple[str, ...]] = {"team": (SPEAKER, LISTENER)}
    world = World(
        movers=(Body(radius=0.075, color=(50, 50, 50), collides=False),),
        fixed=(Body(radius=0.075, color=(50, 50, 50), collides=False), *LANDMARKS),
    )

    @property
    def default_params(self) -> ParticleParams:
        return ParticleParams()

    def get_observation_size(self, agent: str) -> int:
        return 3 if agent == SPEAKER else 2 + 2 * NUM_LANDMARKS + NUM_LANDMARKS

    def action_space(self, agent: str, params: ParticleParams) -> gymnasium.Space[Any]:
        if agent == SPEAKER:
            return self.make_action_space(NUM_LANDMARKS)
        return super().action_space(agent, params)

    def sample_state(self, key: Key, params: ParticleParams) -> SpeakerListenerState:
        bodies_key, goal_key = jax.random.split(key)
        return SpeakerListenerState(
            bodies=self.world.sample(bodies_key),
            goal=jax.random.randint(goal_key, (), 0, NUM_LANDMARKS, jnp.int32),
            message=jnp.zeros((NUM_LANDMARKS,), jnp.float32),
        )

    def advance(
        self, state: SpeakerListenerState, actions: dict[str, PyTree], params: ParticleParams
    ) -> SpeakerListenerState:
        said = actions[SPEAKER]
        if self.continuous_actions:
            message = jnp.clip(said, 0.0, 1.0)
        else:
            message = jax.nn.one_hot(said, NUM_LANDMARKS, dtype=jnp.float32)
        push = self.compute_push(actions[LISTENER])[None]
        bodies = self.world.move(state.bodies, push, params)
        return SpeakerListenerState(bodies=bodies, goal=state.goal, message=message)

    def observe(self, state: SpeakerListenerState) -> Values:
        bodies = state.bodies
        landmarks = (bodies.fixed[1:] - bodies.position).reshape(-1)
        return {
            SPEAKER: jnp.asarray(COLORS)[state.goal],
            LISTENER: jnp.concatenate([bodies.velocity[0], landmarks, state.message]),
        }

    def compute_rewards(self, state: SpeakerListenerState, params: ParticleParams) -> Values:
        goal = state.bodies.fixed[1 + state.goal]
        reward = -jnp.sum(jnp.square(state.bodies.position[0] - goal))
        return {SPEAKER: reward, LISTENER: reward}

    def render(self, state: SpeakerListenerState, params: ParticleParams) -> np.ndarray:
        """Render `[400, 400, 3]`: landmarks, the speaker with its word's color, the listener."""
        *below, listener = self.world.list_discs(state.bodies)
        red, green, blue = (channel + BRIGHTER for channel in LANDMARKS[int(state.goal)].color)
        listener = dataclasses.replace(listener, color=(red, green, blue))
        spoken = np.asarray(state.message) @ COLORS
        red, green, blue = (int(channel) for channel in (200 * spoken).round().clip(0, 255))
        word = Disc(center=below[0].center, radius=WORD_RADIUS, color=(red, green, blue))
        return draw_discs([*below, *([word] if spoken.any() else []), listener])
