"""Base of the particle tasks: pushes, flags, spaces and global states."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ParamsT, ResetMode, StateT
from jaxrl.envs.multi.base import (
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    get_entries,
    make_flags,
    make_no_ends,
)
from jaxrl.envs.params import check_bool

NUM_MOVES = 5
"""Moves: none, left, right, down, up."""

Values = dict[str, Float[Array, "*members"]]


class ParticleEnv(MultiAgentJaxEnv[StateT, ParamsT]):
    """Base class of particle tasks: all agents act at all 25 steps, after which a run is truncated.

    An action that moves is one of nothing, left, right, down and up, or, if `continuous_actions`,
    a vector from 0 to 1 of their strengths, of which the first has no effect.
    """

    max_episode_steps = 25
    reset_mode: ResetMode = "on_demand"
    render_fps = 10

    def __init__(self, continuous_actions: bool = False) -> None:
        """Create the environment.

        Args:
            continuous_actions: Whether actions are vectors of strengths.

        Raises:
            EnvError: If `continuous_actions` is not a bool.
        """
        self.continuous_actions = check_bool("continuous_actions", continuous_actions)

    def get_observation_size(self, agent: str) -> int:
        """Return the length of an agent's observation."""
        raise NotImplementedError

    def sample_state(self, key: Key, params: ParamsT) -> StateT:
        """Sample a first state. Consumes the key."""
        raise NotImplementedError

    def advance(self, state: StateT, actions: dict[str, PyTree], params: ParamsT) -> StateT:
        """Return the state after one step."""
        raise NotImplementedError

    def observe(self, state: StateT) -> Values:
        """Return the observations in a state, by entry."""
        raise NotImplementedError

    def compute_rewards(self, state: StateT, params: ParamsT) -> Values:
        """Return the rewards of having arrived in a state, by entry."""
        raise NotImplementedError

    def observation_space(self, agent: str, params: ParamsT) -> spaces.Box:
        return _make_unbounded(self.get_observation_size(agent))

    def action_space(self, agent: str, params: ParamsT) -> gymnasium.Space[Any]:
        return self.make_action_space(NUM_MOVES)

    def make_action_space(self, size: int) -> gymnasium.Space[Any]:
        """Return the space of one of `size` actions, or of their strengths."""
        if self.continuous_actions:
            return spaces.Box(0.0, 1.0, (size,), np.float32)
        return spaces.Discrete(size)

    def state_space(self, params: ParamsT) -> spaces.Box:
        return _make_unbounded(sum(map(self.get_observation_size, self.possible_agents)))

    def global_state(self, state: StateT, params: ParamsT) -> Float[Array, " size"]:
        """Return all agents' observations as one vector, as PettingZoo's `state()`."""
        obs = self.observe(state)
        return jnp.concatenate([obs[entry.key].reshape(-1) for entry in get_entries(self)])

    def reset(self, key: Key, params: ParamsT) -> tuple[StateT, MultiStart]:
        state = self.sample_state(key, params)
        return state, MultiStart(obs=self.observe(state), acts=make_flags(self, value=True))

    def step(
        self, key: Key, state: StateT, actions: dict[str, PyTree], params: ParamsT
    ) -> tuple[StateT, MultiStep]:
        """Take one step, in which nothing is random."""
        after = self.advance(state, actions, params)
        never = make_no_ends(self)
        return after, MultiStep(
            obs=self.observe(after),
            acts=make_flags(self, value=True),
            reward=self.compute_rewards(after, params),
            terminated=never,
            truncated=never,
        )

    def compute_push(self, action: Array) -> Float[Array, "*agents 2"]:
        """Return the push of actions that move."""
        if self.continuous_actions:
            strength = jnp.clip(action, 0.0, 1.0)
        else:
            strength = jax.nn.one_hot(action, NUM_MOVES, dtype=jnp.float32)
        return strength[..., 2::2] - strength[..., 1:4:2]


def measure_distances(
    position: Float[Array, "agents 2"], others: Float[Array, "others 2"]
) -> Float[Array, "agents others"]:
    """Return the distance of every body to every other one."""
    return jnp.sqrt(jnp.sum(jnp.square(position[:, None] - others[None]), axis=-1))


def see_others(values: Float[Array, "agents agents n"]) -> Float[Array, "agents _"]:
    """Return each row without its own column, flattened: what an agent sees of the others."""
    count, size = values.shape[0], values.shape[-1]
    # Between two entries of the diagonal lie the `count` others of two neighboring rows.
    between = values.reshape(count * count, size)[1:].reshape(count - 1, count + 1, size)
    return between[:, :-1].reshape(count, (count - 1) * size)


def _make_unbounded(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
