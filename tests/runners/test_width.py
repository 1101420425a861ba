"""`num_envs_per_env_runner='auto'`: what is tried, chosen, kept and refused. No time is looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl import Algorithm, AlgorithmConfig, DQNConfig, PPOConfig
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.errors import ConfigError, RunFolderError
from jaxrl.runners import num_envs_tuning as width
from jaxrl.runners.num_envs_tuning import (
    Measurement,
    list_candidate_num_envs,
    resolve_num_envs,
    select_fastest,
)

Tried = list[tuple[int, int]]


def ppo(**training: Any) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(num_envs_per_env_runner="auto").debugging(loggers=[])
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.training(**{"train_batch_size": 2048, "minibatch_size": 128, **training})


def free(config: PPOConfig) -> PPOConfig:
    return config.copy().env_runners(num_envs_per_env_runner=None)


class Stopwatch:
    """Rates by width and number of devices, and what was asked for."""

    def __init__(self, rate: Any) -> None:
        self.rate, self.tried = rate, Tried()

    def __call__(self, config: AlgorithmConfig, num_devices: int) -> Callable[[], float]:
        plan = config.plan()
        assert (plan.train_batch_size, plan.minibatch_size) == (2048, 128)
        self.tried.append((plan.num_envs, num_devices))
        return lambda: self.rate(plan.num_envs, num_devices)


def trials(*rates: tuple[int, int, float]) -> list[Measurement]:
    return [Measurement(num_envs=n, num_devices=d, steps_per_s=r) for n, d, r in rates]


def test_widths_keep_the_batch_and_leave_rollouts_long_enough() -> None:
    config = free(ppo())
    widths = list_candidate_num_envs(config)
    assert widths == [16, 32, 64]
    base = config.plan()
    for number in widths:
        plan = config.copy().env_runners(num_envs_per_env_runner=number).plan()
        assert plan.train_batch_size == base.train_batch_size
        assert plan.updates_per_iteration == base.updates_per_iteration
        assert plan.rollout_fragment_length >= width.MIN_ROLLOUT_STEPS


def test_a_large_batch_has_few_widths_from_the_default_to_the_widest() -> None:
    widths = list_candidate_num_envs(free(ppo(train_batch_size=2**17)))
    assert (widths[0], widths[-1], len(widths)) == (16, 4096, width.MAX_CANDIDATES)
    assert widths == sorted(widths)


def test_a_small_batch_or_a_fixed_rollout_leaves_nothing_to_choose() -> None:
    assert list_candidate_num_envs(free(ppo(train_batch_size=256))) == [16]
    fixed = free(ppo()).env_runners(rollout_fragment_length=64)
    assert list_candidate_num_envs(fixed) == [32]


def test_the_default_batch_stays_the_default() -> None:
    config = PPOConfig().environment("CartPole-v1")
    widths = list_candidate_num_envs(config)
    assert widths[0] == 16
    assert widths[-1] == 125
    for number in widths:
        plan = config.copy().env_runners(num_envs_per_env_runner=number).plan()
        assert plan.train_batch_size == 4000


def test_the_narrowest_that_is_about_as_fast_is_best() -> None:
    assert select_fastest(trials((16, 1, 95.0), (32, 1, 97.0), (64, 1, 100.0))).num_envs == 16
    assert select_fastest(trials((16, 1, 94.0), (32, 1, 97.0), (64, 1, 100.0))).num_envs == 32
    assert select_fastest(trials((16, 2, 50.0), (16, 1, 52.0), (16, 4, 100.0))).num_devices == 4
    assert (
        select_fastest(trials((16, 2, 98.0), (16, 1, 100.0))).num_devices == 2
    )  # the rule's is first


def test_a_trial_of_every_width_then_of_other_devices() -> None:
    stopwatch = Stopwatch(lambda envs, devices: envs + 10 * (devices == 1))
    settled, notes = resolve_num_envs(ppo(), stopwatch)
    assert [envs for envs, _ in stopwatch.tried[:3]] == [16, 32, 64]
    rule = stopwatch.tried[2][1]
    assert set(stopwatch.tried[3:]) == {(64, n) for n in (1, 2, 4, 8)} - {(64, rule)}
    assert settled.env_runners_settings.num_envs_per_env_runner == 64
    assert settled.preferred_devices == (1, "as num_envs_per_env_runner='auto' measured")
    assert settled.learners_settings.num_devices == "auto"
    assert "num_envs_per_env_runner" in settled.explicit
    assert notes[0].startswith(
        "num_envs_per_env_runner='auto': 64 on 1 device, the fewest within 5 %"
    )
    narrow, middle = stopwatch.tried[:2]
    assert f": 16 on {narrow[1]}: 16; 32 on {middle[1]}: 32; 64 on {rule}: 64; " in notes[0]
    assert "its 480 updates stay, rollouts have 32 steps." in notes[0]


def test_runs_take_turns_and_the_best_of_each_counts() -> None:
    log: list[str] = []

    def run(name: str, *rates: float) -> Callable[[], float]:
        left = iter(rates)
        return lambda: log.append(name) or next(left)

    found = width._run_in_turn({(16, 1): run("a", 1.0, 5.0, 2.0), (32, 1): run("b", 3.0, 2.0, 1.0)})
    assert log == [*"ab"] * width.REPEATS
    assert found == trials((16, 1, 5.0), (32, 1, 3.0))


def test_the_number_of_devices_is_the_rules_unless_another_is_faster() -> None:
    settled, _ = resolve_num_envs(ppo(), Stopwatch(lambda envs, devices: 100.0))
    assert settled.learners_settings.num_devices == "auto"
    config = ppo().learners(num_devices=2)
    stopwatch = Stopwatch(lambda envs, devices: 100.0)
    settled, _ = resolve_num_envs(config, stopwatch)
    assert stopwatch.tried == [(16, 2), (32, 2), (64, 2)]
    assert settled.learners_settings.num_devices == 2


def test_what_was_measured_is_kept_for_the_next_build(tmp_path: Path) -> None:
    rate = Stopwatch(lambda envs, devices: float(envs))
    first, _ = resolve_num_envs(ppo(), rate)
    store = tmp_path / "home" / ".cache" / "jaxrl" / width.CACHE_FILE
    assert len(json.loads(store.read_text())) == 1

    def never(config: AlgorithmConfig, num_devices: int) -> Callable[[], float]:
        raise AssertionError("measured again")

    again, notes = resolve_num_envs(ppo().debugging(seed=7), never)  # a seed changes no speed
    assert again.env_runners_settings == first.env_runners_settings
    assert "measured before on this machine" in notes[0]
    with pytest.raises(AssertionError, match="measured again"):
        resolve_num_envs(ppo(num_epochs=2), never)
    with pytest.raises(AssertionError, match="measured again"):
        resolve_num_envs(ppo().debugging(compilation_cache_dir="off"), never)


@pytest.mark.parametrize("content", ["{", "[]", '{"%s": [{"num_envs": 3}]}', '{"%s": 3}'])
def test_a_file_that_says_nothing_is_measured_again(tmp_path: Path, content: str) -> None:
    store = tmp_path / "home" / ".cache" / "jaxrl" / width.CACHE_FILE
    store.parent.mkdir(parents=True)
    key = width.make_cache_key(free(ppo()), list_candidate_num_envs(free(ppo())))
    store.write_text(content.replace("%s", key))
    settled, _ = resolve_num_envs(ppo(), Stopwatch(lambda envs, devices: float(envs)))
    assert settled.env_runners_settings.num_envs_per_env_runner == 64
    assert key in json.loads(store.read_text())


def test_a_number_is_left_alone() -> None:
    config = ppo().env_runners(num_envs_per_env_runner=8)
    assert resolve_num_envs(config) == (config, [])


@pytest.mark.allow_key_reuse  # a run that goes on
def test_a_run_has_the_number_in_its_config_and_resumes_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopwatch = Stopwatch(lambda envs, devices: float(envs))
    monkeypatch.setattr(width, "prepare_run", stopwatch)
    config = ppo(num_epochs=1).learners(num_devices=1)
    with config.build() as algo:
        assert algo.config.plan().num_envs == 64
        assert "num_envs_per_env_runner='auto': 64 on 1 device" in algo.explain()
        assert " * num_envs_per_env_runner = 64" in algo.explain()
        path = algo.save(tmp_path)
    assert config.env_runners_settings.num_envs_per_env_runner == "auto"  # the user's is a copy
    stopwatch.rate = None
    monkeypatch.setattr(width, "_read_cached", lambda store, name: None)
    with Algorithm.from_checkpoint(path) as algo:
        assert algo.config.env_runners_settings.num_envs_per_env_runner == 64


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # of several short runs from one seed
def test_a_trial_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(width, "TRIAL_S", 1e-6)
    config = free(ppo(train_batch_size=128, num_epochs=1))
    assert width.prepare_run(config, 1)() > 0
    if len(jax.local_devices()) > 1:
        assert width.prepare_run(config, 2)() > 0


def test_before_the_build_the_plan_says_that_it_will_be_measured() -> None:
    text = ppo().explain()
    assert "num_envs_per_env_runner='auto': measured when the Algorithm is built" in text
    assert "16 envs x 128 steps" in text


def test_it_survives_serialising() -> None:
    data = json.loads(json.dumps(serialize_config(ppo())))
    again = deserialize_config(data)
    assert again.env_runners_settings.num_envs_per_env_runner == "auto"


def test_a_folder_that_cannot_be_written_is_told_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(width, "prepare_run", None)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="results_dir"):
        ppo().debugging(results_dir=str(tmp_path / "file" / "runs")).build()


WRONG: list[tuple[Any, str]] = [
    (lambda: ppo().environment("gymnasium:CartPole-v1"), "is stepped by runners on the host"),
    (lambda: ppo().env_runners(num_env_runners=2), "got num_env_runners=2"),
    (lambda: ppo().env_runners(placement="host"), "got placement='host'"),
    (lambda: ppo().learners(num_learners=2), "got num_learners=2"),
    (lambda: ppo().debugging(jit=False), "got jit=False"),
    (lambda: ppo().sweep(seeds=2), "this config is a sweep"),
    (
        lambda: DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner="auto"),
        "is for on-policy algorithms",
    ),
]


@pytest.mark.parametrize(("config", "expected"), WRONG)
def test_where_nothing_can_be_measured_it_is_refused(
    config: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "prepare_run", None)
    with pytest.raises(ConfigError, match="num_envs_per_env_runner='auto'") as error:
        config().build()
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
