"""RLlib's modules, classes and functions, and what they are called here."""

import importlib
from collections.abc import Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jaxrl.compat.imports import RLLIB_PARENTS, refuse_foreign_name
from jaxrl.core.algorithms import ALGORITHMS
from jaxrl.core.spaces import SIMPLEX_ADVICE
from jaxrl.errors import UnknownNameError

RLLIB = "ray.rllib"

MOVED_NAMES: Mapping[str, str] = {
    "algorithms.algorithm.Algorithm": "jaxrl.Algorithm",
    "algorithms.algorithm_config.AlgorithmConfig": "jaxrl.AlgorithmConfig",
    "algorithms.callbacks.DefaultCallbacks": "jaxrl.callbacks.Callbacks",
    "algorithms.callbacks.MemoryTrackingCallbacks": "jaxrl.callbacks.MemoryTrackingCallbacks",
    "callbacks.callbacks.RLlibCallback": "jaxrl.callbacks.Callbacks",
    "connectors.env_to_module.FlattenObservations": "jaxrl.connectors.FlattenObservations",
    "connectors.env_to_module.FrameStackingEnvToModule": "jaxrl.connectors.FrameStacking",
    "connectors.env_to_module.MeanStdFilter": "jaxrl.connectors.MeanStdFilter",
    "connectors.env_to_module.PrevActionsPrevRewards": "jaxrl.connectors.PrevActionsPrevRewards",
    **{
        f"connectors.{package}.{name}": f"jaxrl.compat.rllib.connectors.{name}"
        for package, names in {
            "env_to_module": (
                "AddObservationsFromEpisodesToBatch",
                "AddStatesFromEpisodesToBatch",
                "AddTimeDimToBatchAndZeroPad",
                "BatchIndividualItems",
                "NumpyToTensor",
                "SingleAgentObservationPreprocessor",
                "WriteObservationsToEpisodes",
            ),
            "learner": (
                "AddColumnsFromEpisodesToTrainBatch",
                "AddOneTsToEpisodesAndTruncate",
                "FrameStackingLearner",
            ),
            "module_to_env": (
                "GetActions",
                "ListifyDataForVectorEnv",
                "RemoveSingleTsTimeRankFromBatch",
                "TensorToNumpy",
                "UnBatchToIndividualItems",
            ),
        }.items()
        for name in names
    },
    "env.INPUT_ENV_SINGLE_SPACES": "jaxrl.assembly.env.INPUT_ENV_SINGLE_SPACES",
    "env.INPUT_ENV_SPACES": "jaxrl.assembly.env.INPUT_ENV_SPACES",
    "core.DEFAULT_MODULE_ID": "jaxrl.metrics.DEFAULT_MODULE",
    "core.rl_module.default_model_config.DefaultModelConfig": (
        "jaxrl.modules.model_config.DefaultModelConfig"
    ),
    "core.rl_module.rl_module.RLModule": "jaxrl.RLModule",
    "core.rl_module.rl_module.RLModuleSpec": "jaxrl.RLModuleSpec",
    "core.rl_module.rl_module.SingleAgentRLModuleSpec": "jaxrl.RLModuleSpec",
    "core.columns.Columns": "jaxrl.core.types.Columns",
    "env.apis.task_settable_env.TaskSettableEnv": "jaxrl.envs.TaskSettableEnv",
    "env.apis.task_settable_env.TaskType": "jaxrl.core.types.PyTree",
    "env.env_context.EnvContext": "jaxrl.EnvContext",
    "env.policy_client.PolicyClient": "jaxrl.external.PolicyClient",
    "env.multi_agent_env.MultiAgentEnv": "jaxrl.envs.MultiAgentEnv",
    "env.multi_agent_episode.MultiAgentEpisode": "jaxrl.episodes.MultiAgentEpisode",
    "env.single_agent_episode.SingleAgentEpisode": "jaxrl.episodes.SingleAgentEpisode",
    "core.rl_module.multi_rl_module.MultiRLModuleSpec": "jaxrl.MultiRLModuleSpec",
    "env.multi_agent_env.make_multi_agent": "jaxrl.envs.make_multi_agent",
    "env.wrappers.group_agents_wrapper.GroupAgentsWrapper": "jaxrl.envs.GroupedAgents",
    "env.wrappers.open_spiel.OpenSpielEnv": "jaxrl.envs.OpenSpielEnv",
    "env.wrappers.pettingzoo_env.ParallelPettingZooEnv": "jaxrl.envs.ParallelPettingZooEnv",
    "env.wrappers.pettingzoo_env.PettingZooEnv": "jaxrl.envs.PettingZooEnv",
    **{
        f"examples.envs.classes.multi_agent.{name}": f"jaxrl.envs.multi.copies.{name}"
        for name in ("MultiAgentCartPole", "MultiAgentMountainCar", "MultiAgentPendulum")
    },
    "examples.rl_modules.classes.AlwaysSameHeuristicRLM": "jaxrl.envs.multi.opponents.AlwaysSame",
    "examples.rl_modules.classes.BeatLastHeuristicRLM": "jaxrl.envs.multi.opponents.BeatLast",
    "examples.rl_modules.classes.random_rlm.RandomRLModule": "jaxrl.RandomRLModule",
    "models.preprocessors.NoPreprocessor": "jaxrl.compat.rllib.connectors.NoPreprocessor",
    "models.preprocessors.get_preprocessor": "jaxrl.compat.rllib.connectors.get_preprocessor",
    "policy.policy.Policy": "jaxrl.Policy",
    "policy.policy.PolicySpec": "jaxrl.PolicySpec",
    "policy.sample_batch.DEFAULT_POLICY_ID": "jaxrl.metrics.DEFAULT_MODULE",
    "utils.typing.AgentID": "jaxrl.envs.multi.host_env.AgentID",
    "utils.typing.MultiAgentDict": "jaxrl.envs.multi.host_env.AgentDict",
    "utils.replay_buffers.ReplayBuffer": "jaxrl.HostReplayBuffer",
    "utils.replay_buffers.replay_buffer.ReplayBuffer": "jaxrl.HostReplayBuffer",
    "utils.metrics.ENV_RUNNER_RESULTS": "jaxrl.metrics.ENV_RUNNERS",
    "utils.metrics.EPISODE_LEN_MAX": "jaxrl.metrics.EPISODE_LEN_MAX",
    "utils.metrics.EPISODE_LEN_MEAN": "jaxrl.metrics.EPISODE_LEN_MEAN",
    "utils.metrics.EPISODE_LEN_MIN": "jaxrl.metrics.EPISODE_LEN_MIN",
    "utils.metrics.EPISODE_RETURN_MAX": "jaxrl.metrics.EPISODE_RETURN_MAX",
    "utils.metrics.EPISODE_RETURN_MEAN": "jaxrl.metrics.EPISODE_RETURN_MEAN",
    "utils.metrics.EPISODE_RETURN_MIN": "jaxrl.metrics.EPISODE_RETURN_MIN",
    "utils.metrics.EVALUATION_RESULTS": "jaxrl.metrics.EVALUATION",
    "utils.metrics.FAULT_TOLERANCE_STATS": "jaxrl.metrics.FAULT_TOLERANCE",
    "utils.metrics.LEARNER_RESULTS": "jaxrl.metrics.LEARNERS",
    "utils.metrics.NUM_ENV_STEPS_SAMPLED_LIFETIME": "jaxrl.metrics.NUM_ENV_STEPS_SAMPLED_LIFETIME",
    "utils.metrics.NUM_EPISODES": "jaxrl.metrics.NUM_EPISODES",
    "utils.metrics.REPLAY_BUFFER_RESULTS": "jaxrl.metrics.REPLAY_BUFFER",
    "utils.metrics.TIMERS": "jaxrl.metrics.TIMERS",
}
"""Path below `ray.rllib` of a class, function or constant, mapped to its path here.

RLlib has moved most of them between packages, so that a name counts wherever it is imported from.
"""

