"""Breakout of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

A paddle on the bottom row, a ball that moves diagonally, and three rows of bricks. Every brick is
worth 1; after the last one, the rows reappear when the ball is down. The episode ends when the ball
passes the paddle, and is truncated after 1,000 steps, as in gymnax; the published game has no time
limit. gymnax's version has no sticky actions and is otherwise the same.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.minatar.grid import (
    SIZE,
    GridGame,
    Image,
    apply_sticky_action,
    cell,
    draw_words,
    make_time_step,
    stack_boards,
)
from jaxrl.envs.params import scalar

NOOP, LEFT, RIGHT = 0, 1, 2
ALL_BRICKS = np.uint32(2 ** (3 * SIZE) - 1)


@pytree
class BreakoutParams:
    """Probability that the last action is repeated."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)


@pytree
class BreakoutState:
    """Ball with its direction (1 or -1 along x and y) and last position, paddle, and bricks.

    Bit 10 (y - 1) + x of `bricks` is the one at (x, y). `strike` is set once the ball has broken a
    brick and as long as it stays among them, where it breaks no other.
    """

    ball_x: Int[Array, "*batch"]
    ball_y: Int[Array, "*batch"]
    way_x: Int[Array, "*batch"]
    way_y: Int[Array, "*batch"]
    last_x: Int[Array, "*batch"]
    last_y: Int[Array, "*batch"]
    paddle: Int[Array, "*batch"]
    bricks: UInt32[Array, "*batch"]
    strike: Bool[Array, "*batch"]
    last_action: Int[Array, "*batch"]


class Breakout(GridGame[BreakoutState, BreakoutParams]):
    """Breakout, with the actions nothing, left, right (MinAtar's minimal set)."""

    name = "Breakout-MinAtar"
    max_episode_steps = 1000
    num_actions = 3
    channels = ("paddle", "ball", "trail", "brick")

    @property
    def default_params(self) -> BreakoutParams:
        return BreakoutParams()

    def reset(self, key: Key, params: BreakoutParams) -> tuple[BreakoutState, Image]:
        """Start the ball in the third row at either wall, moving down."""
        from_left = (draw_words(key, 1)[0] & 1).astype(jnp.int32)
        ball_x, three = (1 - from_left) * (SIZE - 1), jnp.full((), 3, jnp.int32)
        state = BreakoutState(
            ball_x=ball_x,
            ball_y=three,
            way_x=2 * from_left - 1,
            way_y=jnp.ones((), jnp.int32),
            last_x=ball_x,
            last_y=three,
            paddle=jnp.full((), 4, jnp.int32),
            bricks=jnp.asarray(ALL_BRICKS),
            strike=jnp.zeros((), bool),
            last_action=jnp.zeros((), jnp.int32),
        )
        return state, self.observe(state, params)

    def step(
        self, key: Key, state: BreakoutState, action: Int[Array, ""], params: BreakoutParams
    ) -> tuple[BreakoutState, TimeStep]:
        """Move the paddle, then the ball against walls, bricks and paddle, in this order."""
        word = draw_words(key, 1)[0]
        action = apply_sticky_action(word, action, state.last_action, params.sticky_action_prob)
        push = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        paddle = jnp.clip(state.paddle + push, 0, SIZE - 1)

        x, y = state.ball_x + state.way_x, state.ball_y + state.way_y
        way_x = jnp.where((x < 0) | (x >= SIZE), -state.way_x, state.way_x)
        way_y = jnp.where(y < 0, -state.way_y, state.way_y)
        x, y = jnp.clip(x, 0, SIZE - 1), jnp.maximum(y, 0)

        brick = _brick_bit(x, y) & state.bricks
        in_brick = brick != 0
        broken = in_brick & ~state.strike
        bricks = jnp.where(broken, state.bricks ^ brick, state.bricks)

        is_low = y == SIZE - 1
        bricks = jnp.where(is_low & (bricks == 0), ALL_BRICKS, bricks)
        above = is_low & (state.ball_x == paddle)
        beside = is_low & ~above & (x == paddle)
        bounced = broken | above | beside
        after = BreakoutState(
            ball_x=x,
            ball_y=jnp.where(bounced, state.ball_y, y),
            way_x=jnp.where(beside, -way_x, way_x),
            way_y=jnp.where(bounced, -way_y, way_y),
            last_x=state.ball_x,
            last_y=state.ball_y,
            paddle=paddle,
            bricks=bricks,
            strike=in_brick,
            last_action=action,
        )
        lost = is_low & ~above & ~beside
        return after, make_time_step(self.observe(after, params), broken, lost)

    def observe(self, state: BreakoutState, params: BreakoutParams) -> Image:
        rows = np.arange(SIZE)
        shift = np.clip(SIZE * (rows - 1), 0, 2 * SIZE).astype(np.uint32)
        shown = np.where((rows >= 1) & (rows <= 3), 2**SIZE - 1, 0).astype(np.uint32)
        return stack_boards(
            cell(state.paddle, jnp.full((), SIZE - 1, jnp.int32)),
            cell(state.ball_x, state.ball_y),
            cell(state.last_x, state.last_y),
            ((state.bricks >> shift) & shown).astype(jnp.uint16),
        )


def _brick_bit(x: Int[Array, ""], y: Int[Array, ""]) -> UInt32[Array, ""]:
    """Return the bit of the brick at a position, 0 where bricks never are."""
    among = (y >= 1) & (y <= 3)
    index = jnp.where(among, SIZE * (y - 1) + x, 0).astype(jnp.uint32)
    return jnp.where(among, jnp.uint32(1) << index, jnp.uint32(0))
