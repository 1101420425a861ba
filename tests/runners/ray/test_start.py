"""Start of Ray: requests are held against what it has, and this process stays as it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jaxrl.errors import ConfigError, RayError
from jaxrl.runners.ray.start import ResourceRequest, check_fit, start_local_ray
from jaxrl.runtime.env_vars import make_actor_env_vars

ROOT = Path(__file__).parents[3]


def wanted(
    count: int, cpus: float = 1.0, strategy: str = "PACK", **custom: float
) -> ResourceRequest:
    return ResourceRequest(
        count=count,
        bundle={"CPU": cpus, **custom},
        strategy=strategy,
        count_setting="num_env_runners",
        setting_by_resource={
            "CPU": "num_cpus_per_env_runner",
            "robot": "custom_resources_per_env_runner",
        },
    )


@pytest.mark.parametrize(
    ("request_", "nodes", "sentence"),
    [
        (
            wanted(4),
            [{"CPU": 2.0}],
            (
                "num_env_runners=4 with num_cpus_per_env_runner=1 needs 4 CPU, but Ray has 2: set "
                "num_env_runners=2, or num_cpus_per_env_runner=0.5 to let them share."
            ),
        ),
        (
            wanted(3, 2.0),
            [{"CPU": 3.0}, {"CPU": 3.0}],  # six, but no third pair on one node
            (
                "num_env_runners=3 with num_cpus_per_env_runner=2 needs 6 CPU, but Ray has 6: set "
                "num_env_runners=2, or num_cpus_per_env_runner=1 to let them share."
            ),
        ),
        (
            wanted(1),
            [{"CPU": 0.0}],  # left by the actors that run
            (
                "num_env_runners=1 with num_cpus_per_env_runner=1 needs 1 CPU, but Ray has 0: set "
                "num_env_runners=0, or num_cpus_per_env_runner below 1 to let them share."
            ),
        ),
        (
            wanted(1, robot=1.0),
            [{"CPU": 8.0}],
            (
                "num_env_runners=1 with custom_resources_per_env_runner=1 needs 1 robot, but Ray has "
                "0: give the cluster some robot, or leave it out of custom_resources_per_env_runner."
            ),
        ),
        (
            wanted(3, strategy="STRICT_SPREAD"),
            [{"CPU": 4.0}, {"CPU": 4.0}],
            (
                "placement_strategy='STRICT_SPREAD' puts each of num_env_runners=3 on a node of its "
                "own, but Ray has 2: set num_env_runners=2, or placement_strategy='SPREAD'."
            ),
        ),
        (
            wanted(5, strategy="STRICT_PACK"),
            [{"CPU": 4.0}, {"CPU": 3.0}],
            (
                "placement_strategy='STRICT_PACK' puts all of num_env_runners=5 on one node, and the "
                "largest has room for 4: set num_env_runners=4, or placement_strategy='PACK'."
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    request_: ResourceRequest, nodes: list[dict[str, float]], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fit(request_, nodes, "Ray has")
    assert str(caught.value) == sentence


def test_what_fits_passes() -> None:
    check_fit(wanted(4), [{"CPU": 2.0}, {"CPU": 2.0}], "Ray has")
    check_fit(wanted(3, 1 / 3), [{"CPU": 1.0}], "Ray has")
    check_fit(wanted(9, 0.0, "STRICT_PACK"), [{"CPU": 1.0}], "Ray has")
    check_fit(wanted(2, robot=0.5, strategy="SPREAD"), [{"CPU": 2.0, "robot": 1.0}], "Ray has")


SCRIPT = """
import json, os, signal, warnings
warnings.simplefilter("error")
import jax
jax.numpy.ones(3).sum().block_until_ready()
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.runtime.cores import count_usable_cores
from jaxrl.runners.ray.start import ensure_ray
handler = lambda *_: None
signal.signal(signal.SIGTERM, handler)
note = ensure_ray(PPOConfig())
again = ensure_ray(PPOConfig())
import psutil, ray
print(json.dumps({
    "note": note, "again": again, "cores": count_usable_cores(),
    "cpus": ray.cluster_resources()["CPU"],
    "handler": signal.getsignal(signal.SIGTERM) is handler,
    "children": [child.pid for child in psutil.Process().children(recursive=True)],
}))
"""


@pytest.mark.ray
def test_ray_is_started_once_and_ends_with_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["note"].startswith(f"Ray: started on this machine with {said['cores']} CPUs")
    assert said["again"] == f"Ray: the running instance, with {said['cores']} CPUs."
    assert said["cpus"] == said["cores"]
    assert said["handler"]
    assert "os.fork" not in done.stderr
    assert said["children"]
    assert not [pid for pid in said["children"] if psutil.pid_exists(pid)]


KILLED = """
import json, os, signal
import psutil
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.runners.ray.start import ensure_ray
ensure_ray(PPOConfig())
print(json.dumps([child.pid for child in psutil.Process().children(recursive=True)]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that nobody reaps does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.ray
@pytest.mark.slow
def test_ray_ends_after_a_process_that_was_killed(tmp_path: Path) -> None:
    """Its agents wait a minute for the server that died with the process."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    started = json.loads(done.stdout.splitlines()[-1])
    assert started
    deadline = time.monotonic() + 180.0
    while left := [pid for pid in started if is_running(pid)]:
        assert time.monotonic() < deadline, [psutil.Process(pid).name() for pid in left]
        time.sleep(1.0)


def test_a_ray_that_does_not_start_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nSee the logs.")

    monkeypatch.setattr("ray.init", init)
    said = (
        r"Ray could not be started or joined \(address 'local'\): Exception: The current node timed"
    )
    with pytest.raises(RayError, match=said) as error:
        start_local_ray(1)
    assert "\n" not in str(error.value)


# --- environment variables of actors ---


def test_actors_see_no_accelerator_and_share_the_cores() -> None:
    one = make_actor_env_vars(0.5, {})
    assert one["JAX_PLATFORMS"] == "cpu"
    assert one["CUDA_VISIBLE_DEVICES"] == ""
    assert one["JAX_NUM_CPU_DEVICES"] == one["NPROC"] == one["OMP_NUM_THREADS"] == "1"
    assert one["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    four = make_actor_env_vars(4.0, {"OMP_NUM_THREADS": "2"})
    assert (four["NPROC"], four["OMP_NUM_THREADS"], four["XLA_FLAGS"]) == ("4", "2", "")
