"""The cores as devices: how many there are, and when they are claimed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.runtime import cores, devices


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
