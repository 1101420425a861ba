"""Training of several agents in Python environments in this process."""

import random
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.a2c import A2CConfig
from jaxrl.algorithms.appo import APPOConfig
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.algorithms.sac import SACConfig
from jaxrl.envs import MultiAgentEnv, make_multi_host
from jaxrl.envs.host_vector import make_vector
from jaxrl.errors import ConfigError, EnvError
from tests.multi_agent.host_envs import Duel, Forgetful

MAPPING = {"left": "one", "right": "two"}
MEMORY = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 6}


def make_config(env: Any = Duel, config: Any = None, **model: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env, env_config=config or {})
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size=48, minibatch_size=24, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8], **model})
        .multi_agent(mapping=MAPPING)
        .debugging(loggers=[], seed=5)
    )


def get_leaves(algorithm: Algorithm) -> list[np.ndarray]:
    """Parameters and optimizers of all modules."""
    modules = {m: own.learner for m, own in algorithm.state.modules.items()}
    return [np.array(leaf) for leaf in jax.tree.leaves(modules) if hasattr(leaf, "dtype")]


@pytest.mark.parametrize(
    "model", [{}, pytest.param(MEMORY, marks=pytest.mark.slow)], ids=["no memory", "memory"]
)
def test_a_run_is_resumed_to_the_bit_with_its_pending_rows(
    model: dict[str, Any], tmp_path: Path
) -> None:
    with make_config(**model).build() as whole:
        whole.train()
        path = whole.save(str(tmp_path / "saved"))
        expected = whole.train()
        leaves = get_leaves(whole)
    with Algorithm.from_checkpoint(path) as resumed:
        found = resumed.train()
        for one, other in zip(get_leaves(resumed), leaves, strict=True):
            np.testing.assert_array_equal(one, other)
    for name in ("num_env_steps_sampled_lifetime", "num_agent_steps_sampled_lifetime"):
        assert found["env_runners"][name] == expected["env_runners"][name]
    assert found["fault_tolerance"]["num_agent_steps_lost"] == 0


def test_episodes_of_an_environment_without_a_state_are_restarted(tmp_path: Path) -> None:
    with make_config(Forgetful).build() as first:
        first.train()
        path = first.save(str(tmp_path / "saved"))
    with Algorithm.from_checkpoint(path) as second:
        result = second.train()
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 96
    # after 12 steps, each of the four copies has one row that waits for the agent's next turn
    assert result["fault_tolerance"]["num_agent_steps_lost"] == 4


def test_a_copy_that_raises_is_restarted_alone_and_its_pending_rows_are_counted() -> None:
    config = make_config(config={"fails_at": 5}).fault_tolerance(
        restart_failed_sub_environments=True
    )
    with config.build() as algorithm:
        result = algorithm.train()
        runner: Any = algorithm.env_runner
        episodes = [env.total_steps for env in runner.env.envs]
    faults = result["fault_tolerance"]
    # every fifth step of the second copy raises, and one before it hangs at each of these times
    assert faults["num_sub_env_restarts"] == 2
    assert faults["num_agent_steps_lost"] == 4
    assert "the simulator is gone" in faults["restarts"][0]
    assert episodes == [12, 2, 12, 12]
    assert result["env_runners"]["num_env_steps_sampled"] == 46
    sampled = result["env_runners"]["num_agent_steps_sampled"]
    # of 48 actions, 4 are lost, and each ongoing episode has its last two, or one, pending
    assert 48 - 4 - 8 <= sum(sampled.values()) <= 48 - 4


def test_what_an_environment_raises_ends_the_run_without_restarts() -> None:
    with (
        make_config(config={"fails_at": 5}).build() as algorithm,
        pytest.raises(EnvError, match=r"vector_index=1.*step raised RuntimeError: the simulator"),
    ):
        algorithm.train()


