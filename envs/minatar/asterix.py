"""Asterix of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

The player walks among eight lanes, each of which may hold one enemy or one treasure that crosses
it. A treasure is worth 1, an enemy ends the episode. With `ramping`, lanes are filled and crossed
ever faster. An episode is truncated after 1,000 steps, as in gymnax; the published game has no time
limit.

This version follows the published game. gymnax's lacks sticky actions, and also differs as follows:

- It never tries the first lane of its random order, and if that leaves no free lane it empties one.
  Here every free lane is equally likely, and nothing happens if there is none.
- Its ramp reduces the interval of moves below 1 if that reaches 1 before the interval of spawns
  does, which does not happen with the default parameters.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt16, UInt32

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, TimeStep
from jaxrl.envs.minatar.grid import (
    SIZE,
    Board,
    GridGame,
    Image,
    apply_sticky_action,
    bit,
    cell,
    draw_words,
    has_any_bit,
    make_time_step,
    shift_left,
    shift_right,
    stack_boards,
    uniform_int,
)
from jaxrl.envs.params import scalar

NOOP, LEFT, UP, RIGHT, DOWN = range(5)
NUM_LANES = 8


@pytree
class AsterixParams:
    """Intervals in steps; with `ramping` they shrink every `ramp_interval` + 2 steps."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)
    ramping: Bool[Array, ""] = scalar(True, np.bool_)
    ramp_interval: Int[Array, ""] = scalar(100, np.int32)
    spawn_interval: Int[Array, ""] = scalar(10, np.int32)
    move_interval: Int[Array, ""] = scalar(5, np.int32)


@pytree
class AsterixState:
    """Lane i is row i + 1: one bit at its enemy or treasure, none if it is empty."""

    player_x: Int[Array, "*batch"]
    player_y: Int[Array, "*batch"]
    lanes: UInt16[Array, "*batch 8"]
    rightward: Bool[Array, "*batch 8"]
    is_gold: Bool[Array, "*batch 8"]
    spawn_interval: Int[Array, "*batch"]
    spawn_timer: Int[Array, "*batch"]
    move_interval: Int[Array, "*batch"]
    move_timer: Int[Array, "*batch"]
    ramp_timer: Int[Array, "*batch"]
    ramp_index: Int[Array, "*batch"]
    last_action: Int[Array, "*batch"]


