"""Speed of environments of other packages: `python -m benchmarks.packages`, with jaxrl[suites].

Three comparisons on equal sizes, in turns: steps of copies through the adapter with the package's own
function, both vectorized alike and without resets; resets where an episode ended with resets at every
step; and training by PPO with a hand-written compiled PPO, which uses the package's own auto-reset.
Compilation is excluded.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.envs import make_round
from benchmarks.settings import HANDWRITTEN, OURS, Setting
from benchmarks.statistics import compare_to, describe_rates, show, show_value
from jaxrl.bench.markdown import Cells, Table

ENVS = (
    *("brax:inverted_pendulum", "craftax:Craftax-Classic-Symbolic-v1", "jumanji:Snake-v1"),
    *("playground:CartpoleBalance", "xminigrid:MiniGrid-Empty-8x8"),
)
RESETS = "craftax:Craftax-Classic-Symbolic-v1"
TRAINED = ("brax:inverted_pendulum", "xminigrid:MiniGrid-Empty-8x8")
VERSIONS = ("jax", "brax", "craftax", "jumanji", "playground", "xminigrid")

Round = Callable[[], float]


def run(options: Options) -> dict[str, Any]:
    """Measure steps, resets and training."""
    size = (4, 4) if options.quick else (64, 64)
    infos: dict[str, Any] = {}
    modes = ("on_demand", "every_step")
    results: dict[str, Any] = {
        "num_envs": size[0],
        "num_steps": size[1],
        "infos": infos,
        "peers": {"jaxrl": describe_packages(*VERSIONS)},
        "steps": {},
    }
    for env in ENVS:
        rounds = {
            "adapter": make_steps(*adapted(env), *size),
            "package": make_steps(*packaged(env), *size),
        }
        results["steps"][env] = _compare(rounds, options.pairs, size)
    rounds = {mode: make_round(RESETS, *size, reset_mode=mode) for mode in modes}
    results["resets"] = _compare(rounds, options.pairs, size)
    results["training"] = {env: train(env, options, infos) for env in TRAINED}
    return results


def _compare(rounds: Mapping[str, Round], pairs: int, size: tuple[int, int]) -> dict[str, Any]:
    return _describe(measure.measure_rates(rounds, pairs, size[0] * size[1]))


def _describe(rates: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the rates of two, and the ratio of the first to the second."""
    first, second = rates
    return {**describe_rates(rates), "ratio": compare_to(rates, second)[first]}


