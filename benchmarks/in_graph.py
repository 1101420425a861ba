"""Suite of environments in the compiled program: PPO on CartPole, and the time around its training."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

from benchmarks import measure
from benchmarks.commands import Results
from benchmarks.machine import ROOT, get_load_average
from benchmarks.peers import launch
from benchmarks.peers.launch import Worker
from benchmarks.report import build_throughput_tables, format_rate
from benchmarks.settings import (
    LIMITS,
    OURS,
    PEERS,
    RECOMMENDATIONS,
    REJAX,
    RLLIB_2X16,
    SB3,
    Setting,
    adapt_to_peer,
)
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl.bench.markdown import Cells, Table, format_optional, format_range
from jaxrl.bench.peers import run_process

QUICK_RECOMMENDED_STEPS = 2_000
OVERHEAD_ITERATION_S = 0.6
IMPORT_STATEMENTS = {
    "import jax, flax": "import jax, flax",
    "import jaxrl": "import jaxrl",
    "PPOConfig and Algorithm": "from jaxrl import Algorithm; "
    "from jaxrl.algorithms.ppo import PPOConfig",
}
RATIO_AIMS = {
    ("4x128", REJAX): 1.0,
    ("64x32", REJAX): 1.9,
    ("2048x16", REJAX): 1.8,
    ("4x128", SB3): 15.0,
    ("64x32", SB3): 15.0,
    ("2048x16", SB3): 15.0,
}
MEAN_AIMS = {REJAX: 1.8, SB3: 15.0}
"""Lower bounds aimed at for geometric means over all settings, by peer."""
MAX_OVERHEAD, MAX_IMPORT_S, MAX_COLD_S, MAX_CACHED_S = 1.05, 1.0, 5.0, 1.5

THROUGHPUT_TEXT = (
    "PPO on CartPole-v1, environments x steps per train batch; medians over the rounds with 95 % "
    "bootstrap intervals, without compilation. The return is that of the sampling policy after "
    "all rounds; it only shows that the peer learns and is not a comparison."
)


def run(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"peers": {}, "throughput": {}, "overhead": {}, "recommended": {}}
    with contextlib.ExitStack() as stack:
        names = [name for name in options.peers if name != RLLIB_2X16]
        workers = measure.start_workers(stack, names, results["peers"])
        if "throughput" in options.parts and workers:
            for setting in options.settings:
                launch.log(f"{setting.name}: {options.pairs} rounds of {', '.join(workers)}")
                measured = _measure_throughput(workers, setting, options.pairs)
                results["throughput"][setting.name] = measured
        if "overhead" in options.parts and OURS in workers:
            for setting in options.settings:
                launch.log(f"{setting.name}: train() compared with the bare loop")
                results["overhead"][setting.name] = _measure_train_overhead(
                    workers[OURS], setting, options.pairs, _get_our_speed(results, setting)
                )
    if "recommended" in options.parts:
        results["recommended"] = _measure_recommended(options, results["peers"])
    rounds = 1 if options.quick else 5
    if "imports" in options.parts:
        launch.log("imports")
    results["imports"] = _measure_import_times(rounds) if "imports" in options.parts else {}
    if "compile" in options.parts and OURS in options.peers:
        launch.log("compile times")
        results["compile"] = _measure_compile_times(
            options.settings[len(options.settings) // 2], min(rounds, 3)
        )
    else:
        results["compile"] = {}
    return results


def _measure_recommended(options: argparse.Namespace, infos: dict[str, Any]) -> dict[str, Any]:
    """Measure every peer with its recommended hyperparameters, in new processes.

    The work per step differs between peers, so there are no ratios.

    Args:
        options: Parsed options.
        infos: Versions and devices of the peers, which are added here.
    """
    peers = [name for name in RECOMMENDATIONS if name in options.peers]
    if not peers:
        return {}
    launch.log(f"recommended: {options.pairs} rounds of {', '.join(peers)}")
    steps = options.steps or (QUICK_RECOMMENDED_STEPS if options.quick else None)
    before = get_load_average()
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, peers, infos)
        settings = {n: {"env_steps": steps or RECOMMENDATIONS[n].env_steps} for n in workers}
        found = measure.measure_in_turn(workers, settings, options.pairs, setup_command="recommend")
    for peer in found.values():
        peer["median"] = to_dict(estimate_median(peer["steps_per_s"]))
    return {"peers": found, "load": [before, get_load_average()]}


def _get_our_speed(results: dict[str, Any], setting: Setting) -> float:
    """Return jaxrl's measured steps per second, or a lower bound without a measurement."""
    measured = results["throughput"].get(setting.name)
    if measured is None:
        return setting.env_steps / OVERHEAD_ITERATION_S
    return measured["peers"][OURS]["median"]["median"]


def _measure_throughput(
    workers: Mapping[str, Worker], setting: Setting, rounds: int
) -> dict[str, Any]:
    """Measure every peer's environment steps per second at one setting, and the ratios of ours."""
    settings = {name: adapt_to_peer(setting, is_slow=name == SB3) for name in workers}
    measured = measure.compare_peers(workers, settings, rounds, OURS)
    return {"setting": setting.to_dict(), "env_steps": setting.env_steps, **measured}


