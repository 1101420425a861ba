"""The simulator in C speaks the documented protocol, and a policy learns from what it sends."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.assembly.assemble import Assembly, assemble
from tests.external.served import SMALL, Served, make_config

SOURCE = Path(__file__).parents[2] / "docs" / "examples" / "external_cartpole.c"
ENV = gymnasium.make("CartPole-v1")
SPACES: dict[str, Any] = {
    "observation_space": ENV.observation_space,
    "action_space": ENV.action_space,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the program, with every warning an error."""
    compiler = shutil.which("cc")
    assert compiler is not None, "a compiler of C is needed, called cc"
    path = tmp_path_factory.mktemp("c") / "external_cartpole"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
    command = [compiler, *flags, "-o", str(path), str(SOURCE), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(path)


def start(program: str, address: str, token: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program, address, "1"],
        env={**os.environ, "JAXRL_EXTERNAL_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(simulator: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a simulator that ends by itself, and what it complained about."""
    _, complained = simulator.communicate(timeout=30)
    return simulator.returncode, complained


def build(**changes: Any) -> Algorithm:
    config = make_config(train_batch_size=64, minibatch_size=32).environment(**SPACES)
    return config.update_from_dict(changes).build()


WIDE = {"model_config": {"fcnet_hiddens": [64, 64]}}
LSTM = {"model_config": {**SMALL, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}}


@pytest.mark.parametrize(
    "changes", [{}, pytest.param(LSTM, marks=pytest.mark.slow)], ids=["plain", "LSTM"]
)
def test_a_run_trains_with_exact_accounts(program: str, changes: dict[str, Any]) -> None:
    algorithm = build(**changes)
    simulator = start(program, algorithm.env_runner_group.address)
    results = [algorithm.train() for _ in range(2)]
    algorithm.stop()
    printed, complained = simulator.communicate(timeout=30)
    assert (simulator.returncode, complained) == (0, "")
    assert printed.startswith("The run has ended after ")
    counts = results[-1]["fault_tolerance"]
    sampled = results[-1]["env_runners"]["num_env_steps_sampled_lifetime"]
    assert counts["num_parts_refused"] == 0, counts["refusals"]
    assert counts["num_env_steps_trained_lifetime"] == sampled > 64
    assert counts["num_env_steps_received_lifetime"] == (
        sampled
        + counts["num_env_steps_queued"]
        + sum(counts["num_env_steps_discarded_lifetime"].values())
    )
    assert results[-1]["env_runners"]["num_clients"] == 1
    assert results[-1]["env_runners"]["episode_return_mean"] > 8.0


@pytest.fixture(scope="module")
def assembly() -> Assembly:
    return assemble(make_config().environment(**SPACES))


@pytest.fixture
def token() -> str:
    return ""


@pytest.fixture
def served(assembly: Assembly, monkeypatch: pytest.MonkeyPatch, token: str) -> Iterator[Served]:
    monkeypatch.setenv("JAXRL_EXTERNAL_TOKEN", token)
    served = Served(make_config().environment(**SPACES), assembly)
    yield served
    served.group.stop()


def test_its_steps_are_those_of_gymnasium(program: str, served: Served) -> None:
    simulator = start(program, served.group.address)
    rollouts = [served.take().rollout for _ in range(6)]
    served.group.stop()
    assert finish(simulator) == (0, "")
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    num_ended = 0
    for rollout in rollouts:
        assert (rollout.reward == 1.0).all()
        for t, b in np.ndindex(rollout.mask.shape):
            env.state = tuple(rollout.obs[t, b].astype(np.float64))
            obs, _, terminated, _, _ = env.step(int(rollout.action[t, b]))
            env.steps_beyond_terminated = None
            np.testing.assert_allclose(rollout.final_obs[t, b], obs, atol=2e-6)
            assert rollout.terminated[t, b] == terminated
            num_ended += terminated
    assert num_ended > 2


@pytest.mark.parametrize("token", ["short", "longer than a block " * 4], ids=len)
def test_a_wrong_token_is_one_sentence(program: str, served: Served, token: str) -> None:
    expected = {
        token[:-1]: "The token is not that of the run: see JAXRL_EXTERNAL_TOKEN.\n",
        "": "The run asks for a token: set JAXRL_EXTERNAL_TOKEN.\n",
    }
    for wrong, sentence in expected.items():
        assert finish(start(program, served.group.address, wrong)) == (2, sentence)
    welcomed = start(program, served.group.address, token)
    served.take()
    served.group.stop()
    assert finish(welcomed) == (0, "")


def test_a_run_without_the_token_is_refused(program: str, served: Served) -> None:
    simulator = start(program, served.group.address, "of another run")
    sentence = "The run could not prove that it has the token: it is another one.\n"
    assert finish(simulator) == (2, sentence)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1", "The address must be HOST:PORT"),
        ("127.0.0.1:1", "The run at 127.0.0.1:1 cannot be reached."),
    ],
)
def test_nobody_there_is_one_sentence(program: str, address: str, sentence: str) -> None:
    code, complained = finish(start(program, address))
    assert code == 1
    assert complained.startswith(sentence)
    assert complained.count("\n") == 1


@pytest.mark.slow
def test_ppo_learns(program: str) -> None:
    algorithm = build(train_batch_size=1024, minibatch_size=128, num_epochs=10, lr=1e-3, **WIDE)
    simulators = [start(program, algorithm.env_runner_group.address) for _ in range(2)]
    best = 0.0
    for _ in range(80):
        best = max(best, algorithm.train()["env_runners"]["episode_return_mean"])
        if best >= 300.0:
            break
    algorithm.stop()
    assert [finish(simulator) for simulator in simulators] == [(0, "")] * 2
    print(f"best mean return: {best:.1f}")
    assert best >= 300.0
