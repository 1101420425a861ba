"""Names of peers and settings that all peers of a measurement share, sent to each of them as JSON.

Uses the standard library and NumPy alone, because peers in their own virtual environments import it
too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

OURS, HANDWRITTEN, TUNED, REJAX = "jaxrl", "handwritten", "handwritten-tuned", "rejax"
LIMITS = "limits"
"""Peer that measures the machine's limits, in turn with the others, and is not compared."""
LOCAL, REMOTE, IMPALA = "jaxrl-local", "jaxrl-2x4", "jaxrl-impala"
GYMNASIUM, SB3, SB3_THREADS = "gymnasium", "sb3", "sb3-threads"
RLLIB_LOCAL, RLLIB_2X4, RLLIB_2X8, RLLIB_2X16 = (
    *("rllib-local", "rllib-2x4"),
    *("rllib-2x8", "rllib-2x16"),
)
"""Peers on the host. In a name such as 2x4, 2 is the number of runners and 4 that of environments
per runner."""
RLLIB_EXTERNAL = "rllib-external"
FEEDFORWARD, WIDE, LSTM, GRU, LRU = "feedforward", "feedforward-512", "lstm", "gru", "lru"
HOST_LSTM, RLLIB_LSTM = "jaxrl-local-lstm", "rllib-local-lstm"
REPLAY, REJAX_REPLAY, SBX, PRODUCTS = "jaxrl-replay", "rejax-replay", "sbx", "products"
SB3_REPLAY, SB3_REPLAY_THREADS = "sb3-replay", "sb3-replay-threads"
MULTI, JAXMARL = "jaxrl-multi", "jaxmarl"
GAME_PEERS = OURS_GAME, PGX_ADAPTER, PGX = ("jaxrl-game", "jaxrl-pgx", "pgx")
TEAMS, JAXMARL_TRAINS = "jaxrl-teams", "jaxmarl-trains"
AGENTS, RLLIB_AGENTS, SB3_PETTINGZOO = "jaxrl-agents", "rllib-agents", "sb3-pettingzoo"
OFFLINE, HANDWRITTEN_OFFLINE, JAX_CORL = "jaxrl-offline", "handwritten-offline", "jax-corl"
D3RLPY, D3RLPY_THREADS = "d3rlpy", "d3rlpy-threads"
DREAMER, HANDWRITTEN_DREAMER = "jaxrl-dreamer", "handwritten-dreamer"
RLLIB_OFFLINE, RLLIB_OFFLINE_THREADS = "rllib-offline", "rllib-offline-threads"

PEERS = (OURS, HANDWRITTEN, TUNED, REJAX, SB3)
HOST_PEERS = (LOCAL, REMOTE, GYMNASIUM, SB3, RLLIB_LOCAL, RLLIB_2X4, RLLIB_2X8)
OTHER_HOST_PEERS = (SB3_THREADS,)
"""Peers that are measured only if they are named."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerSetting:
    """Setting that is sent to peers as JSON."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


# --- PPO on CartPole ---

