"""Getters of RLlib's configs: each by name, present or explained."""

from typing import Any

import pytest
from gymnasium import spaces

from jaxrl import A2CConfig, AlgorithmConfig, JaxrlError, PolicySpec, PPOConfig, RLModuleSpec
from jaxrl.errors import ConfigError


class Built:
    """Stands for an Algorithm, which would compile."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config


def config(algo_class: Any = None) -> Any:
    """16 environments x 250 steps."""
    return (
        PPOConfig(algo_class)
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=16)
        .training(train_batch_size=4000, minibatch_size=500)
    )


def test_build_takes_an_env_and_a_copy() -> None:
    given = config(Built)
    built: Any = given.build("Pendulum-v1")
    assert isinstance(built, Built)
    assert built.config["env"] == "Pendulum-v1"
    assert given["env"] == "CartPole-v1"
    assert given.build(use_copy=False).config is given


def test_build_algo_is_build() -> None:
    assert config(Built).build_algo(env="Acrobot-v1").config["env"] == "Acrobot-v1"


def test_build_refuses_a_logger_creator_in_rllibs_place() -> None:
    with pytest.raises(ConfigError, match=r"logger_creator.*debugging\(loggers="):
        config(Built).build(None, print)
    with pytest.raises(ConfigError, match=r"logger_creator.*debugging\(loggers="):
        config(Built).build_algo(logger_creator=print)
    assert isinstance(config(Built).build(None, None, False), Built)


def test_total_train_batch_size() -> None:
    assert config().total_train_batch_size == 4000
    assert PPOConfig().total_train_batch_size == PPOConfig().plan().train_batch_size


def test_get_rollout_fragment_length() -> None:
    assert config().get_rollout_fragment_length() == 250
    assert config().get_rollout_fragment_length(worker_index=3) == 250
    fixed = PPOConfig().env_runners(num_envs_per_env_runner=4, rollout_fragment_length=32)
    assert fixed.get_rollout_fragment_length() == 32


def test_validate_train_batch_size_vs_rollout_fragment_length() -> None:
    config().validate_train_batch_size_vs_rollout_fragment_length()
    with pytest.raises(ConfigError, match="rollout_fragment_length"):
        config().env_runners(
            rollout_fragment_length=190
        ).validate_train_batch_size_vs_rollout_fragment_length()


def test_get_evaluation_config_object() -> None:
    overrides = {"explore": False, "env": "Acrobot-v1", "env_config": {"a": 1}}
    given = config().evaluation(evaluation_config=overrides)
    changed = given.get_evaluation_config_object()
    assert changed.env_config == {"a": 1}
    assert given.explore
    assert changed["explore"] is False
    assert changed["env"] == "Acrobot-v1"
    assert changed["lr"] == given["lr"]
    assert changed.in_evaluation
    assert changed.get_evaluation_config_object() is None


def test_the_default_module_spec_is_empty() -> None:
    assert config().get_default_rl_module_spec() == RLModuleSpec()


def test_learner_classes() -> None:
    default = config().get_default_learner_class()
    assert config().get_learner_class() is default
    own = type("Own", (default,), {})
    assert config().learners(learner_class=own).get_learner_class() is own
    assert issubclass(A2CConfig().get_learner_class(), object)
    with pytest.raises(ConfigError, match="belongs to no algorithm"):
        AlgorithmConfig().get_learner_class()


def test_is_multi_agent() -> None:
    assert not config().is_multi_agent
    assert config().is_multi_agent() is False
    several: Any = PPOConfig().environment("RockPaperScissors-v0").is_multi_agent
    assert several
    assert several() is True
    assert repr(several) == "True"


def test_a_former_getter_for_several_agents_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match=r"'get_marl_module_spec': get_multi_rl_module_spec"):
        config().get_marl_module_spec(env=None)


def test_the_setup_of_several_agents_is_complete() -> None:
    given = config().environment("CartPole-v1")
    given.multi_agent(policies={"pol1", "pol2"}, policies_to_train=["pol1"])
    policies, is_policy_to_train = given.get_multi_agent_setup()
    assert set(policies) == {"pol1", "pol2"}
    assert policies["pol2"].observation_space.shape == (4,)
    assert policies["pol1"].action_space == spaces.Discrete(2)
    assert policies["pol1"].config == {}
    assert (is_policy_to_train("pol1"), is_policy_to_train("pol2", None)) == (True, False)

    game = config().environment("RockPaperScissors-v0")
    own = {"a": PolicySpec(config={"lr": 0.5}), "b": (None, None, None, {})}
    game.multi_agent(policies=own, mapping={"player_0": "a", "player_1": "b"})
    policies, is_policy_to_train = game.get_multi_agent_setup()
    assert policies["a"].config == {"lr": 0.5}
    assert policies["b"].action_space == spaces.Discrete(3)
    assert is_policy_to_train("b")
    single, _ = config().get_multi_agent_setup(env="Pendulum-v1")
    assert single["default_policy"].action_space.shape == (1,)
    with pytest.raises(ConfigError, match="env is not set"):
        PPOConfig().get_multi_agent_setup()


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"_disable_preprocessor_api": True, "_disable_action_flattening": True},
        {"_disable_initialize_loss_from_dummy_batch": True, "_disable_execution_plan_api": True},
        {"_enable_new_api_stack": True, "_enable_rl_module_api": True},
        {"_tf_policy_handles_more_than_one_loss": True, "_use_msgpack_checkpoints": False},
        {"_validate_config": True, "_torch_grad_scaler_class": None},
    ],
)
def test_experimental_accepts_what_happens_anyway(switches: dict[str, Any]) -> None:
    given = config()
    before = given.to_dict()
    assert given.experimental(**switches) is given
    assert given.to_dict() == before


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("_disable_preprocessor_api", 3),
        ("_env_runners_only", True),
        ("_enable_new_api_stack", False),
        ("_use_msgpack_checkpoints", True),
        ("_torch_grad_scaler_class", int),
        ("_no_such_switch", True),
    ],
)
def test_experimental_refuses_what_does_not_happen(switch: str, value: Any) -> None:
    with pytest.raises(JaxrlError, match=switch):
        config().experimental(**{switch: value})
