"""Report of the user suite, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import user
from benchmarks.report import build_header
from benchmarks.statistics import from_dict
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

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
    return render_document(
        *build_header(results, "Speed as a user sees it"),
        _build_commands(results) if results["commands"] else None,
        _build_iterations(results["iterations"]) if results["iterations"] else None,
        _build_latency(results["latency"]) if results["latency"] else None,
    )


def build_readme_table(results: Mapping[str, Any]) -> Table:
    """Build README's table of the results of each command."""
    rows: list[Cells] = []
    for name, peer in results["commands"]["peers"].items():
        rows.append((DESCRIPTIONS[name], f"{from_dict(peer['median']).value:.1f} s"))
    if results["iterations"]:
        medians = results["iterations"]["medians"]
        single, whole = (from_dict(medians[name]).value for name in ("single", "whole"))
        rows += [
            ("`algo.train()` with one train batch per call", f"{single:,.0f} steps/s"),
            ("`algo.train()` with all train batches in one call", f"{whole:,.0f} steps/s"),
        ]
    if "compute_single_action" in results["latency"]:
        p50 = results["latency"]["compute_single_action"]["p50"]
        rows.append(("`algo.compute_single_action(obs)`, median", f"{1e3 * p50:.2f} ms"))
    return Table(header=(f"PPO, CartPole, {results['env_steps']:,} steps", "result"), rows=rows)


def _build_commands(results: Mapping[str, Any]) -> Table:
    measured = results["commands"]
    rows: list[Cells] = []
    for name, peer in measured["peers"].items():
        ratio_text, verdict = "", ""
        if name in measured["ratios"]:
            ratio, aim = from_dict(measured["ratios"][name]), MAX_RATIOS.get(name)
            ratio_text = format_estimate(ratio, ".2f")
            verdict = "" if aim is None else f"at most {aim:g}: {ratio.judge_at_most(aim)}"
        seconds = format_estimate(from_dict(peer["median"]), ".1f")
        rows.append((name, DESCRIPTIONS[name], seconds, ratio_text, verdict))
    return Table(
        title="From start to end",
        text="Wall-clock time of whole processes that train PPO on CartPole-v1, 4 environments x "
        f"128 steps, for {results['env_steps']:,} steps. Medians over rounds in which the "
        "processes take turns, with 95 % intervals; one round for SB3 and RLlib.",
        header=("process", "description", "seconds", "jaxrl's seconds / its seconds", "aim"),
        rows=rows,
    )


def _build_iterations(measured: Mapping[str, Any]) -> Table:
    ratio = from_dict(measured["ratio"])
    return Table(
        title="Iterations",
        text=f"The second runs at {format_estimate(ratio, '.2f')} of the speed of the first "
        f"(aim: at least {MIN_SHARE}; reached: {ratio.judge_at_least(MIN_SHARE)}).",
        header=("iterations", "steps/s"),
        rows=[
            (description, f"{from_dict(measured['medians'][name]).value:,.0f}")
            for name, description in (
                ("whole", "all train batches in one `train()`, as in the other tables"),
                ("single", "one train batch per `train()`, with results written"),
            )
        ],
    )


def _build_latency(measured: Mapping[str, Any]) -> Table:
    text = "Milliseconds per action of an MLP, after two calls to warm up."
    ours = measured.get("compute_single_action")
    if ours is not None:
        reached = "yes" if ours["p50"] <= MAX_LATENCY_S else "no"
        text += f" Aim: at most {1e3 * MAX_LATENCY_S:g} at p50; reached: {reached}."
    return Table(
        title="A single action",
        text=text,
        header=("call", "p10", "p50", "p99"),
        rows=[
            (name, *(f"{1e3 * spread[key]:.3f}" for key in ("p10", "p50", "p99")))
            for name, spread in measured.items()
        ],
    )
