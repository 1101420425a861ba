"""Particles that push one another, and the base class of tasks with them.

Discs in a plane are pushed, slow down and repel each other: the physics of MPE, after Mordatch &
Abbeel 2018 (https://arxiv.org/abs/1703.04908) and Lowe et al. 2017
(https://arxiv.org/abs/1706.02275). Constants and the order of updates are those of the package
mpe2 1.1 (https://mpe2.farama.org), which maintains the published environments.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ParamsT, ResetMode, StateT
from jaxrl.envs.classic.raster import Canvas, Color
from jaxrl.envs.multi.base import (
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    get_entries,
    make_flags,
    make_no_ends,
)
from jaxrl.envs.params import check_bool, scalar

PIXELS = 400
"""Width and height of a picture."""
MARGIN = 0.9
"""Share of half a picture within which all centers are."""
TINY = 1e-12
"""Squared distance below which two centers count as one point, which has no direction."""


@pytree
class ParticleParams:
    """Constants of the physics.

    `dt` is the time of a step, `damping` the share of its speed that a body loses in it,
    `contact_force` the force of a contact by the depth of the bodies' overlap, and
    `contact_margin` the distance over which it sets in. Every body has the mass 1.
    """

    dt: Float[Array, ""] = scalar(0.1)
    damping: Float[Array, ""] = scalar(0.25)
    contact_force: Float[Array, ""] = scalar(100.0)
    contact_margin: Float[Array, ""] = scalar(1e-3)


@pytree
class ParticleState:
    """Positions and velocities of what moves, and positions of what does not."""

    position: Float[Array, "*batch movers 2"]
    velocity: Float[Array, "*batch movers 2"]
    fixed: Float[Array, "*batch fixed 2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Body:
    """A disc.

    Attributes:
        radius: Its radius.
        color: Its color in pictures.
        collides: Whether it repels others that collide.
        acceleration: Acceleration by its own push of size 1.
        max_speed: Largest speed.
        start_range: Largest absolute value of each coordinate where an episode begins.
    """

    radius: float
    color: Color
    collides: bool = True
    acceleration: float = 5.0
    max_speed: float = np.inf
    start_range: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Bodies that move and bodies that do not."""

    movers: tuple[Body, ...]
    fixed: tuple[Body, ...]

    def sample(self, key: Key) -> ParticleState:
        """Sample positions, uniform in each body's square, of bodies at rest. Consumes the key."""
        bodies = (*self.movers, *self.fixed)
        ranges = np.array([[body.start_range] for body in bodies], np.float32)
        drawn = jax.random.uniform(key, (len(bodies), 2), jnp.float32, -1.0, 1.0) * ranges
        count = len(self.movers)
        return ParticleState(
            position=drawn[:count],
            velocity=jnp.zeros((count, 2), jnp.float32),
            fixed=drawn[count:],
        )

    def move(
        self, state: ParticleState, push: Float[Array, "movers 2"], params: ParticleParams
    ) -> ParticleState:
        """Move by one step of `dt`.

        Args:
            state: The bodies.
            push: What each body that moves does itself, from -1 to 1 along each axis.
            params: Constants.
        """
        force = push * self._accelerations
        if self._colliding_movers.any():
            force = force + self._compute_contacts(state, params)
        velocity = state.velocity * (1.0 - params.damping) + params.dt * force
        return ParticleState(
            position=state.position + params.dt * state.velocity,
            velocity=self._limit_speed(velocity),
            fixed=state.fixed,
        )

    def _compute_contacts(
        self, state: ParticleState, params: ParticleParams
    ) -> Float[Array, "movers 2"]:
        """Return the sums of the forces by which others repel each body that moves."""
        others = self._colliding_fixed
        both = np.concatenate([self._colliding_movers, np.ones(others.sum(), bool)])
        pairs = self._colliding_movers[:, None] & both[None]
        np.fill_diagonal(pairs[:, : len(self.movers)], val=False)
        bodies = jnp.concatenate([state.position, state.fixed[np.flatnonzero(others)]])
        radii = np.concatenate([self.radii, self.fixed_radii[others]])
        offset = state.position[:, None] - bodies[None]
        distance = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(offset), axis=-1), TINY))
        depth = (self.radii[:, None] + radii[None] - distance) / params.contact_margin
        overlap = params.contact_margin * (
            jnp.maximum(depth, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(depth)))
        )
        strength = jnp.where(pairs, params.contact_force * overlap / distance, 0.0)
        return jnp.sum(strength[..., None] * offset, axis=1)

    def _limit_speed(self, velocity: Float[Array, "movers 2"]) -> Float[Array, "movers 2"]:
        limits = np.array([[body.max_speed] for body in self.movers], np.float32)
        if not np.isfinite(limits).any():
            return velocity
        speed = jnp.sqrt(jnp.sum(jnp.square(velocity), axis=-1, keepdims=True))
        return jnp.where(speed > limits, velocity / speed * limits, velocity)

    def list_discs(self, state: ParticleState) -> list["Disc"]:
        """Return the bodies as they are drawn: what does not move lies below what does."""
        bodies = (*self.fixed, *self.movers)
        centers = np.concatenate([np.asarray(state.fixed), np.asarray(state.position)])
        return [
            Disc(center=center, radius=body.radius, color=body.color)
            for body, center in zip(bodies, centers, strict=True)
        ]

    @functools.cached_property
    def radii(self) -> np.ndarray:
        """Radii of the bodies that move."""
        return np.array([body.radius for body in self.movers], np.float32)

    @functools.cached_property
    def fixed_radii(self) -> np.ndarray:
        """Radii of the bodies that do not."""
        return np.array([body.radius for body in self.fixed], np.float32)

    @functools.cached_property
    def _colliding_movers(self) -> np.ndarray:
        return np.array([body.collides for body in self.movers], bool)

    @functools.cached_property
    def _colliding_fixed(self) -> np.ndarray:
        return np.array([body.collides for body in self.fixed], bool)

    @functools.cached_property
    def _accelerations(self) -> np.ndarray:
        return np.array([[body.acceleration] for body in self.movers], np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Disc:
    """A disc of a picture, in the world's units."""

    center: np.ndarray
    radius: float
    color: Color


def draw_discs(discs: Sequence[Disc]) -> np.ndarray:
    """Draw discs `[400, 400, 3]`, later ones on top.

    The picture shows the square from -1 to 1, or a larger one that holds all centers.
    """
    farthest = max(1.0, *(float(np.abs(disc.center).max()) for disc in discs))
    scale = MARGIN * PIXELS / 2 / farthest
    canvas = Canvas(height=PIXELS, width=PIXELS)
    for disc in discs:
        canvas.fill_circle(disc.center * scale + PIXELS / 2, disc.radius * scale, disc.color)
    return canvas.to_uint8()


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
