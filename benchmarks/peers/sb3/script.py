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
from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
    make_vec_env,
)

from benchmarks.settings import parse_setting


def create_model(steps: int) -> PPO:
    """Create a model with the hyperparameters of the other peers."""
    setting = parse_setting("4x128", steps=steps)
    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", setting.num_envs, seed=setting.seed),
        n_steps=setting.num_steps,
        batch_size=setting.minibatch_size,
        n_epochs=setting.num_epochs,
        learning_rate=setting.lr,
        gamma=setting.gamma,
        gae_lambda=setting.gae_lambda,
        clip_range=setting.clip_param,
        ent_coef=setting.entropy_coeff,
        vf_coef=setting.vf_loss_coeff / 2,  # SB3's value loss has no factor of 1/2
        max_grad_norm=setting.max_grad_norm,
        device="cpu",
    )


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
