"""Names of Stable-Baselines3, CleanRL and PureJaxRL are answered with the ones here."""

import re
from typing import Any

import pytest

from jaxrl.algorithm import Algorithm
from jaxrl.compat.libraries import (
    ATTRIBUTE_COUNTERPARTS,
    METHOD_COUNTERPARTS,
    SYNONYMS,
    find_required_settings,
)
from jaxrl.config.base import get_algorithm_config, get_algorithm_config_class
from jaxrl.config.registry import list_algorithms
from jaxrl.config.stop import parse_stop
from jaxrl.errors import ConfigError, UnknownNameError, UnknownSettingError, did_you_mean
from jaxrl.modules.model_config import resolve_model_settings

ANSWERS = [
    ("PPO", "learning_rate", "training(lr=...)"),
    ("PPO", "LR", "training(lr=...)"),
    ("SAC", "learning_rate", "training(actor_lr=...) with critic_lr"),
    ("SAC", "LR", "training(actor_lr=...) with critic_lr"),
    ("PPO", "total_timesteps", "num_env_steps_sampled_lifetime"),
    ("PPO", "TOTAL_TIMESTEPS", "--steps"),
    ("PPO", "n_envs", "env_runners(num_envs_per_env_runner=...)"),
    ("PPO", "NUM_ENVS", "env_runners(num_envs_per_env_runner=...)"),
    ("PPO", "policy_kwargs", "fcnet_hiddens"),
    ("PPO", "net_arch", "fcnet_hiddens"),
    ("PPO", "hidden_sizes", "fcnet_hiddens"),
    ("PPO", "MAX_GRAD_NORM", "training(grad_clip=...)"),
    ("PPO", "num_minibatches", "training(minibatch_size=...)"),
    ("PPO", "n_steps", "env_runners(rollout_fragment_length=...)"),
    ("DQN", "n_steps", "training(n_step=...)"),
    ("PPO", "UPDATE_EPOCHS", "training(num_epochs=...)"),
    ("PPO", "batch_size", "training(minibatch_size=...)"),
    ("DQN", "batch_size", "training(train_batch_size=...)"),
    ("PPO", "ENT_COEF", "training(entropy_coeff=...)"),
    ("SAC", "ent_coef", "training(initial_alpha=...)"),
    ("PPO", "clip_eps", "training(clip_param=...)"),
    ("DQN", "buffer_size", 'replay_buffer_config={"capacity": ...}'),
    ("DQN", "learning_starts", "num_steps_sampled_before_learning_starts"),
    ("DQN", "train_freq", "rollout_fragment_length"),
    ("DQN", "gradient_steps", "training_intensity"),
    ("DQN", "target_update_interval", "target_network_update_freq"),
    ("DQN", "exploration_fraction", "training(epsilon=[["),
    ("DQN", "exploration_final_eps", "training(epsilon=[["),
    ("PPO", "ANNEAL_LR", "training(lr=[["),
    ("PPO", "buffer_size", "This algorithm has no counterpart"),
    ("PPO", "use_sde", "This algorithm has no counterpart"),
    ("PPO", "num_layers", "fcnet_hiddens"),
    ("PPO", "GAMMA", "Did you mean 'gamma'?"),
]


@pytest.mark.parametrize(("algo", "name", "answer"), ANSWERS)
def test_a_name_of_another_library_is_answered(algo: str, name: str, answer: str) -> None:
    config = get_algorithm_config(algo)
    for write in (
        lambda: config.training(**{name: 1}),
        lambda: config.update_from_dict({name: 1}),
    ):
        with pytest.raises(UnknownSettingError) as caught:
            write()
        assert f"'{name}'" in str(caught.value)
        assert answer in str(caught.value)


def test_reading_one_is_answered_too() -> None:
    config: Any = get_algorithm_config("PPO")
    with pytest.raises(AttributeError, match=r"Here it is training\(lr=...\)"):
        _ = config.learning_rate
    with pytest.raises(UnknownNameError, match=r"Here it is training\(lr=...\)"):
        config["learning_rate"]


def test_answers_are_settings_of_some_algorithm_and_names_are_of_none() -> None:
    known = {
        (table.group_by_setting[name].removesuffix("_settings"), name)
        for table in (
            get_algorithm_config_class(algo).get_name_table() for algo in list_algorithms()
        )
        for name in table.group_by_setting
    }
    for name, answers in SYNONYMS.items():
        assert {pair for answer in answers for pair in find_required_settings(answer)} <= known, (
            name
        )
    settings = {setting for _, setting in known}
    assert SYNONYMS.keys() & settings <= {"alpha", "gae_lambda", "lr"}, (
        "a setting that exists is not asked about"
    )