MOVED_RAY_NAMES: Mapping[str, str] = {
    "ray.tune.register_env": "jaxrl.register_env",
    "ray.tune.registry.register_env": "jaxrl.register_env",
    "ray.air.CheckpointConfig": "ray.tune.CheckpointConfig",
    "ray.air.FailureConfig": "ray.tune.FailureConfig",
    "ray.air.RunConfig": "ray.tune.RunConfig",
    "ray.air.config.CheckpointConfig": "ray.tune.CheckpointConfig",
    "ray.air.config.FailureConfig": "ray.tune.FailureConfig",
    "ray.air.config.RunConfig": "ray.tune.RunConfig",
    "ray.train.CheckpointConfig": "ray.tune.CheckpointConfig",
    "ray.train.FailureConfig": "ray.tune.FailureConfig",
    "ray.train.RunConfig": "ray.tune.RunConfig",
}
"""Names of Ray outside of RLlib that code for RLlib uses, mapped to their current paths."""

DECORATORS = (
    "DeveloperAPI",
    "OldAPIStack",
    "OverrideToImplementCustomLogic",
    "OverrideToImplementCustomLogic_CallToSuperRecommended",
    "PublicAPI",
    "override",
)
"""Decorators of `ray.rllib.utils.annotations`, which change nothing at run time."""

