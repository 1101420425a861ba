"""Episodes for callbacks on the host: the order of hooks, their arguments, what episodes hold."""

import gc
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Callbacks, PPOConfig
from jaxrl.callbacks import CallbackList
from jaxrl.core.types import Columns
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.episodes.packing import episodes_from_rollout
from jaxrl.runners.env_runner import make_env_runner
from jaxrl.runners.hooks import AlgorithmHooks
from jaxrl.runners.quotas import EvalShare, play_share
from tests.helpers import small
from tests.runners.scripted import Drawing, Scripted, scripted_runner, weights_of


class Told(Callbacks):
    """Writes down what it is told, with a short word for each hook."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.samples: list[list[SingleAgentEpisode]] = []
        self.environments: list[Any] = []

    def on_environment_created(self, *, env_runner: Any, env: Any, env_context: Any) -> None:
        self.environments.append((env_runner, env, env_context))

    def on_episode_created(self, *, episode: Any, env_index: int) -> None:
        assert not episode.is_reset
        self.calls.append(("created", env_index))

    def on_episode_start(self, *, episode: Any, env_index: int) -> None:
        assert (len(episode), episode.get_observations(0)[1]) == (0, 0)
        self.calls.append(("start", env_index))

    def on_episode_step(self, *, episode: Any, env_index: int, metrics_logger: Any) -> None:
        self.calls.append(("step", env_index))
        assert episode.get_infos(-1) == {"step": episode.get_observations(-1)[1]}
        metrics_logger.log_value(("custom_metrics", "steps"), 1, reduce="sum")

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: Any,
        env_index: int,
        env_runner: Any,
        env: Any,
        rl_module: Any,
        metrics_logger: Any,
    ) -> None:
        assert rl_module is env_runner.module
        assert env.envs[env_index] == f"copy {env_index}"
        assert episode.is_done
        length = sum(map(len, (*prev_episode_chunks, episode)))
        total = sum(part.get_return() for part in (*prev_episode_chunks, episode))
        self.calls.append(("end", env_index, length, total))
        metrics_logger.log_value("longest", length, reduce="max")

    def on_sample_end(self, *, samples: Any) -> None:
        self.samples.append(samples)


def told_runner(vector: Scripted, **settings: Any) -> tuple[Any, Told]:
    told = Told()
    hooks = CallbackList(small().callbacks(told).callbacks_settings)
    return scripted_runner(vector, hooks=hooks, **settings), told


def test_the_order_of_hooks() -> None:
    runner, told = told_runner(Scripted([2, 5], "same_step"))
    assert told.calls == []
    runner.sample_fragment(3)
    step = [("step", 0), ("step", 1)]
    end = [("end", 0, 2, 3.0), ("created", 0)]
    begin = [("created", 0), ("created", 1), ("start", 0), ("start", 1)]
    assert told.calls == [*begin, *step, ("step", 0), *end, ("step", 1), ("start", 0), *step]
    told.calls.clear()
    runner.sample_fragment(2)
    last = [("step", 1), ("end", 1, 5, 15.0), ("created", 1), ("start", 1)]
    assert told.calls == [("step", 0), *end, ("step", 1), ("start", 0), ("step", 0), *last]


def test_a_reset_that_takes_a_step_is_no_step_of_an_episode() -> None:
    runner, told = told_runner(Scripted([2], "next_step"))
    runner.sample_fragment(5)
    first = [("created", 0), ("start", 0), ("step", 0), ("step", 0), ("end", 0, 2, 3.0)]
    assert told.calls == [*first, *first, ("created", 0)]


def make_share(**settings: Any) -> EvalShare:
    return EvalShare(seed=1, first_index=0, timeout_s=60.0, **settings)


@pytest.mark.parametrize("can_pause", [True, False])
def test_episodes_beyond_a_share_call_no_hooks(can_pause: bool) -> None:
    runner, told = told_runner(Scripted([2, 20, 3], "same_step"))
    play_share(runner, make_share(episodes=(1, 2, 0), steps=(99,) * 3), can_pause=can_pause)
    ends = [call for call in told.calls if call[0] == "end"]
    assert ends == [("end", 0, 2, 3.0), *[("end", 1, 20, 210.0)] * 2]
    for hook, number in (("created", [1, 2, 0]), ("start", [1, 2, 0]), ("step", [2, 40, 0])):
        found = [sum(call == (hook, row) for call in told.calls) for row in range(3)]
        assert found == number, hook
    assert [[len(episode) for episode in samples] for samples in told.samples] == [[2, 20, 20]]
    told.calls.clear()
    runner.sample_fragment(2)  # an ordinary fragment calls them all again
    assert {row for _, row, *_ in told.calls} == {0, 1, 2}


def test_a_share_of_steps_is_cut_at_its_end() -> None:
    runner, told = told_runner(Scripted([30], "same_step"))
    play_share(runner, make_share(episodes=None, steps=(40,)))
    assert [[len(episode) for episode in samples] for samples in told.samples] == [[30, 10]]
    play_share(runner, make_share(episodes=None, steps=(20,), is_continuation=True))
    assert [len(episode) for episode in told.samples[-1]] == [20]
    assert ("end", 0, 30, 465.0) in told.calls


def test_the_hooks_of_a_runner_go_on_after_a_share_that_failed() -> None:
    runner, told = told_runner(Scripted([2], "same_step"))
    runner.sample_once, runner.sample_fragment = runner.sample_fragment, None
    with pytest.raises(TypeError):
        play_share(runner, make_share(episodes=(1,), steps=(9,)))
    runner.sample_fragment = runner.sample_once
    runner.sample_fragment(4)
    assert len([call for call in told.calls if call[0] == "end"]) == 2
    assert len(told.samples) == 1


def _first(episode: SingleAgentEpisode) -> Any:
    """Return the start of a part and what was drawn there, which tell two environments apart."""
    drawn = episode.get_extra_model_outputs(Columns.ACTION_LOGP, 0)
    return *map(float, episode.get_observations(0)), float(drawn)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_samples_are_the_rollout_as_episodes(mode: str) -> None:
    runner, told = told_runner(Scripted([3, 7], mode), module=Drawing)
    for i in range(4):
        fragment = runner.sample_fragment(5)
        by_first = {_first(episode): episode for episode in told.samples[i]}
        rows = episodes_from_rollout(fragment.rollout)
        assert len(rows) == len(told.samples[i]) == len(by_first)
        for row in rows:
            episode = by_first[_first(row)]
            assert episode.is_numpy
            assert (row.is_terminated, row.is_truncated) == (
                episode.is_terminated,
                episode.is_truncated,
            )
            assert jax.tree.all(
                jax.tree.map(
                    np.array_equal,
                    (row.get_observations(), row.get_actions(), row.get_rewards()),
                    (episode.get_observations(), episode.get_actions(), episode.get_rewards()),
                )
            )
            for name in (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS):
                np.testing.assert_array_equal(
                    row.get_extra_model_outputs(name), episode.get_extra_model_outputs(name)
                )
            assert episode.get_observations(0)[1] == episode.t_started
        going_on = [e for e in told.samples[i] if e.t_started > 0]
        for part in going_on:
            back = part.get_rewards(-1, neg_index_as_lookback=True)
            assert (part.rewards.lookback, back) == (1, part.t_started)
    assert sum(e.t_started > 0 for samples in told.samples for e in samples) >= 3


def test_a_part_looks_back_as_far_as_it_is_told() -> None:
    config = small().env_runners(episode_lookback_horizon=3)
    runner, told = told_runner(Scripted([9], "same_step"), config=config)
    runner.sample_fragment(5)
    runner.sample_fragment(2)
    (part,) = told.samples[1]
    assert part.rewards.lookback == 3
    np.testing.assert_array_equal(
        part.get_rewards(slice(-4, None), neg_index_as_lookback=True, fill=0.0), [0, 3, 4, 5, 6, 7]
    )


def test_the_parts_of_an_episode_have_one_id_and_join() -> None:
    runner, told = told_runner(Scripted([7], "same_step"))
    runner.sample_fragment(5)
    runner.sample_fragment(5)
    (first,), (second, third) = told.samples
    assert first.id_ == second.id_ != third.id_
    whole = SingleAgentEpisode.from_state(first.get_state())
    whole.concat_episode(second)
    assert (len(whole), whole.is_terminated, whole.get_return()) == (7, True, 28.0)


def test_what_is_logged_travels_with_the_fragment() -> None:
    runner, _ = told_runner(Scripted([3, 4], "same_step"))
    fragment = runner.sample_fragment(6)
    assert fragment.metrics["custom_metrics/steps"]["data"] == [12.0]
    assert fragment.metrics["longest"]["data"] == [4.0]
    assert "longest" not in runner.sample_fragment(1).metrics


def test_an_episode_with_a_fault_is_dropped() -> None:
    runner, told = told_runner(Scripted([5], "same_step", fault_at=2))
    runner.sample_fragment(4)
    first = [("created", 0), ("start", 0), ("step", 0), ("step", 0)]
    assert told.calls == [*first, *first[:3]]
    assert [len(episode) for episode in told.samples[0]] == [1]


def test_held_environments_are_not_told_of() -> None:
    runner, told = told_runner(Scripted([2, 5], "same_step"))
    runner.sample_complete_episodes(4)
    assert [call for call in told.calls if call[0] == "end"] == [
        ("end", 0, 2, 3.0),
        ("end", 0, 2, 3.0),
        ("end", 1, 5, 15.0),
    ]


def test_the_environments_are_told_of_once() -> None:
    runner, told = told_runner(Scripted([2, 5], "same_step"), worker_index=2, num_workers=3)
    runner.sample_fragment(3)
    ((env_runner, env, context),) = told.environments
    assert env_runner is runner
    assert (env.num_envs, len(env.envs), env.unwrapped) == (2, 2, env)
    assert (context.worker_index, context.num_workers) == (2, 3)


def test_a_restored_runner_goes_on_within_its_episodes() -> None:
    runner, _ = told_runner(Scripted([7], "same_step", restorable=True))
    runner.sample_fragment(3)
    other, told = told_runner(Scripted([7], "same_step", restorable=True))
    other.set_state(runner.get_state())
    other.sample_fragment(5)
    assert told.calls[:5] == [("step", 0)] * 4 + [("end", 0, 4, 22.0)]
    first, _ = told.samples[0]
    assert (first.t_started, len(first), first.get_return()) == (3, 4, 4 + 5 + 6 + 7)


def test_nothing_is_kept_that_nobody_asked_for() -> None:
    class Quiet(Callbacks):
        def on_train_result(self, *, result: Any) -> None: ...

    hooks = CallbackList(small().callbacks(Quiet).callbacks_settings)
    runner = scripted_runner(Scripted([2], "same_step"), hooks=hooks)
    fragment = runner.sample_fragment(3)
    assert runner.tracker is None
    assert fragment.metrics == {}


class Fuel(gymnasium.Env[Any, Any]):
    """Burns 10 of 100 in each step, down to the `reserve` of its row."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.reserve = 30 + 10 * config.vector_index

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.fuel = 100
        return np.array([100], np.float32), {"start": True, "name": f"to {self.reserve}"}

    def step(self, action: Any) -> Any:
        self.fuel -= 10
        obs = np.array([self.fuel], np.float32)
        return obs, 1.0, self.fuel <= self.reserve, False, {"fuel": self.fuel}


