"""Opponents that are added to a run and removed from it, while nothing is compiled again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, DQNConfig, Draw, PPOConfig, RandomRLModule, RLModuleSpec, Seats
from jaxrl.core.struct import replace
from jaxrl.core.types import Counter, PyTree
from jaxrl.errors import ConfigError, JaxrlError, ModuleError, UnknownNameError
from jaxrl.evaluation.pairings import _group
from jaxrl.policy.league import find_opponents
from jaxrl.training.opponents import decode_names

OBS = np.zeros(2, np.float32)


def make_config(**settings: Any) -> PPOConfig:
    """8 environments x 16 steps, of episodes of 8 steps; resumed by a fresh process, too."""
    config = (
        PPOConfig()
        .environment("tests.multi_agent.agent_envs:Targets")
        .env_runners(num_envs_per_env_runner=8, observation_filter="MeanStdFilter")
        .training(train_batch_size=80, minibatch_size=40, num_epochs=2, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(loggers=[], seed=3)
    )
    default: dict[str, Any] = {
        "policies": {"main": None, "random": RandomRLModule},
        "policies_to_train": ["main"],
        "mapping": Seats("main", Draw()),
        "policy_map_capacity": 3,
    }
    return config.multi_agent(**{**default, **settings})


def get_opponent(algorithm: Algorithm, name: str) -> PyTree:
    """Everything that an opponent plays with, as NumPy copies."""
    opponents = algorithm.state.opponents
    slot = decode_names(np.asarray(opponents.names)).index(name)
    return jax.tree.map(lambda x: np.array(x[slot]), opponents.actors["main"])


def list_weights(algorithm: Algorithm) -> dict[str, float]:
    """Weight of every opponent in the only Draw."""
    opponents = algorithm.state.opponents
    names, weights = decode_names(np.asarray(opponents.names)), np.asarray(opponents.weights)[0]
    assert all(weight == 0.0 for name, weight in zip(names, weights, strict=True) if not name)
    return {name: float(w) for name, w in zip(names, weights, strict=True) if name}


def list_playing(algorithm: Algorithm) -> list[int]:
    """Slot of the opponent in each copy of the environment; -1 between two episodes."""
    state = algorithm.state
    slots, lengths = np.asarray(state.carry.opponents.slot), np.asarray(state.env.episode_length)
    return np.where(lengths > 0, slots, -1).tolist()


def assert_same(one: PyTree, other: PyTree) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Algorithm, Any]]:
    """A run, and its state before it was trained."""
    with make_config().build() as algorithm:
        yield algorithm, algorithm.get_state()


@pytest.fixture
def algorithm(built: tuple[Algorithm, Any]) -> Algorithm:
    """The run that all tests share, as it was before it was trained."""
    run, state = built
    run.set_state(state)
    run.set_mapping(Seats("main", Draw()))
    return run


def test_snapshots_join_and_never_change(algorithm: Algorithm) -> None:
    assert "opponents: 3 slots for versions of 'main', 0.00" in algorithm.explain()
    algorithm.train()
    algorithm.snapshot("main", as_="main_v1")
    before = algorithm.get_weights()["main"]
    frozen = get_opponent(algorithm, "main_v1")
    assert_same(frozen.params, before)
    statistics = algorithm.state.modules["main"].connectors.obs
    assert_same(frozen.obs_state, jax.tree.map(np.asarray, statistics))
    algorithm.train()
    algorithm.snapshot("main", as_="main_v2")
    played = set[int]()
    for _ in range(3):
        algorithm.train()
        played |= set(list_playing(algorithm))
    played -= {-1}
    assert algorithm.opponents == ["main_v1", "main_v2", "random"]
    assert list_weights(algorithm) == {"main_v1": 1.0, "main_v2": 1.0, "random": 1.0}
    assert_same(get_opponent(algorithm, "main_v1"), frozen)
    assert_same(algorithm.get_weights(["main_v1"])["main_v1"], before)
    now = algorithm.get_weights()["main"]
    assert any(
        np.any(x != y) for x, y in zip(jax.tree.leaves(now), jax.tree.leaves(before), strict=True)
    )
    assert played == {0, 1, 3}
    programs = algorithm.last_result["compile"]
    assert programs["train"]["num_compilations"] == 1
    assert algorithm.league.put_module.compile_stats.__len__() == 1
    # What the opponents compute for a caller is theirs, too.
    module = algorithm.get_module("main_v1")
    assert type(module) is type(algorithm.get_module("main"))
    action = algorithm.compute_single_action(OBS, policy_id="main_v1", explore=False)
    assert action in (0, 1)
    actions = algorithm.compute_actions({"b": OBS}, policy_id="main_v1", explore=False)
    assert actions == {"b": action}
    algorithm.set_weights({"main": before})
    policies = [algorithm.get_policy(name, explore=False) for name in ("main", "main_v2")]
    assert all(policy.act(OBS) in (0, 1) for policy in policies)
    algorithm.remove_module("main_v1")
    with pytest.raises(UnknownNameError, match="There is no module 'main_v1'"):
        algorithm.get_module("main_v1")


def test_opponents_explore_as_their_learner_does_but_for_snapshots() -> None:
    config = (
        DQNConfig()
        .environment("tests.multi_agent.agent_envs:Targets")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=16, epsilon=[[0, 1.0], [400, 0.2]])
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(loggers=[], seed=3)
        .multi_agent(
            policies={"main": None, "frozen": None, "random": RandomRLModule},
            policies_to_train=["main"],
            mapping=Seats("main", Draw()),
            policy_map_capacity=4,
        )
    )
    with config.build() as algorithm:
        weights = algorithm.get_weights()["main"]
        algorithm.snapshot("main", as_="v1")
        algorithm.snapshot("main", as_="v2")
        algorithm.add_module("added", state=weights)
        algorithm.set_weights({"frozen": weights, "v2": weights})
        steps = Counter.from_number(400)
        main = algorithm.state.modules["main"]
        main = replace(main, progress=replace(main.progress, env_steps=steps))
        algorithm.state = replace(algorithm.state, modules={"main": main})
        state = algorithm.runner.make_actor_state(algorithm.state)[":drawn"]  # type: ignore
        epsilons = state.actors["main"].hparams["epsilon"].tolist()
        assert algorithm.opponents == ["frozen", "v1", "v2", "added", "random"]
        np.testing.assert_allclose(epsilons, [0.2, 1.0, 0.2, 0.2])
        taken = [int(x) for x in state.actors["main"].progress.env_steps.low]
        assert taken == [400, 0, 400, 400]


def test_learners_with_other_hyperparameters_have_snapshots() -> None:
    config = make_config(
        policies={"p0": None, "p1": None, "random": RandomRLModule},
        policies_to_train=["p0", "p1"],
        mapping=[{"a": "p0", "b": Draw()}, {"a": Draw(), "b": "p1"}],
        algorithm_config_overrides_per_module={"p1": {"grad_clip": 0.5}},
    )
    with config.build() as algorithm:
        algorithm.snapshot("p1", as_="s1")
        algorithm.snapshot("p0", as_="s0")
        assert algorithm.opponents == ["s0", "s1", "random"]
        clips = ["grad_clip" in own.hparams for own in algorithm.state.opponents.actors.values()]
        assert clips == [False, True, False]
        wanted = find_opponents(algorithm._assembly, algorithm.state, "p0", ["p1", "s0"])  # type: ignore
        assert len(_group(wanted)[0]) == 2


def test_removed_opponents_finish_their_episodes(algorithm: Algorithm) -> None:
    """An iteration of 10 steps ends within the second episode of 8."""
    algorithm.snapshot("main", as_="old")
    algorithm.set_mapping(Seats("main", Draw(("old",))))
    algorithm.train()
    assert list_playing(algorithm) == [0] * 8
    frozen = get_opponent(algorithm, "old")
    algorithm.snapshot("main", as_="new")
    algorithm.remove_module("old", new_agent_to_module_mapping_fn=Seats("main", Draw(("new",))))
    assert algorithm.opponents == ["new", "random"]
    assert list_playing(algorithm) == [0] * 8
    algorithm.snapshot("main", as_="third")  # the slot of "old" is not taken, the free one is
    assert decode_names(np.asarray(algorithm.state.opponents.names)) == [
        *("", "new", "third", "random")
    ]
    kept = jax.tree.map(lambda x: np.array(x[0]), algorithm.state.opponents.actors["main"])
    assert_same(kept, frozen)
    with pytest.raises(ConfigError, match=r"Every one of the 1 slots .* still plays an episode"):
        algorithm.snapshot("main", as_="fourth")
    algorithm.train()
    algorithm.train()
    assert list_playing(algorithm) == [1] * 8
    algorithm.snapshot("main", as_="fourth")
    assert decode_names(np.asarray(algorithm.state.opponents.names))[0] == "fourth"
    # A mapping that names opponents is not joined by others.
    assert list_weights(algorithm) == {"fourth": 0.0, "new": 1.0, "third": 0.0, "random": 0.0}
    with pytest.raises(
        ConfigError, match=r"policy_map_capacity=3 has no room .* fourth, new, third"
    ):
        algorithm.snapshot("main", as_="fifth")


@pytest.mark.slow
def test_rllibs_arguments() -> None:
    with make_config().build() as algorithm:
        algorithm.train()
        weights = algorithm.get_weights()["main"]
        algorithm.add_module(
            module_id="main_v1",
            module_spec=RLModuleSpec(module_class=type(algorithm.get_module("main"))),
            state=weights,
            new_agent_to_module_mapping_fn=lambda aid, episode, **kw: (
                "main" if (aid == "a") == (episode.env_index % 2 == 0) else "main_v1"
            ),
            new_should_module_be_updated=["main"],
            add_to_learners=True,
        )
        assert list_weights(algorithm) == {"main_v1": 1.0, "random": 0.0}
        assert_same(algorithm.get_weights(["main_v1"])["main_v1"], weights)
        algorithm.add_module("fresh")
        fresh = algorithm.get_weights(["fresh"])["fresh"]
        algorithm.set_weights({"fresh": weights})
        assert_same(algorithm.get_weights(["fresh"])["fresh"], weights)
        algorithm.set_weights({"fresh": fresh})
        algorithm.remove_module(
            "fresh", new_should_module_be_updated=lambda name, batch=None: name == "main"
        )
        with pytest.warns(DeprecationWarning, match="add_policy is add_module"):
            algorithm.add_policy("again")  # pyright: ignore
        algorithm.train()


def wrong_size(algorithm: Algorithm) -> None:
    algorithm.add_module("x", state={"nothing": np.zeros(2)})


BAD: dict[str, tuple[Callable[[Algorithm], Any], str]] = {
    "unknown": (lambda a: a.snapshot("nain", as_="x"), "no module 'nain' .* Did you mean 'main'"),
    "of an opponent": (lambda a: a.snapshot("random", as_="x"), "no module 'random' to take"),
    "taken": (lambda a: a.snapshot("main", as_="random"), "There is a module 'random' already"),
    "its own name": (lambda a: a.snapshot("main", as_="main"), "There is a module 'main' already"),
    "a wrong id": (lambda a: a.snapshot("main", as_="a/b"), "letters, digits"),
    "no id": (lambda a: a.snapshot("main", as_=None), "the id None"),  # type: ignore
    "no module to act": (
        lambda a: a.compute_actions({"a": OBS}, policy_id="typo"),
        "There is no module 'typo'",
    ),
    "no episode": (
        lambda a: a.evaluate(opponents=["random"], num_episodes=0),
        "num_episodes=0 must be a positive integer",
    ),
    "no number of episodes": (
        lambda a: a.evaluate(opponents=["random"], num_episodes=True),
        "num_episodes=True must be a positive integer",
    ),
    "a single id": (
        lambda a: a.evaluate(opponents="random", num_episodes=2),
        "must be a list of ids or paths: write \\['random'\\]",
    ),
    "a long id": (lambda a: a.snapshot("main", as_="x" * 65), "65 bytes"),
    "another architecture": (
        lambda a: a.add_module("x", RLModuleSpec(module_class=RandomRLModule)),
        "architecture \\(RandomRLModule\\)",
    ),
    "another size": (
        lambda a: a.add_module("x", RLModuleSpec(model_config={"fcnet_hiddens": [9]})),
        "architecture",
    ),
    "trained": (
        lambda a: a.add_module("x", new_should_module_be_updated=["main", "x"]),
        "asks to train main, x",
    ),
    "overrides": (lambda a: a.add_module("x", config_overrides={"lr": 1}), "config_overrides"),
    "an unknown argument": (lambda a: a.add_module("x", evaluation_workers=True), "no argument"),
    "wrong parameters": (wrong_size, "nothing does not exist"),
    "remove what is not there": (
        lambda a: a.remove_module("x"),
        "no opponent 'x'; there are random",
    ),
    "remove a module": (lambda a: a.remove_module("main"), "part of the compiled program"),
    "nothing left": (lambda a: a.remove_module("random"), "leaves nothing to draw"),
    "unknown in a mapping": (
        lambda a: a.set_mapping(Seats("main", Draw(("randon",)))),
        "The mapping draws 'randon'.*Did you mean 'random'",
    ),
    "other seats": (
        lambda a: a.set_mapping({"a": "main", "b": Draw()}),
        "who has which seat is part of the compiled program",
    ),
    "more patterns": (
        lambda a: a.set_mapping(Seats("main", Draw(), live=0.5)),
        "has 4 patterns",
    ),
    "two draws": (
        lambda a: a.set_mapping(
            [{"a": "main", "b": Draw()}, {"a": Draw(("random",)), "b": "main"}]
        ),
        "the run has one Draw for both",
    ),
    "an episode's id": (
        lambda a: a.set_mapping(
            lambda aid, ep, **kw: "main" if hash(ep.id_) % 2 == (aid == "a") else "random"
        ),
        "mapping=Seats\\('main', 'random'\\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_changes_nothing(name: str, algorithm: Algorithm) -> None:
    call, match = BAD[name]
    before = algorithm.state
    with pytest.raises(JaxrlError, match=match) as caught:
        call(algorithm)
    assert isinstance(caught.value, ConfigError | UnknownNameError | ModuleError)
    assert "\n" not in str(caught.value)
    assert algorithm.state is before


def test_without_a_draw_there_is_no_pool() -> None:
    with make_config(mapping=Seats("main", "random"), policy_map_capacity=16).build() as algorithm:
        for call in (
            lambda: algorithm.snapshot("main", as_="x"),
            lambda: algorithm.remove_module("random"),
            lambda: algorithm.add_module("x"),
        ):
            with pytest.raises(ConfigError, match="needs a mapping that draws opponents"):
                call()
        assert algorithm.opponents == []


@pytest.mark.slow
def test_some_modules_are_restored_into_a_new_run(tmp_path: Path) -> None:
    pair: dict[str, Any] = {"a": "main", "b": "other"}
    settings: dict[str, Any] = {
        "policies": {"main": None, "other": None},
        "mapping": pair,
        "policies_to_train": ["main", "other"],
        "policy_map_capacity": 16,
    }
    with make_config(**settings).build() as algorithm:
        algorithm.train()
        path, weights = algorithm.save(tmp_path), algorithm.get_weights()
        updates = algorithm.state.modules["main"].progress.updates.low
    against = {"policies": {"main": None, "random": RandomRLModule}, "policies_to_train": ["main"]}
    with Algorithm.from_checkpoint(
        path, policy_ids=["main"], mapping=Seats("main", Draw()), **against
    ) as algorithm:
        assert_same(algorithm.get_weights()["main"], weights["main"])
        assert algorithm.state.modules["main"].progress.updates.low == updates
        assert int(algorithm.state.progress.env_steps) == 0
        algorithm.train()
        algorithm.snapshot("main", as_="v1")
        later = algorithm.save(tmp_path / "later")
    for name, match in (
        ("nain", "policy_ids has 'nain', .* has the modules main, other. Did you mean 'main'"),
        ("other", "policy_ids has 'other', but the modules of the config are main"),
    ):
        with pytest.raises(JaxrlError, match=match):
            Algorithm.from_checkpoint(
                path, policy_ids=[name], mapping=Seats("main", Draw()), **against
            )
    with pytest.raises(JaxrlError, match=r"does not fit: modules.main.*expected"):
        Algorithm.from_checkpoint(later, policy_ids=["main"], model_config={"fcnet_hiddens": [9]})


RESUME = """
import sys, json, hashlib
import jax, numpy as np
from jaxrl import Algorithm
algorithm = Algorithm.from_checkpoint(sys.argv[1], trust=True)
for _ in range(2):
    algorithm.train()
