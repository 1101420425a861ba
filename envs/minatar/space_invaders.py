"""Space Invaders of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

A cannon on the bottom row against 24 aliens, which walk from edge to edge, one row deeper at each,
and of which the nearest shoots. Every alien is worth 1; the fewer are left, the faster they move.
With `ramping`, each new wave is faster than the last. The episode ends when an alien or a bullet
hits the cannon, or an alien on the bottom row reaches an edge; it is truncated after 1,000 steps,
as in gymnax (the published game has no time limit). gymnax's version has no sticky actions and is
otherwise the same.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.minatar.grid import (
    SIZE,
    Board,
    GridGame,
    Image,
    apply_sticky_action,
    bit,
    cell,
    count_bits,
    draw_words,
    has_any_bit,
    make_time_step,
    shift_left,
    shift_right,
    stack_boards,
    union,
)
from jaxrl.envs.params import scalar

NOOP, LEFT, RIGHT, FIRE = range(4)
WAVE = np.array([0b0011111100] * 4 + [0] * 6, np.uint16)
"""Positions of the aliens of a new wave."""
FASTEST_WAVE = 6
"""Shortest move interval that `ramping` reaches."""


@pytree
class SpaceInvadersParams:
    """Intervals in steps: of a full wave's moves, of the aliens' shots, of the cannon's shots."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)
    ramping: Bool[Array, ""] = scalar(True, np.bool_)
    move_interval: Int[Array, ""] = scalar(12, np.int32)
    enemy_shot_interval: Int[Array, ""] = scalar(10, np.int32)
    shot_cooldown: Int[Array, ""] = scalar(5, np.int32)


@pytree
class SpaceInvadersState:
    """`move_interval` is that of the current wave when it is full."""

    cannon: Int[Array, "*batch"]
    bullets: Board
    enemy_bullets: Board
    aliens: Board
    rightward: Bool[Array, "*batch"]
    move_interval: Int[Array, "*batch"]
    move_timer: Int[Array, "*batch"]
    enemy_shot_timer: Int[Array, "*batch"]
    shot_timer: Int[Array, "*batch"]
    last_action: Int[Array, "*batch"]


