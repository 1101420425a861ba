"""Measurements that suites share. Every function returns plain values for the JSON file."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar

from benchmarks import limits
from benchmarks.limits import AnySetting
from benchmarks.machine import ROOT, get_load_average
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDATIONS
from benchmarks.settings import Setting, adapt_to_peer
from benchmarks.statistics import estimate_median, estimate_ratio, to_dict
from benchmarks.worker import Worker
from jaxrl.bench.peers import run_process

T = TypeVar("T")

OVERHEAD_ITERATION_S = 0.6
IMPORT_STATEMENTS = {
    "import jax, flax": "import jax, flax",
    "import jaxrl": "import jaxrl",
    "PPOConfig and Algorithm": "from jaxrl import Algorithm; "
    "from jaxrl.algorithms.ppo import PPOConfig",
}


def make_cache_variables(folder: str) -> dict[str, str]:
    """Return environment variables that make JAX cache every compiled program in `folder`."""
    return {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def start_worker(stack: contextlib.ExitStack, name: str) -> Worker:
    """Start a peer with an empty compilation cache, which runs until the stack unwinds.

    A peer that starts Ray is stopped when idle.
    """
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
    worker = launch.start(name, env=make_cache_variables(folder), stop_when_idle=True)
    return stack.enter_context(worker)


def start_workers(
    stack: contextlib.ExitStack, names: Iterable[str], infos: dict[str, Any]
) -> dict[str, Worker]:
    """Start peers one after another, because several Rays at once start slowly.

    Args:
        stack: Stack until whose end they run.
        names: Names of the peers.
        infos: Versions and devices of the peers, which are added here.
    """
    workers: dict[str, Worker] = {}
    for name in names:
        workers[name] = start_worker(stack, name)
        infos[name] = workers[name].ask("info")
    return workers


def take_turns(functions: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call every function once per round, after one round to warm up.

    The order rotates by one every round.

    Args:
        functions: Functions by name.
        rounds: Number of rounds after the first.

    Returns:
        What the functions returned, a list for each.
    """
    found: dict[str, list[T]] = {name: [] for name in functions}
    order = list(functions)
    for number in range(rounds + 1):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            value = functions[name]()
            if number > 0:
                found[name].append(value)
    return found


def compute_rate(reply: Mapping[str, Any]) -> float:
    """Compute the environment steps per second of a measurement."""
    return reply["env_steps"] / reply["seconds"]


def measure_in_turn(
    workers: Mapping[str, Worker],
    settings: Mapping[str, dict[str, Any]],
    rounds: int,
    *,
    setup_command: str = "setup",
) -> dict[str, dict[str, Any]]:
    """Set up every peer, then measure all of them in turn.

    Args:
        workers: Peers by name.
        settings: Arguments of the setup command, by peer.
        rounds: Number of measurements per peer.
        setup_command: Command that sets up a peer.

    Returns:
        For each peer, the reply to its setup, `steps_per_s`, and `return_mean`; `rates` for the
        peer that measures the machine's limits.
    """
    peers: dict[str, dict[str, Any]] = {
        name: worker.ask(setup_command, setting=settings[name]) for name, worker in workers.items()
    }
    replies = take_turns({n: partial(w.ask, "run") for n, w in workers.items()}, rounds)
    for name, worker in workers.items():
        if name == launch.LIMITS:
            probes = replies[name][0]["rates"]
            peers[name]["rates"] = {p: [r["rates"][p] for r in replies[name]] for p in probes}
        else:
            peers[name]["steps_per_s"] = [compute_rate(reply) for reply in replies[name]]
            peers[name]["return_mean"] = worker.ask("evaluate")["return_mean"]
    return peers


def measure_throughput(
    workers: Mapping[str, Worker], setting: Setting, rounds: int, ours: str = launch.OURS
) -> dict[str, Any]:
    """Measure every peer's environment steps per second at one setting, and the ratios of ours."""
    settings = {name: adapt_to_peer(setting, is_slow=name == launch.SB3) for name in workers}
    measured = compare_peers(workers, settings, rounds, ours)
    return {"setting": setting.to_dict(), "env_steps": setting.env_steps, **measured}


def compare_peers(
    workers: Mapping[str, Worker],
    settings: Mapping[str, AnySetting],
    rounds: int,
    ours: str,
) -> dict[str, Any]:
    """Measure every peer's environment steps per second, each with its own setting.

    The peer that measures the machine's limits, if it takes part, measures those of the other
    peers; it needs no setting, and its results are separate.

    Args:
        workers: Peers by name.
        settings: Settings by peer.
        rounds: Number of measurements per peer.
        ours: Peer whose rate is divided by the others'.
    """
    before = get_load_average()
    others = {name: settings[name] for name in workers if name != launch.LIMITS}
    arguments = {name: setting.to_dict() for name, setting in others.items()}
    if launch.LIMITS in workers:
        arguments[launch.LIMITS] = limits.make_request(others)
    peers = measure_in_turn(workers, arguments, rounds)
    machine_limits = peers.pop(launch.LIMITS, None)
    ratios = {}
    if ours in peers:
        for name, peer in peers.items():
            if name != ours:
                ratio = estimate_ratio(peers[ours]["steps_per_s"], peer["steps_per_s"])
                ratios[name] = to_dict(ratio)
    for peer in peers.values():
        peer["median"] = to_dict(estimate_median(peer["steps_per_s"]))
    found = {"peers": peers, "ratios": ratios, "load": [before, get_load_average()]}
    return found if machine_limits is None else {**found, "limits": machine_limits}


