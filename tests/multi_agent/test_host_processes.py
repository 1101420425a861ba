"""Copies of environments of several agents in one process each, against copies in this process."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.envs import make_multi_host
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.multi.host_vector import MultiHostVector
from jaxrl.errors import ConfigError, EnvError
from tests.helpers import assert_equal
from tests.multi_agent.host_envs import Duel, Streams
from tests.multi_agent.test_host_training import InPlace, get_leaves, make_config

ASYNC = {"gym_env_vectorize_mode": "async"}


def make_copies(env: Any, mode: Any, **settings: Any) -> MultiHostVector:
    made = make_multi_host(env, settings.pop("env_config", {}))
    return make_vector(made, num_envs=2, seed=3, mode=mode, **settings)


def act(vector: MultiHostVector, steps: list[Any]) -> list[Any]:
    """Step every copy with the actions of its agents that act."""
    asked = [
        (copy.start or copy.step).acts if hasattr(copy, "start") else copy.acts for copy in steps
    ]
    return vector.step([{a: np.int64(0) for a, acts in own.items() if acts} for own in asked])


def test_steps_are_those_of_copies_in_this_process() -> None:
    """Also after their state is restored, and where the environment writes in place."""
    here, apart = (make_copies(Streams, mode) for mode in ("sync", "async"))
    try:
        steps = [here.reset(), apart.reset()]
        for t in range(40):
            np.testing.assert_equal(*([dataclasses.asdict(x) for x in part] for part in steps))
            if t == 20:
                state = apart.get_state()
                assert_equal(here.get_state(), state)
                before = steps
            steps = [act(here, steps[0]), act(apart, steps[1])]
        assert here.take_rewards_without_action() == apart.take_rewards_without_action()
        apart.set_state(state)
        again = before[1]
        for _ in range(20):
            again = act(apart, again)
        np.testing.assert_equal(*([dataclasses.asdict(x) for x in p] for p in (again, steps[0])))
        assert apart.get_own_id(1, "a") == "a"
        assert apart.get_sub_environments() == []
    finally:
        apart.close()
        apart.close()


def run(vector: MultiHostVector, num_steps: int) -> None:
    steps: list[Any] = vector.reset()
    for _ in range(num_steps):
        steps = act(vector, steps)


@pytest.mark.slow
def test_last_observations_are_kept_where_an_environment_writes_in_place() -> None:
    vector = make_copies(InPlace, "async")
    try:
        (_, start), actions = vector.reset(), [dict.fromkeys(("0", "1"), np.int64(0))] * 2
        copies: list[Any] = [vector.step(actions)[1] for _ in range(4)]
    finally:
        vector.close()
    assert float(start.obs["1"][0]) == float(copies[-1].start.obs["1"][0]) == 0
    assert [float(copy.step.obs["1"][0]) for copy in copies] == [1, 2, 3, 4]


class Ending(Duel):
    """A process that ends itself, or an environment that hangs, at the fifth step of a copy."""

    def step(self, action_dict: Any) -> Any:
        if self.row == 1 and self.total_steps == 4:
            os.kill(os.getpid(), signal.SIGKILL if self.length == 7 else signal.SIGSTOP)
        return super().step(action_dict)


class Unpicklable(Duel):
    """An environment whose infos cannot be sent."""

    def step(self, action_dict: Any) -> Any:
        *result, _ = super().step(action_dict)
        return *result, {"__common__": {"call": lambda: None}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "settings", "match"),
    [
        (
            Ending,
            {"env_config": {"length": 7}},
            r"process of a copy died: vector_index=1 \(ended by SIGKILL\)",
        ),
        (Ending, {"env_config": {"length": 8}, "timeout_s": 5.0}, r"vector_index=1\) has not resp"),
        (
            Duel,
            {"env_config": {"fails_at": 3}},
            r"vector_index=1\).*raised RuntimeError: the simul",
        ),
        (Unpicklable, {}, "advance cannot be sent from its process"),
    ],
)
def test_what_ends_a_process_or_is_raised_there_is_one_error(
    env: Any, settings: dict[str, Any], match: str
) -> None:
    vector = make_copies(env, "async", check=False, **settings)
    try:
        with pytest.raises(EnvError, match=match) as error:
            run(vector, 8)
        assert "\n" not in str(error.value)
        assert vector.get_state() is None
        with pytest.raises(EnvError, match="an earlier call"):
            vector.reset()
    finally:
        vector.close()


@pytest.mark.slow
def test_a_copy_that_raises_in_its_process_is_restarted_alone() -> None:
    found = []
    for mode in ("sync", "async"):
        config = make_config(config={"fails_at": 5}).env_runners(gym_env_vectorize_mode=mode)
        config.fault_tolerance(restart_failed_sub_environments=True)
        with config.build() as algorithm:
            result = algorithm.train()
            found.append((get_leaves(algorithm), result["env_runners"], result["fault_tolerance"]))
    assert_equal(found[0][0], found[1][0])
    for name in ("num_agent_steps_sampled", "num_env_steps_sampled", "agent_episode_returns_mean"):
        assert found[0][1][name] == found[1][1][name]
    for name in ("num_sub_env_restarts", "num_agent_steps_lost"):
        assert found[0][2][name] == found[1][2][name] > 0
    assert "the simulator is gone" in found[1][2]["restarts"][0]


@pytest.mark.slow
def test_a_run_with_processes_resumes_and_evaluates_as_one_without(tmp_path: Path) -> None:
    def make(mode: str) -> Any:
        config = make_config().env_runners(gym_env_vectorize_mode=mode)
        return config.evaluation(evaluation_interval=1, evaluation_duration=4)

    with make("sync").build() as here:
        here.train()
        expected = here.train()
        leaves = get_leaves(here)
    with make("async").build() as apart:
        apart.train()
        path = apart.save(str(tmp_path / "saved"))
        found = apart.train()
    with Algorithm.from_checkpoint(path) as resumed:
        resumed.train()
        assert_equal(get_leaves(resumed), leaves)
    name = "agent_episode_returns_mean"
    assert found["env_runners"][name] == expected["env_runners"][name]
    assert found["evaluation"]["env_runners"][name] == expected["evaluation"]["env_runners"][name]


def test_a_creator_that_cannot_be_pickled_is_refused() -> None:
    lock = __import__("threading").Lock()

    def create(config: Any) -> Any:
        with lock:
            return Duel(config)

    config = make_config(create).env_runners(**ASYNC)
    with (
        pytest.raises((EnvError, ConfigError), match="cannot be pickled") as error,
        config.build() as a,
    ):
        a.train()
    assert "\n" not in str(error.value)
