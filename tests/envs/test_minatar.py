"""Our MinAtar against gymnax's, state by state, and where the two differ against the published."""

import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import TimeLimit, make
from jaxrl.envs.minatar import seaquest
from jaxrl.envs.minatar.grid import CELL_PIXELS, GridGame, union
from tests.envs.minatar_states import CONVERT, canonical, spawned, stirred

GAMES = {"Breakout": 3, "Asterix": 5, "Freeway": 3, "SpaceInvaders": 4, "Seaquest": 6}
NUM_ENVS, NUM_STEPS = 48, 150


def game(name: str) -> tuple[GridGame[Any, Any], Any]:
    made = make(f"{name}-MinAtar")
    assert isinstance(made.env, TimeLimit)
    assert isinstance(made.env.env, GridGame)
    return made.env.env, made.params


@functools.cache
def recorded(name: str) -> dict[str, Any]:
    """Transitions `[T, B]` of gymnax's game, and what ours does from the same states."""
    theirs: Any = vars(make(f"gymnax:{name}-MinAtar").env)["env"]
    their_params = jax.tree.map(jnp.asarray, theirs.default_params)
    ours, params = game(name)
    params = replace(params, sticky_action_prob=np.float32(0.0))

    def one(state: Any, key: Any) -> tuple[Any, Any]:
        spawn_key, stir_key, action_key, step_key, reset_key = jax.random.split(key, 5)
        state = spawned(name, theirs, spawn_key, stirred(name, stir_key, state), their_params)
        action = jax.random.randint(action_key, (), 0, GAMES[name])
        obs, after, reward, terminated, _ = theirs.step_env(step_key, state, action, their_params)
        our_after, step = ours.step(step_key, CONVERT[name](state), action, params)
        row = {
            "before": CONVERT[name](state),
            "after": canonical(replace(CONVERT[name](after), last_action=action)),
            "our_after": canonical(our_after),
            "obs": obs.astype(jnp.uint8),
            "our_obs": step.obs,
            "reward": reward.astype(jnp.float32),
            "our_reward": step.reward,
            "terminated": terminated,
            "our_terminated": step.terminated,
            "action": action,
        }
        _, fresh = theirs.reset_env(reset_key, their_params)
        after = jax.tree.map(lambda new, old: jnp.where(terminated, new, old), fresh, after)
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state), row

    @jax.jit
    def run(key: Any) -> Any:
        reset_key, step_key = jax.random.split(key)
        _, first = jax.vmap(theirs.reset_env, (0, None))(
            jax.random.split(reset_key, NUM_ENVS), their_params
        )
        first = jax.tree.map(jnp.asarray, first)
        _, rows = jax.lax.scan(
            jax.vmap(one), first, jax.random.split(step_key, (NUM_STEPS, NUM_ENVS))
        )
        return rows

    with jax.numpy_rank_promotion("allow"), jax.debug_key_reuse(False):
        return jax.device_get(run(jax.random.key(3)))


