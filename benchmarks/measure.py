"""Measurements of several peers in turn. Every function returns plain values for the JSON file."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from benchmarks import limits
from benchmarks.commands import Results, build_header
from benchmarks.limits import AnySetting
from benchmarks.machine import get_load_average
from benchmarks.peers import launch
from benchmarks.peers.launch import Worker
from benchmarks.settings import LIMITS
from benchmarks.statistics import compare_to, estimate_median, to_dict
from jaxrl.bench.markdown import Table, render_document

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedSuite:
    """Suite of `benchmarks.speed` with a report of its own.

    Args:
        stem: Stem of the result files.
        title: Title of the report.
        peers: Peers that are measured by default.
        other_peers: Peers that are measured only if they are named.
        parts: Parts, all of which are measured by default.
        run: Function that measures the parts and peers that the options select.
        build_tables: Function from the results to the tables of the report.
    """

    stem: str
    title: str
    peers: tuple[str, ...]
    other_peers: tuple[str, ...] = ()
    parts: tuple[str, ...]
    run: Callable[[argparse.Namespace], dict[str, Any]]
    build_tables: Callable[[Results], Iterable[Table | None]]

    def render(self, results: Results) -> str:
        """Render the report as Markdown."""
        return render_document(*build_header(results, self.title), *self.build_tables(results))


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


def measure_rates(
    functions: Mapping[str, Callable[[], float]], rounds: int, work: float
) -> dict[str, list[float]]:
    """Measure functions that do the same work in turn, and return the work per second of each."""
    seconds = take_turns(functions, rounds)
    return {name: [work / elapsed for elapsed in found] for name, found in seconds.items()}


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
        if name == LIMITS:
            probes = replies[name][0]["rates"]
            peers[name]["rates"] = {p: [r["rates"][p] for r in replies[name]] for p in probes}
        else:
            peers[name]["steps_per_s"] = [compute_rate(reply) for reply in replies[name]]
            peers[name]["return_mean"] = worker.ask("evaluate")["return_mean"]
    return peers


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
    others = {name: settings[name] for name in workers if name != LIMITS}
    arguments = {name: setting.to_dict() for name, setting in others.items()}
    if LIMITS in workers:
        arguments[LIMITS] = limits.make_request(others)
    peers = measure_in_turn(workers, arguments, rounds)
    machine_limits = peers.pop(LIMITS, None)
    rates = {name: peer["steps_per_s"] for name, peer in peers.items()}
    ratios = compare_to(rates, ours, is_inverse=True)
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
        names += [name for name in options.peers if name == LIMITS]
        launch.log(f"{part}: {options.pairs} rounds of {', '.join(names)}")
        with contextlib.ExitStack() as stack:
            workers = start_workers(stack, names, results["peers"])
            measured = compare_peers(workers, settings, options.pairs, ours[part])
        used = {name: settings[name].to_dict() for name in measured["peers"]}
        results["throughput"][part] = {"settings": used, **measured}
    return results
