"""Report of the user suite, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import user
from benchmarks.report import render_header, render_table
from benchmarks.statistics import Estimate

MAX_RATIOS = {user.HANDWRITTEN: 0.75}
MIN_SHARE, MAX_LATENCY_S = 0.85, 0.15e-3
DESCRIPTIONS = {
    user.OURS: "`jaxrl train file configs/classic/cartpole-ppo.yaml`, with evaluations, run "
    "folder, and plot",
    user.COLD: "the same with an empty compilation cache",
    user.HANDWRITTEN: "hand-written script with jax, flax, and optax: the same networks, batches, "
    "and epochs; prints the return",
    user.CACHED: "the same with a filled persistent compilation cache of JAX",
    user.TUNED: "the same without a cache, with the cores as devices and a cheaper shuffle",
    user.SB3: "Stable-Baselines3, `PPO(...).learn(...)`",
    user.RLLIB: "RLlib, repeated `algo.train()`, sampling and learning in the driver process",
}
"""Description of each process."""


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render all tables of a run as Markdown."""
    sections = [render_header(results, "Speed as a user sees it")]
    if results["commands"]:
        sections.append(_render_commands(results))
    if results["iterations"]:
        sections.append(_render_iterations(results["iterations"]))
    if results["latency"]:
        sections.append(_render_latency(results["latency"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def render_readme_table(results: Mapping[str, Any]) -> str:
    """Render README's table of the results of each command."""
    rows = []
    for name, peer in results["commands"]["peers"].items():
        rows.append((DESCRIPTIONS[name], f"{Estimate(**peer['median']).median:.1f} s"))
    if results["iterations"]:
        medians = results["iterations"]["medians"]
        single, whole = (Estimate(**medians[name]).median for name in ("single", "whole"))
        rows += [
            ("`algo.train()` with one train batch per call", f"{single:,.0f} steps/s"),
            ("`algo.train()` with all train batches in one call", f"{whole:,.0f} steps/s"),
        ]
    if "compute_single_action" in results["latency"]:
        p50 = results["latency"]["compute_single_action"]["p50"]
        rows.append(("`algo.compute_single_action(obs)`, median", f"{1e3 * p50:.2f} ms"))
    return render_table((f"PPO, CartPole, {results['env_steps']:,} steps", "result"), rows)


def _render_commands(results: Mapping[str, Any]) -> str:
    measured = results["commands"]
    rows = []
    for name, peer in measured["peers"].items():
        seconds = Estimate(**peer["median"])
        ratio = measured["ratios"].get(name)
        aim = MAX_RATIOS.get(name)
        rows.append(
            (
                name,
                DESCRIPTIONS[name],
                f"{seconds.median:.1f} ({seconds.low:.1f} - {seconds.high:.1f})",
                "" if ratio is None else _format_interval(Estimate(**ratio)),
                "" if ratio is None or aim is None else _format_aim(Estimate(**ratio), aim),
            )
        )
    text = (
        "Wall-clock time of whole processes that train PPO on CartPole-v1, 4 environments x 128 "
        f"steps, for {results['env_steps']:,} steps. Medians over rounds in which the processes "
        "take turns, with 95 % intervals; one round for SB3 and RLlib."
    )
    names = ("process", "description", "seconds", "jaxrl's seconds / its seconds", "aim")
    return f"## From start to end\n\n{text}\n\n" + render_table(names, rows)


def _render_iterations(measured: Mapping[str, Any]) -> str:
    ratio = Estimate(**measured["ratio"])
    rows = [
        (description, f"{Estimate(**measured['medians'][name]).median:,.0f}")
        for name, description in (
            ("whole", "all train batches in one `train()`, as in the other tables"),
            ("single", "one train batch per `train()`, with results written"),
        )
    ]
    text = (
        f"The second runs at {_format_interval(ratio)} of the speed of the first "
        f"(aim: at least {MIN_SHARE}; reached: {ratio.judge(MIN_SHARE)})."
    )
    return f"## Iterations\n\n{text}\n\n" + render_table(("iterations", "steps/s"), rows)


def _render_latency(measured: Mapping[str, Any]) -> str:
    rows = [
        (name, *(f"{1e3 * spread[key]:.3f}" for key in ("p10", "p50", "p99")))
        for name, spread in measured.items()
    ]
    text = "Milliseconds per action of an MLP, after two calls to warm up."
    ours = measured.get("compute_single_action")
    if ours is not None:
        reached = "yes" if ours["p50"] <= MAX_LATENCY_S else "no"
        text += f" Aim: at most {1e3 * MAX_LATENCY_S:g} at p50; reached: {reached}."
    names = ("call", "p10", "p50", "p99")
    return f"## A single action\n\n{text}\n\n" + render_table(names, rows)


def _format_interval(estimate: Estimate) -> str:
    return f"{estimate.median:.2f} ({estimate.low:.2f} - {estimate.high:.2f})"


def _format_aim(estimate: Estimate, aim: float) -> str:
    reached = "yes" if estimate.high <= aim else "no" if estimate.low > aim else "undecided"
    return f"at most {aim:g}: {reached}"
