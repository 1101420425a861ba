"""Training by external simulators beside the same run in one process: `python -m benchmarks.external`.

PPO on gymnasium's CartPole-v1 with environments in the process that learns, and in simulators of one
environment each that connect over loopback, with inference in the simulators and in the run. They
take turns, so that other load on the machine affects all alike; simulators are stopped while others
are measured. Compilation is excluded.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import gymnasium

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, save_results, start_results
from benchmarks.peers import launch
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl import PPOConfig
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each case, write `external.json` and `.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.external", arguments, is_quick=options.quick)
    versions = {name: version(name) for name in ("jax", "gymnasium", "numpy")}
    results |= {
        "peers": {"jaxrl": {"devices": 1, "versions": versions}},
        **measure_cases(options.num_steps, options.pairs, has_peer=options.peer),
    }
    save_results(results, options.out, "external", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.external", description=__doc__)
    parser.add_argument(
        "--num-steps",
        type=int,
        default=ROUND_STEPS,
        help="environment steps per round (default: %(default)s)",
    )
    parser.add_argument(
        "--peer", action="store_true", help="measure RLlib with one simulator in turn"
    )
    add_round_options(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        options.num_steps, options.pairs = NUM_ENVS * NUM_STEPS, 2
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def measure_cases(num_steps: int, rounds: int, *, has_peer: bool = False) -> dict[str, Any]:
    """Measure the environment steps per second of each case in every round.

    Args:
        num_steps: Environment steps per round.
        rounds: Number of rounds.
        has_peer: Whether RLlib takes turns.
    """
    with contextlib.ExitStack() as stack:
        functions = {
            name: stack.enter_context(_open_case(*case, num_steps)) for name, case in CASES.items()
        }
        if has_peer:
            functions[RLLIB] = stack.enter_context(_open_rllib(num_steps))
        seconds = measure.take_turns(functions, rounds)
    rates = {name: [num_steps / x for x in found] for name, found in seconds.items()}
    return {
        "rates": rates,
        "median": {name: to_dict(estimate_median(found)) for name, found in rates.items()},
        "ratio": {
            name: to_dict(estimate_ratio(found, rates[IN_PROCESS]))
            for name, found in rates.items()
            if name != IN_PROCESS
        },
    }


@contextlib.contextmanager
def _open_case(num_simulators: int, mode: str, num_steps: int) -> Generator[Callable[[], float]]:
    """Yield a function that trains for a number of steps and returns the seconds."""
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        config = make_config(num_simulators > 0, num_steps).debugging(results_dir=folder)
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
    with launch.start(launch.RLLIB_EXTERNAL, stop_when_idle=True) as worker:
        worker.ask("setup", env_steps=num_steps, train_batch_size=NUM_ENVS * NUM_STEPS)

        def run_round() -> float:
            reply = worker.ask("run")
            return reply["seconds"] * num_steps / reply["env_steps"]

        yield run_round


def make_config(is_external: bool, num_steps: int) -> PPOConfig:
    """Return the config of a run whose iterations have a number of steps."""
    config = (
        PPOConfig()
        .training(train_batch_size=NUM_ENVS * NUM_STEPS, minibatch_size=128, num_epochs=4)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .reporting(min_sample_timesteps_per_iteration=num_steps)
        .learners(num_devices=1)
        .debugging(loggers=[], seed=0)
    )
    config.env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
    if not is_external:
        return config.environment(f"gymnasium:{ENV}")
    spaces = gymnasium.make(ENV)
    config.environment(
        observation_space=spaces.observation_space, action_space=spaces.action_space
    ).env_runners(placement="external")
    # Simulators that are stopped between rounds say nothing.
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


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name in results["rates"]:
        ratio = results["ratio"].get(name)
        rate = format_estimate(from_dict(results["median"][name]), ",.0f")
        rows.append((name, rate, format_estimate(from_dict(ratio), ".2f") if ratio else "1"))
    text = (
        f"PPO on gymnasium's {ENV}, {NUM_ENVS} x {NUM_STEPS} steps per train batch, 4 epochs x 16 "
        "minibatches, 64-64 networks, on one device. Environment steps that were trained on per "
        "second, medians over the rounds; ratios to the run in one process within a round; 95 % "
        f"intervals. In one process, {NUM_ENVS} environments are stepped in turn, with one call of "
        "the policy for all; a simulator has one. RLlib's client is that of its example."
    )
    table = Table(text=text, header=("environments", "steps/s", f"/ {IN_PROCESS}"), rows=rows)
    return render_document(*build_header(results, "External simulators"), table)


if __name__ == "__main__":
    sys.exit(main())
