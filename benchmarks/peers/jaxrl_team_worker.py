"""jaxrl's training of several agents as a peer, through the public API."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.jaxrl_worker import AlgorithmPeer, serve_jaxrl
from benchmarks.peers.protocol import Request
from benchmarks.settings import (
    ALONE,
    FIXED,
    IPPO,
    LEAGUES,
    LINE,
    PAIR,
    QMIX,
    SPREAD,
    VDN,
    TeamQ,
    TrainSetting,
)
from jaxrl import Draw, Seats
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.algorithms.qmix import QMIXConfig, VDNConfig
from jaxrl.config.base import AlgorithmConfig

TANH: dict[str, Any] = {
    "fcnet_hiddens": [64, 64],
    "fcnet_activation": "tanh",
    "fcnet_kernel_initializer": "orthogonal",
    "fcnet_kernel_initializer_kwargs": {"gain": 1.4142},
    "pi_head_kernel_initializer": "orthogonal",
    "pi_head_kernel_initializer_kwargs": {"gain": 0.01},
    "vf_head_kernel_initializer": "orthogonal",
    "vf_head_kernel_initializer_kwargs": {"gain": 1.0},
}
"""Networks of JaxMARL's IPPO."""


class JaxrlTeamPeer(AlgorithmPeer):
    """Peer that trains several agents, or one agent as several are."""

    def __init__(self) -> None:
        super().__init__()
        self._rows_per_step = 1

    def make_probe(self) -> AlgorithmConfig:
        """Return a small config."""
        sizes = {"num_envs": 64, "num_steps": 128, "num_updates": 1}
        return make_config(TrainSetting(algorithm=IPPO, **sizes))

    def setup(self, request: Request) -> dict[str, Any]:
        """Build for a setting and train until updates have begun. The first `train()` compiles."""
        setting = TrainSetting.from_dict(request["setting"])
        self.close()
        self._rows_per_step = 2 if setting.algorithm == PAIR else 1
        self._env_steps = setting.env_steps
        self._algorithm = make_config(setting).build()
        compiled = self._algorithm.train()["timers"]["compile_s"]
        for number in range(1, LEAGUES.get(setting.algorithm, 1)):
            self._algorithm.snapshot("main", as_=f"main_v{number}")
        if setting.algorithm in (VDN, QMIX):
            for _ in range(-(-TeamQ.learning_starts // setting.env_steps)):
                self._algorithm.train()
        return {"compile_s": compiled}

    @property
    def opponents(self) -> list[str]:
        """Modules that are drawn from."""
        return [] if self._algorithm is None else list(self._algorithm.opponents)

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement. A step of two agents counts twice."""
        reply = super().run(request)
        return {**reply, "env_steps": reply["env_steps"] * self._rows_per_step}


def make_config(setting: TrainSetting) -> AlgorithmConfig:
    """Build jaxrl's config of a setting."""
    made = _make_team_q(setting) if setting.algorithm in (VDN, QMIX) else _make_ppo(setting)
    made.env_runners(
        num_envs_per_env_runner=setting.num_envs, rollout_fragment_length=setting.num_steps
    )
    made.reporting(min_sample_timesteps_per_iteration=setting.env_steps)
    return made.debugging(seed=setting.seed, loggers=[])


def _make_ppo(setting: TrainSetting) -> AlgorithmConfig:
    steps = setting.num_envs * setting.num_steps
    made: Any = PPOConfig()
    num_agents = 1
    if setting.algorithm == IPPO:
        made.environment(SPREAD[0])
        num_agents = 3
    elif setting.algorithm == LINE:
        num_agents = setting.num_agents
        made.environment("LineOfAgents-v0", env_config={"num_agents": num_agents})
    elif setting.algorithm == FIXED or setting.algorithm in LEAGUES:
        made.environment("ConnectFour-v0")
        opponent = "first" if setting.algorithm == FIXED else Draw()
        made.multi_agent(
            policies=["main", "first"],
            policies_to_train=["main"],
            mapping=Seats("main", opponent),
        )
    elif setting.algorithm in (ALONE, PAIR):
        num_agents = 1 if setting.algorithm == ALONE else 2
        made.environment("MultiAgentCartPole-v0", env_config={"num_agents": num_agents})
    else:
        made.environment("CartPole-v1")
    made.rl_module(model_config=TANH)
    return made.training(
        train_batch_size=steps,
        minibatch_size=steps * num_agents // 4,
        num_epochs=4,
        lr=2.5e-4,
        optimizer={"name": "adam", "eps": 1e-5},
        gamma=0.99,
        lambda_=0.95,
        clip_param=0.2,
        use_kl_loss=False,
        entropy_coeff=0.01,
        vf_loss_coeff=0.25,
        vf_clip_param=float("inf"),
        grad_clip=0.5,
        normalize_advantages="minibatch",
    )


def _make_team_q(setting: TrainSetting) -> AlgorithmConfig:
    made: Any = (VDNConfig if setting.algorithm == VDN else QMIXConfig)()
    made.environment(SPREAD[0])
    made.rl_module(model_config={"fcnet_hiddens": [TeamQ.hidden_size], "fcnet_activation": "relu"})
    per_update = setting.num_envs * setting.num_steps
    mixer: dict[str, Any] = (
        {}
        if setting.algorithm == VDN
        else {"mixing_embed_dim": TeamQ.mixing_embed_dim, "hypernet_embed": TeamQ.hypernet_embed}
    )
    return made.training(
        gamma=TeamQ.gamma,
        lr=TeamQ.learning_rate,
        optimizer="radam",
        grad_clip=25.0,
        double_q=False,
        train_batch_size=TeamQ.batch_size,
        training_intensity=TeamQ.batch_size / per_update,
        replay_buffer_config={"type": "uniform", "capacity": TeamQ.capacity},
        num_steps_sampled_before_learning_starts=TeamQ.learning_starts,
        target_network_update_freq=TeamQ.target_updates * per_update,
        epsilon=[[0, 1.0], [int(TeamQ.epsilon_updates) * per_update, 0.05]],
        td_error_loss_fn="mse",
        team_reward="sum",
        **mixer,
    )


if __name__ == "__main__":
    serve_jaxrl(JaxrlTeamPeer())
