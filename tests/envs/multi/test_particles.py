"""Particle tasks step for step against the published rules as NumPy loops; spaces, ends, pictures."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import MultiTimeLimit, make_multi
from jaxrl.envs.multi.base import get_entries
from jaxrl.envs.multi.particles.base import ParticleEnv
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.errors import EnvError, UnknownNameError
from tests.envs.multi import particle_reference as rules
from tests.envs.test_vectors import run
from tests.helpers import slow_but

pytestmark = pytest.mark.allow_key_reuse

IDS = ["SimpleSpread-v0", "SpeakerListener-v0", "SimpleTag-v0"]
NUM_EPISODES, NUM_STEPS = 16, 25


@functools.cache
def unwrapped(env_id: str, continuous: bool = False, **config: Any) -> tuple[Any, Any]:
    made = make_multi(env_id, {"continuous_actions": continuous, **config})
    assert isinstance(made.env, MultiTimeLimit)
    assert isinstance(made.env.env, ParticleEnv)
    return made.env.env, made.params


@functools.cache
def episodes(env_id: str, continuous: bool = False, **config: Any) -> Any:
    """States before and after, actions and steps of random episodes, `[episodes, steps, ...]`.

    Bodies begin close to one another in every other episode, so that they touch often.
    """
    env, params = unwrapped(env_id, continuous, **config)
    rng = np.random.default_rng(3)

    def sample(entry: Any) -> np.ndarray:
        shape = (NUM_EPISODES, NUM_STEPS, *entry.shape)
        space: Any = env.action_space(entry.agents[0], params)
        if continuous:
            return rng.uniform(0, 1, (*shape, *space.shape)).astype(np.float32)
        return rng.integers(space.n, size=shape).astype(np.int32)

    actions = {entry.key: sample(entry) for entry in get_entries(env)}

    @jax.jit
    def unroll(keys: Any, nearness: Any, actions: Any) -> Any:
        def one(key: Any, near: Any, actions: Any) -> Any:
            def body(state: Any, action: Any) -> Any:
                after, step = env.step(key, state, action, params)
                return after, (state, after, step, env.global_state(after, params))

            state, start = env.reset(key, params)
            bodies = getattr(state, "bodies", state)
            bodies = replace(bodies, position=near * bodies.position, fixed=near * bodies.fixed)
            state = replace(state, bodies=bodies) if hasattr(state, "bodies") else bodies
            return start, *jax.lax.scan(body, state, actions)[1]

        return jax.vmap(one)(keys, nearness, actions)

    keys = jax.random.split(jax.random.key(0), NUM_EPISODES)
    nearness = np.where(np.arange(NUM_EPISODES) % 2, 0.3, 1.0).astype(np.float32)
    return actions, *jax.device_get(unroll(keys, nearness, actions))


def by_agent(env: Any, tree: Any, episode: int, t: int) -> dict[str, Any]:
    """An entry's values in one step, by agent."""
    return {
        agent: tree[entry.key][episode, t][place] if entry.is_kind else tree[entry.key][episode, t]
        for entry in get_entries(env)
        for place, agent in enumerate(entry.agents)
    }


def places_and_speeds(bodies: Any, episode: int, t: int) -> tuple[Any, Any, Any]:
    arrays = (bodies.position, bodies.velocity, bodies.fixed)
    places, speeds, fixed = (array[episode, t].astype(np.float64) for array in arrays)
    return places, speeds, fixed


def compare(
    env: Any,
    data: Any,
    world_of: Callable[..., list[rules.Thing]],
    obs_of: Callable[..., np.ndarray],
    reward_of: Callable[..., float],
) -> np.ndarray:
    """Step the rules from each state, compare, and return all rewards `[episodes, steps, agents]`."""
    actions, _, before, after, step, state = data
    rewards = np.zeros((NUM_EPISODES, NUM_STEPS, len(env.possible_agents)))
    for episode, t in np.ndindex(NUM_EPISODES, NUM_STEPS):
        world = world_of(*places_and_speeds(before, episode, t))
        rules.move(world, by_agent(env, actions, episode, t))
        agents = rules.agents_of(world)
        assert tuple(agent.name for agent in agents) == env.possible_agents
        for own, name in (("place", "position"), ("speed", "velocity")):
            expected = np.stack([getattr(agent, own) for agent in agents])
            got = getattr(after, name)[episode, t]
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)
        # What is observed and paid in our own state, so that no rounding flips a touch.
        world = world_of(*places_and_speeds(after, episode, t))
        obs, reward = (by_agent(env, tree, episode, t) for tree in (step.obs, step.reward))
        for place, agent in enumerate(rules.agents_of(world)):
            expected = obs_of(world, agent)
            np.testing.assert_allclose(obs[agent.name], expected, rtol=1e-5, atol=1e-6)
            expected = rewards[episode, t, place] = reward_of(world, agent)
            np.testing.assert_allclose(reward[agent.name], expected, rtol=1e-5, atol=1e-6)
        everything = np.concatenate([obs[name] for name in env.possible_agents])
        np.testing.assert_array_equal(state[episode, t], everything)
    return rewards


