"""Latency of exported policies: `python -m benchmarks.export`.

One observation and one action, of untrained policies: `NumpyPolicy.act`, the compiled call alone of the
same program as StableHLO, with its result in NumPy, and `Policy.act` in the process of the training. They
take turns in one process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, save_results, start_results
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl import AlgorithmConfig, PPOConfig, SACConfig
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document
from jaxrl.export.numpy_program import NumpyPolicy

CALLS = 2000
"""Calls of each function in a round."""
NUMPY, COMPILED, POLICY = "NumpyPolicy", "compiled call", "Policy"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each policy, write `export.json` and `.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    add_round_options(parser)
    options = parser.parse_args(arguments)
    calls, rounds = (20, 2) if options.quick else (CALLS, options.pairs)
    results = start_results("benchmarks.export", arguments, is_quick=options.quick)
    results |= {
        "peers": {
            "jaxrl": {"devices": 1, "versions": {n: version(n) for n in ("jax", "numpy")}},
        },
        "cases": {name: measure_case(make(), calls, rounds) for name, make in CASES.items()},
    }
    is_complete = not options.quick and rounds >= parser.get_default("pairs")
    folder = options.out or machine.choose_results_folder(is_complete=is_complete)
    save_results(results, folder, "export", render_markdown)
    return 0


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
        for warm_up in timed.values():
            warm_up()
        found = measure.take_turns(timed, rounds)
    ratio = estimate_ratio(found[NUMPY], found[COMPILED])
    latencies = {name: to_dict(estimate_median(values)) for name, values in found.items()}
    return {"microseconds": latencies, "ratio": to_dict(ratio)}


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


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name, case in results["cases"].items():
        latencies = [format_estimate(from_dict(x), ".0f") for x in case["microseconds"].values()]
        rows.append((name, *latencies, format_estimate(from_dict(case["ratio"]), ".2f")))
    text = (
        "Microseconds of one greedy action, medians over the rounds with 95 % intervals. The ratio is "
        f"that of `{NUMPY}` to the compiled call, within a round."
    )
    header = ("policy", f"`{NUMPY}.act`", COMPILED, f"`{POLICY}.act`", "ratio")
    return render_document(
        *build_header(results, "Exported policies"), Table(text=text, header=header, rows=rows)
    )


if __name__ == "__main__":
    sys.exit(main())
