"""Simple spread of MPE (Lowe et al. 2017): cover all landmarks without collisions."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree
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
from jaxrl.envs.params import check_count, scalar

AGENT = Body(radius=0.15, color=(70, 70, 170))
LANDMARK = Body(radius=0.05, color=(50, 50, 50), collides=False)
SIZE_OF_MESSAGE = 2


@pytree
class SimpleSpreadParams(ParticleParams):
    """Constants of the physics, and the weight of an agent's own reward against the shared one."""

    local_ratio: Float[Array, ""] = scalar(0.5)


class SimpleSpread(ParticleEnv[ParticleState, SimpleSpreadParams]):
    """Agents that share the sum of the landmarks' distances to the nearest agent, as a cost.

    Each collision costs both agents 1. A reward is `(1 - local_ratio) * shared + local_ratio *
    own`. An agent observes its velocity and position, the offsets of the landmarks and of the other
    agents, and the others' messages, which are always zero: `[2 + 2 + 2 N + 4 (N - 1)]`.
    """

    name = "SimpleSpread-v0"

    def __init__(self, num_agents: int = 3, continuous_actions: bool = False) -> None:
        """Create the environment.

        Args:
            num_agents: Number of agents and of landmarks.
            continuous_actions: Whether actions are vectors of strengths.

        Raises:
            EnvError: If `num_agents` is not a positive integer, or `continuous_actions` no bool.
        """
        super().__init__(continuous_actions)
        self.num_agents = check_count("num_agents", num_agents)
        self.agent_kinds: Mapping[str, int] = {"agent": num_agents}
        self.possible_agents = number_agents("agent", num_agents)
        self.teams: Mapping[str, tuple[str, ...]] = {"team": self.possible_agents}
        self.world = World(movers=(AGENT,) * num_agents, fixed=(LANDMARK,) * num_agents)

    @property
    def default_params(self) -> SimpleSpreadParams:
        return SimpleSpreadParams()

    def get_observation_size(self, agent: str) -> int:
        return 4 + 2 * self.num_agents + (2 + SIZE_OF_MESSAGE) * (self.num_agents - 1)

    def sample_state(self, key: Key, params: SimpleSpreadParams) -> ParticleState:
        return self.world.sample(key)

    def advance(
        self, state: ParticleState, actions: dict[str, PyTree], params: SimpleSpreadParams
    ) -> ParticleState:
        return self.world.move(state, self.compute_push(actions["agent"]), params)

    def observe(self, state: ParticleState) -> Values:
        count, position = self.num_agents, state.position
        landmarks = (state.fixed[None] - position[:, None]).reshape(count, -1)
        others = see_others(position[None] - position[:, None])
        silence = jnp.zeros((count, SIZE_OF_MESSAGE * (count - 1)), jnp.float32)
        parts = (state.velocity, position, landmarks, others, silence)
        return {"agent": jnp.concatenate(parts, axis=-1)}

    def compute_rewards(self, state: ParticleState, params: SimpleSpreadParams) -> Values:
        shared = -measure_distances(state.position, state.fixed).min(axis=0).sum()
        others = ~np.eye(self.num_agents, dtype=bool)
        collides = measure_distances(state.position, state.position) < 2 * np.float32(AGENT.radius)
        own = -jnp.sum(collides & others, axis=-1).astype(jnp.float32)
        return {"agent": (1.0 - params.local_ratio) * shared + params.local_ratio * own}

    def render(self, state: ParticleState, params: SimpleSpreadParams) -> np.ndarray:
        """Render `[400, 400, 3]`: the landmarks and, above them, the agents."""
        return draw_discs(self.world.list_discs(state))
