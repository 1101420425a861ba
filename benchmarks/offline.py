"""Gradient steps per second on recorded data: `python -m benchmarks.offline`.

BC, CQL, IQL and TD3+BC learn from one file of 100,000 random rows with HalfCheetah's sizes, with
networks of 2 x 64 and batches of 64 rows, and with 2 x 256 and 256. d3rlpy has an environment of its
own (`.peers/d3rlpy`, made on first use), with one thread and with its own number of threads. TD3+BC and
IQL are also written by hand with jax and optax in one file. Peers take turns, and compilation is apart.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, parse_names, save_results, start_results
from benchmarks.offline_settings import (
    D3RLPY,
    D3RLPY_THREADS,
    HANDWRITTEN,
    NUM_ROWS,
    OURS,
    OfflineSetting,
    is_supported,
    make_settings,
    write_data,
)
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from benchmarks.worker import Worker
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

PEERS = (OURS, HANDWRITTEN, D3RLPY, D3RLPY_THREADS)
QUICK_SCALE = 0.02


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
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
        data = Path(folder) / "data.npz"
        write_data(data)
        workers = measure.start_workers(stack, options.peers, infos)
        cases = {
            name: _measure_case(setting, str(data), workers, options.pairs)
            for name, setting in settings.items()
        }
    results |= {"peers": infos, "cases": cases}
    save_results(results, options.out, "offline", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.peers = parse_names(parser, "--peers", options.peers, PEERS)
    if options.quick:
        options.pairs = 2
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def _measure_case(
    setting: OfflineSetting, data: str, workers: Mapping[str, Worker], rounds: int
) -> dict[str, Any]:
    """Measure the gradient steps per second, in every round, of every peer with the algorithm."""
    workers = {name: worker for name, worker in workers.items() if is_supported(name, setting)}
    compiled = {
        name: worker.ask("setup", setting=setting.to_dict(), data=data)["compile_s"]
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


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
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
    return render_document(*build_header(results, "Learning from recorded data"), table)


if __name__ == "__main__":
    sys.exit(main())
