"""Rejax's PPO in learning suites: all seeds of a job in one vmapped program, as usual for Rejax.

Returns are those of Rejax's own evaluation with the sampling policy. The module docstring of
`worker.py` lists what cannot be set. Recommended settings are those of Rejax's configs
(https://github.com/keraJLi/rejax/tree/main/configs).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from rejax import PPO  # pyright: ignore[reportAttributeAccessIssue]

from benchmarks.peers.learning import get_gymnasium_id, get_schedule_points, get_settings
from jaxrl.bench.job import Curve, Job, describe_process, describe_run, report_progress

EVALUATIONS = 20
PACKAGES = ("rejax", "gymnax", "jax", "flax", "optax")

RECOMMENDED: Mapping[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 16,
        "num_steps": 64,
        "num_epochs": 4,
        "num_minibatches": 4,
        "learning_rate": 0.001,
        "max_grad_norm": 0.5,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_eps": 0.2,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
    },
    "Pendulum-v1": {
        "num_envs": 20,
        "num_steps": 128,
        "num_epochs": 10,
        "num_minibatches": 16,
        "learning_rate": 0.001,
        "max_grad_norm": 10.0,
        "gamma": 0.995,
        "gae_lambda": 0.95,
        "clip_eps": 0.2,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
    },
}


def main() -> None:
    job = Job.read(sys.argv[1])
    seeds = job.find_missing_seeds()
    if job.settings is None:
        settings = RECOMMENDED.get(get_gymnasium_id(job), {})
    else:
        settings = _translate_settings(job)
    batch = settings.get("num_envs", 64) * settings.get("num_steps", 64)  # Rejax's defaults
    interval = batch * max(1, round(job.budget / EVALUATIONS / batch))  # whole batches
    algorithm = PPO.create(
        env=get_gymnasium_id(job),
        total_timesteps=interval * max(1, job.budget // interval),
        eval_freq=interval,
        skip_initial_evaluation=True,
        **settings,
    )
    keys = jax.vmap(jax.random.PRNGKey)(np.asarray(seeds, np.uint32))
    start = time.perf_counter()
    train = jax.jit(jax.vmap(lambda key: algorithm.train(rng=key)[1])).lower(keys).compile()
    compile_s = time.perf_counter() - start
    report_progress(steps=0, budget=job.budget)
    start = time.perf_counter()
    _, returns = jax.block_until_ready(train(keys))
    seconds = time.perf_counter() - start
    means = np.asarray(returns).mean(axis=-1)  # [seeds, evaluations]
    devices = [device.device_kind for device in jax.local_devices()]
    shared = describe_process(seconds, compile_s, PACKAGES, devices, num_lanes=len(seeds))
    for seed, values in zip(seeds, means, strict=True):
        curve = Curve()
        for i, value in enumerate(values, start=1):
            curve.add(i * interval, float(value), seconds * i / len(values))
        report_progress(
            seed=seed, steps=curve.steps[-1], budget=job.budget, return_mean=float(values[-1])
        )
        job.write_outcome(
            seed, {**shared, **describe_run(curve, float(values[-1]), curve.steps[-1])}
        )


def _translate_settings(job: Job) -> dict[str, Any]:
    settings = get_settings(job)
    model = settings["model_config"] or {}
    num_envs = settings["num_envs_per_env_runner"] or 1
    batch = settings["train_batch_size_per_learner"] or settings["train_batch_size"]
    return {
        "num_envs": num_envs,
        "num_steps": batch // num_envs,
        "num_epochs": settings["num_epochs"],
        "num_minibatches": batch // (settings["minibatch_size"] or batch),
        "learning_rate": get_schedule_points(settings["lr"])[0][1],
        "gamma": settings["gamma"],
        "gae_lambda": settings["lambda_"],
        "clip_eps": settings["clip_param"],
        "vf_coef": settings["vf_loss_coeff"],
        "ent_coef": get_schedule_points(settings["entropy_coeff"])[0][1],
        "max_grad_norm": settings["grad_clip"] or float("inf"),
        "agent_kwargs": {
            "activation": model.get("fcnet_activation") or "tanh",
            "hidden_layer_sizes": tuple(model.get("fcnet_hiddens") or (256, 256)),
        },
    }


if __name__ == "__main__":
    main()
