"""Script that trains Stable-Baselines3's PPO on CartPole, as in its quick start, or times actions.

`python -m benchmarks.peers.sb3.script STEPS`, or `--latency CALLS`.
"""

# pyright: reportUnknownParameterType=false
from __future__ import annotations

import json
import sys
import time

import gymnasium
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]

from benchmarks.peers.sb3.worker import create
from benchmarks.settings import parse_setting


def create_model(steps: int) -> PPO:
    """Create a model with the hyperparameters of the other peers."""
    return create(parse_setting("4x128", steps=steps))


def print_latency(calls: int) -> None:
    """Print the seconds of single actions as JSON."""
    ppo, seconds = create_model(512), []
    obs, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    for _ in range(calls):
        start = time.perf_counter()
        ppo.predict(np.asarray(obs), deterministic=True)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"predict": seconds}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--latency":
        print_latency(int(sys.argv[2]))
    else:
        trained = create_model(int(sys.argv[1])).learn(int(sys.argv[1]))
        returns = [episode["r"] for episode in trained.ep_info_buffer]
        print(trained.num_timesteps, sum(returns) / max(1, len(returns)))
