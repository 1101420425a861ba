"""Evaluation's own environment and function; what is compiled, how often, and what is fetched."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.errors import ConfigError, RetraceError
from jaxrl.evaluation.evaluation import Evaluation, run_custom_evaluation
from jaxrl.runners import in_graph_loop as dispatch
from jaxrl.runners.in_graph_group import Pace
from jaxrl.runtime import kept_programs, program
from jaxrl.runtime.program import Program
from tests.helpers import small


class ThreeActions(CartPole):
    """CartPole's observations, other actions."""

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(3)


# --- another environment ---


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Pendulum-v1", ["Pendulum-v1 has the observation space Box(", "of CartPole-v1"]),
        (ThreeActions, ["action space Discrete(3)", "trained for Discrete(2) of CartPole-v1"]),
        ("CartPol-v1", ["Did you mean 'CartPole-v1'?"]),
    ],
)
def test_another_environment_needs_the_same_spaces(env: Any, words: list[str]) -> None:
    config = small().evaluation(evaluation_config={"env": env})
    with pytest.raises((ConfigError, KeyError)) as caught:
        Evaluation(config, assemble(config))
    message = str(caught.value)
    assert message.startswith("evaluation_config: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_another_environment_with_the_same_spaces_is_fine() -> None:
    config = small().evaluation(evaluation_config={"env": CartPole, "env_config": {"gravity": 5.0}})
    Evaluation(config, assemble(config))


# --- a function of the user's ---


def of_one(algorithm: Any) -> dict[str, Any]:
    return {"got": [algorithm]}


def of_two(algorithm: Any, eval_workers: Any) -> dict[str, Any]:
    return {"got": [algorithm, eval_workers]}


def of_one_or_two(algorithm: Any, episodes: int = 3) -> dict[str, Any]:
    return {"got": [algorithm, episodes]}


def of_none() -> dict[str, Any]:
    return {}


def of_three(algorithm: Any, workers: Any, more: Any) -> dict[str, Any]:
    return {}


def of_names(*, algorithm: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (of_one, ["A"]),
        (of_two, ["A", None]),
        (of_one_or_two, ["A", 3]),
        (lambda *given: {"got": list(given)}, ["A"]),
    ],
)
def test_a_custom_evaluation_takes_the_algorithm_and_perhaps_workers(
    function: Any, got: list[Any]
) -> None:
    PPOConfig().evaluation(custom_evaluation_function=function)
    assert run_custom_evaluation(function, "A") == {"got": got}


@pytest.mark.parametrize("function", [of_none, of_three, of_names])
def test_other_arguments_are_refused_when_it_is_set(function: Any) -> None:
    words = r"must be a function of \(algorithm\) or of \(algorithm, eval_workers\), got"
    with pytest.raises(ConfigError, match=f"custom_evaluation_function {words}"):
        PPOConfig().evaluation(custom_evaluation_function=function)


@pytest.mark.parametrize("returned", [None, 3.0, [("a", 1)]])
def test_a_custom_evaluation_returns_a_dictionary(returned: Any) -> None:
    with pytest.raises(ConfigError, match="must return a dictionary of metrics"):
        run_custom_evaluation(lambda algorithm: returned, "A")


def test_runners_that_do_not_exist_are_one_sentence() -> None:
    def of_runners(algorithm: Any, workers: Any) -> Any:
        return workers.foreach_env_runner(len)

    with pytest.raises(ConfigError, match=r"NoneType.*: set evaluation_num_env_runners=1"):
        run_custom_evaluation(of_runners, "A")
    with pytest.raises(AttributeError, match="int"):
        run_custom_evaluation(lambda algorithm, workers: (3).nothing, "A")  # pyright: ignore


def test_a_custom_evaluation_may_return_rllibs_counts() -> None:
    counts = {"num_env_steps_sampled_this_iter": 2, "num_agent_steps_sampled_this_iter": 3}
    assert run_custom_evaluation(lambda algorithm: ({"a": 1}, 2, 3), "A") == {"a": 1, **counts}
    with pytest.raises(ConfigError, match="must return a dictionary of metrics"):
        run_custom_evaluation(lambda algorithm: (2, {"a": 1}, 3), "A")


def test_the_number_of_episodes_is_the_custom_functions_own() -> None:
    with small().evaluation(custom_evaluation_function=of_two).build() as algorithm:
        assert algorithm.evaluate() == {"got": [algorithm, None]}
        with pytest.raises(ConfigError, match=r"num_episodes=3 has no effect .* leave"):
            algorithm.evaluate(num_episodes=3)


