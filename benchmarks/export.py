"""Latency of exported policies: `python -m benchmarks.export`.

One observation and one action, of untrained policies: `NumpyPolicy.act`, the compiled call alone of the
same program as StableHLO, with its result in NumPy, and `Policy.act` in the process of the training. They
take turns in one process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.statistics import compare_to, describe_rates, show
from jaxrl import AlgorithmConfig, PPOConfig, SACConfig
from jaxrl.bench.markdown import Table
from jaxrl.export.numpy_program import NumpyPolicy

CALLS = 2000
"""Calls of each function in a round."""
NUMPY, COMPILED, POLICY = "NumpyPolicy", "compiled call", "Policy"


def run(options: Options) -> dict[str, Any]:
    """Measure the latencies of each policy."""
    calls = 20 if options.quick else CALLS
    cases = {name: measure_case(make(), calls, options.pairs) for name, make in CASES.items()}
    return {"peers": {"jaxrl": describe_packages("jax", "numpy")}, "cases": cases}


def _make_ppo() -> AlgorithmConfig:
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(observation_filter="MeanStdFilter")
    return config.rl_module(model_config={"fcnet_hiddens": [64, 64]})


def _make_lstm_ppo() -> AlgorithmConfig:
    config = PPOConfig().environment("StatelessCartPole-v0")
    model = {"fcnet_hiddens": [64], "use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 16}
    return config.rl_module(model_config=model)


def _make_sac() -> AlgorithmConfig:
    config = SACConfig().environment("Pendulum-v1")
    return config.rl_module(model_config={"fcnet_hiddens": [256, 256]})


CASES: dict[str, Callable[[], AlgorithmConfig]] = {
    "CartPole, PPO, 2 x 64": _make_ppo,
    "StatelessCartPole, PPO, LSTM of 64": _make_lstm_ppo,
    "Pendulum, SAC, 2 x 256": _make_sac,
}


def measure_case(config: AlgorithmConfig, calls: int, rounds: int) -> dict[str, Any]:
    """Measure the microseconds of a greedy action, and their ratio to the compiled call's."""
    config.learners(num_devices=1).debugging(loggers=[])
    with (
        tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as name,
        config.build() as algorithm,
    ):
        folder = algorithm.export(Path(name) / "policy", ("numpy", "stablehlo"), (False,))
        policy, original = NumpyPolicy(folder), algorithm.get_policy()
        obs = np.zeros(policy.manifest["observation_space"]["shape"], np.float32)
        functions = {
            NUMPY: partial(policy.act, obs),
            COMPILED: _make_compiled_call(Path(folder), policy, obs),
            POLICY: partial(original.act, obs),
        }
        timed = {n: partial(_time_calls, function, calls) for n, function in functions.items()}
        found = measure.take_turns(timed, rounds)
    latencies = describe_rates(found)["median"]
    return {"microseconds": latencies, "ratio": compare_to(found, COMPILED)[NUMPY]}


def _make_compiled_call(folder: Path, policy: NumpyPolicy, obs: np.ndarray) -> Callable[[], Any]:
    """Return a call of the program of StableHLO that does nothing else."""
    given: dict[str, Any] = {
        f"weights/{name}": jnp.asarray(x) for name, x in policy.get_weights().items()
    }
    given.update(zip(policy.state_names, policy.initial_state(), strict=True))
    given["obs"] = obs[None]
    arrays = [given[name] for name in policy.manifest["programs"]["greedy"]["inputs"]]
    exported = jax_export.deserialize(bytearray((folder / "greedy.stablehlo").read_bytes()))
    call = jax.jit(exported.call)
    return lambda: [np.asarray(result) for result in call(arrays, [])]


def _time_calls(function: Callable[[], Any], calls: int) -> float:
    """Return the microseconds of a call, the median of several."""
    seconds: list[float] = []
    for _ in range(calls):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return 1e6 * float(np.median(seconds))


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the policies."""
    yield Table(
        text="Microseconds of one greedy action, medians over the rounds with 95 % intervals. The ratio is "
        f"that of `{NUMPY}` to the compiled call, within a round.",
        header=("policy", f"`{NUMPY}.act`", COMPILED, f"`{POLICY}.act`", "ratio"),
        rows=[
            (
                name,
                *(show(latency, ".0f") for latency in case["microseconds"].values()),
                show(case["ratio"], ".2f"),
            )
            for name, case in results["cases"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="export",
    about=__doc__,
    title="Exported policies",
    measure=run,
    build_tables=build_tables,
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
