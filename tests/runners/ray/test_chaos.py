"""A minute in which actors are killed at random: training goes on, and the accounts balance."""

import itertools
import random
import threading
import time
from typing import Any

import psutil
import pytest

from jaxrl import IMPALAConfig, PPOConfig
from jaxrl.runners.ray.group import RayEnvRunnerGroup

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster"), pytest.mark.slow]

SECONDS, BETWEEN_S = 60.0, 5.0
LIFETIME = (
    "num_env_steps_received_lifetime",
    "num_env_steps_trained_lifetime",
    "num_env_steps_maybe_lost_lifetime",
    "num_env_runner_restarts",
)


class Killer(threading.Thread):
    """Ends a random actor with SIGKILL every five seconds, whatever it is about."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.kills, self.is_over, self.random = 0, threading.Event(), random.Random(0)

    def run(self) -> None:
        while not self.is_over.wait(BETWEEN_S):
            processes = psutil.Process().children(recursive=True)
            actors = [child for child in processes if is_actor(child)]
            if actors:
                self.random.choice(actors).kill()
                self.kills += 1


def is_actor(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[0].startswith("ray::RayEnvRunner")
    except (psutil.Error, IndexError):
        return False


@pytest.mark.parametrize("algo", [PPOConfig, IMPALAConfig])
def test_killing_an_actor_every_five_seconds_stops_nothing(algo: Any) -> None:
    config = algo().environment("gymnasium:CartPole-v1")
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=4, rollout_fragment_length=32)
    config.training(train_batch_size=256).debugging(loggers=["json"])
    config.reporting(min_time_s_per_iteration=1.0)
    told: list[int] = []

    def recreated(*, algorithm: Any, env_runner_indices: list[int], **_: Any) -> None:
        assert algorithm.config.algo_name == config.algo_name
        told.extend(env_runner_indices)

    config.callbacks(on_env_runners_recreated=recreated)
    config.checkpointing(checkpoint_at_end=False)  # a function in a function cannot be saved
    with config.build() as algorithm:
        group = algorithm.env_runner_group
        assert isinstance(group, RayEnvRunnerGroup)
        killer = Killer()
        killer.start()
        results: list[dict[str, Any]] = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            results.append(algorithm.train())
        killer.is_over.set()
        killer.join()
        while group.num_healthy_env_runners < 2:
            results.append(algorithm.train())
        results.append(algorithm.train())
    assert killer.kills >= SECONDS / BETWEEN_S / 2
    faults = [result["fault_tolerance"] for result in results]
    for before, after in itertools.pairwise(faults):
        assert all(after[name] >= before[name] for name in LIFETIME)
        assert after["num_env_steps_trained_lifetime"] > before["num_env_steps_trained_lifetime"]
    for fault in faults:
        assert fault["num_env_steps_received_lifetime"] == (
            fault["num_env_steps_trained_lifetime"]
            + fault["num_env_steps_queued"]
            + sum(fault["num_env_steps_discarded_lifetime"].values())
        )
    last = faults[-1]
    # A kill that hits an actor while it starts leads to one start more, and not to a restart.
    assert 2 <= last["num_env_runner_restarts"] == len(told) <= killer.kills
    assert last["num_env_steps_maybe_lost_lifetime"] <= killer.kills * 4 * 32
    assert sum("was restarted (" in sentence for sentence in last["restarts"]) > 1
    assert last["num_env_steps_trained_lifetime"] == results[-1]["num_env_steps_trained_lifetime"]
