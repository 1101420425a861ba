"""Stable-Baselines3's PPO on PettingZoo's simple_spread as a peer, in its own virtual environment.

SuperSuit lays the agents of all copies side by side as environments of one vector, so that one policy plays
all of them. torch uses one thread, which suits networks of this size.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
import supersuit  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from mpe2 import simple_spread_v3  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]

from benchmarks.multi_settings import HOST_PPO, HostSetting
from benchmarks.peers.protocol import serve_peer

PACKAGES = ("stable-baselines3", "supersuit", "pettingzoo", "mpe2", "torch")


class PettingZooPeer:
    """Peer with one model, whose training continues from run to run."""

    def __init__(self) -> None:
        self._setting: HostSetting | None = None
        self._model: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return versions and the number of threads."""
        versions = {name: version(name) for name in PACKAGES}
        return {"versions": versions, "devices": torch.get_num_threads()}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create a new model; nothing is compiled."""
        self._setting = HostSetting.from_dict(request["setting"])
        self._model = create(self._setting)
        return {"compile_s": None}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement: one `learn()`. Its steps are those of agents."""
        assert self._setting is not None
        steps = self._setting.env_steps
        start = time.perf_counter()
        self._model.learn(
            steps * self._setting.num_agents, reset_num_timesteps=False, log_interval=10**9
        )
        return {"seconds": time.perf_counter() - start, "env_steps": steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of the agents' last hundred episodes."""
        returns = [episode["r"] for episode in self._model.ep_info_buffer]
        return {"return_mean": float(np.mean(returns)) if returns else None}


def create(setting: HostSetting) -> Any:
    """Create SB3's PPO for all agents of all copies, on the CPU; SuperSuit's vector takes no seed."""
    torch.manual_seed(setting.seed)
    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    vector = supersuit.concat_vec_envs_v1(
        env, setting.num_envs, num_cpus=1, base_class="stable_baselines3"
    )
    width = [HOST_PPO["hidden_size"]] * 2
    return PPO(
        "MlpPolicy",
        vector,
        n_steps=setting.num_steps,
        batch_size=setting.minibatch_size,
        n_epochs=HOST_PPO["num_epochs"],
        learning_rate=HOST_PPO["lr"],
        gamma=HOST_PPO["gamma"],
        gae_lambda=HOST_PPO["gae_lambda"],
        clip_range=HOST_PPO["clip_param"],
        vf_coef=HOST_PPO["vf_loss_coeff"] / 2,  # SB3's value loss has no factor of 1/2
        ent_coef=HOST_PPO["entropy_coeff"],
        max_grad_norm=HOST_PPO["max_grad_norm"],
        policy_kwargs={
            "activation_fn": torch.nn.Tanh,
            "net_arch": {"pi": width, "vf": width},
        },
        device="cpu",
        verbose=0,
    )


def main() -> None:
    torch.set_num_threads(1)
    serve_peer(PettingZooPeer())


if __name__ == "__main__":
    main()
