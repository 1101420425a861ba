"""What is measured, and in what order. Every function returns plain values for the JSON file."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import limits
from benchmarks.limits import AnySetting
from benchmarks.machine import load_average
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDED
from benchmarks.settings import Setting, for_peer
from benchmarks.statistics import Estimate, median_interval, paired_ratio
from benchmarks.worker import Worker

OVERHEAD_ITERATION_S = 0.6
IMPORTS = {
    "import jax, flax": "import jax, flax",
    "import jaxrl": "import jaxrl",
    "PPOConfig and Algorithm": "from jaxrl import Algorithm; "
    "from jaxrl.algorithms.ppo import PPOConfig",
}


def cache_variables(folder: str) -> dict[str, str]:
    """Environment variables that send every compiled program to `folder`."""
    return {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def started(stack: contextlib.ExitStack, name: str) -> Worker:
    """A peer with an empty compilation cache, alive until the stack unwinds.

    One that has started Ray is stopped when idle.
    """
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
    worker = launch.start(name, env=cache_variables(folder), stop_when_idle=True)
    return stack.enter_context(worker)


def interleaved(
    workers: Mapping[str, Worker],
    settings: Mapping[str, dict[str, Any]],
    rounds: int,
    *,
    setup: str = "setup",
) -> dict[str, dict[str, Any]]:
    """Set every peer up, one measurement to warm up, then `rounds` times each in turn.

    The first of a round moves on by one every round, so that no peer always follows the same one.

    Args:
        workers: The peers.
        settings: What each is asked for.
        rounds: How often each is measured.
        setup: The command that sets a peer up.
    """
    peers: dict[str, dict[str, Any]] = {}
    replies: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for name, worker in workers.items():
        peers[name] = worker.ask(setup, setting=settings[name])
    order = list(workers)
    for number in range(rounds + 1):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            reply = workers[name].ask("run")
            if number > 0:
                replies[name].append(reply)
    for name, worker in workers.items():
        if name == launch.LIMITS:
            probes = replies[name][0]["rates"]
            peers[name]["rates"] = {p: [r["rates"][p] for r in replies[name]] for p in probes}
        else:
            steps = [reply["env_steps"] / reply["seconds"] for reply in replies[name]]
            peers[name]["steps_per_s"] = steps
            peers[name]["return_mean"] = worker.ask("evaluate")["return_mean"]
    return peers


def throughput(
    workers: Mapping[str, Worker], setting: Setting, rounds: int, ours: str = launch.OURS
) -> dict[str, Any]:
    """Environment steps a second of every peer at one setting, and ours over each of the others."""
    settings = {name: for_peer(setting, slow=name == launch.SB3) for name in workers}
    measured = compared(workers, settings, rounds, ours)
    return {"setting": setting.to_dict(), "env_steps": setting.env_steps, **measured}


def compared(
    workers: Mapping[str, Worker],
    settings: Mapping[str, AnySetting],
    rounds: int,
    ours: str,
) -> dict[str, Any]:
    """Environment steps a second of every peer, each with a setting of its own.

    The peer of the machine's limits, if it takes part, is asked for what bounds the others; it needs
    no setting, and what it says is apart from theirs.
    """
    before = load_average()
    others = {name: settings[name] for name in workers if name != launch.LIMITS}
    wanted = {name: setting.to_dict() for name, setting in others.items()}
    if launch.LIMITS in workers:
        wanted[launch.LIMITS] = limits.asked(others)
    peers = interleaved(workers, wanted, rounds)
    machine = peers.pop(launch.LIMITS, None)
    ratios = {}
    if ours in peers:
        for name, peer in peers.items():
            if name != ours:
                ratio = paired_ratio(peers[ours]["steps_per_s"], peer["steps_per_s"])
                ratios[name] = as_dict(ratio)
    for peer in peers.values():
        peer["median"] = as_dict(median_interval(peer["steps_per_s"]))
    found = {"peers": peers, "ratios": ratios, "load": [before, load_average()]}
    return found if machine is None else {**found, "limits": machine}


def own_settings(workers: Mapping[str, Worker], steps: int | None, rounds: int) -> dict[str, Any]:
    """Environment steps a second of every peer with the hyperparameters that it recommends.

    What they do for a step is not the same, so nothing is divided by anything.

    Args:
        workers: The peers.
        steps: Environment steps of one measurement, in place of each peer's own number.
        rounds: How often each is measured.
    """
    before = load_average()
    settings = {name: {"env_steps": steps or RECOMMENDED[name].env_steps} for name in workers}
    peers = interleaved(workers, settings, rounds, setup="recommend")
    for peer in peers.values():
        peer["median"] = as_dict(median_interval(peer["steps_per_s"]))
    return {"peers": peers, "load": [before, load_average()]}


def flow(worker: Worker, setting: Setting, rounds: int) -> dict[str, Any]:
    """What an asynchronous run waits for, as it says itself, alone on the machine.

    The first measurement, which has no queue yet, is not counted.
    """
    before = load_average()
    worker.ask("setup", setting=setting.to_dict())
    replies = [worker.ask("flow") for _ in range(rounds + 1)][1:]
    speeds = [reply["env_steps"] / reply["seconds"] for reply in replies]
    return {
        "env_steps": setting.env_steps,
        "replies": replies,
        "steps_per_s": as_dict(median_interval(speeds)),
        "load": [before, load_average()],
    }


def train_overhead(
    worker: Worker, setting: Setting, rounds: int, steps_per_s: float
) -> dict[str, Any]:
    """`train()` over the bare loop of the same compiled program, at short iterations.

    An iteration lasts a little over half a second: the longer it is, the less overhead counts.
    """
    updates = max(1, math.ceil(OVERHEAD_ITERATION_S * steps_per_s / setting.train_batch_size))
    setting = dataclasses.replace(setting, num_updates=updates)
    worker.ask("setup", setting=setting.to_dict())
    seconds: dict[str, list[float]] = {"run": [], "bare": []}
    for number in range(rounds + 1):
        for command in ("run", "bare") if number % 2 else ("bare", "run"):
            taken = worker.ask(command)["seconds"]
            if number > 0:
                seconds[command].append(taken)
    return {
        "num_updates": updates,
        "train_s": seconds["run"],
        "bare_s": seconds["bare"],
        "ratio": as_dict(paired_ratio(seconds["run"], seconds["bare"])),
    }


def import_times(rounds: int) -> dict[str, list[float]]:
    """Seconds of each import in fresh processes, in turn, after one round to fill the disk cache."""
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for number in range(rounds + 1):
        for name, statement in IMPORTS.items():
            taken = _timed_import(statement)
            if number > 0:
                seconds[name].append(taken)
    return seconds


def compile_times(setting: Setting, rounds: int) -> dict[str, Any]:
    """Seconds that compiling our PPO takes in fresh processes: with an empty cache, then again.

    `program_s` is the train program alone, `compile_s` everything from `build()` to a compiled
    first `train()`.
    """
    setting = dataclasses.replace(setting, num_updates=1)
    seconds: dict[str, list[dict[str, Any]]] = {"cold": [], "cached": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
            for taken in seconds.values():
                taken.append(_compile_once(setting, folder))
    return {"setting": setting.name, **seconds}


def median_excess(values: Sequence[float], base: Sequence[float]) -> float:
    """The median of paired differences."""
    return median(a - b for a, b in zip(values, base, strict=True))


def say(text: str) -> None:
    """Progress, which is no result."""
    print(text, file=sys.stderr, flush=True)


def as_dict(estimate: Estimate) -> dict[str, Any]:
    return dataclasses.asdict(estimate)


def _timed_import(statement: str) -> float:
    code = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=launch.ROOT
    )
    return float(done.stdout.split()[-1])


def _compile_once(setting: Setting, cache_folder: str) -> dict[str, Any]:
    with launch.start(launch.OURS, env=cache_variables(cache_folder)) as worker:
        return worker.ask("setup", setting=setting.to_dict())
