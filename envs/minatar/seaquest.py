"""Seaquest of MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176).

A submarine among fish and enemy submarines, which shoot. An enemy is worth 1. Up to six divers are
picked up and brought to the surface, where the air is refilled and one of them leaves; all six are
worth the cells of the oxygen gauge, up to 10. The episode ends when the submarine is hit, is out of
air, or surfaces without a diver. With `ramping`, enemies come and move faster after each surfacing.
An episode is truncated after 1,000 steps, as in gymnax; the published game has no time limit.

Enemies are bits in planes, one for each number of steps until they move: all in a lane move the
same way, so a plane moves by one shift. With the published intervals no two of a kind share a cell
and a plane; parameters by which enemies come faster than they leave could merge two.

The rules are those of the published program since its release 1.0.11; until 1.0.10 the episode
continued for one more step without air, in which the gauge showed nine cells. One of its quirks is
kept: after six divers have left, their number is -1, with which one may surface again (then -2, and
so on). gymnax's version lacks sticky actions, and also differs from the published rules as follows:

- Surfacing without a diver refills the air, so the last image has a full gauge.
- A submarine that moves onto a bullet does not shoot in that step.
- If two divers are reached in one step with one place left, the elder one boards.
"""

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
    uniform_int,
    union,
)
from jaxrl.envs.params import scalar

NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)

NUM_LANES = 8
MOVE_INTERVAL, DIVER_MOVE_INTERVAL = 5, 5
ENEMY_SHOT_INTERVAL = 10
DIVER_INTERVAL = 30
NUM_DIVER_SLOTS = 2
"""Number of divers at a time: one lasts 59 steps at most, and one comes every 30."""
MAX_DIVERS = 6
ABSENT = -SIZE
SHOT_DIGITS = np.array([0, 1, 0, 1], bool)[:, None, None]
"""Binary digits of `ENEMY_SHOT_INTERVAL`, least significant first."""


@pytree
class SeaquestParams:
    """Intervals in steps; a tank of `max_oxygen` lasts as many steps under water."""

    sticky_action_prob: Float[Array, ""] = scalar(0.1)
    ramping: Bool[Array, ""] = scalar(True, np.bool_)
    max_oxygen: Int[Array, ""] = scalar(200, np.int32)
    spawn_interval: Int[Array, ""] = scalar(20, np.int32)
    shot_cooldown: Int[Array, ""] = scalar(5, np.int32)


@pytree
class Divers:
    """Divers, the latest in front; `x` is negative where there is none."""

    x: Int[Array, "*batch 2"]
    y: Int[Array, "*batch 2"]
    rightward: Bool[Array, "*batch 2"]
    timer: Int[Array, "*batch 2"]