def test_a_value_that_is_not_finite_masks_its_step_and_is_reported() -> None:
    with make_config(config={"bad_reward_at": 5}).build() as algorithm:
        result = algorithm.train()
    faults = result["fault_tolerance"]
    assert faults["num_nonfinite_env_steps"] == 1
    assert faults["last_nonfinite_env_step"] == {"env_index": 1, "env_step": 4, "what": "reward"}
    assert faults["num_agent_steps_lost"] == 2
    assert result["env_runners"]["num_env_steps_sampled"] == 47


def test_the_mapping_is_chosen_once_for_each_agent_and_episode() -> None:
    calls: list[tuple[str, str]] = []
    seen: list[dict[str, str]] = []
    rng = random.Random(3)

    def choose(agent_id: str, episode: Any, **kwargs: Any) -> str:
        calls.append((agent_id, episode.id_))
        return "main" if agent_id == "left" else rng.choice(["main", "old"])

    def on_end(episode: Any, **kwargs: Any) -> None:
        seen.append({agent: episode.module_for(agent) for agent in episode.agent_ids})

    config = make_config().multi_agent(
        mapping=None,
        policies={"main", "old"},
        policy_mapping_fn=choose,
        policies_to_train=["main"],
    )
    with config.callbacks(on_episode_end=on_end).build() as algorithm:
        before = len(calls)
        for _ in range(3):
            result = algorithm.train()
        mapping = algorithm.config.multi_agent_settings.mapping
        old = algorithm.get_module("old")
    assert mapping == {"left": ["main"], "right": ["main", "old"]}
    assert old is not None
    own = calls[before:]
    assert len(own) == len(set(own))
    assert {found["left"] for found in seen} == {"main"}
    assert {found["right"] for found in seen} == {"main", "old"}
    steps = result["env_runners"]["num_module_steps_sampled"]
    agents = result["env_runners"]["num_agent_steps_sampled"]
    assert sum(steps.values()) == sum(agents.values())
    assert steps["old"] > 0
    assert steps["main"] > agents["left"]
    assert "old" not in result["learners"]
    lifetime = result["env_runners"]["num_module_steps_sampled_lifetime"]
    assert sum(lifetime.values()) == sum(
        result["env_runners"]["num_agent_steps_sampled_lifetime"].values()
    )


def test_a_module_without_a_row_for_an_agent_is_refused() -> None:
    answers = iter(["main"] * 400)
    config = make_config().multi_agent(
        mapping={"left": ["main", "old"], "right": "main"},
        policies={"main", "old", "third"},
        policy_mapping_fn=lambda agent_id, *args, **kwargs: next(answers, "third"),
    )
    with pytest.raises(ConfigError, match="policies has 'third', which plays none"):
        config.build()
    config.multi_agent(policies={"main", "old"}, policies_to_train=["main"])
    answers = iter(["main"])
    with (
        config.build() as algorithm,
        pytest.raises(ConfigError, match="gives the agent 'left' the module 'third'"),
    ):
        algorithm.train()


def test_evaluation_reports_agents_and_modules_and_actions_are_computed_by_agent() -> None:
    config = make_config().evaluation(evaluation_interval=1, evaluation_duration=5)
    with config.build() as algorithm:
        played = algorithm.train()["evaluation"]["env_runners"]
        obs = dict.fromkeys(("left", "right"), np.zeros(3, np.float32))
        actions = algorithm.compute_actions(obs)
    assert played["num_episodes"] == 5
    agents = played["agent_episode_returns_mean"]
    assert sum(agents.values()) == pytest.approx(played["episode_return_mean"])
    assert played["module_episode_returns_mean"] == {
        MAPPING[agent]: value for agent, value in agents.items()
    }
    assert set(actions) == {"left", "right"}


