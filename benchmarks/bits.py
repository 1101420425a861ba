"""Digests of what shipped configs compute: `python -m benchmarks.bits`.

Two versions of the code compute the same where their lines are equal: every leaf of the state after some
iterations, with the episodes that ended and the counters. Means of metrics are not among them: their last
digits depend on how many dispatches an iteration takes. On another machine the lines are others.
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
from jaxrl.errors import EnvError

CONFIGS = Path(__file__).parent.parent / "configs"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each config: its name and the digest of its state.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bits", description=__doc__)
    parser.add_argument(
        "configs", nargs="*", help="names such as classic/cartpole-ppo; all if none"
    )
    parser.add_argument("--iterations", type=int, default=5, help="of each (default: %(default)s)")
    options = parser.parse_args(argv)
    names = options.configs or shipped()
    for name in names:
        with tempfile.TemporaryDirectory(prefix="jaxrl-bits-") as folder:
            line = digest(name, options.iterations, folder)
        print(f"{name:40} {line}", flush=True)
    return 0


def shipped() -> list[str]:
    """Return the names of all configs of one run, without sweeps."""
    files = sorted(CONFIGS.glob("*/*.yaml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.parent.name != "sweeps"]


def digest(name: str, iterations: int, folder: str) -> str:
    """Return the digest of a config's state after some iterations; why there is none otherwise."""
    config = load_experiment(CONFIGS / f"{name}.yaml").config
    if config.env_runners_settings.num_env_runners or config.learners_settings.num_learners:
        return "skipped: what actors sample depends on their speed"
    config.debugging(loggers=[], results_dir=folder, log_sys_usage=False)
    config.evaluation(evaluation_interval=None)
    try:
        algorithm = config.build()
    except EnvError as error:  # a package of the environment's is missing
        return f"skipped: {error}"
    with algorithm:
        for _ in range(iterations):
            algorithm.train()
        return digest_of_state(algorithm)


def digest_of_state(algorithm: Algorithm) -> str:
    """Return a digest of all arrays that a checkpoint holds."""
    found = hashlib.sha256()
    leaves = algorithm.get_state()["train_state"]
    for path in sorted(leaves):
        array = np.asarray(leaves[path])
        found.update(f"{path} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
