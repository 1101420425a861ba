"""RLlib's PPO in learning suites: its new stack, environments in the process that learns.

Recommended settings are RLlib's own of the tuned example
(https://github.com/ray-project/ray/blob/master/rllib/tuned_examples/ppo/cartpole_ppo.py) where
there is one, and else its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)

from benchmarks.peers import learning
from benchmarks.peers.learning import Run, gymnasium_id, schedule_points, settings_of
from benchmarks.peers.ray_start import start_ray


def trained(run: Run) -> Callable[[], float]:
    """Train to the budget; what evaluates the Algorithm."""
    job = run.job
    config = PPOConfig().environment(gymnasium_id(job))
    if job.settings is None:
        config = _recommended(config, gymnasium_id(job))
    else:
        config = _matched(config, settings_of(job))
    config = config.evaluation(
        evaluation_interval=10**9,  # makes the runner that evaluates
        evaluation_duration=job.episodes,
        evaluation_duration_unit="episodes",
        evaluation_config={"explore": False},
    ).debugging(seed=run.seed, log_level="ERROR")
    algorithm = config.build_algo()
    steps = 0
    while steps < job.budget:
        result = algorithm.train()["env_runners"]
        steps = int(result["num_env_steps_sampled_lifetime"])
        run.point(steps, result.get("episode_return_mean"))

    def evaluate() -> float:
        found = algorithm.evaluate()["env_runners"]["episode_return_mean"]
        algorithm.stop()
        return float(found)

    return evaluate


def _recommended(config: Any, environment: str) -> Any:
    if environment != "CartPole-v1":
        return config
    return config.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True
        )
    )


def _matched(config: Any, settings: Mapping[str, Any]) -> Any:
    model = settings["model_config"] or {}
    lr = [[int(step), value] for step, value in schedule_points(settings["lr"])]
    return (
        config.env_runners(num_envs_per_env_runner=settings["num_envs_per_env_runner"] or 1)
        .training(
            train_batch_size_per_learner=settings["train_batch_size_per_learner"]
            or settings["train_batch_size"],
            minibatch_size=settings["minibatch_size"],
            num_epochs=settings["num_epochs"],
            lr=lr if len(lr) > 1 else lr[0][1],
            gamma=settings["gamma"],
            lambda_=settings["lambda_"],
            clip_param=settings["clip_param"],
            vf_clip_param=settings["vf_clip_param"],
            vf_loss_coeff=settings["vf_loss_coeff"] / 2,  # its value loss has no factor of a half
            entropy_coeff=schedule_points(settings["entropy_coeff"])[0][1],
            use_kl_loss=settings["use_kl_loss"],
            kl_coeff=settings["kl_coeff"],
            kl_target=settings["kl_target"],
            grad_clip=settings["grad_clip"],
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(model.get("fcnet_hiddens") or [256, 256]),
                fcnet_activation=model.get("fcnet_activation") or "tanh",
                vf_share_layers=bool(model.get("vf_share_layers", False)),
            )
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    start_ray()
    try:
        learning.main(trained, ("ray", "torch", "gymnasium"), ["cpu"])
    finally:
        ray.shutdown()
