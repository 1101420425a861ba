"""Seaquest of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

A submarine among fish and enemy submarines, which shoot. An enemy is worth 1. Divers are picked up,
up to six, and brought to the surface, where the air is refilled and one of them leaves; all six are
worth the cells of the oxygen gauge, up to 10. The episode ends where the submarine is hit, has no air
left, or comes up without a diver. With `ramping`, enemies come and move faster after each surfacing.
It is truncated after 1,000 steps, as gymnax's; the published game has no time limit.

Enemies are kept as bits in planes, one for each number of steps until they move: all in a lane go
the same way, so a plane moves by one shift. By the published intervals no two of a kind share a cell and a plane;
parameters by which enemies come faster than they leave could merge two.

The rules are those of the published program since its release 1.0.11; until 1.0.10 the episode went on
for one more step without air, in which the gauge showed nine cells. Kept from it: after six divers have
left, their number is -1, with which one may surface again (then -2, and so on).
gymnax's differs from it, beside its missing sticky actions, in these, which are as published here:

- Coming up without a diver is surfacing all the same, so the last image has a full gauge.
- A submarine that moves onto a bullet no longer shoots in that step.
- Of two divers reached in one step with one place left, it takes the elder one.
"""

from typing import Any

import jax
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
    count_bits,
    draw_words,
    image,
    moved_left,
    moved_right,
    one_of,
    sticky,
    time_step,
    union,
)
from jaxrl.envs.params import scalar

NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)

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


