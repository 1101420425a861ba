"""RLlib's PPO with several policies as a peer, in its own virtual environment.

Samples and learns in this process. RLlib normalizes advantages over the train batch, as jaxrl does; the
epsilon of its Adam is torch's default of 1e-8.
"""

from __future__ import annotations

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.examples.envs.classes.multi_agent import (  # pyright: ignore[reportMissingImports]
    MultiAgentCartPole,
)

from benchmarks.multi_settings import HostSetting
from benchmarks.peers.protocol import serve_peer
from benchmarks.peers.ray_start import start_ray
from benchmarks.peers.rllib.worker import RLlibPeer, make_config


class MultiPeer(RLlibPeer):
    """Peer with one policy for each agent."""

    def __init__(self) -> None:
        super().__init__(num_runners=0, envs_per_runner=0)

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build a new Algorithm and run one iteration to warm up; nothing is compiled."""
        self.close()
        self._algorithm = create(HostSetting.from_dict(request["setting"]))
        self._train()
        return {"compile_s": None}


def create(setting: HostSetting) -> Any:
    """Build RLlib's PPO with a policy for each agent."""
    config = make_config(setting, num_runners=0, envs_per_runner=setting.num_envs)
    config.environment(MultiAgentCartPole, env_config={"num_agents": setting.num_agents})
    config.multi_agent(
        policies={f"p{agent}" for agent in range(setting.num_agents)},
        policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}",
    )
    return config.build_algo()


def main() -> None:
    torch.set_num_threads(1)
    start_ray()
    peer = MultiPeer()
    try:
        serve_peer(peer)
    finally:
        peer.close()


if __name__ == "__main__":
    main()
