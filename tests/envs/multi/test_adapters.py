"""Environments of pgx and JaxMARL through their adapters, against the packages' own functions."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.core.types import PyTree
from jaxrl.envs import make_multi
from jaxrl.envs.contract import check_signatures
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.registry import is_multi_agent_spec
from jaxrl.errors import EnvError, JaxrlError, UnknownNameError

pytestmark = pytest.mark.allow_key_reuse


def import_package(name: str) -> Any:
    pytest.importorskip(name)
    return importlib.import_module(name)


@pytest.mark.parametrize("game", ["tic_tac_toe", "kuhn_poker"])
def test_games_are_pgxs_own_in_every_position(game: str) -> None:
    """Random games of 64 copies, with an illegal action now and then."""
    pgx = import_package("pgx")
    env, own = make_multi(f"pgx:{game}").env, pgx.make(game)
    check_signatures(make_multi(f"pgx:{game}"))
    keys = jax.random.split(jax.random.key(1), 64)
    words = jax.vmap(jax.random.key_data)(keys)
    with jax.numpy_rank_promotion("allow"):
        wanted, play = jax.jit(jax.vmap(own.init))(words), jax.jit(jax.vmap(own.step))
        state, start = jax.jit(jax.vmap(lambda key: env.reset(key, None)))(keys)
        step = jax.jit(jax.vmap(lambda key, state, act: env.step(key, state, act, None)))
        obs, acts, rng, ended = start.obs, start.acts, np.random.default_rng(0), 0
        for _ in range(12):
            for i, agent in enumerate(env.possible_agents):
                np.testing.assert_array_equal(acts[agent], wanted.current_player == i)
                mask = np.asarray(wanted.legal_action_mask)
                np.testing.assert_array_equal(obs[agent]["action_mask"], mask)
                np.testing.assert_array_equal(obs[agent]["obs"], wanted.observation)
            scores = rng.random(mask.shape) * np.where(rng.random(mask.shape) < 0.9, mask, 0.5)
            action = scores.argmax(axis=1).astype(np.int32)
            garbage = rng.integers(0, mask.shape[1], 64).astype(np.int32)
            chosen = {
                a: jnp.where(wanted.current_player == i, action, garbage)
                for i, a in enumerate(env.possible_agents)
            }
            state, result = step(keys, state, chosen)
            wanted = play(wanted, action, words)
            obs, acts = result.obs, result.acts
            for i, agent in enumerate(env.possible_agents):
                np.testing.assert_array_equal(result.reward[agent], wanted.rewards[:, i])
            np.testing.assert_array_equal(result.terminated[ALL], wanted.terminated)
            ended = int(wanted.terminated.sum())
        assert ended > 32


def step_both(name: str, num_steps: int) -> tuple[Any, list[PyTree], list[PyTree]]:
    """Return an adapter, its steps, and those of JaxMARL, for the same keys and actions."""
    jaxmarl = import_package("jaxmarl")
    env, own = make_multi(f"jaxmarl:{name}").env, jaxmarl.make(name)
    key = jax.random.key(3)
    with jax.numpy_rank_promotion("allow"):
        state, _ = jax.jit(lambda key: env.reset(key, None))(key)
        _, wanted = jax.jit(own.reset)(jax.random.key_data(key))
        step, play = jax.jit(lambda *args: env.step(*args, None)), jax.jit(own.step_env)
        found, expected = [], []
        for number in range(num_steps):
            draw = jax.random.fold_in(key, number)
            actions = {
                agent: jnp.asarray(number % env.action_space(agent, None).n, jnp.int32)
                for agent in env.possible_agents
            }
            state, result = step(draw, state, actions)
            obs, wanted, *rest = play(jax.random.key_data(draw), wanted, actions)
            found.append(result)
            expected.append((obs, *rest))
    return env, found, expected


@pytest.mark.parametrize("name", ["MPE_simple_speaker_listener_v4"])
def test_steps_are_jaxmarls_own_and_truncate_at_its_limit(name: str) -> None:
    env, found, expected = step_both(name, 30)
    check_signatures(make_multi(f"jaxmarl:{name}"))
    for result, (obs, rewards, dones, _) in zip(found, expected, strict=True):
        for agent in env.possible_agents:
            observed = result.obs[agent]
            observed = observed["obs"] if isinstance(observed, dict) else observed
            np.testing.assert_allclose(observed, obs[agent], rtol=1e-6)
            np.testing.assert_allclose(result.reward[agent], rewards[agent], rtol=1e-6)
        assert not result.terminated[ALL]
        assert bool(result.truncated[ALL]) == bool(dones["__all__"])
    assert any(bool(dones["__all__"]) for _, _, dones, _ in expected)


def test_what_ends_at_the_limit_may_count_as_terminated() -> None:
    import_package("jaxmarl")
    name = "jaxmarl:MPE_simple_speaker_listener_v4"
    made = make_multi(name)
    assert "max_steps=25 is truncated" in made.notes[0]
    assert made.max_episode_steps == 25  # so that nobody says that there is no limit
    assert make_multi(name).env == made.env
    other = make_multi(name, {"truncate_at_max_steps": False})
    assert not other.notes
    assert other.max_episode_steps is None
    assert other.env != made.env
    with pytest.raises(EnvError, match=r"truncate_at_max_steps=1 must be True or False"):
        make_multi(name, {"truncate_at_max_steps": 1})


def test_the_dead_take_no_part_and_the_world_is_the_global_state() -> None:
    import_package("jaxmarl")
    env = make_multi("jaxmarl:HeuristicEnemySMAX", {"scenario": None, "num_allies": 2}).env
    space = env.state_space(None)
    assert space is not None
    state, start = jax.jit(lambda key: env.reset(key, None))(jax.random.key(0))
    assert env.global_state(state, None).shape == space.shape
    assert start.obs["ally_0"]["action_mask"].dtype == np.int8
    assert all(bool(flag) for flag in start.acts.values())


@pytest.mark.slow
@pytest.mark.parametrize("env", ["pgx:tic_tac_toe", "jaxmarl:MPE_simple_spread_v3"])
def test_they_are_trained_in_the_compiled_program(env: str) -> None:
    import_package(env.split(":")[0])
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=16)
    config.training(train_batch_size=512, minibatch_size=128).debugging(loggers=[])
    with config.build() as algorithm:
        result = algorithm.train()
    assert result["env_runners"]["num_episodes"] > 0
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])


BAD: dict[str, tuple[str, dict[str, Any], type[JaxrlError], str]] = {
    "a game": ("pgx:conect_four", {}, UnknownNameError, "Did you mean 'connect_four'"),
    "an argument of pgx": ("pgx:connect_four", {"size": 3}, EnvError, r"'size': 3"),
    "an environment": ("jaxmarl:MPE_simple_spred_v3", {}, UnknownNameError, "MPE_simple_spread_v3"),
    "an argument of JaxMARL": ("jaxmarl:coin_game", {"size": 3}, EnvError, r"'size': 3"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_one_sentence(case: str) -> None:
    spec, arguments, kind, message = BAD[case]
    import_package(spec.split(":")[0])
    assert is_multi_agent_spec(spec)
    with pytest.raises(kind, match=message):
        make_multi(spec, arguments)


def test_games_of_pgx_have_no_time_limit() -> None:
    import_package("pgx")
    with pytest.raises(EnvError, match=r"max_episode_steps=9 cannot truncate pgx:tic_tac_toe"):
        make_multi("pgx:tic_tac_toe", max_episode_steps=9)
