"""Speed of a training step of one's own: `python -m benchmarks.training_step`.

The built-in step of PPO is compared with the same steps written by a user, once as a function that
is part of the compiled program (`compiled_training_step`) and once in Python (`training_step`).
They take turns, so that other load on the machine affects all alike. Compilation is excluded.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from benchmarks import measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.statistics import compare_to, describe_rates, show, show_value
from jaxrl import Algorithm, PPOConfig
from jaxrl.bench.markdown import Table
from jaxrl.config.base import AlgorithmConfig

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


def run(options: Options) -> dict[str, Any]:
    """Measure the steps per second of each kind of training step."""
    return {
        "peers": {"jaxrl": describe_packages("jax")},
        "settings": {name: _measure_setting(name, options) for name in options.settings},
    }


def _measure_setting(name: str, options: Options) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
        rounds = {
            kind: stack.enter_context(
                open_training(
                    make_config(*SETTINGS[name], options.num_steps, folder, algo_class).environment(
                        "CartPole-v1"
                    )
                )
            )
            for kind, algo_class in CLASSES.items()
        }
        rates = measure.measure_rates(rounds, options.pairs, options.num_steps)
    return {**describe_rates(rates), "ratio": compare_to(rates, BUILT_IN)}


def make_config(
    num_envs: int,
    length: int,
    num_steps: int,
    folder: str,
    algo_class: type[Algorithm] | None = None,
) -> PPOConfig:
    """Return the config of PPO on one device, whose iterations have a number of steps.

    Args:
        num_envs: Number of environments.
        length: Steps of each in a train batch.
        num_steps: Environment steps of an iteration.
        folder: Folder of results.
        algo_class: Class of the algorithm; None for the built-in one.
    """
    batch = num_envs * length
    return (
        PPOConfig(algo_class)
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=length)
        .training(train_batch_size=batch, minibatch_size=batch // 4, num_epochs=4)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .reporting(min_sample_timesteps_per_iteration=num_steps)
        .learners(num_devices=1)
        .debugging(loggers=[], results_dir=folder)
    )


@contextlib.contextmanager
def open_training(config: AlgorithmConfig) -> Generator[Callable[[], float]]:
    """Yield a function that trains for an iteration and returns the seconds, compiled already."""
    with config.build() as algorithm:

        def run_round() -> float:
            start = time.perf_counter()
            algorithm.train()
            return time.perf_counter() - start

        run_round()
        yield run_round


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the settings."""
    own = (COMPILED, PYTHON)
    yield Table(
        text="PPO on CartPole-v1 (environments x steps per train batch; 4 epochs x 4 minibatches, 64-64 "
        "networks) on one device. Environment steps per second, medians over the rounds; ratios to "
        "the built-in step within a round with 95 % intervals.",
        header=("setting", *CLASSES, *(f"{kind} / {BUILT_IN}" for kind in own)),
        rows=[
            (
                name,
                *(show_value(setting["median"][kind], ",.0f") for kind in CLASSES),
                *(show(setting["ratio"][kind], ".2f") for kind in own),
            )
            for name, setting in results["settings"].items()
        ],
    )


BENCHMARK = Benchmark(
    name="training_step",
    about=__doc__,
    title="Training steps of one's own",
    measure=run,
    build_tables=build_tables,
    names={"settings": tuple(SETTINGS)},
    numbers={"num-steps": (ROUND_STEPS, "environment steps per round")},
    quick={"num_steps": 4096},
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
