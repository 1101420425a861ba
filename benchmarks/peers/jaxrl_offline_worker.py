"""jaxrl's algorithms for recorded data as a peer, through the public API."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from benchmarks.peers.jaxrl_worker import AlgorithmPeer, get_versions, serve_jaxrl, wait_for_state
from benchmarks.peers.protocol import Request
from benchmarks.settings import ACTION_SIZE, OBS_SIZE, READING, OfflineSetting
from jaxrl import BCConfig, CQLConfig, IQLConfig, TD3Config
from jaxrl.config.base import AlgorithmConfig

CONFIGS: dict[str, type[AlgorithmConfig]] = {
    "BC": BCConfig,
    "CQL": CQLConfig,
    "IQL": IQLConfig,
    "TD3+BC": TD3Config,
}


class JaxrlOfflinePeer(AlgorithmPeer):
    """Peer that learns from a file; `train()` is one measurement."""

    def info(self, request: Request) -> dict[str, Any]:
        """Return versions and the number of devices."""
        return {"versions": get_versions(), "devices": len(jax.local_devices())}

    def setup(self, request: Request) -> dict[str, Any]:
        """Build for a setting, and compile with the first `train()`."""
        self.close()
        start = time.perf_counter()
        setting = OfflineSetting.from_dict(request["setting"])
        self._algorithm = make_config(setting, request["data"]).build()
        built = time.perf_counter() - start
        first, second = (self.run({})["seconds"] for _ in range(2))
        return {"compile_s": built + first - second}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement, after which nothing is computed ahead."""
        seconds = self.time_train()
        assert self._algorithm is not None
        wait_for_state(self._algorithm)
        return {"seconds": seconds}

    def read(self, request: Request) -> dict[str, Any]:
        """Build an algorithm, which reads a file and puts its rows on the device."""
        config: Any = make_config(READING, request["data"])
        config.offline_data(ignore_final_observation=False)  # it is recorded
        start = time.perf_counter()
        algorithm = config.build()
        dataset = jax.block_until_ready(algorithm.learner_group.dataset)
        seconds = time.perf_counter() - start
        num_rows = dataset.num_rows
        algorithm.stop()
        return {"seconds": seconds, "num_rows": num_rows}


def make_config(setting: OfflineSetting, data: str) -> AlgorithmConfig:
    """Build jaxrl's config of a setting."""
    config: Any = CONFIGS[setting.algorithm]()
    config.environment(
        observation_space=spaces.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32),
        action_space=spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32),
    )
    config.offline_data(
        input_=data,
        num_updates_per_iteration=setting.num_updates,
        ignore_final_observation=True,
        dataset_sampling="uniform",
    )
    width = [setting.hidden_size, setting.hidden_size]
    config.rl_module(model_config={"fcnet_hiddens": width, "fcnet_activation": "relu"})
    config.training(train_batch_size=setting.batch_size, gamma=setting.gamma, grad_clip=None)
    config.debugging(loggers=[])
    if setting.algorithm == "BC":
        return config.training(lr=setting.lr)
    config.training(actor_lr=setting.lr, critic_lr=setting.lr, tau=setting.tau)
    more: dict[str, dict[str, Any]] = {
        "IQL": {"value_lr": setting.lr, "beta": 3.0},
        "CQL": {"alpha_lr": setting.lr, "bc_iters": 0},
        "TD3+BC": {"bc_coeff": 2.5},
    }
    return config.training(**more[setting.algorithm])


if __name__ == "__main__":
    serve_jaxrl(JaxrlOfflinePeer(), "read")
