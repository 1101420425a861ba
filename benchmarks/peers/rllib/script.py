"""Script that trains RLlib's PPO on CartPole: `python -m benchmarks.peers.rllib.script STEPS`."""

from __future__ import annotations

import sys
from dataclasses import replace

import ray
import torch  # pyright: ignore[reportMissingImports]

from benchmarks.peers.ray_start import start_ray
from benchmarks.peers.rllib.worker import make_config
from benchmarks.settings import parse_setting


def main(steps: int) -> None:
    """Train in the driver process, with the hyperparameters of the other peers."""
    setting = replace(parse_setting("4x128", steps=steps), num_updates=1)
    algorithm = make_config(setting, 0, setting.num_envs).build_algo()
    result: dict[str, float] = {"num_env_steps_sampled_lifetime": 0}
    while result["num_env_steps_sampled_lifetime"] < steps:
        result = algorithm.train()["env_runners"]
    print(int(result["num_env_steps_sampled_lifetime"]), result.get("episode_return_mean"))
    algorithm.stop()


if __name__ == "__main__":
    torch.set_num_threads(1)
    start_ray()
    try:
        main(int(sys.argv[1]))
    finally:
        ray.shutdown()
