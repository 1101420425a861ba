"""Freeway of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

A chicken crosses a road of eight lanes, at most one row every fourth step; a car that hits it puts
it back to its start. Reaching the other side is worth 1, puts it back too, and redraws speeds and
directions of the cars. An episode ends only by the time limit of 2,500 steps, as in gymnax, which
is a truncation here; the published game ends with its 2,501st step. gymnax's version has no sticky
actions and is otherwise the same.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt16, UInt32

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
    draw_words,
    make_time_step,
    stack_boards,
    uniform_int,
)
from jaxrl.envs.params import scalar

NOOP, UP, DOWN = range(3)
NUM_CARS = 8
CHICKEN_X = 4
_SLOWEST = 5


@pytree
class FreewayParams:
    """`player_interval` is the number of steps that the chicken rests after a move."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)
    player_interval: Int[Array, ""] = scalar(3, np.int32)


@pytree
class FreewayState:
    """Car i is in row i + 1 and moves a column every `abs(pace) + 1` steps.

    It moves to the right if `pace` is positive.
    """

    player_y: Int[Array, "*batch"]
    player_timer: Int[Array, "*batch"]
    car_x: Int[Array, "*batch 8"]
    pace: Int[Array, "*batch 8"]
    car_timer: Int[Array, "*batch 8"]
    last_action: Int[Array, "*batch"]


class Freeway(GridGame[FreewayState, FreewayParams]):
    """Freeway, with the actions nothing, up, down (MinAtar's minimal set)."""

    name = "Freeway-MinAtar"
    max_episode_steps = 2500
    num_actions = 3
    channels = ("chicken", "car", "speed1", "speed2", "speed3", "speed4", "speed5")

    @property
    def default_params(self) -> FreewayParams:
        return FreewayParams()

    def reset(self, key: Key, params: FreewayParams) -> tuple[FreewayState, Image]:
        """Start with all cars at the left edge."""
        pace = _draw_pace(draw_words(key, NUM_CARS // 2))
        state = FreewayState(
            player_y=jnp.full((), SIZE - 1, jnp.int32),
            player_timer=jnp.asarray(params.player_interval),
            car_x=jnp.zeros((NUM_CARS,), jnp.int32),
            pace=pace,
            car_timer=jnp.abs(pace),
            last_action=jnp.zeros((), jnp.int32),
        )
        return state, self.observe(state, params)

    def step(
        self, key: Key, state: FreewayState, action: Int[Array, ""], params: FreewayParams
    ) -> tuple[FreewayState, TimeStep]:
        """Move the chicken, then the cars; a car hits at its old and at its new position."""
        words = draw_words(key, 1 + NUM_CARS // 2)
        action = apply_sticky_action(words[0], action, state.last_action, params.sticky_action_prob)
        walks = (state.player_timer == 0) & ((action == UP) | (action == DOWN))
        ahead = jnp.where(action == UP, state.player_y - 1, state.player_y + 1)
        player_y = jnp.where(walks, jnp.clip(ahead, 0, SIZE - 1), state.player_y)
        player_timer = jnp.where(walks, params.player_interval, state.player_timer)
        across = player_y == 0
        player_y = jnp.where(across, SIZE - 1, player_y)
        new_pace = _draw_pace(words[1:])
        pace = jnp.where(across, new_pace, state.pace)
        car_timer = jnp.where(across, jnp.abs(new_pace), state.car_timer)

        moves = car_timer == 0
        car_x = jnp.where(moves, _wrap_column(state.car_x + jnp.sign(pace)), state.car_x)
        meets = (state.car_x == CHICKEN_X) | (car_x == CHICKEN_X)
        is_hit = jnp.any(meets & (np.arange(1, NUM_CARS + 1) == player_y))
        after = FreewayState(
            player_y=jnp.where(is_hit, SIZE - 1, player_y),
            player_timer=jnp.maximum(player_timer - 1, 0),
            car_x=car_x,
            pace=pace,
            car_timer=jnp.where(moves, jnp.abs(pace), car_timer - 1),
            last_action=action,
        )
        return after, make_time_step(self.observe(after, params), across, jnp.zeros((), bool))

    def observe(self, state: FreewayState, params: FreewayParams) -> Image:
        trail = bit(_wrap_column(state.car_x - jnp.sign(state.pace)))
        speed = jnp.abs(state.pace)
        trails = [
            _to_board(jnp.where(speed == number, trail, jnp.uint16(0)))
            for number in range(1, _SLOWEST + 1)
        ]
        chicken = cell(jnp.full((), CHICKEN_X, jnp.int32), state.player_y)
        return stack_boards(chicken, _to_board(bit(state.car_x)), *trails)


def _to_board(rows: UInt16[Array, " 8"]) -> Board:
    return jnp.pad(rows, 1)


def _wrap_column(x: Int[Array, " 8"]) -> Int[Array, " 8"]:
    """Wrap a column past one edge to the other edge."""
    return jnp.where(x < 0, SIZE - 1, jnp.where(x >= SIZE, 0, x))


def _draw_pace(words: UInt32[Array, " 4"]) -> Int[Array, " 8"]:
    """Draw paces of 1 to 5, to the left or to the right, with equal probability."""
    drawn = uniform_int(jnp.concatenate([words, words >> 16]), 2 * _SLOWEST)
    return jnp.where(drawn < _SLOWEST, drawn - _SLOWEST, drawn - _SLOWEST + 1)