class Seaquest(GridGame[SeaquestState, SeaquestParams]):
    """Actions: nothing, left, up, right, down, fire."""

    name = "Seaquest-MinAtar"
    max_episode_steps = 1000
    num_actions = 6
    channels = (
        "sub_front",
        "sub_back",
        "friendly_bullet",
        "trail",
        "enemy_bullet",
        "enemy_fish",
        "enemy_sub",
        "oxygen_gauge",
        "diver_gauge",
        "diver",
    )

    @property
    def default_params(self) -> SeaquestParams:
        return SeaquestParams()

    def reset(self, key: Key, params: SeaquestParams) -> tuple[SeaquestState, Image]:
        """At the surface, alone. Nothing is drawn."""
        del key
        zero, no_slot = jnp.zeros((), jnp.int32), jnp.zeros((NUM_SLOTS,), jnp.int32)
        planes = jnp.zeros((MOVE_INTERVAL + 1, NUM_LANES), jnp.uint16)
        state = SeaquestState(
            sub_x=zero + 5,
            sub_y=zero,
            faces_right=jnp.zeros((), bool),
            bullets=jnp.zeros((2, SIZE), jnp.uint16),
            enemy_bullets=jnp.zeros((2, NUM_LANES), jnp.uint16),
            rightward=jnp.zeros((NUM_LANES,), bool),
            fish=planes,
            subs=planes,
            sub_shots=jnp.zeros((len(DIGITS), *planes.shape), jnp.uint16),
            divers=Divers(
                x=no_slot + ABSENT, y=no_slot, rightward=no_slot.astype(bool), timer=no_slot
            ),
            num_aboard=zero,
            oxygen=jnp.asarray(params.max_oxygen),
            spawn_interval=jnp.asarray(params.spawn_interval),
            spawn_timer=jnp.asarray(params.spawn_interval),
            move_interval=zero + MOVE_INTERVAL,
            diver_timer=zero + DIVER_INTERVAL,
            shot_timer=zero,
            ramp_index=zero,
            is_up=jnp.ones((), bool),
            last_action=zero,
        )
        return state, self.observe(state, params)

    def step(
        self, key: Key, state: SeaquestState, action: Int[Array, ""], params: SeaquestParams
    ) -> tuple[SeaquestState, TimeStep]:
        """Arrivals, the player, its bullets, divers, submarines, their bullets, fish, the air."""
        words = draw_words(key, 2)
        action = sticky(words[0], action, state.last_action, params.sticky_action_prob)
        state = _diver_arrives(words, _enemy_arrives(words, state))
        state = _player_acts(state, action, params)
        state, shot_first = _bullets_fly(state)
        state = _divers_move(state)
        state, shot_subs, rammed = _subs_move(state)
        state, hit = _enemy_bullets_fly(state)
        state, shot_fish, bitten = _fish_move(state)
        state, bonus, out_of_air = _breathed(state, params)
        reward = shot_first + shot_subs + shot_fish + bonus
        terminated = rammed | hit | bitten | out_of_air
        return state, time_step(self.observe(state, params), reward, terminated)

    def observe(self, state: SeaquestState, params: SeaquestParams) -> Image:
        fish, subs, divers = union(state.fish), union(state.subs), state.divers
        trail = jnp.where(state.rightward, moved_left(fish | subs), moved_right(fish | subs))
        gauge = np.arange(SIZE) == SIZE - 1
        oxygen = _first_bits(jnp.maximum(state.oxygen, 0) * SIZE // params.max_oxygen)
        aboard = _first_bits(jnp.full((), SIZE - 1)) & ~_first_bits(SIZE - 1 - state.num_aboard)
        return image(
            cell(state.sub_x, state.sub_y),
            cell(state.sub_x + jnp.where(state.faces_right, -1, 1), state.sub_y),
            union(state.bullets),
            _board(trail) | _cells(divers.x - _way(divers.rightward), divers),
            _board(union(state.enemy_bullets)),
            _board(fish),
            _board(subs),
            jnp.where(gauge, oxygen, jnp.uint16(0)),
            jnp.where(gauge, aboard, jnp.uint16(0)),
            _cells(divers.x, divers),
        )


def _board(lanes: UInt16[Array, " 8"]) -> Board:
    return jnp.pad(lanes, 1)


def _first_bits(number: Int[Array, ""]) -> UInt16[Array, ""]:
    """So many columns from the left, none if it is negative."""
    return ((1 << jnp.clip(number, 0, SIZE)) - 1).astype(jnp.uint16)


def _cells(x: Int[Array, " 2"], divers: Divers) -> Board:
    """The rows of the divers that are there, set at these columns."""
    x = jnp.where(divers.x >= 0, x, ABSENT)
    return cell(x[0], divers.y[0]) | cell(x[1], divers.y[1])


def _way(rightward: Bool[Array, "*batch"]) -> Int[Array, "*batch"]:
    return jnp.where(rightward, 1, -1)


def _player(state: SeaquestState) -> UInt16[Array, " 8"]:
    """Its cell among the lanes, none while it is at the surface."""
    return cell(state.sub_x, state.sub_y)[1:-1]


def _enemy_arrives(words: UInt32[Array, " 2"], state: SeaquestState) -> SeaquestState:
    """Where it is due, at either end of a lane in which nobody comes the other way.

    It is a submarine with probability 1/3. The first word's low 4 bits are used and the second's
    low 16.
    """
    due = state.spawn_timer == 0
    lane = np.arange(NUM_LANES) == (words[0] & 7).astype(jnp.int32)
    rightward = ((words[0] >> 3) & 1) == 1
    is_sub = one_of(words[1], 3) == 0
    is_taken = (union(state.fish) | union(state.subs)) != 0
    blocked = jnp.any(lane & is_taken & (state.rightward != rightward))
    enters = lane & due & ~blocked
    start = jnp.where(enters, bit(jnp.where(rightward, 0, SIZE - 1)), jnp.uint16(0))
    planes = jnp.where(_plane(state.move_interval), start[None], jnp.uint16(0))
    sub = jnp.where(is_sub, planes, jnp.uint16(0))
    return replace(
        state,
        rightward=jnp.where(enters, rightward, state.rightward),
        fish=state.fish | (planes ^ sub),
        subs=state.subs | sub,
        sub_shots=state.sub_shots | jnp.where(DIGITS, sub[None], jnp.uint16(0)),
        spawn_timer=jnp.where(due, state.spawn_interval, state.spawn_timer),
    )


def _diver_arrives(words: UInt32[Array, " 2"], state: SeaquestState) -> SeaquestState:
    """Where it is due, at either end of a lane. The first word's bits 4 to 7 are used."""
    due = state.diver_timer == 0
    rightward = ((words[0] >> 7) & 1) == 1
    new = Divers(
        x=jnp.where(rightward, 0, SIZE - 1),
        y=1 + ((words[0] >> 4) & 7).astype(jnp.int32),
        rightward=rightward,
        timer=jnp.full((), DIVER_MOVE_INTERVAL, jnp.int32),
    )

    def put(new: Any, old: Any) -> Any:
        return jnp.where(due, jnp.stack([new, old[0]]), old)

    divers = state.divers
    return replace(
        state,
        divers=Divers(
            x=put(new.x, divers.x),
            y=put(new.y, divers.y),
            rightward=put(new.rightward, divers.rightward),
            timer=put(new.timer, divers.timer),
        ),
        diver_timer=jnp.where(due, DIVER_INTERVAL, state.diver_timer),
    )


def _player_acts(
    state: SeaquestState, action: Int[Array, ""], params: SeaquestParams
) -> SeaquestState:
    left, right = action == LEFT, action == RIGHT
    down = (action == DOWN).astype(jnp.int32) - (action == UP)
    fires = (action == FIRE) & (state.shot_timer == 0)
    sub_x = jnp.clip(state.sub_x + right - left, 0, SIZE - 1)
    sub_y = jnp.clip(state.sub_y + down, 0, NUM_LANES)
    goes = np.arange(2)[:, None] == state.faces_right
    fired = jnp.where(goes & fires, cell(sub_x, sub_y)[None], jnp.uint16(0))
    return replace(
        state,
        sub_x=sub_x,
        sub_y=sub_y,
        faces_right=(state.faces_right | right) & ~left,
        bullets=state.bullets | fired,
        shot_timer=jnp.where(fires, params.shot_cooldown, state.shot_timer),
        last_action=action,
    )


def _plane(number: Int[Array, ""]) -> Bool[Array, "6 1"]:
    return np.arange(MOVE_INTERVAL + 1)[:, None] == number


def _flown(bullets: UInt16[Array, "2 rows"]) -> UInt16[Array, "2 rows"]:
    return jnp.stack([moved_left(bullets[0]), moved_right(bullets[1])])


def _onward(planes: UInt16[Array, "6 8"], state: SeaquestState) -> UInt16[Array, "6 8"]:
    """A step of the planes: what is in the first moves, and waits again."""
    moved = jnp.where(state.rightward, moved_right(planes[0]), moved_left(planes[0]))
    rest = [*planes[1:], jnp.zeros_like(moved)]
    waits = [jnp.where(state.move_interval == j, moved, jnp.uint16(0)) for j in range(len(rest))]
    return jnp.stack([plane | more for plane, more in zip(rest, waits, strict=True)])


def _struck(planes: UInt16[Array, "6 8"], bullets: UInt16[Array, " 8"]) -> UInt16[Array, "6 8"]:
    """Whom the bullets strike: in each cell the one that moves next, who came before the others."""
    struck = []
    for plane in planes:
        struck.append(plane & bullets)
        bullets = bullets & ~plane
    return jnp.stack(struck)


def _spent(state: SeaquestState, struck: UInt16[Array, "6 8"]) -> UInt16[Array, "2 10"]:
    """The bullets without those that struck; no two of them are ever in one cell."""
    return state.bullets & ~_board(union(struck))[None]


def _bullets_fly(state: SeaquestState) -> tuple[SeaquestState, Int[Array, ""]]:
    """Each strikes one fish or else one submarine. Returns the number struck."""
    state = replace(state, bullets=_flown(state.bullets))
    fish = _struck(state.fish, union(state.bullets)[1:-1])
    state = replace(state, fish=state.fish ^ fish, bullets=_spent(state, fish))
    subs = _struck(state.subs, union(state.bullets)[1:-1])
    return replace(
        state,
        subs=state.subs ^ subs,
        sub_shots=state.sub_shots & ~subs[None],
        bullets=_spent(state, subs),
    ), count_bits(union(fish) | union(subs))


def _divers_move(state: SeaquestState) -> SeaquestState:
    """Those who are reached, or reach the submarine, come aboard while there is a place."""
    divers = state.divers
    is_there, moves = divers.x >= 0, divers.timer == 0
    x = jnp.where(moves, divers.x + _way(divers.rightward), divers.x)
    near = ((divers.x == state.sub_x) | (x == state.sub_x)) & (divers.y == state.sub_y)
    near = near & is_there
    before = jnp.stack([jnp.zeros((), jnp.int32), near[0].astype(jnp.int32)])
    boards = near & (before < MAX_DIVERS - state.num_aboard)
    stays = is_there & ~boards & (x >= 0) & (x < SIZE)
    timer = jnp.where(moves, DIVER_MOVE_INTERVAL, divers.timer - 1)
    return replace(
        state,
        divers=replace(divers, x=jnp.where(stays, x, ABSENT), timer=timer),
        num_aboard=state.num_aboard + jnp.sum(boards, dtype=jnp.int32),
    )


def _subs_move(
    state: SeaquestState,
) -> tuple[SeaquestState, Int[Array, ""], Bool[Array, ""]]:
    """Move, shoot, be struck. Returns the number struck, and whether one meets the player."""
    player = _player(state)[None]
    subs = _onward(state.subs, state)
    digits = jax.vmap(_onward, (0, None))(state.sub_shots, state)
    met = any_bit((state.subs | subs) & player)
    shooting = subs & ~union(digits)
    shots = union(shooting)
    struck = _struck(subs, union(state.bullets)[1:-1])
    lowered = []
    borrow = subs ^ shooting
    for digit in digits:
        lowered.append(digit ^ borrow)
        borrow = borrow & ~digit
    digits = jnp.stack(lowered) | jnp.where(DIGITS, shooting[None], jnp.uint16(0))
    goes = np.arange(2)[:, None] == state.rightward[None]
    return (
        replace(
            state,
            subs=subs ^ struck,
            sub_shots=digits & ~struck[None],
            bullets=_spent(state, struck),
            enemy_bullets=state.enemy_bullets | jnp.where(goes, shots[None], jnp.uint16(0)),
        ),
        count_bits(struck),
        met,
    )


def _enemy_bullets_fly(state: SeaquestState) -> tuple[SeaquestState, Bool[Array, ""]]:
    """Returns whether one meets the player."""
    flown = _flown(state.enemy_bullets)
    met = any_bit((state.enemy_bullets | flown) & _player(state)[None])
    return replace(state, enemy_bullets=flown), met


def _fish_move(
    state: SeaquestState,
) -> tuple[SeaquestState, Int[Array, ""], Bool[Array, ""]]:
    """Move, be struck. Returns the number struck, and whether one meets the player."""
    fish = _onward(state.fish, state)
    met = any_bit((state.fish | fish) & _player(state)[None])
    struck = _struck(fish, union(state.bullets)[1:-1])
    state = replace(state, fish=fish ^ struck, bullets=_spent(state, struck))
    return state, count_bits(struck), met


def _breathed(
    state: SeaquestState, params: SeaquestParams
) -> tuple[SeaquestState, Int[Array, ""], Bool[Array, ""]]:
    """Timers, air, and the surface. Returns what is paid there, and whether this is the end."""
    is_under = state.sub_y > 0
    arrives = ~is_under & ~state.is_up
    surfaces = arrives & (state.num_aboard != 0)
    is_full = state.num_aboard == MAX_DIVERS
    bonus = jnp.where(surfaces & is_full, state.oxygen * SIZE // params.max_oxygen, 0)
    aboard = jnp.where(is_full, 0, state.num_aboard) - 1
    ramps = surfaces & params.ramping & ((state.spawn_interval > 1) | (state.move_interval > 2))
    sooner = ramps & (state.spawn_interval > 1)
    faster = ramps & (state.move_interval > 2) & (state.ramp_index % 2 == 1)
    after = replace(
        state,
        num_aboard=jnp.where(surfaces, aboard, state.num_aboard),
        oxygen=jnp.where(surfaces, params.max_oxygen, state.oxygen - is_under),
        spawn_interval=state.spawn_interval - sooner,
        spawn_timer=jnp.maximum(state.spawn_timer - 1, 0),
        move_interval=state.move_interval - faster,
        diver_timer=jnp.maximum(state.diver_timer - 1, 0),
        shot_timer=jnp.maximum(state.shot_timer - 1, 0),
        ramp_index=state.ramp_index + ramps,
        is_up=~is_under & (state.is_up | surfaces),
    )
    return after, bonus, (state.oxygen <= 0) | (arrives & ~surfaces)
