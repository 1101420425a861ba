"""One module of a checkpoint of several agents: read, exported and served alone."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxrl import PPOConfig, RLModule
from jaxrl.cli.app import app
from jaxrl.errors import ConfigError
from jaxrl.export.numpy_program import NumpyPolicy
from tests.multi_agent.agent_envs import Targets


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    config = PPOConfig().environment(Targets).multi_agent(mapping={"a": "p0", "b": "p1"})
    config.env_runners(num_envs_per_env_runner=4).debugging(loggers=[])
    config.training(train_batch_size=32, minibatch_size=32, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    with config.build() as algorithm:
        path = algorithm.save(str(tmp_path_factory.mktemp("several")))
        return Path(path), algorithm.get_weights()


def run(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, args)], prog_name="jaxrl", catch_exceptions=False)
    return done.exit_code, done.stderr


def test_the_path_names_the_module(saved: tuple[Path, dict[str, Any]]) -> None:
    path, weights = saved
    module: Any = RLModule.from_checkpoint(path / "learner_group" / "learner" / "rl_module" / "p1")
    assert jax.tree.all(jax.tree.map(np.array_equal, module.get_state(), weights["p1"]))
    with pytest.raises(ConfigError, match=r"has p0, p1: name one below it, such as .*rl_module"):
        RLModule.from_checkpoint(path)


def test_the_command_exports_one_module(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = saved
    assert run("export", path, "--policy-id", "p1", "--out", tmp_path / "out") == (0, "")
    NumpyPolicy(str(tmp_path / "out"))
    assert run("parity", tmp_path / "out", path, "--policy-id", "p1")[0] == 0
    code, err = run("export", path, "--out", tmp_path / "none")
    assert code == 2
    assert "policy_id is one of p0, p1" in err
    code, err = run("parity", tmp_path / "out", "--policy-id", "p1")
    assert code == 2
    assert "name the checkpoint as well" in err
    code, err = run("serve", tmp_path / "out", "--policy-id", "p1")
    assert code == 2
    assert "an export has one module" in err