class Asterix(GridGame[AsterixState, AsterixParams]):
    """Asterix, with the actions nothing, left, up, right, down (MinAtar's minimal set)."""

    name = "Asterix-MinAtar"
    max_episode_steps = 1000
    num_actions = 5
    channels = ("player", "enemy", "trail", "gold")

    @property
    def default_params(self) -> AsterixParams:
        return AsterixParams()

    def reset(self, key: Key, params: AsterixParams) -> tuple[AsterixState, Image]:
        """Return the initial state, without draws: lanes are empty for `spawn_interval` steps."""
        del key
        zero, five = jnp.zeros((), jnp.int32), jnp.full((), 5, jnp.int32)
        state = AsterixState(
            player_x=five,
            player_y=five,
            lanes=jnp.zeros((NUM_LANES,), jnp.uint16),
            rightward=jnp.zeros((NUM_LANES,), bool),
            is_gold=jnp.zeros((NUM_LANES,), bool),
            spawn_interval=jnp.asarray(params.spawn_interval),
            spawn_timer=jnp.asarray(params.spawn_interval),
            move_interval=jnp.asarray(params.move_interval),
            move_timer=jnp.asarray(params.move_interval),
            ramp_timer=jnp.asarray(params.ramp_interval),
            ramp_index=zero,
            last_action=zero,
        )
        return state, self.observe(state, params)

    def step(
        self, key: Key, state: AsterixState, action: Int[Array, ""], params: AsterixParams
    ) -> tuple[AsterixState, TimeStep]:
        """Fill a lane if due, move the player, then everything else that is due."""
        words = draw_words(key, 2)
        action = apply_sticky_action(words[0], action, state.last_action, params.sticky_action_prob)
        state = _spawn(words, state)
        right = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        down = (action == DOWN).astype(jnp.int32) - (action == UP)
        player_x = jnp.clip(state.player_x + right, 0, SIZE - 1)
        player_y = jnp.clip(state.player_y + down, 1, NUM_LANES)

        player = cell(player_x, player_y)[1:-1]
        met = player & state.lanes
        lanes = jnp.where(state.is_gold, state.lanes & ~met, state.lanes)
        moves = state.move_timer == 0
        shifted = jnp.where(state.rightward, shift_right(lanes), shift_left(lanes))
        lanes = jnp.where(moves, shifted, lanes)
        met_after = jnp.where(moves, player & lanes, jnp.uint16(0))
        lanes = jnp.where(state.is_gold, lanes & ~met_after, lanes)

        gold = ((met != 0) & state.is_gold) | ((met_after != 0) & state.is_gold)
        hit = has_any_bit(jnp.where(state.is_gold, jnp.uint16(0), met | met_after))
        after = replace(
            state,
            player_x=player_x,
            player_y=player_y,
            lanes=lanes,
            spawn_timer=state.spawn_timer - 1,
            move_timer=jnp.where(moves, state.move_interval, state.move_timer) - 1,
            last_action=action,
        )
        after = _ramp(after, params)
        return after, make_time_step(self.observe(after, params), jnp.any(gold), hit)

    def observe(self, state: AsterixState, params: AsterixParams) -> Image:
        lanes = state.lanes
        trail = jnp.where(state.rightward, shift_left(lanes), shift_right(lanes))
        return stack_boards(
            cell(state.player_x, state.player_y),
            _to_board(jnp.where(state.is_gold, jnp.uint16(0), lanes)),
            _to_board(trail),
            _to_board(jnp.where(state.is_gold, lanes, jnp.uint16(0))),
        )


def _to_board(lanes: UInt16[Array, " 8"]) -> Board:
    return jnp.pad(lanes, 1)


def _spawn(words: UInt32[Array, " 2"], state: AsterixState) -> AsterixState:
    """Put an enemy, or with probability 1/3 a treasure, into a random free lane if one is due.

    It uses the first word's low 16 bits and the whole second word.
    """
    due = state.spawn_timer == 0
    is_free = state.lanes == 0
    earlier = np.tri(NUM_LANES, k=-1, dtype=bool)
    rank = jnp.sum(earlier & is_free[None], axis=1, dtype=jnp.int32)
    chosen = is_free & (rank == uniform_int(words[0], jnp.sum(is_free, dtype=jnp.int32))) & due
    rightward = (words[1] >> 31) == 0
    is_gold = uniform_int(words[1], 3) == 0
    start = bit(jnp.where(rightward, 0, SIZE - 1))
    return replace(
        state,
        lanes=jnp.where(chosen, start, state.lanes),
        rightward=jnp.where(chosen, rightward, state.rightward),
        is_gold=jnp.where(chosen, is_gold, state.is_gold),
        spawn_timer=jnp.where(due, state.spawn_interval, state.spawn_timer),
    )


def _ramp(state: AsterixState, params: AsterixParams) -> AsterixState:
    """Shorten the spawn interval by a step at each ramp, the move interval at every second one."""
    can_ramp = params.ramping & ((state.spawn_interval > 1) | (state.move_interval > 1))
    due = can_ramp & (state.ramp_timer < 0)
    sooner = due & (state.spawn_interval > 1)
    faster = due & (state.move_interval > 1) & (state.ramp_index % 2 == 1)
    waited = jnp.where(can_ramp, state.ramp_timer - 1, state.ramp_timer)
    return replace(
        state,
        spawn_interval=state.spawn_interval - sooner,
        move_interval=state.move_interval - faster,
        ramp_index=state.ramp_index + due,
        ramp_timer=jnp.where(due, params.ramp_interval, waited),
    )
