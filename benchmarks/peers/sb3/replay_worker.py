"""Stable-Baselines3's DQN and SAC as a peer, in its own virtual environment.

`python -m benchmarks.peers.sb3.replay_worker [--threads N]`. One difference from the setting
remains: DQN clips gradients at a norm of 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stable_baselines3 import DQN, SAC  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
    make_vec_env,
)

from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.peers.sb3.worker import ModelPeer
from benchmarks.peers.torch_peer import set_threads
from benchmarks.settings import ReplaySetting


class SB3ReplayPeer(ModelPeer):
    """Peer that trains DQN or SAC of Stable-Baselines3 or of a library with the same interface.

    Args:
        algorithms: Classes by algorithm name.
    """

    def __init__(self, algorithms: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self._algorithms = algorithms

    def setup(self, request: Request) -> dict[str, Any]:
        """Create a new model and train it until updates have begun.

        Compilation time, if any, is the difference between the first updates and the next ones.
        """
        setting = ReplaySetting.from_dict(request["setting"])
        self._env_steps = setting.env_steps
        self._model = create(self._algorithms[setting.algorithm], setting)
        self.learn(setting.learning_starts)
        first = self.learn(2 * setting.steps_per_update)
        second = self.learn(2 * setting.steps_per_update)
        self.learn(max(setting.warmup_steps - self._model.num_timesteps, setting.steps_per_update))
        return {"compile_s": first - second}


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


if __name__ == "__main__":
    set_threads()
    serve_peer(SB3ReplayPeer({"DQN": DQN, "SAC": SAC}))