def test_callbacks_receive_episodes_of_all_agents() -> None:
    ends: list[Any] = []
    sampled: list[list[Any]] = []
    times: list[int] = []

    def end(episode: Any, env: Any, env_index: int, **kwargs: Any) -> None:
        ends.append(episode)
        times.append(env.envs[env_index].time)

    config = make_config().callbacks(
        on_episode_end=end, on_sample_end=lambda samples, **kwargs: sampled.append(samples)
    )
    starts: list[Any] = []
    config.callbacks(on_episode_start=lambda episode, **kwargs: starts.append(episode))
    with config.build() as algorithm:
        result = algorithm.train()
    # 12 steps of each of 4 copies are one episode of 7 steps each, and 5 more
    assert len(ends) == 4
    assert times == [7] * 4  # the environments as the last step left them
    assert len(starts) == 8
    assert sum(len(chunk) for chunks in sampled for chunk in chunks) == 48
    for episode in ends:
        assert episode.is_done
        assert episode.env_t == 7
        assert len(episode.agent_episodes["left"]) == 4
        assert len(episode.agent_episodes["right"]) == 3
        assert episode.agent_episodes["left"].is_terminated == episode.is_terminated
    mean = np.mean([episode.get_return() for episode in ends])
    assert result["env_runners"]["episode_return_mean"] == pytest.approx(mean)


def test_callbacks_receive_the_evaluated_episodes_of_all_agents() -> None:
    ends: list[Any] = []
    sampled: list[list[int]] = []
    config = make_config().callbacks(
        on_episode_end=lambda episode, **kwargs: ends.append(episode),
        on_sample_end=lambda samples, **kwargs: sampled.append([*map(len, samples)]),
    )
    config.evaluation(evaluation_duration=5, evaluation_num_envs=5)
    with config.build() as algorithm:
        played = algorithm.evaluate()["env_runners"]
    assert played["num_episodes"] == len(ends) == 5
    assert sampled == [[7] * 5]  # chunks of 16 steps have two episodes each
    mean = np.mean([episode.get_return() for episode in ends])
    assert played["episode_return_mean"] == pytest.approx(mean)


@pytest.mark.parametrize(
    "config_class",
    [
        pytest.param(A2CConfig, marks=pytest.mark.slow),
        pytest.param(IMPALAConfig, marks=pytest.mark.slow),
        pytest.param(APPOConfig, marks=pytest.mark.slow),
    ],
)
def test_other_on_policy_algorithms_train_every_module(config_class: Any) -> None:
    config = (
        config_class()
        .environment(Duel)
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size=48)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .multi_agent(mapping=MAPPING)
        .debugging(loggers=[], seed=5)
    )
    with config.build() as algorithm:
        before = get_leaves(algorithm)
        for _ in range(6):  # a circular buffer is filled first
            result = algorithm.train()
        after = get_leaves(algorithm)
    assert any(np.any(one != other) for one, other in zip(before, after, strict=True))
    for m in ("one", "two"):
        assert result["learners"][m]["num_module_steps_trained"] > 0


@pytest.mark.parametrize(
    "config_class", [DQNConfig, pytest.param(SACConfig, marks=pytest.mark.slow)]
)
def test_every_module_replays_its_own_rows(config_class: Any, tmp_path: Path) -> None:
    config = (
        config_class()
        .environment(Duel)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=6)
        .training(
            train_batch_size=8,
            num_steps_sampled_before_learning_starts=20,
            replay_buffer_config={"capacity": 240},
        )
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .multi_agent(mapping=MAPPING)
        .reporting(min_sample_timesteps_per_iteration=24)
        .debugging(loggers=[], seed=5)
    )
    with config.build() as algorithm:
        for _ in range(4):
            result = algorithm.train()
        path = algorithm.save(str(tmp_path / "saved"))
        expected = algorithm.train()
    for m, agent in (("one", "left"), ("two", "right")):
        stored = result["replay_buffer"][m]["num_module_steps_stored"]
        sampled = result["env_runners"]["num_agent_steps_sampled_lifetime"][agent]
        assert stored == sampled > 0
        assert result["learners"][m]["num_updates_lifetime"] > 0
    with Algorithm.from_checkpoint(path) as resumed:
        found = resumed.train()
    assert found["learners"] == expected["learners"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c.env_runners(placement="in_graph"), "placement='in_graph' is not supported"),
        (
            lambda c: c.env_runners(batch_mode="complete_episodes"),
            "batch_mode='complete_episodes' is not supported",
        ),
        (
            lambda c: c.env_runners(gym_env_vectorize_mode="vector_entry_point"),
            "gym_env_vectorize_mode='vector_entry_point' is not supported",
        ),
        (lambda c: c.multi_agent(share_rewards="team"), "share_rewards='team'"),
        (lambda c: c.multi_agent(count_steps_by="agent_steps"), "does not declare max_acting"),
    ],
)
def test_what_is_not_there_is_refused(change: Any, match: str) -> None:
    config = make_config()
    change(config)
    with pytest.raises(ConfigError, match=match):
        config.build()


