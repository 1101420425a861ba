"""The cores as devices: how many there are, and when they are claimed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, PPOConfig
from jaxrl.assembly import device_trial
from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.device_trial import (
    DeviceTrials,
    UpdateLayout,
    measure_speedup,
    open_device_trials,
)
from jaxrl.config import batch_plan as plan
from jaxrl.config.batch_plan import choose_num_devices
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError
from jaxrl.runners import placement
from jaxrl.runners.placement import check_memory, resolve_microbatch_size
from jaxrl.runtime import cores, devices
from tests.helpers import small


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, 6),
        ("max 100000", 6),
        ("400000 100000", 4),
        ("1600000 100000", 6),
        ("250000 100000", 2),
        ("50000 100000", 1),
    ],
)
def test_usable_cores_are_the_affinitys_within_the_quota(
    quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    monkeypatch.setattr(cores, "CPU_QUOTA", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert cores.count_usable_cores() == expected


def in_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process that is told nothing of devices but what is given."""
    hidden = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**inherited, **environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


CLAIM = """
import jax
import jaxrl.runtime.devices as devices
devices.count_usable_cores = lambda: {cores}
{before}
print(devices.claim_cpu_devices())
print(devices.claim_cpu_devices() == [] or "said again")
print(jax.local_device_count())
"""


@pytest.mark.parametrize(
    ("cores", "environment", "before", "said", "number"),
    [
        (3, {}, "", "[]", 3),
        (64, {}, "", "[]", devices.MAX_CPU_DEVICES),
        (
            3,
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            "",
            "['CPU devices: as set by XLA_FLAGS.']",
            2,
        ),
        (
            3,
            {"JAX_NUM_CPU_DEVICES": "2"},
            "",
            "['CPU devices: as set by JAX_NUM_CPU_DEVICES.']",
            2,
        ),
        (
            3,
            {},
            "jax.config.update('jax_num_cpu_devices', 2)",
            "['CPU devices: 2, as set by jax_num_cpu_devices.']",
            2,
        ),
        (3, {}, "jax.devices()", "['JAX had started before the first build", 1),
    ],
    ids=["default", "at most 8", "XLA_FLAGS", "variable", "option", "after JAX started"],
)
def test_devices_are_claimed_once_unless_somebody_said_otherwise(
    cores: int, environment: dict[str, str], before: str, said: str, number: int
) -> None:
    done = in_process(CLAIM.format(cores=cores, before=before), **environment)
    first, again, count = done.stdout.splitlines()
    assert first.startswith(said)
    assert again == ("True" if said == "[]" else "said again")
    assert int(count) == number


LOST = """
import jax
import jaxrl.runtime.devices as devices
devices.count_usable_cores = lambda: 2
jax.random.key(0)
from jaxrl.algorithms.ppo import PPOConfig
config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=16)
config.training(train_batch_size=256, minibatch_size={rows}, num_epochs=1)
config.debugging(loggers=[]).learners({learners})
for _ in range(2):
    assert len(config.build().devices) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "learners", "times"),
    [(128, "", 1), (16, "", 0), (128, "num_devices=1", 0)],
    ids=["would be two", "would be one", "as set"],
)
def test_cores_that_a_run_goes_without_are_a_warning(rows: int, learners: str, times: int) -> None:
    done = in_process(LOST.format(rows=rows, learners=learners))
    assert done.stderr.count("JAX had started before the first build") == times


CHECK = """
import jax
import jaxrl.runtime.devices as devices
devices.count_usable_cores = lambda: 3
from jaxrl.testing.check_env import check_env
check_env("jaxrl.envs.probes:ProbeAction")
assert jax.local_device_count() == 3
"""


def test_what_is_built_after_a_check_has_the_cores() -> None:
    in_process(CHECK)


REFUSED = """
import jax
from jaxrl import PPOConfig
from jaxrl.errors import ConfigError

