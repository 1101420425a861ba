"""Runs whose environments are stepped by a runner on the host: the same data, the same updates."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, Callbacks
from jaxrl.envs.faults import FaultyEnv
from jaxrl.errors import ConfigError, RetraceError
from jaxrl.runners.env_runner import EnvRunner
from jaxrl.runners.fragment import Fragment, slice_fragment_columns, to_devices
from jaxrl.runtime.program import Program
from jaxrl.training.report import TrainReport
from tests.helpers import assert_close, assert_equal, differs, slow_but, small

pytestmark = pytest.mark.allow_key_reuse

ONE = {"num_epochs": 1, "minibatch_size": None}


class Sampled(Callbacks):
    """Adds up the steps that the samples of the program are said to have."""

    total = 0

    def on_sample_end(self, *, samples: Any, **_: Any) -> None:
        if isinstance(samples, dict):
            self.total += samples["num_env_steps_sampled"]

    def on_train_result(self, *, result: Any, **_: Any) -> None:
        result["told"] = self.total


def on_host(algo: str = "PPO", env: Any = "CartPole-v1", **training: Any) -> Any:
    return small(algo, env, **training).env_runners(placement="host")


def gymnasium_env(**training: Any) -> Any:
    config = small("PPO", "gymnasium:CartPole-v1", **training)
    return config.env_runners(num_envs_per_env_runner=4)


@pytest.mark.representatives("statistics")
@pytest.mark.parametrize(
    "settings",
    [{}, {"observation_filter": "MeanStdFilter", "normalize_rewards": True}],
    ids=["plain", "statistics"],
)
def test_a_host_run_equals_the_compiled_one(settings: dict[str, Any]) -> None:
    with small("PPO", **ONE).env_runners(**settings).build() as compiled:
        expected = compiled.train()
        with on_host("PPO", **ONE).env_runners(**settings).build() as hosted:
            result = hosted.train()
            assert_equal(hosted.state.ring, compiled.state.ring)
            assert_close(hosted.state.learner, compiled.state.learner)
            assert_close(hosted.state.connectors, compiled.state.connectors)
            assert_equal(hosted.state.progress, compiled.state.progress)
    for key in ("num_env_steps_sampled_lifetime", "num_episodes_lifetime"):
        assert result["env_runners"][key] == expected["env_runners"][key]


@pytest.mark.representatives("1")
@pytest.mark.parametrize("num_devices", slow_but(4, of=[1, 4]))
def test_rows_that_are_no_transitions_are_no_steps_in_the_program_either(num_devices: int) -> None:
    """Schedules, stop criteria and results do not count them; a batch without some is another batch."""
    results, states = [], []
    for placement in ("in_graph", "host"):
        config = small("A2C", FaultyEnv("CartPole-v1"), lr=[[0, 1e-2], [1000, 0.0]])
        config.environment(env_config={"at_step": 3, "fraction": 0.5})
        config.env_runners(placement=placement).callbacks(Sampled)
        config.learners(num_devices=num_devices, num_shards=4)
        config.reporting(min_sample_timesteps_per_iteration=2 * 128)
        with config.build() as algorithm:
            results.append(algorithm.train())
            states.append(jax.device_get(algorithm.state))
    compiled, hosted = results
    faults = compiled["fault_tolerance"]["num_nonfinite_env_steps"]
    assert faults > 0
    assert compiled["num_training_step_calls_per_iteration"] == 3
    assert_equal(states[0].progress, states[1].progress)
    assert_close(states[0].learner, states[1].learner, rtol=1e-4, atol=1e-5)
    for name in ("num_env_steps_sampled", "num_env_steps_sampled_lifetime"):
        assert compiled["env_runners"][name] == hosted["env_runners"][name] == 3 * 128 - faults
    assert compiled["num_env_steps_trained_lifetime"] == hosted["num_env_steps_trained_lifetime"]
    assert compiled["told"] == 3 * 128 - faults


@pytest.mark.slow
def test_columns_are_divided_over_devices_with_the_same_minibatches() -> None:
    states = []
    for num_devices in (1, 4):
        config = on_host("PPO", num_epochs=2, minibatch_size=32).learners(num_devices=num_devices)
        with config.learners(num_shards=4).env_runners(normalize_rewards=True).build() as algorithm:
            algorithm.train()
            assert len(algorithm.devices) == num_devices
            states.append(jax.device_get((algorithm.state.learner, algorithm.state.connectors)))
    assert_close(states[0], states[1], rtol=1e-4, atol=2e-5)


def fragments() -> list[Fragment]:
    with on_host().env_runners(num_envs_per_env_runner=4, rollout_fragment_length=32).build() as a:
        assert not a.env_runner_group.is_compiled
        a.env_runner_group.sync_weights(a.learner_group.get_weights(0))
        return [a.env_runner_group.next_batch()[0] for _ in range(2)]


@pytest.mark.slow
def test_fragments_lie_side_by_side_on_any_number_of_devices() -> None:
    pair = fragments()
    expected = np.concatenate([part.rollout.obs for part in pair], axis=1)
    for devices in (jax.devices()[:1], jax.devices()[:4]):
        data = to_devices(pair, devices)
        np.testing.assert_array_equal(np.asarray(data.rollout.obs), expected)
        assert int(data.num_env_steps) == sum(part.num_env_steps for part in pair) == 256
        assert len(data.rollout.obs.sharding.device_set) == len(devices)
    halves = [slice_fragment_columns(pair, i, 4).rollout.obs for i in range(4)]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), expected)


def test_shorter_fragments_are_padded_with_rows_that_are_no_transitions() -> None:
    long, other = fragments()
    short = dataclasses.replace(
        other,
        rollout=jax.tree.map(lambda leaf: leaf[:20], other.rollout),
        record=jax.tree.map(lambda leaf: leaf[:20], other.record),
        num_env_steps=80,
    )
    data = jax.device_get(to_devices([long, short], jax.devices()[:1]))
    assert data.rollout.mask.shape == (32, 8)
    assert data.rollout.mask[:, :4].all()
    assert data.rollout.mask[:20, 4:].all()
    added = jax.tree.map(lambda leaf: leaf[20:, 4:], (data.rollout, data.record))
    for name in ("mask", "reward", "terminated", "truncated"):
        assert not getattr(added[0], name).any()
    assert not added[1].ended.any()
    np.testing.assert_array_equal(added[0].obs[5], short.rollout.obs[-1])
    assert int(data.num_env_steps) == 128 + 80


def test_a_resumed_run_is_the_same_to_the_bit_where_the_environment_can_be_restored(
    tmp_path: Path,
) -> None:
    config = on_host().env_runners(observation_filter="MeanStdFilter", normalize_rewards=True)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        algorithm.train()
        expected = algorithm.get_state()["train_state"]
    with Algorithm.from_checkpoint(path) as resumed:
        resumed.train()
        found = resumed.get_state()["train_state"]
    assert any(name.startswith("env.env.") for name in expected)
    assert_equal(found, expected)


@pytest.mark.representatives("3")
@pytest.mark.parametrize("batches", slow_but(4, of=[3, 4]))
def test_a_run_resumes_with_the_weights_that_were_acted_with(batches: int, tmp_path: Path) -> None:
    """Those of the latest broadcast, with their statistics, and not the learner's newest."""

    def trained(algorithm: Any, number: int) -> Any:
        for _ in range(number):
            algorithm.train()
        return algorithm.get_state()["train_state"]

    config = on_host("IMPALA", broadcast_interval=3, lr=[[0, 1e-2], [1000, 0.0]])
    with config.env_runners(observation_filter="MeanStdFilter").build() as algorithm:
        saved = trained(algorithm, batches)
        path = algorithm.save(tmp_path)
        again = trained(algorithm, 2)
    assert any(name.startswith("behaviour.params") for name in saved) == (batches % 3 != 0)
    with Algorithm.from_checkpoint(path) as resumed:
        assert_equal(trained(resumed, 0), saved)
        resumed.restore(resumed.save(tmp_path / "at_once"))
        assert_equal(trained(resumed, 2), again)
    with Algorithm.from_checkpoint(path, broadcast_interval=1) as resumed:
        assert not any(name.startswith("behaviour.") for name in trained(resumed, 1))


