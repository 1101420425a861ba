"""Digests of what shipped configs compute: `python -m benchmarks.bits`.

Two versions of the code compute the same where their lines are equal: the results of some iterations
without their times, and every leaf of the state after them. On another machine the lines are others.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl import Algorithm
from jaxrl.config.load import load_experiment

CONFIGS = Path(__file__).parent.parent / "configs"
OF_THE_CLOCK = ("time", "date", "system", "compile", "per_second", "pid", "hostname")
"""Parts of the names of what differs from run to run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each config: its name, the digests of its results and of its state.

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
            line = digests(name, options.iterations, folder)
        print(f"{name:40} {line}", flush=True)
    return 0


def shipped() -> list[str]:
    """Return the names of all configs of one run, without sweeps."""
    files = sorted(CONFIGS.glob("*/*.yaml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.parent.name != "sweeps"]


def digests(name: str, iterations: int, folder: str) -> str:
    """Return the digests of a config's results and state; why there are none otherwise."""
    config = load_experiment(CONFIGS / f"{name}.yaml").config
    if config.env_runners_settings.num_env_runners or config.learners_settings.num_learners:
        return "skipped: what actors sample depends on their speed"
    config.debugging(loggers=[], results_dir=folder, log_sys_usage=False)
    config.evaluation(evaluation_interval=None)
    try:
        algorithm = config.build()
    except ImportError as error:
        return f"skipped: {error}"
    with algorithm:
        rows = [without_times(algorithm.train()) for _ in range(iterations)]
        return f"{digest_of_rows(rows)} {digest_of_state(algorithm)}"


def without_times(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without what the clock and the process say."""
    return {
        key: without_times(value) if isinstance(value, Mapping) else value
        for key, value in result.items()
        if not any(word in key for word in OF_THE_CLOCK)
    }


def digest_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of results, number by number."""
    text = json.dumps(rows, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_state(algorithm: Algorithm) -> str:
    """Return a digest of all arrays that a checkpoint holds."""
    digest = hashlib.sha256()
    leaves = algorithm.get_state()["train_state"]
    for path in sorted(leaves):
        array = np.asarray(leaves[path])
        digest.update(f"{path} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