for name, wrong, right in (
    ("jax_platforms", "nothing", "cpu"),
    ("jax_numpy_dtype_promotion", "strict", "standard"),
):
    jax.config.update(name, wrong)
    try:
        PPOConfig().environment("CartPole-v1").build()
    except ConfigError as error:
        print(error)
    jax.config.update(name, right)
"""


def test_options_of_jax_that_no_run_can_have_are_refused() -> None:
    platforms, promotion = in_process(REFUSED).stdout.splitlines()
    assert platforms.startswith("JAX has no device of JAX_PLATFORMS='nothing': unset it")
    assert "JAX says: Unable to initialize backend 'nothing'" in platforms
    assert promotion.startswith("jax_numpy_dtype_promotion='strict' refuses")
    assert promotion.endswith("to 'standard'.")


# --- number of devices that share an update, and its parts: what is tried, kept and taken ---


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


# --- settings of placement have their effect when the Algorithm is built ---


def devices_of(tree: PyTree) -> set[jax.Device]:
    return {device for leaf in jax.tree.leaves(tree) for device in leaf.devices()}


def test_the_one_device_to_use() -> None:
    with small().learners(local_device_idx=1).build() as algorithm:
        algorithm.train()
        assert algorithm.devices == [jax.local_devices()[1]]
        assert devices_of(algorithm.state) == {jax.local_devices()[1]}
        assert "Local device 1, as set." in algorithm.explain()


def test_a_run_on_the_host_learns_on_one_cpu_device() -> None:
    wide = small().training(train_batch_size=256, minibatch_size=256).learners(num_devices="auto")
    with wide.copy().build() as compiled, wide.env_runners(placement="host").build() as hosted:
        assert len(compiled.devices) > 1
        assert len(hosted.devices) == 1
        assert "1 cpu device: XLA's threads share each update" in hosted.explain()


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"local_device_idx=8 is not one of the 8 .* from 0 to 7"):
        small().learners(local_device_idx=8).build()


def test_variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_TEST_VARIABLE", "before")
    config = small().python_environment(
        extra_python_environs_for_driver={"JAXRL_TEST_VARIABLE": "after"}
    )
    assert os.environ["JAXRL_TEST_VARIABLE"] == "before"
    with config.build():
        assert os.environ["JAXRL_TEST_VARIABLE"] == "after"


@pytest.mark.slow
def test_a_jax_environment_is_shown_to_validate_env_once() -> None:
    seen = []
    config = small().environment(
        env_config={"gravity": 9.0}, validate_env=lambda *args: seen.append(args)
    )
    with config.build() as algorithm:
        algorithm.train()
    ((env, context),) = seen
    assert env.action_space(env.default_params).n == 2
    assert context == {"gravity": 9.0}
    assert context.worker_index == 0


def test_what_validate_env_raises_ends_the_build() -> None:
    def refuse(env: object, context: object) -> None:
        raise ValueError("gravity points upwards")

    with pytest.raises(ValueError, match="gravity points upwards"):
        small().environment(validate_env=refuse).build()


def test_explain_knows_the_place() -> None:
    with small().build() as algorithm:
        assert "In-graph: rollout, targets and updates" in algorithm.explain()


def test_the_size_of_an_observation_is_known_without_making_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "wide": spaces.Box(-1.0, 1.0, (5,), np.float64),
        "choice": spaces.Tuple([spaces.Discrete(7), spaces.MultiDiscrete([3, 4])]),
        "flags": spaces.MultiBinary(6),
    }
    assert count_bytes(spaces.Dict(parts)) == 8 * 8 * 3 + 5 * 4 + 4 + 2 * 4 + 6
    config = small().env_runners(placement="host")
    assembly = assemble(config)
    monkeypatch.setattr(spaces.Box, "sample", lambda self: pytest.fail("makes one"))
    check_memory(assembly, jax.local_devices()[:1])


def test_a_module_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.runners.placement.get_memory_limit", lambda _: 2**25)
    config = small().rl_module(model_config={"fcnet_hiddens": [2048, 2048]})
    with pytest.raises(ConfigError, match=r"module and its optimizer need .* layers of model_conf"):
        config.build()
