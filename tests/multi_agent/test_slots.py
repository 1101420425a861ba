"""Agents that come and go, of ids that nobody knows before, against a walk over what they did."""

import collections
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.algorithms.qmix import QMIXConfig
from jaxrl.callbacks import RLlibCallback
from jaxrl.config.settings.multi_agent import PolicySpec
from jaxrl.core.types import Progress
from jaxrl.envs.multi.host_env import MultiAgentEnv
from jaxrl.errors import CheckpointError, ConfigError, EnvError
from jaxrl.runners.env_runner import make_env_runner
from jaxrl.runners.fragment import Weights
from jaxrl.training.rollout import ActorState
from tests.multi_agent.agent_envs import Targets
from tests.multi_agent.host_envs import Duel

SPACES = {
    "car": spaces.Box(0.0, 1e6, (3,), np.float32),
    "bus": spaces.Box(0.0, 1e6, (4,), np.float32),
}


def find_kind(agent_id: str, *args: Any, **kwargs: Any) -> str:
    return agent_id.partition("_")[0]


class Traffic(MultiAgentEnv):
    """Cars and buses with ever new numbers that act, are paid, arrive and give up at random.

    It writes down each agent's transitions, from an action to the next one or to the agent's end.
    """

    rows: Any = None
    """Counter of transitions (number, time, action, reward, time after, ends, begins), if set."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        config = config or {}
        self.places, self.kinds = config.get("places", 3), config.get("kinds", ("car", "bus"))
        self.number = 1000 * (1 + getattr(config, "vector_index", 0))
        self.seen: dict[str, int] = {}

    def get_observation_space(self, agent_id: Any) -> Any:
        return SPACES[find_kind(agent_id)]

    def get_action_space(self, agent_id: Any) -> Any:
        return spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.present, self.waiting = 0, list[str](), dict[str, Any]()
        self.begins = dict[str, bool]()
        for kind in self.kinds:
            self.enter(kind)
        return {agent: self.see(agent) for agent in self.present}, {}

    def enter(self, kind: str) -> str:
        self.number += 1
        self.present.append(f"{kind}_{self.number}")
        self.begins[self.present[-1]] = True
        return self.present[-1]

    def see(self, agent: str) -> np.ndarray:
        number = int(agent.partition("_")[2])
        obs = np.zeros(SPACES[find_kind(agent)].shape, np.float32)
        obs[:3] = number // 1000, number % 1000, self.time
        return obs

    def step(self, action_dict: Any) -> Any:
        rng, rewards, ends, obs = self.np_random, {}, {}, {}
        for agent, action in action_dict.items():
            begins = self.begins[agent]
            self.begins[agent] = False
            self.waiting[agent] = [agent, self.time, int(action), 0.0, begins]
        self.time += 1
        over = self.time == 15
        for agent in self.present:
            rewards[agent] = float(rng.integers(8)) / 4
            if agent in self.waiting:
                self.waiting[agent][3] += rewards[agent]
            draw = rng.random()
            end = "dies" if draw < 0.15 else "leaves" if draw < 0.3 else "cut" if over else ""
            if end or rng.random() < 0.6:
                obs[agent] = self.see(agent)
                self.complete(agent, end)
            if end:
                ends[agent] = end
        self.present = [agent for agent in self.present if agent not in ends]
        for kind in self.kinds:
            here = sum(find_kind(agent) == kind for agent in self.present)
            gone = sum(find_kind(agent) == kind for agent in ends)
            if not over and here + gone < self.places and rng.random() < 0.7:
                agent = self.enter(kind)
                obs[agent] = self.see(agent)
        terminated = {agent: end == "dies" for agent, end in ends.items()}
        truncated = {agent: end != "dies" for agent, end in ends.items()}
        return (
            obs,
            rewards,
            {**terminated, "__all__": False},
            {**truncated, "__all__": over},
            {},
        )

    def complete(self, agent: str, end: str) -> None:
        begun = self.waiting.pop(agent, None)
        if begun is not None and type(self).rows is not None:
            _, time, action, reward, begins = begun
            number = int(agent.partition("_")[2])
            type(self).rows[number, time, action, reward, self.time, end, begins] += 1


def make_config(env: Any = Traffic, algo: Any = PPOConfig, **settings: Any) -> Any:
    settings = {
        "max_agents": 4,
        "policies": ["car", "bus"],
        "policy_mapping_fn": find_kind,
        **settings,
    }
    config = algo().environment(env, env_config={"places": 3})
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=16)
    config.training(train_batch_size=32)
    if algo is PPOConfig:
        config.training(minibatch_size=8, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]}).debugging(loggers=[], seed=3)
    return config.multi_agent(**settings)


def make_runner(config: Any) -> Any:
    config.prepare()
    runner: Any = make_env_runner(config, num_envs=2, first_env_index=0)
    policies = runner.policy_step.policies
    actor = {
        m: ActorState(
            params=policy.module.init(jax.random.key(3)),
            obs_state=policy.obs_pipeline.init(),
            hparams={},
            progress=Progress.zeros(),
        )
        for m, policy in policies.items()
    }
    runner.set_weights(Weights(version=0, actor=actor))
    return runner


def read_rows(fragment: Any) -> "collections.Counter[Any]":
    """Return the rows of a fragment as the environment writes transitions down."""
    found: collections.Counter[Any] = collections.Counter()
    for rollout in fragment.rollout.rollouts.values():
        for t, row in zip(*np.nonzero(rollout.mask), strict=True):
            obs, after = rollout.obs[t, row], rollout.final_obs[t, row]
            assert (obs[:2] == after[:2]).all()
            number = int(obs[0] * 1000 + obs[1])
            end = (
                "dies"
                if rollout.terminated[t, row]
                else ""
                if not rollout.truncated[t, row]
                else "cut"
            )
            key = (int(obs[2]), int(rollout.action[t, row]), float(rollout.reward[t, row]))
            found[(number, *key, int(after[2]), end, bool(rollout.is_first[t, row]))] += 1
    return found


def test_rows_are_those_of_a_walk_over_each_agents_own_episode() -> None:
    """None is lost or doubled, whoever had a slot before, and nothing is compiled for a population."""

    class Written(Traffic):
        rows = collections.Counter[Any]()

    runner = make_runner(make_config(Written))
    Written.rows.clear()  # of the check before the run
    found: collections.Counter[Any] = collections.Counter()
    sizes: set[int] = set()
    for _ in range(12):
        fragment = runner.sample_fragment(11)
        found += read_rows(fragment)
        assert fragment.num_agent_steps_lost == 0
        sizes |= {own.mask.shape[1] for own in fragment.rollout.rollouts.values()}
    expected: collections.Counter[Any] = collections.Counter()
    for (*key, end, begins), count in Written.rows.items():
        expected[(*key, "cut" if end == "leaves" else end, begins)] += count
    assert found == expected
    assert max(found.values()) == 1
    assert len({number for number, *_ in found}) > 60
    assert sizes == {8}  # two copies of four slots
    assert all(len(program.compile_stats) == 1 for program in runner.programs)
    for env in runner.vector._copies._copies:  # what is known of agents that left is forgotten
        assert len(env.env.agents._own) <= 8
        assert len(env.env.agents._kinds) == 2


def test_a_run_has_results_of_modules_alone() -> None:
    with make_config().build() as algorithm:
        algorithm.train()
        first = set(algorithm.train())
        result = algorithm.train()
        runners = result["env_runners"]
        evaluated = algorithm.evaluate()["env_runners"]
        assert algorithm.config.multi_agent_settings.max_agents == 4
        obs = np.zeros(3, np.float32)
        action = algorithm.compute_single_action(obs, policy_id="car")
        with pytest.raises(ConfigError, match=r"'car_7' is not known, .*as policy_id, one of bus"):
            algorithm.compute_actions({"car_7": obs})
    assert set(result) == first
    assert int(action) in (0, 1)
    for name in ("agent_episode_returns_mean", "num_agent_steps_sampled"):
        assert runners[name] == {}
    assert set(runners["module_episode_returns_mean"]) == {"bus", "car"}
    assert all(value > 0 for value in runners["module_episode_returns_mean"].values())
    assert set(runners["num_module_steps_sampled_lifetime"]) == {"bus", "car"}
    assert evaluated["agent_episode_returns_mean"] == {}
    assert set(result["learners"]) == {"bus", "car", "__all_modules__"}


class Sampled(Traffic):
    """Agents whose module is drawn, all with the same spaces."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.kinds = ("car",)