@pytree
class SeaquestState:
    """Lane i is row i + 1, plane j moves in j steps; of the bullets, board 0 moves left.

    `sub_shots` are the binary digits of the steps until an enemy submarine shoots, least
    significant first.
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
    """Seaquest, with the actions nothing, left, up, right, down, fire."""

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
        """Start at the surface, alone, without draws."""
        del key
        zero, no_slot = jnp.zeros((), jnp.int32), jnp.zeros((NUM_DIVER_SLOTS,), jnp.int32)
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
            sub_shots=jnp.zeros((len(SHOT_DIGITS), *planes.shape), jnp.uint16),
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
        """Spawn enemies and divers, then step player, bullets, divers, enemies and oxygen."""
        words = draw_words(key, 2)
        action = apply_sticky_action(words[0], action, state.last_action, params.sticky_action_prob)
        state = _spawn_diver(words, _spawn_enemy(words, state))
        state = _step_player(state, action, params)
        state, shot_first = _step_bullets(state)
        state = _step_divers(state)
        state, shot_subs, rammed = _step_subs(state)
        state, hit = _step_enemy_bullets(state)
        state, shot_fish, bitten = _step_fish(state)
        state, bonus, out_of_air = _step_oxygen(state, params)
        reward = shot_first + shot_subs + shot_fish + bonus
        terminated = rammed | hit | bitten | out_of_air
        return state, make_time_step(self.observe(state, params), reward, terminated)

    def observe(self, state: SeaquestState, params: SeaquestParams) -> Image:
        fish, subs, divers = union(state.fish), union(state.subs), state.divers
        trail = jnp.where(state.rightward, shift_left(fish | subs), shift_right(fish | subs))
        gauge = np.arange(SIZE) == SIZE - 1
        oxygen = _first_bits(jnp.maximum(state.oxygen, 0) * SIZE // params.max_oxygen)
        aboard = _first_bits(jnp.full((), SIZE - 1, jnp.int32)) & ~_first_bits(
            SIZE - 1 - state.num_aboard
        )
        return stack_boards(
            cell(state.sub_x, state.sub_y),
            cell(state.sub_x + jnp.where(state.faces_right, -1, 1), state.sub_y),
            union(state.bullets),
            _to_board(trail) | _diver_cells(divers.x - _direction(divers.rightward), divers),
            _to_board(union(state.enemy_bullets)),
            _to_board(fish),
            _to_board(subs),
            jnp.where(gauge, oxygen, jnp.uint16(0)),
            jnp.where(gauge, aboard, jnp.uint16(0)),
            _diver_cells(divers.x, divers),
        )


def _to_board(lanes: UInt16[Array, " 8"]) -> Board:
    return jnp.pad(lanes, 1)


def _first_bits(number: Int[Array, ""]) -> UInt16[Array, ""]:
    """Return a row with the first `number` columns set, none if it is negative."""
    return ((1 << jnp.clip(number, 0, SIZE)) - 1).astype(jnp.uint16)


def _diver_cells(x: Int[Array, " 2"], divers: Divers) -> Board:
    """Return a board with these columns set in the rows of the divers that are present."""
    x = jnp.where(divers.x >= 0, x, ABSENT)
    return cell(x[0], divers.y[0]) | cell(x[1], divers.y[1])


def _direction(rightward: Bool[Array, "*batch"]) -> Int[Array, "*batch"]:
    return jnp.where(rightward, 1, -1)


def _player_lanes(state: SeaquestState) -> UInt16[Array, " 8"]:
    """Return the player's cell within the lanes, none while it is at the surface."""
    return cell(state.sub_x, state.sub_y)[1:-1]


def _spawn_enemy(words: UInt32[Array, " 2"], state: SeaquestState) -> SeaquestState:
    """Put an enemy, if due, at either end of a lane in which none moves the other way.

    The first word's low 4 bits give lane and direction; by the second's low 16 it is a submarine
    with probability 1/3.
    """
    due = state.spawn_timer == 0
    lane = np.arange(NUM_LANES) == (words[0] & 7).astype(jnp.int32)
    rightward = ((words[0] >> 3) & 1) == 1
    is_sub = uniform_int(words[1], 3) == 0
    is_taken = (union(state.fish) | union(state.subs)) != 0
    blocked = jnp.any(lane & is_taken & (state.rightward != rightward))
    enters = lane & due & ~blocked
    start = jnp.where(enters, bit(jnp.where(rightward, 0, SIZE - 1)), jnp.uint16(0))
    planes = jnp.where(_plane_mask(state.move_interval), start[None], jnp.uint16(0))
    sub = jnp.where(is_sub, planes, jnp.uint16(0))
    return replace(
        state,
        rightward=jnp.where(enters, rightward, state.rightward),
        fish=state.fish | (planes ^ sub),
        subs=state.subs | sub,
        sub_shots=state.sub_shots | jnp.where(SHOT_DIGITS, sub[None], jnp.uint16(0)),
        spawn_timer=jnp.where(due, state.spawn_interval, state.spawn_timer),
    )


def _spawn_diver(words: UInt32[Array, " 2"], state: SeaquestState) -> SeaquestState:
    """Put a diver, if due, at either end of a lane; uses the first word's bits 4 to 7."""
    due = state.diver_timer == 0
    rightward = ((words[0] >> 7) & 1) == 1
    new = Divers(
        x=jnp.where(rightward, 0, SIZE - 1),
        y=1 + ((words[0] >> 4) & 7).astype(jnp.int32),
        rightward=rightward,
        timer=jnp.full((), DIVER_MOVE_INTERVAL, jnp.int32),
    )

    def put(new: Array, old: Array) -> Array:
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


