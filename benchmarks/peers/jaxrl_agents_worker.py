"""jaxrl's PPO for several agents in Python environments as a peer, through the public API.

`python -m benchmarks.peers.jaxrl_agents_worker`: gymnasium's CartPole several times over, with a module for
each agent, or PettingZoo's simple_spread with one module, which needs `jaxrl[pettingzoo]`.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import jax

from benchmarks.multi_settings import HOST_PPO, POLES, HostSetting
from benchmarks.peers.jaxrl_worker import AlgorithmPeer, get_versions
from benchmarks.peers.protocol import serve_peer
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.base import AlgorithmConfig
from jaxrl.envs import make_multi_agent

PETTINGZOO_ID = "pettingzoo:mpe2/simple_spread_v3"


class AgentsPeer(AlgorithmPeer):
    """Peer with one Algorithm in this process."""

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return versions and the number of devices."""
        probe = HostSetting(task=POLES, num_agents=2, num_envs=8, num_steps=16, num_updates=1)
        make_config(probe).build().stop()
        return {"versions": get_versions(), "devices": len(jax.local_devices())}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build for a setting. The first `train()` compiles."""
        setting = HostSetting.from_dict(request["setting"])
        self.close()
        self._env_steps = setting.env_steps
        self._algorithm = make_config(setting).build()
        return {"compile_s": self._algorithm.train()["timers"]["compile_s"]}


def make_config(setting: HostSetting) -> AlgorithmConfig:
    """Build jaxrl's config of a setting. Its value loss has no factor of 1/2."""
    made = PPOConfig()
    if setting.task == POLES:
        made.environment(
            make_multi_agent("gymnasium:CartPole-v1"),
            env_config={"num_agents": setting.num_agents},
        )
        made.multi_agent(
            policies={f"p{agent}" for agent in range(setting.num_agents)},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}",
        )
    else:
        made.environment(PETTINGZOO_ID)
    made.env_runners(
        num_envs_per_env_runner=setting.num_envs, rollout_fragment_length=setting.num_steps
    )
    made.training(
        train_batch_size=setting.train_batch_size,
        minibatch_size=setting.minibatch_size,
        num_epochs=HOST_PPO["num_epochs"],
        lr=HOST_PPO["lr"],
        gamma=HOST_PPO["gamma"],
        lambda_=HOST_PPO["gae_lambda"],
        clip_param=HOST_PPO["clip_param"],
        vf_clip_param=float("inf"),
        vf_loss_coeff=HOST_PPO["vf_loss_coeff"] / 2,
        entropy_coeff=HOST_PPO["entropy_coeff"],
        use_kl_loss=False,
        grad_clip=HOST_PPO["max_grad_norm"],
        grad_clip_by="global_norm",
    )
    made.rl_module(
        model_config={
            "fcnet_hiddens": [HOST_PPO["hidden_size"]] * 2,
            "fcnet_activation": "tanh",
            "vf_share_layers": False,
        }
    )
    made.reporting(min_sample_timesteps_per_iteration=setting.env_steps)
    return made.debugging(seed=setting.seed, loggers=[])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        os.environ["JAXRL_RESULTS_DIR"] = folder
        peer = AgentsPeer()
        try:
            serve_peer(peer)
        finally:
            peer.close()


if __name__ == "__main__":
    main()
