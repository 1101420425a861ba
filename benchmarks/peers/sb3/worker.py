"""Stable-Baselines3's PPO as a peer, in its own virtual environment.

`python -m benchmarks.peers.sb3.worker [--threads N]`. One difference from the setting remains:
advantages are normalized per minibatch.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
    make_vec_env,
)
from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
    DummyVecEnv,
)

from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.peers.sb3 import models
from benchmarks.peers.torch_peer import TorchPeer, set_threads
from benchmarks.settings import Setting, make_recommended_setting


class ModelPeer(TorchPeer):
    """Peer with one model, whose training continues from run to run."""

    packages = ("stable-baselines3", "torch", "gymnasium")

    def __init__(self) -> None:
        self._env_steps = 0
        self._model: Any = None

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement: one `learn()`, which continues from the last one."""
        before = self._model.num_timesteps
        seconds = self.learn(self._env_steps)
        return {"seconds": seconds, "env_steps": self._model.num_timesteps - before}

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of the last hundred training episodes."""
        returns = [episode["r"] for episode in self._model.ep_info_buffer]
        return {"return_mean": float(np.mean(returns)) if returns else None}

    def learn(self, steps: int) -> float:
        """Train for a number of environment steps and return the seconds."""
        start = time.perf_counter()
        self._model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
        return time.perf_counter() - start


class SB3Peer(ModelPeer):
    """Peer that trains PPO."""

    def setup(self, request: Request) -> dict[str, Any]:
        """Create a new model; nothing is compiled."""
        setting = Setting.from_dict(request["setting"])
        self._model, self._env_steps = create(setting), setting.env_steps
        return {"compile_s": None}

    def recommend(self, request: Request) -> dict[str, Any]:
        """Create a new model with the hyperparameters of RL Baselines3 Zoo for CartPole."""
        steps = request["setting"]["env_steps"]
        self._env_steps = make_recommended_setting(steps, num_envs=8, num_steps=32).env_steps
        self._model = create_from_zoo()
        return {"compile_s": None}


def create(setting: Setting) -> Any:
    """Create SB3's PPO at a setting, on the CPU."""
    envs = make_vec_env("CartPole-v1", setting.num_envs, seed=setting.seed, vec_env_cls=DummyVecEnv)
    return PPO("MlpPolicy", envs, seed=setting.seed, **make_arguments(setting))


def make_arguments(setting: Setting) -> dict[str, Any]:
    """Return the arguments of SB3's PPO besides its environments and seed."""
    width = [setting.hidden_size, setting.hidden_size]
    return {
        "n_steps": setting.num_steps,
        "batch_size": setting.minibatch_size,
        "n_epochs": setting.num_epochs,
        "learning_rate": setting.lr,
        "gamma": setting.gamma,
        "gae_lambda": setting.gae_lambda,
        "clip_range": setting.clip_param,
        "vf_coef": setting.vf_loss_coeff / 2,  # SB3's value loss has no factor of 1/2
        "ent_coef": setting.entropy_coeff,
        "max_grad_norm": setting.max_grad_norm,
        "policy_kwargs": {
            "activation_fn": torch.nn.Tanh,
            "net_arch": {"pi": width, "vf": width},
            "optimizer_kwargs": {"eps": setting.adam_eps},
        },
        "device": "cpu",
        "verbose": 0,
    }


def create_from_zoo() -> Any:
    """Create SB3's PPO as tuned in RL Baselines3 Zoo; linear schedules end with each `learn()`."""
    arguments = models.make_recommended_arguments("PPO", "CartPole-v1")
    envs = make_vec_env("CartPole-v1", arguments.pop("num_envs"), seed=0, vec_env_cls=DummyVecEnv)
    return PPO("MlpPolicy", envs, seed=0, device="cpu", verbose=0, **arguments)


if __name__ == "__main__":
    set_threads()
    serve_peer(SB3Peer(), "recommend")
