"""Speed of environments of other packages: `python -m benchmarks.packages`, with jaxrl[suites].

Three comparisons on equal sizes, in turns: steps of copies through the adapter with the package's own
function, both vectorized alike and without resets; resets where an episode ended with resets at every
step; and training by PPO with a hand-written compiled PPO, which uses the package's own auto-reset.
Compilation is excluded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, save_results, start_results
from benchmarks.peers.launch import HANDWRITTEN, OURS
from benchmarks.report import build_header
from benchmarks.settings import Setting
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

ENVS = (
    *("brax:inverted_pendulum", "craftax:Craftax-Classic-Symbolic-v1", "jumanji:Snake-v1"),
    *("playground:CartpoleBalance", "xminigrid:MiniGrid-Empty-8x8"),
)
RESETS = "craftax:Craftax-Classic-Symbolic-v1"
TRAINED = ("brax:inverted_pendulum", "xminigrid:MiniGrid-Empty-8x8")
VERSIONS = ("jax", "brax", "craftax", "jumanji", "playground", "xminigrid")

Round = Callable[[], float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write `packages.json` and `packages.md`, and print the tables.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packages", description=__doc__)
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.out = options.out or machine.choose_results_folder(is_complete=not options.quick)
    num_envs, num_steps = (4, 4) if options.quick else (64, 64)
    if options.quick:
        options.pairs = 2
    results = start_results("benchmarks.packages", arguments, is_quick=options.quick)
    versions = {name: version(name) for name in VERSIONS}
    results |= {"num_envs": num_envs, "num_steps": num_steps, "infos": {}}
    results["peers"] = {"jaxrl": {"devices": 1, "versions": versions}}
    results["steps"] = {
        env: compare(
            ("adapter", "package"),
            {
                "adapter": make_steps(*adapted(env), num_envs, num_steps),
                "package": make_steps(*packaged(env), num_envs, num_steps),
            },
            options.pairs,
            num_envs * num_steps,
        )
        for env in ENVS
    }
    modes = ("on_demand", "every_step")
    results["resets"] = compare(
        modes,
        {mode: make_vector_steps(RESETS, mode, num_envs, num_steps) for mode in modes},
        options.pairs,
        num_envs * num_steps,
    )
    results["training"] = {env: train(env, options, results["infos"]) for env in TRAINED}
    save_results(results, options.out, "packages", render_markdown)
    return 0


def compare(
    names: tuple[str, str], rounds: Mapping[str, Round], pairs: int, steps: int
) -> dict[str, Any]:
    """Measure steps per second by turns, and the ratio of the first to the second."""
    seconds = measure.take_turns(rounds, pairs)
    return describe(names, {n: [steps / x for x in found] for n, found in seconds.items()})


def describe(names: tuple[str, str], rates: Mapping[str, list[float]]) -> dict[str, Any]:
    return {
        "rates": dict(rates),
        "median": {name: to_dict(estimate_median(rate)) for name, rate in rates.items()},
        "ratio": to_dict(estimate_ratio(rates[names[0]], rates[names[1]])),
    }


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


def make_vector_steps(env_id: str, mode: Any, num_envs: int, num_steps: int) -> Round:
    """Return a function that steps copies with auto-reset, and returns the seconds."""
    import jax
    import jax.numpy as jnp

    from jaxrl.envs import make
    from jaxrl.envs.vector import VectorEnv

    made: Any = make(env_id)
    vector = VectorEnv(made.env, mode)
    number = int(made.spaces[1].n)

    @jax.jit
    def run(state: Any, params: Any) -> tuple[Any, Any]:
        def step(state: Any, inputs: Any) -> Any:
            sample = jax.vmap(lambda key: jax.random.randint(key, (), 0, number))
            state, transition = vector.step(state, sample(inputs.action_key), inputs, params)
            return state, jnp.sum(transition.reward)

        return jax.lax.scan(step, state, vector.make_step_inputs(state, num_steps, params))

    latest = {"state": jax.jit(vector.reset)(jax.random.key(0), jnp.arange(num_envs), made.params)}

    def run_round() -> float:
        begin = time.perf_counter()
        latest["state"], _ = jax.block_until_ready(run(latest["state"], made.params))
        return time.perf_counter() - begin

    return run_round


def train(env: str, options: argparse.Namespace, infos: dict[str, Any]) -> dict[str, Any]:
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
                rates[name].append(found["env_steps"] / found["seconds"])
    return describe((OURS, HANDWRITTEN), rates)


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the tables as Markdown."""

    def row(name: str, found: Mapping[str, Any], digits: str) -> Cells:
        rates = (f"{from_dict(rate).value:,.0f}" for rate in found["median"].values())
        return (name, *rates, format_estimate(from_dict(found["ratio"]), digits))

    sizes = f"{results['num_envs']:,} copies x {results['num_steps']} steps per round"
    ratio = "Steps per second, medians over the rounds; ratios with 95 % intervals."
    tables = (
        Table(
            text=f"Steps through the adapter and of the package itself, no resets: {sizes}. {ratio}",
            header=("environment", "adapter", "package", "ratio"),
            rows=[row(env, found, ".2f") for env, found in results["steps"].items()],
        ),
        Table(
            text=f"Resets of copies whose episode ended, and of all at every step: {sizes}.",
            header=("environment", "on demand", "every step", "ratio"),
            rows=[row(RESETS, results["resets"], ".1f")],
        ),
        Table(
            text="Training by PPO with two layers of 64 units, and by the same computations by hand "
            "with the package's auto-reset on one device.",
            header=("environment", OURS, HANDWRITTEN, "ratio"),
            rows=[row(env, found, ".2f") for env, found in results["training"].items()],
        ),
    )
    return render_document(*build_header(results, "Environments of other packages"), *tables)


if __name__ == "__main__":
    sys.exit(main())