DEFAULT_SETTINGS = ("4x128", "64x32", "2048x16")
DEFAULT_STEPS = {"4x128": 512_000, "64x32": 614_400, "2048x16": 786_432}
"""Environment steps per measurement: two to four seconds on two cores of a laptop."""
FALLBACK_STEPS = 524_288
SLOW_STEPS = {"4x128": 5_120, "64x32": 10_240, "2048x16": 32_768}
"""Environment steps per measurement of a peer with environments and loop on the host: a second or
two."""
HOST_STEPS = 40_960
"""Environment steps per measurement in the host suite: half a second to seven seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting(PeerSetting):
    """Setting of PPO with `num_envs` environments x `num_steps` steps per train batch.

    Other libraries always train on CartPole-v1; only jaxrl's worker reads `env` and `conv_filters`.
    """

    num_envs: int
    num_steps: int
    num_updates: int
    """Number of train batches per measurement."""
    seed: int = 0
    num_epochs: int = 4
    num_minibatches: int = 4
    hidden_size: int = 64
    lr: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_param: float = 0.2
    vf_loss_coeff: float = 0.5
    entropy_coeff: float = 0.01
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    second_size: int | None = None
    """Size of the second hidden layer; None for that of the first."""
    memory: str | None = None
    """Type of the recurrent layer that replaces the second hidden one; None for a dense layer."""
    max_seq_len: int = 16
    env: str = "CartPole-v1"
    conv_filters: tuple[tuple[int, int, int], ...] = ()
    """Channels, kernel, and stride of the convolutions before the hidden layers, for images."""

    @property
    def name(self) -> str:
        return f"{self.num_envs}x{self.num_steps}"

    @property
    def train_batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.train_batch_size // self.num_minibatches

    @property
    def env_steps(self) -> int:
        """Environment steps per measurement."""
        return self.num_updates * self.train_batch_size

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "conv_filters": [list(layer) for layer in self.conv_filters]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        filters = tuple(tuple(layer) for layer in values.get("conv_filters", ()))
        return super().from_dict({**values, "conv_filters": filters})


def parse_setting(text: str, *, steps: int | None = None) -> Setting:
    """Parse a setting such as `"64x32"`.

    Args:
        text: Number of environments and of steps per train batch, as `ENVSxSTEPS`.
        steps: Approximate number of environment steps per measurement.

    Raises:
        ValueError: If the text is not `ENVSxSTEPS`, or the batch does not divide into minibatches.
    """
    match = re.fullmatch(r"(\d+)x(\d+)", text.strip())
    if match is None or "0" in match.groups():
        raise ValueError(f"a setting must be ENVSxSTEPS, such as 64x32, got {text!r}")
    num_envs, num_steps = (int(group) for group in match.groups())
    batch = num_envs * num_steps
    if batch % Setting.num_minibatches:
        raise ValueError(
            f"{text}: a batch of {batch} steps does not divide into {Setting.num_minibatches} "
            "minibatches"
        )
    target = steps if steps is not None else DEFAULT_STEPS.get(text.strip(), FALLBACK_STEPS)
    return Setting(
        num_envs=num_envs, num_steps=num_steps, num_updates=max(1, round(target / batch))
    )


def adapt_to_peer(setting: Setting, *, is_slow: bool) -> Setting:
    """Return the setting with a shorter measurement for a slow peer, which changes no rate."""
    steps = SLOW_STEPS.get(setting.name) if is_slow else None
    if steps is None or steps >= setting.env_steps:
        return setting
    return dataclasses.replace(setting, num_updates=max(1, round(steps / setting.train_batch_size)))


def make_host_setting(*, steps: int | None = None) -> Setting:
    """Return the setting of peers on the host: 8 environments x 256 steps, minibatches of 128.

    Args:
        steps: Approximate number of environment steps per measurement.
    """
    batch = 8 * 256
    updates = max(1, round((steps or HOST_STEPS) / batch))
    return Setting(num_envs=8, num_steps=256, num_updates=updates, num_minibatches=batch // 128)


# --- PPO on CartPole as each library recommends it ---

CARTPOLE_CONFIG = "configs/classic/cartpole-ppo.yaml"
"""Path of jaxrl's own config, relative to the root of the repository."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Recommendation of one library; the hyperparameters are in its worker.

    The work per step and the learning progress after a number of steps differ between libraries.

    Args:
        source: Place of publication.
        batch: Environments x steps of a train batch.
        learning: Description of the epochs and minibatches.
        env_steps: Environment steps per measurement.
    """

    source: str
    batch: str
    learning: str
    env_steps: int


RECOMMENDATIONS = {
    OURS: Recommendation(
        source="../../configs/classic/cartpole-ppo.yaml",
        batch="4 x 128",
        learning="4 epochs x 4 minibatches of 128",
        env_steps=512_000,
    ),
    REJAX: Recommendation(
        source="https://github.com/keraJLi/rejax/blob/main/configs/gymnax/cartpole.yaml",
        batch="5 x 100",
        learning="5 epochs x 5 minibatches of 100",
        env_steps=400_000,
    ),
    SB3: Recommendation(
        source="https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/hyperparams/ppo.yml",
        batch="8 x 32",
        learning="20 epochs of the whole batch of 256",
        env_steps=10_240,
    ),
    RLLIB_2X16: Recommendation(
        source="https://github.com/ray-project/ray/blob/master/rllib/examples/algorithms/ppo/"
        "cartpole_ppo.py",
        batch="32 x 125",
        learning="6 epochs x 32 minibatches of 128, one shared linear layer of 32 units",
        env_steps=16_000,
    ),
}


def make_recommended_setting(env_steps: int, *, num_envs: int, num_steps: int) -> Setting:
    """Return a setting of which only the sizes are used, with `env_steps` in whole train batches."""
    updates = max(1, env_steps // (num_envs * num_steps))
    return Setting(num_envs=num_envs, num_steps=num_steps, num_updates=updates)


# --- DQN and SAC ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaySetting(PeerSetting):
    """Setting of DQN or SAC with a uniform buffer, one-step targets, and two hidden ReLU layers."""

    algorithm: str
    env: str
    num_envs: int
    steps_per_update: int
    """Environment steps per update, summed over all environments."""
    env_steps: int
    """Environment steps per measurement."""
    batch_size: int
    hidden_size: int
    lr: float
    tau: float
    target_update_freq: int
    """Environment steps between updates of the target network."""
    capacity: int = 50_000
    learning_starts: int = 1_000
    gamma: float = 0.99
    final_epsilon: float = 0.05
    epsilon_steps: int = 2_000
    """Environment steps over which DQN's epsilon falls linearly from 1."""
    seed: int = 0

    @property
    def warmup_steps(self) -> int:
        """Environment steps before measuring: epsilon has fallen, and updates have begun."""
        return max(self.learning_starts, self.epsilon_steps) + 4 * self.steps_per_update


