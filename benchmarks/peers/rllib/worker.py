"""RLlib's PPO as a peer, in its own virtual environment.

`python -m benchmarks.peers.rllib.worker --runners 2 --envs 4`. torch uses one thread per process,
which suits networks of this size: Ray sets this for its actors, and this module for the driver,
which learns. RLlib normalizes advantages over the train batch, as jaxrl does; the epsilon of its
Adam is torch's default of 1e-8.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import ray
import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)

from benchmarks.peers.protocol import Peer, Request, serve_peer
from benchmarks.peers.ray_start import OBJECT_STORE_BYTES, start_ray
from benchmarks.peers.torch_peer import TorchPeer
from benchmarks.settings import Setting


class RLlibPeer(TorchPeer):
    """Peer with one Algorithm, whose training continues from run to run.

    Args:
        num_runners: Number of env runners; 0 samples in this process.
        envs_per_runner: Environments per runner.
    """

    packages = ("ray", "torch", "gymnasium")

    def __init__(self, num_runners: int, envs_per_runner: int) -> None:
        self._num_runners, self._envs_per_runner = num_runners, envs_per_runner
        self._algorithm: Any = None
        self._result: dict[str, Any] = {}
        self._sampled = 0

    def setup(self, request: Request) -> dict[str, Any]:
        """Build a new Algorithm and run one iteration to warm up; nothing is compiled."""
        return self.start(self.configure(request))

    def configure(self, request: Request) -> Any:
        """Return RLlib's config of a request."""
        setting = Setting.from_dict(request["setting"])
        return make_config(setting, self._num_runners, self._envs_per_runner)

    def start(self, config: Any) -> dict[str, Any]:
        """Build a new Algorithm and run one iteration."""
        self.close()
        self._algorithm = config.build_algo()
        self._train()
        return {"compile_s": None}

    def recommend(self, request: Request) -> dict[str, Any]:
        """Set up with the hyperparameters of RLlib's example for CartPole."""
        steps = request["setting"]["env_steps"]
        return self.start(make_example_config(steps, self._num_runners, self._envs_per_runner))

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement: one `train()`, which repeats training steps to reach the number."""
        start = time.perf_counter()
        steps = self._train()
        return {"seconds": time.perf_counter() - start, "env_steps": steps}

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of the last hundred training episodes."""
        return {"return_mean": self._result["env_runners"].get("episode_return_mean")}

    def close(self) -> None:
        """Stop the runners."""
        if self._algorithm is not None:
            self._algorithm.stop()

    def _train(self) -> int:
        """Train for an iteration and return the number of sampled environment steps."""
        self._result = self._algorithm.train()
        before = self._sampled
        self._sampled = int(self._result["env_runners"]["num_env_steps_sampled_lifetime"])
        return self._sampled - before


def make_config(setting: Setting, num_runners: int, envs_per_runner: int) -> Any:
    """Return RLlib's config of PPO at a setting, with the learner in this process."""
    width = [setting.hidden_size] * (1 if setting.memory else 2)
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=envs_per_runner)
        .learners(num_learners=0)
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
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=width,
                fcnet_activation="tanh",
                vf_share_layers=False,
                use_lstm=setting.memory == "lstm",
                lstm_cell_size=setting.hidden_size,
                max_seq_len=setting.max_seq_len,
            )
        )
        .reporting(min_sample_timesteps_per_iteration=setting.env_steps)
        .debugging(seed=setting.seed, log_level="ERROR")
    )


def make_example_config(env_steps: int, num_runners: int, envs_per_runner: int) -> Any:
    """Return the config of RLlib's `examples/algorithms/ppo/cartpole_ppo.py`.

    The learner is in this process instead of a separate one. The example has four runners with
    sixteen environments each, for a larger machine.
    """
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=envs_per_runner)
        .learners(num_learners=0)
        .training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True
            )
        )
        .reporting(min_sample_timesteps_per_iteration=env_steps)
        .debugging(seed=0, log_level="ERROR")
    )


def serve_rllib(peer: Peer, *others: str, object_store_bytes: int = OBJECT_STORE_BYTES) -> None:
    """Serve a peer that needs Ray."""
    start_ray(object_store_bytes)
    try:
        serve_peer(peer, *others)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--runners", type=int, required=True, help="number of runners; 0 samples in this process"
    )
    parser.add_argument("--envs", type=int, required=True, help="environments per runner")
    options = parser.parse_args()
    torch.set_num_threads(1)
    serve_rllib(RLlibPeer(options.runners, options.envs), "recommend")
