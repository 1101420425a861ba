"""The results of environments on the host as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.limits_report import limits_sections
from benchmarks.peers import launch
from benchmarks.report import header, ratio_section, throughput_section
from benchmarks.statistics import Estimate, Slope
from benchmarks.tables import table

SETTING = "8x256"
RATIO_AIMS = {
    (SETTING, launch.GYMNASIUM): 0.4,
    (SETTING, launch.SB3): 3.0,
    (SETTING, launch.SB3_THREADS): 3.0,
    (SETTING, launch.RLLIB_LOCAL): 5.0,
    (SETTING, launch.RLLIB_2X4): 5.0,
    (SETTING, launch.RLLIB_2X8): 5.0,
}
MAX_MB_PER_MINUTE = 1.0
WITHOUT_AIM = ("Ray's own processes",)
TEXT = (
    "PPO on gymnasium's CartPole-v1, train batches of 2,048 steps; median, 95 % bootstrap interval "
    "over the rounds. `gymnasium` steps eight environments and learns nothing. A name such as 2x4 "
    "is of two runners in processes of their own with four environments each. Compiling is not in "
    "it. The return is the sampling policy's after all rounds: a sign that it learns, no comparison."
)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one run."""
    sections = [header(results, "Speed on the host")]
    if results["throughput"]:
        sections += [
            throughput_section(results["throughput"], TEXT),
            ratio_section(results["throughput"], launch.LOCAL, RATIO_AIMS),
            *limits_sections(results["throughput"]),
        ]
    if results["impala"]:
        sections.append(_impala(results["impala"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def _impala(measured: Mapping[str, Any]) -> str:
    replies = measured["replies"]
    speed = Estimate(**measured["steps_per_s"])

    def middle(name: str) -> float:
        return median(reply[name] for reply in replies)

    rows = [
        ("environment steps/s", f"{speed.median:,.0f} ({speed.low:,.0f} - {speed.high:,.0f})"),
        ("fraction of time the learner waits", f"{middle('learner_wait_fraction'):.2f}"),
        ("fraction of time the actors wait", f"{middle('env_runners_wait_fraction'):.2f}"),
        ("staleness in train batches, mean", f"{middle('staleness_mean'):.2f}"),
        ("staleness, maximum", str(max(reply["staleness_max"] for reply in replies))),
        ("steps discarded", str(replies[-1]["num_env_steps_discarded"])),
        ("load", " / ".join(str(value) for value in measured["load"])),
    ]
    return (
        "## IMPALA with two actors\n\n"
        "Five environments each, train batches of 500 steps, alone on the machine; medians of "
        f"{len(replies)} measurements of {measured['env_steps']:,} steps. Staleness is the number "
        "of train batches between the weights that sampled a fragment and those that learn from "
        "it.\n\n" + table(("", "jaxrl"), rows)
    )


def soak_markdown(results: Mapping[str, Any]) -> str:
    """How the memory of each run grew."""
    rows = []
    for name, run in results["runs"].items():
        for role, slope in run["slopes"]["resident"].items():
            resident, private = Slope(**slope), Slope(**run["slopes"]["private"][role])
            aim = f"under {MAX_MB_PER_MINUTE:g}: {resident.is_below(MAX_MB_PER_MINUTE)}"
            values = run["resident"][role]
            rows.append(
                (
                    name,
                    role,
                    f"{values[run['first']]:,.1f}",
                    f"{values[-1]:,.1f}",
                    f"{resident.slope:+.3f}",
                    f"{resident.low:+.3f} - {resident.high:+.3f}",
                    f"{private.slope:+.3f}",
                    "-" if role in WITHOUT_AIM else aim,
                )
            )
    steps = ", ".join(f"{name} {run['env_steps']:,}" for name, run in results["runs"].items())
    text = (
        "PPO on gymnasium's CartPole-v1, eight environments. Resident memory in MB (10^6 bytes) "
        f"over {results['minutes']:g} minutes, after {results['warmup_minutes']:g} to warm up; the "
        "slope is of least squares over the means of ten groups, with its 95 % interval. Private "
        "memory is the part that is neither shared nor of files. Environment steps in all: "
        f"{steps}."
    )
    names = ("run", "process", "MB at first", "at last", "MB/minute", "interval", "private", "aim")
    title = header(results, "Memory", timed=False)
    return "\n\n".join([title, text, table(names, rows)]) + "\n"