_DQN: dict[str, Any] = {
    "algorithm": "DQN",
    "env": "CartPole-v1",
    "batch_size": 64,
    "hidden_size": 64,
    "lr": 5e-4,
    "tau": 1.0,
    "target_update_freq": 500,
    "steps_per_update": 4,
}
_REPLAY_VALUES: dict[str, dict[str, Any]] = {
    "dqn": {**_DQN, "num_envs": 1},
    "dqn-4": {**_DQN, "num_envs": 4},
    "sac": {
        "algorithm": "SAC",
        "env": "Pendulum-v1",
        "num_envs": 1,
        "steps_per_update": 1,
        "batch_size": 256,
        "hidden_size": 256,
        "lr": 1e-3,
        "tau": 0.005,
        "target_update_freq": 1,
    },
}
REPLAY_STEPS: dict[str, dict[str, int]] = {
    "dqn": {REPLAY: 60_000, SB3_REPLAY: 2_000, SBX: 2_000},
    "dqn-4": {REPLAY: 60_000, REJAX_REPLAY: 2_000},
    "sac": {
        REPLAY: 300,
        SB3_REPLAY: 200,
        SB3_REPLAY_THREADS: 200,
        SBX: 200,
        REJAX_REPLAY: 200,
        PRODUCTS: 400,
    },
}
"""Environment steps per measurement, about two seconds on two cores, by setting and peer."""