@pytest.mark.parametrize(
    ("continuous", "count", "ratio"),
    [
        (False, 3, 0.5),
        pytest.param(True, 3, 0.5, marks=pytest.mark.slow),
        pytest.param(False, 2, 0.2, marks=pytest.mark.slow),
    ],
)
def test_spread_follows_the_rules(continuous: bool, count: int, ratio: float) -> None:
    config = {"num_agents": count, "local_ratio": ratio}
    env, _ = unwrapped("SimpleSpread-v0", continuous, **config)
    data = episodes("SimpleSpread-v0", continuous, **config)
    reward_of = functools.partial(rules.spread_reward, local_ratio=ratio)
    rewards = compare(env, data, rules.spread_world, rules.spread_obs, reward_of)
    assert np.mean(np.ptp(rewards, axis=-1) > 0) > 0.02 or count == 2  # a collision of two of three
    first = data[1].obs["agent"]
    assert np.all(first[..., :2] == 0)


@pytest.mark.parametrize(
    ("continuous", "good", "adversaries", "obstacles"),
    [
        (False, 1, 3, 2),
        pytest.param(True, 1, 3, 2, marks=pytest.mark.slow),
        pytest.param(False, 2, 2, 1, marks=pytest.mark.slow),
        pytest.param(False, 1, 1, 0, marks=pytest.mark.slow),
    ],
)
def test_tag_follows_the_rules(
    continuous: bool, good: int, adversaries: int, obstacles: int
) -> None:
    config = {"num_good": good, "num_adversaries": adversaries, "num_obstacles": obstacles}
    env, _ = unwrapped("SimpleTag-v0", continuous, **config)
    world_of = functools.partial(rules.tag_world, num_adversaries=adversaries)
    data = episodes("SimpleTag-v0", continuous, **config)
    rewards = compare(env, data, world_of, rules.tag_obs, rules.tag_reward)
    assert np.mean(rewards[..., 0] > 0) > 0.004
    assert np.mean(rewards[..., -1] % 10 > 0) > 0.004  # the price of leaving
    if not continuous:
        speed = np.linalg.norm(data[3].velocity, axis=-1)
        np.testing.assert_allclose(speed[..., 0].max(), 1.0, rtol=1e-5)
        np.testing.assert_allclose(speed[..., -1].max(), 1.3, rtol=1e-5)


@pytest.mark.parametrize("continuous", [False, True])
def test_speaker_and_listener_follow_the_rules(continuous: bool) -> None:
    env, _ = unwrapped("SpeakerListener-v0", continuous)
    actions, start, before, _, step, state = episodes("SpeakerListener-v0", continuous)
    goals = before.goal
    assert np.all(goals == goals[:, :1])
    assert set(goals[:, 0]) == {0, 1, 2}
    assert np.all(start.obs["listener_0"][:, -3:] == 0)
    for episode, t in np.ndindex(NUM_EPISODES, NUM_STEPS):
        goal, said = goals[episode, t], actions["speaker_0"][episode, t]
        places, speeds, fixed = places_and_speeds(before.bodies, episode, t)
        world = rules.speaker_world(places[0], speeds[0], fixed[1:])
        rules.move(world, {"listener_0": actions["listener_0"][episode, t]})
        message = said if continuous else np.eye(3)[said]
        heard = rules.listener_obs(world, message)
        obs, reward = (by_agent(env, tree, episode, t) for tree in (step.obs, step.reward))
        np.testing.assert_allclose(obs["speaker_0"], rules.speaker_obs(goal), rtol=1e-6)
        np.testing.assert_allclose(obs["listener_0"], heard, rtol=1e-5, atol=2e-6)
        for paid in reward.values():
            expected = rules.speaker_reward(world, goal)
            np.testing.assert_allclose(paid, expected, rtol=1e-5, atol=2e-6)
        both = np.concatenate([obs["speaker_0"], obs["listener_0"]])
        np.testing.assert_array_equal(state[episode, t], both)


