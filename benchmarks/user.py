"""The suite of what a user sees: whole commands by the clock on the wall, and single actions."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.machine import load_average
from benchmarks.peers import launch
from benchmarks.recommended import CARTPOLE_CONFIG
from benchmarks.statistics import median_interval, paired_ratio
from benchmarks.worker import ROOT, PeerError

STEPS, QUICK_STEPS = 500_000, 4_096
CALLS, QUICK_CALLS = 3_000, 20
OURS, COLD = "jaxrl", "jaxrl-cold"
HANDWRITTEN, CACHED, TUNED = "handwritten", "handwritten-cached", "handwritten-tuned"
SB3, RLLIB = "sb3", "rllib"
PARTS = ("command", "iterations", "latency")
PEERS = (OURS, COLD, HANDWRITTEN, CACHED, TUNED, SB3, RLLIB)
ROUNDS = 3
"""Of whole commands, which take half a minute each, unless a number is asked for."""
SLOW = {SB3: 1, RLLIB: 1}
"""Rounds of those that take minutes: their ratio to the others is far from any doubt."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A process that trains and ends.

    Args:
        words: What follows the interpreter, `{steps}` being the environment steps.
        environment: As for `launch.Peer`.
        is_anew: Every run has an empty home folder; else they share one.
        sets_cache: JAX's own cache is set up for it, in its home folder.
        starts_ray: As for `launch.Peer`.
    """

    words: tuple[str, ...]
    environment: str | None = None
    is_anew: bool = False
    sets_cache: bool = False
    starts_ray: bool = False


_TRAIN = ("-m", "jaxrl.cli", "train", "file", CARTPOLE_CONFIG)
_SCRIPT = ("-m", "benchmarks.peers.handwritten_ppo.script", "{steps}")
COMMANDS = {
    OURS: Command(words=_TRAIN),
    COLD: Command(words=_TRAIN, is_anew=True),
    HANDWRITTEN: Command(words=_SCRIPT),
    CACHED: Command(words=_SCRIPT, sets_cache=True),
    TUNED: Command(words=(*_SCRIPT, "--tuned")),
    SB3: Command(words=("-m", "benchmarks.peers.sb3.script", "{steps}"), environment="sb3"),
    RLLIB: Command(
        words=("-m", "benchmarks.peers.rllib.script", "{steps}"),
        environment="rllib",
        starts_ray=True,
    ),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and peers that the options name."""
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    results: dict[str, Any] = {"env_steps": steps, "commands": {}, "iterations": {}, "latency": {}}
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        if "command" in options.parts:
            rounds = min(options.pairs, ROUNDS) if options.is_default_pairs else options.pairs
            results["commands"] = commands(options.peers, steps, rounds, Path(folder))
    if "iterations" in options.parts and OURS in options.peers:
        results["iterations"] = iterations(steps, options.pairs)
    if "latency" in options.parts:
        calls = QUICK_CALLS if options.quick else CALLS
        results["latency"] = latency(options.peers, calls)
    return results


def commands(peers: Sequence[str], steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of each command from start to end, in turn; one round to fill caches comes first."""
    before = load_average()
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(rounds + 1):
        measure.say(f"commands: round {number} of {rounds}")
        for name in (name for name in peers if _takes_part(name, number, rounds)):
            taken = timed(name, steps, folder)
            seconds[name] += [taken] if number > 0 else []
    found = {
        name: {"seconds": values, "median": measure.as_dict(median_interval(values))}
        for name, values in seconds.items()
    }
    ratios = {}
    if OURS in seconds:
        for name, values in seconds.items():
            if name != OURS:
                ours = seconds[OURS][: len(values)]
                ratios[name] = measure.as_dict(paired_ratio(ours, values))
    return {"peers": found, "ratios": ratios, "load": [before, load_average()]}


def _takes_part(name: str, number: int, rounds: int) -> bool:
    """Tell whether a command is run in a round; round 0 fills caches."""
    return name not in SLOW if number == 0 else number <= SLOW.get(name, rounds)


def timed(name: str, steps: int, folder: Path) -> float:
    """Run a command once, and return its seconds.

    Raises:
        PeerError: It failed.
    """
    command = COMMANDS[name]
    words = [word.format(steps=steps) for word in command.words]
    if name in (OURS, COLD) and steps != STEPS:
        words = [*words, "--stop", json.dumps({"num_env_steps_sampled_lifetime": steps})]
    with contextlib.ExitStack() as stack:
        home = folder / name
        if command.is_anew:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        home.mkdir(exist_ok=True)
        variables = {"HOME": str(home)}
        if command.sets_cache:
            variables |= measure.cache_variables(str(home / "xla"))
        prefix = (str(launch.ISOLATE),) if command.starts_ray else ()
        line = [*prefix, launch.python_of(command.environment), *words]
        start = time.perf_counter()
        done = subprocess.run(
            line,
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        taken = time.perf_counter() - start
    if done.returncode:
        raise PeerError(f"{name} ended with code {done.returncode}\n{done.stderr[-2000:]}")
    return taken


def iterations(steps: int, rounds: int) -> dict[str, Any]:
    """Environment steps a second of one train batch a call, and of one `train()` for all of them.

    The same config, alternating in one process of each kind, which have compiled before.
    """
    before = load_average()
    setting = {"env_steps": steps}
    rates: dict[str, list[float]] = {"whole": [], "single": []}
    with contextlib.ExitStack() as stack:
        workers = {name: measure.started(stack, launch.OURS) for name in rates}
        workers["whole"].ask("recommend", setting=setting)
        workers["single"].ask("recommend_single", setting=setting)
        for number in range(rounds + 1):
            for name, worker in _turns(workers, number):
                reply = worker.ask("run" if name == "whole" else "run_single")
                rate = reply["env_steps"] / reply["seconds"]
                rates[name] += [rate] if number > 0 else []
    return {
        "rates": rates,
        "medians": {name: measure.as_dict(median_interval(r)) for name, r in rates.items()},
        "ratio": measure.as_dict(paired_ratio(rates["single"], rates["whole"])),
        "load": [before, load_average()],
    }


def _turns(workers: Mapping[str, Any], number: int) -> Iterator[tuple[str, Any]]:
    items = list(workers.items())
    yield from items[number % 2 :] + items[: number % 2]


def latency(peers: Sequence[str], calls: int) -> dict[str, Any]:
    """Percentiles of the seconds that a single action takes, in processes of their own."""
    found: dict[str, list[float]] = {}
    if OURS in peers:
        found |= _printed(sys.executable, "benchmarks.peers.jaxrl_latency", str(calls))
    if SB3 in peers:
        words = ("benchmarks.peers.sb3.script", "--latency", str(calls))
        seconds = _printed(launch.python_of("sb3"), *words)
        found |= {f"sb3 {name}": values for name, values in seconds.items()}
    return {
        name: {"p10": _percentile(s, 0.1), "p50": _percentile(s, 0.5), "p99": _percentile(s, 0.99)}
        for name, s in found.items()
    }


def _printed(python: str, module: str, *arguments: str) -> dict[str, list[float]]:
    done = subprocess.run(
        [python, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PeerError(f"{module} ended with code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