# --- programs ---


class Heard:
    """Counts calls of a function."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


EPISODES: list[Any] = []


def remember(*, algorithm: Any, episode: Any) -> None:
    EPISODES.append(episode)


@pytest.fixture(scope="module")
def algorithm() -> Iterator[Algorithm]:
    """No program may be compiled for a second signature."""
    config = small().debugging(max_retraces=0).callbacks(on_episode_end=remember)
    config.evaluation(evaluation_duration=4, evaluation_config={"max_episode_steps": 20})
    with config.build() as built:
        yield built


@pytest.mark.slow
def test_every_program_is_in_the_result_and_compiled_once(algorithm: Algorithm) -> None:
    first = algorithm.train()
    assert set(first["compile"]) == {"init", "train"}
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 4
    stats = [algorithm.evaluate(num_episodes=3)["env_runners"] for _ in range(2)]
    assert stats[0] == stats[1]
    assert stats[0]["num_episodes"] == 3
    obs = np.zeros(4, np.float32)
    for explore in (True, False, True):
        algorithm.compute_single_action(obs, explore=explore)
    compiled = algorithm.train()["compile"]
    assert set(compiled) == {
        "init",
        "train",
        "actor",
        "evaluate",
        "evaluate_3_episodes",
        "compute_actions_sample",
        "compute_actions_mode",
    }
    assert {figures["num_compilations"] for figures in compiled.values()} == {1}
    assert all(figures["total_s"] > 0 for figures in compiled.values())
    with pytest.raises(RetraceError, match=r"compute_actions_mode.*shape"):
        algorithm.compute_actions([obs, obs], explore=False)


def test_a_dispatch_looks_at_the_state_once_and_fetches_once(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm.learner_group, "_pace", Pace(1))  # a dispatch for each iteration
    algorithm.train()
    signatures, fetches = Heard(program._signature), Heard(dispatch.to_host)
    monkeypatch.setattr(program, "_signature", signatures)
    monkeypatch.setattr(dispatch, "to_host", fetches)
    EPISODES.clear()
    before = algorithm.train()["env_runners"]["num_episodes_lifetime"] - len(EPISODES)
    for _ in range(3):
        result = algorithm.train()
    assert signatures.calls == 4
    assert fetches.calls == 0
    assert len(EPISODES) == result["env_runners"]["num_episodes_lifetime"] - before > 0
    algorithm.set_state(algorithm.get_state())
    lifetime, told = result["env_runners"]["num_episodes_lifetime"], len(EPISODES)
    result = algorithm.train()
    assert fetches.calls == 1
    assert len(EPISODES) - told == result["env_runners"]["num_episodes_lifetime"] - lifetime


@pytest.mark.slow
def test_the_first_evaluation_is_compiled_while_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: dict[str, str] = {}
    compile_it = Program._compile

    def noted(program: Program, *args: Any) -> Any:
        compiled[program.name] = threading.current_thread().name
        return compile_it(program, *args)

    monkeypatch.setattr(Program, "_compile", noted)
    config = small().evaluation(evaluation_interval=2, evaluation_duration=2)
    with config.copy().build() as algo, config.build() as by_hand:
        result = algo.fit({"training_iteration": 2})
        assert compiled == {
            "init": "MainThread",
            "train": "MainThread",
            "actor": "MainThread",
            "evaluate": "jaxrl-compile",
        }
        assert result["compile"]["evaluate"]["num_compilations"] == 1
        by_hand.train()
        told = by_hand.train()["evaluation"]["env_runners"]
        assert result["evaluation"]["env_runners"] == told


@pytest.mark.slow
def test_what_fails_to_compile_beside_training_is_told_by_the_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(program: Program, *args: Any) -> Any:
        if program.name == "evaluate":
            raise ValueError(f"no {threading.current_thread().name}")
        return compile_it(program, *args)

    compile_it = Program._compile
    monkeypatch.setattr(Program, "_compile", broken)
    config = small().evaluation(evaluation_interval=2, evaluation_duration=2)
    monkeypatch.setattr(kept_programs, "SHARED_PROGRAMS", kept_programs.SharedPrograms())
    with config.build() as algo, pytest.raises(ValueError, match="no MainThread"):
        algo.fit({"training_iteration": 2})