leaves = jax.tree.leaves(jax.device_get((algorithm.get_state()["train_state"])))
print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest())
print(json.dumps(algorithm.opponents))
algorithm.stop()
"""


def compute_digest(algorithm: Algorithm) -> str:
    import hashlib

    leaves = jax.tree.leaves(jax.device_get(algorithm.get_state()["train_state"]))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_the_bit_in_a_fresh_process(tmp_path: Path) -> None:
    with make_config().build() as algorithm:
        algorithm.train()
        algorithm.snapshot("main", as_="main_v1")
        algorithm.train()
        algorithm.snapshot("main", as_="main_v2")
        algorithm.remove_module("main_v1")
        path = algorithm.save(tmp_path)
        playing = list_playing(algorithm)
        assert any(slot >= 0 for slot in playing)
        for _ in range(2):
            algorithm.train()
        expected = compute_digest(algorithm)
    env = {**os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    found = subprocess.run(
        [sys.executable, "-c", RESUME, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0, found.stderr[-2000:]
    digest, names = found.stdout.split("\n")[:2]
    assert json.loads(names) == ["main_v2", "random"]
    assert digest == expected


@pytest.mark.slow
def test_devices_have_the_same_opponents() -> None:
    digests: list[PyTree] = []
    for number in (1, 4):
        config = make_config().learners(num_devices=number, num_shards=4)
        with config.build() as algorithm:
            algorithm.train()
            algorithm.snapshot("main", as_="main_v1")
            algorithm.train()
            playing = np.asarray(algorithm.state.carry.opponents.slot)
            digests.append((algorithm.get_weights(), playing.astype(float)))
            assert algorithm.last_result["compile"]["train"]["num_compilations"] == 1
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), *digests)
