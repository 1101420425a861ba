"""Asterix of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

The player walks among eight lanes, in each of which there may be one enemy or one treasure on its
way across. A treasure is worth 1, an enemy ends the episode. With `ramping`, lanes are filled and
crossed ever faster. An episode is truncated after 1,000 steps, as gymnax's; the published game has
no time limit.

gymnax's differs, beside its missing sticky actions, in these, which are as published here:

- It never tries the first lane of its random order, and where that leaves it without a free one it
  empties a lane. Here each free lane is as likely, and without one nothing happens.
- Its ramp takes the interval of moves below 1, if that comes down to 1 before the spawns' does, which
  takes other parameters than the defaults.
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
    any_bit,
    bit,
    cell,
    draw_words,
    image,
    moved_left,
    moved_right,
    one_of,
    sticky,
    time_step,
)
from jaxrl.envs.params import scalar

NOOP, LEFT, UP, RIGHT, DOWN = range(5)
NUM_LANES = 8


@pytree
class AsterixParams:
    """Intervals are in steps; with `ramping` they shrink every `ramp_interval` + 2 steps."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)
    ramping: Bool[Array, ""] = scalar(True, np.bool_)
    ramp_interval: Int[Array, ""] = scalar(100, np.int32)
    spawn_interval: Int[Array, ""] = scalar(10, np.int32)
    move_interval: Int[Array, ""] = scalar(5, np.int32)


@pytree
class AsterixState:
    """Lane i is row i + 1: a bit where its enemy or treasure is, none if it is empty."""

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
    """Actions: nothing, left, up, right, down (MinAtar's minimal set)."""

    name = "Asterix-MinAtar"
    max_episode_steps = 1000
    num_actions = 5
    channels = ("player", "enemy", "trail", "gold")

    @property
    def default_params(self) -> AsterixParams:
        return AsterixParams()

    def reset(self, key: Key, params: AsterixParams) -> tuple[AsterixState, Image]:
        """Nothing is drawn: the first lane is filled after `spawn_interval` steps."""
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
        """A lane is filled, the player moves, then everything else does; each where it is due."""
        words = draw_words(key, 2)
        action = sticky(words[0], action, state.last_action, params.sticky_action_prob)
        state = _spawned(words, state)
        right = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        down = (action == DOWN).astype(jnp.int32) - (action == UP)
        player_x = jnp.clip(state.player_x + right, 0, SIZE - 1)
        player_y = jnp.clip(state.player_y + down, 1, NUM_LANES)

        player = cell(player_x, player_y)[1:-1]
        met = player & state.lanes
        lanes = jnp.where(state.is_gold, state.lanes & ~met, state.lanes)
        moves = state.move_timer == 0
        onward = jnp.where(state.rightward, moved_right(lanes), moved_left(lanes))
        lanes = jnp.where(moves, onward, lanes)
        met_then = jnp.where(moves, player & lanes, jnp.uint16(0))
        lanes = jnp.where(state.is_gold, lanes & ~met_then, lanes)

        gold = ((met != 0) & state.is_gold) | ((met_then != 0) & state.is_gold)
        hit = any_bit(jnp.where(state.is_gold, jnp.uint16(0), met | met_then))
        after = replace(
            state,
            player_x=player_x,
            player_y=player_y,
            lanes=lanes,
            spawn_timer=state.spawn_timer - 1,
            move_timer=jnp.where(moves, state.move_interval, state.move_timer) - 1,
            last_action=action,
        )
        after = _ramped(after, params)
        return after, time_step(self.observe(after, params), jnp.any(gold), hit)

    def observe(self, state: AsterixState, params: AsterixParams) -> Image:
        lanes = state.lanes
        trail = jnp.where(state.rightward, moved_left(lanes), moved_right(lanes))
        return image(
            cell(state.player_x, state.player_y),
            _board(jnp.where(state.is_gold, jnp.uint16(0), lanes)),
            _board(trail),
            _board(jnp.where(state.is_gold, lanes, jnp.uint16(0))),
        )


def _board(lanes: UInt16[Array, " 8"]) -> Board:
    return jnp.pad(lanes, 1)


def _spawned(words: UInt32[Array, " 2"], state: AsterixState) -> AsterixState:
    """Where it is due, an enemy, or with probability 1/3 a treasure, enters one of the free lanes.

    The first word's low 16 bits and all of the second's are used.
    """
    due = state.spawn_timer == 0
    is_free = state.lanes == 0
    earlier = np.tri(NUM_LANES, k=-1, dtype=bool)
    rank = jnp.sum(earlier & is_free[None], axis=1, dtype=jnp.int32)
    chosen = is_free & (rank == one_of(words[0], jnp.sum(is_free, dtype=jnp.int32))) & due
    rightward = (words[1] >> 31) == 0
    is_gold = one_of(words[1], 3) == 0
    start = bit(jnp.where(rightward, 0, SIZE - 1))
    return replace(
        state,
        lanes=jnp.where(chosen, start, state.lanes),
        rightward=jnp.where(chosen, rightward, state.rightward),
        is_gold=jnp.where(chosen, is_gold, state.is_gold),
        spawn_timer=jnp.where(due, state.spawn_interval, state.spawn_timer),
    )


def _ramped(state: AsterixState, params: AsterixParams) -> AsterixState:
    """Spawns come a step sooner at each ramp, moves at every second one."""
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
