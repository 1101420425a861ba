"""Imports of RLlib's code with `jaxrl` in place of `ray.rllib`."""

import importlib
import inspect
import pickle

import pytest

import jaxrl
from jaxrl.callbacks import Callbacks
from jaxrl.compat.rllib import connectors as pieces
from jaxrl.compat.rllib.imports import ALGORITHM_ADVICE, RLLIB_ALGORITHMS
from jaxrl.config.base import get_algorithm_config
from jaxrl.connectors import FrameStacking, SingleAgentObservationPreprocessor
from jaxrl.core.types import Columns
from jaxrl.envs.context import EnvContext
from jaxrl.episodes import MultiAgentEpisode
from jaxrl.errors import UnknownNameError
from jaxrl.external import PolicyClient

FOUND = {
    "algorithms.algorithm:Algorithm": jaxrl.Algorithm,
    "algorithms.algorithm_config:AlgorithmConfig": jaxrl.AlgorithmConfig,
    "algorithms.apex_dqn:ApexDQNConfig": jaxrl.ApexDQNConfig,
    "algorithms.callbacks:DefaultCallbacks": Callbacks,
    "algorithms.dqn.dqn:DQNConfig": jaxrl.DQNConfig,
    "algorithms.ppo.ppo:PPOConfig": jaxrl.PPOConfig,
    "algorithms.ppo:PPOConfig": jaxrl.PPOConfig,
    "algorithms.simple_q.simple_q:SimpleQConfig": jaxrl.SimpleQConfig,
    "algorithms:PPOConfig": jaxrl.PPOConfig,
    "callbacks.callbacks:RLlibCallback": Callbacks,
    "connectors.env_to_module.frame_stacking:FrameStackingEnvToModule": FrameStacking,
    "connectors.env_to_module.observation_preprocessor:SingleAgentObservationPreprocessor": (
        SingleAgentObservationPreprocessor
    ),
    "connectors.env_to_module:FrameStackingEnvToModule": FrameStacking,
    "connectors.env_to_module:WriteObservationsToEpisodes": pieces.WriteObservationsToEpisodes,
    "connectors.learner.frame_stacking:FrameStackingLearner": pieces.FrameStackingLearner,
    "connectors.learner:AddColumnsFromEpisodesToTrainBatch": (
        pieces.AddColumnsFromEpisodesToTrainBatch
    ),
    "connectors.module_to_env:GetActions": pieces.GetActions,
    "core.columns:Columns": Columns,
    "core.rl_module:RLModule": jaxrl.RLModule,
    "core.rl_module.multi_rl_module:MultiRLModuleSpec": jaxrl.MultiRLModuleSpec,
    "core.rl_module.rl_module:RLModule": jaxrl.RLModule,
    "core.rl_module.rl_module:RLModuleSpec": jaxrl.RLModuleSpec,
    "env.env_context:EnvContext": EnvContext,
    "env.multi_agent_env:MultiAgentEnv": jaxrl.envs.MultiAgentEnv,
    "env.multi_agent_episode:MultiAgentEpisode": MultiAgentEpisode,
    "env.policy_client:PolicyClient": PolicyClient,
    "env.wrappers.group_agents_wrapper:GroupAgentsWrapper": jaxrl.envs.GroupedAgents,
    "env.wrappers.open_spiel:OpenSpielEnv": jaxrl.envs.OpenSpielEnv,
    "env.wrappers.pettingzoo_env:ParallelPettingZooEnv": jaxrl.envs.ParallelPettingZooEnv,
    "env.wrappers.pettingzoo_env:PettingZooEnv": jaxrl.envs.PettingZooEnv,
}
MISSING = {
    "algorithms.alpha_star:AlphaStarConfig": r"multi_agent\(league=League",
    "algorithms.alpha_zero:AlphaZeroConfig": r"league=SelfPlay",
    "algorithms.ars:ARSConfig": "PopulationBasedTraining",
    "algorithms.bandit:BanditLinUCBConfig": "an episode of one step with DQN",
    "algorithms.bandit.bandit:BanditLinTSConfig": "an episode of one step with DQN",
    "algorithms.dreamer:DreamerConfig": "with a memory are the nearest",
    "algorithms.dreamerv3.dreamerv3:DreamerV3Config": "with a memory are the nearest",
    "algorithms.es:ESConfig": "PopulationBasedTraining",
    "algorithms.leela_chess_zero:LeelaChessZeroConfig": "league=SelfPlay",
    "algorithms.maml:MAMLConfig": "use_lstm",
    "algorithms.mbmpo:MBMPOConfig": "use_lstm",
    "algorithms.slateq:SlateQConfig": "MultiDiscrete",
    "connectors.connector_v2:ConnectorV2": "subclass ObservationConnector",
    "connectors.env_to_module:EnvToModulePipeline": "list of connectors",
    "connectors.learner:AddInfosFromEpisodesToTrainBatch": "infos are not recorded",
    "connectors.learner:GeneralAdvantageEstimation": "the learner computes it",
    "connectors.module_to_env:NormalizeAndClipActions": "normalize_actions",
    "env.multi_agent_env_runner:MultiAgentEnvRunner": "subclass jaxrl.envs.MultiAgentEnv, which is",
    "models.torch.torch_modelv2:TorchModelV2": r"rl_module\(network=...\)",
    "policy.sample_batch:SampleBatch": "a dictionary of arrays",
    "utils.framework:try_import_torch": "the framework is JAX",
    "utils.some.file:some_function": "part of RLlib's internals",
}


