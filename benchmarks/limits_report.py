"""The machine's limits, and what share of them each peer reaches, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.limits import ARITHMETIC, STEPPING, shares
from benchmarks.statistics import Estimate, median_interval
from benchmarks.tables import table

UNITS = {
    "matmul": ("GFLOP/s", 1e9),
    "triad": ("GB/s", 1e9),
    "stepping": ("thousand steps/s", 1e3),
}
"""What a probe's rate is shown in, by the first word of its name."""


def limits_sections(throughput: Mapping[str, Any]) -> list[str]:
    """Both tables; none where the limits were not measured."""
    if not any("limits" in measured for measured in throughput.values()):
        return []
    return [_shares(throughput), _machine(throughput)]


def _shares(throughput: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = []
    for setting, measured in throughput.items():
        for name, share in shares(measured).items():
            estimate: Estimate = share["share"]
            flops = share["flops_per_step"]
            rows.append(
                (
                    setting,
                    name,
                    "-" if flops is None else f"{flops / 1e3:,.1f}",
                    *(_limit(share["limits"], kind) for kind in (ARITHMETIC, STEPPING)),
                    share["limit"],
                    f"{estimate.median:.3f}",
                    f"{estimate.low:.3f} - {estimate.high:.3f}",
                )
            )
    text = (
        "The lower of two limits, in environment steps a second: *arithmetic* is the rate of float32 "
        "matrix products at the shape of the network's middle layer, on all cores, over the "
        "operations of one step as jaxrl's program counts them; *stepping* is the rate of the "
        "environment alone with random actions (gymnasium's for peers on the host, times their "
        "processes). Shares are medians of those within a round."
    )
    names = ("setting", "peer", "kFLOP a step", ARITHMETIC, STEPPING, "limit", "share", "interval")
    return f"## Share of the machine's limit\n\n{text}\n\n" + table(names, rows)


def _limit(limits: Mapping[str, float], kind: str) -> str:
    return f"{limits[kind]:,.0f}" if kind in limits else "-"


def _machine(throughput: Mapping[str, Any]) -> str:
    rates: dict[str, list[float]] = {}
    for measured in throughput.values():
        for probe, values in measured.get("limits", {}).get("rates", {}).items():
            rates.setdefault(probe, []).extend(values)
    rows = [_row(probe, values) for probe, values in rates.items()]
    text = (
        "Measured in turn with the peers, on all cores at once: products of float32 matrices, rows x "
        "inputs x outputs, by each device; `x = y + s * x` over arrays that no cache holds; jaxrl's "
        "environments in a compiled loop, gymnasium's on the host."
    )
    return f"## What the machine can do\n\n{text}\n\n" + table(
        ("probe", "median", "interval", "unit"), rows
    )


def _row(probe: str, values: list[float]) -> tuple[str, ...]:
    unit, size = UNITS[probe.split()[0]]
    estimate = median_interval([value / size for value in values])
    return (
        probe,
        f"{estimate.median:,.1f}",
        f"{estimate.low:,.1f} - {estimate.high:,.1f}",
        unit,
    )
