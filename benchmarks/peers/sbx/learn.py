"""SBX (Stable-Baselines3 with flax networks) in learning suites."""

from __future__ import annotations

import flax.linen as nn
import jax
import optax
from sbx import DQN, PPO, SAC  # pyright: ignore

from benchmarks.peers import learning
from benchmarks.peers.sb3 import models
from benchmarks.peers.sb3.learn import train

if __name__ == "__main__":
    library = models.Library(
        algorithms={"PPO": PPO, "DQN": DQN, "SAC": SAC},
        activations={"tanh": nn.tanh, "relu": nn.relu},
        adam=optax.adam,
    )
    learning.main(
        lambda run: train(run, library),
        ("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium"),
        [device.device_kind for device in jax.local_devices()],
    )