ALGORITHM_ADVICE: Mapping[str, str] = {
    "AlphaStar": "leagues are multi_agent(league=League(...)) of PPO and other algorithms",
    "LeelaChessZero": (
        "AlphaZero searches any game of pgx, AlphaZeroConfig().environment('pgx:chess'), and nothing is "
        "promised of how strong it becomes"
    ),
    "MAML": (
        "tasks are learned by a memory, as in RL2: PPO with environment('jaxrl.envs:Trials', "
        "env_config={'env': ..., 'tasks': {'mass': [0.5, 2.0]}}) and rl_module(model_config={'use_lstm': "
        "True, 'lstm_use_prev_action': True, 'lstm_use_prev_reward': True}), see the guide Trials"
    ),
    "MBMPO": (
        "DreamerV3 learns a model of one environment, and "
        "environment('jaxrl.envs:Trials', ...) with PPO and a memory learns many tasks, see the guide "
        "Trials"
    ),
}
"""Algorithms of RLlib that need what is not here, with what to write instead."""

RLLIB_ALGORITHMS: Mapping[str, str] = {
    "Apex": "APEX",
    "Dreamer": "DreamerV3",
    "Impala": "IMPALA",
    "LinTS": "BanditLinTS",
    "LinUCB": "BanditLinUCB",
    "QMix": "QMIX",
    "RANDOM": "RandomAgent",
}
"""Other names that RLlib has for algorithms; those of its classes and `contrib/NAME` count as well."""


def find_algorithm(name: str) -> str | None:
    """Return the algorithm here that has another name in RLlib, None if RLlib has none of this name.

    Raises:
        UnknownNameError: If RLlib's algorithm is not here; the message says what to use instead.
    """
    if (instead := get_algorithm_advice(name)) is not None:
        raise UnknownNameError(f"There is no algorithm '{name}' here: {instead}.")
    return _resolve(name, _ALGORITHM_BY_CLASS)


def get_algorithm_advice(name: str) -> str | None:
    """Return what to write instead of an algorithm of RLlib that is not here, None for other names."""
    current = _resolve(name, {**{key: key for key in ALGORITHM_ADVICE}, **_ALGORITHM_BY_CLASS})
    return None if current is None else ALGORITHM_ADVICE.get(current)


def _resolve(name: str, table: Mapping[str, str]) -> str | None:
    """Return the entry of a name in any case, with or without `contrib/`."""
    by_lower = {key.lower(): value for key, value in table.items()}
    return by_lower.get(name.lower().removeprefix("contrib/"))


