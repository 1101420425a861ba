"""SBX in learning suites: Stable-Baselines3 with networks of flax.

Its networks' activation is fixed (tanh for PPO, ReLU else), and so is Adam's eps of DQN and SAC.
"""

from __future__ import annotations

import jax
from sbx import DQN, PPO, SAC  # pyright: ignore

from benchmarks.peers import learning
from benchmarks.peers.sb3.learn import trained

if __name__ == "__main__":
    learning.main(
        lambda run: trained(run, {"PPO": PPO, "DQN": DQN, "SAC": SAC}, None),
        ("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium"),
        [device.device_kind for device in jax.local_devices()],
    )
