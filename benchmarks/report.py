"""Tables that the suites' reports share, and the report of the in-graph suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.limits import ARITHMETIC, STEPPING, compute_shares, format_share
from benchmarks.measure import IMPORT_STATEMENTS, compute_median_excess
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDATIONS
from benchmarks.statistics import estimate_geometric_mean, estimate_median, from_dict
from jaxrl.bench.markdown import Cells, Table, format_optional, format_range, render_document
from jaxrl.sweeps.statistics import Interval

RATIO_AIMS = {
    ("4x128", launch.REJAX): 1.0,
    ("64x32", launch.REJAX): 1.9,
    ("2048x16", launch.REJAX): 1.8,
    ("4x128", launch.SB3): 15.0,
    ("64x32", launch.SB3): 15.0,
    ("2048x16", launch.SB3): 15.0,
}
MEAN_AIMS = {launch.REJAX: 1.8, launch.SB3: 15.0}
"""Lower bounds aimed at for geometric means over all settings, by peer."""
MAX_OVERHEAD, MAX_IMPORT_S, MAX_COLD_S, MAX_CACHED_S = 1.05, 1.0, 5.0, 1.5

UNITS = {
    "matmul": ("GFLOP/s", 1e9),
    "triad": ("GB/s", 1e9),
    "stepping": ("thousand steps/s", 1e3),
}
"""Unit of a probe's rate and its size, by the first word of the probe's name."""

THROUGHPUT_TEXT = (
    "PPO on CartPole-v1, environments x steps per train batch; medians over the rounds with 95 % "
    "bootstrap intervals, without compilation. The return is that of the sampling policy after "
    "all rounds; it only shows that the peer learns and is not a comparison."
)


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render all tables of a run as Markdown."""
    return render_document(
        *build_header(results, "Speed"),
        *build_throughput_tables(
            results["throughput"], THROUGHPUT_TEXT, launch.OURS, RATIO_AIMS, MEAN_AIMS
        ),
        *(
            build(results[name])
            for name, build in PART_TABLES.items()
            if results.get(name)  # "recommended" is missing in earlier results
        ),
    )


def build_header(
    results: Mapping[str, Any], title: str, *, is_timed: bool = True
) -> list[str | Table | None]:
    """Build the title, the machine, the date, the command, and the versions of the peers.

    Args:
        results: Results of a run.
        title: Title of the report.
        is_timed: Whether times were measured, so that a busy machine calls for a warning.
    """
    machine, load = results["machine"], results["load"]
    setup = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; load average {load['before']} before, "
        f"{load['after']} after; {results['date']}; `{results['command']}`."
    )
    quick = "**Quick run: it shows that everything works; its figures mean nothing.**"
    busy = "**The machine was busy before the run: only the ratios are meaningful.**"
    rows = [
        (name, str(info["devices"]), ", ".join(f"{k} {v}" for k, v in info["versions"].items()))
        for name, info in results.get("peers", {}).items()
    ]
    return [
        f"# {title}",
        setup,
        quick if results["quick"] else None,
        busy if is_timed and load["before"] > 0.5 else None,
        Table(header=("peer", "max. devices", "versions"), rows=rows) if rows else None,
    ]


def build_throughput_tables(
    throughput: Mapping[str, Any],
    text: str,
    ours: str | Mapping[str, str],
    aims: Mapping[tuple[str, str], float],
    mean_aims: Mapping[str, float] | None = None,
) -> list[Table]:
    """Build the tables of rates, of ratios beside the aims, and of the machine's limits.

    Args:
        throughput: Measurements by setting.
        text: Text above the rates.
        ours: Peer whose rate is divided by the others', or such a peer by setting.
        aims: Lower bounds aimed at, by setting and peer.
        mean_aims: Lower bounds aimed at for geometric means over all settings, by peer.
    """
    if not throughput:
        return []
    tables = [_build_rates(throughput, text)]
    ratios = [*_iter_ratio_rows(throughput, ours, aims)]
    ratios += _iter_mean_rows(throughput, mean_aims or {})
    if ratios:
        tables.append(
            Table(
                title="Ratios",
                text="Medians of the ratios within a round, with 95 % bootstrap intervals.",
                header=("setting", "ratio", "median", "interval", "pairs", "aim"),
                rows=ratios,
            )
        )
    return tables + build_limit_tables(throughput)


def _build_rates(throughput: Mapping[str, Any], text: str) -> Table:
    rows: list[Cells] = []
    for setting, measured in throughput.items():
        shares_by_peer = compute_shares(measured)
        rows += [
            (
                setting,
                name,
                *_format_rate(peer),
                format_optional(peer["compile_s"], ".1f"),
                format_optional(peer["return_mean"], ".0f"),
                " / ".join(str(value) for value in measured["load"]),
                format_share(shares_by_peer.get(name)),
            )
            for name, peer in measured["peers"].items()
        ]
    names = ("setting", "peer", "steps/s", "interval", "compile s", "return", "load")
    return Table(
        title="Environment steps per second",
        text=text,
        header=(*names, "of its limit"),
        rows=rows,
    )


