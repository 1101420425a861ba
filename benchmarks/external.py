"""Training by external simulators beside the same run in one process: `python -m benchmarks.external`.

PPO on gymnasium's CartPole-v1 with environments in the process that learns, and in simulators of one
environment each that connect over loopback, with inference in the simulators and in the run. They
take turns, so that other load on the machine affects all alike; simulators are stopped while others
are measured. Compilation is excluded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import gymnasium

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.peers import launch
from benchmarks.settings import RLLIB_EXTERNAL
from benchmarks.statistics import compare_to, describe_rates, show
from benchmarks.training_step import make_config
from jaxrl import PPOConfig
from jaxrl.bench.markdown import Table

IN_PROCESS = "in process"
CASES: dict[str, tuple[int, str]] = {
    IN_PROCESS: (0, ""),
    "1 simulator, local inference": (1, "local"),
    "4 simulators, local inference": (4, "local"),
    "1 simulator, remote inference": (1, "remote"),
    "4 simulators, remote inference": (4, "remote"),
}
"""Number of simulators, and their mode of inference."""
RLLIB = "RLlib, 1 simulator, local inference"
ENV = "CartPole-v1"
NUM_ENVS, NUM_STEPS = 8, 256
"""Columns and rows of a train batch."""
ROUND_STEPS = 40_960
"""Environment steps per round."""

SIMULATOR = f"""
import sys
import gymnasium
from jaxrl.external import PolicyClient
with PolicyClient(sys.argv[1], sys.argv[2]) as client:
    client.run(gymnasium.make({ENV!r}))
"""


def run(options: Options) -> dict[str, Any]:
    """Measure the environment steps per second of each case."""
    with contextlib.ExitStack() as stack:
        functions = {
            name: stack.enter_context(_open_case(*case, options.num_steps))
            for name, case in CASES.items()
        }
        if options.peer:
            functions[RLLIB] = stack.enter_context(_open_rllib(options.num_steps))
        rates = measure.measure_rates(functions, options.pairs, options.num_steps)
    peers = {"jaxrl": describe_packages("jax", "gymnasium", "numpy")}
    return {"peers": peers, **describe_rates(rates), "ratio": compare_to(rates, IN_PROCESS)}


@contextlib.contextmanager
def _open_case(num_simulators: int, mode: str, num_steps: int) -> Generator[Callable[[], float]]:
    """Yield a function that trains for a number of steps and returns the seconds."""
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        config = configure(num_simulators > 0, num_steps, folder)
        with config.build() as algorithm, contextlib.ExitStack() as stack:
            group: Any = algorithm.env_runner_group
            simulators = [
                stack.enter_context(_simulating(group.address, mode)) for _ in range(num_simulators)
            ]

            def run_round() -> float:
                _signal_all(simulators, signal.SIGCONT)
                start = time.perf_counter()
                algorithm.train()
                seconds = time.perf_counter() - start
                _signal_all(simulators, signal.SIGSTOP)
                return seconds

            run_round()  # compiles
            yield run_round


@contextlib.contextmanager
def _open_rllib(num_steps: int) -> Generator[Callable[[], float]]:
    """Yield a function that trains RLlib and returns the seconds for a number of steps."""
    with launch.start(RLLIB_EXTERNAL, stop_when_idle=True) as worker:
        worker.ask("setup", env_steps=num_steps, train_batch_size=NUM_ENVS * NUM_STEPS)

        def run_round() -> float:
            reply = worker.ask("run")
            return reply["seconds"] * num_steps / reply["env_steps"]

        yield run_round


def configure(is_external: bool, num_steps: int, folder: str) -> PPOConfig:
    """Return the config of a run whose iterations have a number of steps."""
    config = make_config(NUM_ENVS, NUM_STEPS, num_steps, folder)
    config.training(minibatch_size=128).debugging(seed=0)
    if not is_external:
        return config.environment(f"gymnasium:{ENV}")
    spaces = gymnasium.make(ENV)
    config.environment(
        observation_space=spaces.observation_space, action_space=spaces.action_space
    ).env_runners(placement="external")
    # Simulators that are stopped between rounds send nothing.
    return config.external(external_port=0, idle_timeout_s=3600.0)


@contextlib.contextmanager
def _simulating(address: str, mode: str) -> Generator[int]:
    """Run a simulator in another process, of one thread for NumPy, and yield the process id."""
    command = [sys.executable, "-c", SIMULATOR, address, mode]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the cases."""
    yield Table(
        text=f"PPO on gymnasium's {ENV}, {NUM_ENVS} x {NUM_STEPS} steps per train batch, 4 epochs x 16 "
        "minibatches, 64-64 networks, on one device. Environment steps that were trained on per "
        "second, medians over the rounds; ratios to the run in one process within a round; 95 % "
        f"intervals. In one process, {NUM_ENVS} environments are stepped in turn, with one call of "
        "the policy for all; a simulator has one. RLlib's client is that of its example.",
        header=("environments", "steps/s", f"/ {IN_PROCESS}"),
        rows=[
            (name, show(median, ",.0f"), show(results["ratio"].get(name), ".2f", missing="1"))
            for name, median in results["median"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="external",
    about=__doc__,
    title="External simulators",
    measure=run,
    build_tables=build_tables,
    numbers={"num-steps": (ROUND_STEPS, "environment steps per round")},
    quick={"num_steps": NUM_ENVS * NUM_STEPS},
    peer="measure RLlib with one simulator in turn",
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