@pytest.mark.slow
def test_environments_that_cannot_be_restored_start_new_episodes_and_all_else_goes_on(
    tmp_path: Path,
) -> None:
    with gymnasium_env().build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        before = algorithm.get_state()["train_state"]
    with Algorithm.from_checkpoint(path) as resumed:
        after = resumed.get_state()["train_state"]
        assert after["env.starts"].all()
        assert not after["env.episode_length"].any()
        episode = ("env.obs", "env.starts", "env.reward", "env.episode_")
        for name, leaf in before.items():
            if not name.startswith(episode):
                assert leaf.tobytes() == after[name].tobytes(), name
        result = resumed.train()
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 256
    assert result["training_iteration"] == 2


def test_weights_that_are_set_are_acted_with_at_once() -> None:
    with gymnasium_env().build() as algorithm:
        algorithm.train()
        zero = jax.tree.map(np.zeros_like, algorithm.get_weights())
        algorithm.set_weights(zero)
        runners = algorithm.env_runner_group
        algorithm.train()
        assert not runners.is_compiled
        fragment = runners.next_batch()[0]
        assert fragment.weights_version == 1
    uniform = np.log(0.5)
    np.testing.assert_allclose(fragment.rollout.extras["action_logp"], uniform, atol=1e-3)


def test_what_only_the_compiled_program_can_do_is_refused() -> None:
    with gymnasium_env().build() as algorithm:
        with pytest.raises(ConfigError, match=r"set_env_params\(\).*foreach_env_runner"):
            algorithm.set_env_params(gravity=3.0)
        with pytest.raises(ConfigError, match="stepped by runners on the host"):
            _ = algorithm.runner


