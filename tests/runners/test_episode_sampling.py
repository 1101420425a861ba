"""Episodes on request: RLlib's `sample` and `get_metrics` of a runner."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Callbacks
from jaxrl.core.types import Columns
from jaxrl.envs import MultiAgentEnv
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.errors import ConfigError, EnvError
from jaxrl.runners.env_runner import EnvRunner, make_env_runner
from jaxrl.runners.metrics_logger import MetricsLogger
from tests.helpers import small


class Walk(gymnasium.Env[Any, Any]):
    """Takes `length` steps; its observation is the number of the step, its info a random number."""

    observation_space = spaces.Box(0.0, 99.0, (1,), np.float32)
    action_space = spaces.Box(np.array([-3.0, 2.0], np.float32), np.array([5.0, 4.0], np.float32))

    def __init__(self, config: Any) -> None:
        self.length = config.get("length", 6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {"drawn": int(self.np_random.integers(10**6))}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = {"action": action}
        return np.full(1, self.time, np.float32), 1.0, self.time == self.length, False, info


class Walks(MultiAgentEnv):
    """The same of two agents, the second of which has twice the reward."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.inner = {name: Walk(config) for name in ("a", "b")}
        self.agents = self.possible_agents = list(self.inner)
        self.observation_spaces = dict.fromkeys(self.agents, Walk.observation_space)
        self.action_spaces = dict.fromkeys(self.agents, Walk.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        both = {name: env.reset(seed=seed) for name, env in self.inner.items()}
        return {n: obs for n, (obs, _) in both.items()}, {n: info for n, (_, info) in both.items()}

    def step(self, action_dict: Any) -> Any:
        done = {name: self.inner[name].step(action) for name, action in action_dict.items()}
        ended = {"__all__": done["a"][2]}
        rewards = {"a": 1.0, "b": 2.0}
        infos = {name: step[4] for name, step in done.items()}
        return {n: s[0] for n, s in done.items()}, rewards, ended, {"__all__": False}, infos


class Hears(Callbacks):
    """Logs the length of every episode, and notes what is sampled."""

    def __init__(self) -> None:
        self.samples: list[list[int]] = []

    def on_episode_end(self, *, metrics_logger: Any, episode: Any) -> None:
        metrics_logger.log_value("heard", 1, reduce="sum")

    def on_sample_end(self, *, samples: Any) -> None:
        self.samples.append([len(episode) for episode in samples])


def make_runner(env: Any, num_envs: int = 2, callbacks: Any = None, **settings: Any) -> Any:
    config = small().environment(env).env_runners(rollout_fragment_length=4)
    config.env_runners(**settings)
    if env is Walks:
        config.multi_agent(policies={"one"}, policy_mapping_fn=lambda *args, **kwargs: "one")
    if callbacks is not None:
        config.callbacks(callbacks)
    with config.build() as algorithm:
        weights = algorithm.learner_group.get_weights(0)
    runner = make_env_runner(config, num_envs=num_envs, first_env_index=0)
    runner.set_weights(weights)
    return runner


@pytest.fixture(scope="module", params=[Walk, Walks])
def runner(request: pytest.FixtureRequest) -> Any:
    return make_runner(request.param)


def get_infos(episode: Any) -> list[dict[str, Any]]:
    return (
        episode if isinstance(episode, SingleAgentEpisode) else episode.agent_episodes["a"]
    ).get_infos()


def get_actions(episode: Any) -> np.ndarray:
    own = episode if isinstance(episode, SingleAgentEpisode) else episode.agent_episodes["a"]
    return own.get_actions()


@pytest.mark.parametrize("number", [0, 1, 3, 5])
def test_episodes_are_whole_and_as_many_as_wanted(runner: Any, number: int) -> None:
    found = runner.sample(num_episodes=number)
    assert all(isinstance(each, SingleAgentEpisode | MultiAgentEpisode) for each in found)
    assert [(len(each), each.is_done) for each in found] == [(6, True)] * number
    again = runner.sample(num_episodes=number)
    drawn = [get_infos(each)[0]["drawn"] for each in (*found, *again)]
    assert len(set(drawn)) == len(drawn)


def test_steps_go_on_in_the_next_call_unless_a_reset_is_asked_for(runner: Any) -> None:
    first = runner.sample(num_timesteps=7, force_reset=True)
    assert [len(each) for each in first] == [4, 4]
    second = runner.sample(num_timesteps=6)
    assert [(len(each), each.is_done) for each in second] == [(2, True)] * 2 + [(1, False)] * 2
    assert [each.id_ for each in second[:2]] == [each.id_ for each in first]
    third = runner.sample(num_timesteps=2, force_reset=True)
    assert not {each.id_ for each in third} & {each.id_ for each in second}
    assert all("drawn" in get_infos(each)[0] for each in third)
    runner.sample(num_episodes=1)
    (fourth, _) = runner.sample(num_timesteps=2)
    assert "drawn" in get_infos(fourth)[0]
    assert runner.sample(num_timesteps=0) == []


def test_without_a_number_it_is_a_fragment(runner: Any) -> None:
    found = runner.sample(force_reset=True)
    assert [len(each) for each in found] == [4, 4]


def test_actions_are_explored_or_not_or_random(runner: Any) -> None:
    def sample(**how: Any) -> tuple[np.ndarray, list[dict[str, Any]]]:
        (episode,) = runner.sample(num_episodes=1, **how)
        return get_actions(episode), get_infos(episode)

    greedy, _ = sample(explore=False)
    np.testing.assert_array_equal(greedy, sample(explore=False)[0])
    assert not np.array_equal(sample(explore=True)[0], greedy)
    explored, infos = sample()
    assert not np.array_equal(explored, greedy)
    np.testing.assert_allclose(infos[1]["action"], [1, 3] + explored[0].clip(-1, 1) * [4, 1], 1e-5)
    random, infos = sample(random_actions=True)
    assert (np.abs(random) <= 1).all()
    np.testing.assert_allclose(infos[1]["action"], [1, 3] + random[0] * [4, 1], rtol=1e-5)
    assert not np.array_equal(random, sample(random_actions=True)[0])


def test_random_actions_have_no_outputs_of_a_module() -> None:
    runner = make_runner(Walk)
    runner.sample(num_timesteps=2)
    (chunk, _) = runner.sample(num_timesteps=2, random_actions=True)
    assert not chunk.extra_model_outputs
    (chunk, _) = runner.sample(num_timesteps=2)
    assert Columns.ACTION_LOGP in chunk.extra_model_outputs


def test_fragments_are_as_without_sampling_before() -> None:
    plain, other = make_runner(Walk), make_runner(Walk)
    before = plain.sample_fragment(4), other.sample_fragment(4)
    other.sample(num_timesteps=0)
    after = plain.sample_fragment(3), other.sample_fragment(3)
    for wanted, found in (before, after):
        np.testing.assert_array_equal(wanted.rollout.action, found.rollout.action)
    assert other.tracker is None


def test_metrics_are_those_of_the_sampled_episodes(runner: Any) -> None:
    runner.get_metrics()
    runner.sample(num_timesteps=8, force_reset=True)
    runner.sample(num_timesteps=8)
    found = pickle.loads(pickle.dumps(runner.get_metrics()))
    assert found["num_env_steps_sampled"] == 16
    assert found["num_episodes"] == 2
    several = isinstance(runner.sample(num_episodes=1)[0], MultiAgentEpisode)
    total = 18.0 if several else 6.0
    assert [found[f"episode_return_{each}"] for each in ("mean", "min", "max")] == [total] * 3
    assert found["episode_len_mean"] == 6.0
    if several:
        assert found["agent_episode_returns_mean"] == {"a": 6.0, "b": 12.0}
        assert found["module_episode_returns_mean"] == {"one": 9.0}
    logger = MetricsLogger()
    logger.aggregate([found, runner.get_metrics()], key=("evaluation", "env_runners"))
    merged = logger.peek(("evaluation", "env_runners"))
    assert merged["num_episodes"] == 3
    assert merged["episode_return_mean"] == total
    assert runner.get_metrics() == {}


def test_callbacks_are_called_and_what_they_log_is_among_the_metrics() -> None:
    hears = Hears()
    runner = make_runner(Walk, num_envs=3, callbacks=hears)
    runner.sample(num_episodes=4)
    assert hears.samples == [[6] * 4]
    assert runner.get_metrics()["heard"] == 4
    assert runner.sample_fragment(6).metrics["heard"]["data"] == [3]


def test_whole_episodes_without_a_number() -> None:
    runner = make_runner(Walk, batch_mode="complete_episodes", rollout_fragment_length="auto")
    assert [len(each) for each in runner.sample()] == [6, 6]


def test_what_cannot_be_sampled_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(lambda config: Walk({"length": 10**6}))
    with pytest.raises(ConfigError, match="num_timesteps=3 and num_episodes=2; leave one"):
        runner.sample(num_timesteps=3, num_episodes=2)
    with pytest.raises(ConfigError, match=r"num_episodes of sample\(\) must be at least 0, got -1"):
        runner.sample(num_episodes=-1)
    monkeypatch.setattr("jaxrl.runners.host_runner.MAX_EPISODE_STEPS", 40)
    with pytest.raises(EnvError, match="no episode has ended after 64 steps; set max_episode"):
        runner.sample(num_episodes=1)


class OwnSample(EnvRunner):
    """Overrides what training does not call."""

    def sample(self, **arguments: Any) -> Any:
        return super().sample(**arguments)


def test_a_runner_of_ones_own_overrides_the_fragments() -> None:
    config = small().environment(Walk).env_runners(env_runner_cls=OwnSample)
    with pytest.raises(ConfigError, match=r"OwnSample overrides sample\(\), .* sample_fragment"):
        config.build()


def evaluate(algorithm: Any, eval_workers: Any) -> Any:
    """RLlib's way, with its three values."""
    found = eval_workers.foreach_env_runner(lambda runner: runner.sample(num_episodes=3))
    lengths = [len(episode) for episodes in found for episode in episodes]
    metrics = eval_workers.foreach_env_runner("get_metrics")
    algorithm.metrics.aggregate(metrics, key=("evaluation", "env_runners"))
    result = algorithm.metrics.peek(("evaluation", "env_runners"))
    return {**result, "lengths": lengths}, sum(lengths), sum(lengths)


def test_an_evaluation_function_samples_by_the_settings_of_the_evaluation() -> None:
    config = small().environment(Walk, env_config={"length": 2})
    config.evaluation(
        custom_evaluation_function=evaluate, evaluation_config={"env_config": {"length": 5}}
    )
    with config.build() as algorithm:
        result = algorithm.evaluate()
    assert result["lengths"] == [5] * 3
    assert result["episode_return_mean"] == 5.0
    assert result["num_env_steps_sampled_this_iter"] == 15
    assert result["num_agent_steps_sampled_this_iter"] == 15
