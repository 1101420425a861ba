"""The life of a config: set, read, copy, freeze, to and from dictionaries."""

import copy
import dataclasses
import logging
from typing import Any

import gymnasium
import pytest

from jaxrl import (
    Algorithm,
    AlgorithmConfig,
    DQNConfig,
    JaxrlError,
    PPOConfig,
    RLModule,
    RLModuleSpec,
)
from jaxrl.config import OnPolicyTraining, field, fluent, get_algorithm_config
from jaxrl.config.names import GROUP_METHODS
from jaxrl.core.hparams import Traced
from jaxrl.errors import ConfigError, UnknownNameError
from jaxrl.modules.model_config import DefaultModelConfig


def test_methods_return_the_config_and_set_only_what_was_given() -> None:
    config = PPOConfig()
    same = config.environment("CartPole-v1").training(lr=3e-4).evaluation(evaluation_interval=2)
    assert same is config
    assert config.environment_settings.env == "CartPole-v1"
    assert config.training_settings.lr == 3e-4
    assert config.training_settings.clip_param == PPOConfig.training_settings.clip_param
    assert config.explicit == {"env", "lr", "evaluation_interval"}


def test_configs_do_not_share_values() -> None:
    first, second = PPOConfig(), PPOConfig()
    first.environment_settings.env_config["gravity"] = 1.0
    first.training(lr=1.0)
    assert second.env_config == {}
    assert PPOConfig().env_config == {}
    assert second.lr == PPOConfig.training_settings.lr


def test_settings_are_copied_in() -> None:
    mine = {"gravity": 1.0}
    config = PPOConfig().environment(env_config=mine)
    mine["gravity"] = 2.0
    assert config.env_config == {"gravity": 1.0}


@pytest.mark.parametrize("name", ["lr", "gamma", "env", "num_envs_per_env_runner", "seed"])
def test_flat_reads(name: str) -> None:
    config = PPOConfig()
    assert getattr(config, name) == config[name] == config.get(name) == dict(config.items())[name]
    assert name in config
    assert name in list(config)


def test_old_names_read_too() -> None:
    config = PPOConfig().training(lambda_=0.9)
    assert config["lambda"] == 0.9
    assert config["num_workers"] == config["num_env_runners"] == 0


def test_unknown_names_read_as_in_a_dict() -> None:
    config = PPOConfig()
    assert config.get("no_such", 7) == 7
    assert "no_such" not in config
    assert not hasattr(config, "no_such")
    with pytest.raises(UnknownNameError):
        config["no_such"]


def test_assignment_is_checked_like_the_method() -> None:
    config = PPOConfig()
    config.lr = 1
    assert config.training_settings.lr == 1.0
    assert isinstance(config.training_settings.lr, float)
    with pytest.raises(ConfigError, match="gamma must be between 0 and 1"):
        config.gamma = 2
    with pytest.raises(JaxrlError, match="Did you mean 'gamma'"):
        config.gama = 0.9


def test_a_group_can_be_assigned() -> None:
    config = PPOConfig()
    config.training_settings = dataclasses.replace(config.training_settings, gamma=0.5)
    assert config.gamma == 0.5
    assert config.explicit == {"gamma"}
    with pytest.raises(ConfigError, match="training_settings must be a PPOTraining"):
        config.training_settings = OnPolicyTraining()


def test_frozen_configs_name_the_attribute() -> None:
    config = PPOConfig()
    config.freeze()
    for change in (
        lambda: config.training(lr=1e-3),
        lambda: setattr(config, "lr", 1e-3),
        lambda: config.update_from_dict({"lr": 1e-3}),
    ):
        with pytest.raises(ConfigError, match=r"'lr'.*frozen.*copy_frozen=False"):
            change()


