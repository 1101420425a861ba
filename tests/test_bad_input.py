"""Every kind of bad input: one sentence, before anything compiles, nothing half-written, exit 2.

`tests/config/test_bad_input.py` has what a config alone refuses, word by word; this table goes
through the front doors, `build()`, an Algorithm's methods and the command line.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from jaxrl import JaxEnv, JaxrlError, RandomAgentConfig, TimeStep
from jaxrl.cli.app import app
from jaxrl.errors import EnvError
from jaxrl.runtime.program import Program
from tests.bad_input_cases import CASES, Case, Given
from tests.helpers import small

COMPILING = ("buffer of more than half of the memory", "buffer of more than was allowed")
"""Cases whose refusal takes seconds; as a call they are tested by default."""
ON_THE_COMMAND_LINE = [
    pytest.param(case, marks=pytest.mark.slow if case.name in COMPILING else [], id=case.name)
    for case in CASES
    if case.command is not None
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """An Algorithm with nine hidden units, and checkpoints of others with eight."""
    folder = tmp_path_factory.mktemp("built")
    paths = {}
    for algo in ("PPO", "A2C"):
        with small(algo).build() as source:
            paths[algo] = Path(source.save(folder / algo))
    wider = small().rl_module(model_config={"fcnet_hiddens": [9]})
    with wider.debugging(results_dir=str(folder / "results")).build() as algorithm:
        yield Given(algorithm, paths["PPO"], paths["A2C"], folder)


@pytest.fixture
def given(built: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """From here on nothing may be compiled, and a device has 64 MiB."""

    def compiles(program: Program, *_: Any) -> None:
        pytest.fail(f"'{program.name}' was compiled before the mistake was found")

    monkeypatch.setattr(Program, "_compile", compiles)
    monkeypatch.setattr("jaxrl.runners.placement.get_memory_limit", lambda _: 2**26)
    folder = tmp_path / "given"
    folder.mkdir()
    copy = shutil.copytree(built.checkpoint, tmp_path / "copy" / built.checkpoint.name)
    return dataclasses.replace(built, checkpoint=copy, folder=folder)


@pytest.fixture
def nothing_written(tmp_path: Path) -> Iterator[None]:
    """No run folder, whole or in part, was left behind."""
    yield
    results = tmp_path / "jaxrl_results"
    assert not results.exists() or list(results.iterdir()) == []


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 25
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.usefixtures("nothing_written")
def test_bad_input_is_one_sentence(case: Case, given: Given) -> None:
    before = given.algorithm.state
    with pytest.raises(JaxrlError) as caught:
        case.make(given)
    message = str(caught.value)
    for word in case.words:
        assert word in message
    assert len(message.splitlines()) == 1, message
    assert given.algorithm.state is before


@pytest.mark.parametrize("case", ON_THE_COMMAND_LINE)
@pytest.mark.usefixtures("nothing_written")
def test_on_the_command_line_it_is_exit_code_2(case: Case, given: Given) -> None:
    assert case.command is not None
    arguments = case.command(given)
    quiet = CliRunner().invoke(app, arguments, prog_name="jaxrl")
    assert quiet.exit_code == 2, quiet.output
    assert "Traceback" not in quiet.output
    assert quiet.stderr.startswith("error: ")
    assert len(quiet.stderr.splitlines()) == 1, quiet.stderr
    for word in case.words:
        assert word in quiet.stderr
    verbose = CliRunner().invoke(app, [*arguments, "-v"], prog_name="jaxrl")
    assert verbose.exit_code == 2
    assert "Traceback (most recent call last)" in verbose.stderr
    assert verbose.stderr.splitlines()[-1] == quiet.stderr.strip()


class Numbers(JaxEnv[Any, None]):
    """A count of steps, whose space begins at 1 and ends at `largest`; it is terminated at 5."""

    name = "numbers"

    def __init__(self, largest: int = 5, first: int = 1) -> None:
        self.largest, self.first = largest, first

    def observation_space(self, params: None) -> Any:
        number = self.largest - self.first + 1
        count = spaces.MultiDiscrete([number, 2], start=[self.first, 0])
        return spaces.Dict({"count": count, "same": spaces.Discrete(number, start=self.first)})

    def action_space(self, params: None) -> Any:
        return spaces.Discrete(2)

    def observe(self, count: Any) -> Any:
        return {"count": jnp.stack([count, jnp.zeros_like(count)]), "same": count}

    def reset(self, key: Any, params: None) -> Any:
        return jnp.ones((), jnp.int32), self.observe(jnp.ones((), jnp.int32))

    def step(self, key: Any, state: Any, action: Any, params: None) -> Any:
        return state + 1, TimeStep(
            obs=self.observe(state + 1),
            reward=jnp.ones((), jnp.float32),
            terminated=state + 1 >= 5,
            truncated=jnp.zeros((), bool),
        )


@pytest.mark.parametrize(
    ("arguments", "limit", "is_refused"),
    [
        ({}, None, False),
        ({"largest": 4}, None, False),  # 5 is only seen at the end
        ({"largest": 3}, None, True),
        ({"largest": 3}, 3, True),  # which cuts at 4
        ({"first": 2}, None, True),
    ],
)
def test_an_observation_that_a_network_would_not_see_ends_the_run(
    arguments: Any, limit: int | None, is_refused: bool
) -> None:
    config = RandomAgentConfig().environment(Numbers, env_config=arguments, max_episode_steps=limit)
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8)
    with config.debugging(loggers=[]).build() as algorithm:
        if not is_refused:
            algorithm.train()
            return
        with pytest.raises(EnvError, match=r"Numbers: at step .* outside of its Discrete"):
            algorithm.train()


def test_nan_from_an_environment_is_no_error_and_named_in_the_result() -> None:
    """The environment is reset, its row does not count, and the result says which and when."""
    config = small(env="jaxrl.envs.faults:FaultyEnv")
    config.environment(env_config={"env": "CartPole-v1", "at_step": 6, "fraction": 0.1})
    with config.build() as algorithm:
        for _ in range(4):
            faults = algorithm.train()["fault_tolerance"]
        weights = jax.tree.leaves(algorithm.get_weights())
    assert faults["num_nonfinite_env_steps"] > 0
    assert faults["last_nonfinite_env_step"]["what"] == "reward"
    assert {"env_index", "env_step"} <= faults["last_nonfinite_env_step"].keys()
    assert faults["num_nonfinite_updates"] == 0
    assert all(np.isfinite(leaf).all() for leaf in weights)
