"""Simple tag of MPE (Lowe et al. 2017): slow adversaries hunt faster agents around obstacles."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import number_agents
from jaxrl.envs.multi.particles.base import (
    Body,
    ParticleEnv,
    ParticleParams,
    ParticleState,
    Values,
    World,
    draw_discs,
    measure_distances,
    see_others,
)
from jaxrl.envs.params import check_count

ADVERSARY = Body(radius=0.075, color=(170, 70, 70), acceleration=3.0, max_speed=1.0)
GOOD = Body(radius=0.05, color=(70, 170, 70), acceleration=4.0, max_speed=1.3)
OBSTACLE = Body(radius=0.2, color=(50, 50, 50), start_range=0.9)
PRICE = 10.0
"""Cost of a touch for the good agent, and reward for every adversary."""


class SimpleTag(ParticleEnv[ParticleState, ParticleParams]):
    """Adversaries that earn 10 for each touch of a good agent, which costs it 10.

    A good agent also pays for leaving the square from -1 to 1, for each axis at `x = |position|`:
    nothing below 0.9, `10 (x - 0.9)` below 1, and `min(exp(2 x - 2), 10)` beyond. An agent observes
    its velocity and position, the offsets of obstacles and of the other agents, adversaries first,
    and the velocities of the other good agents.
    """

    name = "SimpleTag-v0"

    def __init__(
        self,
        num_good: int = 1,
        num_adversaries: int = 3,
        num_obstacles: int = 2,
        continuous_actions: bool = False,
    ) -> None:
        """Create the environment.

        Args:
            num_good: Number of agents that are hunted.
            num_adversaries: Number of agents that hunt.
            num_obstacles: Number of obstacles.
            continuous_actions: Whether actions are vectors of strengths.

        Raises:
            EnvError: If a number of agents is not positive, that of obstacles is negative, or
                `continuous_actions` is no bool.
        """
        super().__init__(continuous_actions)
        self.num_good = check_count("num_good", num_good)
        self.num_adversaries = check_count("num_adversaries", num_adversaries)
        self.num_obstacles = check_count("num_obstacles", num_obstacles, at_least=0)
        self.agent_kinds: Mapping[str, int] = {"adversary": num_adversaries, "agent": num_good}
        adversaries = number_agents("adversary", num_adversaries)
        good = number_agents("agent", num_good)
        self.possible_agents = (*adversaries, *good)
        self.teams: Mapping[str, tuple[str, ...]] = {"adversaries": adversaries, "good": good}
        self.world = World(
            movers=(ADVERSARY,) * num_adversaries + (GOOD,) * num_good,
            fixed=(OBSTACLE,) * num_obstacles,
        )

    @property
    def default_params(self) -> ParticleParams:
        return ParticleParams()

    def get_observation_size(self, agent: str) -> int:
        others = self.num_adversaries + self.num_good - 1
        seen = self.num_good - (not agent.startswith("adversary"))
        return 4 + 2 * (self.num_obstacles + others + seen)

    def sample_state(self, key: Key, params: ParticleParams) -> ParticleState:
        return self.world.sample(key)

    def advance(
        self, state: ParticleState, actions: dict[str, PyTree], params: ParticleParams
    ) -> ParticleState:
        action = jnp.concatenate([actions["adversary"], actions["agent"]])
        return self.world.move(state, self.compute_push(action), params)

    def observe(self, state: ParticleState) -> Values:
        position, velocity, first = state.position, state.velocity, self.num_adversaries
        obstacles = (state.fixed[None] - position[:, None]).reshape(len(self.world.movers), -1)
        others = see_others(position[None] - position[:, None])
        common = jnp.concatenate([velocity, position, obstacles, others], axis=-1)
        good = velocity[first:]
        seen_by_adversary = jnp.tile(good.reshape(1, -1), (first, 1))
        seen_by_good = see_others(jnp.tile(good[None], (self.num_good, 1, 1)))
        return {
            "adversary": jnp.concatenate([common[:first], seen_by_adversary], axis=-1),
            "agent": jnp.concatenate([common[first:], seen_by_good], axis=-1),
        }

    def compute_rewards(self, state: ParticleState, params: ParticleParams) -> Values:
        touches = self._find_touches(state)
        good = state.position[self.num_adversaries :]
        paid = PRICE * jnp.sum(touches, axis=0).astype(jnp.float32)
        earned = jnp.full((self.num_adversaries,), jnp.sum(paid), jnp.float32)
        return {"adversary": earned, "agent": -paid - jnp.sum(price_leaving(good), axis=-1)}

    def _find_touches(self, state: ParticleState) -> Bool[Array, "adversaries good"]:
        first = self.num_adversaries
        distance = measure_distances(state.position[:first], state.position[first:])
        return distance < np.float32(ADVERSARY.radius) + np.float32(GOOD.radius)

    def render(self, state: ParticleState, params: ParticleParams) -> np.ndarray:
        """Render `[400, 400, 3]`: the obstacles and, above them, the agents."""
        return draw_discs(self.world.list_discs(state))


def price_leaving(position: Float[Array, "*agents 2"]) -> Float[Array, "*agents 2"]:
    """Return the cost of each coordinate near or outside of the square from -1 to 1."""
    x = jnp.abs(position)
    outside = jnp.minimum(jnp.exp(2.0 * x - 2.0), 10.0)
    return jnp.where(x < 0.9, 0.0, jnp.where(x < 1.0, 10.0 * (x - 0.9), outside))
