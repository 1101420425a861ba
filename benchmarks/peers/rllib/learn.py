"""RLlib's PPO in learning suites, on the new API stack, sampling in the learner's process.

Recommended settings are those of RLlib's tuned example
(https://github.com/ray-project/ray/blob/master/rllib/tuned_examples/ppo/cartpole_ppo.py) if there
is one, otherwise RLlib's defaults.
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
from benchmarks.peers.learning import Run, get_gymnasium_id, get_schedule_points, get_settings
from benchmarks.peers.ray_start import start_ray


def train(run: Run) -> Callable[[], float]:
    """Train to the budget and return a function that evaluates the Algorithm."""
    job = run.job
    config = PPOConfig().environment(get_gymnasium_id(job))
    if job.settings is None:
        config = _apply_recommended(config, get_gymnasium_id(job))
    else:
        config = _apply_settings(config, get_settings(job))
    config = config.evaluation(
        evaluation_interval=10**9,  # creates the evaluation runner
        evaluation_duration=job.episodes,
        evaluation_duration_unit="episodes",
        evaluation_config={"explore": False},
    ).debugging(seed=run.seed, log_level="ERROR")
    algorithm = config.build_algo()
    steps = 0
    while steps < job.budget:
        result = algorithm.train()["env_runners"]
        steps = int(result["num_env_steps_sampled_lifetime"])
        run.add_point(steps, result.get("episode_return_mean"))

    def evaluate() -> float:
        found = algorithm.evaluate()["env_runners"]["episode_return_mean"]
        algorithm.stop()
        return float(found)

    return evaluate


def _apply_recommended(config: Any, environment: str) -> Any:
    if environment != "CartPole-v1":
        return config
    return config.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True
        )
    )


def _apply_settings(config: Any, settings: Mapping[str, Any]) -> Any:
    model = settings["model_config"] or {}
    lr = [[int(step), value] for step, value in get_schedule_points(settings["lr"])]
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
            vf_loss_coeff=settings["vf_loss_coeff"] / 2,  # RLlib's value loss has no factor of 1/2
            entropy_coeff=get_schedule_points(settings["entropy_coeff"])[0][1],
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
        learning.main(train, ("ray", "torch", "gymnasium"), ["cpu"])
    finally:
        ray.shutdown()
