"""Making of Python environments of several agents from whatever names one."""

import pickle
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from jaxrl.envs import (
    EnvContext,
    MultiAgentEnv,
    make,
    make_multi,
    make_multi_host,
    register_env,
    registry,
)
from jaxrl.envs.multi.host_env import is_multi_agent_class, is_multi_agent_env
from jaxrl.envs.registry import is_multi_agent_spec
from jaxrl.errors import EnvError, UnknownNameError
from tests.envs.multi_host.scripted import BOX, Scripted, Turns

TURNS = f"{Turns.__module__}:Turns"


class Shaped:
    """RLlib's interface without its class, and not gymnasium's either."""

    possible_agents = agents = ("a",)

    def get_observation_space(self, agent_id: Any) -> Any:
        return BOX

    def get_action_space(self, agent_id: Any) -> Any:
        return spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return {}, {}

    def step(self, action_dict: Any) -> Any:
        return {}, {}, {}, {}, {}

    def close(self) -> None:
        pass


@pytest.fixture
def gymnasium_id() -> Any:
    gymnasium.register("TurnsOfTwo-v0", Turns, max_episode_steps=4)
    yield "TurnsOfTwo-v0"
    del gymnasium.registry["TurnsOfTwo-v0"]


@pytest.mark.parametrize("spec", [Turns, TURNS, Turns(), lambda context: Turns(context), Shaped])
def test_it_is_made_from_whatever_names_it(spec: Any) -> None:
    made = make_multi_host(spec)
    assert made.has_all_agents
    assert made.spaces[0] == spaces.Dict(dict.fromkeys(made.possible_agents, BOX))
    assert made.max_episode_steps is None
    assert made.make_checked().name == made.id
    assert is_multi_agent_spec(spec) is (getattr(spec, "__name__", "") != "<lambda>")


def test_registered_names_and_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_env("turns-here", lambda context: Turns(context))
    register_env("turns-class", Turns)
    assert is_multi_agent_spec("turns-class")
    made = make_multi_host("turns-here", {"x": 1})
    env = made.make_checked(EnvContext({"x": 2}, worker_index=3)).env
    assert (env.config, env.config.worker_index) == ({"x": 2}, 3)
    assert made.make_checked().env.config == {"x": 1}
    with pytest.raises(UnknownNameError, match="takes no argument 'x'"):
        make_multi_host(Scripted, {"x": 1})


def test_gymnasiums_registry_and_its_time_limit(gymnasium_id: str) -> None:
    made = make_multi_host(gymnasium_id)
    assert is_multi_agent_spec(gymnasium_id)
    assert made.max_episode_steps == 4
    assert type(made.make_checked().env) is Turns  # without gymnasium's wrappers of one agent
    assert make_multi_host(gymnasium_id, max_episode_steps=3).max_episode_steps == 3
    assert make_multi_host(Turns, max_episode_steps=3).max_episode_steps == 3


def test_its_creator_is_pickled_for_other_processes() -> None:
    made = pickle.loads(pickle.dumps(make_multi_host(TURNS, {"config": {"x": 1}})))
    assert made.make_checked().env.config == {"x": 1}


def test_notes_tell_what_modules_see_in_another_dtype() -> None:
    class Doubles(Turns):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(-1.0, 1.0, (2,), float)

    made = make_multi_host(Doubles)
    (note,) = made.notes  # of equal agents once
    assert "the observation of agent '0' is float64; modules see it as float32." in note
    assert made.observation_spaces["0"].dtype == "float32"


def test_agents_of_a_first_episode_stand_for_unknown_ones() -> None:
    class Open(Turns):
        def __init__(self) -> None:
            super().__init__()
            self.possible_agents = []

    made = make_multi_host(Open)
    assert (made.possible_agents, made.has_all_agents) == (("0",), False)

    class Nobody(Open):
        def reset(self, **options: Any) -> Any:
            return {}, {}

    with pytest.raises(EnvError, match=r"names no agent: set self\.possible_agents in __init__"):
        make_multi_host(Nobody)


def test_each_function_says_which_other_makes_it() -> None:
    with pytest.raises(
        EnvError, match=r"has several agents \(0, 1\): make it with make_multi_host"
    ):
        make(Turns)
    with pytest.raises(EnvError, match="is stepped in Python: make it with make_multi_host"):
        make_multi(Turns)
    with pytest.raises(EnvError, match="is written in JAX: make it with make_multi"):
        make_multi_host("TicTacToe-v0")
    with pytest.raises(EnvError, match=r"CartPole-v1 has a single agent: make_multi_agent\("):
        make_multi_host("CartPole-v1")


def test_it_is_recognized_by_its_methods() -> None:
    assert is_multi_agent_class(Shaped)
    assert is_multi_agent_env(Turns())
    assert not is_multi_agent_env(Turns)
    assert not is_multi_agent_class(gymnasium.Env)


def test_rllibs_own_class_is_recognized_and_runs() -> None:
    module = pytest.importorskip("ray.rllib.env.multi_agent_env")
    cls = module.make_multi_agent("CartPole-v1")
    assert not issubclass(cls, MultiAgentEnv)
    made = make_multi_host(cls, {"num_agents": 2})
    env = made.make_checked()
    start = env.reset(seed=1)
    assert list(start.obs) == ["0", "1"]
    step = env.step({"0": 1, "1": 0})
    while not step.is_over:
        step = env.step(dict.fromkeys(env.agents_to_act, 1))
    assert step.terminated["__all__"]
