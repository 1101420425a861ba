"""Environments of PettingZoo: episodes equal to those of its own loops, masks, ids and errors."""

import functools
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pettingzoo = pytest.importorskip("pettingzoo")

from jaxrl.envs import CheckedMultiAgentEnv, ParallelPettingZooEnv, PettingZooEnv, make_multi_host  # noqa: E402
from jaxrl.envs.adapters.pettingzoo import wrap_pettingzoo  # noqa: E402
from jaxrl.envs.registry import find_imports, is_multi_agent_spec  # noqa: E402
from jaxrl.errors import EnvError, UnknownNameError  # noqa: E402
from jaxrl.testing import check_env  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation:DeprecationWarning")

AGENTS = ["red_0", "green_0", "blue_0"]


class Walkers(pettingzoo.AECEnv):
    """Three agents in turns; each pays the next one, and red leaves early, green by a cut."""

    metadata = {"render_modes": [], "name": "walkers_v0", "is_parallelizable": False}
    render_mode = None

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = AGENTS[:]
        self.agents = AGENTS[:]

    @functools.cache  # noqa: B019  (PettingZoo asks for the same object)
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-100.0, 100.0, (2,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.place, AGENTS.index(agent)], np.float32)

    def reset(self, seed: Any = None, options: Any = None) -> None:
        if seed is not None or not hasattr(self, "random"):
            self.random = np.random.default_rng(seed)
        self.place = float(self.random.uniform())
        self.agents, self.count = AGENTS[:], 0
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos = {agent: {} for agent in AGENTS}
        self.agent_selection = AGENTS[0]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            return self._was_dead_step(action)
        self.count += 1
        self.place += float(action)
        self._cumulative_rewards[agent] = 0.0
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards[following] = self.place
        self.terminations["red_0"] = self.count >= 4 if "red_0" in self.agents else False
        if "green_0" in self.agents and self.count >= 7:
            self.truncations["green_0"] = True
        if "blue_0" in self.agents and self.count >= 9:
            self.terminations["blue_0"] = True
        for gone in set(AGENTS) - set(self.agents):
            self.terminations.pop(gone, None)
        self._accumulate_rewards()
        self.agent_selection = following
        self._deads_step_first()
        return None


class Masked(Walkers):
    """Tells legal actions in its infos, as environments of shimmy do."""

    def reset(self, seed: Any = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.infos = {agent: self.tell() for agent in AGENTS}

    def step(self, action: Any) -> None:
        super().step(action)
        self.infos = {agent: self.tell() for agent in self.agents}

    def tell(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, self.count % 2, 0], np.int8)}


