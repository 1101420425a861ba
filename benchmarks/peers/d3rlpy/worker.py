"""d3rlpy's algorithms as a peer, in its own virtual environment.

`python -m benchmarks.peers.d3rlpy.worker [--threads N]`. Differences from the setting that remain:
CQL draws 10 actions of each kind as here, but learns its factor (alpha_learning_rate is 0), and
updates of torch are not compiled (`compile_graph` is for GPUs alone).
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.peers.torch_peer import TorchPeer, set_threads
from benchmarks.settings import OfflineSetting

d3rlpy: Any = importlib.import_module("d3rlpy")  # not this package, which has the same name


class D3rlpyPeer(TorchPeer):
    """Peer with one algorithm, whose training continues from run to run."""

    packages = ("d3rlpy", "torch")

    def __init__(self) -> None:
        self._algorithm: Any = None
        self._dataset: Any = None
        self._num_updates = 0

    def setup(self, request: Request) -> dict[str, Any]:
        """Create a new algorithm; nothing is compiled."""
        setting = OfflineSetting.from_dict(request["setting"])
        self._dataset = load(request["data"])
        self._algorithm = create(setting)
        self._num_updates = setting.num_updates
        self._fit(max(2, setting.num_updates // 10))
        return {"compile_s": None}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement."""
        return {"seconds": self._fit(self._num_updates)}

    def _fit(self, num_updates: int) -> float:
        start = time.perf_counter()
        self._algorithm.fit(
            self._dataset,
            n_steps=num_updates,
            n_steps_per_epoch=num_updates,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
            save_interval=10**9,
        )
        return time.perf_counter() - start


def load(path: str) -> Any:
    """Return the data as d3rlpy's."""
    arrays = np.load(path)
    return d3rlpy.dataset.MDPDataset(
        observations=arrays["observations"],
        actions=arrays["actions"],
        rewards=arrays["rewards"],
        terminals=arrays["terminals"].astype(np.float32),
        timeouts=arrays["timeouts"].astype(np.float32),
    )


def create(setting: OfflineSetting) -> Any:
    """Create d3rlpy's algorithm at a setting, on the CPU."""
    encoder = d3rlpy.models.VectorEncoderFactory([setting.hidden_size, setting.hidden_size])
    shared: dict[str, Any] = {"batch_size": setting.batch_size, "gamma": setting.gamma}
    actor = {"actor_learning_rate": setting.lr, "actor_encoder_factory": encoder}
    critic = {"critic_learning_rate": setting.lr, "critic_encoder_factory": encoder}
    algorithms = d3rlpy.algos
    if setting.algorithm == "BC":
        config = algorithms.BCConfig(
            learning_rate=setting.lr, encoder_factory=encoder, policy_type="stochastic", **shared
        )
    elif setting.algorithm == "CQL":
        config = algorithms.CQLConfig(
            temp_learning_rate=setting.lr,
            alpha_learning_rate=0.0,
            n_action_samples=10,
            tau=setting.tau,
            **actor,
            **critic,
            **shared,
        )
    elif setting.algorithm == "IQL":
        config = algorithms.IQLConfig(
            value_encoder_factory=encoder, tau=setting.tau, **actor, **critic, **shared
        )
    else:
        config = algorithms.TD3PlusBCConfig(tau=setting.tau, **actor, **critic, **shared)
    return config.create(device="cpu:0")


if __name__ == "__main__":
    set_threads()
    serve_peer(D3rlpyPeer())