def test_copies() -> None:
    config = PPOConfig().training(lr=1e-4, num_sgd_iter=3)
    config.freeze()
    assert config.copy().is_frozen
    assert copy.deepcopy(config).is_frozen
    thawed = config.copy(copy_frozen=False).training(lr=1.0)
    assert config.lr == 1e-4
    assert thawed.explicit == config.explicit
    assert thawed.notes == config.notes
    assert PPOConfig().copy(copy_frozen=True).is_frozen


def test_validate_changes_nothing() -> None:
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=4000)
    config.evaluation(evaluation_interval=1, evaluation_config={"explore": False})
    before = config.to_dict()
    config.validate()
    config.validate()
    assert config.to_dict() == before


def test_dictionaries_keep_what_is_explicit() -> None:
    config = PPOConfig().training(train_batch_size=4000)
    again = PPOConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert again.plan() == config.plan()
    explicit = PPOConfig.from_dict({"train_batch_size": 4000, "minibatch_size": 128})
    assert (again.plan().minibatch_size, explicit.plan().minibatch_size) == (125, 128)


def test_dictionaries_may_be_grouped() -> None:
    config = PPOConfig.from_dict({"training": {"lr": 1e-4}, "env_runners": {"explore": False}})
    assert (config.lr, config.explore) == (1e-4, False)
    with pytest.raises(JaxrlError, match="setting of training"):
        PPOConfig.from_dict({"env_runners": {"lr": 1e-4}})


def test_overrides_are_checked() -> None:
    assert PPOConfig.overrides(lr=1, num_sgd_iter=2) == {"lr": 1.0, "num_epochs": 2}
    with pytest.raises(JaxrlError, match="Did you mean 'lr'"):
        PPOConfig.overrides(lrr=1)


def test_old_names_are_accepted_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="jaxrl.config"):
        config = PPOConfig().training(num_sgd_iter=3, model={"post_fcnet_hiddens": [8]})
        config.training(num_sgd_iter=4).rollouts(num_rollout_workers=0)
        assert caplog.messages == []
        config.prepare()
        config.prepare()
        config.copy().prepare()
    assert config.num_epochs == 4
    assert config.rl_module_settings.model_config == {"post_fcnet_hiddens": [8]}
    assert caplog.messages == config.notes
    assert "".join(caplog.messages) == (
        "Old names were accepted: 'num_sgd_iter' is now training(num_epochs=...), 'model' is now "
        "rl_module(model_config=...), 'num_rollout_workers' is now "
        "env_runners(num_env_runners=...), 'post_fcnet_hiddens' is now "
        "model_config['head_fcnet_hiddens']."
    )
    with caplog.at_level(logging.WARNING, logger="jaxrl.config"):
        config.training(sgd_minibatch_size=8).prepare()
    assert len(caplog.messages) == 2
    assert "num_sgd_iter" not in caplog.messages[1]
    assert "'sgd_minibatch_size' is now training(minibatch_size=...)" in caplog.messages[1]


def test_dictionaries_keep_the_algorithms_class() -> None:
    class Mine(Algorithm):
        """With a training_step of its own."""

    data = PPOConfig(algo_class=Mine).to_dict()
    assert PPOConfig.from_dict(data).algo_class is Mine
    assert "algo_class" not in PPOConfig().to_dict()


def test_gymnasiums_words_are_understood() -> None:
    config = PPOConfig().env_runners(gym_env_vectorize_mode=gymnasium.VectorizeMode.ASYNC)
    assert config.gym_env_vectorize_mode == "async"


def test_old_names_of_processes() -> None:
    config = PPOConfig().resources(num_cpus_per_worker=2, num_cpus_for_driver=3)
    config.fault_tolerance(recreate_failed_workers=False, ignore_worker_failures=True)
    assert (config.num_cpus_per_env_runner, config.num_cpus_for_main_process) == (2.0, 3.0)
    assert not config.restart_failed_env_runners
    assert config.ignore_env_runner_failures


