"""RLlib's PPO trained by one external simulator, as a peer, in its own virtual environment.

`EnvRunnerServerForExternalInference` is RLlib's server for simulators, and its example's dummy client,
which plays CartPole-v1 and computes actions by the RLModule that it receives, runs in a process of its
own. RLlib's server has one client for each runner, and one runner is in the process that learns.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import gymnasium
import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)
from ray.rllib.env.external.env_runner_server_for_external_inference import (  # pyright: ignore[reportMissingImports]
    EnvRunnerServerForExternalInference,
)

from benchmarks.peers.protocol import Request
from benchmarks.peers.rllib.worker import RLlibPeer, serve_rllib

CLIENT = """
import sys
from ray.rllib.examples.envs.classes.utils.dummy_external_client import _dummy_external_client
_dummy_external_client(port=int(sys.argv[1]))
"""


class ExternalPeer(RLlibPeer):
    """Peer whose environment steps are those of an external simulator."""

    def __init__(self) -> None:
        super().__init__(num_runners=0, envs_per_runner=1)
        self._client: subprocess.Popen[bytes] | None = None

    def setup(self, request: Request) -> dict[str, Any]:
        """Start the simulator and an Algorithm, and run one iteration to warm up."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(port)], stdout=sys.stderr, env=environment
        )
        sizes = request["env_steps"], request["train_batch_size"]
        self._algorithm = make_external_config(port, *sizes).build_algo()
        self._train()
        return {"compile_s": None}

    def close(self) -> None:
        """End the simulator and stop the Algorithm."""
        if self._client is not None:
            self._client.kill()
        super().close()


def make_external_config(port: int, env_steps: int, train_batch_size: int) -> Any:
    """Return the config of RLlib's PPO on simulators that connect to a port, with the learner in this process."""
    spaces = gymnasium.make("CartPole-v1")
    model = DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
    )
    return (
        PPOConfig()
        .environment(
            observation_space=spaces.observation_space,
            action_space=spaces.action_space,
            env_config={"port": port},
        )
        .env_runners(
            env_runner_cls=EnvRunnerServerForExternalInference,
            num_env_runners=0,
            rollout_fragment_length=train_batch_size,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=train_batch_size, minibatch_size=128, num_epochs=4)
        .rl_module(model_config=model)
        .reporting(min_sample_timesteps_per_iteration=env_steps)
        .debugging(seed=0, log_level="ERROR")
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_rllib(ExternalPeer())
