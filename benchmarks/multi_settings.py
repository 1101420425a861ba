"""Settings of the benchmark of several agents.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.settings import Setting

OURS, JAXMARL = "jaxrl-multi", "jaxmarl"
OURS_GAME, PGX_ADAPTER, PGX = "jaxrl-game", "jaxrl-pgx", "pgx"
OURS_TRAINS, JAXMARL_TRAINS = "jaxrl-teams", "jaxmarl-trains"
OURS_HOST, RLLIB_HOST, SB3_HOST = "jaxrl-agents", "rllib-agents", "sb3-pettingzoo"
POLES, PETTINGZOO = "poles", "simple_spread"
"""Tasks on the host: gymnasium's CartPole with several agents, and PettingZoo's simple_spread."""
IPPO, VDN, QMIX = "IPPO", "VDN", "QMIX"
SINGLE, ALONE, TWICE, PAIR = "single", "one agent", "twice the envs", "two agents"
"""PPO on CartPole: an environment of a single agent, one of several agents with one, the first with twice as many
copies, and two agents."""
FIXED = "fixed opponent"
"""PPO at Connect Four against a module that does not change, and against one that is drawn from `LEAGUES`."""
LEAGUES: Mapping[str, int] = {f"league of {number}": number for number in (1, 4, 16)}
"""Numbers of opponents that are drawn from, each as likely."""
LINE = "line"
LINES = (5, 20, 80)
"""Numbers of equal agents whose program is compiled."""

TASKS: Mapping[str, tuple[str, str]] = {
    "spread": ("SimpleSpread-v0", "MPE_simple_spread_v3"),
    "speaker-listener": ("SpeakerListener-v0", "MPE_simple_speaker_listener_v4"),
    "tag": ("SimpleTag-v0", "MPE_simple_tag_v3"),
}
"""Ids of each task, jaxrl's and JaxMARL's."""
SPREAD = TASKS["spread"]
GAME = "connect-four"
"""Task of pgx and of jaxrl, which also plays pgx's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaySetting:
    """Random play of a task.

    Attributes:
        task: Key of `TASKS`, or `GAME`.
        num_envs: Number of copies.
        num_steps: Steps of each copy in a measurement.
    """

    task: str
    num_envs: int
    num_steps: int
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> PlaySetting:
        return PlaySetting(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSetting:
    """Training of one algorithm.

    Attributes:
        algorithm: `IPPO`, `VDN` and `QMIX` are on SimpleSpread, `LINE` is PPO on LineOfAgents, `FIXED` and
            `LEAGUES` are PPO at Connect Four, and the others are PPO on CartPole.
        num_envs: Number of environments.
        num_steps: Steps of each between updates.
        num_updates: Train batches of a measurement.
        num_agents: Agents of `LINE`.
    """

    algorithm: str
    num_envs: int
    num_steps: int
    num_updates: int
    num_agents: int = 0
    seed: int = 0

    @property
    def env_steps(self) -> int:
        """Environment steps of a measurement."""
        return self.num_envs * self.num_steps * self.num_updates

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrainSetting:
        return TrainSetting(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostSetting(Setting):
    """Training of PPO in Python environments of several agents.

    Attributes:
        task: `POLES`, with a module for each agent, or `PETTINGZOO`, with one for all.
        num_agents: Agents of an environment.
    """

    task: str
    num_agents: int

    @property
    def minibatch_size(self) -> int:
        """Rows of a minibatch of one module."""
        rows = self.train_batch_size * (self.num_agents if self.task == PETTINGZOO else 1)
        return rows // self.num_minibatches


def make_host_settings(env_steps: int) -> dict[str, HostSetting]:
    """Make the settings of the table on the host by name, each with about `env_steps` steps a measurement."""
    tasks = {"2 policies": (POLES, 2), "8 policies": (POLES, 8), "simple_spread": (PETTINGZOO, 3)}
    return {
        name: HostSetting(
            task=task,
            num_agents=num_agents,
            num_envs=8,
            num_steps=128,
            num_updates=max(1, env_steps // 1024),
        )
        for name, (task, num_agents) in tasks.items()
    }


class TeamQ:
    """Hyperparameters of VDN and QMIX: those of JaxMARL's VDN for its particle tasks, and of its mixer.

    https://github.com/FLAIROx/JaxMARL/blob/main/baselines/QLearning/config/alg/vdn_ff_mpe.yaml
    """

    num_steps = 16
    batch_size = 32
    capacity = 100_000
    hidden_size = 64
    learning_rate = 0.005
    learning_starts = 10_000
    gamma = 0.9
    epsilon_updates = 1953.0
    target_updates = 200
    mixing_embed_dim = 32
    hypernet_embed = 128


def make_train_settings(env_steps: int) -> dict[str, TrainSetting]:
    """Make the settings of the table by name, each with about `env_steps` steps a measurement."""
    sizes = [(f"IPPO, {envs:,} envs", IPPO, envs, 128) for envs in (16, 64, 1024)]
    sizes += [(f"{name}, 32 envs", name, 32, TeamQ.num_steps) for name in (VDN, QMIX)]
    sizes += [
        (name, name, 32 if name == TWICE else 16, 128) for name in (SINGLE, ALONE, TWICE, PAIR)
    ]
    sizes += [(name, name, 64, 32) for name in (FIXED, *LEAGUES)]
    return {
        name: TrainSetting(
            algorithm=algorithm,
            num_envs=num_envs,
            num_steps=num_steps,
            num_updates=max(1, env_steps // (num_envs * num_steps)),
        )
        for name, algorithm, num_envs, num_steps in sizes
    }
