"""Number of devices that share an update, and its parts: what is tried, kept and taken."""

import json
from pathlib import Path

import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.assembly import device_trial
from jaxrl.assembly.device_trial import (
    DeviceTrials,
    UpdateLayout,
    measure_speedup,
    open_device_trials,
)
from jaxrl.config import batch_plan as plan
from jaxrl.config.batch_plan import choose_num_devices
from jaxrl.runners import placement
from jaxrl.runners.placement import resolve_microbatch_size


class Scripted:
    """Gains by the way that is tried, and which were asked for."""

    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.asked: list[tuple[UpdateLayout, UpdateLayout]] = []

    def __call__(self, base: UpdateLayout, other: UpdateLayout) -> float:
        self.asked.append((base, other))
        return self.gain


def never(base: UpdateLayout, other: UpdateLayout) -> float:
    raise AssertionError(f"{base} and {other} should not be tried")


@pytest.fixture
def each_core_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_trial, "has_device_per_core", lambda: True)


def ppo(rows: int = 256, **learners: object) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8)
    config.training(train_batch_size=rows, minibatch_size=rows, num_epochs=1)
    config.debugging(loggers=[]).rl_module(model_config={"fcnet_hiddens": [8]})
    return config.learners(**learners)


@pytest.mark.parametrize(
    ("gain", "taken"), [(1.3, True), (1.05, True), (1.04, False), (0.7, False)]
)
def test_devices_are_taken_that_are_faster(gain: float, taken: bool, tmp_path: Path) -> None:
    trials = DeviceTrials(tmp_path / "kept.json", Scripted(gain))
    assert trials.is_faster(64, 2) is taken
    assert f"{gain:.2f} times as fast" in trials.notes[0]


def test_what_is_clear_is_not_tried(tmp_path: Path) -> None:
    trials = DeviceTrials(tmp_path / "kept.json", never)
    assert trials.is_faster(8, 1)
    assert not trials.is_faster(63, 2)
    assert trials.is_faster(512, 2)
    assert not trials.notes


def test_a_trial_is_made_once_for_rows_of_about_the_same_number(tmp_path: Path) -> None:
    store, measure = tmp_path / "kept.json", Scripted(1.2)
    assert DeviceTrials(store, measure).is_faster(100, 2)
    assert measure.asked == [
        (UpdateLayout(num_devices=1, rows=128), UpdateLayout(num_devices=2, rows=64))
    ]
    assert DeviceTrials(store, never).is_faster(65, 2)
    assert list(json.loads(store.read_text()).values()) == [1.2]
    store.write_text("{")
    assert DeviceTrials(store, measure).is_faster(100, 2)
    assert len(measure.asked) == 2


def test_the_most_devices_that_are_worth_it_share_the_work(tmp_path: Path) -> None:
    batch = ppo(1024).plan()
    assert choose_num_devices(batch, "cpu", 8)[0] == 8
    tried: list[tuple[int, int]] = []

    def is_worth(rows: int, number: int) -> bool:
        tried.append((rows, number))
        return number <= 2

    number, why = choose_num_devices(batch, "cpu", 8, is_faster=is_worth)
    assert (number, tried) == (2, [(128, 8), (256, 4), (512, 2)])
    assert "faster on this machine" in why


@pytest.mark.usefixtures("each_core_is_a_device")
def test_a_run_takes_what_was_measured_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_trial, "measure_speedup", Scripted(0.5))
    config = ppo().debugging(compilation_cache_dir=str(tmp_path / "cache"))
    with config.build() as algo:
        assert len(algo.devices) == 1
        assert "0.50 times as fast as one with all, measured on this machine" in algo.explain()
        path = algo.save(str(tmp_path / "saved"))
    assert (tmp_path / "cache" / "devices.json").exists()
    (tmp_path / "cache" / "devices.json").unlink()
    monkeypatch.setattr(device_trial, "measure_speedup", Scripted(2.0))
    with Algorithm.from_checkpoint(path) as restored:
        assert len(restored.devices) == 1
        assert "1 cpu device, as the run had before." in restored.explain()
    with ppo(num_devices=2).build() as algo:
        assert len(algo.devices) == 2  # what is set is not tried


def test_devices_that_others_made_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in these tests, where eight devices share two or four cores."""
    monkeypatch.setattr(device_trial, "measure_speedup", never)
    with ppo().build() as algo:
        assert len(algo.devices) == 4


@pytest.mark.usefixtures("each_core_is_a_device")
def test_nothing_is_tried_where_nothing_is_kept() -> None:
    off = open_device_trials(ppo().debugging(compilation_cache_dir="off"))
    assert not off.is_possible


def test_a_run_that_goes_on_has_its_devices_as_far_as_there_are_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ppo().build() as algo:
        assert len(algo.devices) == 4
        path = algo.save(str(tmp_path / "saved"))
    monkeypatch.setattr(plan, "MIN_ROWS_PER_CPU_DEVICE", 32)
    with Algorithm.from_checkpoint(path) as restored:
        assert len(restored.devices) == 4
    with Algorithm.from_checkpoint(path, num_devices=2) as restored:
        assert len(restored.devices) == 2
    some = placement.jax.local_devices()[:2]
    monkeypatch.setattr(placement.jax, "local_devices", lambda: some)
    with Algorithm.from_checkpoint(path) as restored:
        assert len(restored.devices) == 2


@pytest.mark.usefixtures("each_core_is_a_device")
@pytest.mark.parametrize(("gain", "size"), [(0.5, None), (1.0, 256), (1.5, 256)])
def test_parts_are_taken_unless_they_are_slower(
    gain: float, size: int | None, tmp_path: Path
) -> None:
    config = ppo(8192)
    trials = DeviceTrials(tmp_path / "kept.json", Scripted(gain))
    settled = resolve_microbatch_size(config, trials)
    assert settled.microbatch_size == size
    assert config.microbatch_size == "auto"
    few = ppo(512)
    assert resolve_microbatch_size(few, DeviceTrials(tmp_path / "other.json", never)) is few
    set_by_the_user = config.copy().training(microbatch_size=512)
    assert resolve_microbatch_size(set_by_the_user, trials) is set_by_the_user


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "other"),
    [
        (UpdateLayout(num_devices=1, rows=64), UpdateLayout(num_devices=2, rows=32)),
        (UpdateLayout(num_devices=2, rows=64), UpdateLayout(num_devices=2, rows=64, parts=4)),
    ],
)
def test_a_trial_compares_two_ways(base: UpdateLayout, other: UpdateLayout) -> None:
    assert 0 < measure_speedup(base, other) < 1000
