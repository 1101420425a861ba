"""Vectors of environments of one agent and of several: ends, auto-reset, faults and statistics."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core.struct import replace
from jaxrl.envs import MultiStart, MultiStep, MultiTimeLimit, make
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.envs.vector import (
    CROWD,
    CUT_AND_ACTS,
    NO_CHOICE,
    NO_FAULT,
    OBS_FAULT,
    REWARD_FAULT,
    WAITING,
    VectorEnv,
)
from tests.envs.multi.comers import Comers
from tests.helpers import assert_equal
from tests.multi_agent.agent_envs import OneAgent

pytestmark = pytest.mark.allow_key_reuse


def run(vector: Any, params: Any, action: Any, *, index: Any, steps: int) -> Any:
    """States before each step, steps, and the last state, all in NumPy."""

    def unroll(index: jax.Array) -> Any:
        def body(state: Any, _: None) -> Any:
            inputs = jax.tree.map(lambda leaf: leaf[0], vector.make_step_inputs(state, 1, params))
            new, step = vector.step(state, action, inputs, params)
            return new, (state, step)

        start = vector.reset(jax.random.key(3), index, params)
        last, (states, rows) = jax.lax.scan(body, start, None, length=steps)
        return states, rows, last

    states, rows, last = jax.jit(unroll)(jnp.asarray(index, jnp.int32))
    wiped = [jax.tree.map(np.asarray, s) for s in (_no_key(states), rows, _no_key(last))]
    return tuple(wiped)


def _no_key(state: Any) -> Any:
    return replace(state, key=jax.random.key_data(state.key))


def play_comers(
    mode: str = "every_step", copies: int = 24, steps: int = 120, env: Any = None
) -> Any:
    env = env or MultiTimeLimit(Comers(), 17)
    vector = MultiVectorEnv(env, mode, keeps_global_state=True)  # pyright: ignore
    action = {"hermit": jnp.full(copies, 2), "crowd": jnp.ones((copies, 3), jnp.int32)}
    return run(vector, env.default_params, action, index=np.arange(copies), steps=steps)


def play_cartpoles(
    mode: str = "every_step",
    *,
    env: str = "CartPole-v1",
    index: Any = range(40),
    steps: int = 60,
    env_config: Any = None,
) -> Any:
    """Copies of an environment of one agent that is pushed to the left."""
    made = make(env, env_config or {})
    vector = VectorEnv(made.env, mode)  # pyright: ignore
    action = jnp.zeros((len(index),), jnp.int32)
    return run(vector, made.params, action, index=index, steps=steps)


@pytest.mark.parametrize("play", [play_cartpoles, play_comers])
def test_the_modes_of_auto_reset_agree_bit_for_bit(play: Any) -> None:
    every, demand = play(), play("on_demand")
    assert every[1].ended.sum() > 24
    assert_equal(every, demand)


def test_an_environment_does_the_same_in_any_company() -> None:
    together, _, _ = play_cartpoles(index=np.arange(8), steps=40)
    alone, _, _ = play_cartpoles(index=np.array([5]), steps=40)
    np.testing.assert_array_equal(together.obs[:, 5], alone.obs[:, 0])


def test_returns_and_lengths_are_those_of_the_episodes() -> None:
    _, steps, _ = play_cartpoles(index=np.arange(4), steps=80)
    for env in range(4):
        ends = np.flatnonzero(steps.ended[:, env])
        lengths = np.diff(np.concatenate([[-1], ends]))
        np.testing.assert_array_equal(steps.episode_length[ends, env], lengths)
        np.testing.assert_array_equal(steps.episode_return[ends, env], lengths)


def test_one_agent_does_what_a_single_agent_environment_does_to_the_bit() -> None:
    env = OneAgent("CartPole-v1")
    action = jnp.zeros((12,), jnp.int32)
    index, params = np.arange(12), env.default_params
    single, rows, _ = play_cartpoles(index=index, steps=60)
    multi, steps, _ = run(MultiVectorEnv(env), params, {"only": action}, index=index, steps=60)
    assert rows.ended.any()
    assert_equal(
        (single.env, single.obs, single.key, single.count, single.is_first),
        (multi.env, multi.obs["only"], multi.key, multi.count, multi.is_first["only"]),
    )
    ends = ("reward", "terminated", "truncated", "final_obs")
    for name in ends:
        assert_equal(getattr(rows, name), getattr(steps, name)["only"])
    assert_equal((rows.mask, rows.ended), (steps.mask, steps.agent_ended["only"]))
    assert_equal(
        (rows.episode_return, rows.episode_length),
        (steps.episode_return, steps.episode_length),
    )
    assert_equal(steps.episode_return, steps.agent_return["only"])


def agents_of(values: Any) -> Any:
    """An entry's arrays as one `[T, B, agents, ...]`."""
    return np.concatenate([values["hermit"][:, :, None], values["crowd"]], axis=2)


