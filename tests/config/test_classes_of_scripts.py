"""Classes and functions of a script or notebook are saved under names that it finds again."""

import json
import logging
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxrl.algorithm import Algorithm
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.cli.app import app
from jaxrl.config.serialize import (
    deserialize_config,
    find_missing,
    serialize_config,
    serialize_for_display,
)
from jaxrl.errors import CheckpointError, ConfigError
from jaxrl.modules.rl_module import RLModule
from jaxrl.runs.checkpoint import read_metadata
from jaxrl.serve.jax_backend import load_backend
from tests.helpers import small

SCRIPT = """
import sys
from jaxrl import Algorithm, PPOConfig

class MyConfig(PPOConfig):
    pass

if __name__ == "__main__":
    if len(sys.argv) == 1:
        config = MyConfig().environment("CartPole-v1")
        config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8)
        config.training(train_batch_size=16, minibatch_size=16, num_epochs=1)
        config.rl_module(model_config={"fcnet_hiddens": [4]})
        with config.build() as algo:
            algo.fit({"training_iteration": 1})
            print(algo.save())
    else:
        with Algorithm.from_checkpoint(sys.argv[1]) as algo:
            print(type(algo.config).__name__, algo.iteration)
"""


def python(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_a_scripts_own_config_trains_saves_and_is_restored(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    trained = python(tmp_path / "mine.py")
    assert trained.returncode == 0, trained.stderr
    checkpoint = trained.stdout.strip().splitlines()[-1]
    restored = python(tmp_path / "mine.py", checkpoint)
    assert restored.stdout.strip().splitlines()[-1] == "MyConfig 1", restored.stderr
    elsewhere = python(
        "-c", f"from jaxrl import Algorithm; Algorithm.from_checkpoint({checkpoint!r})"
    )
    assert elsewhere.returncode == 1
    assert "'__main__:MyConfig'" in elsewhere.stderr.splitlines()[-1]


def test_a_class_without_a_path_is_refused_before_training_if_it_is_to_be_saved() -> None:
    class Local(PPOConfig):
        """In a function, where nothing finds it again."""

    config = Local().update_from_dict(small().to_dict())
    assert "Local" in serialize_for_display(config)["algo"]
    json.dumps(serialize_for_display(config))
    with pytest.raises(ConfigError, match="no import path, so checkpoints cannot refer to it"):
        serialize_config(config)
    with config.build() as algorithm:
        with pytest.raises(ConfigError, match="checkpoint_at_end=False"):
            algorithm.fit({"training_iteration": 1})
        assert algorithm.iteration == 0


OWN_CLASSES = """
import gymnasium, numpy as np
from jaxrl import Callbacks, PPOConfig

calls = []

class CB(Callbacks):
    def on_algorithm_init(self, **kw):
        calls.append("init")
    def on_evaluate_end(self, **kw):
        calls.append("evaluated")

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, config=None):
        self.n = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.n += 1
        return np.full(3, self.n / 10, np.float32), 1.0, self.n >= 5, False, {}

def on_result(*, result, **kw):
    calls.append("result")

class MyConfig(PPOConfig):
    pass

if __name__ == "__main__":
    raise SystemExit("trained")
"""


def run_as_script(monkeypatch: pytest.MonkeyPatch, source: str) -> Any:
    """The module of a program that defines what a source does, in the place of pytest's."""
    script: Any = types.ModuleType("__main__")
    exec(source.replace('if __name__ == "__main__"', "if False"), vars(script))
    monkeypatch.setitem(sys.modules, "__main__", script)
    return script


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run of a script with its own callbacks, environment, hook and config."""
    folder = tmp_path_factory.mktemp("script")
    with pytest.MonkeyPatch.context() as patch:
        script = run_as_script(patch, OWN_CLASSES)
        config = (
            script.MyConfig()
            .environment(script.MyEnv)
            .update_from_dict(
                {name: value for name, value in small().to_dict().items() if name != "env"}
            )
        )
        config.callbacks(script.CB, on_train_result=script.on_result)
        config.debugging(run_name="run", results_dir=str(folder))
        with config.build() as algorithm:
            algorithm.fit({"training_iteration": 1})
            algorithm.save()
        yield folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, that a test may resume."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_same_script_loads_what_it_saved(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = run_as_script(monkeypatch, OWN_CLASSES)
    with Algorithm.from_checkpoint(run) as algorithm:
        config = algorithm.config
        assert type(config) is script.MyConfig
        assert (config.env, config.callbacks_class) == (script.MyEnv, script.CB)
        assert config.on_train_result is script.on_result
        assert script.calls == ["init"]
        again = deserialize_config(serialize_config(config), trust=config.trust)
        assert again.env is script.MyEnv
    script.calls.clear()
    assert RLModule.from_checkpoint(run) is not None
    load_backend(str(run), max_batch=2)
    assert script.calls == []  # what never calls callbacks has none


def test_another_script_says_what_it_lacks(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = run_as_script(
        monkeypatch, "from jaxrl import PPOConfig\nclass MyConfig(PPOConfig): pass"
    )
    lacks = "env, callbacks_class, on_train_result, which the script defined that saved it"
    with pytest.raises(
        CheckpointError, match=f"{lacks}: supply it with .*env=..., callbacks_class"
    ):
        Algorithm.from_checkpoint(run)
    del script.MyConfig
    overrides = {"env": "CartPole-v1", "callbacks_class": None, "on_train_result": None}
    with pytest.raises(ConfigError, match=r"algo is 'MyConfig' of a script, .* --script SCRIPT.py"):
        Algorithm.from_checkpoint(run, **overrides)
    script.CB = sys  # of the name, and not of the kind
    script.MyConfig, script.MyEnv, script.on_result = PPOConfig, "CartPole-v1", print
    of_gone = {"algo": "PPO", "algo_class": {"__import__": "__main__:Gone"}, "settings": {}}
    assert find_missing(of_gone) == ["algo_class"]
    assert deserialize_config(of_gone, {"algo_class": Algorithm}).algo_class is Algorithm
    with pytest.raises(ConfigError, match=r"callbacks_class must be .*, got .*sys"):
        Algorithm.from_checkpoint(run)


def test_a_stranger_names_no_function_of_a_script(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as_script(monkeypatch, OWN_CLASSES)
    saved = read_metadata(run / "checkpoints" / "checkpoint_000001")["config"]
    with pytest.raises(CheckpointError, match="was not written by this user"):
        deserialize_config(saved)
    del saved["settings"]["on_train_result"]
    assert deserialize_config(saved).callbacks_class.__name__ == "CB"


def test_the_command_line_takes_the_script(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest_main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", pytest_main)
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = tmp_path / "script_of_a_test.py"
    source.write_text(OWN_CLASSES)
    missing = source.with_name("none.py")

    def command(*arguments: object) -> str:
        monkeypatch.setitem(sys.modules, "__main__", pytest_main)
        done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="jaxrl")
        return f"{done.exit_code} {done.output}"

    of_script = ("--script", source)
    refused = command("evaluate", run)
    assert "2 WARNING jaxrl: This evaluation is without callbacks_class, on_train_result" in refused
    assert "error:" in refused
    assert "env, which the script defined that saved it" in refused
    assert f"2 error: --script must be a Python file, got '{missing}'" in command(
        "evaluate", run, "--script", missing
    )
    assert "evaluated return  5 on average" in command("evaluate", run, "--episodes", 2, *of_script)
    script = sys.modules["script_of_a_test"]
    assert script.calls == ["init", "evaluated"]
    script.calls.clear()
    assert command("evaluate", run, "--without-callbacks", *of_script).startswith("0")
    assert command("export", run, "--out", tmp_path / "exported", *of_script).startswith("0")
    assert script.calls == []
    del script.CB
    with caplog.at_level(logging.WARNING):
        assert command("evaluate", run, *of_script).startswith("0")
    assert caplog.text.count("This evaluation is without callbacks_class of the run") == 1
    stop = ("--stop", json.dumps({"training_iteration": 2}))
    assert "2 error" in (refused := command("resume", run, *stop, *of_script))
    assert "does not contain callbacks_class, which the script defined" in refused
    assert command("resume", run, *stop, *of_script, "--without-callbacks").startswith("0")
    assert read_metadata(run / "checkpoints" / "checkpoint_000002")["config"]["algo"] == (
        "__main__:MyConfig"
    )
    sys.modules.pop("script_of_a_test")
