"""Suite of user-facing speed: wall-clock time of whole commands, and latency of single actions."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.machine import ROOT, get_load_average
from benchmarks.peers import launch
from benchmarks.recommended import CARTPOLE_CONFIG
from benchmarks.statistics import estimate_median, estimate_ratio, to_dict
from jaxrl.bench.peers import run_process

STEPS, QUICK_STEPS = 500_000, 4_096
CALLS, QUICK_CALLS = 3_000, 20
OURS, COLD = "jaxrl", "jaxrl-cold"
HANDWRITTEN, CACHED, TUNED = "handwritten", "handwritten-cached", "handwritten-tuned"
SB3, RLLIB = "sb3", "rllib"
PARTS = ("command", "iterations", "latency")
PEERS = (OURS, COLD, HANDWRITTEN, CACHED, TUNED, SB3, RLLIB)
ROUNDS = 3
"""Default number of rounds of whole commands, which take half a minute each."""
ROUNDS_OF_SLOW = {SB3: 1, RLLIB: 1}
"""Rounds of commands that take minutes: their ratio to the others is beyond doubt."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Process that trains and ends.

    Args:
        arguments: Arguments of the interpreter, with `{steps}` for the environment steps.
        environment: Name of the virtual environment, as for `launch.Peer`.
        has_new_home: Whether every run has an empty home folder; otherwise runs share one.
        uses_jax_cache: Whether JAX's persistent compilation cache is enabled, in the home folder.
        starts_ray: Whether the process starts Ray, as for `launch.Peer`.
    """

    arguments: tuple[str, ...]
    environment: str | None = None
    has_new_home: bool = False
    uses_jax_cache: bool = False
    starts_ray: bool = False


_TRAIN = ("-m", "jaxrl.cli", "train", "file", CARTPOLE_CONFIG)
_SCRIPT = ("-m", "benchmarks.peers.handwritten_ppo.script", "{steps}")
COMMANDS = {
    OURS: Command(arguments=_TRAIN),
    COLD: Command(arguments=_TRAIN, has_new_home=True),
    HANDWRITTEN: Command(arguments=_SCRIPT),
    CACHED: Command(arguments=_SCRIPT, uses_jax_cache=True),
    TUNED: Command(arguments=(*_SCRIPT, "--tuned")),
    SB3: Command(arguments=("-m", "benchmarks.peers.sb3.script", "{steps}"), environment="sb3"),
    RLLIB: Command(
        arguments=("-m", "benchmarks.peers.rllib.script", "{steps}"),
        environment="rllib",
        starts_ray=True,
    ),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and peers that the options select."""
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    results: dict[str, Any] = {"env_steps": steps, "commands": {}, "iterations": {}, "latency": {}}
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        if "command" in options.parts:
            rounds = min(options.pairs, ROUNDS) if options.is_default_pairs else options.pairs
            results["commands"] = measure_commands(options.peers, steps, rounds, Path(folder))
    if "iterations" in options.parts and OURS in options.peers:
        results["iterations"] = measure_iterations(steps, options.pairs)
    if "latency" in options.parts:
        calls = QUICK_CALLS if options.quick else CALLS
        results["latency"] = measure_latency(options.peers, calls)
    return results


def measure_commands(peers: Sequence[str], steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Measure each command from start to end, in turn, after one round to fill the caches."""
    before = get_load_average()
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(rounds + 1):
        launch.log(f"commands: round {number} of {rounds}")
        for name in (name for name in peers if _should_run(name, number, rounds)):
            elapsed = time_command(name, steps, folder)
            seconds[name] += [elapsed] if number > 0 else []
    found = {
        name: {"seconds": values, "median": to_dict(estimate_median(values))}
        for name, values in seconds.items()
    }
    ratios = {}
    if OURS in seconds:
        for name, values in seconds.items():
            if name != OURS:
                ours = seconds[OURS][: len(values)]
                ratios[name] = to_dict(estimate_ratio(ours, values))
    return {"peers": found, "ratios": ratios, "load": [before, get_load_average()]}


def _should_run(name: str, number: int, rounds: int) -> bool:
    """Return whether a command runs in a round; round 0 fills the caches."""
    return name not in ROUNDS_OF_SLOW if number == 0 else number <= ROUNDS_OF_SLOW.get(name, rounds)


def time_command(name: str, steps: int, folder: Path) -> float:
    """Run a command once and return its seconds.

    Raises:
        PeerError: If the command fails.
    """
    command = COMMANDS[name]
    words = [word.format(steps=steps) for word in command.arguments]
    if name in (OURS, COLD) and steps != STEPS:
        words = [*words, "--stop", json.dumps({"num_env_steps_sampled_lifetime": steps})]
    with contextlib.ExitStack() as stack:
        home = folder / name
        if command.has_new_home:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        home.mkdir(exist_ok=True)
        variables = {"HOME": str(home)}
        if command.uses_jax_cache:
            variables |= measure.make_cache_variables(str(home / "xla"))
        python = launch.get_python(command.environment, starts_ray=command.starts_ray)
        start = time.perf_counter()
        run_process([*python, *words], ROOT, variables)
        return time.perf_counter() - start


def measure_iterations(steps: int, rounds: int) -> dict[str, Any]:
    """Measure the steps per second with one train batch per `train()`, and with all in one call.

    The config is the same. Two processes, which have compiled before, take turns.
    """
    before = get_load_average()
    setting = {"env_steps": steps}
    with contextlib.ExitStack() as stack:
        whole, single = (measure.start_worker(stack, launch.OURS) for _ in range(2))
        whole.ask("recommend", setting=setting)
        single.ask("recommend_single", setting=setting)
        runs = {"whole": partial(whole.ask, "run"), "single": partial(single.ask, "run_single")}
        replies = measure.take_turns(runs, rounds)
    rates = {name: [measure.compute_rate(reply) for reply in replies[name]] for name in runs}
    return {
        "rates": rates,
        "medians": {name: to_dict(estimate_median(r)) for name, r in rates.items()},
        "ratio": to_dict(estimate_ratio(rates["single"], rates["whole"])),
        "load": [before, get_load_average()],
    }


def measure_latency(peers: Sequence[str], calls: int) -> dict[str, Any]:
    """Measure percentiles of the seconds per action, in separate processes."""
    found: dict[str, list[float]] = {}
    if OURS in peers:
        found |= _run_and_parse(None, "benchmarks.peers.jaxrl_latency", str(calls))
    if SB3 in peers:
        seconds = _run_and_parse("sb3", "benchmarks.peers.sb3.script", "--latency", str(calls))
        found |= {f"sb3 {name}": values for name, values in seconds.items()}
    shares = {"p10": 0.1, "p50": 0.5, "p99": 0.99}
    return {
        name: {key: float(np.quantile(x, share, method="lower")) for key, share in shares.items()}
        for name, x in found.items()
    }


def _run_and_parse(environment: str | None, *words: str) -> dict[str, list[float]]:
    """Run a module with its arguments and parse the JSON in the last line that it prints."""
    output = run_process([*launch.get_python(environment), "-m", *words], ROOT)
    return json.loads(output.strip().splitlines()[-1])
