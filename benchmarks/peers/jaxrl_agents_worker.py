"""jaxrl's PPO for several agents in Python environments as a peer, through the public API.

`python -m benchmarks.peers.jaxrl_agents_worker`: gymnasium's CartPole several times over, with a module for
each agent, or PettingZoo's simple_spread with one module, which needs `jaxrl[pettingzoo]`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.peers import jaxrl_worker
from benchmarks.peers.protocol import Request
from benchmarks.settings import POLES, HostSetting
from jaxrl.config.base import AlgorithmConfig
from jaxrl.envs import make_multi_agent

PETTINGZOO_ID = "pettingzoo:mpe2/simple_spread_v3"


class AgentsPeer(jaxrl_worker.AlgorithmPeer):
    """Peer with one Algorithm in this process."""

    def make_probe(self) -> AlgorithmConfig:
        """Return a small config."""
        sizes: dict[str, Any] = {"num_envs": 8, "num_steps": 16, "num_updates": 1}
        return make_config(HostSetting(task=POLES, num_agents=2, **sizes))

    def setup(self, request: Request) -> dict[str, Any]:
        """Build for a setting. The first `train()` compiles."""
        setting = HostSetting.from_dict(request["setting"])
        self.close()
        self._env_steps = setting.env_steps
        self._algorithm = make_config(setting).build()
        return {"compile_s": self._algorithm.train()["timers"]["compile_s"]}


def make_config(setting: HostSetting) -> AlgorithmConfig:
    """Build jaxrl's config of a setting."""
    made = jaxrl_worker.make_config(setting)
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
    made.env_runners(rollout_fragment_length=setting.num_steps)
    return made.debugging(loggers=[])


if __name__ == "__main__":
    jaxrl_worker.serve_jaxrl(AgentsPeer())
