"""gymnax's states of MinAtar's games as ours, and states that random play seldom reaches."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments.minatar.asterix import spawn_entity

from jaxrl.core.struct import replace
from jaxrl.envs.minatar import asterix, breakout, freeway, seaquest, space_invaders
from jaxrl.envs.minatar.grid import SIZE, bit, union

NO_ACTION = jnp.zeros((), jnp.int32)


def bits_of(board: Any) -> Any:
    """Rows of zeros and ones as words."""
    columns = jnp.arange(SIZE, dtype=jnp.uint16).reshape((1,) * (board.ndim - 1) + (-1,))
    return jnp.sum(board.astype(jnp.uint16) << columns, axis=-1, dtype=jnp.uint16)


def laid(entities: Any, count: Any, *chosen: Any) -> Any:
    """A gymnax list's bits by row: `chosen` are arrays over entities, and their sizes."""
    active = jnp.arange(entities.shape[0]) < count
    cells = jnp.where(active, bit(entities[:, 0]), jnp.uint16(0))
    rows = [(entities[:, 1], SIZE), *chosen]
    for value, size in rows:
        value = value.reshape((-1, 1) + (1,) * cells[0].ndim)
        numbers = jnp.arange(size).reshape((1, -1) + (1,) * cells[0].ndim)
        cells = jnp.where(value == numbers, cells[:, None], jnp.uint16(0))
    return union(cells)


def our_breakout(state: Any) -> breakout.BreakoutState:
    return breakout.BreakoutState(
        ball_x=state.ball_x,
        ball_y=state.ball_y,
        way_x=jnp.where((state.ball_dir == 1) | (state.ball_dir == 2), 1, -1),
        way_y=jnp.where(state.ball_dir >= 2, 1, -1),
        last_x=state.last_x,
        last_y=state.last_y,
        paddle=state.pos,
        bricks=jnp.sum(
            bits_of(state.brick_map[1:4]).astype(jnp.uint32)
            << (SIZE * jnp.arange(3, dtype=jnp.uint32)),
            dtype=jnp.uint32,
        ),
        strike=state.strike,
        last_action=NO_ACTION,
    )


def our_freeway(state: Any) -> freeway.FreewayState:
    return freeway.FreewayState(
        player_y=state.pos,
        player_timer=state.move_timer,
        car_x=state.cars[:, 0],
        pace=state.cars[:, 3],
        car_timer=state.cars[:, 2],
        last_action=NO_ACTION,
    )


def our_asterix(state: Any) -> asterix.AsterixState:
    entities = state.entities
    is_there = entities[:, 4] == 1
    return asterix.AsterixState(
        player_x=state.player_x,
        player_y=state.player_y,
        lanes=jnp.where(is_there, bit(entities[:, 0]), jnp.uint16(0)),
        rightward=is_there & (entities[:, 2] == 1),
        is_gold=is_there & (entities[:, 3] == 1),
        spawn_interval=state.spawn_speed,
        spawn_timer=state.spawn_timer,
        move_interval=state.move_speed,
        move_timer=state.move_timer,
        ramp_timer=state.ramp_timer,
        ramp_index=state.ramp_index,
        last_action=NO_ACTION,
    )


def our_space_invaders(state: Any) -> space_invaders.SpaceInvadersState:
    return space_invaders.SpaceInvadersState(
        cannon=state.pos,
        bullets=bits_of(state.f_bullet_map),
        enemy_bullets=bits_of(state.e_bullet_map),
        aliens=bits_of(state.alien_map),
        rightward=state.alien_dir > 0,
        move_interval=state.enemy_move_interval,
        move_timer=state.alien_move_timer,
        enemy_shot_timer=state.alien_shot_timer,
        shot_timer=state.shot_timer,
        last_action=NO_ACTION,
    )


def our_seaquest(state: Any) -> seaquest.SeaquestState:
    fish, subs, divers = state.e_fish, state.e_subs, state.divers
    subs_by_timer = laid(subs, state.e_subs_count, (subs[:, 3], 6))
    by_shot = laid(subs, state.e_subs_count, (subs[:, 3], 6), (subs[:, 4], 11))
    digits = [
        union(jnp.where((jnp.arange(11) >> digit & 1)[:, None, None] == 1, by_shot, jnp.uint16(0)))
        for digit in range(4)
    ]
    right_fish = laid(fish, state.e_fish_count, (fish[:, 2], 2))[1]
    right_subs = laid(subs, state.e_subs_count, (subs[:, 2], 2))[1]
    order = jnp.stack([state.divers_count - 1, state.divers_count - 2])
    newest_first = divers[jnp.maximum(order, 0)]
    return seaquest.SeaquestState(
        sub_x=state.sub_x,
        sub_y=state.sub_y,
        faces_right=state.sub_or,
        bullets=laid(state.f_bullets, state.f_bullet_count, (state.f_bullets[:, 2], 2)),
        enemy_bullets=laid(state.e_bullets, state.e_bullet_count, (state.e_bullets[:, 2], 2))[
            :, 1:-1
        ],
        rightward=((right_fish | right_subs) != 0)[1:-1],
        fish=laid(fish, state.e_fish_count, (fish[:, 3], 6))[:, 1:-1],
        subs=subs_by_timer[:, 1:-1],
        sub_shots=jnp.stack(digits)[:, :, 1:-1],
        divers=seaquest.Divers(
            x=jnp.where(order >= 0, newest_first[:, 0], -SIZE),
            y=newest_first[:, 1],
            rightward=newest_first[:, 2] == 1,
            timer=newest_first[:, 3],
        ),
        num_aboard=state.diver_count,
        oxygen=state.oxygen,
        spawn_interval=state.e_spawn_speed,
        spawn_timer=state.e_spawn_timer,
        move_interval=state.move_speed,
        diver_timer=state.d_spawn_timer,
        shot_timer=state.shot_timer,
        ramp_index=state.ramp_index,
        is_up=state.surface,
        last_action=NO_ACTION,
    )


