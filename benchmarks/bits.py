"""Digests of the training states of shipped configs: `python -m benchmarks.bits`.

Two versions of the code compute the same if their lines are equal. A digest covers every leaf of
the state after some iterations, with counters and ended episodes. Means of metrics are excluded,
because their last digits depend on the number of dispatches per iteration. What a build would
measure to decide (the number of devices, and whether to use microbatches) is fixed. Digests differ
between machines.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl import Algorithm
from jaxrl.config.load import load_experiment
from jaxrl.datasets.make import make_missing
from jaxrl.errors import EnvError

CONFIGS = Path(__file__).parent.parent / "configs"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the name of each config and the digest of its state.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bits", description=__doc__)
    parser.add_argument(
        "configs", nargs="*", help="names such as classic/cartpole-ppo (default: all)"
    )
    parser.add_argument(
        "--iterations", type=int, default=5, help="iterations per config (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    names = options.configs or list_shipped()
    for name in names:
        with tempfile.TemporaryDirectory(prefix="jaxrl-bits-") as folder:
            line = compute_digest(name, options.iterations, folder)
        print(f"{name:40} {line}", flush=True)
    return 0


def list_shipped() -> list[str]:
    """Return the names of all shipped configs except sweeps."""
    files = sorted(CONFIGS.glob("*/*.yaml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.parent.name != "sweeps"]


def compute_digest(name: str, iterations: int, folder: str) -> str:
    """Return the digest of a config's state after training, or the reason why it is skipped.

    Args:
        name: Name of the config.
        iterations: Number of iterations.
        folder: Temporary folder for results.
    """
    config = load_experiment(CONFIGS / f"{name}.yaml").config
    if config.env_runners_settings.num_env_runners or config.learners_settings.num_learners:
        return "skipped: samples of actors depend on their speed"
    make_missing(config, lambda text: print(text, file=sys.stderr))
    config.debugging(loggers=[], results_dir=folder, log_sys_usage=False)
    config.evaluation(evaluation_interval=None).learners(num_devices=1)
    if config.learns and getattr(config, "microbatch_size", None) == "auto":
        config.update_from_dict({"microbatch_size": None})
    try:
        algorithm = config.build()
    except EnvError as error:  # a package of the environment is missing
        return f"skipped: {error}"
    with algorithm:
        for _ in range(iterations):
            algorithm.train()
        return compute_state_digest(algorithm)


def compute_state_digest(algorithm: Algorithm) -> str:
    """Return a digest of all arrays that a checkpoint holds."""
    state_hash = hashlib.sha256()
    leaves = algorithm.get_state()["train_state"]
    for path in sorted(leaves):
        array = np.asarray(leaves[path])
        state_hash.update(f"{path} {array.dtype} {array.shape}".encode())
        state_hash.update(np.ascontiguousarray(array).tobytes())
    return state_hash.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