_RETURN_PIECES = "return a connector or a list of connectors, which precede the default ones"
NAME_ADVICE: Mapping[str, str] = {
    "ConnectorV2": (
        "subclass ObservationConnector, TemporalConnector, ActionConnector or LearnerConnector of "
        "jaxrl.connectors, which are pure functions of arrays, see the guide Connectors"
    ),
    **dict.fromkeys(
        (
            "ConnectorPipelineV2",
            "EnvToModulePipeline",
            "LearnerConnectorPipeline",
            "ModuleToEnvPipeline",
        ),
        _RETURN_PIECES,
    ),
    "AddInfosFromEpisodesToTrainBatch": (
        "infos are not recorded: add what the learner needs to the observation"
    ),
    "AddNextObservationsFromEpisodesToTrainBatch": (
        "a LearnerConnector finds the successor of every observation in rollout.final_obs"
    ),
    **dict.fromkeys(
        ("AgentToModuleMapping", "ModuleToAgentUnmapping"),
        "multi_agent(mapping=...) says which module plays which agent",
    ),
    "ComputeReturnsToGo": (
        "the learner computes them: training(lambda_=1.0) of PPO, or PG, whose targets are returns"
    ),
    "GeneralAdvantageEstimation": "the learner computes it: training(gamma=..., lambda_=...)",
    "NormalizeAndClipActions": "set environment(normalize_actions=..., clip_actions=...)",
    "make_multi_callbacks": "pass the classes as a list: callbacks([First, Second])",
    "ModelCatalog": "pass the network itself: rl_module(network=...), see the guide Custom modules",
    **dict.fromkeys(
        ("standardize_fields", "synchronous_parallel_sample"),
        "a training_step() of one's own calls self.sample(), see the guide Training steps",
    ),
    **dict.fromkeys(
        ("multi_gpu_train_one_step", "train_one_step"),
        "a training_step() of one's own calls self.update(batch), see the guide Training steps",
    ),
    **dict.fromkeys(
        (
            "EpisodeReplayBuffer",
            "MultiAgentReplayBuffer",
            "PrioritizedEpisodeReplayBuffer",
            "PrioritizedReplayBuffer",
        ),
        "name it, replay_buffer_config={'type': 'prioritized'}, or subclass jaxrl.ReplayBuffer or "
        "jaxrl.HostReplayBuffer, see the guide Training steps",
    ),
    **dict.fromkeys(
        (
            "sample_min_n_steps_from_buffer",
            "update_priorities_in_replay_buffer",
            "update_priorities_in_episode_replay_buffer",
        ),
        "update() draws from the buffer and updates its priorities, see the guide Training steps",
    ),
    "Simplex": SIMPLEX_ADVICE,
    "TFModelV2": "write the network with flax: rl_module(network=...)",
    "TorchModelV2": "write the network with flax: rl_module(network=...)",
    "TorchRLModule": "subclass jaxrl.RLModule, or pass a flax network: rl_module(network=...)",
    "TorchLearner": "subclass the algorithm's Learner, see the guide Custom losses",
    "PPOTorchLearner": "subclass jaxrl.algorithms.ppo.PPOLearner, see the guide Custom losses",
    "PPOTorchRLModule": "subclass jaxrl.RLModule, or pass a flax network: rl_module(network=...)",
    "try_import_tf": "the framework is JAX: import jax",
    "try_import_torch": "the framework is JAX: import jax",
    "SampleBatch": "a callback or Learner receives a batch as a dictionary of arrays",
    "RolloutWorker": "callbacks receive the EnvRunner as env_runner",
    "Episode": "callbacks receive a jaxrl.episodes.SingleAgentEpisode",
    "Columns": "batches have the keys of the rollout: obs, actions, rewards, ...",
    "EnvRunnerGroup": "algorithm.env_runner_group has the runners of environments on the host",
    "MetricsLogger": "callbacks receive it as metrics_logger",
    "PPOCatalog": "set rl_module(model_config={...}), or pass a network: rl_module(network=...)",
    "EpisodeV2": "callbacks receive a jaxrl.episodes.SingleAgentEpisode",
    "BaseEnv": "callbacks receive the environments as env",
    "PPOTorchPolicy": "subclass the algorithm's Learner, see the guide Custom losses",
    "PPOTF2Policy": "subclass the algorithm's Learner, see the guide Custom losses",
    **dict.fromkeys(
        ("PolicyServerInput", "ExternalEnv", "ExternalEnvWrapper", "TcpClientInferenceEnvRunner"),
        "the run listens itself: env_runners(placement='external') with external(external_port=...) "
        "and environment(observation_space=..., action_space=...), see the guide External simulators",
    ),
    **{
        name: f"environment('{env}') is this game, see the guide Games of several agents"
        for name, env in (
            ("RockPaperScissors", "RockPaperScissors-v0"),
            ("TicTacToe", "TicTacToe-v0"),
            ("TwoStepGame", "TwoStep-v0"),
        )
    },
    "pretty_print": "it is in Ray Tune: from ray.tune.logger import pretty_print",
}
"""Names of RLlib without a counterpart, with what to write instead."""

