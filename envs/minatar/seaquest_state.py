"""What Seaquest keeps: its parameters, its state, and the intervals of its clocks, in steps."""

import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt16

from jaxrl.core.struct import pytree
from jaxrl.envs.minatar.grid import SIZE
from jaxrl.envs.params import scalar

NUM_LANES = 8
MOVE_INTERVAL, DIVER_MOVE_INTERVAL = 5, 5
ENEMY_SHOT_INTERVAL = 10
DIVER_INTERVAL = 30
NUM_SLOTS = 2
"""A diver is there for 59 steps at most, and one comes every 30."""
MAX_DIVERS = 6
ABSENT = -SIZE
DIGITS = np.array([0, 1, 0, 1], bool)[:, None, None]
"""The binary digits of `ENEMY_SHOT_INTERVAL`, least first."""


@pytree
class SeaquestParams:
    """Intervals are in steps; a tank of `max_oxygen` lasts as many steps under water."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)
    ramping: Bool[Array, ""] = scalar(True, np.bool_)
    max_oxygen: Int[Array, ""] = scalar(200, np.int32)
    spawn_interval: Int[Array, ""] = scalar(20, np.int32)
    shot_cooldown: Int[Array, ""] = scalar(5, np.int32)


@pytree
class Divers:
    """The last one to come is in front; `x` is negative where there is none."""

    x: Int[Array, "*batch 2"]
    y: Int[Array, "*batch 2"]
    rightward: Bool[Array, "*batch 2"]
    timer: Int[Array, "*batch 2"]


@pytree
class SeaquestState:
    """Lane i is row i + 1, plane j what moves in j steps; of bullets the first go to the left.

    `sub_shots` are the binary digits of the steps until an enemy submarine shoots, least first.
    """

    sub_x: Int[Array, "*batch"]
    sub_y: Int[Array, "*batch"]
    faces_right: Bool[Array, "*batch"]
    bullets: UInt16[Array, "*batch 2 10"]
    enemy_bullets: UInt16[Array, "*batch 2 8"]
    rightward: Bool[Array, "*batch 8"]
    fish: UInt16[Array, "*batch 6 8"]
    subs: UInt16[Array, "*batch 6 8"]
    sub_shots: UInt16[Array, "*batch 4 6 8"]
    divers: Divers
    num_aboard: Int[Array, "*batch"]
    oxygen: Int[Array, "*batch"]
    spawn_interval: Int[Array, "*batch"]
    spawn_timer: Int[Array, "*batch"]
    move_interval: Int[Array, "*batch"]
    diver_timer: Int[Array, "*batch"]
    shot_timer: Int[Array, "*batch"]
    ramp_index: Int[Array, "*batch"]
    is_up: Bool[Array, "*batch"]
    last_action: Int[Array, "*batch"]
