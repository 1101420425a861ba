"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.limits import share_in_words, shares
from benchmarks.limits_report import limits_sections
from benchmarks.measure import IMPORTS, median_excess
from benchmarks.peers import launch
from benchmarks.recommended import RECOMMENDED
from benchmarks.statistics import Estimate, geometric_mean_interval
from benchmarks.tables import table

RATIO_AIMS = {
    ("4x128", launch.REJAX): 1.0,
    ("64x32", launch.REJAX): 1.9,
    ("2048x16", launch.REJAX): 1.8,
    ("4x128", launch.SB3): 15.0,
    ("64x32", launch.SB3): 15.0,
    ("2048x16", launch.SB3): 15.0,
}
MEAN_AIMS = {launch.REJAX: 1.8, launch.SB3: 15.0}
"""At least so much as a geometric mean over all settings."""
MAX_OVERHEAD, MAX_IMPORT_S, MAX_COLD_S, MAX_CACHED_S = 1.05, 1.0, 5.0, 1.5


THROUGHPUT_TEXT = (
    "PPO on CartPole-v1, environments x steps per train batch; median, 95 % bootstrap interval "
    "over the rounds. Compiling is not in it. The return is the sampling policy's after all "
    "rounds: a sign that it learns, no comparison."
)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one run."""
    sections = [header(results, "Speed")]
    if results["throughput"]:
        sections += [
            throughput_section(results["throughput"], THROUGHPUT_TEXT),
            ratio_section(results["throughput"], launch.OURS, RATIO_AIMS, MEAN_AIMS),
            *limits_sections(results["throughput"]),
        ]
    if results.get("recommended"):
        sections.append(_recommended(results["recommended"]))
    if results["overhead"]:
        sections.append(_overhead(results["overhead"]))
    if results["imports"]:
        sections.append(_imports(results["imports"]))
    if results["compile"]:
        sections.append(_compile(results["compile"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def header(results: Mapping[str, Any], title: str, *, timed: bool = True) -> str:
    """Where and when, and what took part; if times were measured, whether they can be trusted."""
    machine, load = results["machine"], results["load"]
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; load average {load['before']} before, "
        f"{load['after']} after; {results['date']}; `{results['command']}`."
    )
    lines = [f"# {title}", where]
    if results["quick"]:
        lines.append("**A quick run: it shows that everything works, its figures mean nothing.**")
    if timed and load["before"] > 0.5:
        lines.append("**The machine was busy before the run began: only the ratios are of use.**")
    rows = [
        (name, str(info["devices"]), ", ".join(f"{k} {v}" for k, v in info["versions"].items()))
        for name, info in results.get("peers", {}).items()
    ]
    peers = [table(("peer", "devices, at most", "versions"), rows)] if rows else []
    return "\n\n".join([*lines, *peers])


def throughput_section(throughput: Mapping[str, Any], text: str) -> str:
    """Steps a second of every peer."""
    rows = []
    for setting, measured in throughput.items():
        reached = shares(measured)
        for name, peer in measured["peers"].items():
            estimate = Estimate(**peer["median"])
            spread = f"{estimate.low:,.0f} - {estimate.high:,.0f}"
            score = peer["return_mean"]
            rows.append(
                (
                    setting,
                    name,
                    f"{estimate.median:,.0f}",
                    spread,
                    "-" if peer["compile_s"] is None else f"{peer['compile_s']:.1f}",
                    "-" if score is None else f"{score:.0f}",
                    " / ".join(str(value) for value in measured["load"]),
                    share_in_words(reached.get(name)),
                )
            )
    return f"## Environment steps per second\n\n{text}\n\n" + table(
        ("setting", "peer", "steps/s", "interval", "compile s", "return", "load", "of its limit"),
        rows,
    )


def ratio_section(
    throughput: Mapping[str, Any],
    ours: str | Mapping[str, str],
    aims: Mapping[tuple[str, str], float],
    mean_aims: Mapping[str, float] | None = None,
) -> str:
    """Ours (or each setting's) over each of the others, beside what is aimed at.

    Args:
        throughput: What was measured, by setting.
        ours: Whose rate is divided.
        aims: At least so much, by setting and peer.
        mean_aims: The same for geometric means over all settings, by peer.
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
                    "-" if aim is None else f"at least {aim}: {estimate.verdict(aim)}",
                )
            )
    rows += _means(throughput, mean_aims or {})
    if not rows:
        return ""
    return "## Ratios\n\nMedian of the ratios within a round, 95 % bootstrap interval.\n\n" + table(
        ("setting", "ratio", "median", "interval", "pairs", "aim"), rows
    )