MULTI_AGENT_NAMES = ("MultiAgent", "PettingZoo")
"""Parts of the names that only multi-agent code uses."""


def list_algorithm_names() -> frozenset[str]:
    """Return the names of the algorithms here and in RLlib, for which RLlib has classes."""
    return frozenset((*_ALGORITHM_BY_CLASS, *ALGORITHM_ADVICE))


def find_counterpart(path: str) -> str | None:
    """Return the path here of a class, function or constant of RLlib or Ray, None if it has none.

    Args:
        path: Path as imported, such as `ray.rllib.algorithms.ppo.PPOConfig`.
    """
    if path in MOVED_RAY_NAMES:
        return MOVED_RAY_NAMES[path]
    if not path.startswith(f"{RLLIB}."):
        return None
    name = path.rpartition(".")[2]
    algorithm = _ALGORITHM_BY_CLASS.get(name.removesuffix("Config").removesuffix("Trainer"))
    if algorithm is not None:
        config = ALGORITHMS[algorithm].config.rpartition(":")[2]
        return f"jaxrl.{config if name.endswith('Config') else algorithm}"
    return _MOVED_BY_NAME.get(name)


_ALGORITHM_BY_CLASS = {
    **{
        entry.config.rpartition(":")[2].removesuffix("Config"): name
        for name, entry in ALGORITHMS.items()
    },
    **{name: name for name in ALGORITHMS},
    **RLLIB_ALGORITHMS,
}
"""Algorithms by the names of RLlib's classes, without `Config` and `Trainer`."""
_ALGORITHM_BY_MODULE = {name.lower(): name for name in ALGORITHMS}


_MOVED_BY_NAME = {path.rpartition(".")[2]: new for path, new in MOVED_NAMES.items()}


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def advise_on_name(path: str) -> str:
    """Return what to write instead of a name of RLlib without a counterpart."""
    name = path.rpartition(".")[2]
    algorithm = name.removesuffix("Config").removesuffix("Trainer")
    module = next((each for each in ALGORITHMS if each.lower() == name), None)
    if module is not None:
        return f"import the class of its config: from jaxrl import {module}Config"
    if (instead := get_algorithm_advice(algorithm)) is not None:
        return instead
    if name in NAME_ADVICE:
        return NAME_ADVICE[name]
    if any(part in name for part in MULTI_AGENT_NAMES):
        return (
            "subclass jaxrl.envs.MultiAgentEnv, which is RLlib's interface, or "
            "jaxrl.envs.MultiAgentJaxEnv, which is stepped in the compiled program"
        )
    if ".offline" in path:
        return "config.offline_data(input_=...) reads recorded data, and jaxrl.EpisodeWriter writes them"
    if ".examples" in path:
        return "copy what you need from RLlib's examples"
    if f"{RLLIB}.algorithms." in path and name.endswith("Config"):
        return f"the algorithms are {', '.join(ALGORITHMS)}"
    if name == "*":
        return "import the names that the file uses, one by one"
    return "it is part of RLlib's internals"


