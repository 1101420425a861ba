"""TicTacToe and Connect Four: every position of random games, against plain NumPy and pgx."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import make_multi
from jaxrl.envs.multi.board import PLAYERS, BoardState
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.testing import check_env
from tests.envs.multi.board_reference import RULES, Games, find_legal, play_random_games
from tests.envs.multi.test_multi_vector import run

pytestmark = pytest.mark.allow_key_reuse

NAMES = list(RULES)
NUMBER = 1500


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    check_env(name, num_steps=45)


def replay(name: str, share_illegal: float) -> tuple[Games, Any, Any]:
    """Random games of the reference, and the same moves in the environment, `[T, N, ...]`."""
    env = make_multi(name).env
    keys = jax.random.split(jax.random.key(7), NUMBER)
    state, start = jax.jit(jax.vmap(env.reset, (0, None)))(keys, None)
    first = np.asarray(state.mover)
    games = play_random_games(RULES[name], first, share_illegal=share_illegal, seed=0)
    idle = np.random.default_rng(1).integers(0, RULES[name].num_moves, games.move.shape)
    actions = {
        player: jnp.asarray(np.where(games.mover == seat, games.move, idle), jnp.int32)
        for seat, player in enumerate(PLAYERS)
    }

    def body(state: Any, action: Any) -> Any:
        return jax.vmap(env.step, (None, 0, 0, None))(jax.random.key(0), state, action, None)

    steps = jax.jit(lambda s, a: jax.lax.scan(body, s, a)[1])(state, actions)
    return games, jax.device_get(start), jax.device_get(steps)


def look(board: np.ndarray, seat: int) -> np.ndarray:
    """The planes that a seat sees of boards `[..., rows, columns]`."""
    return np.stack([board == seat + 1, board == 2 - seat], axis=-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share_illegal", [0.0, 0.08])
def test_every_position_is_the_references(name: str, share_illegal: float) -> None:
    games, start, steps = replay(name, share_illegal)
    live, rules = games.live, RULES[name]
    assert 0.4 < games.mover[0].mean() < 0.6  # both begin as often
    legal = np.stack([find_legal(rules, board) for board in games.board_after])
    for seat, player in enumerate(PLAYERS):
        assert (start.acts[player] == (games.mover[0] == seat)).all()
        assert not start.obs[player]["obs"].any()
        assert start.obs[player]["action_mask"].all()
        seen, wanted = steps.obs[player], look(games.board_after, seat)
        np.testing.assert_array_equal(seen["obs"][live], wanted[live])
        np.testing.assert_array_equal(seen["action_mask"][live], legal[live])
        np.testing.assert_array_equal(steps.reward[player][live], games.reward[..., seat][live])
        acts_next = games.mover == 1 - seat
        np.testing.assert_array_equal(steps.acts[player][live], acts_next[live])
    np.testing.assert_array_equal(steps.terminated["__all__"][live], games.over[live])
    assert not steps.truncated["__all__"].any()
    assert games.over.sum() == NUMBER
    ends = games.reward[games.over]
    kinds = {tuple(pair) for pair in ends.tolist()}
    illegal = {(-1.0, 0.0), (0.0, -1.0)} if share_illegal else set()
    draws = {(0.0, 0.0)} & kinds  # hardly any game of Connect Four
    assert kinds == {(1.0, -1.0), (-1.0, 1.0)} | illegal | draws
    assert draws or name == "ConnectFour-v0"


def test_a_full_board_without_a_line_is_a_draw_in_connect_four() -> None:
    env, rules = make_multi("ConnectFour-v0").env, RULES["ConnectFour-v0"]
    columns = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3]
    columns += [4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6]
    state = env.reset(jax.random.key(0), None)[0]
    step_env, step = jax.jit(env.step), None
    for count, column in enumerate(columns):
        actions = dict.fromkeys(PLAYERS, jnp.int32(column))
        state, step = step_env(jax.random.key(0), state, actions, None)
        assert bool(step.terminated["__all__"]) == (count == rules.rows * rules.columns - 1)
    assert step is not None
    assert [float(step.reward[player]) for player in PLAYERS] == [0.0, 0.0]
    assert not step.obs["player_0"]["action_mask"].any()


@pytest.mark.parametrize("name", NAMES)
def test_every_position_is_that_of_pgx(name: str) -> None:
    """In pgx, an illegal move pays the other player 1, and a finished game allows all moves."""
    pgx = pytest.importorskip("pgx")
    theirs: Any = pgx.make({"TicTacToe-v0": "tic_tac_toe", "ConnectFour-v0": "connect_four"}[name])
    games, _, steps = replay(name, 0.08)
    state = jax.vmap(theirs.init)(jax.random.split(jax.random.key(0), NUMBER))
    state = state.replace(current_player=jnp.asarray(games.mover[0], jnp.int32))
    step_theirs = jax.jit(jax.vmap(theirs.step))
    for t, live in enumerate(games.live):
        mover = np.asarray(state.current_player)
        mask = np.asarray(state.legal_action_mask)
        is_illegal = ~mask[np.arange(NUMBER), games.move[t]]
        state = step_theirs(state, jnp.asarray(games.move[t], jnp.int32))
        over, rewards = np.asarray(state.terminated), np.asarray(state.rewards)
        assert (over == steps.terminated["__all__"][t])[live].all()
        for seat, player in enumerate(PLAYERS):
            other_is_paid = is_illegal & (mover != seat)
            wanted = np.where(other_is_paid, 0.0, rewards[:, seat])
            assert (wanted == steps.reward[player][t])[live].all()
            seen = live & ~is_illegal & (np.asarray(state.current_player) == seat)
            ours = steps.obs[player]
            assert (np.asarray(state.observation) == ours["obs"][t])[seen].all()
            legal = np.asarray(state.legal_action_mask)
            assert (legal == ours["action_mask"][t])[seen & ~over].all()


@pytest.mark.representatives("TicTacToe-v0")
@pytest.mark.parametrize("name", NAMES)
def test_random_play_goes_on_after_the_end(name: str) -> None:
    made = make_multi(name)
    actions = dict.fromkeys(PLAYERS, jnp.zeros((8,), jnp.int32))
    states, steps, _ = run(
        MultiVectorEnv(made.env), made.params, actions, index=np.arange(8), steps=40
    )
    assert steps.ended.sum() > 8
    assert (states.acts["player_0"] ^ states.acts["player_1"]).all()
    first = states.acts["player_0"][1:][steps.ended[:-1]]
    assert 0 < first.mean() < 1  # who begins is drawn again


def test_pictures_show_stones_where_they_lie() -> None:
    env = make_multi("TicTacToe-v0").env
    words = jnp.array([0b000000001, 0b100000000], jnp.uint16)  # of who moves next, top left
    for mover in (0, 1):
        picture = env.render(BoardState(stones=words, mover=jnp.int32(mover)), None)
        assert (picture.shape, picture.dtype) == ((192, 192, 3), np.uint8)
        cells = picture.reshape(3, 64, 3, 64, 3).transpose(0, 2, 1, 3, 4)[:, :, 4:60, 4:60]
        is_blank = (cells == 255).all(axis=(2, 3, 4))
        assert is_blank.tolist() == [[False, True, True], [True] * 3, [True, True, False]]
        cross = cells[0, 0] if mover == 0 else cells[2, 2]
        assert (cross[28, 28] != 255).any()  # noughts have a hole
        nought = cells[2, 2] if mover == 0 else cells[0, 0]
        assert (nought[28, 28] == 255).all()
    env = make_multi("ConnectFour-v0").env
    stones = np.zeros((2, 6), np.uint8)
    stones[0, 5], stones[1, 5], stones[1, 4] = 0b1, 0b1000000, 0b1
    picture = env.render(BoardState(stones=jnp.asarray(stones), mover=jnp.int32(0)), None)
    assert (picture.shape, picture.dtype) == ((288, 336, 3), np.uint8)
    middles = picture[24::48, 24::48]
    assert tuple(middles[5, 0]) == (220, 50, 40)
    assert tuple(middles[5, 6]) == tuple(middles[4, 0]) == (245, 210, 60)
    assert (middles == 255).all(axis=-1).sum() == 39
