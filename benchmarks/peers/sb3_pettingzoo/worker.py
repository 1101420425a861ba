"""Stable-Baselines3's PPO on PettingZoo's simple_spread as a peer, in its own virtual environment.

SuperSuit lays the agents of all copies side by side as environments of one vector, so that one policy plays
all of them. torch uses one thread, which suits networks of this size.
"""

from __future__ import annotations

from typing import Any

import supersuit  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from mpe2 import simple_spread_v3  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]

from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.peers.sb3.worker import ModelPeer, make_arguments
from benchmarks.settings import HostSetting


class PettingZooPeer(ModelPeer):
    """Peer with one model for all agents, which counts steps of environments."""

    packages = ("stable-baselines3", "supersuit", "pettingzoo", "mpe2", "torch")

    def __init__(self) -> None:
        super().__init__()
        self._num_agents = 1

    def setup(self, request: Request) -> dict[str, Any]:
        """Create a new model; nothing is compiled."""
        setting = HostSetting.from_dict(request["setting"])
        self._num_agents = setting.num_agents
        self._model = create(setting)
        self._env_steps = setting.env_steps * setting.num_agents  # the model counts each agent's
        return {"compile_s": None}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement: one `learn()`, which continues from the last one."""
        reply = super().run(request)
        return {**reply, "env_steps": reply["env_steps"] // self._num_agents}


def create(setting: HostSetting) -> Any:
    """Create SB3's PPO for all agents of all copies, on the CPU; SuperSuit's vector takes no seed."""
    torch.manual_seed(setting.seed)
    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    vector = supersuit.concat_vec_envs_v1(
        env, setting.num_envs, num_cpus=1, base_class="stable_baselines3"
    )
    return PPO("MlpPolicy", vector, **make_arguments(setting))


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_peer(PettingZooPeer())
