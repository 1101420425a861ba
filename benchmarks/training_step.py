"""Speed of a training step of one's own: `python -m benchmarks.training_step`.

The built-in step of PPO is compared with the same steps written by a user, once as a function that
is part of the compiled program (`compiled_training_step`) and once in Python (`training_step`).
They take turns, so that other load on the machine affects all alike. Compilation is excluded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks import machine, measure
from benchmarks.commands import add_round_options, parse_names, save_results, start_results
from benchmarks.report import build_header
from benchmarks.statistics import estimate_median, estimate_ratio, from_dict, to_dict
from jaxrl import Algorithm, PPOConfig
from jaxrl.bench.markdown import Cells, Table, format_estimate, render_document

BUILT_IN, COMPILED, PYTHON = "built-in", "compiled", "python"
SETTINGS = {"4x128": (4, 128), "64x32": (64, 32)}
"""Numbers of environments and of steps in a train batch."""
ROUND_STEPS = 600_000
"""Environment steps per round; of fewer, iterations would be computed ahead of their round."""


class CompiledStep(Algorithm):
    """The built-in step as a function of the data flow."""

    @staticmethod
    def compiled_training_step(flow: Any) -> None:
        """Sample, update, and act with the new weights."""
        flow.update(flow.sample())
        flow.sync_weights()


class PythonStep(Algorithm):
    """The built-in step in Python."""

    def training_step(self) -> Mapping[str, float]:
        """Sample, update, and act with the new weights."""
        metrics = self.update(self.sample())
        self.sync_weights()
        return metrics


CLASSES: dict[str, type[Algorithm] | None] = {
    BUILT_IN: None,
    COMPILED: CompiledStep,
    PYTHON: PythonStep,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each setting, write `training_step.json` and `.md`, and print the table.

    Returns:
        Exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.training_step", arguments, is_quick=options.quick)
    results |= {
        "peers": {"jaxrl": {"devices": 1, "versions": {"jax": version("jax")}}},
        "settings": {name: measure_setting(name, options) for name in options.settings},
    }
    save_results(results, options.out, "training_step", render_markdown)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_step", description=__doc__)
    parser.add_argument(
        "--settings", default=",".join(SETTINGS), help="settings (default: %(default)s)"
    )
    parser.add_argument(
        "--num-steps",
        type=int,
        default=ROUND_STEPS,
        help="environment steps per round (default: %(default)s)",
    )
    add_round_options(parser)
    options = parser.parse_args(arguments)
    options.settings = parse_names(parser, "--settings", options.settings, tuple(SETTINGS))
    if options.quick:
        options.num_steps, options.pairs = 4096, 2
    is_complete = not options.quick and options.settings == list(SETTINGS)
    options.out = options.out or machine.choose_results_folder(is_complete=is_complete)
    return options


def measure_setting(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the steps per second of each kind of training step in every round."""
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        rounds = {
            kind: make_round(algo_class, *SETTINGS[name], options.num_steps, folder)
            for kind, algo_class in CLASSES.items()
        }
        seconds = measure.take_turns(rounds, options.pairs)
    rates = {kind: [options.num_steps / x for x in found] for kind, found in seconds.items()}
    return {
        "rates": rates,
        "median": {kind: to_dict(estimate_median(found)) for kind, found in rates.items()},
        "ratio": {
            kind: to_dict(estimate_ratio(rates[kind], rates[BUILT_IN]))
            for kind in (COMPILED, PYTHON)
        },
    }


def make_round(
    algo_class: type[Algorithm] | None, num_envs: int, length: int, num_steps: int, folder: str
) -> Callable[[], float]:
    """Return a function that trains one iteration of `num_steps` steps and returns the seconds."""
    config = (
        PPOConfig(algo_class)
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=length)
        .training(
            train_batch_size=num_envs * length, minibatch_size=num_envs * length // 4, num_epochs=4
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .reporting(min_sample_timesteps_per_iteration=num_steps)
        .learners(num_devices=1)
        .debugging(loggers=[], results_dir=folder)
    )
    algorithm: Any = config.build()

    def run_round() -> float:
        start = time.perf_counter()
        algorithm.train()
        return time.perf_counter() - start

    run_round()  # compiles
    return run_round


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    rows: list[Cells] = []
    for name, setting in results["settings"].items():
        rates = (f"{from_dict(setting['median'][kind]).value:,.0f}" for kind in CLASSES)
        ratios = (
            format_estimate(from_dict(setting["ratio"][kind]), ".2f") for kind in (COMPILED, PYTHON)
        )
        rows.append((name, *rates, *ratios))
    text = (
        "PPO on CartPole-v1 (environments x steps per train batch; 4 epochs x 4 minibatches, 64-64 "
        "networks) on one device. Environment steps per second, medians over the rounds; ratios to "
        "the built-in step within a round with 95 % intervals."
    )
    header = ("setting", *CLASSES, f"{COMPILED} / {BUILT_IN}", f"{PYTHON} / {BUILT_IN}")
    table = Table(text=text, header=header, rows=rows)
    return render_document(*build_header(results, "Training steps of one's own"), table)


if __name__ == "__main__":
    sys.exit(main())
