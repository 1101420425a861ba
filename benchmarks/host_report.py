"""Reports of the host suite and of its memory, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.peers import launch
from benchmarks.report import build_header, build_throughput_tables
from benchmarks.statistics import from_dict
from jaxrl.bench.markdown import Table, format_estimate, format_range, render_document

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
    return render_document(
        *build_header(results, "Speed on the host"),
        *build_throughput_tables(results["throughput"], TEXT, launch.LOCAL, RATIO_AIMS),
        _build_impala(results["impala"]) if results["impala"] else None,
    )


def _build_impala(measured: Mapping[str, Any]) -> Table:
    replies = measured["replies"]
    speed = from_dict(measured["steps_per_s"])

    def format_median(name: str) -> str:
        return f"{median(reply[name] for reply in replies):.2f}"

    return Table(
        title="IMPALA with two actors",
        text="Five environments per actor, train batches of 500 steps, alone on the machine; "
        f"medians of {len(replies)} measurements of {measured['env_steps']:,} steps. Staleness is "
        "the number of train batches between the weights that sampled a fragment and those that "
        "are trained on it.",
        header=("", "jaxrl"),
        rows=[
            ("environment steps/s", format_estimate(speed, ",.0f")),
            ("fraction of time the learner waits", format_median("learner_wait_fraction")),
            ("fraction of time the actors wait", format_median("env_runners_wait_fraction")),
            ("mean staleness in train batches", format_median("staleness_mean")),
            ("maximum staleness", str(max(reply["staleness_max"] for reply in replies))),
            ("steps discarded", str(replies[-1]["num_env_steps_discarded"])),
            ("load", " / ".join(str(value) for value in measured["load"])),
        ],
    )


def render_soak_markdown(results: Mapping[str, Any]) -> str:
    """Render the growth of each run's memory."""
    rows = []
    for name, run in results["runs"].items():
        for role, slope in run["slopes"]["resident"].items():
            resident = from_dict(slope, "slope")
            private = from_dict(run["slopes"]["private"][role], "slope")
            aim = f"under {MAX_MB_PER_MINUTE:g}: {resident.judge_at_most(MAX_MB_PER_MINUTE)}"
            values = run["resident"][role]
            rows.append(
                (
                    name,
                    role,
                    f"{values[run['first']]:,.1f}",
                    f"{values[-1]:,.1f}",
                    f"{resident.value:+.3f}",
                    format_range(resident, "+.3f"),
                    f"{private.value:+.3f}",
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
    return render_document(
        *build_header(results, "Memory", is_timed=False),
        Table(text=text, header=names, rows=rows),
    )
