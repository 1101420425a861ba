"""Matrix games: what the papers' tables say, and what sums over agents make of them."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import group_agents, make, make_multi
from jaxrl.envs.multi.board import PLAYERS, BoardState
from jaxrl.envs.multi.matrix_games import AGENTS, MatrixGameState
from jaxrl.envs.multi.opponents import AlwaysSame, BeatLast
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.errors import EnvError
from tests.envs.multi.board_reference import RULES, Games, find_legal, play_random_games
from tests.envs.test_vectors import run

pytestmark = pytest.mark.allow_key_reuse

NAMES = ("TwoStep-v0", "TwoStepAnd-v0", "Climb-v0")


@functools.cache
def compiled(name: str) -> Any:
    made = make_multi(name)
    return made, jax.jit(made.env.step)


def play(name: str, *joint_actions: tuple[int, int]) -> list[float]:
    """Pay of both at each step of an episode, which must end with the last one."""
    made, step_env = compiled(name)
    env = made.env
    state, start = env.reset(jax.random.key(0), made.params)
    assert all(bool(acts) for acts in start.acts.values())
    paid: list[float] = []
    for count, joint in enumerate(joint_actions):
        actions = dict(zip(AGENTS, map(jnp.int32, joint), strict=True))
        state, step = step_env(jax.random.key(0), state, actions, made.params)
        assert step.reward["agent_0"] == step.reward["agent_1"]
        for agent in AGENTS:
            np.testing.assert_array_equal(step.obs[agent], env.global_state(state, made.params))
        assert bool(step.terminated["__all__"]) == (count == len(joint_actions) - 1)
        paid.append(float(step.reward["agent_0"]))
    return paid


def test_the_two_step_game_is_that_of_the_paper() -> None:
    table = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 1.0, (1, 1): 8.0}
    for first, second in itertools.product((0, 1), repeat=2):
        for joint, paid in table.items():
            assert play("TwoStep-v0", (first, second), joint) == [0.0, paid if first else 7.0]


def test_only_one_of_sixteen_joint_actions_is_paid_more() -> None:
    for first, joint in itertools.product(range(4), itertools.product(range(4), repeat=2)):
        risky = 8.0 if joint == (3, 3) else 0.0
        paid = play("TwoStepAnd-v0", (first, 0), joint)
        assert paid == [0.0, risky if first >= 2 else 7.0]


def test_the_climbing_game_is_that_of_the_paper() -> None:
    table = [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]
    for one, other in itertools.product(range(3), repeat=2):
        assert play("Climb-v0", (one, other)) == [table[one][other]]


@pytest.mark.parametrize("name", ["TwoStep-v0", "TwoStepAnd-v0"])
def test_a_sum_over_agents_values_the_risky_table_below_seven(name: str) -> None:
    env = make_multi(name).env
    number = env.action_space("agent_0", None).n  # pyright: ignore
    rows = [
        (*np.eye(number)[one], *np.eye(number)[other])
        for one, other in itertools.product(range(number), repeat=2)
    ]
    payoffs = [
        play(name, (number - 1, 0), joint)[1]
        for joint in itertools.product(range(number), repeat=2)
    ]
    fitted = np.array(rows) @ np.linalg.lstsq(np.array(rows), np.array(payoffs), rcond=None)[0]
    assert max(payoffs) == 8.0
    assert fitted.max() < 7.0  # 6.5 in the paper
    if name == "TwoStep-v0":
        assert fitted.max() == pytest.approx(6.5)


def test_the_state_tells_which_table_is_played() -> None:
    made = make_multi("TwoStep-v0")
    space = made.env.state_space(made.params)
    for table in range(3):
        state = MatrixGameState(table=jnp.int32(table))
        value = np.asarray(made.env.global_state(state, made.params))
        assert space is not None
        assert space.contains(value)
        assert value.tolist() == np.eye(3)[table].tolist()


def test_the_team_is_one_agent_of_a_group() -> None:
    team = make(group_agents("TwoStepAnd-v0", {"both": AGENTS}, "mean"))
    assert team.spaces[0].shape == (2, 3)
    assert team.spaces[1].nvec.tolist() == [4, 4]  # pyright: ignore


def test_pictures_show_payoffs() -> None:
    env = make_multi("Climb-v0").env
    picture = env.render(MatrixGameState(table=jnp.int32(0)), None)
    assert (picture.shape, picture.dtype) == ((144, 144, 3), np.uint8)
    cells = picture[24::48, 24::48].astype(int)
    redness = cells[..., 0] - cells[..., 1]
    assert redness[0, 1] == redness[1, 0] == redness.max() > 100
    assert redness[0, 0] == redness.min() < 0
    assert redness[0, 2] == 0


# --- rock, paper, scissors ---


ROCK, PAPER, SCISSORS = 0, 1, 2
WINS = {(PAPER, ROCK), (SCISSORS, PAPER), (ROCK, SCISSORS)}


@pytest.mark.parametrize("num_games", [1, 3])
def test_rounds_are_those_of_the_table(num_games: int) -> None:
    made = make_multi("RockPaperScissors-v0", {"num_games": num_games, "num_rounds": 12})
    env, rng = made.env, np.random.default_rng(0)
    assert env.possible_agents == tuple(f"player_{i}" for i in range(2 * num_games))
    state, start = env.reset(jax.random.key(0), made.params)
    assert all(int(obs) == 3 for obs in start.obs.values())
    step_env = jax.jit(env.step)
    met = set()
    for count in range(12):
        moves = rng.integers(0, 3, 2 * num_games)
        actions = {f"player_{i}": jnp.int32(move) for i, move in enumerate(moves)}
        state, step = step_env(jax.random.key(0), state, actions, made.params)
        for i, move in enumerate(moves):
            other = moves[i + 1 if i % 2 == 0 else i - 1]
            pair = int(move), int(other)
            met.add(pair)
            assert int(step.obs[f"player_{i}"]) == other
            paid = 1.0 if pair in WINS else -1.0 if pair[::-1] in WINS else 0.0
            assert float(step.reward[f"player_{i}"]) == paid
        assert bool(step.terminated["__all__"]) == (count == 11)
        assert not step.truncated["__all__"]
    assert len(met) == 9


def test_an_episode_has_ten_rounds() -> None:
    made = make_multi("RockPaperScissors-v0")
    actions = {"player_0": jnp.full((4,), PAPER), "player_1": jnp.full((4,), ROCK)}
    _, steps, _ = run(MultiVectorEnv(made.env), made.params, actions, index=np.arange(4), steps=30)
    assert np.flatnonzero(steps.ended[:, 0]).tolist() == [9, 19, 29]
    assert (steps.agent_return["player_0"][9::10] == 10.0).all()
    assert (steps.agent_return["player_1"][9::10] == -10.0).all()


@pytest.mark.parametrize("arguments", [{"num_rounds": 0}, {"num_games": True}, {"num_games": 1.5}])
def test_wrong_numbers_are_refused(arguments: dict[str, Any]) -> None:
    name, value = next(iter(arguments.items()))
    with pytest.raises(EnvError, match=f"{name}={value} must be an integer of at least 1"):
        make_multi("RockPaperScissors-v0", arguments)


def test_pictures_show_both_moves() -> None:
    env = make_multi("RockPaperScissors-v0", {"num_games": 2}).env
    state, _ = env.reset(jax.random.key(0), None)
    assert (env.render(state, None) == 255).all()
    picture = env.render(replace(state, moves=jnp.array([ROCK, PAPER, SCISSORS, 3])), None)
    assert (picture.shape, picture.dtype) == ((192, 192, 3), np.uint8)
    assert tuple(picture[48, 48]) == (120, 120, 120)
    assert tuple(picture[48, 144]) == (70, 130, 200)
    cells = picture.reshape(2, 96, 2, 96, 3).transpose(0, 2, 1, 3, 4)
    red = (cells == np.array((200, 60, 50))).all(axis=-1).any(axis=(2, 3))
    assert red.tolist() == [[False, False], [True, False]]
    assert (cells[1, 1] == 255).all()


# --- players written by hand ---


def play_rounds(module_class: type[Any], seen: list[int], number: int = 300) -> np.ndarray:
    """Moves `[number, rounds]` of a player that sees the same moves in every copy of a game."""
    env = make_multi("RockPaperScissors-v0").env
    module = module_class(
        observation_space=env.observation_space("player_0", None),
        action_space=env.action_space("player_0", None),
    )
    carry, moves = module.initial_carry(number), []
    for index, move in enumerate(seen):
        obs = jax.nn.one_hot(jnp.full((number,), move), 4)
        draws = module.draw(jax.random.split(jax.random.key(index), number))
        out = module.forward_inference({}, obs, carry, draws=draws)
        carry = out["state_out"]
        moves.append(np.asarray(out["actions"]))
    return np.stack(moves, axis=1)


def test_always_same_draws_one_move_for_an_episode() -> None:
    moves = play_rounds(AlwaysSame, [3, 0, 1, 2])
    assert (moves == moves[:, :1]).all()
    assert (np.bincount(moves[:, 0], minlength=3) > 70).all()


def test_beat_last_beats_the_last_move() -> None:
    moves = play_rounds(BeatLast, [3, ROCK, PAPER, SCISSORS])
    assert (np.bincount(moves[:, 0], minlength=3) > 70).all()
    assert (moves[:, 1:] == [PAPER, SCISSORS, ROCK]).all()


# --- ticTacToe and Connect Four: every position of random games, against plain NumPy and pgx ---


BOARDS = list(RULES)
NUMBER = 1500


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


@pytest.mark.parametrize("name", BOARDS)
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


@pytest.mark.parametrize("name", BOARDS)
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
@pytest.mark.parametrize("name", BOARDS)
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
