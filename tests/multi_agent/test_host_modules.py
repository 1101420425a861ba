"""Modules that are added to runs whose environments are in Python, or trained from now on."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, RLModuleSpec
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.errors import ConfigError, ModuleError, UnknownNameError
from tests.multi_agent.host_envs import Takeaway
from tests.multi_agent.test_host_training import MAPPING, get_leaves, make_config

calls = {"number": 0}


def choose_old(agent_id: str, episode: Any, **kwargs: Any) -> str:
    return MAPPING[agent_id]


def choose_new(agent_id: str, episode: Any, **kwargs: Any) -> str:
    """Let `added` play the right agent in every other episode."""
    if agent_id == "left":
        return "one"
    calls["number"] += 1
    return "added" if calls["number"] % 2 else "two"


def copy_leaves(tree: Any) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(one: Any, other: Any) -> None:
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [{}, pytest.param({"use_lstm": True, "lstm_cell_size": 4}, marks=pytest.mark.slow)],
    ids=["no memory", "memory"],
)
def test_a_module_that_never_plays_changes_nothing_of_the_others(model: dict[str, Any]) -> None:
    with make_config(**model).build() as alone:
        alone.train()
        alone.train()
        expected = {m: copy_leaves(own.learner) for m, own in alone.state.modules.items()}
        steps = alone.train()["env_runners"]["num_agent_steps_sampled_lifetime"]
    with make_config(**model).build() as run:
        run.train()
        run.add_module("a_third", new_agent_to_module_mapping_fn=choose_old)
        run.train()
        for name, leaves in expected.items():
            assert_same(run.state.modules[name].learner, leaves)
        result = run.train()
    assert result["fault_tolerance"]["num_agent_steps_lost"] == 0
    assert result["env_runners"]["num_agent_steps_sampled_lifetime"] == steps
    sampled = result["env_runners"]["num_module_steps_sampled_lifetime"]
    assert sampled == {"a_third": 0, "one": steps["left"], "two": steps["right"]}


def test_a_module_that_was_added_plays_and_is_frozen_and_restored(tmp_path: Path) -> None:
    with make_config().build() as run:
        run.train()
        before = run.get_weights(["two"])["two"]
        run.add_module(
            "added",
            RLModuleSpec.from_module(run.get_module("two")),
            state=before,
            new_agent_to_module_mapping_fn=choose_new,
        )
        for _ in range(2):
            result = run.train()
        assert_same(run.get_weights(["added"])["added"], before)
        assert not np.array_equal(
            jax.tree.leaves(run.get_weights(["two"]))[0], jax.tree.leaves(before)[0]
        )
        assert result["env_runners"]["num_module_steps_sampled"]["added"] > 0
        assert set(result["learners"]) == {"one", "two", "__all_modules__"}
        path = run.save(str(tmp_path / "saved"))
        leaves = get_leaves(run)
    with Algorithm.from_checkpoint(path) as again:
        for one, other in zip(get_leaves(again), leaves, strict=True):
            np.testing.assert_array_equal(one, other)
        assert again.train()["env_runners"]["num_module_steps_sampled"]["added"] > 0
        assert_same(again.get_weights(["added"])["added"], before)


@pytest.mark.slow
def test_a_module_is_trained_if_it_is_asked_for() -> None:
    with make_config().build() as run:
        run.train()
        there = run.get_weights()
        run.add_module(
            "added",
            new_agent_to_module_mapping_fn=choose_new,
            new_should_module_be_updated=["one", "added"],
            config_overrides={"lr": 0.01},
        )
        before = run.get_weights()
        for name in ("one", "two"):
            assert_same(before[name], there[name])
        result = run.train()
        assert set(result["learners"]) == {"one", "added", "__all_modules__"}
        assert result["learners"]["added"]["curr_lr"] == pytest.approx(0.01)
        after = run.get_weights()
        assert_same(after["two"], before["two"])
        with pytest.raises(AssertionError):
            assert_same(after["added"], before["added"])


def test_a_module_that_joins_sees_as_another_and_rllibs_callbacks_let_it_play() -> None:
    config = make_config().env_runners(observation_filter="MeanStdFilter")
    with config.build() as run:
        run.train()
        run.add_module("added", new_agent_to_module_mapping_fn=choose_old)
        one, added = (run.state.modules[name] for name in ("one", "added"))
        assert float(jax.tree.leaves(one.connectors.obs)[0].sum()) != 0.0
        assert_same(added.connectors.obs, one.connectors.obs)
        assert_same(added.progress, one.progress)

        weights = run.get_module("one").get_state()
        run.set_state({"learner_group": {"learner": {"rl_module": {"added": weights}}}})
        assert_same(run.get_weights(["added"])["added"], weights)

        modules = run.env_runner.module
        changed = jax.tree.map(lambda x: x + 1, weights)
        modules["two"].set_state(changed)
        assert_same(modules.get_state()["two"], changed)
        run.learner_group.set_weights({"two": weights})
        run.env_runner_group.sync_weights(policies=["two"])
        assert_same(run.get_weights(["two"])["two"], weights)

        run.env_runner_group.foreach_env_runner(
            lambda env_runner: env_runner.config.multi_agent(
                policy_mapping_fn=choose_new, policies_to_train={"one", "added"}
            ),
            local_env_runner=True,
        )
        run.learner_group.foreach_learner(
            func=lambda learner: learner.config.multi_agent(policies_to_train={"one", "added"}),
            timeout_seconds=0.0,
        )
        for _ in range(2):
            result = run.train()
        assert set(result["learners"]) == {"one", "added", "__all_modules__"}
        assert result["env_runners"]["num_module_steps_sampled"]["added"] > 0
        assert run.config.policy_mapping_fn is choose_new
        with pytest.raises(ConfigError, match="frozen"):
            run.env_runner.config.env_runners(explore=False)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"module_id": "new"}, ConfigError, "never play.*new_agent_to_module_mapping_fn"),
    ({"module_id": "one"}, ConfigError, "is a module 'one' already"),
    ({"module_id": "a.b"}, ConfigError, "letters, digits"),
    (
        {"module_id": "new", "new_agent_to_module_mapping_fn": {"left": "new"}},
        ConfigError,
        "give a function",
    ),
    (
        {
            "module_id": "new",
            "new_agent_to_module_mapping_fn": choose_old,
            "new_should_module_be_updated": ["on"],
        },
        UnknownNameError,
        "Did you mean 'one'",
    ),
    (
        {
            "module_id": "new",
            "new_agent_to_module_mapping_fn": choose_old,
            "add_to_learners": False,
        },
        ConfigError,
        "add_to_learners=False",
    ),
    (
        {"module_id": "new", "new_agent_to_module_mapping_fn": lambda *_, **__: "neww"},
        ConfigError,
        "gives the agent .* the module 'neww'.*Did you mean 'new'",
    ),
    (
        {"module_id": "new", "new_agent_to_module_mapping_fn": choose_old, "state": {"a": 1}},
        ModuleError,
        "do not fit",
    ),
]


def test_what_cannot_change_says_why() -> None:
    with make_config().build() as run:
        for arguments, error, words in WRONG:
            with pytest.raises(error, match=words):
                run.add_module(**arguments)
        assert list(run.state.modules) == ["one", "two"]
        with pytest.raises(ConfigError, match="let policy_mapping_fn not choose"):
            run.remove_module("two")
        with pytest.raises(ModuleError, match="do not fit the module"):
            run.set_state({"learner_group": {"learner": {"rl_module": {"two": {}}}}})
        with pytest.raises(ConfigError, match="leave the rest out"):
            run.set_state({"learner_group": {"learner": {}}, "env_runner": {}})
    config = IMPALAConfig().environment(Takeaway).debugging(loggers=[])
    config.multi_agent(policies={"main"}, policy_mapping_fn=lambda aid, episode: "main")
    with (
        config.build() as run,
        pytest.raises(ConfigError, match="runners sample while it learns: use PPO"),
    ):
        run.add_module("new", new_agent_to_module_mapping_fn=lambda aid, episode: "new")


@pytest.mark.slow
def test_an_episode_keeps_the_function_with_which_it_began() -> None:
    """The second player is chosen after its first turn, perhaps when modules have changed."""
    config = PPOConfig().environment(Takeaway).debugging(loggers=[])
    config.env_runners(num_envs_per_env_runner=1, rollout_fragment_length=1)
    config.training(train_batch_size=1, minibatch_size=1, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    chosen: list[tuple[str, int]] = []

    def make(name: str) -> Any:
        def choose(agent_id: int, episode: Any, **kwargs: Any) -> str:
            if not hasattr(episode, "was_named"):  # of a trial before the run
                chosen.append((name, agent_id))
            return "main" if agent_id == 0 else "other"

        return choose

    config.multi_agent(policies={"main", "other"}, policy_mapping_fn=make("first"))
    config.multi_agent(mapping={"0": ["main", "other"], "1": ["main", "other"]})
    with config.build() as run:
        run.train()  # the first player's turn
        run.add_module("third", new_agent_to_module_mapping_fn=make("second"))
        for _ in range(6):
            run.train()
    assert chosen[:3] == [("first", 0), ("first", 1), ("second", 0)]
