"""Gradient steps per second on recorded data: `python -m benchmarks.offline`.

BC, CQL, IQL and TD3+BC learn from 100,000 random rows with HalfCheetah's sizes, with networks of
2 x 64 and batches of 64 rows, and with 2 x 256 and 256. d3rlpy and RLlib, which has no TD3+BC, have
environments of their own (`.peers`, made on first use), and run with one thread and with torch's number
of threads. CQL, IQL and TD3+BC are also written by hand with jax and optax in one file, and are those
of JAX-CORL if the variable JAX_CORL names a checkout of it. Peers take turns, and compilation is apart.
Then jaxrl and RLlib read a million rows from Parquet by turns.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results
from benchmarks.offline_rows import write_rows
from benchmarks.peers.launch import Worker
from benchmarks.settings import (
    D3RLPY,
    D3RLPY_THREADS,
    EPISODE_LENGTH,
    HANDWRITTEN_OFFLINE,
    JAX_CORL,
    JAX_CORL_VARIABLE,
    NUM_ROWS,
    RLLIB_OFFLINE,
    RLLIB_OFFLINE_THREADS,
    OfflineSetting,
    make_offline_settings,
    write_data,
)
from benchmarks.settings import OFFLINE as OURS
from benchmarks.statistics import compare_to, describe_rates, show
from jaxrl.bench.markdown import Table, format_optional
from jaxrl.bench.peers import PeerError

PEERS = (
    *(OURS, HANDWRITTEN_OFFLINE, JAX_CORL),
    *(D3RLPY, D3RLPY_THREADS, RLLIB_OFFLINE, RLLIB_OFFLINE_THREADS),
)
READERS = (OURS, RLLIB_OFFLINE)
"""Peers whose reading of Parquet is measured."""
READS = 3
"""Rounds of the reading of Parquet, which takes RLlib minutes."""
QUICK_SCALE, QUICK_ROWS = 0.02, 10_000


def run(options: Options) -> dict[str, Any]:
    """Measure each setting, and the reading."""
    infos: dict[str, Any] = {}
    peers = list(options.peers)
    if JAX_CORL in peers and not os.environ.get(JAX_CORL_VARIABLE):
        if peers != list(PEERS):
            sys.exit(
                f"--peers: {JAX_CORL} needs a checkout of JAX-CORL, {JAX_CORL_VARIABLE}=FOLDER"
            )
        peers.remove(JAX_CORL)
    settings = {
        name: setting
        for name, setting in make_offline_settings(QUICK_SCALE if options.quick else 1.0).items()
        if any(setting.is_supported(peer) for peer in peers)
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-")))
        workers = measure.start_workers(stack, peers, infos)
        data = _write_data(folder, peers)
        cases = {
            name: _measure_case(setting, data, workers, options.pairs)
            for name, setting in settings.items()
        }
        readers = {name: worker for name, worker in workers.items() if name in READERS}
        reading = measure_reading(readers, folder, options.rows, min(options.pairs, READS))
    return {"peers": infos, "cases": cases, "reading": reading}


def _write_data(folder: Path, peers: Sequence[str]) -> dict[str, str]:
    """Write the rows that are learned from, and return the file of every peer."""
    arrays, table = folder / "data.npz", folder / "data.parquet"
    write_data(arrays)
    write_rows(table, NUM_ROWS)
    has_table = (RLLIB_OFFLINE, RLLIB_OFFLINE_THREADS)
    return {name: str(table if name in has_table else arrays) for name in peers}


def _measure_case(
    setting: OfflineSetting, data: Mapping[str, str], workers: Mapping[str, Worker], rounds: int
) -> dict[str, Any]:
    """Measure the gradient steps per second, in every round, of every peer with the algorithm."""
    workers = {name: worker for name, worker in workers.items() if setting.is_supported(name)}
    compiled = {
        name: worker.ask("setup", setting=setting.to_dict(), data=data[name])["compile_s"]
        for name, worker in workers.items()
    }
    runs = {name: partial(_time_run, worker) for name, worker in workers.items()}
    rates = measure.measure_rates(runs, rounds, setting.num_updates)
    return {
        "num_updates": setting.num_updates,
        "compile_s": compiled,
        **describe_rates(rates),
        "ratio": compare_to(rates, OURS, is_inverse=True),
    }


def _time_run(worker: Worker) -> float:
    return worker.ask("run")["seconds"]


def measure_reading(
    workers: Mapping[str, Worker], folder: Path, num_rows: int, rounds: int
) -> dict[str, Any] | None:
    """Measure the seconds from Parquet to rows on the device; None if there is nothing to read.

    Every peer has read a few rows before. The order rotates by one every round.
    """
    if not workers or not num_rows:
        return None
    small, table = folder / "few.parquet", folder / "rows.parquet"
    write_rows(small, EPISODE_LENGTH)
    write_rows(table, num_rows)
    for worker in workers.values():
        worker.ask("read", data=str(small))
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    order = list(workers)
    for number in range(rounds):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            reply = workers[name].ask("read", data=str(table))
            if reply["num_rows"] != num_rows:
                raise PeerError(f"{name} has read {reply['num_rows']} rows of {num_rows}")
            seconds[name].append(reply["seconds"])
    return {
        "num_rows": num_rows,
        **describe_rates(seconds, "seconds"),
        "ratio": compare_to(seconds, OURS),
    }


def build_tables(results: Results) -> Iterator[Table]:
    """Build the tables of gradient steps and of the reading."""
    yield Table(
        text=f"Gradient steps per second on {NUM_ROWS:,} recorded rows of 17 numbers and 6 actions, medians "
        f"over the rounds, and ratios of {OURS} to the others within a round, with 95 % intervals; "
        "compilation in seconds, apart. BC has a normal policy, and CQL ten actions of each kind.",
        header=("setting", "peer", "updates/s", f"{OURS} / peer", "compile, s"),
        rows=[
            (
                name,
                peer,
                show(median, ",.0f"),
                show(case["ratio"].get(peer), ".2f"),
                format_optional(case["compile_s"][peer], ".1f"),
            )
            for name, case in results["cases"].items()
            for peer, median in case["median"].items()
        ],
    )
    if reading := results.get("reading"):
        yield Table(
            title="Reading",
            text=f"Seconds from a Parquet file of {reading['num_rows']:,} rows to rows that can be learned from, "
            f"medians over the rounds. {OURS}: all of `build()`, after which the rows are on the device. "
            "Others: from the first row to the last batch of tensors, in an algorithm that is built. The "
            f"ratio is theirs to {OURS}'s, with 95 % intervals.",
            header=("peer", "seconds", f"peer / {OURS}"),
            rows=[
                (peer, show(median, ",.1f"), show(reading["ratio"].get(peer), ".1f"))
                for peer, median in reading["median"].items()
            ],
        )


BENCHMARK = Benchmark(
    name="offline",
    about=__doc__,
    title="Learning from recorded data",
    measure=run,
    build_tables=build_tables,
    names={"peers": PEERS},
    numbers={"rows": (1_000_000, "rows that are read from Parquet; 0 leaves it out")},
    quick={"rows": QUICK_ROWS},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