def make_replay_settings(name: str, *, steps: int | None = None) -> dict[str, ReplaySetting]:
    """Return the setting of each peer; they differ only in the length of a measurement.

    Args:
        name: Key of `REPLAY_STEPS`.
        steps: Environment steps per measurement, rounded up to whole updates; None for each peer's
            own number.
    """
    values = _REPLAY_VALUES[name]
    multiple = values["steps_per_update"]
    return {
        peer: ReplaySetting(**values, env_steps=-(-(steps or own) // multiple) * multiple)
        for peer, own in REPLAY_STEPS[name].items()
    }


# --- several agents ---

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
class PlaySetting(PeerSetting):
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

    @property
    def env_steps(self) -> int:
        return self.num_envs * self.num_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSetting(PeerSetting):
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


def make_agents_settings(env_steps: int) -> dict[str, HostSetting]:
    """Make the settings on the host by name, each with about `env_steps` steps a measurement."""
    tasks = {"2 policies": (POLES, 2), "8 policies": (POLES, 8), "simple_spread": (PETTINGZOO, 3)}
    sizes: dict[str, Any] = {
        "num_envs": 8,
        "num_steps": 128,
        "num_updates": max(1, env_steps // 1024),
    }
    return {
        name: HostSetting(task=task, num_agents=num_agents, **sizes)
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
    """Make the settings of training by name, each with about `env_steps` steps a measurement."""
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


# --- recorded data ---

JAX_CORL_VARIABLE = "JAX_CORL"
"""Environment variable that names the checkout of the peer JAX-CORL."""
OFFLINE_ALGORITHMS = {
    **dict.fromkeys((HANDWRITTEN_OFFLINE, JAX_CORL), ("CQL", "IQL", "TD3+BC")),
    **dict.fromkeys((RLLIB_OFFLINE, RLLIB_OFFLINE_THREADS), ("BC", "CQL", "IQL")),
}
"""Algorithms of the peers that do not have all of them."""
NUM_ROWS, EPISODE_LENGTH = 100_000, 1000
OBS_SIZE, ACTION_SIZE = 17, 6
"""Sizes of HalfCheetah's spaces."""
NUM_UPDATES = {"BC": 4000, "CQL": 400, "IQL": 2000, "TD3+BC": 2000}
"""Gradient steps of a measurement with small networks; a tenth with large ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineSetting(PeerSetting):
    """Setting of an algorithm with networks of two hidden ReLU layers.

    Attributes:
        algorithm: Key of `NUM_UPDATES`.
        hidden_size: Units of a hidden layer.
        batch_size: Rows per gradient step.
        num_updates: Gradient steps per measurement.
    """

    algorithm: str
    hidden_size: int
    batch_size: int
    num_updates: int
    lr: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005

    def is_supported(self, peer: str) -> bool:
        """Return whether a peer has the algorithm."""
        return self.algorithm in OFFLINE_ALGORITHMS.get(peer, NUM_UPDATES)


READING = OfflineSetting(algorithm="IQL", hidden_size=64, batch_size=256, num_updates=2)
"""Setting of the reading of Parquet, an algorithm that needs every column."""


def make_offline_settings(scale: float = 1.0) -> dict[str, OfflineSetting]:
    """Return the settings by name.

    Args:
        scale: Factor of the lengths of measurements.
    """
    return {
        f"{algorithm}, 2 x {hidden_size}, {batch_size} rows": OfflineSetting(
            algorithm=algorithm,
            hidden_size=hidden_size,
            batch_size=batch_size,
            num_updates=max(2, round(scale * share * number)),
        )
        for hidden_size, batch_size, share in ((64, 64, 1.0), (256, 256, 0.1))
        for algorithm, number in NUM_UPDATES.items()
    }


def make_rows(num_rows: int) -> dict[str, np.ndarray]:
    """Make random rows in D4RL's columns; the numbers have no effect on speed."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(num_rows, OBS_SIZE)).astype(np.float32),
        "actions": rng.uniform(-0.95, 0.95, (num_rows, ACTION_SIZE)).astype(np.float32),
        "rewards": rng.normal(size=num_rows).astype(np.float32),
        "terminals": np.zeros(num_rows, np.bool_),
        "timeouts": np.arange(1, num_rows + 1) % EPISODE_LENGTH == 0,
    }


def write_data(path: Path) -> None:
    """Write the rows that are learned from as NumPy's arrays."""
    np.savez(path, **make_rows(NUM_ROWS))  # pyright: ignore[reportArgumentType]