def _step_player(
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


def _plane_mask(number: Int[Array, ""]) -> Bool[Array, "6 1"]:
    return np.arange(MOVE_INTERVAL + 1)[:, None] == number


def _move_bullets(bullets: UInt16[Array, "2 rows"]) -> UInt16[Array, "2 rows"]:
    return jnp.stack([shift_left(bullets[0]), shift_right(bullets[1])])


def _advance(planes: UInt16[Array, "6 8"], state: SeaquestState) -> UInt16[Array, "6 8"]:
    """Step the planes: what is in the first one moves, and waits again."""
    moved = jnp.where(state.rightward, shift_right(planes[0]), shift_left(planes[0]))
    rest = [*planes[1:], jnp.zeros_like(moved)]
    waits = [jnp.where(state.move_interval == j, moved, jnp.uint16(0)) for j in range(len(rest))]
    return jnp.stack([plane | more for plane, more in zip(rest, waits, strict=True)])


def _find_hits(planes: UInt16[Array, "6 8"], bullets: UInt16[Array, " 8"]) -> UInt16[Array, "6 8"]:
    """Return the enemies hit: in each cell the one that moves next, which came first."""
    struck = []
    for plane in planes:
        struck.append(plane & bullets)
        bullets = bullets & ~plane
    return jnp.stack(struck)


def _remove_spent(state: SeaquestState, struck: UInt16[Array, "6 8"]) -> UInt16[Array, "2 10"]:
    """Return the bullets without those that hit; no two of them are ever in one cell."""
    return state.bullets & ~_to_board(union(struck))[None]


def _step_bullets(state: SeaquestState) -> tuple[SeaquestState, Int[Array, ""]]:
    """Move bullets; each hits a fish or else a submarine. Returns hits."""
    state = replace(state, bullets=_move_bullets(state.bullets))
    fish = _find_hits(state.fish, union(state.bullets)[1:-1])
    state = replace(state, fish=state.fish ^ fish, bullets=_remove_spent(state, fish))
    subs = _find_hits(state.subs, union(state.bullets)[1:-1])
    return replace(
        state,
        subs=state.subs ^ subs,
        sub_shots=state.sub_shots & ~subs[None],
        bullets=_remove_spent(state, subs),
    ), count_bits(union(fish) | union(subs))


def _step_divers(state: SeaquestState) -> SeaquestState:
    """Move the divers; those reached, or reaching the submarine, board while there is a place."""
    divers = state.divers
    is_there, moves = divers.x >= 0, divers.timer == 0
    x = jnp.where(moves, divers.x + _direction(divers.rightward), divers.x)
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


def _step_subs(
    state: SeaquestState,
) -> tuple[SeaquestState, Int[Array, ""], Bool[Array, ""]]:
    """Move submarines, shoot, resolve hits. Returns hits, and whether one meets the player."""
    player = _player_lanes(state)[None]
    subs = _advance(state.subs, state)
    digits = jax.vmap(_advance, (0, None))(state.sub_shots, state)
    met = has_any_bit((state.subs | subs) & player)
    shooting = subs & ~union(digits)
    shots = union(shooting)
    struck = _find_hits(subs, union(state.bullets)[1:-1])
    lowered = []
    borrow = subs ^ shooting
    for digit in digits:
        lowered.append(digit ^ borrow)
        borrow = borrow & ~digit
    digits = jnp.stack(lowered) | jnp.where(SHOT_DIGITS, shooting[None], jnp.uint16(0))
    goes = np.arange(2)[:, None] == state.rightward[None]
    return (
        replace(
            state,
            subs=subs ^ struck,
            sub_shots=digits & ~struck[None],
            bullets=_remove_spent(state, struck),
            enemy_bullets=state.enemy_bullets | jnp.where(goes, shots[None], jnp.uint16(0)),
        ),
        count_bits(struck),
        met,
    )


def _step_enemy_bullets(state: SeaquestState) -> tuple[SeaquestState, Bool[Array, ""]]:
    """Move the enemy bullets. Returns whether one meets the player."""
    flown = _move_bullets(state.enemy_bullets)
    met = has_any_bit((state.enemy_bullets | flown) & _player_lanes(state)[None])
    return replace(state, enemy_bullets=flown), met


def _step_fish(
    state: SeaquestState,
) -> tuple[SeaquestState, Int[Array, ""], Bool[Array, ""]]:
    """Move fish, resolve hits. Returns hits, and whether one meets the player."""
    fish = _advance(state.fish, state)
    met = has_any_bit((state.fish | fish) & _player_lanes(state)[None])
    struck = _find_hits(fish, union(state.bullets)[1:-1])
    state = replace(state, fish=fish ^ struck, bullets=_remove_spent(state, struck))
    return state, count_bits(struck), met


def _step_oxygen(
    state: SeaquestState, params: SeaquestParams
) -> tuple[SeaquestState, Int[Array, ""], Bool[Array, ""]]:
    """Step timers, air and surfacing. Returns the bonus, and whether the episode ends."""
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