def _means(throughput: Mapping[str, Any], aims: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    """Geometric means over all settings, where there are several and the peer was in each."""
    everywhere = [measured["peers"] for measured in throughput.values()]
    for name, aim in aims.items():
        if len(everywhere) < 2 or any({launch.OURS, name} - set(peers) for peers in everywhere):
            continue
        pairs = (
            zip(peers[launch.OURS]["steps_per_s"], peers[name]["steps_per_s"], strict=True)
            for peers in everywhere
        )
        estimate = geometric_mean_interval([[ours / theirs for ours, theirs in p] for p in pairs])
        yield (
            "geometric mean",
            f"{launch.OURS} / {name}",
            f"{estimate.median:.2f}",
            f"{estimate.low:.2f} - {estimate.high:.2f}",
            str(estimate.count),
            f"at least {aim}: {estimate.verdict(aim)}",
        )


def _recommended(measured: Mapping[str, Any]) -> str:
    rows = []
    for name, peer in measured["peers"].items():
        own, estimate = RECOMMENDED[name], Estimate(**peer["median"])
        score = peer["return_mean"]
        rows.append(
            (
                f"[{name}]({own.source})",
                own.batch,
                own.learning,
                f"{estimate.median:,.0f}",
                f"{estimate.low:,.0f} - {estimate.high:,.0f}",
                "-" if score is None else f"{score:.0f}",
            )
        )
    text = (
        "PPO on CartPole-v1 as each library recommends it. The work for a step is not the same, nor "
        "is what is learned from it: **these rates are not to be divided by one another.**"
    )
    names = ("peer", "environments x steps", "learning", "steps/s", "interval", "return")
    return f"## With each library's own hyperparameters\n\n{text}\n\n" + table(names, rows)


def _overhead(overhead: Mapping[str, Any]) -> str:
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
                f"at most {MAX_OVERHEAD}: {_reached(estimate.median, MAX_OVERHEAD)}",
            )
        )
    return "## `train()` over the bare compiled loop of the same program\n\n" + table(
        ("setting", "updates", "train() s", "bare s", "ratio", "interval", "aim"), rows
    )


def _imports(imports: Mapping[str, list[float]]) -> str:
    base = imports[next(iter(IMPORTS))]
    rows = []
    for name, seconds in imports.items():
        excess = median_excess(seconds, base)
        aim = f"at most {MAX_IMPORT_S} s: {_reached(excess, MAX_IMPORT_S)}"
        rows.append(
            (
                name,
                f"{median(seconds):.2f}",
                f"{excess:+.2f}" if seconds is not base else "-",
                aim if seconds is not base else "-",
            )
        )
    heading = (
        f"## Imports\n\nSeconds in fresh processes, median of {len(base)}. `import jaxrl` puts off "
        "what a name needs until it is used; the last row uses two.\n\n"
    )
    return heading + table(("import", "s", "over the first", "aim"), rows)


def _compile(compiled: Mapping[str, Any]) -> str:
    aims = {"cold": MAX_COLD_S, "cached": MAX_CACHED_S}
    names = {"cold": "empty cache", "cached": "from the persistent cache"}
    rows = []
    for kind, aim in aims.items():
        program, whole = (
            median(reply[name] for reply in compiled[kind]) for name in ("program_s", "compile_s")
        )
        reached = f"at most {aim} s: {_reached(program, aim)}"
        rows.append(
            (names[kind], f"{program:.2f}", f"{whole:.2f}", str(len(compiled[kind])), reached)
        )
    heading = (
        f"## Compiling PPO at {compiled['setting']}\n\nMedian seconds in fresh processes, imports "
        "apart: tracing, lowering and compiling the train program; and everything from `build()` "
        "to the first `train()`, less what a second one takes.\n\n"
    )
    return heading + table(("", "program s", "everything s", "processes", "aim"), rows)


def _reached(value: float, limit: float) -> str:
    return "yes" if value <= limit else "no"
