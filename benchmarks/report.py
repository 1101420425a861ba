"""Markdown sections that the suites' reports share, and the report of the in-graph suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.limits import ARITHMETIC, STEPPING, compute_shares, format_share
from benchmarks.measure import IMPORT_STATEMENTS, compute_median_excess
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDATIONS
from benchmarks.statistics import Estimate, estimate_geometric_mean, estimate_median

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
    sections = [render_header(results, "Speed")]
    if results["throughput"]:
        sections += [
            render_throughput_section(results["throughput"], THROUGHPUT_TEXT),
            render_ratio_section(results["throughput"], launch.OURS, RATIO_AIMS, MEAN_AIMS),
            *render_limit_sections(results["throughput"]),
        ]
    if results.get("recommended"):
        sections.append(_render_recommended(results["recommended"]))
    if results["overhead"]:
        sections.append(_render_overhead(results["overhead"]))
    if results["imports"]:
        sections.append(_render_imports(results["imports"]))
    if results["compile"]:
        sections.append(_render_compile(results["compile"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def render_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Render a Markdown table."""
    names = list(columns)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def render_header(results: Mapping[str, Any], title: str, *, is_timed: bool = True) -> str:
    """Render the title, the machine, the date, the command, and the versions of the peers.

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
    lines = [f"# {title}", setup]
    if results["quick"]:
        lines.append("**Quick run: it shows that everything works; its figures mean nothing.**")
    if is_timed and load["before"] > 0.5:
        lines.append("**The machine was busy before the run: only the ratios are meaningful.**")
    rows = [
        (name, str(info["devices"]), ", ".join(f"{k} {v}" for k, v in info["versions"].items()))
        for name, info in results.get("peers", {}).items()
    ]
    peers = [render_table(("peer", "max. devices", "versions"), rows)] if rows else []
    return "\n\n".join([*lines, *peers])


def render_throughput_section(throughput: Mapping[str, Any], text: str) -> str:
    """Render the environment steps per second of every peer, with the text above the table."""
    rows = []
    for setting, measured in throughput.items():
        shares_by_peer = compute_shares(measured)
        for name, peer in measured["peers"].items():
            estimate = Estimate(**peer["median"])
            mean_return = peer["return_mean"]
            rows.append(
                (
                    setting,
                    name,
                    f"{estimate.median:,.0f}",
                    f"{estimate.low:,.0f} - {estimate.high:,.0f}",
                    "-" if peer["compile_s"] is None else f"{peer['compile_s']:.1f}",
                    "-" if mean_return is None else f"{mean_return:.0f}",
                    " / ".join(str(value) for value in measured["load"]),
                    format_share(shares_by_peer.get(name)),
                )
            )
    return f"## Environment steps per second\n\n{text}\n\n" + render_table(
        ("setting", "peer", "steps/s", "interval", "compile s", "return", "load", "of its limit"),
        rows,
    )


def render_ratio_section(
    throughput: Mapping[str, Any],
    ours: str | Mapping[str, str],
    aims: Mapping[tuple[str, str], float],
    mean_aims: Mapping[str, float] | None = None,
) -> str:
    """Render the ratios of one peer's rate to each of the others', beside the aims.

    Args:
        throughput: Measurements by setting.
        ours: Peer whose rate is divided by the others', or such a peer by setting.
        aims: Lower bounds aimed at, by setting and peer.
        mean_aims: Lower bounds aimed at for geometric means over all settings, by peer.
    """
    rows = []
    for setting, measured in throughput.items():
        our_name = ours if isinstance(ours, str) else ours[setting]
        for name, ratio in measured["ratios"].items():
            estimate, aim = Estimate(**ratio), aims.get((setting, name))
            rows.append(
                (
                    setting,
                    f"{our_name} / {name}",
                    f"{estimate.median:.2f}",
                    f"{estimate.low:.2f} - {estimate.high:.2f}",
                    str(estimate.count),
                    "-" if aim is None else f"at least {aim}: {estimate.judge(aim)}",
                )
            )
    rows += _iter_mean_rows(throughput, mean_aims or {})
    if not rows:
        return ""
    text = "Medians of the ratios within a round, with 95 % bootstrap intervals."
    return f"## Ratios\n\n{text}\n\n" + render_table(
        ("setting", "ratio", "median", "interval", "pairs", "aim"), rows
    )


def _iter_mean_rows(
    throughput: Mapping[str, Any], aims: Mapping[str, float]
) -> Iterator[tuple[str, ...]]:
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
        estimate = estimate_geometric_mean([[ours / theirs for ours, theirs in p] for p in pairs])
        yield (
            "geometric mean",
            f"{launch.OURS} / {name}",
            f"{estimate.median:.2f}",
            f"{estimate.low:.2f} - {estimate.high:.2f}",
            str(estimate.count),
            f"at least {aim}: {estimate.judge(aim)}",
        )


def render_limit_sections(throughput: Mapping[str, Any]) -> list[str]:
    """Render the shares of the machine's limits and the limits, if they were measured."""
    if not any("limits" in measured for measured in throughput.values()):
        return []
    return [_render_shares(throughput), _render_limits(throughput)]