def test_presence_ends_and_statistics_follow_a_walk_over_every_copy() -> None:
    """Compare with a walk over every agent's steps in Python."""
    states, steps, _ = play_comers()
    acts, first = agents_of(states.acts), agents_of(states.is_first)
    terminated, truncated = agents_of(steps.terminated), agents_of(steps.truncated)
    present, reward = agents_of(steps.present), agents_of(steps.reward)
    ended, returns = agents_of(steps.agent_ended), agents_of(steps.agent_return)
    lengths = agents_of(steps.agent_length)
    kinds = set()
    for copy in range(acts.shape[1]):
        begun, total, count = np.zeros(4, bool), np.zeros(4), np.zeros(4, int)
        time, whole = 0, 0.0
        for t in range(acts.shape[0]):
            time += 1
            here = begun | acts[t, copy]
            np.testing.assert_array_equal(first[t, copy], ~begun)
            np.testing.assert_array_equal(present[t, copy], here)
            paid = np.where(here, time + acts[t, copy] * np.array([2, 1, 1, 1]), 0)
            np.testing.assert_array_equal(reward[t, copy], paid)
            total, count, whole = total + paid, count + acts[t, copy], whole + paid.sum()
            np.testing.assert_array_equal(returns[t, copy], total)
            np.testing.assert_array_equal(lengths[t, copy], count)
            assert steps.episode_return[t, copy] == whole
            assert steps.episode_length[t, copy] == time
            gone = terminated[t, copy] | truncated[t, copy]
            assert not (gone & ~here).any()
            np.testing.assert_array_equal(ended[t, copy], gone)
            over = steps.ended[t, copy]
            assert not over or (gone == here).all()
            assert time < 17 or (over and truncated[t, copy][here].all())
            kinds |= {
                (bool(a), bool(b))
                for a, b in zip(terminated[t, copy], truncated[t, copy], strict=True)
            }
            begun, total, count = here & ~gone, np.where(gone, 0, total), np.where(gone, 0, count)
            time, whole = (0, 0.0) if over else (time, whole)
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}
    again = acts[1:] & first[1:] & (states.episode_length[1:, :, None] > 0)
    assert again.any(), "somebody came again within an episode"


def test_final_obs_is_the_successor_and_the_next_row_starts_an_episode() -> None:
    states, steps, _ = play_cartpoles(index=np.arange(4))
    ended, final, following = steps.ended[:-1], steps.final_obs[:-1], states.obs[1:]
    np.testing.assert_array_equal(final[~ended], following[~ended])
    assert (np.abs(final[ended]) > 0.2).any(axis=-1).all()  # a pole that fell
    assert (np.abs(following[ended]) <= 0.05).all()  # a fresh start
    np.testing.assert_array_equal(states.is_first[1:], ended)
    assert states.is_first[0].all()


def test_final_obs_of_several_agents_is_the_successor() -> None:
    states, steps, _ = play_comers()
    over, time = steps.ended[:-1], states.episode_length[:-1]
    for final, following in (
        (steps.final_obs["hermit"][:-1], states.obs["hermit"][1:]),
        (steps.final_global_state[:-1], states.global_state[1:]),
    ):
        np.testing.assert_array_equal(final[..., 1], time + 1)
        np.testing.assert_array_equal(final[~over], following[~over])
        assert (following[over][:, 1] == 0).all()
        assert (final[over][:, 0] != following[over][:, 0]).all()
    np.testing.assert_array_equal(steps.acts["crowd"][:-1][over], False)
    np.testing.assert_array_equal(steps.acts["crowd"][:-1][~over], states.acts["crowd"][1:][~over])


