"""Imports of RLlib's code with `jaxrl` in place of `ray.rllib`."""

import importlib
import inspect
import pickle
from pathlib import Path

import pytest

import jaxrl
from jaxrl.callbacks import Callbacks
from jaxrl.compat.rllib import connectors as pieces
from jaxrl.compat.rllib.imports import ALGORITHM_ADVICE, RLLIB_ALGORITHMS, get_algorithm_advice
from jaxrl.config.base import get_algorithm_config
from jaxrl.connectors import FrameStacking, SingleAgentObservationPreprocessor
from jaxrl.core.types import Columns
from jaxrl.envs.context import EnvContext
from jaxrl.episodes import MultiAgentEpisode
from jaxrl.errors import UnknownNameError
from jaxrl.external import PolicyClient
from jaxrl.migrate.yaml_file import migrate_yaml

FOUND = {
    "algorithms.algorithm:Algorithm": jaxrl.Algorithm,
    "algorithms.algorithm_config:AlgorithmConfig": jaxrl.AlgorithmConfig,
    "algorithms.apex_dqn:ApexDQNConfig": jaxrl.ApexDQNConfig,
    "algorithms.callbacks:DefaultCallbacks": Callbacks,
    "algorithms.dqn.dqn:DQNConfig": jaxrl.DQNConfig,
    "algorithms.ppo.ppo:PPOConfig": jaxrl.PPOConfig,
    "algorithms.ppo:PPOConfig": jaxrl.PPOConfig,
    "algorithms.dreamer.dreamer:DreamerConfig": jaxrl.DreamerV3Config,
    "algorithms.dreamer:DreamerConfig": jaxrl.DreamerV3Config,
    "algorithms.dreamerv3.dreamerv3:DreamerV3Config": jaxrl.DreamerV3Config,
    "algorithms.dreamerv3:DreamerV3Config": jaxrl.DreamerV3Config,
    "algorithms.simple_q.simple_q:SimpleQConfig": jaxrl.SimpleQConfig,
    "algorithms.slateq.slateq:SlateQConfig": jaxrl.SlateQConfig,
    "algorithms.slateq:SlateQConfig": jaxrl.SlateQConfig,
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
    "algorithms.leela_chess_zero:LeelaChessZeroConfig": r"environment\('pgx:chess'\)",
    "algorithms.maml:MAMLConfig": r"environment\('jaxrl.envs:Trials', ",
    "algorithms.mbmpo:MBMPOConfig": "DreamerV3 learns a model of one environment",
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

REGISTRY = {
    "A2C": "a2c:A2C",
    "A3C": "a3c:A3C",
    "AlphaStar": "alpha_star:AlphaStar",
    "AlphaZero": "alpha_zero:AlphaZero",
    "APEX": "apex_dqn:ApexDQN",
    "APEX_DDPG": "apex_ddpg:ApexDDPG",
    "APPO": "appo:APPO",
    "ARS": "ars:ARS",
    "BanditLinTS": "bandit:BanditLinTS",
    "BanditLinUCB": "bandit:BanditLinUCB",
    "BC": "bc:BC",
    "CQL": "cql:CQL",
    "CRR": "crr:CRR",
    "DDPG": "ddpg:DDPG",
    "DDPPO": "ddppo:DDPPO",
    "DQN": "dqn:DQN",
    "Dreamer": "dreamer:Dreamer",
    "DreamerV3": "dreamerv3:DreamerV3",
    "DT": "dt:DT",
    "ES": "es:ES",
    "IMPALA": "impala:Impala",
    "LeelaChessZero": "leela_chess_zero:LeelaChessZero",
    "MADDPG": "maddpg:MADDPG",
    "MAML": "maml:MAML",
    "MARWIL": "marwil:MARWIL",
    "MBMPO": "mbmpo:MBMPO",
    "PG": "pg:PG",
    "PPO": "ppo:PPO",
    "QMIX": "qmix:QMix",
    "R2D2": "r2d2:R2D2",
    "Random": "random_agent:RandomAgent",
    "RNNSAC": "sac:RNNSAC",
    "SAC": "sac:SAC",
    "SimpleQ": "simple_q:SimpleQ",
    "SlateQ": "slateq:SlateQ",
    "TD3": "td3:TD3",
}
"""Algorithms of RLlib's registry, version 2.3, with the modules and classes."""
CONTRIBUTED = ("AlphaZero", "LinTS", "LinUCB", "MADDPG", "RandomAgent")


def import_name(module: str, name: str) -> object:
    """A name that is imported as it is written."""
    scope: dict[str, object] = {}
    exec(f"from {module} import {name}", scope)
    return scope[name]


@pytest.mark.parametrize("name", REGISTRY)
def test_an_algorithm_of_rllib_trains_or_is_answered(name: str) -> None:
    module, cls = REGISTRY[name].split(":")
    module = f"jaxrl.algorithms.{module}"
    spellings = [name, name.lower(), cls]
    advice = get_algorithm_advice(name)
    for written in spellings:
        text = f"a: {{run: {written}, env: CartPole-v1}}\n"
        by_hand = migrate_yaml(text, Path("a.yaml")).by_hand
        said = [item.advice for item in by_hand if item.kind == "algorithm"]
        assert said == ([] if advice is None else [advice])
    if advice is None:
        config = import_name(module, f"{cls}Config")
        assert import_name("jaxrl", config.__name__) is config  # pyright: ignore
        assert all(type(get_algorithm_config(written)) is config for written in spellings)
        assert import_name(module, cls) is getattr(jaxrl, get_algorithm_config(name).algo_name)
        return
    for written in spellings:
        with pytest.raises(UnknownNameError, match="There is no algorithm") as raised:
            get_algorithm_config(written)
        assert advice in str(raised.value)
    for where in (module, "jaxrl.algorithms", "jaxrl"):
        for imported in (cls, f"{cls}Config"):
            with pytest.raises(ImportError) as raised:
                import_name(where, imported)
            assert advice in str(raised.value)


@pytest.mark.parametrize("name", CONTRIBUTED)
def test_contributed_algorithms_are_those_without_the_prefix(name: str) -> None:
    if (advice := get_algorithm_advice(f"contrib/{name}")) is None:
        own = get_algorithm_config(f"contrib/{name}")
        assert own.algo_name in (name, f"Bandit{name}")
        assert type(get_algorithm_config(name)) is type(own)
        return
    with pytest.raises(UnknownNameError, match=f"no algorithm 'contrib/{name}' here") as raised:
        get_algorithm_config(f"contrib/{name}")
    assert advice in str(raised.value)


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
