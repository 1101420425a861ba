"""Speed of environments alone: `python -m benchmarks.envs`.

Compares jaxrl's MinAtar with gymnax's: random actions and auto-reset, many copies of a game in one
compiled loop, both vectorized by jaxrl. The two take turns, so that other load on the machine
affects both alike. Compilation is excluded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.statistics import compare_to, describe_rates, show, show_value
from jaxrl.bench.markdown import Table

GAMES = ("Breakout", "Asterix", "Freeway", "SpaceInvaders", "Seaquest")
OURS, THEIRS = PEERS = ("jaxrl", "gymnax")


def run(options: Options) -> dict[str, Any]:
    """Measure the steps per second of both implementations of each game."""
    versions = describe_packages("jax", "gymnax")
    return {
        "peers": dict.fromkeys(PEERS, versions),
        "num_envs": options.num_envs,
        "num_steps": options.num_steps,
        "games": {name: _measure_game(name, options) for name in options.games},
    }


def _measure_game(name: str, options: Options) -> dict[str, Any]:
    size = options.num_envs, options.num_steps
    rounds = {peer: make_round(f"{peer}:{name}-MinAtar", *size) for peer in PEERS}
    rates = measure.measure_rates(rounds, options.pairs, size[0] * size[1])
    return {**describe_rates(rates), "ratio": compare_to(rates, THEIRS)[OURS]}


def make_round(
    env_id: str, num_envs: int, num_steps: int, reset_mode: Any = None
) -> Callable[[], float]:
    """Return a function that runs steps of each copy with auto-reset and returns the seconds.

    Args:
        env_id: Id of an environment with discrete actions.
        num_envs: Number of copies.
        num_steps: Steps of each copy.
        reset_mode: How copies are reset; None for the environment's own way.
    """
    import jax
    import jax.numpy as jnp

    from jaxrl.envs import make
    from jaxrl.envs.vector import VectorEnv

    made: Any = make(env_id)
    vector = VectorEnv(made.env, reset_mode or made.env.reset_mode)
    number = int(made.spaces[1].n)

    @jax.jit
    def run(state: Any, params: Any) -> Any:
        def step(state: Any, inputs: Any) -> tuple[Any, Any]:
            sample = jax.vmap(lambda key: jax.random.randint(key, (), 0, number))
            state, transition = vector.step(state, sample(inputs.action_key), inputs, params)
            return state, jnp.sum(transition.reward)

        return jax.lax.scan(step, state, vector.make_step_inputs(state, num_steps, params))

    latest = jax.jit(vector.reset)(jax.random.key(0), jnp.arange(num_envs), made.params)

    def run_round() -> float:
        nonlocal latest
        start = time.perf_counter()
        latest, _ = jax.block_until_ready(run(latest, made.params))
        return time.perf_counter() - start

    return run_round


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the games."""
    yield Table(
        text=f"MinAtar with random actions and auto-reset: {results['num_envs']:,} copies x "
        f"{results['num_steps']} steps per round. Steps per second, medians over the rounds; "
        "ratios with 95 % intervals.",
        header=("game", *PEERS, "ratio"),
        rows=[
            (
                name,
                *(show_value(game["median"][peer], ",.0f") for peer in PEERS),
                show(game["ratio"], ".1f"),
            )
            for name, game in results["games"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="envs",
    about=__doc__,
    title="Environments",
    measure=run,
    build_tables=build_tables,
    names={"games": GAMES},
    numbers={"num-envs": (1024, "copies of a game"), "num-steps": (200, "steps per round")},
    quick={"num_envs": 16, "num_steps": 8},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
