"""Script that trains RLlib's PPO on CartPole: `python -m benchmarks.peers.rllib.script STEPS`."""

from __future__ import annotations

import sys

import ray
import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)

from benchmarks.peers.ray_start import start_ray
from benchmarks.settings import parse_setting


def main(steps: int) -> None:
    """Train in the driver process, with the hyperparameters of the other peers."""
    setting = parse_setting("4x128", steps=steps)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=setting.num_envs)
        .training(
            train_batch_size_per_learner=setting.train_batch_size,
            minibatch_size=setting.minibatch_size,
            num_epochs=setting.num_epochs,
            lr=setting.lr,
            gamma=setting.gamma,
            lambda_=setting.gae_lambda,
            clip_param=setting.clip_param,
            vf_clip_param=float("inf"),
            vf_loss_coeff=setting.vf_loss_coeff / 2,  # RLlib's value loss has no factor of 1/2
            entropy_coeff=setting.entropy_coeff,
            use_kl_loss=False,
            grad_clip=setting.max_grad_norm,
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .debugging(seed=setting.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
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
