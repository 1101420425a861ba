"""Rock, paper, scissors: every round against the published table, and the players written by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import make_multi
from jaxrl.envs.multi.opponents import AlwaysSame, BeatLast
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.errors import EnvError
from jaxrl.testing import check_env
from tests.envs.multi.test_multi_vector import run

pytestmark = pytest.mark.allow_key_reuse

ROCK, PAPER, SCISSORS = 0, 1, 2
WINS = {(PAPER, ROCK), (SCISSORS, PAPER), (ROCK, SCISSORS)}


@pytest.mark.filterwarnings("ignore:.*does not depend on the key")
def test_contract() -> None:
    check_env("RockPaperScissors-v0", num_steps=12)


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


def play(module_class: type[Any], seen: list[int], number: int = 300) -> np.ndarray:
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
    moves = play(AlwaysSame, [3, 0, 1, 2])
    assert (moves == moves[:, :1]).all()
    assert (np.bincount(moves[:, 0], minlength=3) > 70).all()


def test_beat_last_beats_the_last_move() -> None:
    moves = play(BeatLast, [3, ROCK, PAPER, SCISSORS])
    assert (np.bincount(moves[:, 0], minlength=3) > 70).all()
    assert (moves[:, 1:] == [PAPER, SCISSORS, ROCK]).all()
