"""Reports of the host suite and of its memory, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.peers import launch
from benchmarks.report import (
    render_header,
    render_limit_sections,
    render_ratio_section,
    render_table,
    render_throughput_section,
)
from benchmarks.statistics import Estimate, Slope

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
ROLES_WITHOUT_AIM = ("Ray's own processes",)
TEXT = (
    "PPO on gymnasium's CartPole-v1, train batches of 2,048 steps; medians over the rounds with "
    "95 % bootstrap intervals, without compilation. `gymnasium` steps eight environments and does "
    "not learn. In a name such as 2x4, two runners in separate processes have four environments "
    "each. The return is that of the sampling policy after all rounds; it only shows that the peer "
    "learns and is not a comparison."
)


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render all tables of a run as Markdown."""
    sections = [render_header(results, "Speed on the host")]
    if results["throughput"]:
        sections += [
            render_throughput_section(results["throughput"], TEXT),
            render_ratio_section(results["throughput"], launch.LOCAL, RATIO_AIMS),
            *render_limit_sections(results["throughput"]),
        ]
    if results["impala"]:
        sections.append(_render_impala(results["impala"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def _render_impala(measured: Mapping[str, Any]) -> str:
    replies = measured["replies"]
    speed = Estimate(**measured["steps_per_s"])

    def get_median(name: str) -> float:
        return median(reply[name] for reply in replies)

    rows = [
        ("environment steps/s", f"{speed.median:,.0f} ({speed.low:,.0f} - {speed.high:,.0f})"),
        ("fraction of time the learner waits", f"{get_median('learner_wait_fraction'):.2f}"),
        ("fraction of time the actors wait", f"{get_median('env_runners_wait_fraction'):.2f}"),
        ("mean staleness in train batches", f"{get_median('staleness_mean'):.2f}"),
        ("maximum staleness", str(max(reply["staleness_max"] for reply in replies))),
        ("steps discarded", str(replies[-1]["num_env_steps_discarded"])),
        ("load", " / ".join(str(value) for value in measured["load"])),
    ]
    return (
        "## IMPALA with two actors\n\n"
        "Five environments per actor, train batches of 500 steps, alone on the machine; medians of "
        f"{len(replies)} measurements of {measured['env_steps']:,} steps. Staleness is the number "
        "of train batches between the weights that sampled a fragment and those that are trained "
        "on it.\n\n" + render_table(("", "jaxrl"), rows)
    )


def render_soak_markdown(results: Mapping[str, Any]) -> str:
    """Render the growth of each run's memory."""
    rows = []
    for name, run in results["runs"].items():
        for role, slope in run["slopes"]["resident"].items():
            resident, private = Slope(**slope), Slope(**run["slopes"]["private"][role])
            aim = f"under {MAX_MB_PER_MINUTE:g}: {resident.judge(MAX_MB_PER_MINUTE)}"
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
                    "-" if role in ROLES_WITHOUT_AIM else aim,
                )
            )
    steps = ", ".join(f"{name} {run['env_steps']:,}" for name, run in results["runs"].items())
    text = (
        "PPO on gymnasium's CartPole-v1, eight environments. Resident memory in MB (10^6 bytes) "
        f"over {results['minutes']:g} minutes, after {results['warmup_minutes']:g} of warm-up. The "
        "slope is a least-squares fit to the means of ten groups, with its 95 % interval. Private "
        f"memory is neither shared nor backed by files. Total environment steps: {steps}."
    )
    names = ("run", "process", "first MB", "last MB", "MB/minute", "interval", "private", "aim")
    title = render_header(results, "Memory", is_timed=False)
    return "\n\n".join([title, text, render_table(names, rows)]) + "\n"