def _measure_train_overhead(
    worker: Worker, setting: Setting, rounds: int, steps_per_s: float
) -> dict[str, Any]:
    """Measure the ratio of `train()` to the bare loop of the same compiled program.

    An iteration lasts a little over half a second: the longer it is, the less overhead matters.
    """
    updates = max(1, math.ceil(OVERHEAD_ITERATION_S * steps_per_s / setting.train_batch_size))
    setting = dataclasses.replace(setting, num_updates=updates)
    worker.ask("setup", setting=setting.to_dict())
    replies = measure.take_turns(
        {name: partial(worker.ask, name) for name in ("bare", "run")}, rounds
    )
    seconds = {name: [reply["seconds"] for reply in found] for name, found in replies.items()}
    return {
        "num_updates": updates,
        "train_s": seconds["run"],
        "bare_s": seconds["bare"],
        "ratio": to_dict(estimate_ratio(seconds["run"], seconds["bare"])),
    }


def _measure_import_times(rounds: int) -> dict[str, list[float]]:
    """Measure each import in fresh processes, in turn; the first round fills the disk cache."""
    imports = {name: partial(_time_import, text) for name, text in IMPORT_STATEMENTS.items()}
    return measure.take_turns(imports, rounds)


def _measure_compile_times(setting: Setting, rounds: int) -> dict[str, Any]:
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


def _time_import(statement: str) -> float:
    code = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    return float(run_process([sys.executable, "-c", code], ROOT).split()[-1])


def _compile_once(setting: Setting, cache_folder: str) -> dict[str, Any]:
    with launch.start(OURS, env=measure.make_cache_variables(cache_folder)) as worker:
        return worker.ask("setup", setting=setting.to_dict())


def build_tables(results: Results) -> Iterator[Table | None]:
    """Build all tables."""
    throughput = results["throughput"]
    yield from build_throughput_tables(throughput, THROUGHPUT_TEXT, OURS, RATIO_AIMS, MEAN_AIMS)
    for name, build in PART_TABLES.items():
        if results.get(name):  # "recommended" is missing in earlier results
            yield build(results[name])


def _build_recommended(measured: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for name, peer in measured["peers"].items():
        own = RECOMMENDATIONS[name]
        mean_return = format_optional(peer["return_mean"], ".0f")
        link = f"[{name}]({own.source})"
        rows.append((link, own.batch, own.learning, *format_rate(peer), mean_return))
    return Table(
        title="Recommended hyperparameters",
        text="PPO on CartPole-v1 with the hyperparameters that each library recommends. The work "
        "per step and the learning progress per step differ: **do not divide these rates by one "
        "another.**",
        header=("peer", "environments x steps", "learning", "steps/s", "interval", "return"),
        rows=rows,
    )


def _build_overhead(overhead: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for setting, measured in overhead.items():
        ratio = from_dict(measured["ratio"])
        rows.append(
            (
                setting,
                str(measured["num_updates"]),
                f"{median(measured['train_s']):.3f}",
                f"{median(measured['bare_s']):.3f}",
                f"{ratio.value:.3f}",
                format_range(ratio, ".3f"),
                _judge_at_most(ratio.value, MAX_OVERHEAD),
            )
        )
    return Table(
        title="Overhead of `train()` over the bare compiled loop of the same program",
        header=("setting", "train batches", "train() s", "bare s", "ratio", "interval", "aim"),
        rows=rows,
    )


def _build_imports(imports: Mapping[str, list[float]]) -> Table:
    base = imports[next(iter(IMPORT_STATEMENTS))]
    rows: list[Cells] = []
    for name, seconds in imports.items():
        excess, aim = "-", "-"
        if seconds is not base:
            over = median(a - b for a, b in zip(seconds, base, strict=True))
            excess, aim = f"{over:+.2f}", _judge_at_most(over, MAX_IMPORT_S, " s")
        rows.append((name, f"{median(seconds):.2f}", excess, aim))
    return Table(
        title="Imports",
        text=f"Seconds in fresh processes, medians of {len(base)}. `import jaxrl` imports the "
        "dependencies of a name when the name is first used; the last row uses two names.",
        header=("import", "s", "over the first", "aim"),
        rows=rows,
    )


def _build_compile(compiled: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for kind, name, aim in (
        ("cold", "empty cache", MAX_COLD_S),
        ("cached", "from the persistent cache", MAX_CACHED_S),
    ):
        replies = compiled[kind]
        program, total = (median(reply[key] for reply in replies) for key in COMPILE_KEYS)
        verdict = _judge_at_most(program, aim, " s")
        rows.append((name, f"{program:.2f}", f"{total:.2f}", str(len(replies)), verdict))
    return Table(
        title=f"Compilation of PPO at {compiled['setting']}",
        text="Median seconds in fresh processes, without imports: tracing, lowering, and compiling "
        "the train program; and everything from `build()` to the end of the first `train()`, minus "
        "the time of a second one.",
        header=("", "program s", "total s", "processes", "aim"),
        rows=rows,
    )


def _judge_at_most(value: float, limit: float, unit: str = "") -> str:
    return f"at most {limit}{unit}: {'yes' if value <= limit else 'no'}"


COMPILE_KEYS = ("program_s", "compile_s")
PART_TABLES = {
    "recommended": _build_recommended,
    "overhead": _build_overhead,
    "imports": _build_imports,
    "compile": _build_compile,
}
SUITE = measure.SpeedSuite(
    stem="speed",
    title="Speed",
    peers=(*PEERS, LIMITS, RLLIB_2X16),  # the last with recommended hyperparameters alone
    parts=("throughput", "recommended", "overhead", "imports", "compile"),
    run=run,
    build_tables=build_tables,
)
