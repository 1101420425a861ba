"""Names of RLlib's objects: the same meaning, or one sentence that says what to write."""

from pathlib import Path
from typing import Any

import pytest

from jaxrl import PPOConfig
from jaxrl.algorithm import Algorithm
from jaxrl.errors import UnknownSettingError
from tests.helpers import small


@pytest.fixture(scope="module")
def algorithm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = small().env_runners(placement="host")
    config.debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as built:
        yield built


@pytest.mark.parametrize(
    ("old", "new"),
    [("workers", "env_runner_group"), ("logdir", "run_dir"), ("training_iteration", "iteration")],
)
def test_an_old_name_of_an_algorithm_is_the_new_one(
    algorithm: Algorithm, old: str, new: str
) -> None:
    with pytest.warns(DeprecationWarning, match=f"Algorithm.{old} is {new} here"):
        assert getattr(algorithm, old) == getattr(algorithm, new)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("get_config", "algorithm.config"),
        ("add_policy", "multi-agent"),
        ("export_policy_model", r"save\(path\)"),
        ("step", r"train\(\)"),
        ("reset_config", "build another"),
    ],
)
def test_other_names_say_what_to_write(algorithm: Algorithm, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=f"Algorithm has no '{name}': .*{advice}"):
        getattr(algorithm, name)
    assert not hasattr(algorithm, "nothing_of_this_name")


def test_policies_and_groups_of_runners_answer_too(algorithm: Algorithm) -> None:
    with pytest.raises(AttributeError, match=r"use algorithm.get_weights\(\)"):
        algorithm.get_policy().get_weights()  # pyright: ignore[reportAttributeAccessIssue]
    group: Any = algorithm.env_runner_group
    with pytest.raises(AttributeError, match="foreach_env_runner"):
        group.local_worker()
    with pytest.warns(DeprecationWarning, match="foreach_worker is foreach_env_runner"):
        assert group.foreach_worker(lambda runner: runner.num_envs) == [16]
    assert group.foreach_env_runner_with_index(lambda i, runner: i) == [(0, 0)]
    assert group.num_healthy_env_runners == 1


def test_a_saved_path_is_a_string_and_a_result_of_rllib(
    algorithm: Algorithm, tmp_path: Path
) -> None:
    algorithm.train()
    saved: Any = algorithm.save(str(tmp_path))
    assert saved.checkpoint.path == saved == str(saved)
    assert Path(saved.checkpoint.to_directory()).is_dir()


def test_settings_are_assigned_by_name() -> None:
    config = PPOConfig()
    config["lr"] = 0.25
    config["num_sgd_iter"] = 3
    assert (config.lr, config.num_epochs) == (0.25, 3)
    with pytest.raises(UnknownSettingError, match="Did you mean 'gamma'"):
        config["gama"] = 0.9


def test_old_names_of_a_config() -> None:
    config = PPOConfig().training(lr=0.5)
    with pytest.warns(DeprecationWarning, match="PPOConfig.serialize is to_dict"):
        assert config.serialize() == config.to_dict()
    with pytest.raises(AttributeError, match=r"to_dict\(\) returns a dictionary"):
        config.pop("lr")
