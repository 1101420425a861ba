"""Names of Stable-Baselines3, CleanRL and PureJaxRL are answered with the ones here."""

import re
from typing import Any

import pytest

from jaxrl.algorithm import Algorithm
from jaxrl.config.registry import get_algorithm_config, get_algorithm_config_class, list_algorithms
from jaxrl.config.stop import parse_stop
from jaxrl.config.synonyms import METHOD_COUNTERPARTS, SYNONYMS, find_required_settings
from jaxrl.errors import UnknownNameError, UnknownSettingError
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
    assert SYNONYMS.keys() & settings <= {"lr"}, "a setting that exists is not asked about"


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
    (found,) = re.findall(r"setting of (\w+),", str(caught.value))
    assert name in get_algorithm_config_class(found).get_name_table().group_by_setting
    assert name in get_algorithm_config_class(owner).get_name_table().group_by_setting


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
    for name, instead in METHOD_COUNTERPARTS.items():
        with pytest.raises(AttributeError) as caught:
            getattr(algorithm, name)
        assert instead in str(caught.value)
        assert not hasattr(Algorithm, name)
    with pytest.raises(AttributeError, match="Did you mean 'evaluate'"):
        _ = algorithm.evalute
    assert not hasattr(algorithm, "_nothing")
