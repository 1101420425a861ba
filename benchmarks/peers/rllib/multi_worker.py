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

from benchmarks.peers.protocol import Request
from benchmarks.peers.rllib.worker import RLlibPeer, make_config, serve_rllib
from benchmarks.settings import HostSetting


class MultiPeer(RLlibPeer):
    """Peer with one policy for each agent."""

    def __init__(self) -> None:
        super().__init__(num_runners=0, envs_per_runner=0)

    def configure(self, request: Request) -> Any:
        """Return RLlib's config of PPO with a policy for each agent."""
        setting = HostSetting.from_dict(request["setting"])
        config = make_config(setting, num_runners=0, envs_per_runner=setting.num_envs)
        config.environment(MultiAgentCartPole, env_config={"num_agents": setting.num_agents})
        return config.multi_agent(
            policies={f"p{agent}" for agent in range(setting.num_agents)},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}",
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_rllib(MultiPeer())