def canonical(state: Any) -> Any:
    """Without what nobody sees: the ways of empty lanes, and which place an only diver has."""
    if isinstance(state, asterix.AsterixState):
        is_there = state.lanes != 0
        return replace(
            state, rightward=state.rightward & is_there, is_gold=state.is_gold & is_there
        )
    if isinstance(state, seaquest.SeaquestState):
        divers = state.divers
        swap = divers.x[0] < 0
        divers = jax.tree.map(lambda leaf: jnp.where(swap, leaf[::-1], leaf), divers)
        divers = jax.tree.map(lambda leaf: jnp.where(divers.x >= 0, leaf, 0), divers)
        is_taken = (union(state.fish) | union(state.subs)) != 0
        return replace(state, divers=divers, rightward=state.rightward & is_taken)
    return state


def spawned(name: str, env: Any, key: Any, state: Any, params: Any) -> Any:
    """gymnax's state after its own arrivals of this step, so that the step itself has none."""
    if name == "Asterix":
        entity, slot = spawn_entity(key, state)
        due = state.spawn_timer == 0
        return state.replace(
            entities=jnp.where(due, state.entities.at[slot].set(entity), state.entities),
            spawn_timer=jnp.where(due, state.spawn_speed, state.spawn_timer),
        )
    if name == "Seaquest":
        enemy_key, diver_key = jax.random.split(key)
        return env._spawn_entities(enemy_key, diver_key, state, params)
    return state


def stirred(name: str, key: Any, state: Any) -> Any:
    """Now and then a state that random play hardly reaches: few bricks or aliens, divers aboard."""
    when_key, *keys = jax.random.split(key, 5)
    draw = [functools.partial(jax.random.randint, each, ()) for each in keys]
    stir = jax.random.uniform(when_key) < 0.1
    if name == "Breakout":
        few = state.brick_map * jax.random.bernoulli(keys[0], 0.04, state.brick_map.shape)
        few = jnp.where(state.ball_y >= 5, few, state.brick_map)
        near = jnp.clip(state.ball_x + draw[1](-1, 2), 0, SIZE - 1)
        caught = jnp.where((state.ball_y == 8) & (draw[2](0, 10) > 0), near, state.pos)
        return state.replace(brick_map=jnp.where(stir, few, state.brick_map), pos=caught)
    if name == "Freeway":
        return state.replace(pos=jnp.where(stir, 1 + draw[0](0, 9), state.pos))
    if name == "Asterix":
        return state.replace(
            move_speed=jnp.where(stir, draw[0](1, 6), jnp.maximum(state.move_speed, 1)),
            ramp_timer=jnp.where(stir, draw[1](-1, 3), state.ramp_timer),
        )
    if name == "SpaceInvaders":
        few = state.alien_map * jax.random.bernoulli(keys[0], 0.1, state.alien_map.shape)
        any_left = jnp.any(few != 0)
        sunk = jnp.where(draw[1](0, 3) == 0, jnp.roll(few, draw[2](0, 5), axis=0), few)
        return state.replace(alien_map=jnp.where(stir & any_left, sunk, state.alien_map))
    stir = stir & (state.f_bullet_count == 0)
    return state.replace(
        sub_y=jnp.where(stir, draw[0](0, 9), state.sub_y),
        diver_count=jnp.where(stir, draw[1](0, 7), state.diver_count),
        oxygen=jnp.where(stir, jnp.maximum(draw[2](-10, 201), 0), state.oxygen),
        e_spawn_timer=jnp.where(stir, draw[3](0, 3), state.e_spawn_timer),
    )


CONVERT: dict[str, Any] = {
    "Breakout": our_breakout,
    "Asterix": our_asterix,
    "Freeway": our_freeway,
    "SpaceInvaders": our_space_invaders,
    "Seaquest": our_seaquest,
}
