"""Broken multi-agent environments are refused in one sentence, before anything compiles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core.struct import replace
from jaxrl.envs import MultiStart, MultiTimeLimit, make, make_any, make_multi, register_env
from jaxrl.envs.contract import check_signatures, find_acting
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import EnvError
from tests.envs.multi.comers import Comers

CROWD_IDS = ("crowd_0", "crowd_1", "crowd_2")


def check(env: Any) -> None:
    made = MadeMultiEnv(env=env, params=Comers().default_params, id="Mine")
    check_signatures(made)


def test_a_sound_environment_passes_with_and_without_a_limit() -> None:
    check(Comers())
    check(MultiTimeLimit(Comers(), 5))


def declared(**attributes: Any) -> type[Comers]:
    return type("Declared", (Comers,), attributes)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"possible_agents": ()}, r"possible_agents must be a tuple of ids, got \(\)"),
        (
            {"possible_agents": ["hermit"]},
            r"possible_agents must be a tuple of ids, got \['hermit'",
        ),
        ({"possible_agents": ("a/b",)}, "letters, digits, '_' and '-', as in 'agent_0', got 'a/b'"),
        ({"possible_agents": ("a.b",)}, "letters, digits, '_' and '-', as in 'agent_0', got 'a.b'"),
        ({"possible_agents": (0, 1)}, "as in 'agent_0', got 0"),
        ({"possible_agents": ("__all__",)}, "as in 'agent_0', got '__all__'"),
        ({"possible_agents": ("a", "a"), "agent_kinds": {}}, "has an id twice"),
        ({"agent_kinds": {"crowd": 0}}, r"agent_kinds\['crowd'\] must be a positive int, got 0"),
        ({"agent_kinds": {"hermit": 1}}, "'hermit' is both a kind and an agent"),
        ({"agent_kinds": {"crowd": 4}}, "hold 'crowd_0' to 'crowd_3' of the kind 'crowd' side by"),
        ({"possible_agents": ("crowd_0", "hermit", "crowd_1", "crowd_2")}, "side by side"),
        ({"acting": "turns"}, "acting must be 'all' or 'some', got 'turns'"),
        ({"acting": "all", "max_acting": 1}, "max_acting=1 needs acting='some'"),
        ({"max_acting": 5}, "max_acting must be an int from 1 to the number of agents 4, got 5"),
        ({"max_acting": True}, "max_acting must be an int from 1 .* got True"),
        ({"teams": {"red": ("hermit", "nobody")}}, "team 'red' has 'nobody', no possible agent"),
        ({"teams": {"red": ("hermit",), "blue": ("hermit",)}}, "agent 'hermit' is in two teams"),
    ],
)
def test_what_it_says_of_its_agents_is_consistent(
    attributes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EnvError, match=f"^Mine: .*{sentence}") as raised:
        check(declared(**attributes)())
    assert "\n" not in str(raised.value)


class Altered(Comers):
    """Comers whose spaces, first observations or steps are changed."""

    def reset(self, key: Any, params: Any) -> Any:
        return self.alter_start(*super().reset(key, params))

    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        return self.alter_step(*super().step(key, state, actions, params))

    def alter_start(self, state: Any, start: Any) -> Any:
        return state, start

    def alter_step(self, state: Any, step: Any) -> Any:
        return state, step


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


class UnequalKind(Altered):
    def action_space(self, agent: str, params: Any) -> Any:
        return spaces.Discrete(3 if agent == "crowd_1" else 2)


class WideSpace(Altered):
    def observation_space(self, agent: str, params: Any) -> Any:
        return spaces.Box(0.0, 1.0, (2,), np.float64)


class NoStart(Altered):
    def alter_start(self, state: Any, start: Any) -> Any:
        return state, start.obs


class MissingObs(Altered):
    def alter_start(self, state: Any, start: Any) -> Any:
        return state, replace(start, obs=without(start.obs, "hermit"))


class UnknownActs(Altered):
    def alter_start(self, state: Any, start: Any) -> Any:
        return state, replace(start, acts={**start.acts, "ghost": jnp.ones((), bool)})


class NumberActs(Altered):
    def alter_start(self, state: Any, start: Any) -> Any:
        return state, replace(start, acts={**start.acts, "hermit": jnp.ones(())})


class ShortKind(Altered):
    def alter_start(self, state: Any, start: Any) -> Any:
        return state, replace(start, obs={**start.obs, "crowd": start.obs["crowd"][:2]})


class WrongMember(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, obs={**step.obs, "crowd": step.obs["crowd"][:, :2]})


class NoStep(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, MultiStart(obs=step.obs, acts=step.acts)


class OneActs(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, acts={**step.acts, "crowd": step.acts["hermit"]})


class UnknownReward(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, reward={**step.reward, "ghost": jnp.ones(())})


class MissingReward(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, reward=without(step.reward, "crowd"))


class SharedReward(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, reward={**step.reward, "crowd": step.reward["hermit"]})


class NoEnd(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, terminated=without(step.terminated, "__all__"))


class NoTruncation(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, truncated=None)


class OtherState(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return replace(state, time=state.time.astype(jnp.float32)), step


class WeakState(Altered):
    def alter_start(self, state: Any, start: Any) -> Any:
        return replace(state, time=jnp.asarray(0)), start


class WrongGlobalState(Altered):
    def global_state(self, state: Any, params: Any) -> Any:
        return state.episode


class ListInfo(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, info=[])


class Untraceable(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, info={"late": 1 if state.time > 3 else 0})


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (UnequalKind, "action_space of 'crowd_1' differs from that of 'crowd_0'"),
        (WideSpace, r"observation_space\('hermit'\) must have at most 32 bits"),
        (NoStart, r"reset must return \(state, MultiStart\), got a dict in second place"),
        (MissingObs, "reset's obs has no entry 'hermit': every agent has one at every step"),
        (UnknownActs, "reset's acts has the unknown entry 'ghost'; known are"),
        (NumberActs, r"reset's acts\['hermit'\] must be a bool scalar, got float32"),
        (ShortKind, r"reset's obs\['crowd'\] must have a first axis of 3, .* got the shape \(2, 3"),
        (WrongMember, r"step's obs\['crowd'\] must be float32 of shape \(3,\)"),
        (NoStep, r"step must return \(state, MultiStep\), got a MultiStart in second place"),
        (OneActs, r"step's acts\['crowd'\] must be bool of shape \(3,\), got bool of shape \(\)"),
        (UnknownReward, "reward has the unknown entry 'ghost'"),
        (MissingReward, "reward has no entry 'crowd'"),
        (SharedReward, r"reward\['crowd'\] must be numbers of shape \(3,\), got int32 of shape"),
        (NoEnd, "terminated has no entry '__all__'"),
        (NoTruncation, "truncated must be a dictionary with an entry for each of"),
        (OtherState, r"state.time is int32\[\] after a reset and float32\[\] after a step"),
        (WeakState, "reset's state.time is a weakly typed int32"),
        (WrongGlobalState, r"global_state must be float32 of shape \(2,\)"),
        (ListInfo, "info must be a dictionary, got a list"),
        (Untraceable, "step cannot be traced by jax.jit"),
    ],
)
def test_what_it_returns_is_refused_by_place(
    env: type[Comers], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("something is compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", never)
    with pytest.raises(EnvError, match=f"^Mine: .*{sentence}"):
        check(env())


# --- who acts ---


class Alike(Altered):
    """Everybody acts at every step, which is said in a way that varies."""

    acting = None
    said: Any = staticmethod(lambda: {"hermit": jnp.ones((), bool), "crowd": np.ones(3, bool)})

    def alter_step(self, state: Any, step: Any) -> Any:
        return state, replace(step, acts=jax.tree.map(jnp.asarray, self.said()))


class WithinJit(Alike):
    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        return jax.jit(super().step)(key, state, actions, params)


def say_from_a_row() -> Any:
    row = jnp.ones((2, 3), jnp.int32).sum(axis=0) > 1
    return {"hermit": row[1], "crowd": row}


def say_that_one_is_idle() -> Any:
    return {"hermit": jnp.ones((), bool), "crowd": jnp.array([True, False, True])}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (Alike(), "all"),
        (WithinJit(), "all"),
        (type("FromARow", (Alike,), {"said": staticmethod(say_from_a_row)})(), "all"),
        (MultiTimeLimit(Alike(), 5), "all"),
        # It acts at the reset alone.
        (type("Idle", (Alike,), {"said": staticmethod(say_that_one_is_idle)})(), "some"),
        (type("Varying", (Comers,), {"acting": None})(), "some"),
        (type("Turns", (Alike,), {"max_acting": 1})(), "some"),
        (type("Declared", (Comers,), {"acting": "all"})(), "all"),
    ],
)
def test_who_acts_is_found_by_tracing_unless_declared(env: Any, expected: str) -> None:
    made = MadeMultiEnv(env=env, params=Comers().default_params, id="Mine")
    check_signatures(made)
    assert find_acting(made) == expected


@pytest.mark.parametrize(
    "env", ["RockPaperScissors-v0", "TwoStep-v0", "LineOfAgents-v0", "SimpleTag-v0", "Foraging-v0"]
)
def test_everybody_acts_in_environments_of_the_library(env: str) -> None:
    made = make_multi(env)
    assert (made.env.acting, find_acting(made)) == (None, "all")


# --- by name ---


def test_makes_classes_instances_names_and_paths_with_limits_and_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jaxrl.envs.registry._registered", {})
    made = make_multi(Comers, {"dies": 0.5}, max_episode_steps=7)
    assert isinstance(made.env, MultiTimeLimit)
    assert (made.max_episode_steps, float(made.params.dies)) == (7, 0.5)
    assert list(made.observation_spaces) == list(made.env.possible_agents)
    assert made.action_spaces["hermit"].n == 3
    assert make_multi(Comers).env is make_multi(Comers).env  # cached, so that programs are shared
    path = "tests.envs.multi.comers:Comers"
    assert make_multi(path).env == make_multi(path).env
    register_env("comers", lambda context: Comers())
    assert isinstance(make_any("comers").env, Comers)
    again = make_multi(made.env, max_episode_steps=9)
    assert again.max_episode_steps == 9
    assert not isinstance(again.env.env, MultiTimeLimit)


def test_one_kind_of_environment_is_refused_where_the_other_is_asked_for() -> None:
    with pytest.raises(EnvError, match=r"several agents \(hermit, crowd_0, crowd_1, ... 4 in all"):
        make("tests.envs.multi.comers:Comers")
    with pytest.raises(EnvError, match="CartPole-v1 has a single agent: make_multi_agent"):
        make_multi("CartPole-v1")


def test_a_limit_truncates_everybody_and_terminates_nobody() -> None:
    env = MultiTimeLimit(Comers(), 3)
    params = replace(env.default_params, over=np.float32(0), dies=np.float32(0))
    step_env = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(jax.random.key(0), params)
    actions = {"hermit": jnp.int32(0), "crowd": jnp.zeros((3,), jnp.int32)}
    for count in range(1, 5):
        state, step = step_env(jax.random.key(count), state, actions, params)
        assert bool(step.truncated["__all__"]) == (count >= 3)
        assert not any(np.any(flag) for flag in step.terminated.values())
    assert env == MultiTimeLimit(env.env, 3) != MultiTimeLimit(env.env, 4)
    assert hash(env) == hash(MultiTimeLimit(env.env, 3))
    with pytest.raises(EnvError, match="max_episode_steps must be a positive integer, got 0"):
        MultiTimeLimit(Comers(), 0)
