"""Speed of environments alone: `python -m benchmarks.envs`.

Compares jaxrl's MinAtar with gymnax's: random actions and auto-reset, many copies of a game in one
compiled loop, both vectorized by jaxrl. The two take turns, so that other load on the machine
affects both alike. Compilation is excluded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, parse_names, save_results, start_results
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

GAMES = ("Breakout", "Asterix", "Freeway", "SpaceInvaders", "Seaquest")
OURS, THEIRS = "jaxrl", "gymnax"
PREFIXES = {OURS: "jaxrl:", THEIRS: "gymnax:"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each game, write `envs.json` and `envs.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.envs", arguments, is_quick=options.quick)
    versions = {name: version(name) for name in ("jax", "gymnax")}
    results |= {
        "peers": {name: {"devices": 1, "versions": versions} for name in PREFIXES},
        "num_envs": options.num_envs,
        "num_steps": options.num_steps,
        "games": {name: measure_game(name, options) for name in options.games},
    }
    save_results(results, options.out, "envs", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__)
    parser.add_argument(
        "--games", default=",".join(GAMES), help="games, separated by commas (default: %(default)s)"
    )
    parser.add_argument(
        "--num-envs", type=int, default=1024, help="copies of a game (default: %(default)s)"
    )
    parser.add_argument(
        "--num-steps", type=int, default=200, help="steps per round (default: %(default)s)"
    )
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.games = parse_names(parser, "--games", options.games, GAMES)
    if options.quick:
        options.num_envs, options.num_steps, options.pairs = 16, 8, 2
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    return options


def measure_game(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the steps per second of both implementations of a game in every round."""
    rounds = {
        peer: make_round(f"{prefix}{name}-MinAtar", options.num_envs, options.num_steps)
        for peer, prefix in PREFIXES.items()
    }
    steps = options.num_envs * options.num_steps
    seconds = measure.take_turns(rounds, options.pairs)
    rates = {peer: [steps / elapsed for elapsed in found] for peer, found in seconds.items()}
    return {
        "rates": rates,
        "median": {p: to_dict(estimate_median(r)) for p, r in rates.items()},
        "ratio": to_dict(estimate_ratio(rates[OURS], rates[THEIRS])),
    }


def make_round(env_id: str, num_envs: int, num_steps: int) -> Callable[[], float]:
    """Return a function that runs `num_steps` steps of each copy and returns the seconds."""
    import jax
    import jax.numpy as jnp

    from jaxrl.envs import make
    from jaxrl.envs.vector import VectorEnv

    made: Any = make(env_id)
    vector = VectorEnv(made.env, made.env.reset_mode)
    space: Any = made.env.action_space(made.params)

    @jax.jit
    def run(state: Any, params: Any) -> tuple[Any, Any]:
        def step(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], None]:
            state, total = carry
            sample = jax.vmap(lambda key: jax.random.randint(key, (), 0, space.n))
            state, transition = vector.step(state, sample(inputs.action_key), inputs, params)
            return (state, total + jnp.sum(transition.reward)), None

        inputs = vector.make_step_inputs(state, num_steps, params)
        return jax.lax.scan(step, (state, jnp.zeros((), jnp.float32)), inputs)[0]

    latest = {"state": jax.jit(vector.reset)(jax.random.key(0), jnp.arange(num_envs), made.params)}

    def run_round() -> float:
        start = time.perf_counter()
        latest["state"], total = run(latest["state"], made.params)
        jax.block_until_ready((latest["state"], total))
        return time.perf_counter() - start

    return run_round


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name, game in results["games"].items():
        rates = (f"{from_dict(game['median'][peer]).value:,.0f}" for peer in (OURS, THEIRS))
        rows.append((name, *rates, format_estimate(from_dict(game["ratio"]), ".1f")))
    text = (
        f"MinAtar with random actions and auto-reset: {results['num_envs']:,} copies x "
        f"{results['num_steps']} steps per round. Steps per second, medians over the rounds; "
        "ratios with 95 % intervals."
    )
    table = Table(text=text, header=("game", OURS, THEIRS, "ratio"), rows=rows)
    return render_document(*build_header(results, "Environments"), table)


if __name__ == "__main__":
    sys.exit(main())