@pytest.mark.parametrize("env_id", slow_but("SpeakerListener-v0", of=IDS))
def test_episodes_are_cut_after_25_steps_and_never_terminated(env_id: str) -> None:
    made = make_multi(env_id)
    vector = MultiVectorEnv(made.env, made.env.reset_mode)
    action = {entry.key: jnp.ones((4, *entry.shape), jnp.int32) for entry in get_entries(made.env)}
    _, steps, _ = run(vector, made.params, action, index=np.arange(4), steps=60)
    for name in action:
        assert not steps.terminated[name].any()
        cut = steps.truncated[name].reshape(60, 4, -1)
        np.testing.assert_array_equal(np.flatnonzero(cut.all(axis=(1, 2))), [24, 49])
        assert cut.sum() == 2 * cut[0].size
    np.testing.assert_array_equal(steps.episode_length[steps.ended], 25)


@pytest.mark.parametrize(
    ("env_id", "sizes", "total"),
    [
        ("SimpleSpread-v0", {"agent_0": 18, "agent_1": 18, "agent_2": 18}, 54),
        ("SpeakerListener-v0", {"speaker_0": 3, "listener_0": 11}, 14),
        (
            "SimpleTag-v0",
            {"adversary_0": 16, "adversary_1": 16, "adversary_2": 16, "agent_0": 14},
            62,
        ),
    ],
)
def test_spaces_are_those_of_the_published_tasks(
    env_id: str, sizes: dict[str, int], total: int
) -> None:
    env, params = unwrapped(env_id)
    assert {a: env.observation_space(a, params).shape[0] for a in env.possible_agents} == sizes
    assert env.state_space(params).shape == (total,)
    continuous, _ = unwrapped(env_id, True)
    for agent in sizes:
        count = 3 if agent == "speaker_0" else 5
        assert env.action_space(agent, params).n == count
        box = continuous.action_space(agent, params)
        assert (box.shape, box.low.min(), box.high.max()) == ((count,), 0.0, 1.0)
    teams = [agent for team in env.teams.values() for agent in team]
    assert sorted(teams) == sorted(sizes)
    assert len(env.teams) == (2 if env_id == "SimpleTag-v0" else 1)


def test_positions_begin_where_published() -> None:
    for env_id, reach in (("SimpleSpread-v0", 1.0), ("SimpleTag-v0", 0.9)):
        env, params = unwrapped(env_id)
        keys = jax.random.split(jax.random.key(2), 2000)
        state, _ = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)
        for array, limit in ((state.position, 1.0), (state.fixed, reach)):
            assert limit - 0.01 < np.abs(array).max() <= limit
            assert abs(np.mean(array)) < 0.03
            assert np.std(array) == pytest.approx(limit / np.sqrt(3), rel=0.03)


def test_strengths_outside_of_their_space_are_those_at_its_edge() -> None:
    for env_id in IDS:
        env, params = unwrapped(env_id, True)

        @jax.jit
        def arrive(strong: Any, low: Any, high: Any, env: Any = env, params: Any = params) -> Any:
            state, _ = env.reset(jax.random.key(0), params)
            actions = jax.tree.map(lambda flag: jnp.where(flag, high, low), strong)
            return env.global_state(env.step(jax.random.key(0), state, actions, params)[0], params)

        rng = np.random.default_rng(0)
        strong = {
            entry.key: rng.random((*entry.shape, *space.shape)) < 0.5
            for entry in get_entries(env)
            if (space := env.action_space(entry.agents[0], params))
        }
        np.testing.assert_array_equal(arrive(strong, -3.0, 7.0), arrive(strong, 0.0, 1.0))
        assert not np.array_equal(arrive(strong, 0.0, 0.9), arrive(strong, 0.0, 1.0))