def test_a_module_is_chosen_once_for_an_agent_and_an_episode() -> None:
    calls: collections.Counter[Any] = collections.Counter()
    chosen: dict[Any, str] = {}
    rng = np.random.default_rng(0)

    def choose(agent_id: Any, episode: Any, **kwargs: Any) -> str:
        key = (agent_id, episode.id_)
        calls[key] += 1
        return chosen.setdefault(key, str(rng.choice(["one", "two"])))

    config = make_config(Sampled, policies=["one", "two"], policy_mapping_fn=choose)
    runner = make_runner(config)
    calls.clear()
    chosen.clear()
    fragment = runner.sample_fragment(40)
    assert len(calls) > 20
    assert set(calls.values()) == {1}
    by_number = {key[0]: module for key, module in chosen.items()}
    for module, rollout in fragment.rollout.rollouts.items():
        for obs in rollout.obs[rollout.mask]:
            name = f"car_{int(obs[0] * 1000 + obs[1])}"
            assert by_number[name] == module
    assert set(by_number.values()) == {"one", "two"}


def test_callbacks_receive_the_agents_own_ids() -> None:
    ended: list[Any] = []

    class Reads(RLlibCallback):
        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            ended.append({agent: episode.module_for(agent) for agent in episode.agent_ids})

    with make_config().callbacks(Reads).build() as algorithm:
        algorithm.train()
    assert ended
    assert all(find_kind(agent) == module for own in ended for agent, module in own.items())
    assert max(map(len, ended)) > 4


