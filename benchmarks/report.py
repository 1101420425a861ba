"""Tables of rates, ratios and limits that the suites' reports share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.limits import ARITHMETIC, STEPPING, compute_shares, format_share
from benchmarks.settings import OURS
from benchmarks.statistics import estimate_geometric_mean, estimate_median, from_dict
from jaxrl.bench.markdown import Cells, Table, format_optional, format_range
from jaxrl.sweeps.statistics import Interval

UNITS = {
    "matmul": ("GFLOP/s", 1e9),
    "triad": ("GB/s", 1e9),
    "stepping": ("thousand steps/s", 1e3),
}
"""Unit of a probe's rate and its size, by the first word of the probe's name."""


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
                *format_rate(peer),
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


def format_rate(peer: Mapping[str, Any]) -> Cells:
    """Format the median of a peer and its interval as two cells."""
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
            {OURS, name} - set(peers) for peers in peers_by_setting
        ):
            continue
        pairs = (
            zip(peers[OURS]["steps_per_s"], peers[name]["steps_per_s"], strict=True)
            for peers in peers_by_setting
        )
        mean = estimate_geometric_mean([[ours / theirs for ours, theirs in p] for p in pairs])
        yield "geometric mean", f"{OURS} / {name}", *_format_ratio(mean, aim)


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