def measure_parts(
    options: argparse.Namespace,
    make_settings: Callable[..., Mapping[str, AnySetting]],
    ours: Mapping[str, str],
    quick_steps: int,
) -> dict[str, Any]:
    """Measure the parts and peers that the options select, each part in new processes.

    Args:
        options: Parsed options.
        make_settings: Function from a part, and the environment steps per measurement, to the
            settings of its peers.
        ours: Peer whose rate is divided by the others', by part.
        quick_steps: Environment steps per measurement of a quick run.
    """
    steps = options.steps or (quick_steps if options.quick else None)
    results: dict[str, Any] = {"peers": {}, "throughput": {}}
    for part in options.parts:
        settings = make_settings(part, steps=steps)
        names = [name for name in options.peers if name in settings]
        if not names:
            continue
        names += [name for name in options.peers if name == launch.LIMITS]
        launch.log(f"{part}: {options.pairs} rounds of {', '.join(names)}")
        with contextlib.ExitStack() as stack:
            workers = start_workers(stack, names, results["peers"])
            measured = compare_peers(workers, settings, options.pairs, ours[part])
        used = {name: settings[name].to_dict() for name in measured["peers"]}
        results["throughput"][part] = {"settings": used, **measured}
    return results


def measure_recommended(
    workers: Mapping[str, Worker], steps: int | None, rounds: int
) -> dict[str, Any]:
    """Measure every peer's environment steps per second with its recommended hyperparameters.

    The work per step differs between peers, so there are no ratios.

    Args:
        workers: Peers by name.
        steps: Environment steps per measurement; None for each peer's own number.
        rounds: Number of measurements per peer.
    """
    before = get_load_average()
    settings = {name: {"env_steps": steps or RECOMMENDATIONS[name].env_steps} for name in workers}
    peers = measure_in_turn(workers, settings, rounds, setup_command="recommend")
    for peer in peers.values():
        peer["median"] = to_dict(estimate_median(peer["steps_per_s"]))
    return {"peers": peers, "load": [before, get_load_average()]}


def measure_flow(worker: Worker, setting: Setting, rounds: int) -> dict[str, Any]:
    """Measure the rate and the waiting times of an asynchronous run, alone on the machine.

    The first measurement is discarded, because its queue is still empty.
    """
    before = get_load_average()
    worker.ask("setup", setting=setting.to_dict())
    replies = take_turns({"flow": partial(worker.ask, "flow")}, rounds)["flow"]
    return {
        "env_steps": setting.env_steps,
        "replies": replies,
        "steps_per_s": to_dict(estimate_median([compute_rate(reply) for reply in replies])),
        "load": [before, get_load_average()],
    }


def measure_train_overhead(
    worker: Worker, setting: Setting, rounds: int, steps_per_s: float
) -> dict[str, Any]:
    """Measure the ratio of `train()` to the bare loop of the same compiled program.

    An iteration lasts a little over half a second: the longer it is, the less overhead matters.
    """
    updates = max(1, math.ceil(OVERHEAD_ITERATION_S * steps_per_s / setting.train_batch_size))
    setting = dataclasses.replace(setting, num_updates=updates)
    worker.ask("setup", setting=setting.to_dict())
    replies = take_turns({name: partial(worker.ask, name) for name in ("bare", "run")}, rounds)
    seconds = {name: [reply["seconds"] for reply in found] for name, found in replies.items()}
    return {
        "num_updates": updates,
        "train_s": seconds["run"],
        "bare_s": seconds["bare"],
        "ratio": to_dict(estimate_ratio(seconds["run"], seconds["bare"])),
    }


def measure_import_times(rounds: int) -> dict[str, list[float]]:
    """Measure each import in fresh processes, in turn; the first round fills the disk cache."""
    imports = {name: partial(_time_import, text) for name, text in IMPORT_STATEMENTS.items()}
    return take_turns(imports, rounds)


def measure_compile_times(setting: Setting, rounds: int) -> dict[str, Any]:
    """Measure compilation of jaxrl's PPO in fresh processes, with an empty cache and a full one.

    `program_s` is the time for the train program alone, `compile_s` that from `build()` to the end
    of the first `train()`, minus the time of a second one.
    """
    setting = dataclasses.replace(setting, num_updates=1)
    seconds: dict[str, list[dict[str, Any]]] = {"cold": [], "cached": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
            for replies in seconds.values():
                replies.append(_compile_once(setting, folder))
    return {"setting": setting.name, **seconds}


def compute_median_excess(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of paired differences."""
    return median(a - b for a, b in zip(values, base, strict=True))


def _time_import(statement: str) -> float:
    code = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    return float(run_process([sys.executable, "-c", code], ROOT).split()[-1])


def _compile_once(setting: Setting, cache_folder: str) -> dict[str, Any]:
    with launch.start(launch.OURS, env=make_cache_variables(cache_folder)) as worker:
        return worker.ask("setup", setting=setting.to_dict())
