"""Gradient steps per second on recorded data: `python -m benchmarks.offline`.

BC, CQL, IQL and TD3+BC learn from 100,000 random rows with HalfCheetah's sizes, with networks of
2 x 64 and batches of 64 rows, and with 2 x 256 and 256. d3rlpy and RLlib, which has no TD3+BC, have
environments of their own (`.peers`, made on first use), and run with one thread and with torch's number
of threads. CQL, IQL and TD3+BC are also written by hand with jax and optax in one file, and are those
of JAX-CORL if the variable JAX_CORL names a checkout of it. Peers take turns, and compilation is apart.
Then jaxrl and RLlib read a million rows from Parquet by turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, parse_names, save_results, start_results
from benchmarks.offline_rows import write_rows
from benchmarks.offline_settings import (
    D3RLPY,
    D3RLPY_THREADS,
    EPISODE_LENGTH,
    HANDWRITTEN,
    JAX_CORL,
    JAX_CORL_VARIABLE,
    NUM_ROWS,
    OURS,
    READERS,
    RLLIB,
    RLLIB_THREADS,
    OfflineSetting,
    is_supported,
    make_settings,
    write_data,
)
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from benchmarks.worker import Worker
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document
from jaxrl.bench.peers import PeerError

PEERS = (OURS, HANDWRITTEN, JAX_CORL, D3RLPY, D3RLPY_THREADS, RLLIB, RLLIB_THREADS)
READS = 3
"""Rounds of the reading of Parquet, which takes RLlib minutes."""
QUICK_SCALE, QUICK_ROWS = 0.02, 10_000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each setting, write `offline.json` and `.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.offline", arguments, is_quick=options.quick)
    infos: dict[str, Any] = {}
    settings = {
        name: setting
        for name, setting in make_settings(QUICK_SCALE if options.quick else 1.0).items()
        if any(is_supported(peer, setting) for peer in options.peers)
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-")))
        workers = measure.start_workers(stack, options.peers, infos)
        data = _write_data(folder, options.peers)
        cases = {
            name: _measure_case(setting, data, workers, options.pairs)
            for name, setting in settings.items()
        }
        readers = {name: worker for name, worker in workers.items() if name in READERS}
        reading = measure_reading(readers, folder, options.rows, min(options.pairs, READS))
    results |= {"peers": infos, "cases": cases, "reading": reading}
    save_results(results, options.out, "offline", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__)
    usual = [name for name in PEERS if name != JAX_CORL or os.environ.get(JAX_CORL_VARIABLE)]
    parser.add_argument("--peers", default=",".join(usual), help="names, separated by commas")
    parser.add_argument(
        "--rows",
        type=int,
        default=1_000_000,
        help="rows that are read from Parquet; 0 leaves it out (default: %(default)s)",
    )
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.peers = parse_names(parser, "--peers", options.peers, PEERS)
    if JAX_CORL in options.peers and JAX_CORL not in usual:
        parser.error(
            f"--peers: {JAX_CORL} needs a checkout of JAX-CORL, {JAX_CORL_VARIABLE}=FOLDER"
        )
    if options.rows < 0:
        parser.error(f"--rows: {options.rows} is less than 0, which leaves the reading out")
    if options.quick:
        options.pairs, options.rows = 2, min(options.rows, QUICK_ROWS)
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def _write_data(folder: Path, peers: Sequence[str]) -> dict[str, str]:
    """Write the rows that are learned from, and return the file of every peer."""
    arrays, table = folder / "data.npz", folder / "data.parquet"
    write_data(arrays)
    write_rows(table, NUM_ROWS)
    has_table = (RLLIB, RLLIB_THREADS)
    return {name: str(table if name in has_table else arrays) for name in peers}


def _measure_case(
    setting: OfflineSetting, data: Mapping[str, str], workers: Mapping[str, Worker], rounds: int
) -> dict[str, Any]:
    """Measure the gradient steps per second, in every round, of every peer with the algorithm."""
    workers = {name: worker for name, worker in workers.items() if is_supported(name, setting)}
    compiled = {
        name: worker.ask("setup", setting=setting.to_dict(), data=data[name])["compile_s"]
        for name, worker in workers.items()
    }
    seconds = measure.take_turns(
        {
            name: lambda worker=worker: worker.ask("run")["seconds"]
            for name, worker in workers.items()
        },
        rounds,
    )
    rates = {name: [setting.num_updates / x for x in found] for name, found in seconds.items()}
    others = [name for name in rates if name != OURS and OURS in rates]
    return {
        "num_updates": setting.num_updates,
        "compile_s": compiled,
        "rates": rates,
        "median": {name: to_dict(estimate_median(found)) for name, found in rates.items()},
        "ratio": {name: to_dict(estimate_ratio(rates[OURS], rates[name])) for name in others},
    }


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
    others = [name for name in seconds if name != OURS and OURS in seconds]
    return {
        "num_rows": num_rows,
        "seconds": seconds,
        "median": {name: to_dict(estimate_median(found)) for name, found in seconds.items()},
        "ratio": {name: to_dict(estimate_ratio(seconds[name], seconds[OURS])) for name in others},
    }


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the tables as Markdown."""
    rows: list[Cells] = []
    for name, case in results["cases"].items():
        for peer, median in case["median"].items():
            compiled, ratio = case["compile_s"][peer], case["ratio"].get(peer)
            rows.append(
                (
                    name,
                    peer,
                    format_estimate(from_dict(median), ",.0f"),
                    format_estimate(from_dict(ratio), ".2f") if ratio else "-",
                    "-" if compiled is None else f"{compiled:.1f}",
                )
            )
    text = (
        f"Gradient steps per second on {NUM_ROWS:,} recorded rows of 17 numbers and 6 actions, medians "
        f"over the rounds, and ratios of {OURS} to the others within a round, with 95 % intervals; "
        "compilation in seconds, apart. BC has a normal policy, and CQL ten actions of each kind."
    )
    header = ("setting", "peer", "updates/s", f"{OURS} / peer", "compile, s")
    table = Table(text=text, header=header, rows=rows)
    head = build_header(results, "Learning from recorded data")
    return render_document(*head, table, _build_reading_table(results.get("reading")))


def _build_reading_table(reading: Mapping[str, Any] | None) -> Table | None:
    if reading is None:
        return None
    rows: list[Cells] = []
    for peer, median in reading["median"].items():
        ratio = reading["ratio"].get(peer)
        rows.append(
            (
                peer,
                format_estimate(from_dict(median), ",.1f"),
                format_estimate(from_dict(ratio), ".1f") if ratio else "-",
            )
        )
    text = (
        f"Seconds from a Parquet file of {reading['num_rows']:,} rows to rows that can be learned from, "
        f"medians over the rounds. {OURS}: all of `build()`, after which the rows are on the device. "
        "Others: from the first row to the last batch of tensors, in an algorithm that is built. The "
        f"ratio is theirs to {OURS}'s, with 95 % intervals."
    )
    header = ("peer", "seconds", f"peer / {OURS}")
    return Table(title="Reading", text=text, header=header, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