def adapted(env_id: str) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Return reset and step of the adapter, without the time limit, and the action space."""
    from jaxrl.envs import TimeLimit, make

    made: Any = make(env_id)
    env = made.env.env if isinstance(made.env, TimeLimit) else made.env

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
        after, result = env.step(key, state, action, made.params)
        return after, (result.obs, result.reward, result.terminated)

    return lambda key: env.reset(key, made.params)[0], step, made.spaces[1]


def packaged(env_id: str) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Return reset and step of the package itself, and the action space."""
    from jaxrl.envs import make

    prefix, _, name = env_id.partition(":")
    space = make(env_id).spaces[1]
    if prefix == "craftax":
        create = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name
        env = create(name, auto_reset=False)
        params = env.default_params

        def step_craftax(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
            obs, after, reward, done, _ = env.step_env(key, state, action, params)
            return after, (obs, reward, done)

        return lambda key: env.reset_env(key, params)[1], step_craftax, space
    if prefix == "jumanji":
        env = importlib.import_module("jumanji").make(name)

        def step_jumanji(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
            after, step = env.step(state, action)
            return after, (step.observation, step.reward, step.last())

        return lambda key: env.reset(key)[0], step_jumanji, space
    if prefix == "xminigrid":
        env, params = importlib.import_module("xminigrid").make(name)

        def step_grid(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
            after = env.step(params, state, action)
            return after, (after.observation, after.reward, after.last())

        return lambda key: env.reset(params, key), step_grid, space
    if prefix == "brax":
        env = importlib.import_module("brax.envs").get_environment(name)
    else:
        registry = importlib.import_module("mujoco_playground").registry
        env = registry.load(name, config_overrides={"impl": "jax"})

    def step_bodies(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
        after = env.step(state, action)
        return after, (after.obs, after.reward, after.done)

    return env.reset, step_bodies, space


def make_steps(
    reset: Callable[..., Any], step: Callable[..., Any], space: Any, num_envs: int, num_steps: int
) -> Round:
    """Return a function that steps all copies from their starts, and returns the seconds."""
    import jax
    import jax.numpy as jnp

    def draw(key: Any) -> Any:
        if hasattr(space, "n"):
            return jax.random.randint(key, (), 0, int(space.n))
        return jax.random.uniform(key, space.shape, minval=-1.0)

    def run(start: Any, key: Any) -> Any:
        def one_step(carry: Any, key: Any) -> Any:
            keys = jax.random.split(key, num_envs)
            words = jax.vmap(jax.random.key_data)(keys)
            after, (obs, reward, end) = jax.vmap(step)(words, carry, jax.vmap(draw)(keys))
            seen = sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(obs))
            return after, seen + jnp.sum(reward) + jnp.sum(end)

        return jax.lax.scan(one_step, start, jax.random.split(key, num_steps))[1]

    words = jax.random.key_data(jax.random.split(jax.random.key(0), num_envs))
    with jax.numpy_rank_promotion("allow"):
        start = jax.block_until_ready(jax.jit(jax.vmap(reset))(words))
        program = jax.jit(run).lower(start, jax.random.key(1)).compile()

    def run_round() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(program(start, jax.random.key(1)))
        return time.perf_counter() - begin

    return run_round


def train(env: str, options: Options, infos: dict[str, Any]) -> dict[str, Any]:
    """Measure PPO on an environment, and the hand-written one."""
    num_envs, num_steps, num_updates = (4, 8, 1) if options.quick else (64, 32, 8)
    setting = Setting(
        env=env, num_envs=num_envs, num_steps=num_steps, num_updates=num_updates
    ).to_dict()
    rates: dict[str, list[float]] = {OURS: [], HANDWRITTEN: []}
    with contextlib.ExitStack() as stack:
        workers = measure.start_workers(stack, rates, infos)
        for worker in workers.values():
            worker.ask("setup", setting=setting)
            worker.ask("run")
        for number in range(options.pairs):
            names = list(rates) if number % 2 else list(rates)[::-1]
            for name in names:
                found = workers[name].ask("run")
                rates[name].append(measure.compute_rate(found))
    return _describe(rates)


def build_tables(results: Results) -> Iterator[Table]:
    """Build the tables of steps, resets and training."""

    def row(name: str, found: Results, digits: str) -> Cells:
        rates = (show_value(rate, ",.0f") for rate in found["median"].values())
        return (name, *rates, show(found["ratio"], digits))

    sizes = f"{results['num_envs']:,} copies x {results['num_steps']} steps per round"
    ratio = "Steps per second, medians over the rounds; ratios with 95 % intervals."
    yield Table(
        text=f"Steps through the adapter and of the package itself, no resets: {sizes}. {ratio}",
        header=("environment", "adapter", "package", "ratio"),
        rows=[row(env, found, ".2f") for env, found in results["steps"].items()],
    )
    yield Table(
        text=f"Resets of copies whose episode ended, and of all at every step: {sizes}.",
        header=("environment", "on demand", "every step", "ratio"),
        rows=[row(RESETS, results["resets"], ".1f")],
    )
    yield Table(
        text="Training by PPO with two layers of 64 units, and by the same computations by hand "
        "with the package's auto-reset on one device.",
        header=("environment", OURS, HANDWRITTEN, "ratio"),
        rows=[row(env, found, ".2f") for env, found in results["training"].items()],
    )


BENCHMARK = Benchmark(
    name="packages",
    about=__doc__,
    title="Environments of other packages",
    measure=run,
    build_tables=build_tables,
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
