"""RLlib's algorithms for recorded data as a peer, in its own virtual environment.

`python -m benchmarks.peers.rllib.offline_worker [--threads N]`. The learner is in this process; rows go
through RLlib's connectors once, in two processes of Ray Data, and stay in memory as mapped rows, as its
documentation recommends for connectors without state. One `train()` is one measurement. Differences
from the setting that remain: target networks move once per `train()` and not per gradient step; IQL's
policy is a squashed normal distribution, and its `beta` is 1, RLlib's largest.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from ray.rllib.algorithms.bc import BCConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.cql import CQLConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.iql import IQLConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core import (  # pyright: ignore[reportMissingImports]
    ALL_MODULES,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)
from ray.rllib.core.rl_module.rl_module import RLModuleSpec  # pyright: ignore[reportMissingImports]
from ray.rllib.utils.metrics import (  # pyright: ignore[reportMissingImports]
    DATASET_NUM_ITERS_TRAINED,
    LEARNER_RESULTS,
)

from benchmarks.peers.protocol import Request
from benchmarks.peers.rllib.critics import CriticCatalog
from benchmarks.peers.rllib.worker import serve_rllib
from benchmarks.peers.torch_peer import TorchPeer, set_threads
from benchmarks.settings import ACTION_SIZE, OBS_SIZE, READING, OfflineSetting

OBJECT_STORE_BYTES = 2**30


class UnusedEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Environment that is never stepped, without which RLlib does not build CQL."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)

    def __init__(self, config: object) -> None: ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(OBS_SIZE, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(OBS_SIZE, np.float32), 0.0, False, False, {}


class RLlibOfflinePeer(TorchPeer):
    """Peer with one algorithm, whose training continues from run to run."""

    packages = ("ray", "torch")

    def __init__(self) -> None:
        self._algorithm: Any = None
        self._num_updates = self._total = 0

    def setup(self, request: Request) -> dict[str, Any]:
        """Build a new algorithm, map the rows, and run one iteration; nothing is compiled."""
        setting = OfflineSetting.from_dict(request["setting"])
        self.close()
        self._algorithm = make_config(setting, request["data"]).build_algo()
        self._num_updates, self._total = setting.num_updates, 0
        self.run({})
        return {"compile_s": None}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement, and count its gradient steps by RLlib's metric and by Adam's."""
        start = time.perf_counter()
        result = self._algorithm.train()
        seconds = time.perf_counter() - start
        ran = int(result[LEARNER_RESULTS][ALL_MODULES][DATASET_NUM_ITERS_TRAINED])
        self._total += ran
        steps = self._algorithm.learner_group.foreach_learner(count_steps)
        counted = set().union(*(found.get() for found in steps))
        if ran != self._num_updates or counted != {self._total}:
            raise RuntimeError(
                f"RLlib says {ran} gradient steps of {self._num_updates}, {self._total} in total, and its "
                f"optimizers {sorted(counted)}"
            )
        return {"seconds": seconds}

    def read(self, request: Request) -> dict[str, Any]:
        """Read a file once, from its rows to batches of tensors, after the algorithm is built."""
        self.close()
        config = make_config(READING, request["data"])
        config.offline_data(materialize_mapped_data=False)
        self._algorithm = config.build_algo()
        start = time.perf_counter()
        (rows,) = self._algorithm.offline_data.sample(
            num_samples=READING.batch_size, num_shards=0, return_iterator=True
        )
        batches = rows.iter_torch_batches(
            batch_size=READING.batch_size, device="cpu", prefetch_batches=2
        )
        num_rows = sum(len(batch[f"{DEFAULT_MODULE_ID}/obs"]) for batch in batches)
        return {"seconds": time.perf_counter() - start, "num_rows": num_rows}

    def close(self) -> None:
        """Stop the algorithm."""
        if self._algorithm is not None:
            self._algorithm.stop()
            self._algorithm = None


def count_steps(learner: Any) -> set[int]:
    """Return the numbers of steps that the optimizers of a learner have taken."""
    optimizers = [
        optimizer for _, optimizer in learner.get_optimizers_for_module(DEFAULT_MODULE_ID)
    ]
    return {int(state["step"]) for optimizer in optimizers for state in optimizer.state.values()}


def make_config(setting: OfflineSetting, data: str) -> Any:
    """Return RLlib's config of a setting, with the learner in this process.

    RLlib's critics encode observations and actions apart, with layers of 256 after them, so that
    they cost several times those of the setting; a catalog builds plain ones.
    """
    config: Any = {"BC": BCConfig, "CQL": CQLConfig, "IQL": IQLConfig}[setting.algorithm]()
    config.environment(
        UnusedEnv if setting.algorithm == "CQL" else None,
        observation_space=UnusedEnv.observation_space,
        action_space=UnusedEnv.action_space,
    )
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    config.offline_data(
        input_=[data],
        dataset_num_iters_per_learner=setting.num_updates,
        materialize_data=False,
        materialize_mapped_data=True,
    )
    width = [setting.hidden_size, setting.hidden_size]
    model = DefaultModelConfig(fcnet_hiddens=width, fcnet_activation="relu")
    catalog = None if setting.algorithm == "BC" else CriticCatalog
    config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=catalog, model_config=model))
    config.reporting(
        min_time_s_per_iteration=0,
        min_train_timesteps_per_iteration=0,
        min_sample_timesteps_per_iteration=0,
    )
    config.training(
        train_batch_size_per_learner=setting.batch_size, gamma=setting.gamma, grad_clip=None
    )
    config.debugging(seed=0, log_level="ERROR")
    if setting.algorithm == "BC":
        return config.training(lr=setting.lr)
    config.training(
        actor_lr=setting.lr,
        critic_lr=setting.lr,
        tau=setting.tau,
        target_network_update_freq=0,
    )
    if setting.algorithm == "IQL":
        return config.training(value_lr=setting.lr, expectile=0.8, beta=1.0)
    return config.training(lr=None, alpha_lr=setting.lr, bc_iters=0, num_actions=10)


if __name__ == "__main__":
    set_threads()
    serve_rllib(RLlibOfflinePeer(), "read", object_store_bytes=OBJECT_STORE_BYTES)
