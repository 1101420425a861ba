"""How fast environments alone are: `python -m benchmarks.envs`.

jaxrl's MinAtar beside gymnax's: random actions and auto-reset, many copies of a game in one compiled
loop, with jaxrl's vectoriser around both. Rounds take turns, so that what else the machine does
meets both alike. Compiling is not measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.statistics import Estimate, median_interval, paired_ratio
from benchmarks.tables import table

GAMES = ("Breakout", "Asterix", "Freeway", "SpaceInvaders", "Seaquest")
OURS, THEIRS = "jaxrl", "gymnax"
PREFIXES = {OURS: "jaxrl:", THEIRS: "gymnax:"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each game, write `envs.json` and `envs.md`, print the table; the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    load = machine.load_average()
    games = {name: measured(name, options) for name in options.games}
    versions = {name: version(name) for name in ("jax", "gymnax")}
    results: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.envs", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": options.quick,
        "machine": machine.describe(),
        "load": {"before": load, "after": machine.load_average()},
        "peers": {name: {"devices": 1, "versions": versions} for name in PREFIXES},
        "num_envs": options.num_envs,
        "num_steps": options.num_steps,
        "games": games,
    }
    text = markdown(results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "envs.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.out / "envs.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__)
    parser.add_argument("--games", default=",".join(GAMES), help="default: %(default)s")
    parser.add_argument("--num-envs", type=int, default=1024, help="default: %(default)s")
    parser.add_argument("--num-steps", type=int, default=200, help="a round (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=11, help="rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    options.games = options.games.split(",")
    for name in options.games:
        if name not in GAMES:
            parser.error(f"--games: {name!r} is none of {', '.join(GAMES)}")
    if options.quick:
        options.num_envs, options.num_steps, options.pairs = 16, 8, 2
    options.out = options.out or machine.results_folder(whole=not options.quick)
    return options


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Steps a second of both, round by round."""
    rounds = {
        peer: prepared(f"{prefix}{name}-MinAtar", options.num_envs, options.num_steps)
        for peer, prefix in PREFIXES.items()
    }
    for one_round in rounds.values():
        one_round()
    rates: dict[str, list[float]] = {peer: [] for peer in rounds}
    for _ in range(options.pairs):
        for peer, one_round in rounds.items():
            rates[peer].append(options.num_envs * options.num_steps / one_round())
    return {
        "rates": rates,
        "median": {p: dataclasses.asdict(median_interval(r)) for p, r in rates.items()},
        "ratio": dataclasses.asdict(paired_ratio(rates[OURS], rates[THEIRS])),
    }


def prepared(env_id: str, num_envs: int, num_steps: int) -> Callable[[], float]:
    """A function that makes `num_steps` steps of each copy and returns the seconds they took."""
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
            draw = jax.vmap(lambda key: jax.random.randint(key, (), 0, space.n))
            state, taken = vector.step(state, draw(inputs.action_key), inputs, params)
            return (state, total + jnp.sum(taken.reward)), None

        inputs = vector.inputs(state, num_steps, params)
        return jax.lax.scan(step, (state, jnp.zeros((), jnp.float32)), inputs)[0]

    first = jax.jit(vector.reset)(jax.random.key(0), jnp.arange(num_envs), made.params)
    kept = {"state": first}

    def one_round() -> float:
        start = time.perf_counter()
        kept["state"], total = run(kept["state"], made.params)
        jax.block_until_ready((kept["state"], total))
        return time.perf_counter() - start

    return one_round


def markdown(results: Mapping[str, Any]) -> str:
    """The table."""
    rows = []
    for name, game in results["games"].items():
        ours, theirs = (Estimate(**game["median"][peer]) for peer in (OURS, THEIRS))
        ratio = Estimate(**game["ratio"])
        rows.append(
            (
                name,
                f"{ours.median:,.0f}",
                f"{theirs.median:,.0f}",
                f"{ratio.median:.1f} ({ratio.low:.1f} - {ratio.high:.1f})",
            )
        )
    text = (
        f"MinAtar with random actions and auto-reset: {results['num_envs']:,} copies x "
        f"{results['num_steps']} steps a round, steps a second; medians and 95 % intervals over the "
        "rounds."
    )
    sections = [
        report.header(results, "Environments"),
        text,
        table(("game", OURS, THEIRS, "ratio"), rows),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(main())