class InPlace(MultiAgentEnv):
    """Two agents that see the number of steps, written into the same array at each."""

    possible_agents = ["0", "1"]
    observation_spaces = dict.fromkeys(
        possible_agents, gymnasium.spaces.Box(0, 99, (1,), np.float32)
    )
    action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(2))

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.agents = self.possible_agents
        self.seen = {agent: np.zeros(1, np.float32) for agent in self.possible_agents}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        for seen in self.seen.values():
            seen[:] = 0
        return dict(self.seen), {}

    def step(self, action_dict: Any) -> Any:
        for seen in self.seen.values():
            seen += 1
        return dict(self.seen), {}, {"__all__": False}, {"__all__": self.seen["0"][0] >= 4}, {}


def test_an_environment_that_writes_in_place_keeps_its_last_observation() -> None:
    vector = make_vector(make_multi_host(InPlace), num_envs=1)
    (start,) = vector.reset()
    steps = [vector.step([dict.fromkeys(("0", "1"), np.int64(0))])[0] for _ in range(4)]
    observed = [start, *(copy.step for copy in steps)]
    assert [float(each.obs["1"][0]) for each in observed if each] == [0, 1, 2, 3, 4]
    assert steps[-1].start is not None
    assert float(steps[-1].start.obs["1"][0]) == 0
    ends: list[Any] = []
    config = make_config(InPlace).multi_agent(mapping={"0": "p0", "1": "p1"})
    config.callbacks(on_episode_end=lambda episode, **kwargs: ends.append(episode))
    with config.build() as algorithm:
        algorithm.train()
    np.testing.assert_array_equal(ends[0].get_observations()["1"][:, 0], [0, 1, 2, 3, 4])


def test_a_mapping_function_is_given_the_environments_own_ids() -> None:
    def choose(agent_id: Any, *args: Any, **kwargs: Any) -> str:
        return "first" if agent_id == "0" else "second"

    config = make_config(InPlace).multi_agent(mapping=None, policies=["first", "second"])
    config.multi_agent(policy_mapping_fn=choose)
    config.prepare()
    assert config.mapping == {"0": ["first"], "1": ["second"]}


def test_runners_have_the_policies_that_they_act_with() -> None:
    with make_config().build() as algorithm:
        for _ in range(2):
            runners: Any = algorithm.env_runner_group
            weights = algorithm.get_weights()
            for m, own in weights.items():
                found = runners.foreach_env_runner(lambda runner, m=m: runner.get_policy(m))[0]
                jax.tree.map(np.testing.assert_array_equal, found.get_weights(), own)
                logits, _ = found.model({"obs": np.zeros((1, *found.observation_space.shape))})
                assert logits.shape[0] == 1
            jax.tree.map(
                np.testing.assert_array_equal, runners.local_worker().get_weights(), weights
            )
            assert runners.local_worker().get_policy("three") is None
            assert algorithm.get_policy("three") is None
            algorithm.train()