def test_what_is_changed_in_a_dictionary_is_explicit() -> None:
    settings = {**PPOConfig().to_dict(), "train_batch_size": 512}
    for config in (PPOConfig.from_dict(settings), PPOConfig().update_from_dict(settings)):
        assert config.explicit == {"train_batch_size"}
    assert PPOConfig.from_dict(PPOConfig().to_dict()).explicit == frozenset()


def test_an_explicit_ignore_takes_the_place_of_the_default_restart() -> None:
    config = PPOConfig()
    assert config.fault_tolerance_settings.should_restart_env_runners
    config.fault_tolerance(ignore_env_runner_failures=True)
    config.validate()
    assert not config.fault_tolerance_settings.should_restart_env_runners


@pytest.mark.parametrize(
    ("clip", "is_atari", "atari", "expected"),
    [
        (None, None, True, True),
        (None, None, False, None),
        (None, False, True, None),
        (None, True, False, True),
        (False, None, True, False),
        (2.0, True, True, 2.0),
    ],
)
def test_rewards_are_clipped_for_atari_only(
    clip: Any, is_atari: Any, atari: bool, expected: Any
) -> None:
    config = PPOConfig().environment(clip_rewards=clip, is_atari=is_atari)
    found = config.environment_settings.resolve_clip_rewards(is_atari_id=atari)
    assert (found, type(found)) == (expected, type(expected))


def test_schedules_under_old_names() -> None:
    config = PPOConfig.from_dict({"lr": 0.1, "entropy_coeff_schedule": [[0, 0.1], [9, 0]]})
    assert config.entropy_coeff == [[0.0, 0.1], [9.0, 0.0]]
    assert PPOConfig.from_dict({"lr": 0.1, "lr_schedule": None}).lr == 0.1


def test_values_that_say_what_happens_anyway_are_accepted() -> None:
    config = PPOConfig().framework("jax").api_stack(enable_rl_module_and_learner=True)
    config.env_runners(
        num_gpus_per_env_runner=0,
        create_env_on_local_worker=False,
        merge_env_runner_states="training_only",
        broadcast_env_runner_states=True,
    )
    assert config.explicit == set()


def test_numbers_become_the_settings_type() -> None:
    config = PPOConfig.from_dict({"train_batch_size": 4e3, "gamma": 1, "clip_rewards": [-1, 1]})
    assert config.train_batch_size == 4000
    assert isinstance(config.train_batch_size, int)
    assert isinstance(config.gamma, float)
    assert config.clip_rewards == (-1.0, 1.0)


class MyModule(RLModule):
    """A custom module."""


def test_module_settings_are_merged() -> None:
    config = PPOConfig().rl_module(model_config={"fcnet_hiddens": [32], "post_fcnet_hiddens": [8]})
    spec = config.get_rl_module_spec("obs", "act")
    assert (spec.observation_space, spec.action_space) == ("obs", "act")
    assert spec.model_config == {"fcnet_hiddens": [32], "head_fcnet_hiddens": [8]}
    assert "post_fcnet_hiddens" in config.explain()
    whole = DefaultModelConfig(fcnet_hiddens=[4])
    assert PPOConfig().rl_module(model_config=whole).get_rl_module_spec().model_config is whole


def test_custom_modules_get_their_settings_as_they_are() -> None:
    spec = RLModuleSpec(module_class=MyModule, model_config={"width": 3, "depth": 1})
    config = PPOConfig().rl_module(rl_module_spec=spec, model_config={"width": 5})
    config.validate()
    assert config.get_rl_module_spec().model_config == {"width": 5, "depth": 1}
    assert PPOConfig().rl_module(rl_module_spec=MyModule).get_rl_module_spec().module_class is (
        MyModule
    )
    with pytest.raises(ConfigError, match="rl_module_spec must be an RLModuleSpec"):
        PPOConfig().rl_module(rl_module_spec=3).validate()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyTraining(OnPolicyTraining):
    """Settings of an algorithm of a user's."""

    strength: Traced[float] = field(default=0.5, doc="How strong.")
    num_epochs: int = field(default=2, doc="Fewer.")