SETTINGS = sorted(get_algorithm_config("PPO").get_name_table().group_by_setting)
METHODS = [name for name in dir(Algorithm) if not name.startswith("_")]
SUGGESTIONS = [
    (SETTINGS, "clip_parm", "clip_param"),
    (SETTINGS, "lamda_", "lambda_"),
    (SETTINGS, "gmama", "gamma"),
    (SETTINGS, "lrr", "lr"),
    (SETTINGS, "Gamma", "gamma"),
    (SETTINGS, "train_batch", "train_batch_size"),
    (SETTINGS, "eval_interval", "evaluation_interval"),
    (SETTINGS, "num_envs_per_runner", "num_envs_per_env_runner"),
    (SETTINGS, "num_layers", None),
    (SETTINGS, "num_agents", None),
    (SETTINGS, "max_steps_total", None),
    (METHODS, "evalute", "evaluate"),
    (METHODS, "tarin", "train"),
    (METHODS, "get_weight", "get_weights"),
    (METHODS, "evaluate_everything", "evaluate"),
    (METHODS, "plot", None),
    (METHODS, "render", None),
    (METHODS, "policies", None),
    (["PPO", "MARWIL"], "MAML", None),
    (["PPO", "APPO", "MAPPO"], "PPPO", "PPO"),
    (["CartPole-v0", "CartPole-v1"], "CartPole-v9", "CartPole-v1"),
    (["CartPole-v1", "Acrobot-v1"], "cartpole", "CartPole-v1"),
    (["CartPole-v1", "Pendulum-v1"], "jaxrl:Pendulm-v1", "Pendulum-v1"),
    (["env_runners/episode_return_mean"], "episode_return_men", "env_runners/episode_return_mean"),
    (["x/return_min", "x/return_mean"], "return_men", "x/return_mean"),
    (["x"], "y", None),
    (["x"], "", None),
]


@pytest.mark.parametrize(("known", "written", "suggested"), SUGGESTIONS)
def test_a_suggestion_is_a_typo_or_the_beginning_of_a_name(
    known: list[str], written: str, suggested: str | None
) -> None:
    expected = "" if suggested is None else f" Did you mean '{suggested}'?"
    assert did_you_mean(written, known) == expected


@pytest.mark.parametrize("name", ["reward_model", "verbosity_of_it", "workers", "exploration"])
def test_a_far_name_gets_no_suggestion(name: str) -> None:
    with pytest.raises(UnknownSettingError) as caught:
        get_algorithm_config("PPO").update_from_dict({name: 1})
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "owner"),
    [("double_q", True, "DQN"), ("replay_buffer_config", {}, "DQN"), ("tau", 0.1, "APPO")],
)
def test_a_setting_of_another_algorithm_is_answered_with_its_name(
    name: str, value: object, owner: str
) -> None:
    with pytest.raises(UnknownSettingError, match=r"It is a setting of .* not of PPO") as caught:
        get_algorithm_config("PPO").training(**{name: value})
    found = re.findall(r"setting of (\w+)", str(caught.value))[0]
    assert name in get_algorithm_config_class(found).get_name_table().group_by_setting
    assert name in get_algorithm_config_class(owner).get_name_table().group_by_setting


def test_the_algorithms_that_others_derive_from_are_named_first() -> None:
    for name, owners in {
        "tau": "DQN, SAC, TD3, AWAC and others",
        "double_q": "DQN and SlateQ",
    }.items():
        with pytest.raises(UnknownSettingError, match=f"It is a setting of {owners}, not of PPO"):
            get_algorithm_config("PPO").training(**{name: 1})


def test_a_number_in_quotes_is_answered() -> None:
    with pytest.raises(ConfigError, match=r"got '3e-4'\. Write it without quotes, 3e-4\.$"):
        get_algorithm_config("PPO").training(lr="3e-4")
    with pytest.raises(ConfigError, match=r"got '1\.5'\.$"):
        get_algorithm_config("PPO").training(train_batch_size="1.5")


IMPORTS = {
    "from jaxrl import check_env": "from jaxrl.testing import check_env",
    "from jaxrl import make_vec_env": "num_envs_per_env_runner=8",
    "from jaxrl import make_train": "algo.runner.init",
    "from jaxrl.common.env_checker import check_env": "from jaxrl.testing import check_env",
    "from jaxrl.common.vec_env.subproc_vec_env import SubprocVecEnv": "num_envs_per_env_runner=8",
    "from jaxrl.wrappers import LogWrapper": "returns and lengths of episodes",
    "from jaxrl.wrappers import Something": "jaxrl.wrappers has no Something",
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_imports_of_other_libraries_are_answered(statement: str) -> None:
    with pytest.raises(ImportError, match=re.escape(IMPORTS[statement])):
        exec(statement)


def test_names_of_other_libraries_in_model_config_and_stop_are_answered() -> None:
    for name in ("net_arch", "hidden_sizes"):
        with pytest.raises(UnknownSettingError, match="Here it is 'fcnet_hiddens'"):
            resolve_model_settings({name: [64]})
    with pytest.raises(UnknownNameError, match="Here it is 'num_env_steps_sampled_lifetime'"):
        parse_stop({"total_timesteps": 100})


def test_methods_of_the_algorithm_are_answered_on_the_config() -> None:
    config: Any = get_algorithm_config("PPO")
    for name in ("train", "fit"):
        with pytest.raises(AttributeError, match=f"the Algorithm, which has {name}"):
            getattr(config, name)


def test_a_mistyped_method_is_answered_with_the_method() -> None:
    config: Any = get_algorithm_config("PPO")
    with pytest.raises(AttributeError, match="Did you mean 'environment'"):
        config.environemnt("CartPole-v1")
    with pytest.raises(AttributeError, match="Did you mean 'build'"):
        config.biuld()


def test_methods_of_other_libraries_are_answered() -> None:
    algorithm: Any = Algorithm.__new__(Algorithm)
    for name, instead in (METHOD_COUNTERPARTS | ATTRIBUTE_COUNTERPARTS).items():
        with pytest.raises(AttributeError) as caught:
            getattr(algorithm, name)
        assert instead in str(caught.value)
        assert not hasattr(Algorithm, name)
    with pytest.raises(AttributeError, match="Did you mean 'evaluate'"):
        _ = algorithm.evalute
    assert not hasattr(algorithm, "_nothing")