def test_a_full_module_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(
        EnvError, match=r"while all 1 slots of the module .*set max_agents=2 or more"
    ):
        make_config(max_agents=1).build().train()


class Crowding(Traffic):
    """More agents than before, once `is_crowded` is set."""

    is_crowded = False
    learned: Any = None

    def reset(self, **options: Any) -> Any:
        self.places = 7 if self.is_crowded else 3
        return super().reset(**options)


def train_until_full(algorithm: Algorithm) -> None:
    Crowding.learned = algorithm.get_weights()
    for _ in range(9):
        algorithm.train()
        Crowding.learned = algorithm.get_weights()


def test_what_was_learned_goes_on_with_more_slots(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_config(Crowding).build() as algorithm:
        algorithm.train()
        monkeypatch.setattr(Crowding, "is_crowded", True)
        with pytest.raises(EnvError, match=r"policy_ids=\['bus', 'car'\], max_agents=8\)"):
            train_until_full(algorithm)
        path = algorithm.save(tmp_path / "saved")  # as of its last train batch
    with pytest.raises(
        CheckpointError, match=r"with max_agents=4, .* cannot go on with max_agents=8"
    ):
        Algorithm.from_checkpoint(path, max_agents=8)
    with Algorithm.from_checkpoint(path, policy_ids=["bus", "car"], max_agents=8) as algorithm:
        jax.tree.map(np.testing.assert_array_equal, algorithm.get_weights(), Crowding.learned)
        assert algorithm.train()["learners"]["car"]["num_updates_lifetime"] > 8


def test_auto_is_twice_what_random_episodes_have() -> None:
    config = make_config(max_agents="auto")
    config.prepare()
    number = config.multi_agent_settings.max_agents
    assert number % 2 == 0
    assert 6 <= number <= 16
    make_runner(config).sample_fragment(30)


@pytest.mark.slow
def test_replay_has_a_column_for_each_slot() -> None:
    config = make_config(algo=DQNConfig, policies=["car", "bus"])
    config.training(
        num_steps_sampled_before_learning_starts=16, replay_buffer_config={"capacity": 512}
    )
    with config.build() as algorithm:
        for _ in range(3):
            result = algorithm.train()
    assert np.isfinite(result["learners"]["car"]["total_loss"])


@pytest.mark.slow
def test_a_checkpoint_keeps_modules_and_restarts_episodes(tmp_path: Any) -> None:
    with make_config().build() as algorithm:
        algorithm.train()
        path, weights = algorithm.save(tmp_path / "saved"), algorithm.get_weights()
    with Algorithm.from_checkpoint(path) as algorithm:
        jax.tree.map(np.testing.assert_array_equal, algorithm.get_weights(), weights)
        algorithm.train()


def drop_bus(agent_id: str, *args: Any, **kwargs: Any) -> str:
    return "car"


@pytest.mark.parametrize(
    ("config", "error", "sentence"),
    [
        (
            lambda: make_config(Duel, policies=None),
            ConfigError,
            "has no effect: .* names its agents",
        ),
        (
            lambda: make_config(Targets, policies=None).environment(env_config={}),
            ConfigError,
            "has no effect: .* is written in JAX",
        ),
        (lambda: make_config(max_agents=0), ConfigError, "max_agents must be .*at least 1"),
        (
            lambda: make_config(share_rewards="all"),
            ConfigError,
            "share_rewards='all' is of agents that are known before",
        ),
        (
            lambda: make_config(observe_agent_id=True),
            ConfigError,
            "observe_agent_id=True is of agents",
        ),
        (
            lambda: make_config(policy_mapping_fn=None, policies=None, mapping={"car_1": "car"}),
            ConfigError,
            "mapping=.* is of agents that are known .* set policy_mapping_fn",
        ),
        (
            lambda: make_config(policies=["bus", "car", "tram"]),
            ConfigError,
            r"'tram' plays none of the agents .* PolicySpec\(observation_space=",
        ),
        (
            lambda: make_config(policies=["bus"]),
            ConfigError,
            "module 'car', but policies has bus: name it there",
        ),
        (
            lambda: make_config(policies=["car"], policy_mapping_fn=drop_bus),
            EnvError,
            "observation space of the agent 'bus_.*let policy_mapping_fn choose",
        ),
        (
            lambda: make_config(policy_mapping_fn=None),
            ConfigError,
            "nothing says which agents they play: set policy_mapping_fn",
        ),
        (
            lambda: QMIXConfig().environment(Traffic).multi_agent(max_agents=3),
            ConfigError,
            "max_agents=3 has no effect on QMIX",
        ),
        (
            lambda: make_config().env_runners(gym_env_vectorize_mode="async"),
            ConfigError,
            "'async' is not supported with max_agents=.*; use 'sync', or num_env_runners",
        ),
        (
            lambda: PPOConfig().environment("CartPole-v1").multi_agent(max_agents=3),
            ConfigError,
            "max_agents=3 has no effect: the environment has a single agent",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_built(
    config: Any, error: Any, sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        config().build()


def test_spaces_of_a_module_without_a_first_agent_are_given() -> None:
    class Late(Traffic):
        """No bus is there at first."""

        def reset(self, **options: Any) -> Any:
            kinds, self.kinds = self.kinds, ("car",)
            result = super().reset(**options)
            self.kinds = kinds
            return result

    spec = PolicySpec(observation_space=SPACES["bus"], action_space=spaces.Discrete(2))
    runner = make_runner(make_config(Late, policies={"car": None, "bus": spec}))
    rollouts = runner.sample_fragment(30).rollout.rollouts
    assert all(rollout.mask.any() for rollout in rollouts.values())