class TinyConfig(AlgorithmConfig):
    """A config of a user's."""

    algo_name = "Tiny"
    training_settings: TinyTraining = TinyTraining(lr=0.25)
    training = fluent("training_settings", TinyTraining)


def test_subclasses_bring_settings_and_defaults() -> None:
    config = TinyConfig().training(strength=1.0)
    assert (config.strength, config.lr, config.num_epochs) == (1.0, 0.25, 2)
    assert "strength" not in PPOConfig()
    with pytest.raises(ConfigError, match="TinyConfig belongs to no algorithm"):
        config.get_learner_class()


def test_learner_class() -> None:
    class MyLearner(PPOConfig().get_default_learner_class()):
        """A custom loss."""

    assert PPOConfig().learners(learner_class=MyLearner).get_learner_class() is MyLearner
    moved = PPOConfig().training(learner_class=MyLearner)
    assert moved.get_learner_class() is MyLearner
    assert "learners(learner_class=...)" in moved.notes[0]


def test_methods_are_no_settings() -> None:
    assert not set(dir(AlgorithmConfig)) & set(get_algorithm_config("PPO").keys())


def test_groups_have_their_methods() -> None:
    for attribute, method in GROUP_METHODS.items():
        assert getattr(AlgorithmConfig, method).attribute == attribute
        assert getattr(PPOConfig(), method)() is not None


def test_an_old_name_in_a_dict_of_all_settings_replaces_the_current_one() -> None:
    """As RLlib's scripts write it; two values that are both given contradict each other."""
    settings = PPOConfig().to_dict()
    settings |= {"num_workers": 0, "sgd_minibatch_size": 64}
    config = PPOConfig().update_from_dict(settings)
    assert (config.num_env_runners, config.minibatch_size) == (0, 64)
    for settings in (
        {"minibatch_size": 32, "sgd_minibatch_size": 64},
        {"num_sgd_iter": 3, "sgd_minibatch_size": 64, "minibatch_size": 32},
    ):
        with pytest.raises(ConfigError, match=r"are the same setting, got .*set only minibatch"):
            PPOConfig().update_from_dict(settings)
    with pytest.raises(ConfigError, match="are the same setting"):
        PPOConfig().training(minibatch_size=128, sgd_minibatch_size=64)


def test_former_keys_of_replay_buffers_are_the_current_ones() -> None:
    """Those of RLlib's configs before its episode replay buffers."""
    former = {
        "type": "MultiAgentPrioritizedReplayBuffer",
        "capacity": 700,
        "prioritized_replay_alpha": 0.5,
        "prioritized_replay_beta": 0.3,
        "prioritized_replay_eps": 1e-6,
        "replay_sequence_length": 1,
        "storage_unit": "timesteps",
        "worker_side_prioritization": False,
    }
    config = DQNConfig().environment("CartPole-v1").training(replay_buffer_config=former)
    settings = config.get_buffer_settings()
    found = (settings.kind, settings.capacity, settings.alpha, settings.beta)
    assert found == ("prioritized", 700, 0.5, 0.3)
    for wrong, answer in (
        ({"learning_starts": 9}, "is now .*num_steps_sampled_before_learning_starts"),
        ({"replay_zero_init_states": True}, r"is now training\(zero_init_states=...\)"),
        ({"replay_sequence_length": 20}, "is now model_config's max_seq_len"),
        ({"storage_unit": "fragments"}, "can only be 'timesteps', got 'fragments'"),
        ({"alpha": 0.5, "prioritized_replay_alpha": 0.5}, "set only 'alpha'"),
    ):
        with pytest.raises(ConfigError, match=answer):
            config.copy().training(replay_buffer_config=wrong).get_buffer_settings()
