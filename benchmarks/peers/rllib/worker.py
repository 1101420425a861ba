"""RLlib's PPO as a peer, run by the interpreter of its own environment.

`python -m benchmarks.peers.rllib.worker --runners 2 --envs 4`. torch has one thread in every
process, which suits networks of this size: Ray says so to its actors, and this module to the
driver, which learns. RLlib normalises advantages over the train batch, as jaxrl does, and its
Adam's epsilon stays torch's 1e-8.
"""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from typing import Any

import ray
import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)

from benchmarks.peers.protocol import serve
from benchmarks.peers.ray_start import start_ray
from benchmarks.settings import Setting


class RLlibPeer:
    """One Algorithm at a time; learning goes on from run to run."""

    def __init__(self, num_runners: int, envs_per_runner: int) -> None:
        self._num_runners, self._envs_per_runner = num_runners, envs_per_runner
        self._algorithm: Any = None
        self._result: dict[str, Any] = {}
        self._sampled = 0

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        versions = {name: version(name) for name in ("ray", "torch", "gymnasium")}
        return {"versions": versions, "devices": torch.get_num_threads()}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """A fresh Algorithm; nothing compiles. Its first iteration starts whatever is lazy."""
        setting = Setting.from_dict(request["setting"])
        self.close()
        self._algorithm = create(setting, self._num_runners, self._envs_per_runner)
        self._train()
        return {"compile_s": None}

    def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same with the hyperparameters of RLlib's own example for CartPole."""
        self.close()
        self._algorithm = example(
            request["setting"]["env_steps"], self._num_runners, self._envs_per_runner
        )
        self._train()
        return {"compile_s": None}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement: one `train()`, which repeats training steps until it has the steps."""
        start = time.perf_counter()
        steps = self._train()
        return {"seconds": time.perf_counter() - start, "env_steps": steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Mean return of the last hundred training episodes."""
        return {"return_mean": self._result["env_runners"].get("episode_return_mean")}

    def close(self) -> None:
        """Stop the runners."""
        if self._algorithm is not None:
            self._algorithm.stop()

    def _train(self) -> int:
        """An iteration, and the environment steps it sampled."""
        self._result = self._algorithm.train()
        before = self._sampled
        self._sampled = int(self._result["env_runners"]["num_env_steps_sampled_lifetime"])
        return self._sampled - before


def create(setting: Setting, num_runners: int, envs_per_runner: int) -> Any:
    """RLlib's PPO at the setting, learning in this process."""
    width = [setting.hidden_size] * (1 if setting.memory else 2)
    config = (
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
            vf_loss_coeff=setting.vf_loss_coeff / 2,  # its value loss has no factor of a half
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
    return config.build_algo()


def example(env_steps: int, num_runners: int, envs_per_runner: int) -> Any:
    """RLlib's `examples/algorithms/ppo/cartpole_ppo.py`; it learns in this process, not in another.

    The example has four runners of sixteen environments, for a larger machine.
    """
    config = (
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
    return config.build_algo()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runners", type=int, required=True, help="0 samples in this process")
    parser.add_argument("--envs", type=int, required=True, help="of each runner")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start_ray()
    peer = RLlibPeer(options.runners, options.envs)
    try:
        names = ("info", "setup", "recommend", "run", "evaluate")
        serve({name: getattr(peer, name) for name in names})
    finally:
        peer.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