def test_whole_episodes_are_learned_from_and_none_is_cut() -> None:
    config = gymnasium_env().env_runners(batch_mode="complete_episodes")
    with config.build() as algorithm:
        result = algorithm.train()
        state = algorithm.get_state()["train_state"]
    assert state["env.starts"].all()
    steps = result["env_runners"]["num_env_steps_sampled"]
    assert steps >= 128
    episodes = result["env_runners"]
    assert episodes["episode_len_mean"] * episodes["num_episodes"] == pytest.approx(steps)


class Slow(EnvRunner):
    """Says that it took long."""

    def sample_fragment(self, num_steps: int) -> Fragment:
        fragment = super().sample_fragment(num_steps)
        return dataclasses.replace(fragment, seconds=1e6)


def test_a_runner_of_ones_own_samples() -> None:
    with gymnasium_env().env_runners(env_runner_cls=Slow).build() as algorithm:
        algorithm.env_runner_group.sync_weights(algorithm.learner_group.get_weights(0))
        assert algorithm.env_runner_group.next_batch()[0].seconds == 1e6


def counting_reports(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of dispatches of each fetched report, from now on."""
    numbers: list[int] = []
    fetch = TrainReport.fetch

    def counted(state: Any, summaries: Any) -> TrainReport:
        numbers.append(len(summaries))
        return fetch(state, summaries)

    monkeypatch.setattr(TrainReport, "fetch", counted)
    return numbers


@pytest.mark.slow
def test_dispatches_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    config = gymnasium_env().reporting(min_sample_timesteps_per_iteration=5 * 128)
    with config.build() as algorithm:
        numbers = counting_reports(algorithm, monkeypatch)
        result = algorithm.train()
        assert numbers == [5]
        assert result["num_training_step_calls_per_iteration"] == 5
        monkeypatch.setattr("jaxrl.training.report.MAX_PENDING", 2)
        algorithm.train()
        assert numbers == [5, 2, 2, 1]


@pytest.mark.slow
def test_what_is_looked_at_late_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = []
    for most in (1, 256):
        monkeypatch.setattr("jaxrl.training.report.MAX_PENDING", most)
        config = gymnasium_env().reporting(min_sample_timesteps_per_iteration=5 * 128)
        with config.build() as algorithm:
            results.append(algorithm.train())
    for part in ("learners", "fault_tolerance"):
        assert results[0][part] == results[1][part]
    one, other = (result["env_runners"] for result in results)
    measured = ("num_env_steps_sampled_per_second", "env_step_fraction")
    assert one.keys() == other.keys()
    assert all(one[name] == other[name] for name in one if name not in measured)


def test_a_step_has_its_metrics_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with gymnasium_env().build() as algorithm:
        numbers = counting_reports(algorithm, monkeypatch)
        first, second = algorithm.training_step(), algorithm.training_step()
        assert not numbers
        assert first["total_loss"] != second["total_loss"]
        assert numbers == [1, 1]
        assert set(first) >= {"total_loss", "grad_norm"}
        assert len(first) == len(dict(second))


def test_what_is_acted_with_is_not_overwritten_by_learning() -> None:
    with gymnasium_env().build() as algorithm:
        algorithm.train()
        held = algorithm.learner_group.get_weights(0).actor
        before = jax.device_get(held)
        algorithm.train()
        assert_equal(jax.device_get(held), before)
        assert differs(held.params, algorithm.learner_group.get_weights(0).actor.params)


def test_arrays_of_the_host_are_compiled_for_by_their_shape() -> None:
    program = Program("double", lambda x: 2 * x, max_retraces=1)
    for length in (3, 5, 3):
        array = np.arange(length, dtype=np.float32)
        np.testing.assert_array_equal(program(array), 2 * array)
    assert len(program.compile_stats) == 2
    with pytest.raises(RetraceError, match=r"shape \(5,\) became \(7,\)"):
        program(np.zeros(7, np.float32))
