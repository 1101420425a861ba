"""Environments with goals: their contracts and rules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import make
from jaxrl.envs.frozen_lake import CELL_PIXELS, COLORS, FrozenLake, FrozenLakeParams
from jaxrl.envs.goals import BitFlip, BitFlipParams, PointReach, PointReachParams
from jaxrl.envs.minefield import CRASH_REWARD, Minefield, MinefieldParams
from jaxrl.envs.three_parts import SIDE, HostThreeParts, ThreeParts, ThreePartsParams, right_action
from jaxrl.errors import EnvError
from jaxrl.testing import check_env


def test_bits_are_flipped_until_they_are_the_goal() -> None:
    env, params, key = BitFlip(4), BitFlipParams(), jax.random.key(1)
    state, obs = env.reset(key, params)
    wrong = np.flatnonzero(np.asarray(obs["observation"] != obs["desired_goal"]))
    assert len(wrong) > 1
    for left, bit in zip(range(len(wrong) - 1, -1, -1), wrong, strict=True):
        state, step = env.step(key, state, jnp.int32(bit), params)
        assert (step.reward, step.terminated) == ((0, True) if left == 0 else (-1, False))
        assert (step.obs["achieved_goal"] != step.obs["desired_goal"]).sum() == left
    assert make("BitFlip-v0", {"num_bits": 7}).max_episode_steps == 7
    with pytest.raises(EnvError, match="num_bits=0 must be an integer of at least 1"):
        make("BitFlip-v0", {"num_bits": 0})


def test_a_point_that_brakes_stays_at_the_goal_and_goes_on() -> None:
    env, params = PointReach(), PointReachParams()
    step = jax.jit(env.step)
    state, obs = env.reset(jax.random.key(0), params)
    rewards, start = [], np.asarray(obs["achieved_goal"])
    for _ in range(50):
        away = obs["desired_goal"] - obs["achieved_goal"] - 0.5 * obs["observation"][2:]
        state, out = step(jax.random.key(0), state, 20.0 * away, params)
        obs = out.obs
        rewards.append(float(out.reward))
        assert not out.terminated
    assert np.linalg.norm(start - np.asarray(obs["desired_goal"])) > 0.1
    assert set(rewards) == {-1.0, 0.0}
    assert rewards[-10:] == [0.0] * 10


class Lenient(BitFlip):
    """Steps that end sooner than is recomputed."""

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        after, step = super().step(key, state, action, params)
        return after, replace(step, terminated=jnp.ones((), bool))


def test_rewards_that_are_not_those_of_steps_are_told() -> None:
    with pytest.raises(EnvError, match="gives terminated=False for the goals of a step whose term"):
        check_env(Lenient(), num_steps=4, check_auto_reset=False)


# --- the task of three parts and the minefield: their contracts, and what their rewards mean ---


def code_of(obs: Any) -> tuple[int, int, int]:
    """The digits, read from what is seen."""
    image = np.asarray(obs["image"], int)
    first = int(image[SIDE // 2 :].sum() > image[: SIDE // 2].sum())
    return first, int(np.sum(obs["vector"]) > 0), int(obs["choice"])


def test_reading_all_three_parts_earns_everything() -> None:
    env, key = ThreeParts(), jax.random.key(0)
    step = jax.jit(env.step)
    state, obs = env.reset(key, ThreePartsParams())
    codes, total = set(), 0.0
    for t in range(10):
        code = code_of(obs)
        codes.add(code)
        key = jax.random.fold_in(key, t)
        action = jnp.int32(right_action(*code))
        state, out = step(key, state, action, ThreePartsParams())
        obs, total = out.obs, total + float(out.reward)
    assert total == 10.0
    assert out.terminated
    assert len(codes) > 4


def test_the_host_env_has_the_same_rules() -> None:
    env = HostThreeParts()
    obs, _ = env.reset(seed=0)
    for step in range(10):
        assert env.observation_space.contains(obs)
        obs, reward, terminated, _, _ = env.step(right_action(*code_of(obs)))
        assert reward == 1.0
        assert terminated == (step == 9)
    assert sum(env.step((right_action(*code_of(obs)) + 1) % 4)[1] for _ in range(1)) == 0.0


def test_who_misses_a_part_earns_at_most_half() -> None:
    codes = np.array([(a, b, c) for a in range(2) for b in range(2) for c in range(3)])
    right = right_action(*codes.T)
    for missing in range(3):
        seen = np.delete(codes, missing, axis=1)
        best = 0.0
        for row in np.unique(seen, axis=0):
            same = right[(seen == row).all(axis=1)]
            best += np.bincount(same).max() / len(codes)
        assert best <= 0.5


def test_mines_crash_and_safe_doors_pay() -> None:
    env, params = Minefield(), MinefieldParams()
    state, obs = env.reset(jax.random.key(0), params)
    assert int(obs["action_mask"].sum()) == 4
    step = jax.jit(env.step)
    for door in range(8):
        _, out = step(jax.random.key(1), state, jnp.int32(door), params)
        safe = bool(obs["action_mask"][door])
        assert float(out.reward) == (float(obs["pay"][door]) if safe else CRASH_REWARD)
        assert bool(out.terminated) != safe


# --- the frozen lake: its contract, its rules, and its size, which changes without compiling ---


LEFT, DOWN, RIGHT, UP = range(4)


@pytest.fixture(scope="module")
def step() -> Any:
    return jax.jit(FrozenLake().step)


def lake(size: int, **params: float) -> FrozenLakeParams:
    return FrozenLakeParams(
        size=np.asarray(size, np.int32),
        **{name: np.asarray(value, np.float32) for name, value in params.items()},
    )


def test_every_lake_can_be_crossed() -> None:
    """Also with holes wherever there may be one: what is left is one shortest path."""
    env = FrozenLake(max_size=9)
    sizes = jnp.repeat(jnp.arange(2, 10), 25)
    keys = jax.random.split(jax.random.key(0), len(sizes))
    ends = FrozenLakeParams(size=sizes, hole_probability=jnp.ones_like(sizes, jnp.float32))
    axes = FrozenLakeParams(size=0, hole_probability=0, slip_probability=None)  # pyright: ignore[reportArgumentType]
    state, _ = jax.vmap(env.reset, (0, axes))(keys, ends)
    paths = set()
    for holes, size in zip(np.asarray(state.holes), np.asarray(sizes), strict=True):
        free = np.argwhere(~holes)
        assert len(free) == 2 * size - 1
        free = free[np.argsort(free.sum(axis=1))]
        assert free[0].tolist() == [0, 0]
        assert free[-1].tolist() == [size - 1, size - 1]
        assert (np.abs(np.diff(free, axis=0)).sum(axis=1) == 1).all()
        paths.add(holes.tobytes())
    assert len(paths) > 120  # there are only 2 of size 2, and 6 of size 3


@pytest.mark.allow_key_reuse  # nothing is drawn without slips
def test_moves_ends_and_rewards(step: Any) -> None:
    params, key = lake(3), jax.random.key(0)
    state, _ = FrozenLake().reset(key, params)
    state = replace(state, holes=jnp.zeros_like(state.holes).at[1, 1].set(True))
    for action, place in ((UP, [0, 0]), (LEFT, [0, 0]), (DOWN, [1, 0]), (DOWN, [2, 0])):
        state, out = step(key, state, jnp.int32(action), params)
        assert state.position.tolist() == place
        assert (float(out.reward), bool(out.terminated)) == (0.0, False)
    _, fallen = step(key, replace(state, position=jnp.array([1, 0])), jnp.int32(RIGHT), params)
    assert (float(fallen.reward), bool(fallen.terminated)) == (0.0, True)
    state, _ = step(key, state, jnp.int32(RIGHT), params)
    state, out = step(key, state, jnp.int32(RIGHT), params)
    assert (float(out.reward), bool(out.terminated)) == (1.0, True)
    # On a larger lake, the same cell is a place like any other.
    _, out = step(key, replace(state, position=jnp.array([2, 1])), jnp.int32(RIGHT), lake(4))
    assert (float(out.reward), bool(out.terminated)) == (0.0, False)


def test_slips_go_to_either_side(step: Any) -> None:
    params, start = lake(9, slip_probability=0.5), jnp.array([4, 4])
    state, _ = FrozenLake().reset(jax.random.key(0), params)
    state = replace(state, position=start, holes=jnp.zeros_like(state.holes))
    keys = jax.random.split(jax.random.key(1), 2000)
    after, _ = jax.vmap(step, (0, None, None, None))(keys, state, jnp.int32(DOWN), params)
    moves, counts = np.unique(np.asarray(after.position) - 4, axis=0, return_counts=True)
    assert moves.tolist() == [[0, -1], [0, 1], [1, 0]]
    assert np.abs(counts / 2000 - [0.25, 0.25, 0.5]).max() < 0.05


def test_the_agent_sees_holes_edges_and_the_way() -> None:
    env, params = FrozenLake(), lake(5)
    state, _ = env.reset(jax.random.key(0), params)
    holes = jnp.zeros_like(state.holes).at[0, 3].set(True).at[9, 9].set(True)
    obs = np.asarray(env.observe(replace(state, holes=holes, position=jnp.array([1, 3])), params))
    seen, outside = obs[:25].reshape(5, 5), obs[25:50].reshape(5, 5)
    assert np.argwhere(seen).tolist() == [[1, 2]]
    assert outside[0].all()
    assert outside[:, 4].all()
    assert outside.sum() == 9
    assert obs[50:].tolist() == [3 / 16, 1 / 16]
    below = env.observe(replace(state, holes=holes.at[5, 3].set(True)), params)
    assert np.asarray(below)[:25].sum() <= 1  # a hole outside of the lake is not shown


def test_the_size_has_limits() -> None:
    for size in (1, 17):
        with pytest.raises(
            EnvError, match=f"'size' must be from 2 to max_size=16, got {size}; set"
        ):
            make("frozen-lake-v0", {"size": size}).spaces  # noqa: B018
    assert make("frozen-lake-v0", {"size": 20, "max_size": 20}).spaces[0].shape == (52,)
    assert int(make("frozen-lake-v0", {"max_size": 5}).params.size) == 5
    with pytest.raises(EnvError, match="max_size=1 must be an integer of at least 2"):
        make("frozen-lake-v0", {"max_size": 1})


def test_a_picture_shows_the_lake() -> None:
    env, params = FrozenLake(), lake(4)
    state, _ = env.reset(jax.random.key(0), params)
    picture = env.render(state, params)
    assert picture.shape == (4 * CELL_PIXELS, 4 * CELL_PIXELS, 3)
    assert (picture[0, 0] == COLORS[3]).all()
    assert (picture[-1, -1] == COLORS[2]).all()
