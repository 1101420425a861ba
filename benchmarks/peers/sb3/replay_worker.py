"""Stable-Baselines3's DQN and SAC as a peer, in its own virtual environment.

`python -m benchmarks.peers.sb3.replay_worker [--threads N]`. One difference from the setting
remains: DQN clips gradients at a norm of 10.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from stable_baselines3 import DQN, SAC  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
    make_vec_env,
)

from benchmarks.peers.protocol import serve
from benchmarks.replay_settings import ReplaySetting


class SB3ReplayPeer:
    """Peer with one model of Stable-Baselines3 or of a library with the same interface.

    Args:
        algorithms: Classes by algorithm name.
        packages: Packages whose versions are recorded.
    """

    def __init__(self, algorithms: dict[str, Callable[..., Any]], packages: Sequence[str]) -> None:
        self._algorithms, self._packages = algorithms, packages
        self._setting: ReplaySetting | None = None
        self._model: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        versions = {name: version(name) for name in self._packages}
        return {"versions": versions, "devices": torch.get_num_threads()}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create a new model and train it until updates have begun.

        Compilation time, if any, is the difference between the first updates and the next ones.
        """
        setting = self._setting = ReplaySetting.from_dict(request["setting"])
        self._model = create(self._algorithms[setting.algorithm], setting)
        self._learn(setting.learning_starts)
        first = self._learn(2 * setting.steps_per_update)
        second = self._learn(2 * setting.steps_per_update)
        self._learn(max(setting.warmup_steps - self._model.num_timesteps, setting.steps_per_update))
        return {"compile_s": first - second}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement: one `learn()`, which continues from the last one."""
        assert self._setting is not None
        before = self._model.num_timesteps
        seconds = self._learn(self._setting.env_steps)
        return {"seconds": seconds, "env_steps": self._model.num_timesteps - before}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of the last hundred training episodes."""
        returns = [episode["r"] for episode in self._model.ep_info_buffer]
        return {"return_mean": float(np.mean(returns)) if returns else None}

    def _learn(self, steps: int) -> float:
        start = time.perf_counter()
        self._model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
        return time.perf_counter() - start


def create(algorithm: Callable[..., Any], setting: ReplaySetting) -> Any:
    """Create a model at a setting, on the CPU."""
    arguments: dict[str, Any] = {
        "learning_rate": setting.lr,
        "buffer_size": setting.capacity,
        "learning_starts": setting.learning_starts,
        "batch_size": setting.batch_size,
        "tau": setting.tau,
        "gamma": setting.gamma,
        "train_freq": setting.steps_per_update // setting.num_envs,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [setting.hidden_size, setting.hidden_size]},
        "seed": setting.seed,
        "device": "cpu",
        "verbose": 0,
    }
    if setting.algorithm == "DQN":
        arguments["target_update_interval"] = setting.target_update_freq
    envs = make_vec_env(setting.env, setting.num_envs, seed=setting.seed)
    model = algorithm("MlpPolicy", envs, **arguments)
    if setting.algorithm == "DQN":
        # SB3's own schedule is relative to each `learn()`, and there are many here.
        model.exploration_schedule = lambda _: compute_epsilon(setting, model.num_timesteps)
    return model


def compute_epsilon(setting: ReplaySetting, steps: int) -> float:
    """Return the share of random actions after a number of environment steps."""
    progress = min(1.0, steps / setting.epsilon_steps)
    return 1.0 + progress * (setting.final_epsilon - 1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores)")
    threads = parser.parse_args().threads
    if threads is not None:
        torch.set_num_threads(threads)
    packages = ("stable-baselines3", "torch", "gymnasium")
    peer = SB3ReplayPeer({"DQN": DQN, "SAC": SAC}, packages)
    serve({"info": peer.info, "setup": peer.setup, "run": peer.run, "evaluate": peer.evaluate})


if __name__ == "__main__":
    main()
