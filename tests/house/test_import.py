"""`import jaxrl` imports nothing heavy and starts nothing; every public name is there.

How long it takes is measured by `benchmarks.speed`.
"""

import os
import subprocess
import sys

import jaxrl
from jaxrl import algorithms
from jaxrl.config.base import get_algorithm_config_class
from jaxrl.config.registry import list_algorithms

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


def test_import_starts_nothing() -> None:
    found = run_python(
        "import sys, threading, jax, flax, flax.linen; before = set(sys.modules); import jaxrl;"
        "from jaxrl import Algorithm; from jaxrl.algorithms.ppo import PPOConfig;"
        f"print([name for name in {LAZY} if name in set(sys.modules) - before],"
        "threading.active_count(), jax._src.xla_bridge.backends_are_initialized())"
    )
    assert found == "[] 1 False"


CONFIG_MODULES = 90
"""Maximum number of modules here that a config is written with; more are needed to check and build."""
NOT_FOR_CONFIGS = ("jaxrl.envs", "jaxrl.config.multi_agent", "jaxrl.config.validate", "jaxrl.runs")


def test_a_run_does_not_load_the_names_of_other_libraries() -> None:
    found = run_python(
        "import sys, tempfile; from jaxrl import PPOConfig; folder = tempfile.mkdtemp();"
        "config = PPOConfig().environment('CartPole-v1').training(lr=1e-3, train_batch_size=128);"
        "config.env_runners(num_envs_per_env_runner=8).debugging(results_dir=folder, loggers=[]);"
        "algorithm = config.build(); algorithm.train(); algorithm.stop();"
        "print(*[name for name in sys.modules if name.startswith('jaxrl.compat.')])"
    ).split()
    assert set(found) == {"jaxrl.compat.imports", "jaxrl.compat.lookup"}


def test_a_config_is_written_with_few_modules() -> None:
    found = run_python(
        "import sys; from jaxrl import PPOConfig;"
        "config = PPOConfig().environment('CartPole-v1').env_runners(num_env_runners=2);"
        "config.training(lr=1e-3, train_batch_size=512).evaluation(evaluation_interval=2);"
        "print(*[name for name in sys.modules if name.split('.')[0] == 'jaxrl'])"
    ).split()
    assert len(found) <= CONFIG_MODULES
    assert not [name for name in found if name.startswith(NOT_FOR_CONFIGS)]


def test_every_public_name_is_there() -> None:
    assert set(dir(jaxrl)) == {*jaxrl.__all__, *list_algorithms()}
    assert set(dir(algorithms)) == set(algorithms.__all__)
    for name in jaxrl.__all__:
        assert getattr(jaxrl, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(jaxrl, "no_such_name")


def test_every_config_is_there_by_name() -> None:
    for name in list_algorithms():
        cls = get_algorithm_config_class(name)
        assert getattr(jaxrl, cls.__name__) is getattr(algorithms, cls.__name__) is cls
        assert cls.__name__ in jaxrl.__all__
        assert cls.__name__ in algorithms.__all__
        assert cls.algo_name == name
    assert not hasattr(algorithms, "NoConfig")
    found = run_python(
        "import sys; from jaxrl import PPOConfig;"
        "print([name for name in ('ray', 'jaxrl.algorithms.sac') if name in sys.modules])"
    )
    assert found == "[]"


def test_processes_of_host_environments_do_without_jax() -> None:
    modules = ("barrier", "host_creators", "host_spaces", "host_state")
    names = ", ".join(f"jaxrl.envs.adapters.{module}" for module in modules)
    code = f"import sys; import {names}; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