@pytest.mark.parametrize("path", FOUND)
def test_rllibs_path_leads_to_the_class_here(path: str) -> None:
    module, name = path.split(":")
    scope: dict[str, object] = {}
    exec(f"from jaxrl.{module} import {name}", scope)
    assert scope[name] is FOUND[path]


@pytest.mark.parametrize("name", ALGORITHM_ADVICE)
def test_an_algorithm_that_is_not_here_has_an_alternative(name: str) -> None:
    for written in (name, name.lower(), f"contrib/{name}"):
        with pytest.raises(UnknownNameError) as raised:
            get_algorithm_config(written)
        assert ALGORITHM_ADVICE[name] in str(raised.value)
        assert f"'{written}' here" in str(raised.value)


def test_other_names_of_algorithms() -> None:
    found = {name: get_algorithm_config(name).algo_name for name in RLLIB_ALGORITHMS}
    assert found == RLLIB_ALGORITHMS
    with pytest.raises(UnknownNameError, match="Did you mean 'MARWIL'"):
        get_algorithm_config("MARWILL")


def test_algorithms_are_in_the_modules_of_their_configs() -> None:
    from jaxrl.algorithms.impala import Impala
    from jaxrl.algorithms.ppo import PPO

    assert PPO is jaxrl.PPO
    assert Impala is jaxrl.IMPALA


@pytest.mark.parametrize("path", MISSING)
def test_a_name_without_counterpart_says_what_to_write(path: str) -> None:
    module, name = path.split(":")
    with pytest.raises(ImportError, match=MISSING[path]):
        exec(f"from jaxrl.{module} import {name}")


@pytest.mark.parametrize("module", ["algorithms.ppoo", "algorithms.ppo.ddpo", "envss", "core.xyz"])
def test_other_modules_do_not_exist(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module(f"jaxrl.{module}")


def test_modules_here_are_as_they_were() -> None:
    from jaxrl.algorithms import ppo

    assert inspect.getsource(ppo.PPOConfig).startswith("class PPOConfig")
    assert pickle.loads(pickle.dumps(ppo.PPOConfig)) is jaxrl.PPOConfig
    assert not hasattr(ppo, "PPOTorchPolicy")
    with pytest.raises(ImportError, match="PPOTorchPolicy"):
        exec("from jaxrl.algorithms.ppo import PPOTorchPolicy")
