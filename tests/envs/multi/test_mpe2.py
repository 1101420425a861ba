"""Particle tasks step for step against the package that publishes them, where it is installed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import make_multi
from jaxrl.envs.multi.base import get_entries

pytest.importorskip("mpe2", reason="needs mpe2, which the project does not install")
pytestmark = pytest.mark.allow_key_reuse

NUM_EPISODES = 20


def make_theirs(env_id: str, continuous: bool) -> Any:
    from mpe2 import (  # pyright: ignore[reportMissingImports]
        simple_speaker_listener_v4,
        simple_spread_v3,
        simple_tag_v3,
    )

    module = {
        "SimpleSpread-v0": simple_spread_v3,
        "SpeakerListener-v0": simple_speaker_listener_v4,
        "SimpleTag-v0": simple_tag_v3,
    }[env_id]
    return module.parallel_env(continuous_actions=continuous)


def place(world: Any, state: Any) -> None:
    """Put their bodies where ours are, at rest, and give the speaker the same goal."""
    bodies = getattr(state, "bodies", state)
    places = [*np.asarray(bodies.position), *np.asarray(bodies.fixed)]
    things = [thing for thing in world.entities if thing.movable]
    things += [thing for thing in world.entities if not thing.movable]
    for thing, position in zip(things, places, strict=True):
        thing.state.p_pos = position.astype(np.float64)
        thing.state.p_vel = np.zeros(2)
    if hasattr(state, "goal"):
        world.agents[0].goal_b = world.landmarks[int(state.goal)]


def agents_of(env: Any, tree: dict[str, Any]) -> dict[str, Any]:
    return {
        agent: tree[entry.key][index] if entry.is_kind else tree[entry.key]
        for entry in get_entries(env)
        for index, agent in enumerate(entry.agents)
    }


@pytest.mark.representatives("SpeakerListener-v0-True", "SimpleTag-v0-False")
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("env_id", ["SimpleSpread-v0", "SpeakerListener-v0", "SimpleTag-v0"])
def test_whole_episodes_are_the_packages(env_id: str, continuous: bool) -> None:
    made, theirs = (
        make_multi(env_id, {"continuous_actions": continuous}),
        make_theirs(env_id, continuous),
    )
    env, params = made.env, made.params
    reset, step_env = jax.jit(env.reset), jax.jit(env.step)
    rng, seen_rewards = np.random.default_rng(0), set()
    assert tuple(theirs.possible_agents) == env.possible_agents
    for agent in env.possible_agents:
        assert theirs.observation_space(agent) == env.observation_space(agent, params)
        assert theirs.action_space(agent).shape == env.action_space(agent, params).shape
    for episode in range(NUM_EPISODES):
        state, _ = reset(jax.random.key(episode), params)
        theirs.reset(seed=episode)
        raw = theirs.unwrapped
        place(raw.world, state.inner)
        for t in range(25):
            actions: dict[str, Any] = {}
            for agent in env.possible_agents:
                space: Any = env.action_space(agent, params)
                actions[agent] = (
                    rng.uniform(0, 1, space.shape).astype(np.float32)
                    if continuous
                    else int(rng.integers(space.n))
                )
            ours = {
                entry.key: jnp.stack([jnp.asarray(actions[a]) for a in entry.agents])
                if entry.is_kind
                else jnp.asarray(actions[entry.key])
                for entry in get_entries(env)
            }
            state, step = step_env(jax.random.key(0), state, ours, params)
            obs, rewards, terminated, truncated, _ = theirs.step(actions)
            got, paid = agents_of(env, step.obs), agents_of(env, step.reward)
            for agent in env.possible_agents:
                # Errors of rounding grow along an episode, most where bodies touch.
                np.testing.assert_allclose(got[agent], obs[agent], rtol=1e-5, atol=2e-5)
                np.testing.assert_allclose(paid[agent], rewards[agent], rtol=1e-5, atol=5e-5)
                seen_rewards.add(round(rewards[agent], 3))
            np.testing.assert_allclose(
                env.global_state(state, params), raw.state(), rtol=1e-5, atol=2e-5
            )
            assert set(truncated.values()) == {bool(step.truncated["__all__"])} == {t == 24}
            assert set(terminated.values()) == {bool(step.terminated["__all__"])} == {False}
    assert len(seen_rewards) > 20
