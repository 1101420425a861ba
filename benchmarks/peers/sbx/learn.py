"""SBX (Stable-Baselines3 with flax networks) in learning suites.

The activations of its networks are fixed (tanh for PPO, otherwise ReLU), and so is the epsilon of
Adam for DQN and SAC.
"""

from __future__ import annotations

import jax
from sbx import DQN, PPO, SAC  # pyright: ignore

from benchmarks.peers import learning
from benchmarks.peers.sb3.learn import train

if __name__ == "__main__":
    learning.main(
        lambda run: train(run, {"PPO": PPO, "DQN": DQN, "SAC": SAC}, None),
        ("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium"),
        [device.device_kind for device in jax.local_devices()],
    )