RLLIB_PACKAGES = {
    *("agents", "env", "examples", "execution", "models", "tuned_examples", "utils"),
    *("algorithms.algorithm", "algorithms.algorithm_config", "algorithms.apex_dqn"),
    *("algorithms.apex_ddpg", "algorithms.a2c", "algorithms.a3c", "algorithms.callbacks"),
    *("algorithms.bc", "algorithms.crr"),
    *("algorithms.alpha_star", "algorithms.alpha_zero", "algorithms.ars", "algorithms.bandit"),
    *("algorithms.dreamerv3", "algorithms.es", "algorithms.maml"),
    *("algorithms.leela_chess_zero", "algorithms.mbmpo", "algorithms.slateq"),
    *("algorithms.ddpg", "algorithms.ddppo", "algorithms.pg", "algorithms.r2d2"),
    *("algorithms.simple_q", "callbacks.callbacks", "connectors.connector_v2"),
    *("connectors.env_to_module", "connectors.learner", "connectors.module_to_env"),
    *("core.columns", "core.learner", "core.models", "core.rl_module", "core.testing"),
    *("evaluation.episode", "evaluation.rollout_worker", "evaluation.worker_set"),
    *("policy.policy_map", "policy.sample_batch", "policy.tf_policy", "policy.torch_policy"),
    *("policy.view_requirement",),
}
"""Modules of RLlib, and packages with all of their modules, that are not modules here."""

OTHER_PACKAGES = {"common", "wrappers"}
"""Packages of Stable-Baselines3 and gymnax that are not modules here."""


def find_spec(fullname: str) -> ModuleSpec | None:
    """Return how to load a module that stands in for one of RLlib or another library, if it does.

    Args:
        fullname: Path of the module here, which does not exist, such as `jaxrl.core.columns`.
    """
    below = fullname.removeprefix("jaxrl.")
    parent, _, name = below.rpartition(".")
    is_file = parent in RLLIB_PARENTS and name.startswith(parent.rpartition(".")[2])
    if is_file or below.partition(".")[0] in OTHER_PACKAGES:
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)
    while below and below not in RLLIB_PACKAGES:
        below = below.rpartition(".")[0]
    return ModuleSpec(fullname, _StandInLoader(), is_package=True) if below else None


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up on first use."""


class _StandIn(ModuleType):
    """Module in the place of another library's, so that only the first word of an import changes."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return load_name(self.__name__, name)


def load_name(module: str, name: str) -> object:
    """Import the counterpart of a name that another library has in a module of this path.

    Args:
        module: Path of the module, with `jaxrl` in the place of the library.
        name: Name in it.

    Raises:
        ImportError: If the name has no counterpart; the message says what to use instead.
    """
    if module.split(".")[1] in OTHER_PACKAGES:
        refuse_foreign_name(module, name)
        raise ImportError(f"{module} has no {name}: what 'import jaxrl' has is in the reference.")
    path = f"{RLLIB}.{module.removeprefix('jaxrl.')}.{name}"
    new = find_counterpart(path)
    algorithm = _ALGORITHM_BY_MODULE.get(module.rpartition(".")[2])
    if new is None and name == "DEFAULT_CONFIG" and algorithm is not None:
        config = find_counterpart(f"{RLLIB}.{algorithm}Config")
        assert config is not None
        return _load(config)().to_dict()
    if new is None:
        raise ImportError(f"{path} has no counterpart in jaxrl: {advise_on_name(path)}.")
    return _load(new)