class Faulty(Comers):
    """NaN at the fifth step: a reward or an observation, of a present agent or of an absent one."""

    def __init__(self, what: str, present: bool) -> None:
        self.what, self.present = what, present

    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        state, step = super().step(key, state, actions, params)
        bad = state.time == 5
        no = jnp.zeros((3,), bool)
        ends = {"hermit": no[0], "crowd": no, "__all__": no[0]}
        # Agent 0 of the crowd acts from the first step on, the others never.
        acts = {"hermit": no[0], "crowd": jnp.array([True, False, False])}
        state = replace(state, acts=jnp.array([False, True, False, False]))
        hurt = jnp.array([self.present, False, not self.present]) & bad
        reward, obs = step.reward, step.obs
        if self.what == "reward":
            reward = {**reward, "crowd": jnp.where(hurt, jnp.nan, reward["crowd"])}
        else:
            obs = {**obs, "crowd": jnp.where(hurt[:, None], jnp.nan, obs["crowd"])}
        return state, MultiStep(obs=obs, acts=acts, reward=reward, terminated=ends, truncated=ends)


def play_faults(what: str, agents: str) -> Any:
    """Three copies with a fault of an agent that is there at the fifth step of an episode."""
    if agents == "several":
        return play_comers(copies=3, steps=12, env=Faulty(what, present=True))
    config = {"env": "CartPole-v1", "kind": what, "at_step": 5}
    name = "jaxrl.envs.faults:FaultyEnv"
    return play_cartpoles(env=name, index=np.arange(3), steps=12, env_config=config)


def all_of(values: Any) -> Any:
    """An entry's arrays as one `[T, B, agents, ...]`, also of one agent."""
    return agents_of(values) if isinstance(values, dict) else values[:, :, None]


@pytest.mark.parametrize("agents", ["one", "several"])
@pytest.mark.parametrize(("what", "fault"), [("reward", REWARD_FAULT), ("obs", OBS_FAULT)])
def test_a_nan_is_masked_named_and_the_copy_reset(what: str, fault: int, agents: str) -> None:
    states, steps, last = play_faults(what, agents)
    bad = steps.fault != NO_FAULT
    assert bad[4].all()
    assert bad.sum() == 2 * 3  # step 5, and step 10: five steps after the reset
    assert (steps.fault[4] == fault).all()
    np.testing.assert_array_equal(steps.mask, ~bad)
    assert not steps.ended[bad].any()  # no episode is reported
    if agents == "several":
        assert not agents_of(steps.agent_ended)[bad].any()
        np.testing.assert_array_equal(
            agents_of(steps.truncated)[bad], agents_of(steps.present)[bad]
        )
        np.testing.assert_array_equal(steps.final_obs["crowd"][4], states.obs["crowd"][4])
    else:
        assert steps.truncated[bad].all()
        np.testing.assert_array_equal(steps.final_obs[4], states.obs[4])
    assert all_of(states.is_first)[5].all()
    assert (states.episode_length[5] == 0).all()
    assert_finite(states, steps, last)


def assert_finite(*trees: Any) -> None:
    for leaf in jax.tree.leaves(trees):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_a_nan_of_an_absent_agent_is_ignored_and_shown_to_nobody(what: str) -> None:
    states, steps, last = play_comers(copies=3, steps=12, env=Faulty(what, present=False))
    assert (steps.fault == NO_FAULT).all()
    assert_finite(states, steps, last)


class BadReset(Comers):
    """Resets whose first observation is NaN for the hermit, by their key."""

    def reset(self, key: Any, params: Any) -> Any:
        state, start = super().reset(key, params)
        bad = state.episode < 1 / 3
        obs = {**start.obs, "hermit": jnp.where(bad, jnp.nan, start.obs["hermit"])}
        return state, MultiStart(obs=obs, acts=start.acts)