class Together(pettingzoo.ParallelEnv):
    """Two agents that act at once; the first is cut off at step 2 and the second ends at step 4."""

    metadata = {"render_modes": [], "name": "together_v0"}
    render_mode = None
    state_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, length: int = 4) -> None:
        self.possible_agents = ["one_0", "two_0"]
        self.length = length

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0.0, 1e3, (1,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def state(self) -> np.ndarray:
        return np.array([self.count])

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.count = self.possible_agents[:], 0
        return self.observe(), {agent: {} for agent in self.agents}

    def observe(self) -> dict[str, np.ndarray]:
        return {agent: np.array([self.count], np.float32) for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.count += 1
        rewards = {agent: float(actions[agent]) for agent in self.agents}
        terminated = dict.fromkeys(self.agents, self.count >= self.length)
        truncated = {agent: agent == "one_0" and self.count == 2 for agent in self.agents}
        obs, infos = self.observe(), {agent: {} for agent in self.agents}
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return obs, rewards, terminated, truncated, infos


def choose(space: Any, obs: Any, rng: np.random.Generator) -> int:
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    return int(rng.choice(np.flatnonzero(np.ones(space.n) if mask is None else mask)))


def play_with_pettingzoo(env: Any, seed: int) -> dict[str, list[Any]]:
    """Return what each agent gets by PettingZoo's own loop, with its actions."""
    rng, found = np.random.default_rng(seed), {}
    env.reset(seed=seed)
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        dead = terminated or truncated
        action = None if dead else choose(env.action_space(agent), obs, rng)
        row = (obs, float(reward), bool(terminated), bool(truncated), action)
        found.setdefault(agent, []).append(row)
        env.step(action)
    return found


def play_with_adapter(env: CheckedMultiAgentEnv, seed: int) -> dict[str, list[Any]]:
    """Return the same of the adapter; rewards are added up between the turns of an agent."""
    rng, found = np.random.default_rng(seed), {}
    start = env.reset(seed)
    owed: dict[str, float] = dict.fromkeys(env.possible_agents, 0.0)
    latest: Any = start
    while True:
        actions = {}
        for agent in env.agents_to_act:
            actions[agent] = choose(env.get_action_space(agent), latest.obs[agent], rng)
            row = (latest.obs[agent], owed[agent], False, False, actions[agent])
            found.setdefault(agent, []).append(row)
            owed[agent] = 0.0
        latest = env.step(actions)
        for agent, reward in latest.reward.items():
            owed[agent] += reward
        for agent in latest.present:
            flags = latest.terminated[agent], latest.truncated[agent]
            if any(flags):
                found[agent].append((latest.obs[agent], owed[agent], *flags, None))
        if latest.is_over:
            return found


@pytest.mark.filterwarnings("ignore:Environment has not defined a render:UserWarning")
def test_the_environments_of_these_tests_are_pettingzoos() -> None:
    pytest.importorskip("pygame")  # of a game that PettingZoo's tests import
    from pettingzoo.test import api_test, parallel_api_test

    api_test(Walkers(), num_cycles=30)
    parallel_api_test(Together(), num_cycles=30)


@pytest.mark.parametrize("name", ["walkers", "connect_four_v3", "tictactoe_v3"])
def test_episodes_in_turns_equal_those_of_pettingzoos_loop(name: str) -> None:
    def make() -> Any:
        if name == "walkers":
            return Walkers()
        pytest.importorskip("pygame")
        return pytest.importorskip(f"pettingzoo.classic.{name}").env()

    for seed in range(3):
        expected = play_with_pettingzoo(make(), seed)
        found = play_with_adapter(CheckedMultiAgentEnv(PettingZooEnv(make())), seed)
        assert found.keys() == expected.keys()
        for agent, rows in expected.items():
            np.testing.assert_equal(found[agent], rows, err_msg=f"{agent}, seed {seed}")


def test_agents_leave_one_by_one() -> None:
    env = CheckedMultiAgentEnv(PettingZooEnv(Walkers()))
    found = play_with_adapter(env, 0)
    assert env.rewards_without_action == 2  # of green and blue, paid before their first turns
    ends = {agent: rows[-1][2:4] for agent, rows in found.items()}
    assert ends == {"red_0": (True, False), "green_0": (False, True), "blue_0": (True, False)}
    assert sum(len(rows) - 1 for rows in found.values()) == 9


def test_parallel_episodes_equal_pettingzoos() -> None:
    env, expected = CheckedMultiAgentEnv(ParallelPettingZooEnv(Together())), Together()
    assert env.state_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    start = env.reset(seed=1)
    np.testing.assert_equal(start.obs, expected.reset(seed=1)[0])
    assert start.global_state.dtype == np.float32
    for count in range(1, 5):
        actions = dict.fromkeys(env.agents_to_act, 1)
        step, theirs = env.step(actions), expected.step(actions)
        np.testing.assert_equal(step.obs, theirs[0])
        assert step.reward == theirs[1]
        assert step.terminated == {**theirs[2], "__all__": count == 4}
        assert step.truncated == {**theirs[3], "__all__": False}
        np.testing.assert_array_equal(step.global_state, [count])


def test_a_cut_of_everybody_is_a_cut_of_the_episode() -> None:
    class Cut(Together):
        def step(self, actions: Any) -> Any:
            obs, rewards, terminated, _, infos = super().step(actions)
            return obs, rewards, dict.fromkeys(terminated, False), terminated, infos

    env = CheckedMultiAgentEnv(ParallelPettingZooEnv(Cut(length=1)))
    env.reset()
    step = env.step({"one_0": 0, "two_0": 0})
    assert (step.terminated["__all__"], step.truncated["__all__"]) == (False, True)


def test_a_cut_after_an_agent_has_terminated_is_a_cut_of_the_episode() -> None:
    class Late(Together):
        """The first agent terminates at step 2, and the second is cut off at step 4."""

        def step(self, actions: Any) -> Any:
            obs, rewards, terminated, truncated, infos = super().step(actions)
            return obs, rewards, truncated, terminated, infos

    env = CheckedMultiAgentEnv(ParallelPettingZooEnv(Late()))
    env.reset()
    for count in range(1, 5):
        step = env.step(dict.fromkeys(env.agents_to_act, 1))
        assert step.terminated["__all__"] is False
        assert step.truncated["__all__"] == (count == 4)


def test_masks_of_infos_become_parts_of_observations() -> None:
    env = CheckedMultiAgentEnv(PettingZooEnv(Masked()))
    space = env.get_observation_space("green_0")
    assert space["action_mask"] == spaces.MultiBinary(3)
    assert space["observation"] == Walkers().observation_space("green_0")
    obs = env.reset(seed=0).obs["red_0"]
    np.testing.assert_array_equal(obs["action_mask"], [1, 0, 0])
    obs = env.step({"red_0": 0}).obs["green_0"]
    np.testing.assert_array_equal(obs["action_mask"], [1, 1, 0])


def test_objects_creators_and_classes_need_no_adapter_by_hand() -> None:
    for spec in (Walkers, lambda context: Walkers(), lambda context: PettingZooEnv(Walkers())):
        made = make_multi_host(spec)
        assert made.possible_agents == tuple(AGENTS)
        assert isinstance(made.make_checked().env, PettingZooEnv)
    made = make_multi_host(Together, {"length": 7})
    assert made.make_checked().env.par_env.length == 7
    assert isinstance(made.make_checked().env, ParallelPettingZooEnv)
    assert make_multi_host(Walkers()).possible_agents == tuple(AGENTS)
    assert is_multi_agent_spec(Walkers)
    assert is_multi_agent_spec(Together())
    assert wrap_pettingzoo(made) is made


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a package with an environment of both kinds, and one in turns alone."""
    both: Any = types.ModuleType("zoo_here.both_v1")
    both.env, both.parallel_env = Walkers, Together
    turns: Any = types.ModuleType("zoo_here.turns_v1")
    turns.env = Walkers
    empty = types.ModuleType("zoo_here.empty_v1")
    zoo: Any = types.ModuleType("zoo_here")
    zoo.__path__ = []
    for module in (zoo, both, turns, empty):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return "zoo_here"


@pytest.mark.filterwarnings("ignore:.*(every episode terminated after 9|had not acted):UserWarning")
def test_ids_name_a_package_and_an_environment(package: str) -> None:
    both = make_multi_host(f"pettingzoo:{package}/both_v1", {"length": 2})
    assert both.possible_agents == ("one_0", "two_0")
    turns = make_multi_host(f"pettingzoo:{package}/turns_v1")
    assert turns.possible_agents == tuple(AGENTS)
    copy = pickle.loads(pickle.dumps(both.create))
    assert copy({"length": 2}).par_env.length == 2
    assert is_multi_agent_spec("pettingzoo:any/thing_v0")
    assert find_imports(f"pettingzoo:{package}/both_v1") == (package, None)
    check_env(f"pettingzoo:{package}/turns_v1")


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("spread", UnknownNameError, "needs a package and a name, as in pettingzoo:mpe2/simple_"),
        ("zoo_here/empty_v1", UnknownNameError, "the module zoo_here.empty_v1 has no env"),
        ("zoo_here/other_v1", UnknownNameError, "zoo_here has no environment 'other_v1'"),
        (
            "mpe/simple_v3",
            EnvError,
            r"package 'mpe'; its environments have moved: pettingzoo:mpe2/simple_v3\.$",
        ),
        ("nopackage/x_v0", EnvError, "lacks the package 'nopackage'"),
        ("classic/connect_fuor_v3", UnknownNameError, "Did you mean 'connect_four_v3'"),
    ],
)
def test_ids_that_name_nothing(package: str, name: str, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make_multi_host(f"pettingzoo:{name}")


def test_simple_spread_by_its_id() -> None:
    pytest.importorskip("mpe2")
    made = make_multi_host("pettingzoo:mpe2/simple_spread_v3", {"max_cycles": 5, "N": 2})
    assert made.possible_agents == ("agent_0", "agent_1")
    assert made.state_space is not None
    env = made.make_checked()
    first = env.reset(seed=4)
    again = made.make_checked().reset(seed=4)
    np.testing.assert_equal(first.obs, again.obs)
    for count in range(1, 6):
        step = env.step(dict.fromkeys(env.agents_to_act, 1))
        assert step.is_over == (count == 5)
    assert step.truncated == {"agent_0": True, "agent_1": True, "__all__": True}