def _format_rate(peer: Mapping[str, Any]) -> Cells:
    rate = from_dict(peer["median"])
    return f"{rate.value:,.0f}", format_range(rate, ",.0f")


def _iter_ratio_rows(
    throughput: Mapping[str, Any],
    ours: str | Mapping[str, str],
    aims: Mapping[tuple[str, str], float],
) -> Iterator[Cells]:
    for setting, measured in throughput.items():
        our_name = ours if isinstance(ours, str) else ours[setting]
        for name, ratio in measured["ratios"].items():
            aim = aims.get((setting, name))
            yield setting, f"{our_name} / {name}", *_format_ratio(from_dict(ratio), aim)


def _format_ratio(ratio: Interval, aim: float | None) -> Cells:
    return (
        f"{ratio.value:.2f}",
        format_range(ratio, ".2f"),
        str(ratio.count),
        "-" if aim is None else f"at least {aim}: {ratio.judge_at_least(aim)}",
    )


def _iter_mean_rows(throughput: Mapping[str, Any], aims: Mapping[str, float]) -> Iterator[Cells]:
    """Yield geometric means over several settings, for peers that were measured in all of them."""
    peers_by_setting = [measured["peers"] for measured in throughput.values()]
    for name, aim in aims.items():
        if len(peers_by_setting) < 2 or any(
            {launch.OURS, name} - set(peers) for peers in peers_by_setting
        ):
            continue
        pairs = (
            zip(peers[launch.OURS]["steps_per_s"], peers[name]["steps_per_s"], strict=True)
            for peers in peers_by_setting
        )
        mean = estimate_geometric_mean([[ours / theirs for ours, theirs in p] for p in pairs])
        yield "geometric mean", f"{launch.OURS} / {name}", *_format_ratio(mean, aim)


def build_limit_tables(throughput: Mapping[str, Any]) -> list[Table]:
    """Build the shares of the machine's limits and the limits, if they were measured."""
    if not any("limits" in measured for measured in throughput.values()):
        return []
    return [_build_shares(throughput), _build_limits(throughput)]


def _build_shares(throughput: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for setting, measured in throughput.items():
        for name, share in compute_shares(measured).items():
            flops = share["flops_per_step"]
            rows.append(
                (
                    setting,
                    name,
                    format_optional(flops and flops / 1e3, ",.1f"),
                    *(
                        format_optional(share["limits"].get(kind), ",.0f")
                        for kind in (ARITHMETIC, STEPPING)
                    ),
                    share["limit"],
                    f"{share['share'].value:.3f}",
                    format_range(share["share"], ".3f"),
                )
            )
    return Table(
        title="Share of the machine's limit",
        text="Share of the lower of two limits, in environment steps per second. *Arithmetic* is "
        "the rate of float32 matrix products with the shape of the network's middle layer, on all "
        "cores, divided by the operations per step that jaxrl's program counts. *Stepping* is the "
        "rate of the environment alone with random actions (for peers on the host, gymnasium's "
        "environment times the number of processes). Shares are medians of the shares within a "
        "round.",
        header=(
            *("setting", "peer", "kFLOP/step", ARITHMETIC, STEPPING),
            *("limit", "share", "interval"),
        ),
        rows=rows,
    )


def _build_limits(throughput: Mapping[str, Any]) -> Table:
    rates: dict[str, list[float]] = {}
    for measured in throughput.values():
        for probe, values in measured.get("limits", {}).get("rates", {}).items():
            rates.setdefault(probe, []).extend(values)
    return Table(
        title="Limits of the machine",
        text="Measured in turn with the peers, on all cores at once: float32 matrix products of "
        "rows x inputs x outputs, one per device; `x = y + s * x` over arrays that exceed all "
        "caches; jaxrl's environments in a compiled loop; gymnasium's environments on the host.",
        header=("probe", "median", "interval", "unit"),
        rows=[_make_limit_row(probe, values) for probe, values in rates.items()],
    )


def _make_limit_row(probe: str, values: list[float]) -> Cells:
    unit, size = UNITS[probe.split()[0]]
    rate = estimate_median([value / size for value in values])
    return probe, f"{rate.value:,.1f}", format_range(rate, ",.1f"), unit


def _build_recommended(measured: Mapping[str, Any]) -> Table:
    rows: list[Cells] = []
    for name, peer in measured["peers"].items():
        own = RECOMMENDATIONS[name]
        mean_return = format_optional(peer["return_mean"], ".0f")
        link = f"[{name}]({own.source})"
        rows.append((link, own.batch, own.learning, *_format_rate(peer), mean_return))
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
            over = compute_median_excess(seconds, base)
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
PART_TABLES: Mapping[str, Callable[[Any], Table]] = {
    "recommended": _build_recommended,
    "overhead": _build_overhead,
    "imports": _build_imports,
    "compile": _build_compile,
}