class WatchesFuel(Callbacks):
    """Notes the state of the environment beside that of the episode."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ends: list[Any] = []
        self.starts: list[Any] = []

    def on_episode_start(self, *, episode: Any) -> None:
        self.starts.append(episode.get_infos()[0])

    def on_episode_step(self, *, episode: Any, env: Any, env_index: int) -> None:
        fuel = env.envs[env_index].unwrapped.fuel
        self.seen.append((fuel, episode.get_infos(-1)["fuel"], episode.get_observations(-1)[0]))

    def on_episode_end(self, *, episode: Any, env: Any, env_index: int) -> None:
        inner = env.envs[env_index].unwrapped
        self.ends.append((inner.fuel, inner.reserve))


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_hooks_see_the_environment_as_the_step_left_it(num_envs: int, batch_mode: str) -> None:
    watch = WatchesFuel()
    config = small().environment(Fuel).env_runners(batch_mode=batch_mode).callbacks(watch)
    runner = make_env_runner(config, num_envs=num_envs, first_env_index=0)
    runner.set_weights(weights_of(runner.policy_step))
    if batch_mode == "complete_episodes":
        runner.sample_complete_episodes(20)
    else:
        runner.sample_fragment(20)
    assert all(fuel == info == obs for fuel, info, obs in watch.seen)
    assert len(watch.ends) >= 2 * num_envs
    assert all(fuel == reserve for fuel, reserve in watch.ends)
    assert {reserve for _, reserve in watch.ends} == {30 + 10 * row for row in range(num_envs)}
    assert len(watch.starts) > len(watch.ends)
    names = {f"to {30 + 10 * row}" for row in range(num_envs)}
    assert {info["name"] for info in watch.starts} == names
    assert all(info["start"] is True for info in watch.starts)


def test_what_callbacks_of_the_older_form_keep_in_an_episode_outlives_its_parts() -> None:
    class Older(Callbacks):
        def on_episode_start(self, *, episode: Any, worker: Any) -> None:
            episode.user_data["steps"] = 0

        def on_episode_step(self, *, episode: Any, base_env: Any) -> None:
            episode.user_data["steps"] += 1
            episode.custom_metrics["rewards"] = episode.custom_metrics.get(
                "rewards", 0.0
            ) + episode.get_rewards(-1)

        def on_episode_end(self, *, episode: Any, policies: Any) -> None:
            assert episode.user_data["steps"] == episode.length
            episode.custom_metrics["steps"] = episode.length
            with pytest.raises(AttributeError, match="hist_data': log with metrics_logger"):
                _ = episode.hist_data

    hooks = CallbackList(small().callbacks(Older).callbacks_settings)
    runner = scripted_runner(Scripted([5, 7], "same_step"), hooks=hooks)
    with pytest.warns(DeprecationWarning, match="user_data is custom_data here"):
        metrics = [runner.sample_fragment(4).metrics, runner.sample_fragment(4).metrics][1]
    assert metrics["custom_metrics/steps_mean"]["data"] == [12, 2]
    assert metrics["custom_metrics/steps_max"]["data"] == [7]
    assert metrics["custom_metrics/rewards_mean"]["data"] == [15 + 28, 2]


# --- callbacks of groups know their Stand, and do not keep it ---


class Stand:
    """Stands for one."""


def test_the_algorithm_is_told_of_and_not_kept() -> None:
    calls: list[dict[str, Any]] = []

    def recreated(*, algorithm: Any, env_runner_indices: list[int]) -> None:
        calls.append({"algorithm": type(algorithm).__name__, "indices": env_runner_indices})

    config = PPOConfig().callbacks(on_env_runners_recreated=recreated)
    algorithm = Stand()
    hooks = AlgorithmHooks(CallbackList(config.callbacks_settings), algorithm)
    told: dict[str, Any] = {"env_runner_group": None, "env_runner_indices": [2]}
    hooks.call("on_env_runners_recreated", is_evaluation=False, **told)
    del algorithm
    gc.collect()
    hooks.call("on_env_runners_recreated", is_evaluation=False, **told)
    assert [call["algorithm"] for call in calls] == ["Stand", "NoneType"]
    assert calls[0]["indices"] == [2]


@pytest.mark.parametrize("hook", ["on_episode_end", "on_sample_end"])
def test_what_runners_call_is_passed_on_as_it_is(hook: str) -> None:
    calls: list[dict[str, Any]] = []
    config = PPOConfig().callbacks(**{hook: lambda **kwargs: calls.append(kwargs)})
    hooks = AlgorithmHooks(CallbackList(config.callbacks_settings), Stand())
    assert hooks.has_listeners(hook)
    assert not hooks.has_listeners("on_train_result")
    hooks.call(hook, samples=1, episode=2)
    assert calls == [{"samples": 1, "episode": 2}]
