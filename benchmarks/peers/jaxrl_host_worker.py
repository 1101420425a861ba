"""jaxrl on the host as a peer: gymnasium's CartPole, stepped in this process or by Ray actors.

`python -m benchmarks.peers.jaxrl_host_worker [--runners 2] [--algorithm IMPALA]`. In addition to
the commands of every peer, it measures the waiting times of an asynchronous run (`flow`) and trains
for a given time (`train_for`).
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from importlib.metadata import version
from typing import Any

from benchmarks.peers import jaxrl_worker
from benchmarks.peers.protocol import Request
from benchmarks.peers.ray_start import start_ray
from benchmarks.settings import Setting
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.config.base import AlgorithmConfig

ENV = "gymnasium:CartPole-v1"
IMPALA_ENVS = 5
"""Environments per actor. With two actors and IMPALA's default fragments of 50 steps, a train batch
of the default size consists of two fragments."""
FLOW_METRICS = (
    "learner_wait_fraction",
    "env_runners_wait_fraction",
    "staleness_mean",
    "staleness_max",
    "num_fragments_queued",
)


class HostPeer(jaxrl_worker.JaxrlPeer):
    """Peer with one Algorithm, PPO or IMPALA."""

    def __init__(self, algorithm: str, num_runners: int) -> None:
        configure = make_impala_config if algorithm == "IMPALA" else make_ppo_config
        super().__init__(functools.partial(configure, num_runners=num_runners))

    def info(self, request: Request) -> dict[str, Any]:
        """Return versions and the number of the learner's devices, the same without actors."""
        probe = make_ppo_config(Setting(num_envs=8, num_steps=256, num_updates=1)).build()
        devices = len(probe.devices)
        probe.stop()
        versions = {**jaxrl_worker.get_versions(), "gymnasium": version("gymnasium")}
        return {"versions": versions, "devices": devices}

    def flow(self, request: Request) -> dict[str, Any]:
        """Run one measurement, with the waiting times of learner and actors."""
        assert self._algorithm is not None
        start = time.perf_counter()
        result = self._algorithm.train()
        seconds = time.perf_counter() - start
        runners, faults = result["env_runners"], result["fault_tolerance"]
        return {
            "seconds": seconds,
            "env_steps": runners["num_env_steps_sampled"],
            **{name: runners[name] for name in FLOW_METRICS},
            "num_env_steps_discarded": sum(faults["num_env_steps_discarded_lifetime"].values()),
        }

    def train_for(self, request: Request) -> dict[str, Any]:
        """Train for at least the given seconds.

        Returns:
            The environment steps, and the process ids of the driver and the runners.
        """
        assert self._algorithm is not None
        end, steps = time.monotonic() + request["seconds"], 0
        while time.monotonic() < end:
            steps += self._algorithm.train()["env_runners"]["num_env_steps_sampled"]
        group = self._algorithm.env_runner_group
        assert group is not None
        runners = group.foreach_env_runner(lambda runner: os.getpid())
        return {"env_steps": steps, "driver": os.getpid(), "runners": runners}


def make_ppo_config(setting: Setting, *, num_runners: int = 0) -> AlgorithmConfig:
    """Build PPO's config of a setting, with the environments divided among the runners."""
    return (
        jaxrl_worker.make_config(setting)
        .environment(ENV)
        .env_runners(
            num_env_runners=num_runners,
            num_envs_per_env_runner=setting.num_envs // max(1, num_runners),
            rollout_fragment_length=setting.num_steps,
        )
    )


def make_impala_config(setting: Setting, *, num_runners: int) -> AlgorithmConfig:
    """Build IMPALA's config with defaults, except for the setting's network and seed."""
    return (
        IMPALAConfig()
        .environment(ENV)
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=IMPALA_ENVS)
        .rl_module(
            model_config={
                "fcnet_hiddens": [setting.hidden_size, setting.hidden_size],
                "fcnet_activation": "tanh",
                "vf_share_layers": False,
            }
        )
        .reporting(min_sample_timesteps_per_iteration=setting.env_steps)
        .debugging(seed=setting.seed)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--runners", type=int, default=0, help="number of actors; 0 samples in this process"
    )
    parser.add_argument("--algorithm", choices=("PPO", "IMPALA"), default="PPO")
    options = parser.parse_args()
    if options.runners:
        start_ray()
    peer = HostPeer(options.algorithm, options.runners)
    jaxrl_worker.serve_jaxrl(peer, "flow", "train_for")
