"""Table of the algorithms; it imports nothing of jaxrl, so that `import jaxrl` can read it."""

import importlib
from typing import Any, Literal, NamedTuple


class AlgorithmEntry(NamedTuple):
    """Entry of the table of algorithms.

    Attributes:
        config: Import path of the config class, `"module:Class"`.
        description: One line for `jaxrl list algos`.
    """

    config: str
    description: str


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "PPO": AlgorithmEntry(
        "jaxrl.algorithms.ppo:PPOConfig",
        "on-policy; discrete and continuous actions",
    ),
    "A2C": AlgorithmEntry(
        "jaxrl.algorithms.ppo:A2CConfig",
        "on-policy, one update per batch; discrete and continuous actions",
    ),
    "PG": AlgorithmEntry(
        "jaxrl.algorithms.ppo:PGConfig",
        "on-policy, REINFORCE; discrete and continuous actions",
    ),
    "DDPPO": AlgorithmEntry(
        "jaxrl.algorithms.ppo:DDPPOConfig",
        "PPO without a KL penalty, data-parallel; discrete and continuous actions",
    ),
    "MAPPO": AlgorithmEntry(
        "jaxrl.algorithms.mappo:MAPPOConfig",
        "PPO of several agents, with critics of the whole state; discrete and continuous actions",
    ),
    "IMPALA": AlgorithmEntry(
        "jaxrl.algorithms.impala:IMPALAConfig",
        "actors overlap the learner, V-trace; discrete and continuous actions",
    ),
    "A3C": AlgorithmEntry(
        "jaxrl.algorithms.impala:A3CConfig",
        "IMPALA with A3C's defaults; discrete and continuous actions",
    ),
    "APPO": AlgorithmEntry(
        "jaxrl.algorithms.appo:APPOConfig",
        "IMPALA with PPO's clipping; discrete and continuous actions",
    ),
    "DQN": AlgorithmEntry("jaxrl.algorithms.dqn:DQNConfig", "replay; discrete actions"),
    "Rainbow": AlgorithmEntry(
        "jaxrl.algorithms.dqn:RainbowConfig",
        "replay, DQN with all its extensions; discrete actions",
    ),
    "SimpleQ": AlgorithmEntry(
        "jaxrl.algorithms.dqn:SimpleQConfig",
        "replay, DQN without extensions; discrete actions",
    ),
    "APEX": AlgorithmEntry(
        "jaxrl.algorithms.dqn:ApexDQNConfig",
        "replay, DQN with a ladder of epsilons and 3-step targets; discrete actions",
    ),
    "R2D2": AlgorithmEntry(
        "jaxrl.algorithms.dqn:R2D2Config",
        "replay, DQN with an LSTM on rescaled values; discrete actions",
    ),
    "QMIX": AlgorithmEntry(
        "jaxrl.algorithms.qmix:QMIXConfig",
        "replay, one team of agents with a monotonic mixer of values; discrete actions",
    ),
    "VDN": AlgorithmEntry(
        "jaxrl.algorithms.qmix:VDNConfig",
        "replay, one team of agents with the sum of their values; discrete actions",
    ),
    "PQN": AlgorithmEntry(
        "jaxrl.algorithms.pqn:PQNConfig",
        "on-policy, Q(lambda) without replay or target network; discrete actions",
    ),
    "ES": AlgorithmEntry(
        "jaxrl.algorithms.es:ESConfig",
        "evolution of a population by the ranks of its returns; discrete and continuous actions",
    ),
    "ARS": AlgorithmEntry(
        "jaxrl.algorithms.es:ARSConfig",
        "random search by a linear policy and the best directions; discrete and continuous actions",
    ),
    "BanditLinUCB": AlgorithmEntry(
        "jaxrl.algorithms.bandit:BanditLinUCBConfig",
        "linear contextual bandit, upper confidence bounds; discrete actions",
    ),
    "BanditLinTS": AlgorithmEntry(
        "jaxrl.algorithms.bandit:BanditLinTSConfig",
        "linear contextual bandit, Thompson sampling; discrete actions",
    ),
    "SlateQ": AlgorithmEntry(
        "jaxrl.algorithms.slate_q:SlateQConfig",
        "replay, values of the items of recommended slates; slates of distinct candidates",
    ),
    "AlphaZero": AlgorithmEntry(
        "jaxrl.algorithms.alpha_zero:AlphaZeroConfig",
        "search in the environment's own model, games of two and single agents; discrete actions",
    ),
    "DreamerV3": AlgorithmEntry(
        "jaxrl.algorithms.dreamer:DreamerV3Config",
        "replay, a policy learned in a world model's imagination; discrete and continuous actions",
    ),
    "MuZero": AlgorithmEntry(
        "jaxrl.algorithms.muzero:MuZeroConfig",
        "search in a learned model; one agent, discrete actions",
    ),
    "SAC": AlgorithmEntry(
        "jaxrl.algorithms.sac:SACConfig",
        "replay; continuous and discrete actions",
    ),
    "RNNSAC": AlgorithmEntry(
        "jaxrl.algorithms.sac:RNNSACConfig",
        "replay, SAC with an LSTM; continuous and discrete actions",
    ),
    "CrossQ": AlgorithmEntry(
        "jaxrl.algorithms.sac:CrossQConfig",
        "replay, SAC with batch-renormalized critics and no target network; continuous and discrete "
        "actions",
    ),
    "REDQ": AlgorithmEntry(
        "jaxrl.algorithms.sac:REDQConfig",
        "replay, SAC with ten critics and 20 updates per step; continuous and discrete actions",
    ),
    "TQC": AlgorithmEntry(
        "jaxrl.algorithms.tqc:TQCConfig",
        "replay, SAC with truncated quantile critics; continuous actions",
    ),
    "TD3": AlgorithmEntry("jaxrl.algorithms.td3:TD3Config", "replay; continuous actions"),
    "DDPG": AlgorithmEntry("jaxrl.algorithms.td3:DDPGConfig", "replay; continuous actions"),
    "APEX_DDPG": AlgorithmEntry(
        "jaxrl.algorithms.td3:ApexDDPGConfig",
        "replay, DDPG with prioritized 3-step targets; continuous actions",
    ),
    "MADDPG": AlgorithmEntry(
        "jaxrl.algorithms.maddpg:MADDPGConfig",
        "replay, one team of agents with central critics; continuous actions",
    ),
    "MATD3": AlgorithmEntry(
        "jaxrl.algorithms.maddpg:MATD3Config",
        "replay, MADDPG with twin critics, delayed and smoothed; continuous actions",
    ),
    "BC": AlgorithmEntry(
        "jaxrl.algorithms.marwil:BCConfig",
        "recorded data, imitation of all actions; discrete and continuous actions",
    ),
    "MARWIL": AlgorithmEntry(
        "jaxrl.algorithms.marwil:MARWILConfig",
        "recorded data, imitation weighted by returns; discrete and continuous actions",
    ),
    "CQL": AlgorithmEntry(
        "jaxrl.algorithms.cql:CQLConfig",
        "recorded data, SAC with conservative critics; continuous and discrete actions",
    ),
    "IQL": AlgorithmEntry(
        "jaxrl.algorithms.iql:IQLConfig",
        "recorded data, no action outside of it is evaluated; continuous and discrete actions",
    ),
    "AWAC": AlgorithmEntry(
        "jaxrl.algorithms.awac:AWACConfig",
        "recorded data and replay, imitation weighted by critics; continuous and discrete actions",
    ),
    "CRR": AlgorithmEntry(
        "jaxrl.algorithms.awac:CRRConfig",
        "recorded data, imitation of what critics prefer; continuous and discrete actions",
    ),
    "DT": AlgorithmEntry(
        "jaxrl.algorithms.dt:DTConfig",
        "recorded data, a transformer that plays for a given return; discrete and continuous actions",
    ),
    "RandomAgent": AlgorithmEntry(
        "jaxrl.algorithms.random_agent:RandomAgentConfig",
        "random legal actions, no learning; every action space",
    ),
}
"""Algorithms by name, as in `--algo NAME` and `run: NAME`."""

TRAINABLES = tuple(sorted(ALGORITHMS))
"""Names of the algorithms as Trainables of Ray Tune; accessing one of them imports Ray."""

_RUN_CLASSES = {
    "algorithm": ("jaxrl.algorithm", "Algorithm"),
    "population": ("jaxrl.sweeps.population", "Population"),
    "trials": ("jaxrl.sweeps.trials", "Trials"),
}
"""Classes that `AlgorithmConfig.build` makes; they import the config, which names them only."""


def load_run_class(kind: Literal["algorithm", "population", "trials"]) -> type[Any]:
    """Import the class of what a config builds: a run, or a sweep in one of its two forms."""
    module, name = _RUN_CLASSES[kind]
    return getattr(importlib.import_module(module), name)
