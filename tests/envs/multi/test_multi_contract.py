"""Broken multi-agent environments are refused in one sentence, most before anything compiles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from jaxrl.cli.app import app
from jaxrl.core.struct import replace
from jaxrl.envs import (
    MadeMultiEnv,
    MultiStart,
    MultiTimeLimit,
    make,
    make_any,
    make_multi,
    register_env,
)
from jaxrl.envs.contract import check_signatures, find_acting
from jaxrl.errors import EnvError
from jaxrl.testing import check_env
from tests.envs.multi.comers import Comers

CROWD_IDS = ("crowd_0", "crowd_1", "crowd_2")


def check(env: Any) -> None:
    made = MadeMultiEnv(env=env, params=Comers().default_params, id="Mine")
    check_signatures(made)


def test_a_sound_environment_passes_with_and_without_a_limit() -> None:
    check(Comers())
    check(MultiTimeLimit(Comers(), 5))


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
        check(Altered(**attributes))
    assert "\n" not in str(raised.value)


class Altered(Comers):
    """Comers of which first observations, steps or other attributes are changed."""

    def __init__(self, start: Any = None, step: Any = None, **attributes: Any) -> None:
        self.change_start, self.change_step = start or keep, step or keep
        for name, value in attributes.items():
            setattr(self, name, value)

    def reset(self, key: Any, params: Any) -> Any:
        return self.change_start(*super().reset(key, params))

    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        return self.change_step(*super().step(key, state, actions, params))


def keep(*given: Any) -> Any:
    return given


def starting(**fields: Any) -> Altered:
    """Return an environment whose starts have other fields, which are functions of the start."""
    return Altered(start=lambda state, start: (state, replace_by(start, fields)))


def stepping(**fields: Any) -> Altered:
    """Return an environment whose steps have other fields, which are functions of the step."""
    return Altered(step=lambda state, step: (state, replace_by(step, fields)))


def replace_by(value: Any, fields: dict[str, Any]) -> Any:
    return replace(value, **{name: get(value) for name, get in fields.items()})


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            Altered(action_space=lambda agent, _: spaces.Discrete(3 if agent == "crowd_1" else 2)),
            "action_space of 'crowd_1' differs from that of 'crowd_0'",
        ),
        (
            Altered(observation_space=lambda *_: spaces.Box(0.0, 1.0, (2,), np.float64)),
            r"observation_space\('hermit'\) must have at most 32 bits",
        ),
        (
            Altered(start=lambda state, start: (state, start.obs)),
            r"reset must return \(state, MultiStart\), got a dict in second place",
        ),
        (
            starting(obs=lambda start: without(start.obs, "hermit")),
            "reset's obs has no entry 'hermit': every agent has one at every step",
        ),
        (
            starting(acts=lambda start: {**start.acts, "ghost": jnp.ones((), bool)}),
            "reset's acts has the unknown entry 'ghost'; known are",
        ),
        (
            starting(acts=lambda start: {**start.acts, "hermit": jnp.ones(())}),
            r"reset's acts\['hermit'\] must be a bool scalar, got float32",
        ),
        (
            starting(obs=lambda start: {**start.obs, "crowd": start.obs["crowd"][:2]}),
            r"reset's obs\['crowd'\] must have a first axis of 3, .* got the shape \(2, 3",
        ),
        (
            stepping(obs=lambda step: {**step.obs, "crowd": step.obs["crowd"][:, :2]}),
            r"step's obs\['crowd'\] must be float32 of shape \(3,\)",
        ),
        (
            Altered(step=lambda state, step: (state, MultiStart(obs=step.obs, acts=step.acts))),
            r"step must return \(state, MultiStep\), got a MultiStart in second place",
        ),
        (
            stepping(acts=lambda step: {**step.acts, "crowd": step.acts["hermit"]}),
            r"step's acts\['crowd'\] must be bool of shape \(3,\), got bool of shape \(\)",
        ),
        (
            stepping(reward=lambda step: {**step.reward, "ghost": jnp.ones(())}),
            "reward has the unknown entry 'ghost'",
        ),
        (
            stepping(reward=lambda step: without(step.reward, "crowd")),
            "reward has no entry 'crowd'",
        ),
        (
            stepping(reward=lambda step: {**step.reward, "crowd": step.reward["hermit"]}),
            r"reward\['crowd'\] must be numbers of shape \(3,\), got int32 of shape",
        ),
        (
            stepping(terminated=lambda step: without(step.terminated, "__all__")),
            "terminated has no entry '__all__'",
        ),
        (
            stepping(truncated=lambda step: None),
            "truncated must be a dictionary with an entry for each of",
        ),
        (
            Altered(
                step=lambda state, step: (replace(state, time=state.time.astype(jnp.float32)), step)
            ),
            r"state.time is int32\[\] after a reset and float32\[\] after a step",
        ),
        (
            Altered(start=lambda state, start: (replace(state, time=jnp.asarray(0)), start)),
            "reset's state.time is a weakly typed int32",
        ),
        (
            Altered(global_state=lambda state, params: state.episode),
            r"global_state must be float32 of shape \(2,\)",
        ),
        (stepping(info=lambda step: []), "info must be a dictionary, got a list"),
        (
            Altered(
                step=lambda state, step: (
                    state,
                    replace(step, info={"late": 1 if state.time > 3 else 0}),
                )
            ),
            "step cannot be traced by jax.jit",
        ),
    ],
)
def test_what_it_returns_is_refused_by_place(
    env: Comers, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("something is compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", never)
    with pytest.raises(EnvError, match=f"^Mine: .*{sentence}"):
        check(env)


# --- what only runs show ---


def take_idle_actions() -> Altered:
    """Rewards what an agent does that waits."""
    env = Altered()

    def step(key: Any, state: Any, actions: Any, params: Any) -> Any:
        state, step = Comers.step(env, key, state, actions, params)
        paid = step.reward["crowd"] + actions["hermit"]
        return state, replace(step, reward={**step.reward, "crowd": paid})

    env.step = step
    return env


def pay_without_end(state: Any, step: Any) -> Any:
    late = jnp.where(state.time == 2, jnp.inf, step.reward["hermit"])
    return state, replace(step, reward={**step.reward, "hermit": late})


def act_on_the_last_observation(state: Any, step: Any) -> Any:
    left = {**step.truncated, "hermit": state.time == 2}
    acts = {**step.acts, "hermit": step.acts["hermit"] | (state.time == 2)}
    state = replace(state, acts=state.acts.at[0].set(acts["hermit"]))
    return state, replace(step, truncated=left, acts=acts)


def desert(state: Any, step: Any) -> Any:
    """Everybody dies at the second step, and nobody comes again."""
    dead = state.time >= 2
    ends = {"hermit": dead, "crowd": jnp.full((3,), dead), "__all__": state.time > 9}
    acts = {name: flag & ~dead for name, flag in step.acts.items()}
    return replace(state, acts=state.acts & ~dead), replace(step, terminated=ends, acts=acts)


def observe_up_to(agent: str, params: Any) -> Any:
    space = Comers().observation_space(agent, params)
    return space if agent == "hermit" else spaces.Box(0.0, 2.5, (3,))


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Comers(), None),
        (take_idle_actions(), r"an agent that does not act changes \['reward'\]\['crowd'\]"),
        (Altered(observation_space=observe_up_to), r"obs\['crowd'\] must lie in \[0.0, 2.5\]"),
        (
            Altered(state_space=lambda params: spaces.Box(0.0, 2.5, (2,))),
            r"global_state must lie in \[0.0, 2.5\]",
        ),
        (Altered(step=pay_without_end), r"reward\['hermit'\] is inf at some step"),
        (
            Altered(acting="all"),
            "'hermit' is present and does not act; set acting='some', or end it",
        ),
        (Altered(max_acting=2), "[34] agents act at one step, and max_acting=2"),
        (
            Altered(step=act_on_the_last_observation),
            "'hermit' was truncated and acts on its last observation",
        ),
    ],
)
def test_what_it_does_is_refused_by_check_env(env: Comers, sentence: str | None) -> None:
    if sentence is None:
        check_env(env)
        return
    with pytest.raises(EnvError, match=sentence) as raised:
        check_env(env)
    assert "\n" not in str(raised.value)


@pytest.mark.allow_key_reuse
def test_an_empty_stage_is_told_of() -> None:
    with pytest.warns(UserWarning, match="nobody is present at some steps, and the episode goes"):
        check_env(Altered(step=desert))


@pytest.mark.allow_key_reuse
def test_the_command_checks_and_lists_them() -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["check-env", "MultiAgentCartPole-v0", "--steps", "9"])
    assert done.exit_code == 0, done.output
    assert "MultiAgentCartPole-v0 passed all checks." in done.output
    done = runner.invoke(app, ["list", "envs"])
    assert "from jaxrl, of several agents" in done.output
    assert "2 agents: each observes Box(4), acts Discrete(2)" in done.output


# --- who acts ---


class WithinJit(Altered):
    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        return jax.jit(super().step)(key, state, actions, params)


def say_everybody() -> Any:
    return {"hermit": jnp.ones((), bool), "crowd": np.ones(3, bool)}


def say_from_a_row() -> Any:
    row = jnp.ones((2, 3), jnp.int32).sum(axis=0) > 1
    return {"hermit": row[1], "crowd": row}


def acting(say: Any = say_everybody, cls: type[Altered] = Altered, **attributes: Any) -> Altered:
    """Return an environment that says who acts at every step."""

    def change(state: Any, step: Any) -> Any:
        return state, replace(step, acts=jax.tree.map(jnp.asarray, say()))

    return cls(step=change, acting=None, **attributes)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (acting(), "all"),
        (acting(cls=WithinJit), "all"),
        (acting(say_from_a_row), "all"),
        (MultiTimeLimit(acting(), 5), "all"),
        # It acts at the reset alone.
        (acting(lambda: {**say_everybody(), "crowd": jnp.array([True, False, True])}), "some"),
        (Altered(acting=None), "some"),
        (acting(max_acting=1), "some"),
        (Altered(acting="all"), "all"),
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
