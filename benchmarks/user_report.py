"""What a user sees, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import user
from benchmarks.report import header
from benchmarks.statistics import Estimate
from benchmarks.tables import table

MAX_RATIOS = {user.HANDWRITTEN: 0.75}
MIN_SHARE, MAX_LATENCY_S = 0.85, 0.15e-3
WHAT = {
    user.OURS: "`jaxrl train file configs/classic/cartpole-ppo.yaml`: evaluations, run folder, picture",
    user.COLD: "the same with an empty compilation cache",
    user.HANDWRITTEN: "a hand-written script of jax, flax and optax, of equal networks, batches and epochs; it prints the return",
    user.CACHED: "the same with JAX's persistent compilation cache filled",
    user.TUNED: "the same without a cache, with the cores as devices and a cheaper shuffle",
    user.SB3: "Stable-Baselines3, `PPO(...).learn(...)`",
    user.RLLIB: "RLlib, `algo.train()` until the steps are made, in the process that asks",
}


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one run."""
    sections = [header(results, "Speed as a user sees it")]
    if results["commands"]:
        sections.append(_commands(results))
    if results["iterations"]:
        sections.append(_iterations(results["iterations"]))
    if results["latency"]:
        sections.append(_latency(results["latency"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def readme_table(results: Mapping[str, Any]) -> str:
    """Which figure a user gets from which command."""
    rows = []
    for name, peer in results["commands"]["peers"].items():
        rows.append((WHAT[name], f"{Estimate(**peer['median']).median:.1f} s"))
    if results["iterations"]:
        medians = results["iterations"]["medians"]
        single, whole = (Estimate(**medians[name]).median for name in ("single", "whole"))
        rows += [
            ("`algo.train()` with one train batch a call", f"{single:,.0f} steps/s"),
            ("`algo.train()` with all of them in one call", f"{whole:,.0f} steps/s"),
        ]
    if "compute_single_action" in results["latency"]:
        p50 = results["latency"]["compute_single_action"]["p50"]
        rows.append(("`algo.compute_single_action(obs)`, median", f"{1e3 * p50:.2f} ms"))
    return table((f"PPO, CartPole, {results['env_steps']:,} steps", "what a user gets"), rows)


def _commands(results: Mapping[str, Any]) -> str:
    measured = results["commands"]
    rows = []
    for name, peer in measured["peers"].items():
        seconds = Estimate(**peer["median"])
        ratio = measured["ratios"].get(name)
        aim = MAX_RATIOS.get(name)
        rows.append(
            (
                name,
                WHAT[name],
                f"{seconds.median:.1f} ({seconds.low:.1f} - {seconds.high:.1f})",
                "" if ratio is None else _interval(Estimate(**ratio)),
                "" if ratio is None or aim is None else _at_most(Estimate(**ratio), aim),
            )
        )
    text = (
        f"Whole processes by the clock on the wall, PPO on CartPole-v1 at 4 environments x 128 steps "
        f"for {results['env_steps']:,} steps. Medians and 95 % intervals over rounds in which each "
        "takes its turn; SB3 and RLlib in one round."
    )
    names = ("process", "what it is", "seconds", "jaxrl's seconds over its", "aim")
    return f"## From start to end\n\n{text}\n\n" + table(names, rows)


def _iterations(measured: Mapping[str, Any]) -> str:
    ratio = Estimate(**measured["ratio"])
    rows = [
        (what, f"{Estimate(**measured['medians'][name]).median:,.0f}")
        for name, what in (
            ("whole", "all train batches in one `train()`, as the other tables have it"),
            ("single", "a train batch a `train()`, with results written"),
        )
    ]
    text = (
        f"The share is {_interval(ratio)}, at least {MIN_SHARE} is aimed at: "
        f"{ratio.verdict(MIN_SHARE)}."
    )
    return f"## Iterations\n\n{text}\n\n" + table(("iterations", "steps/s"), rows)


def _latency(measured: Mapping[str, Any]) -> str:
    rows = [
        (name, *(f"{1e3 * spread[key]:.3f}" for key in ("p10", "p50", "p99")))
        for name, spread in measured.items()
    ]
    text = "Milliseconds of one action of an MLP, after the first two calls."
    ours = measured.get("compute_single_action")
    if ours is not None:
        reached = "yes" if ours["p50"] <= MAX_LATENCY_S else "no"
        text += f" At most {1e3 * MAX_LATENCY_S:g} at p50 is aimed at: {reached}."
    names = ("call", "p10", "p50", "p99")
    return f"## A single action\n\n{text}\n\n" + table(names, rows)


def _interval(estimate: Estimate) -> str:
    return f"{estimate.median:.2f} ({estimate.low:.2f} - {estimate.high:.2f})"


def _at_most(estimate: Estimate, aim: float) -> str:
    reached = "yes" if estimate.high <= aim else "no" if estimate.low > aim else "undecided"
    return f"at most {aim:g}: {reached}"