@pytest.mark.parametrize("env_id", IDS)
def test_every_parameter_reaches_the_environment(env_id: str) -> None:
    env, params = unwrapped(env_id)

    @jax.jit
    def play(params: Any) -> Any:
        state, _ = env.reset(jax.random.key(4), params)
        bodies = getattr(state, "bodies", state)
        bodies = replace(bodies, position=0.1 * bodies.position)
        state = replace(state, bodies=bodies) if hasattr(state, "bodies") else bodies
        action = {entry.key: jnp.ones(entry.shape, jnp.int32) for entry in get_entries(env)}
        for _ in range(3):
            state, step = env.step(jax.random.key(0), state, action, params)
        return step.obs, step.reward

    usual = jax.tree.leaves(jax.device_get(play(params)))
    ignored: set[str] = set()
    for field in dataclasses.fields(params):
        changed = replace(params, **{field.name: 1.3 * getattr(params, field.name) + 0.02})
        other = jax.tree.leaves(jax.device_get(play(changed)))
        if all(np.array_equal(a, b) for a, b in zip(usual, other, strict=True)):
            ignored.add(field.name)
    touches = env_id != "SpeakerListener-v0"  # where nothing collides
    assert ignored == (set() if touches else {"contact_force", "contact_margin"})


@pytest.mark.parametrize(
    ("env_id", "config", "sentence"),
    [
        ("SimpleSpread-v0", {"num_agents": 0}, "num_agents=0 must be an integer of at least 1"),
        ("SimpleTag-v0", {"num_obstacles": -1}, "num_obstacles=-1 must be an integer of at least"),
        ("SpeakerListener-v0", {"continuous_actions": "no"}, "continuous_actions='no' must be"),
    ],
)
def test_wrong_arguments_are_refused(env_id: str, config: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        make_multi(env_id, config)
    with pytest.raises(UnknownNameError, match="has no parameter 'local_ration'"):
        make_multi(env_id, {"local_ration": 1})


@functools.cache
def first_state(env_id: str) -> Any:
    env, params = unwrapped(env_id)
    return jax.device_get(jax.jit(env.reset)(jax.random.key(0), params)[0])


def drawn(env_id: str, **changes: Any) -> np.ndarray:
    env, params = unwrapped(env_id)
    picture = env.render(replace(first_state(env_id), **changes), params)
    assert picture.shape == (400, 400, 3)
    assert picture.dtype == np.uint8
    return picture


def centre(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """x and y (up) of the pixels of exactly this colour, in the units of the world."""
    rows, columns = np.nonzero(np.all(picture == np.array(color), axis=-1))
    assert len(rows) > 0, color
    middle = np.array([columns.mean() + 0.5 - 200, 200 - rows.mean() - 0.5])
    return middle / 180


def test_bodies_are_drawn_where_they_are() -> None:
    position = np.array([[0.5, -0.4], [0.5, -0.4], [0.5, -0.4]], np.float32)
    fixed = np.array([[-0.7, 0.6], [-0.7, 0.6], [-0.7, 0.6]], np.float32)
    picture = drawn("SimpleSpread-v0", position=position, fixed=fixed)
    np.testing.assert_allclose(centre(picture, (70, 70, 170)), [0.5, -0.4], atol=0.01)
    np.testing.assert_allclose(centre(picture, (50, 50, 50)), [-0.7, 0.6], atol=0.01)
    size = np.all(picture == np.array([70, 70, 170]), axis=-1).sum()
    assert size == pytest.approx(np.pi * (0.15 * 180) ** 2, rel=0.05)
    far = drawn("SimpleSpread-v0", position=4 * position, fixed=fixed)  # a larger square
    np.testing.assert_allclose(centre(far, (70, 70, 170)), [1.0, -0.8], atol=0.01)


def test_the_picture_tells_goal_and_word() -> None:
    bodies = first_state("SpeakerListener-v0").bodies
    places = np.array([[0.0, 0.8], [-0.5, -0.5], [0.5, 0.5], [0.7, -0.6]], np.float32)
    bodies = replace(bodies, position=np.array([[-0.8, 0.1]], np.float32), fixed=places)
    word = np.array([0.0, 0.0, 1.0], np.float32)
    picture = drawn("SpeakerListener-v0", bodies=bodies, goal=np.int32(1), message=word)
    np.testing.assert_allclose(centre(picture, (120, 220, 120)), [-0.8, 0.1], atol=0.01)
    np.testing.assert_allclose(centre(picture, (30, 130, 30)), [0.5, 0.5], atol=0.01)
    blue = centre(picture, (30, 30, 130))  # the third landmark, and the word
    np.testing.assert_allclose(blue, [0.35, 0.1], atol=0.02)
    silent = drawn("SpeakerListener-v0", bodies=bodies, goal=np.int32(1), message=0 * word)
    np.testing.assert_allclose(centre(silent, (30, 30, 130)), places[3], atol=0.01)
    assert drawn("SimpleTag-v0").min() < 255
