"""Stable-Baselines3's PPO as a peer, in its own virtual environment.

`python -m benchmarks.peers.sb3.worker [--threads N]`. One difference from the setting remains:
advantages are normalized per minibatch.
"""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
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

from benchmarks.peers.protocol import serve
from benchmarks.recommended import make_setting
from benchmarks.settings import Setting


class SB3Peer:
    """Peer with one model, whose training continues from run to run."""

    def __init__(self) -> None:
        self._setting: Setting | None = None
        self._model: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        packages = ("stable-baselines3", "torch", "gymnasium")
        versions = {name: version(name) for name in packages}
        return {"versions": versions, "devices": torch.get_num_threads()}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create a new model; nothing is compiled."""
        self._setting = Setting.from_dict(request["setting"])
        self._model = create(self._setting)
        return {"compile_s": None}

    def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create a new model with the hyperparameters of RL Baselines3 Zoo for CartPole."""
        steps = request["setting"]["env_steps"]
        self._setting = make_setting(steps, num_envs=8, num_steps=32)
        self._model = create_from_zoo()
        return {"compile_s": None}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement: one `learn()`, which continues from the last one."""
        assert self._setting is not None
        before, start = self._model.num_timesteps, time.perf_counter()
        self._model.learn(self._setting.env_steps, reset_num_timesteps=False, log_interval=10**9)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "env_steps": self._model.num_timesteps - before}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of the last hundred training episodes."""
        returns = [episode["r"] for episode in self._model.ep_info_buffer]
        return {"return_mean": float(np.mean(returns)) if returns else None}


def create(setting: Setting) -> Any:
    """Create SB3's PPO at a setting, on the CPU."""
    envs = make_vec_env("CartPole-v1", setting.num_envs, seed=setting.seed, vec_env_cls=DummyVecEnv)
    width = [setting.hidden_size, setting.hidden_size]
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=setting.num_steps,
        batch_size=setting.minibatch_size,
        n_epochs=setting.num_epochs,
        learning_rate=setting.lr,
        gamma=setting.gamma,
        gae_lambda=setting.gae_lambda,
        clip_range=setting.clip_param,
        vf_coef=setting.vf_loss_coeff / 2,  # SB3's value loss has no factor of 1/2
        ent_coef=setting.entropy_coeff,
        max_grad_norm=setting.max_grad_norm,
        policy_kwargs={
            "activation_fn": torch.nn.Tanh,
            "net_arch": {"pi": width, "vf": width},
            "optimizer_kwargs": {"eps": setting.adam_eps},
        },
        seed=setting.seed,
        device="cpu",
        verbose=0,
    )


def create_from_zoo() -> Any:
    """Create SB3's PPO as tuned in RL Baselines3 Zoo; linear schedules end with each `learn()`."""
    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=0, vec_env_cls=DummyVecEnv),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=0,
        device="cpu",
        verbose=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores)")
    threads = parser.parse_args().threads
    if threads is not None:
        torch.set_num_threads(threads)
    peer = SB3Peer()
    names = ("info", "setup", "recommend", "run", "evaluate")
    serve({name: getattr(peer, name) for name in names})


if __name__ == "__main__":
    main()