class BadCartPole(CartPole):
    """A third of the resets, by their key, show NaN."""

    max_episode_steps = 2

    def reset(self, key: Any, params: Any) -> Any:
        state, obs = super().reset(key, params)
        bad = jax.random.uniform(jax.random.fold_in(key, 7)) < 1 / 3
        return state, jnp.where(bad, jnp.nan, obs)


@pytest.mark.parametrize("agents", ["one", "several"])
def test_a_reset_to_nan_is_a_fault_of_the_next_step(agents: str) -> None:
    """Zeros are shown instead, and the step from them is masked."""
    if agents == "several":
        states, steps, _ = play_comers(copies=64, steps=6, env=BadReset())
        obs = states.obs["hermit"]
    else:
        name = f"{__name__}:BadCartPole"
        states, steps, _ = play_cartpoles(env=name, index=range(64), steps=6)
        obs = states.obs
    assert states.faulty.any()
    assert not states.faulty.all()
    assert (obs[states.faulty] == 0.0).all()
    np.testing.assert_array_equal(steps.mask, ~states.faulty)
    assert (steps.fault[states.faulty] == OBS_FAULT).all()
    assert_finite(obs, steps.final_obs)


class Crowded(Comers):
    max_acting = 3


class ActsOnItsLastObservation(Comers):
    """Whoever leaves acts at once."""

    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        state, step = super().step(key, state, actions, params)
        acts = jnp.concatenate([step.acts["hermit"][None], step.acts["crowd"]])
        left = jnp.concatenate([step.truncated["hermit"][None], step.truncated["crowd"]])
        acts |= left
        return replace(state, acts=acts), replace(step, acts={"hermit": acts[0], "crowd": acts[1:]})


def test_choices_that_a_network_would_not_see_are_found() -> None:
    """The space says that times, which are whole numbers here, end at 3."""
    space = spaces.MultiDiscrete([4, 4])
    action = {"hermit": jnp.full(24, 2), "crowd": jnp.ones((24, 3), jnp.int32)}
    env = MultiTimeLimit(Comers(), 5)
    vector = MultiVectorEnv(env, obs_spaces={"hermit": space})
    states, steps, _ = run(vector, env.default_params, action, index=np.arange(24), steps=60)
    time = states.obs["hermit"][..., 1]
    late = states.acts["hermit"] & (time > 3)
    cut = steps.truncated["hermit"] & ~steps.terminated["hermit"] & (time + 1 > 3)
    assert late.any()
    assert (cut & ~late).any()
    np.testing.assert_array_equal(steps.fault, np.where(late | cut, NO_CHOICE, NO_FAULT))


@pytest.mark.parametrize(
    ("env", "acting", "breach"),
    [
        (Comers(), "some", None),
        (Comers(), "all", WAITING),
        (Crowded(), "some", CROWD),
        (ActsOnItsLastObservation(), "some", CUT_AND_ACTS),
    ],
)
def test_steps_show_what_is_declared_wrongly(env: Any, acting: Any, breach: int | None) -> None:
    """Compare with a walk over what the environment returned."""
    action = {"hermit": jnp.full(24, 2), "crowd": jnp.ones((24, 3), jnp.int32)}
    vector = MultiVectorEnv(env, acting=acting)
    states, steps, _ = run(vector, env.default_params, action, index=np.arange(24), steps=60)
    acts, acts_next = agents_of(states.acts), agents_of(steps.acts)
    terminated, truncated = agents_of(steps.terminated), agents_of(steps.truncated)
    stays = agents_of(steps.present) & ~terminated & ~truncated
    expected = {
        None: np.zeros((60, 24), bool),
        WAITING: (stays & ~acts_next).any(axis=2),
        CROWD: acts.sum(axis=2) > 3,
        CUT_AND_ACTS: (truncated & ~terminated & acts_next).any(axis=2),
    }[breach]
    assert expected.any() == (breach is not None)
    np.testing.assert_array_equal(steps.fault, np.where(expected, breach or NO_FAULT, NO_FAULT))
