"""Level-based foraging step for step against its rules as loops, and the package that has them."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import MultiTimeLimit, make_multi
from jaxrl.envs.multi.foraging import CELL_PIXELS, FOOD_COLOR, PLAYER_COLOR, Foraging
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.errors import EnvError
from tests.envs.multi.foraging_reference import LOAD, Game, is_allowed
from tests.envs.test_vectors import run
from tests.helpers import slow_but

pytestmark = pytest.mark.allow_key_reuse

NUM_EPISODES, NUM_STEPS = 40, 50


def unwrapped(**config: Any) -> tuple[Foraging, Any]:
    made = make_multi("Foraging-v0", config)
    assert isinstance(made.env, MultiTimeLimit)
    env = made.env.env
    assert isinstance(env, Foraging)
    return env, made.params


@functools.cache
def episodes(**config: Any) -> Any:
    """First observations, states, actions and what followed, `[episodes, steps, ...]`."""
    env, params = unwrapped(**config)
    rng = np.random.default_rng(1)
    # Loading is tried as often as all the rest.
    chance = [0.06, 0.11, 0.11, 0.11, 0.11, 0.5]
    shape = (NUM_EPISODES, NUM_STEPS, env.num_players)
    actions = rng.choice(6, shape, p=chance).astype(np.int32)

    @jax.jit
    def unroll(keys: Any, actions: Any) -> Any:
        def one(key: Any, actions: Any) -> Any:
            def body(state: Any, action: Any) -> Any:
                after, step = env.step(key, state, {"player": action}, params)
                legal = env.find_legal_actions(state)
                return after, (state, after, step, legal, env.global_state(after, params))

            state, start = env.reset(key, params)
            return start, *jax.lax.scan(body, state, actions)[1]

        return jax.vmap(one)(keys, actions)

    keys = jax.random.split(jax.random.key(0), NUM_EPISODES)
    return actions, *jax.device_get(unroll(keys, actions))


def read_game(env: Foraging, state: Any, index: Any, penalty: float) -> Game:
    field = np.zeros((env.size, env.size), int)
    for place, level in zip(state.food[index], state.food_level[index], strict=True):
        field[tuple(place)] += level
    return Game(
        field=field,
        places=[(int(y), int(x)) for y, x in state.player[index]],
        levels=[int(level) for level in state.player_level[index]],
        spawned=int(state.spawned[index]),
        sight=env.sight,
        num_food=env.num_food,
        penalty=penalty,
    )


CONFIGS: list[dict[str, Any]] = [
    {"size": 5, "force_coop": False},
    {"size": 6, "num_players": 3, "num_food": 3, "penalty": 0.1, "force_coop": False},
    {"size": 7, "sight": 2, "num_players": 4, "num_food": 4, "force_coop": False},
    {"size": 5, "num_food": 1},
]


@pytest.mark.parametrize("config", slow_but(CONFIGS[0], of=CONFIGS), ids=range(len(CONFIGS)))
def test_steps_follow_the_rules(config: dict[str, Any]) -> None:
    env, _ = unwrapped(**config)
    actions, start, before, after, step, legal, state = episodes(**config)
    penalty, num_taken, num_blocked = config.get("penalty", 0.0), 0, 0
    for index in np.ndindex(NUM_EPISODES, NUM_STEPS):
        game = read_game(env, before, index, penalty)
        if index[1] == 0:
            obs = np.stack([game.observe(i) for i in range(env.num_players)])
            np.testing.assert_array_equal(start.obs["player"][index[0]], obs)
        for player, action in itertools.product(range(env.num_players), range(6)):
            assert legal[index][player, action] == game.is_legal(player, action)
        food, places = game.field.sum(), list(game.places)
        rewards = game.step([int(a) for a in actions[index]])
        num_taken += game.field.sum() < food
        moves = (actions[index] > 0) & (actions[index] < LOAD)
        num_blocked += np.any(moves & [a == b for a, b in zip(places, game.places, strict=True)])
        got = read_game(env, after, index, penalty)
        np.testing.assert_array_equal(got.field, game.field)
        assert (got.places, got.levels) == (game.places, game.levels)
        np.testing.assert_allclose(step.reward["player"][index], rewards, rtol=1e-6)
        obs = np.stack([game.observe(i) for i in range(env.num_players)])
        np.testing.assert_array_equal(step.obs["player"][index], obs)
        np.testing.assert_array_equal(state[index], obs.reshape(-1))
        assert step.terminated["__all__"][index] == (game.field.sum() == 0)
    assert num_taken > (1 if env.force_coop else 10)
    assert num_blocked > 10
    assert np.any(step.terminated["__all__"])
    assert not np.any(step.truncated["__all__"])
    if penalty:
        assert np.any(np.isclose(step.reward["player"], -penalty))


def test_all_food_together_pays_1() -> None:
    paid = 0
    for config in ({"size": 5, "force_coop": False}, {"size": 5, "num_food": 1}):
        _, _, _, _, step, *_ = episodes(**config)
        total = np.cumsum(step.reward["player"].sum(axis=-1), axis=1)
        over = step.terminated["__all__"]
        np.testing.assert_allclose(total[over], 1.0, rtol=1e-5)
        assert total.max() < 1.0 + 1e-5
        paid += over.any(axis=1).sum()
    assert paid > 3


@pytest.mark.parametrize("force_coop", [True, False])
def test_first_states_are_as_published(force_coop: bool) -> None:
    env, params = unwrapped(size=6, num_players=2, num_food=3, force_coop=force_coop)
    keys = jax.random.split(jax.random.key(1), 3000)
    state = jax.device_get(jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)[0])
    most = state.player_level.sum(axis=-1)
    exists = state.food_level > 0
    if force_coop:
        assert np.all(state.food_level[exists] == np.repeat(most[:, None], 3, 1)[exists])
    else:
        shares = [np.mean(state.food_level[most == 4] == level) for level in (1, 2, 3, 4)]
        np.testing.assert_allclose(shares, np.mean(exists) / 4, atol=0.03)
    assert set(np.unique(state.player_level)) == {1, 2}
    np.testing.assert_allclose(np.mean(state.player_level == 1), 0.5, atol=0.03)
    np.testing.assert_array_equal(state.spawned, state.food_level.sum(axis=-1))
    corner = np.mean(np.all(state.player == 0, axis=-1))
    assert corner == pytest.approx(1 / 36, rel=0.2)
    assert not np.any(np.all(state.player[:, 0] == state.player[:, 1], axis=-1))
    fewer = 0
    for index in range(500):
        field = np.zeros((6, 6), int)
        cells = [tuple(c) for c, e in zip(state.food[index], exists[index], strict=True) if e]
        players = [tuple(c) for c in state.player[index]]
        assert cells == sorted(cells)
        assert not set(cells) & set(players)
        for cell in cells:
            field[cell] = 0
            others = [c for c in cells if c != cell]
            for other in others:
                field[other] = 1
            assert is_allowed(field, cell)
            field[:] = 0
        for cell in cells:
            field[cell] = 1
        if len(cells) < 3:  # no cell is left
            fewer += 1
            free = itertools.product(range(6), range(6))
            assert not any(is_allowed(field, c) for c in free if c not in players)
    assert 0 < fewer < 450


def test_a_mask_says_which_actions_do_something() -> None:
    env, params = unwrapped(size=5, action_mask=True)
    _, start, _, _, step, legal, state = episodes(size=5, action_mask=True)
    obs = start.obs["player"]
    assert set(obs) == {"action_mask", "obs"}
    np.testing.assert_array_equal(obs["action_mask"], legal[:, 0])
    np.testing.assert_array_equal(step.obs["player"]["action_mask"][:, :-1], legal[:, 1:])
    assert np.all(legal[..., 0])
    assert 0 < np.mean(legal[..., LOAD]) < 1
    np.testing.assert_array_equal(step.obs["player"]["obs"].reshape(state.shape), state)
    assert env.observation_space("player_0", params)["obs"].shape == (12,)


@pytest.mark.slow
def test_the_time_limit_truncates() -> None:
    made = make_multi("Foraging-v0")
    vector = MultiVectorEnv(made.env, made.env.reset_mode)
    still = {"player": jnp.zeros((4, 2), jnp.int32)}
    _, steps, _ = run(vector, made.params, still, index=np.arange(4), steps=60)
    cut = steps.truncated["player"].reshape(60, -1)
    np.testing.assert_array_equal(np.flatnonzero(cut.any(axis=1)), [49])
    assert cut[49].all()
    assert not steps.terminated["player"].any()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"size": 4}, "size=4 must be an integer of at least 5"),
        ({"size": 10**6}, "size=1000000 must be at most 1000"),
        ({"size": 5, "num_players": 26}, "num_players=26 do not fit on the 25 cells of size=5"),
        ({"num_players": 1.5}, "num_players=1.5 must be an integer of at least 1"),
        ({"sight": 0}, "sight=0 must be an integer of at least 1"),
        ({"force_coop": 1}, "force_coop=1 must be True or False"),
    ],
)
def test_wrong_arguments_are_refused(config: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        make_multi("Foraging-v0", config)


def test_the_picture_shows_food_players_and_levels() -> None:
    env, params = unwrapped()
    state, _ = jax.device_get(jax.jit(env.reset)(jax.random.key(0), params))
    state = replace(
        state,
        player=np.array([[0, 7], [6, 1]], np.int32),
        player_level=np.array([1, 2], np.int32),
        food=np.array([[2, 3], [5, 5]], np.int32),
        food_level=np.array([3, 0], np.int32),
    )
    picture = env.render(state, params)
    assert picture.shape == (8 * CELL_PIXELS, 8 * CELL_PIXELS, 3)
    assert picture.dtype == np.uint8

    def cells_of(color: Any) -> set[Any]:
        found = np.argwhere(np.all(picture == np.array(color), axis=-1)) // CELL_PIXELS
        return {tuple(int(x) for x in cell) for cell in found}

    assert cells_of(FOOD_COLOR) == {(2, 3)}
    assert cells_of(PLAYER_COLOR) == {(0, 7), (6, 1)}

    def white(y: int, x: int) -> int:
        """White pixels of the inner half of a cell."""
        first, last = CELL_PIXELS // 4, 3 * CELL_PIXELS // 4
        rows, columns = (slice(c * CELL_PIXELS + first, c * CELL_PIXELS + last) for c in (y, x))
        return int(np.all(picture[rows, columns] == 255, axis=-1).sum())

    one, two, three = white(0, 7), white(6, 1), white(2, 3)
    assert one > 10
    assert [two, three] == pytest.approx([2 * one, 3 * one], rel=0.25)


def test_whole_episodes_are_the_packages() -> None:
    foraging: Any = pytest.importorskip("lbforaging.foraging.environment", reason="not installed")
    for config in CONFIGS:
        env, params = unwrapped(**config)
        theirs = foraging.ForagingEnv(
            players=env.num_players,
            min_player_level=1,
            max_player_level=env.max_player_level,
            min_food_level=1,
            max_food_level=None,
            field_size=(env.size, env.size),
            max_num_food=env.num_food,
            sight=env.sight,
            max_episode_steps=10_000,
            force_coop=env.force_coop,
            penalty=config.get("penalty", 0.0),
        )
        space: Any = env.observation_space("player_0", params)
        assert (space.low == theirs.observation_space[0].low).all()
        assert (space.high == theirs.observation_space[0].high).all()
        theirs.reset(seed=0)
        actions, _, before, _, step, *_ = episodes(**config)
        for episode in range(NUM_EPISODES):
            first = read_game(env, before, (episode, 0), 0.0)
            theirs.reset()
            theirs.field = first.field.astype(np.int32)
            theirs._food_spawned = first.spawned
            for player, place, level in zip(
                theirs.players, first.places, first.levels, strict=True
            ):
                player.setup(place, level, theirs.field_size)
            theirs._gen_valid_moves()
            for t in range(NUM_STEPS):
                obs, rewards, done, _, _ = theirs.step(actions[episode, t])
                np.testing.assert_array_equal(step.obs["player"][episode, t], np.stack(obs))
                np.testing.assert_allclose(step.reward["player"][episode, t], rewards, rtol=1e-6)
                assert step.terminated["__all__"][episode, t] == done
