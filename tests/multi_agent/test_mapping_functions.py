"""Functions that map agents to modules, over the life of a run: saved, replaced and called."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, RLModuleSpec
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.errors import ConfigError, ModuleError, UnknownNameError
from tests.multi_agent.test_host_training import MAPPING, make_config


def choose(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return MAPPING.get(str(agent_id), "one")


def make_host_config(function: Any = choose) -> PPOConfig:
    config = make_config().multi_agent(mapping=None, policies={"one", "two"})
    return config.multi_agent(policy_mapping_fn=function)


def make_jax_config() -> PPOConfig:
    config = PPOConfig().environment("MultiAgentCartPole-v0").debugging(loggers=[])
    config.env_runners(num_envs_per_env_runner=4).training(train_batch_size=16, minibatch_size=16)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.multi_agent(policies={"one"}, policy_mapping_fn=choose)


@pytest.mark.parametrize("make", [make_host_config, make_jax_config], ids=["python", "jax"])
def test_a_function_is_given_again_to_a_run_that_is_restored(make: Any, tmp_path: Path) -> None:
    with make().build() as run:
        path = run.save(str(tmp_path / "saved"))
        mapping = run.config.mapping
    with Algorithm.from_checkpoint(path, policy_mapping_fn=choose) as again:
        assert again.config.mapping == mapping


def test_a_function_without_import_path_that_is_fixed_is_saved_as_its_mapping(
    tmp_path: Path,
) -> None:
    with make_host_config(lambda agent_id, episode: MAPPING[agent_id]).build() as run:
        path = run.save(str(tmp_path / "saved"))
    with Algorithm.from_checkpoint(path) as again:
        assert again.config.mapping == MAPPING
        assert again.config.policy_mapping_fn is None


def test_a_function_that_answers_otherwise_later_is_told_of() -> None:
    current = {**MAPPING}
    with make_host_config(lambda agent_id, episode: current[agent_id]).build() as run:
        run.train()
        current["right"] = "one"
        words = r"'one', but it may be played by two.*mapping=\{'left': \['one'\], 'right': \['two', 'one'\]\}"
        with pytest.raises(ConfigError, match=words):
            run.train()


def test_a_function_that_is_set_in_a_run_of_a_fixed_mapping_is_saved(tmp_path: Path) -> None:
    with make_config().build() as run:
        run.env_runner_group.foreach_env_runner(
            lambda env_runner: env_runner.config.multi_agent(policy_mapping_fn=choose)
        )
        run.train()
        assert run.config.policy_mapping_fn is choose
        path = run.save(str(tmp_path / "saved"))
    with Algorithm.from_checkpoint(path) as again:
        assert again.config.policy_mapping_fn is choose


def play_one(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return "one"


def count_played(run: Algorithm) -> set[str]:
    """Return the modules that play in an evaluation."""
    returns = run.evaluate(num_episodes=2)["env_runners"]["module_episode_returns_mean"]
    return {module for module, mean in returns.items() if not np.isnan(mean)}


def test_evaluation_keeps_its_own_function_when_modules_change() -> None:
    config = make_config().multi_agent(mapping={agent: ["one", "two"] for agent in MAPPING})
    with config.multi_agent(policy_mapping_fn=choose).build() as run:
        run.env_runner_group.foreach_env_runner(
            lambda runner: runner.config.multi_agent(policy_mapping_fn=play_one)
        )
        assert count_played(run) == {"one", "two"}
        run.add_module("added", config_overrides={"lr": 0.01})
        assert run.config.policy_mapping_fn is play_one
        assert count_played(run) == {"one", "two"}
        run.eval_env_runner_group.foreach_env_runner(
            lambda runner: runner.config.multi_agent(policy_mapping_fn=play_one)
        )
        run.learner_group.foreach_learner(
            lambda learner: learner.config.multi_agent(policies_to_train=["one"])
        )
        run.env_runner_group.foreach_env_runner(
            lambda runner: runner.config.multi_agent(policy_mapping_fn=choose)
        )
        run._follow_changes()
        assert count_played(run) == {"one"}


class Adding(Algorithm):
    def training_step(self) -> Any:
        result = super().training_step()
        self.add_module("added", new_agent_to_module_mapping_fn=choose)
        return result


def test_a_module_joins_between_iterations() -> None:
    config = PPOConfig(algo_class=Adding)
    config.update_from_dict({n: make_config()[n] for n in make_config().explicit})
    with (
        config.build() as run,
        pytest.raises(ConfigError, match="iteration is not over: call it in on_train_result"),
    ):
        run.train()
    assert list(run.state.modules) == ["one", "two"]


def test_a_module_whose_weights_do_not_fit_does_not_join() -> None:
    with make_config().build() as run:
        config = run.config
        with pytest.raises(ModuleError, match="nope does not exist"):
            run.add_module(
                "added",
                RLModuleSpec(model_config={"fcnet_hiddens": [8]}),
                state={"nope": np.ones(1)},
                new_agent_to_module_mapping_fn=choose,
            )
        assert list(run.state.modules) == ["one", "two"]
        assert run.config is config


def test_a_function_with_rllibs_former_signature_is_called_without_a_worker() -> None:
    def choose_by_worker(agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
        assert worker is None
        return MAPPING[agent_id]

    with make_host_config(choose_by_worker).build() as run:
        assert set(run.evaluate(num_episodes=1)["env_runners"]["module_episode_returns_mean"]) == {
            "one",
            "two",
        }


def test_a_run_that_is_restored_may_train_other_modules(tmp_path: Path) -> None:
    with make_config().multi_agent(policies_to_train=["one"]).build() as run:
        run.set_weights(jax.tree.map(lambda x: x + 1, run.get_weights()))
        path = run.save(str(tmp_path / "saved"))
        weights = run.get_weights()
    with pytest.raises(UnknownNameError, match=r"^policies_to_train names 'tw'"):
        Algorithm.from_checkpoint(path, policies_to_train=["tw"])
    with Algorithm.from_checkpoint(path, policies_to_train=["two"]) as again:
        assert again.config.policies_to_train == ["two"]
        jax.tree.map(np.testing.assert_array_equal, again.get_weights(), weights)


def test_a_compiled_run_that_is_restored_trains_what_it_did(tmp_path: Path) -> None:
    config = make_jax_config().multi_agent(policies={"one", "two"}, policies_to_train=["one"])
    config.unset("policy_mapping_fn")
    with config.multi_agent(mapping={"0": "one", "1": "two"}).build() as run:
        path = run.save(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match=r"saved trains one.*component='rl_module'"):
        Algorithm.from_checkpoint(path, policies_to_train=["one", "two"])
    # In a new run, with the learners of some modules, the setting is the config's.
    new = Algorithm.from_checkpoint(path, policies_to_train=["one", "two"], policy_ids=["one"])
    assert new.config.policies_to_train is None  # all
    again = Algorithm.from_checkpoint(path, policies_to_train=["two"], component="rl_module")
    assert again.config.policies_to_train == ["two"]
