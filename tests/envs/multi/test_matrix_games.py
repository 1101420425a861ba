"""Matrix games: what the papers' tables say, and what sums over agents make of them."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import group_agents, make, make_multi
from jaxrl.envs.multi.matrix_games import AGENTS, MatrixGameState
from jaxrl.testing import check_env

pytestmark = pytest.mark.allow_key_reuse

NAMES = ("TwoStep-v0", "TwoStepAnd-v0", "Climb-v0")


@pytest.mark.filterwarnings("ignore:.*does not depend on the key")
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    check_env(name, num_steps=6)


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
