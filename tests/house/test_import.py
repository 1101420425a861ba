"""`import jaxrl` is quick and starts nothing; every public name is there."""

import os
import subprocess
import sys
from collections.abc import Callable

import jaxrl

LAZY = ["gymnax", "matplotlib", "ray", "rlax", "typer", "wandb", "jaxrl.cli"]


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def seconds_after_jax() -> float:
    return float(
        run_python(
            "import time, jax, flax, flax.linen; start = time.perf_counter(); import jaxrl;"
            "from jaxrl import Algorithm; from jaxrl.algorithms.ppo import PPOConfig;"
            "print(time.perf_counter() - start)"
        )
    )


def is_ever_true(measure: Callable[[], bool], attempts: int = 3) -> bool:
    """Another job on the machine can only make a start slower, so the best of a few counts."""
    return any(measure() for _ in range(attempts))


def test_import_takes_no_second_beyond_jax_and_flax() -> None:
    assert is_ever_true(lambda: seconds_after_jax() < 1.0)


def test_import_starts_nothing() -> None:
    found = run_python(
        "import sys, threading, jax, flax, flax.linen; before = set(sys.modules); import jaxrl;"
        "from jaxrl import Algorithm; from jaxrl.algorithms.ppo import PPOConfig;"
        f"print([name for name in {LAZY} if name in set(sys.modules) - before],"
        "threading.active_count(), jax._src.xla_bridge.backends_are_initialized())"
    )
    assert found == "[] 1 False"


def test_every_public_name_is_there() -> None:
    assert set(jaxrl.__all__) <= set(dir(jaxrl))
    for name in jaxrl.__all__:
        assert getattr(jaxrl, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(jaxrl, "no_such_name")
