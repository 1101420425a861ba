"""Suite of user-facing speed: wall-clock time of whole commands, and latency of single actions."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.commands import Results
from benchmarks.machine import ROOT, get_load_average
from benchmarks.peers import launch
from benchmarks.settings import CARTPOLE_CONFIG
from benchmarks.settings import OURS as WORKER
from benchmarks.statistics import (
    describe_rates,
    estimate_median,
    estimate_ratio,
    from_dict,
    show,
    show_value,
    to_dict,
)
from jaxrl.bench.markdown import Table
from jaxrl.bench.peers import run_process

STEPS, QUICK_STEPS = 500_000, 4_096
CALLS, QUICK_CALLS = 3_000, 20
OURS, COLD = "jaxrl", "jaxrl-cold"
HANDWRITTEN, CACHED, TUNED = "handwritten", "handwritten-cached", "handwritten-tuned"
SB3, RLLIB = "sb3", "rllib"
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
        whole, single = (measure.start_worker(stack, WORKER) for _ in range(2))
        whole.ask("recommend", setting=setting)
        single.ask("recommend_single", setting=setting)
        runs = {"whole": partial(whole.ask, "run"), "single": partial(single.ask, "run_single")}
        replies = measure.take_turns(runs, rounds)
    rates = {name: [measure.compute_rate(reply) for reply in replies[name]] for name in runs}
    return {
        "rates": rates,
        "medians": describe_rates(rates)["median"],
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


MAX_RATIOS = {HANDWRITTEN: 0.75}
MIN_SHARE, MAX_LATENCY_S = 0.85, 0.15e-3
DESCRIPTIONS = {
    OURS: "`jaxrl train file configs/classic/cartpole-ppo.yaml`, with evaluations, run "
    "folder, and plot",
    COLD: "the same with an empty compilation cache",
    HANDWRITTEN: "hand-written script with jax, flax, and optax: the same networks, batches, "
    "and epochs; prints the return",
    CACHED: "the same with a filled persistent compilation cache of JAX",
    TUNED: "the same without a cache, with the cores as devices and a cheaper shuffle",
    SB3: "Stable-Baselines3, `PPO(...).learn(...)`",
    RLLIB: "RLlib, repeated `algo.train()`, sampling and learning in the driver process",
}
"""Description of each process."""


def build_tables(results: Results) -> Iterator[Table]:
    """Build all tables."""
    for name, build in (
        ("commands", _build_commands),
        ("iterations", _build_iterations),
        ("latency", _build_latency),
    ):
        if results[name]:
            yield build(results)


def build_readme_table(results: Results) -> Table:
    """Build README's table of the results of each command."""
    rows = [
        (DESCRIPTIONS[name], f"{show_value(peer['median'], '.1f')} s")
        for name, peer in results["commands"]["peers"].items()
    ]
    if results["iterations"]:
        medians = results["iterations"]["medians"]
        for name, words in (
            ("single", "one train batch per"),
            ("whole", "all train batches in one"),
        ):
            rate = show_value(medians[name], ",.0f")
            rows.append((f"`algo.train()` with {words} call", f"{rate} steps/s"))
    if "compute_single_action" in results["latency"]:
        p50 = results["latency"]["compute_single_action"]["p50"]
        rows.append(("`algo.compute_single_action(obs)`, median", f"{1e3 * p50:.2f} ms"))
    return Table(header=(f"PPO, CartPole, {results['env_steps']:,} steps", "result"), rows=rows)


def _build_commands(results: Results) -> Table:
    measured = results["commands"]
    rows = []
    for name, peer in measured["peers"].items():
        ratio_text, verdict = "", ""
        if name in measured["ratios"]:
            ratio, aim = from_dict(measured["ratios"][name]), MAX_RATIOS.get(name)
            ratio_text = show(measured["ratios"][name], ".2f")
            verdict = "" if aim is None else f"at most {aim:g}: {ratio.judge_at_most(aim)}"
        seconds = show(peer["median"], ".1f")
        rows.append((name, DESCRIPTIONS[name], seconds, ratio_text, verdict))
    return Table(
        title="From start to end",
        text="Wall-clock time of whole processes that train PPO on CartPole-v1, 4 environments x "
        f"128 steps, for {results['env_steps']:,} steps. Medians over rounds in which the "
        "processes take turns, with 95 % intervals; one round for SB3 and RLlib.",
        header=("process", "description", "seconds", "jaxrl's seconds / its seconds", "aim"),
        rows=rows,
    )


def _build_iterations(results: Results) -> Table:
    measured = results["iterations"]
    ratio = from_dict(measured["ratio"])
    return Table(
        title="Iterations",
        text=f"The second runs at {show(measured['ratio'], '.2f')} of the speed of the first "
        f"(aim: at least {MIN_SHARE}; reached: {ratio.judge_at_least(MIN_SHARE)}).",
        header=("iterations", "steps/s"),
        rows=[
            (description, show_value(measured["medians"][name], ",.0f"))
            for name, description in (
                ("whole", "all train batches in one `train()`, as in the other tables"),
                ("single", "one train batch per `train()`, with results written"),
            )
        ],
    )


def _build_latency(results: Results) -> Table:
    measured = results["latency"]
    text = "Milliseconds per action of an MLP, after two calls to warm up."
    ours = measured.get("compute_single_action")
    if ours is not None:
        reached = "yes" if ours["p50"] <= MAX_LATENCY_S else "no"
        text += f" Aim: at most {1e3 * MAX_LATENCY_S:g} at p50; reached: {reached}."
    return Table(
        title="A single action",
        text=text,
        header=("call", "p10", "p50", "p99"),
        rows=[
            (name, *(f"{1e3 * spread[key]:.3f}" for key in ("p10", "p50", "p99")))
            for name, spread in measured.items()
        ],
    )


SUITE = measure.SpeedSuite(
    stem="user",
    title="Speed as a user sees it",
    peers=tuple(COMMANDS),
    parts=("command", "iterations", "latency"),
    run=run,
    build_tables=build_tables,
)
