"""The task of three parts and the minefield: their contracts, and what their rewards mean."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.minefield import CRASH_REWARD, Minefield, MinefieldParams
from jaxrl.envs.three_parts import SIDE, HostThreeParts, ThreeParts, ThreePartsParams, right_action
from jaxrl.testing import check_env


@pytest.mark.filterwarnings("ignore:.*every episode terminated after 10 steps")
@pytest.mark.parametrize("name", ["three-parts-v0", "minefield-v0", "jaxrl:three-parts-host-v0"])
def test_contract(name: str) -> None:
    check_env(name, num_steps=12)


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
