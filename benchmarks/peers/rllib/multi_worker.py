"""RLlib's PPO with several policies as a peer, in its own virtual environment.

Samples and learns in this process. RLlib normalizes advantages over the train batch, as jaxrl does; the
epsilon of its Adam is torch's default of 1e-8.
"""

from __future__ import annotations

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from ray.rllib.algorithms.ppo import PPOConfig  # pyright: ignore[reportMissingImports]
from ray.rllib.core.rl_module.default_model_config import (  # pyright: ignore[reportMissingImports]
    DefaultModelConfig,
)
from ray.rllib.examples.envs.classes.multi_agent import (  # pyright: ignore[reportMissingImports]
    MultiAgentCartPole,
)

from benchmarks.multi_settings import HOST_PPO, HostSetting
from benchmarks.peers.protocol import serve_peer
from benchmarks.peers.ray_start import start_ray
from benchmarks.peers.rllib.worker import RLlibPeer


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
    width = [HOST_PPO["hidden_size"]] * 2
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": setting.num_agents})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=setting.num_envs)
        .learners(num_learners=0)
        .multi_agent(
            policies={f"p{agent}" for agent in range(setting.num_agents)},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}",
        )
        .training(
            train_batch_size_per_learner=setting.train_batch_size,
            minibatch_size=setting.minibatch_size,
            num_epochs=HOST_PPO["num_epochs"],
            lr=HOST_PPO["lr"],
            gamma=HOST_PPO["gamma"],
            lambda_=HOST_PPO["gae_lambda"],
            clip_param=HOST_PPO["clip_param"],
            vf_clip_param=float("inf"),
            vf_loss_coeff=HOST_PPO["vf_loss_coeff"] / 2,  # RLlib's value loss has no factor of 1/2
            entropy_coeff=HOST_PPO["entropy_coeff"],
            use_kl_loss=False,
            grad_clip=HOST_PPO["max_grad_norm"],
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=width, fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(min_sample_timesteps_per_iteration=setting.env_steps)
        .debugging(seed=setting.seed, log_level="ERROR")
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
