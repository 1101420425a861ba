"""The values that the probes promise are the returns that they pay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import TimeLimit, list_envs, make
from jaxrl.envs.probes import Probe
from jaxrl.errors import EnvError

PROBES = [name for name in list_envs() if name.startswith("jaxrl:probe-")]
GAMMA = 0.9


def probe_of(name: str) -> tuple[Probe, Any]:
    made = make(name)
    env = made.env.env if isinstance(made.env, TimeLimit) else made.env
    assert isinstance(env, Probe)
    return env, made.params


def test_there_are_five_with_both_kinds_of_action() -> None:
    continuous = [name for name in PROBES if "continuous" in name]
    assert len(continuous) == 6
    assert len(PROBES) == 15


@pytest.mark.parametrize("name", [name for name in PROBES if "recall" not in name])
def test_values_are_discounted_returns_of_the_right_actions(name: str) -> None:
    env, params = probe_of(name)
    table = env.value_table(GAMMA)
    truncates = "truncation" in name

    def discounted_return(key: Any) -> tuple[Any, Any]:
        state, first_obs = env.reset(key, params)
        total, discount = jnp.zeros(()), jnp.ones(())
        for _ in range(200 if truncates else 2):
            if table.actions is None:
                action = jnp.zeros(env.action_space(params).shape or (), jnp.int32)
            else:
                row = jnp.argmin(jnp.abs(jnp.asarray(table.obs)[:, 0] - state.obs[0]))
                action = jnp.asarray(table.actions)[row]
            state, step = env.step(jax.random.key(0), state, action, params)
            total = total + discount * step.reward
            discount = discount * GAMMA * (1.0 - step.terminated)
        return first_obs, total

    keys = jax.random.split(jax.random.key(1), 16)
    first_obs, returns = jax.jit(jax.vmap(discounted_return))(keys)
    first_obs = np.asarray(first_obs["obs"] if "mask" in name else first_obs)
    assert set(np.unique(first_obs)) <= set(table.obs[:, 0])
    for obs, value in zip(first_obs[:, 0], np.asarray(returns), strict=True):
        np.testing.assert_allclose(value, table.values[table.obs[:, 0] == obs], rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in PROBES if "action" in n or "discrete" in n])
def test_no_action_pays_more_than_the_right_one(name: str) -> None:
    env, params = probe_of(name)
    table = env.value_table(GAMMA)
    assert table.actions is not None
    space = env.action_space(params)
    space.seed(0)
    for obs, best in zip(table.obs[:, 0], table.actions, strict=True):
        pays = [float(env.reward(obs, jnp.asarray(space.sample()))) for _ in range(30)]
        assert max(pays) <= float(env.reward(obs, jnp.asarray(best))) == 1.0
        assert min(pays) < 0.9


def test_the_illegal_action_of_the_mask_probe_is_the_tempting_one() -> None:
    env, params = probe_of("jaxrl:probe-mask-v0")
    table = env.value_table(GAMMA)
    assert table.actions is not None
    seen = set()
    for seed in range(8):
        state, obs = env.reset(jax.random.key(seed), params)
        rewards = [float(env.reward(state.obs[0], jnp.int32(action))) for action in range(3)]
        assert [reward == 100.0 for reward in rewards] == [
            not legal for legal in obs["action_mask"]
        ]
        best = table.actions[table.obs[:, 0] == float(state.obs[0])].item()
        assert rewards[best] == 1.0
        seen.add(best)
    assert seen == {0, 2}


def test_the_truncation_probe_is_cut_and_never_ends() -> None:
    made = make("jaxrl:probe-truncation-v0")
    assert made.max_episode_steps == 10
    state, _ = made.env.reset(jax.random.key(0), made.params)
    for count in range(1, 13):
        state, step = made.env.step(jax.random.key(1), state, np.int32(0), made.params)
        assert not step.terminated
        assert bool(step.truncated) == (count >= 10)
        assert step.reward == 1.0
    assert make("jaxrl:probe-truncation-v0", max_episode_steps=4).max_episode_steps == 4


def test_the_recall_probe_pays_for_what_was_seen_first() -> None:
    made = make("jaxrl:probe-recall-v0", {"delay": 3})
    for seed in range(6):
        key = jax.random.key(seed)
        state, obs = made.env.reset(key, made.params)
        cue = float(obs[0])
        for t in range(4):
            action = jnp.int32(cue > 0) if t == 3 else jnp.int32(0)
            after, step = made.env.step(key, state, action, made.params)
            _, wrong = made.env.step(key, state, 1 - action, made.params)
            assert float(step.obs[0]) == 0.0  # nothing tells but the first
            assert bool(step.terminated) == (t == 3)
            assert float(step.reward) == float(t == 3)
            assert float(wrong.reward) == -float(t == 3)
            state = after
    with pytest.raises(EnvError, match="delay=0 must be a positive integer"):
        make("jaxrl:probe-recall-v0", {"delay": 0})
