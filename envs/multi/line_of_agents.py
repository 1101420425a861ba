"""A line of pistons that roll a ball together: many equal agents as one kind."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ResetMode
from jaxrl.envs.classic.raster import Canvas
from jaxrl.envs.multi.base import (
    ALL,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    make_flags,
    make_no_ends,
    number_agents,
)
from jaxrl.envs.params import check_count, scalar

KIND = "piston"
MIN_AGENTS = 2
NUM_FEATURES = 6
CELL_PIXELS = 24
MAX_SPEED = 1.0


@pytree
class LineParams:
    """Motion of pistons and ball, in units of pistons and steps, and rewards.

    `lift` is how far a piston moves in a step, `pull` the speed that a slope of 1 adds in a step, and
    `friction` the share of the speed that is lost. `way_reward` is paid for the whole way to the
    left, and `step_reward` at every step.
    """

    lift: Float[Array, ""] = scalar(0.25)
    pull: Float[Array, ""] = scalar(0.2)
    friction: Float[Array, ""] = scalar(0.1)
    way_reward: Float[Array, ""] = scalar(10.0)
    step_reward: Float[Array, ""] = scalar(-0.02)


@pytree
class LineState:
    """Heights of the pistons from 0 to 1, and where the ball is, how fast, and where it began."""

    heights: Float[Array, "*batch pistons"]
    position: Float[Array, "*batch"]
    speed: Float[Array, "*batch"]
    start: Float[Array, "*batch"]


class LineOfAgents(MultiAgentJaxEnv[LineState, LineParams]):
    """Pistons side by side that go down (0), stay (1) or go up (2) so that a ball rolls to the left.

    The ball lies on straight lines between the tops of neighbors and is pulled down the slope. All
    are paid the same, the share of the way that it came nearer to the left end, which ends the
    episode. A piston observes its height and those to its left and right, the ball's offset as a share
    of the line and its speed, and its own place in the line. After PettingZoo's Pistonball, whose
    physics is that of rigid bodies.
    """

    name = "LineOfAgents-v0"
    max_episode_steps = 125
    reset_mode: ResetMode = "every_step"
    render_fps = 20

    def __init__(self, num_agents: int = 20) -> None:
        """Create a line of `num_agents` pistons.

        Raises:
            EnvError: If it is not an integer of at least 2.
        """
        self.num_agents = check_count("num_agents", num_agents, at_least=MIN_AGENTS)
        self.possible_agents = number_agents(KIND, num_agents)
        self.agent_kinds = {KIND: num_agents}
        self.teams = {"line": self.possible_agents}

    @property
    def default_params(self) -> LineParams:
        return LineParams()

    def observation_space(self, agent: str, params: LineParams) -> spaces.Box:
        low = np.array([0, 0, 0, -1, -MAX_SPEED, 0], np.float32)
        return spaces.Box(low, np.ones(NUM_FEATURES, np.float32))

    def action_space(self, agent: str, params: LineParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(3)

    def state_space(self, params: LineParams) -> spaces.Box:
        low = np.zeros(self.num_agents + 2, np.float32)
        low[-1] = -MAX_SPEED
        return spaces.Box(low, np.ones_like(low))

    def reset(self, key: Key, params: LineParams) -> tuple[LineState, MultiStart]:
        """Draw the heights, and the ball in the last quarter of the line. Consumes the key."""
        drawn = jax.random.uniform(key, (self.num_agents + 1,), jnp.float32)
        start = (0.75 + 0.25 * drawn[-1]) * (self.num_agents - 1)
        state = LineState(
            heights=drawn[:-1], position=start, speed=jnp.zeros((), jnp.float32), start=start
        )
        return state, MultiStart(
            obs={KIND: self._observe(state)}, acts=make_flags(self, value=True)
        )

    def step(
        self, key: Key, state: LineState, actions: dict[str, PyTree], params: LineParams
    ) -> tuple[LineState, MultiStep]:
        """Move all pistons, then the ball; the key is unused."""
        moves = (actions[KIND] - 1).astype(jnp.float32) * params.lift
        heights = jnp.clip(state.heights + moves, 0.0, 1.0)
        left = jnp.clip(state.position.astype(jnp.int32), 0, self.num_agents - 2)
        slope = heights[left + 1] - heights[left]
        speed = (1.0 - params.friction) * state.speed - params.pull * slope
        speed = jnp.clip(speed, -MAX_SPEED, MAX_SPEED)
        position = jnp.clip(state.position + speed, 0.0, self.num_agents - 1.0)
        speed = jnp.where(position >= self.num_agents - 1, jnp.minimum(speed, 0.0), speed)
        after = LineState(heights=heights, position=position, speed=speed, start=state.start)
        pay = params.way_reward * (state.position - position) / state.start + params.step_reward
        never = make_no_ends(self)
        return after, MultiStep(
            obs={KIND: self._observe(after)},
            acts=make_flags(self, value=True),
            reward={KIND: jnp.broadcast_to(pay, (self.num_agents,))},
            terminated={**never, ALL: position <= 0.0},
            truncated=never,
        )

    def global_state(self, state: LineState, params: LineParams) -> Float[Array, " n"]:
        """Return all heights, the ball's place as a share of the line, and its speed."""
        share = state.position / (self.num_agents - 1)
        return jnp.concatenate([state.heights, jnp.stack([share, state.speed])])

    def _observe(self, state: LineState) -> Float[Array, "pistons features"]:
        heights, places = state.heights, np.arange(self.num_agents, dtype=np.float32)
        offset = (state.position - places) / (self.num_agents - 1)
        features = (
            heights,
            jnp.concatenate([heights[:1], heights[:-1]]),
            jnp.concatenate([heights[1:], heights[-1:]]),
            offset,
            jnp.broadcast_to(state.speed, heights.shape),
            jnp.asarray(places / (self.num_agents - 1)),
        )
        return jnp.stack(features, axis=-1)

    def render(self, state: LineState, params: LineParams) -> np.ndarray:
        """Render pistons as bars and the ball on them, `[96, 24 pistons, 3]`."""
        heights, position = np.asarray(state.heights), float(state.position)
        canvas = Canvas(4 * CELL_PIXELS, self.num_agents * CELL_PIXELS)
        for index, height in enumerate(heights):
            left, top = index * CELL_PIXELS, (0.5 + height) * CELL_PIXELS
            right = left + CELL_PIXELS - 2.0
            corners = np.array([[left + 2.0, 0.0], [right, 0.0], [right, top], [left + 2.0, top]])
            canvas.fill_polygon(corners, (110, 120, 140))
        below = np.interp(position, np.arange(self.num_agents), heights)
        radius = 0.4 * CELL_PIXELS
        center = np.array([(position + 0.5) * CELL_PIXELS, (0.5 + below) * CELL_PIXELS + radius])
        canvas.fill_circle(center, radius, (220, 50, 40))
        return canvas.to_uint8()