class SpaceInvaders(GridGame[SpaceInvadersState, SpaceInvadersParams]):
    """Space Invaders, with the actions nothing, left, right, fire (MinAtar's minimal set)."""

    name = "SpaceInvaders-MinAtar"
    max_episode_steps = 1000
    num_actions = 4
    channels = (
        "cannon",
        "alien",
        "alien_left",
        "alien_right",
        "friendly_bullet",
        "enemy_bullet",
    )

    @property
    def default_params(self) -> SpaceInvadersParams:
        return SpaceInvadersParams()

    def reset(self, key: Key, params: SpaceInvadersParams) -> tuple[SpaceInvadersState, Image]:
        """Return the first wave, moving left, without draws."""
        del key
        empty, zero = jnp.zeros((SIZE,), jnp.uint16), jnp.zeros((), jnp.int32)
        state = SpaceInvadersState(
            cannon=jnp.full((), 5, jnp.int32),
            bullets=empty,
            enemy_bullets=empty,
            aliens=jnp.asarray(WAVE),
            rightward=jnp.zeros((), bool),
            move_interval=jnp.asarray(params.move_interval),
            move_timer=jnp.asarray(params.move_interval),
            enemy_shot_timer=jnp.asarray(params.enemy_shot_interval),
            shot_timer=zero,
            last_action=zero,
        )
        return state, self.observe(state, params)

    def step(
        self,
        key: Key,
        state: SpaceInvadersState,
        action: Int[Array, ""],
        params: SpaceInvadersParams,
    ) -> tuple[SpaceInvadersState, TimeStep]:
        """Move the cannon, bullets and aliens, let the aliens shoot, then resolve hits on them."""
        word = draw_words(key, 1)[0]
        action = apply_sticky_action(word, action, state.last_action, params.sticky_action_prob)
        fires = (action == FIRE) & (state.shot_timer == 0)
        push = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        cannon = jnp.clip(state.cannon + push, 0, SIZE - 1)
        muzzle = jnp.where(fires, bit(cannon), jnp.uint16(0))
        empty_row = jnp.zeros((1,), jnp.uint16)
        bullets = jnp.concatenate([state.bullets[1:-1], muzzle[None], empty_row])
        enemy_bullets = jnp.concatenate([empty_row, state.enemy_bullets[:-1]])

        ground = bit(cannon)
        moves = state.move_timer == 0
        aliens, rightward, landed = _march(state, moves)
        low = enemy_bullets[-1] | state.aliens[-1] | jnp.where(moves, aliens[-1], jnp.uint16(0))
        is_hit = ((low & ground) != 0) | landed

        shoots = state.enemy_shot_timer == 0
        shot = _nearest_alien(aliens, cannon)
        enemy_bullets = jnp.where(shoots, enemy_bullets | shot, enemy_bullets)
        killed = aliens & bullets
        left = aliens & ~killed
        is_clear = ~has_any_bit(left)
        ramps = is_clear & params.ramping & (state.move_interval > FASTEST_WAVE)
        pace = jnp.minimum(count_bits(state.aliens), state.move_interval)
        after = SpaceInvadersState(
            cannon=cannon,
            bullets=bullets & ~killed,
            enemy_bullets=enemy_bullets,
            aliens=jnp.where(is_clear, WAVE, left),
            rightward=rightward,
            move_interval=state.move_interval - ramps,
            move_timer=jnp.where(moves, pace, state.move_timer) - 1,
            enemy_shot_timer=jnp.where(shoots, params.enemy_shot_interval, state.enemy_shot_timer)
            - 1,
            shot_timer=jnp.maximum(jnp.where(fires, params.shot_cooldown, state.shot_timer) - 1, 0),
            last_action=action,
        )
        return after, make_time_step(self.observe(after, params), count_bits(killed), is_hit)

    def observe(self, state: SpaceInvadersState, params: SpaceInvadersParams) -> Image:
        empty = jnp.zeros((SIZE,), jnp.uint16)
        return stack_boards(
            cell(state.cannon, jnp.full((), SIZE - 1, jnp.int32)),
            state.aliens,
            jnp.where(state.rightward, empty, state.aliens),
            jnp.where(state.rightward, state.aliens, empty),
            state.bullets,
            state.enemy_bullets,
        )


def _march(
    state: SpaceInvadersState, moves: Bool[Array, ""]
) -> tuple[Board, Bool[Array, ""], Bool[Array, ""]]:
    """Move the aliens if due: one column on, or at an edge one row down and turned.

    The third value is whether they moved down with one already on the bottom row, which then
    reappears at the top.
    """
    aliens = state.aliens
    edge = jnp.where(state.rightward, np.uint16(1 << (SIZE - 1)), np.uint16(1))
    turns = moves & has_any_bit(aliens & edge)
    sideways = jnp.where(state.rightward, shift_right(aliens), shift_left(aliens))
    marched = jnp.where(turns, jnp.roll(aliens, 1), jnp.where(moves, sideways, aliens))
    return marched, state.rightward ^ turns, turns & (aliens[-1] != 0)


def _nearest_alien(aliens: Board, cannon: Int[Array, ""]) -> Board:
    """Return the lowest alien of the column nearest to the cannon, the left one of two."""
    columns, rows = np.arange(SIZE), np.arange(SIZE)
    is_there = ((union(aliens) >> columns.astype(np.uint16)) & 1) != 0
    rank = 2 * jnp.abs(columns - cannon) + (columns > cannon)
    nearest = jnp.min(jnp.where(is_there, rank, 4 * SIZE))  # 4 * SIZE: a column outside
    away = nearest // 2
    column = bit(jnp.where(nearest % 2 == 1, cannon + away, cannon - away))
    lowest = jnp.max(jnp.where((aliens & column) != 0, rows, -1))
    return jnp.where(rows == lowest, column, jnp.uint16(0))
