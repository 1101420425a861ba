"""The tables of names: every counterpart exists, and every piece of advice names what exists."""

import importlib
import inspect
import re
from types import SimpleNamespace

import pytest

from jaxrl import Algorithm, AlgorithmConfig, Policy
from jaxrl.callbacks import HOOKS, Callbacks
from jaxrl.compat.rllib import attributes as api
from jaxrl.compat.rllib import imports as modules
from jaxrl.compat.rllib.modules import ModelPart, ModelView
from jaxrl.config.base import get_algorithm_config_class
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import list_algorithms
from jaxrl.envs import list_multi_envs
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.learners.learner import BaseLearner
from jaxrl.metrics import KNOWN_KEYS, OPEN_PREFIXES, RENAMED_KEYS
from jaxrl.runners.compiled_runner import CompiledEnvRunner
from jaxrl.runners.env_runner import EnvRunner
from jaxrl.runners.ray.group import RayEnvRunnerGroup


@pytest.mark.parametrize("path", modules.MOVED_NAMES)
def test_counterparts_exist(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert modules.load_name(f"jaxrl.{module}", name) is not None


@pytest.mark.parametrize("path", [p for p in modules.MOVED_NAMES.values() if "DEFAULT" not in p])
def test_counterparts_have_their_public_name(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_algorithms_are_found_in_all_their_forms() -> None:
    for path in ("algorithms.ppo.PPO", "agents.ppo.ppo.PPOTrainer"):
        assert modules.find_counterpart(f"ray.rllib.{path}") == "jaxrl.PPO"
    assert (
        modules.find_counterpart("ray.rllib.algorithms.impala.ImpalaConfig") == "jaxrl.IMPALAConfig"
    )
    path = "ray.rllib.algorithms.qmix.QMixConfig"
    assert modules.find_counterpart(path) == "jaxrl.QMIXConfig"
    assert modules.find_counterpart("ray.tune.Tuner") is None
    assert modules.find_counterpart("my.PPO") is None


def test_a_name_without_a_counterpart_raises_with_advice() -> None:
    with pytest.raises(ImportError, match=r"rl_module\(network="):
        modules.load_name("jaxrl.models", "ModelCatalog")


@pytest.mark.parametrize("name", ["RockPaperScissors", "TicTacToe", "TwoStepGame"])
def test_games_of_rllibs_examples_are_environments_here(name: str) -> None:
    advice = modules.advise_on_name(f"ray.rllib.examples.envs.classes.multi_agent.{name}")
    found = re.search(r"environment\('(.*)'\)", advice)
    assert found is not None
    assert found[1] in list_multi_envs()


def test_renamed_methods_exist() -> None:
    owners = {
        "algorithm": Algorithm,
        "runner_group": RayEnvRunnerGroup,
        "config": AlgorithmConfig,
        "episode": SimpleNamespace(**vars(SingleAgentEpisode())),  # without __getattr__
        "policy": Policy,
    }
    for kind, names in api.RENAMED_METHODS.items():
        for old, new in names.items():
            assert hasattr(owners[kind], new), (kind, new)
            assert not hasattr(owners[kind], old), (kind, old)


def test_advised_methods_are_those_that_are_missing() -> None:
    owners = {
        "algorithm": Algorithm,
        "compiled_runner": CompiledEnvRunner,
        "runner_group": type("Local", (), {}),
        "env_runner": EnvRunner,
        "policy": Policy,
        "model": ModelView,
        "model_part": ModelPart,
        "config": AlgorithmConfig,
        "episode": SingleAgentEpisode(),
        "learner": BaseLearner,
    }
    assert all(hasattr(BaseLearner, name) for name in api.LEARNER_HOOKS)
    for kind, names in api.METHOD_ADVICE.items():
        for name in names:
            is_refused = kind == "config" and "multi_agent" in name
            assert is_refused or not hasattr(owners[kind], name), (kind, name)


def test_config_methods_exist() -> None:
    assert set(api.RENAMED_CONFIG_METHODS.values()) <= set(GROUP_METHODS.values())
    for old in api.RENAMED_CONFIG_METHODS:
        assert old not in GROUP_METHODS.values()


def test_hooks_exist() -> None:
    assert set(api.RENAMED_HOOKS.values()) <= set(HOOKS)
    parameters = {
        name for hook in HOOKS for name in inspect.signature(getattr(Callbacks, hook)).parameters
    }
    assert set(api.RENAMED_HOOK_ARGUMENTS.values()) <= parameters


def test_result_keys_exist() -> None:
    assert set(RENAMED_KEYS.values()) <= set(KNOWN_KEYS)
    for new in api.RENAMED_KEY_PREFIXES.values():
        assert f"{new}/".startswith(OPEN_PREFIXES)
    assert not set(api.REMOVED_RESULT_KEYS) & {*KNOWN_KEYS, *RENAMED_KEYS}


def test_advised_settings_exist() -> None:
    settings = {
        name
        for algo in list_algorithms()
        for name in get_algorithm_config_class(algo).get_name_table().group_by_setting
    }
    advice = [*modules.ALGORITHM_ADVICE.values(), *modules.NAME_ADVICE.values()]
    methods = "|".join(GROUP_METHODS.values())
    for sentence in advice:
        for method, name in re.findall(rf"\b({methods})\((\w+)=", sentence):
            assert name in settings or (method, name) == ("rl_module", "network"), sentence