def disputed(name: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Return the parts in which gymnax's game differs as the module's docstring says, or "everything"."""
    before = rows["before"]
    where: dict[str, Any] = {"all": np.zeros(rows["reward"].shape, bool)}
    if name == "Freeway":
        where["trails"] = where["state"] = rows["reward"] > 0  # other random speeds
    if name == "Asterix":
        where["state"] = before.move_interval == 1
    if name == "Seaquest":
        shooting = before.subs[..., 0, :] & ~np.bitwise_or.reduce(before.sub_shots[..., 0, :], -2)
        one_place = (before.num_aboard == 5) & np.all(before.divers.x >= 0, axis=-1)
        near = np.all(np.abs(before.divers.x - before.sub_x[..., None]) <= 2, axis=-1)
        where["all"] = (np.any(shooting != 0, -1) & (rows["reward"] > 0)) | (one_place & near)
        where["oxygen"] = rows["terminated"] & (rows["our_after"].sub_y == 0)
    return where


@pytest.mark.representatives("Breakout")
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("name", GAMES)
def test_every_transition_is_gymnaxs(name: str) -> None:
    rows = recorded(name)
    where = disputed(name, rows)
    same = ~where["all"]
    assert np.mean(same) > 0.98
    np.testing.assert_array_equal(rows["our_reward"][same], rows["reward"][same])
    np.testing.assert_array_equal(rows["our_terminated"][same], rows["terminated"][same])
    obs, expected = rows["our_obs"].copy(), rows["obs"].copy()
    if "trails" in where:
        obs[where["trails"], ..., 2:] = expected[where["trails"], ..., 2:] = 0
    if "oxygen" in where:
        obs[where["oxygen"], ..., 7] = expected[where["oxygen"], ..., 7] = 0
    np.testing.assert_array_equal(obs[same], expected[same])
    goes_on = same & ~rows["terminated"] & ~where.get("state", np.zeros_like(same))
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows["our_after"]):
        theirs = dict(jax.tree_util.tree_leaves_with_path(rows["after"]))[path]
        np.testing.assert_array_equal(leaf[goes_on], theirs[goes_on], str(path))


@pytest.mark.representatives("Breakout")
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("name", GAMES)
def test_the_recorded_transitions_are_of_every_kind(name: str) -> None:
    rows = recorded(name)
    before, after, reward = rows["before"], rows["our_after"], rows["our_reward"]
    terminated = rows["our_terminated"]
    events: dict[str, Any] = {"pays": reward > 0}
    if name == "Breakout":
        lost = terminated
        events |= {"wall": before.way_x != after.way_x, "lost": lost, "strike": after.strike}
        events["new bricks"] = (before.bricks == 0) & (after.bricks != 0)
        events["both ways"] = (before.way_x != after.way_x) & (before.way_y != after.way_y) & ~lost
    elif name == "Freeway":
        events["put back"] = (after.player_y == 9) & (before.player_y < 8) & (reward == 0)
        events["round the edge"] = np.abs(after.car_x - before.car_x) == 9
    elif name == "Asterix":
        events |= {"end": terminated, "ramp": after.ramp_index > before.ramp_index}
        events["faster"] = after.move_interval < before.move_interval
        events["left"] = (before.lanes != 0) & (after.lanes == 0) & (reward == 0)[..., None]
    elif name == "SpaceInvaders":
        events |= {"end": terminated, "turn": before.rightward != after.rightward}
        events["new wave"] = after.move_interval < before.move_interval
        events["landed"] = terminated & (before.aliens[..., 9] != 0)
        events["shot"] = np.any(after.enemy_bullets[..., :4] != 0, -1)
    else:
        events |= {"bonus": reward > 1, "end": terminated, "minus one": after.num_aboard == -1}
        events["surfacing"] = after.oxygen > before.oxygen
        events["picked up"] = (after.num_aboard > before.num_aboard) & (before.num_aboard >= 0)
        events["faster"] = after.move_interval < before.move_interval
        events["no air"] = terminated & (before.oxygen == 0) & (after.oxygen == -1)
        events["no diver"] = terminated & (before.num_aboard == 0) & (after.sub_y == 0)
        for kind in ("fish", "subs", "enemy_bullets"):
            events[kind] = vars(before)[kind] != 0
    counts = {event: int(np.sum(happened)) for event, happened in events.items()}
    assert min(counts.values()) >= 3, counts


@pytest.mark.parametrize("name", GAMES)
def test_spaces_actions_and_time_limit_are_gymnaxs(name: str) -> None:
    ours, theirs = make(f"{name}-MinAtar"), make(f"gymnax:{name}-MinAtar")
    space = ours.env.observation_space(ours.params)
    assert space == theirs.env.observation_space(theirs.params)
    assert ours.env.action_space(ours.params) == gymnasium.spaces.Discrete(GAMES[name])
    assert theirs.env.action_space(theirs.params) == gymnasium.spaces.Discrete(GAMES[name])
    assert ours.max_episode_steps == theirs.max_episode_steps
    env, _ = game(name)
    assert len(env.channels) == space.shape[-1]  # pyright: ignore


@pytest.mark.representatives("Seaquest")
@pytest.mark.parametrize("name", GAMES)
def test_a_picture_has_a_colour_a_channel(name: str) -> None:
    env, params = game(name)
    state, obs = env.reset(jax.random.key(0), params)
    picture = env.render(state, params)
    assert picture.dtype == np.uint8
    assert picture.shape == (10 * CELL_PIXELS, 10 * CELL_PIXELS, 3)
    cells = picture[::CELL_PIXELS, ::CELL_PIXELS]
    np.testing.assert_array_equal(cells.any(axis=-1), np.asarray(obs).any(axis=-1))
    assert len(np.unique(cells.reshape(-1, 3), axis=0)) >= 2  # Asterix begins alone


@functools.cache
def stepped(name: str) -> Any:
    """`NUM_ENVS` copies of a state stepped with keys of their own."""
    env, _ = game(name)
    return jax.jit(jax.vmap(env.step, (0, None, None, None)))


def outcomes(
    name: str, number: int = 4096, action: int = 0, params: Any = None, **state: Any
) -> Any:
    """The first state with these changes, stepped once with many keys."""
    env, defaults = game(name)
    params = replace(defaults, **{"sticky_action_prob": np.float32(0), **(params or {})})
    first, _ = jax.jit(env.reset)(jax.random.key(0), params)
    changed = {
        key: np.asarray(value, vars(first)[key].dtype) if key != "divers" else value
        for key, value in state.items()
    }
    keys = jax.random.split(jax.random.key(1), number)
    out = stepped(name)(keys, replace(first, **changed), np.int32(action), params)
    return jax.device_get(out)


def assert_share(values: Any, expected: float, number: int = 4096) -> None:
    """A mean of indicators, within four standard deviations."""
    tolerance = 4 * np.sqrt(expected * (1 - expected) / number)
    assert abs(np.mean(values) - expected) <= tolerance, (np.mean(values), expected)


@pytest.mark.parametrize(("prob", "repeats"), [(0.0, 0.0), (0.1, 0.1), (1.0, 1.0)])
@pytest.mark.parametrize("name", GAMES)
def test_the_last_action_sticks_as_often_as_it_should(
    name: str, prob: float, repeats: float
) -> None:
    prob_param = {"sticky_action_prob": np.float32(prob)}
    after, _ = outcomes(name, action=1, params=prob_param, last_action=2)
    assert set(np.unique(after.last_action)) <= {1, 2}
    assert_share(after.last_action == 2, repeats)


def test_breakout_starts_at_either_wall() -> None:
    env, params = game("Breakout")
    state, _ = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 4096), params)
    assert set(np.unique(state.ball_x)) == {0, 9}
    np.testing.assert_array_equal(state.way_x, np.where(np.asarray(state.ball_x) == 0, 1, -1))
    assert_share(np.asarray(state.ball_x) == 0, 0.5)


def test_freeways_cars_are_drawn_evenly_and_again_at_the_other_side() -> None:
    env, params = game("Freeway")
    state, _ = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 4096), params)
    after, step = outcomes("Freeway", action=1, player_y=1, player_timer=0)
    assert np.all(step.reward == 1)
    assert np.all(after.player_y == 9)
    for pace in (np.asarray(state.pace), after.pace):
        for number in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5):
            assert_share(pace == number, 0.1, pace.size)
        correlation = np.corrcoef(pace.T) - np.eye(8)
        assert np.max(np.abs(correlation)) < 0.08


def test_asterix_fills_one_of_the_free_lanes() -> None:
    lanes = np.array([1, 0, 2, 4, 0, 8, 16, 0])
    after, _ = outcomes("Asterix", lanes=lanes, spawn_timer=0)
    new = (after.lanes != 0) & (lanes == 0)
    assert np.all(new.sum(axis=1) == 1)
    for lane in np.flatnonzero(lanes == 0):
        assert_share(new[:, lane], 1 / 3)
    assert_share(after.is_gold[new], 1 / 3)
    assert_share(after.rightward[new], 1 / 2)
    np.testing.assert_array_equal(after.lanes[new], np.where(after.rightward[new], 1, 512))
    np.testing.assert_array_equal(after.spawn_timer, 9)
    full, _ = outcomes("Asterix", lanes=np.full(8, 32), spawn_timer=0, player_x=0)
    assert np.all(full.lanes == 32)


@pytest.mark.parametrize("ramping", [True, False])
def test_asterix_ramps(ramping: bool) -> None:
    changed = {"ramping": np.bool_(ramping)}
    after, _ = outcomes("Asterix", 1, params=changed, ramp_timer=-1, ramp_index=1)
    speeds = (int(after.spawn_interval[0]), int(after.move_interval[0]), int(after.ramp_timer[0]))
    assert speeds == ((9, 4, 100) if ramping else (10, 5, -1))


@pytest.mark.parametrize("ramping", [True, False])
def test_a_new_wave_is_faster(ramping: bool) -> None:
    aliens, bullets = np.zeros(10), np.zeros(10)
    aliens[3], bullets[4] = 16, 16
    after, step = outcomes(
        "SpaceInvaders", 1, params={"ramping": np.bool_(ramping)}, aliens=aliens, bullets=bullets
    )
    assert (float(step.reward[0]), bool(step.terminated[0])) == (1.0, False)
    assert int(np.bitwise_count(after.aliens[0]).sum()) == 24
    assert int(after.move_interval[0]) == (11 if ramping else 12)


def planes(*entities: tuple[int, int, int]) -> np.ndarray:
    """(plane, lane, column) as Seaquest's planes."""
    board = np.zeros((6, 8), np.uint16)
    for plane, lane, column in entities:
        board[plane, lane] |= 1 << column
    return board


def test_seaquests_arrivals() -> None:
    after, _ = outcomes("Seaquest", spawn_timer=0, diver_timer=0)
    fish, subs = after.fish.any(axis=1), after.subs.any(axis=1)
    assert np.all((fish ^ subs).sum(axis=1) == 1)
    assert_share(subs.any(axis=1), 1 / 3)
    came = fish | subs
    for lane in range(8):
        assert_share(came[:, lane], 1 / 8)
        assert_share(after.divers.y[:, 0] == 1 + lane, 1 / 8)
    assert_share(after.rightward[came], 1 / 2)
    assert_share(after.divers.rightward[:, 0], 1 / 2)
    np.testing.assert_array_equal(
        after.divers.x[:, 0], np.where(after.divers.rightward[:, 0], 0, 9)
    )
    assert np.all(after.divers.x[:, 1] < 0)
    digits = np.array([union(jnp.asarray(d)) for d in after.sub_shots[subs.any(axis=1)][0]])
    assert digits.max(axis=-1).astype(bool).tolist() == [True, False, False, True]  # 9
    assert np.all((after.spawn_timer == 19) & (after.diver_timer == 29))


def test_nobody_comes_into_a_lane_against_its_way() -> None:
    swimming = planes(*[(5, lane, 4) for lane in range(8)])
    after, _ = outcomes("Seaquest", spawn_timer=0, fish=swimming, rightward=np.arange(8) < 4)
    new = (after.fish | after.subs) & ~np.roll(swimming, -1, axis=0)[None]
    came = new.any(axis=1)
    assert_share(came.any(axis=1), 1 / 2)
    np.testing.assert_array_equal(new.max(axis=1)[came], np.where(np.nonzero(came)[1] < 4, 1, 512))
    np.testing.assert_array_equal(after.rightward, np.broadcast_to(np.arange(8) < 4, (4096, 8)))


@pytest.mark.parametrize(
    ("oxygen", "ends", "cells"),
    [(200, False, 9), (21, False, 1), (20, False, 0), (1, False, 0), (0, True, 0)],
)
def test_the_air_lasts_as_long_as_in_the_published_game(
    oxygen: int, ends: bool, cells: int
) -> None:
    """The published release 1.0.15: `if oxygen <= 0: terminal`, before the step's own breath."""
    after, step = outcomes("Seaquest", 1, sub_y=4, is_up=False, oxygen=oxygen)
    assert bool(step.terminated[0]) == ends
    assert int(after.oxygen[0]) == oxygen - 1
    assert int(step.obs[0, 9, :, 7].sum()) == cells


def test_coming_up_without_a_diver_refills_nothing() -> None:
    after, step = outcomes("Seaquest", 1, sub_y=1, is_up=False, oxygen=57, action=seaquest.UP)
    assert bool(step.terminated[0])
    assert (int(after.oxygen[0]), int(step.obs[0, 9, :, 7].sum())) == (57, 2)


def test_a_submarine_that_is_struck_still_shoots() -> None:
    bullets = np.zeros((2, 10), np.uint16)
    bullets[1, 3] = 1 << 4  # flies to column 5, where the submarine comes from column 6
    after, step = outcomes("Seaquest", 1, subs=planes((0, 2, 6)), bullets=bullets)
    assert float(step.reward[0]) == 1
    assert not after.subs.any()
    assert not after.bullets.any()
    assert after.enemy_bullets[0].tolist() == [[0, 0, 1 << 4, 0, 0, 0, 0, 0], [0] * 8]


def test_the_last_diver_to_come_takes_the_last_place() -> None:
    both = seaquest.Divers(
        x=np.array([4, 6], np.int32),
        y=np.array([3, 3], np.int32),
        rightward=np.array([True, False]),
        timer=np.zeros(2, np.int32),
    )
    after, _ = outcomes("Seaquest", 1, sub_y=3, is_up=False, num_aboard=5, divers=both)
    assert int(after.num_aboard[0]) == 6
    assert after.divers.x[0].tolist() == [-10, 5]
