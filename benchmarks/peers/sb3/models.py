"""Models of Stable-Baselines3 for jobs of learning suites; SBX's take the same arguments.

Recommended settings are those of RL Baselines3 Zoo
(https://github.com/DLR-RM/rl-baselines3-zoo/tree/master/hyperparams), with the library's defaults
for everything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
    make_vec_env,
)

from benchmarks.peers.learning import Run, get_gymnasium_id, get_schedule_points, get_settings

RECOMMENDED: Mapping[tuple[str, str], dict[str, Any]] = {
    ("PPO", "CartPole-v1"): {
        "num_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": (0.001, 0.0),
        "clip_range": (0.2, 0.0),
    },
    ("PPO", "Pendulum-v1"): {
        "num_envs": 4,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    ("PPO", "Acrobot-v1"): {
        "num_envs": 16,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "gamma": 0.99,
        "n_epochs": 4,
        "ent_coef": 0.0,
    },
    ("DQN", "CartPole-v1"): {
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    ("SAC", "Pendulum-v1"): {"learning_rate": 1e-3},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Library:
    """Parts of Stable-Baselines3 or SBX that models are made of.

    Args:
        algorithms: Classes by algorithm name.
        activations: Activations by jaxrl's name.
        adam: Constructor of Adam, whose epsilon is `eps`.
    """

    algorithms: Mapping[str, Callable[..., Any]]
    activations: Mapping[str, Any]
    adam: Callable[..., Any]


def create(run: Run, library: Library) -> Any:
    """Create a new model for a run.

    Args:
        run: Run with the algorithm, environment, and settings.
        library: Library of the model.
    """
    job = run.job
    if job.settings is None:
        arguments = make_recommended_arguments(job.algorithm, get_gymnasium_id(job))
    else:
        translators = {
            "PPO": _translate_ppo_settings,
            "DQN": _translate_dqn_settings,
            "SAC": _translate_sac_settings,
        }
        arguments = translators[job.algorithm](run, get_settings(job), library)
    envs = make_vec_env(get_gymnasium_id(job), arguments.pop("num_envs", 1), seed=run.seed)
    model = library.algorithms[job.algorithm]
    return model("MlpPolicy", envs, seed=run.seed, device="cpu", verbose=0, **arguments)


def make_recommended_arguments(algorithm: str, env: str) -> dict[str, Any]:
    """Return the recommended arguments of a model, with `num_envs`; empty if there are none."""
    return {
        name: _make_linear_schedule(value) if isinstance(value, tuple) else value
        for name, value in RECOMMENDED.get((algorithm, env), {}).items()
    }


def _make_linear_schedule(ends: tuple[float, float]) -> Callable[[float], float]:
    """Return a linear schedule in SB3's form: a function of the remaining share of the run."""
    first, last = ends
    return lambda left: last + left * (first - last)


def _make_schedule(value: Any, budget: int) -> Callable[[float], float]:
    steps, values = zip(*get_schedule_points(value), strict=True)
    return lambda left: float(np.interp((1.0 - left) * budget, steps, values))


def _make_policy_kwargs(
    settings: Mapping[str, Any], shared: str, heads: tuple[str, ...], library: Library
) -> dict[str, Any]:
    model = settings["model_config"] or {}
    hiddens = list(model.get("fcnet_hiddens") or [256, 256])
    activation = model.get("fcnet_activation") or shared
    kwargs: dict[str, Any] = {"net_arch": dict.fromkeys(heads, hiddens) if heads else hiddens}
    if activation in library.activations:
        kwargs["activation_fn"] = library.activations[activation]
    optimizer = settings.get("optimizer") or {}
    if isinstance(optimizer, str):
        optimizer = {"name": optimizer}
    if optimizer.get("name", "adam") == "adam":
        kwargs["optimizer_class"] = library.adam
    if "eps" in optimizer:
        kwargs["optimizer_kwargs"] = {"eps": optimizer["eps"]}
    return kwargs


def _translate_ppo_settings(
    run: Run, settings: Mapping[str, Any], library: Library
) -> dict[str, Any]:
    num_envs = settings["num_envs_per_env_runner"] or 1
    batch = settings["train_batch_size_per_learner"] or settings["train_batch_size"]
    return {
        "num_envs": num_envs,
        "n_steps": batch // num_envs,
        "batch_size": settings["minibatch_size"] or batch,
        "n_epochs": settings["num_epochs"],
        "learning_rate": _make_schedule(settings["lr"], run.job.budget),
        "gamma": settings["gamma"],
        "gae_lambda": settings["lambda_"],
        "clip_range": settings["clip_param"],
        "vf_coef": settings["vf_loss_coeff"] / 2,  # SB3's value loss has no factor of 1/2
        "ent_coef": get_schedule_points(settings["entropy_coeff"])[0][1],
        "max_grad_norm": settings["grad_clip"] or float("inf"),
        "policy_kwargs": _make_policy_kwargs(settings, "tanh", ("pi", "vf"), library),
    }


def _translate_replay_settings(run: Run, settings: Mapping[str, Any]) -> dict[str, Any]:
    num_envs = settings["num_envs_per_env_runner"] or 1
    buffer = settings["replay_buffer_config"] or {}
    fragment = settings["rollout_fragment_length"]
    return {
        "num_envs": num_envs,
        "train_freq": fragment if isinstance(fragment, int) else 1,
        "gradient_steps": 1,
        "buffer_size": buffer.get("capacity", 50_000),
        "batch_size": settings["train_batch_size_per_learner"] or settings["train_batch_size"],
        "learning_starts": settings["num_steps_sampled_before_learning_starts"],
        "gamma": settings["gamma"],
        "tau": settings["tau"],
    }


def _translate_dqn_settings(
    run: Run, settings: Mapping[str, Any], library: Library
) -> dict[str, Any]:
    budget, epsilon = run.job.budget, get_schedule_points(settings["epsilon"])
    num_envs = settings["num_envs_per_env_runner"] or 1
    return {
        **_translate_replay_settings(run, settings),
        "learning_rate": _make_schedule(settings["lr"], budget),
        "target_update_interval": max(1, settings["target_network_update_freq"] // num_envs),
        "exploration_initial_eps": epsilon[0][1],
        "exploration_final_eps": epsilon[-1][1],
        "exploration_fraction": min(1.0, max(epsilon[-1][0], 1.0) / budget),
        "policy_kwargs": _make_policy_kwargs(settings, "relu", (), library),
    }


def _translate_sac_settings(
    run: Run, settings: Mapping[str, Any], library: Library
) -> dict[str, Any]:
    rate = settings.get("critic_lr") or settings["lr"]
    return {
        **_translate_replay_settings(run, settings),
        "learning_rate": _make_schedule(rate, run.job.budget),
        "policy_kwargs": _make_policy_kwargs(settings, "relu", (), library),
    }
