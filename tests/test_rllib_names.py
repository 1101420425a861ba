"""Names of RLlib's objects: the same meaning, or one sentence that says what to write."""

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from jaxrl import Algorithm, HostReplayBuffer, PPOConfig
from jaxrl.compat.lookup import RLlibNames
from jaxrl.errors import UnknownNameError, UnknownSettingError
from jaxrl.runs.checkpoint import SavedPath
from tests.helpers import small


@pytest.fixture(scope="module")
def algorithm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = small().env_runners(placement="host")
    config.debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as built:
        yield built


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("workers", "env_runner_group"),
        ("logdir", "run_dir"),
        ("training_iteration", "iteration"),
        ("add_policy", "add_module"),
        ("save_to_path", "save"),
        ("restore_from_path", "restore"),
    ],
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
        ("import_model", r"set_weights\("),
        ("step", r"train\(\)"),
        ("reset_config", "build another"),
    ],
)
def test_other_names_say_what_to_write(algorithm: Algorithm, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=f"Algorithm has no '{name}': .*{advice}"):
        getattr(algorithm, name)
    assert not hasattr(algorithm, "nothing_of_this_name")


def test_policies_and_groups_of_runners_answer_too(algorithm: Algorithm) -> None:
    policy: Any = algorithm.get_policy()
    with pytest.raises(AttributeError, match=r"variables\(\) returns copies"):
        policy.model.parameters()
    with pytest.raises(AttributeError, match=r"numpy.savez\(path"):
        policy.model.base_model.save_weights("weights.h5")
    with pytest.raises(AttributeError, match=r"use algorithm\.set_weights"):
        policy.set_weights({})
    with pytest.warns(DeprecationWarning, match="get_initial_state is initial_state"):
        assert policy.get_initial_state() is None
    group: Any = algorithm.env_runner_group
    assert group.local_worker() is group.local_env_runner
    assert group.foreach_worker_with_id(lambda i, runner: (i, runner.num_envs)) == [(0, 16)]
    with pytest.warns(DeprecationWarning, match="foreach_worker is foreach_env_runner"):
        assert group.foreach_worker(lambda runner: runner.num_envs) == [16]
    assert group.foreach_env_runner_with_index(lambda i, runner: i) == [(0, 0)]
    assert group.num_healthy_env_runners == 1


def test_results_have_all_that_rllib_adds_and_files_do_not(
    algorithm: Algorithm, tmp_path: Path
) -> None:
    first: Any = algorithm.train()
    added = {
        *("config", "done", "trial_id", "node_ip", "perf"),
        *("iterations_since_restore", "time_since_restore"),
    }
    assert all(key in first for key in added)
    assert first["config"]["lr"] == algorithm.config.lr
    assert first["config"] is first.get("config")
    assert (first["done"], first["trial_id"]) == (False, "default")
    assert {"cpu_util_percent"} <= first["perf"].keys()
    assert first["iterations_since_restore"] == algorithm.iteration
    assert first["time_since_restore"] == first["time_total_s"]
    algorithm.restore(algorithm.save(str(tmp_path)))
    second: Any = algorithm.train()
    assert second["iterations_since_restore"] == 1
    assert 0 < second["time_since_restore"] < second["time_total_s"]
    assert second.pop("config")["lr"] == algorithm.config.lr
    assert "config" not in second
    assert second.pop("config", None) is None
    del second["done"]
    with pytest.raises(KeyError, match="no 'done'"):
        second.pop("done")
    lines = (algorithm.run_folder.path / "result.json").read_text().splitlines()
    assert len(lines) >= 2
    assert not added & json.loads(lines[-1]).keys()


def test_old_keys_of_results_are_in_them(algorithm: Algorithm) -> None:
    result: Any = algorithm.train()
    assert "episode_reward_mean" in result
    assert "episode_reward_mean" in result["sampler_results"]
    assert "episode_reward_mean" not in list(result)
    assert "episode_reward_std" not in result
    assert result.pop("timesteps_total") == result["num_env_steps_sampled_lifetime"]
    with pytest.raises(KeyError, match="on_episode_end callback"):
        result.pop("hist_stats")


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


def test_pop_returns_what_the_config_keeps() -> None:
    config = PPOConfig().training(lr=0.5)
    assert config.pop("lr") == config.lr == 0.5
    assert config.pop("num_workers", 3) == config.num_env_runners
    assert config.pop("nothing_of_this_name", None) is None
    with pytest.raises(UnknownNameError, match="Did you mean 'gamma'"):
        config.pop("gama")
    with pytest.raises(AttributeError, match=r"build\(\) makes the pipelines"):
        config.build_learner_connector()


class Unlisted(RLlibNames):
    """Object whose names must not be listed, which takes long beside the answer to a probe."""

    def __dir__(self) -> NoReturn:
        raise AssertionError("names were listed")


@pytest.mark.parametrize("kind", ["algorithm", "policy", "runner_group"])
@pytest.mark.parametrize("name", ["_repr_html_", "__deepcopy__", "_worker"])
def test_a_name_with_an_underscore_is_missing_at_once(kind: str, name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(type("Own", (Unlisted,), {"_rllib_kind": kind})(), name)
    assert str(caught.value) == name


@pytest.mark.parametrize("dumper", ["SafeDumper", "Dumper", "CSafeDumper", "CDumper"])
def test_a_saved_path_is_written_to_yaml_as_a_string(dumper: str) -> None:
    if not hasattr(yaml, dumper):
        pytest.skip("PyYAML was built without libyaml")
    document = {"path": SavedPath("runs/checkpoint_000001")}
    text = yaml.dump(document, Dumper=getattr(yaml, dumper))
    assert text == "path: runs/checkpoint_000001\n"


def test_a_saved_path_is_the_string_everywhere_else() -> None:
    plain = "runs/checkpoint_000001"
    path = SavedPath(plain)
    assert path == plain
    assert hash(path) == hash(plain)
    assert json.dumps(path) == json.dumps(plain)
    assert Path(path) == Path(plain)
    assert os.fspath(path) == plain
    for other in (copy.copy(path), copy.deepcopy(path), pickle.loads(pickle.dumps(path))):
        assert other == plain
        assert other.checkpoint.path == plain


def test_pieces_of_a_training_step_have_other_names() -> None:
    from jaxrl.utils.replay_buffers import ReplayBuffer  # type: ignore[import-not-found]

    assert ReplayBuffer is HostReplayBuffer
    with pytest.raises(ImportError, match=r"self\.sample\(\), see the guide Training steps"):
        from jaxrl.execution.rollout_ops import synchronous_parallel_sample  # type: ignore # noqa: F401
    with small().build() as algorithm:
        with pytest.raises(AttributeError, match=r"add_to_buffer\(batch\) stores a batch"):
            _ = algorithm.local_replay_buffer
        with pytest.raises(AttributeError, match=r"algorithm\.sample\(\) returns a train batch"):
            algorithm.env_runner_group.sample()