def _render_shares(throughput: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = []
    for setting, measured in throughput.items():
        for name, share in compute_shares(measured).items():
            estimate: Estimate = share["share"]
            flops = share["flops_per_step"]
            rows.append(
                (
                    setting,
                    name,
                    "-" if flops is None else f"{flops / 1e3:,.1f}",
                    *(_format_limit(share["limits"], kind) for kind in (ARITHMETIC, STEPPING)),
                    share["limit"],
                    f"{estimate.median:.3f}",
                    f"{estimate.low:.3f} - {estimate.high:.3f}",
                )
            )
    text = (
        "Share of the lower of two limits, in environment steps per second. *Arithmetic* is the "
        "rate of float32 matrix products with the shape of the network's middle layer, on all "
        "cores, divided by the operations per step that jaxrl's program counts. *Stepping* is the "
        "rate of the environment alone with random actions (for peers on the host, gymnasium's "
        "environment times the number of processes). Shares are medians of the shares within a "
        "round."
    )
    names = ("setting", "peer", "kFLOP/step", ARITHMETIC, STEPPING, "limit", "share", "interval")
    return f"## Share of the machine's limit\n\n{text}\n\n" + render_table(names, rows)


def _format_limit(limits: Mapping[str, float], kind: str) -> str:
    return f"{limits[kind]:,.0f}" if kind in limits else "-"


def _render_limits(throughput: Mapping[str, Any]) -> str:
    rates: dict[str, list[float]] = {}
    for measured in throughput.values():
        for probe, values in measured.get("limits", {}).get("rates", {}).items():
            rates.setdefault(probe, []).extend(values)
    rows = [_make_limit_row(probe, values) for probe, values in rates.items()]
    text = (
        "Measured in turn with the peers, on all cores at once: float32 matrix products of rows x "
        "inputs x outputs, one per device; `x = y + s * x` over arrays that exceed all caches; "
        "jaxrl's environments in a compiled loop; gymnasium's environments on the host."
    )
    return f"## Limits of the machine\n\n{text}\n\n" + render_table(
        ("probe", "median", "interval", "unit"), rows
    )


def _make_limit_row(probe: str, values: list[float]) -> tuple[str, ...]:
    unit, size = UNITS[probe.split()[0]]
    estimate = estimate_median([value / size for value in values])
    return (
        probe,
        f"{estimate.median:,.1f}",
        f"{estimate.low:,.1f} - {estimate.high:,.1f}",
        unit,
    )


def _render_recommended(measured: Mapping[str, Any]) -> str:
    rows = []
    for name, peer in measured["peers"].items():
        own, estimate = RECOMMENDATIONS[name], Estimate(**peer["median"])
        mean_return = peer["return_mean"]
        rows.append(
            (
                f"[{name}]({own.source})",
                own.batch,
                own.learning,
                f"{estimate.median:,.0f}",
                f"{estimate.low:,.0f} - {estimate.high:,.0f}",
                "-" if mean_return is None else f"{mean_return:.0f}",
            )
        )
    text = (
        "PPO on CartPole-v1 with the hyperparameters that each library recommends. The work per "
        "step and the learning progress per step differ: **do not divide these rates by one "
        "another.**"
    )
    names = ("peer", "environments x steps", "learning", "steps/s", "interval", "return")
    return f"## Recommended hyperparameters\n\n{text}\n\n" + render_table(names, rows)


def _render_overhead(overhead: Mapping[str, Any]) -> str:
    rows = []
    for setting, measured in overhead.items():
        estimate = Estimate(**measured["ratio"])
        rows.append(
            (
                setting,
                str(measured["num_updates"]),
                f"{median(measured['train_s']):.3f}",
                f"{median(measured['bare_s']):.3f}",
                f"{estimate.median:.3f}",
                f"{estimate.low:.3f} - {estimate.high:.3f}",
                f"at most {MAX_OVERHEAD}: {_is_reached(estimate.median, MAX_OVERHEAD)}",
            )
        )
    return (
        "## Overhead of `train()` over the bare compiled loop of the same program\n\n"
        + render_table(
            ("setting", "train batches", "train() s", "bare s", "ratio", "interval", "aim"), rows
        )
    )


def _render_imports(imports: Mapping[str, list[float]]) -> str:
    base = imports[next(iter(IMPORT_STATEMENTS))]
    rows = []
    for name, seconds in imports.items():
        excess = compute_median_excess(seconds, base)
        aim = f"at most {MAX_IMPORT_S} s: {_is_reached(excess, MAX_IMPORT_S)}"
        rows.append(
            (
                name,
                f"{median(seconds):.2f}",
                f"{excess:+.2f}" if seconds is not base else "-",
                aim if seconds is not base else "-",
            )
        )
    text = (
        f"Seconds in fresh processes, medians of {len(base)}. `import jaxrl` imports the "
        "dependencies of a name when the name is first used; the last row uses two names."
    )
    return f"## Imports\n\n{text}\n\n" + render_table(
        ("import", "s", "over the first", "aim"), rows
    )


def _render_compile(compiled: Mapping[str, Any]) -> str:
    aims = {"cold": MAX_COLD_S, "cached": MAX_CACHED_S}
    names = {"cold": "empty cache", "cached": "from the persistent cache"}
    rows = []
    for kind, aim in aims.items():
        program, total = (
            median(reply[name] for reply in compiled[kind]) for name in ("program_s", "compile_s")
        )
        verdict = f"at most {aim} s: {_is_reached(program, aim)}"
        rows.append(
            (names[kind], f"{program:.2f}", f"{total:.2f}", str(len(compiled[kind])), verdict)
        )
    text = (
        "Median seconds in fresh processes, without imports: tracing, lowering, and compiling the "
        "train program; and everything from `build()` to the end of the first `train()`, minus "
        "the time of a second one."
    )
    return f"## Compilation of PPO at {compiled['setting']}\n\n{text}\n\n" + render_table(
        ("", "program s", "total s", "processes", "aim"), rows
    )


def _is_reached(value: float, limit: float) -> str:
    return "yes" if value <= limit else "no"
