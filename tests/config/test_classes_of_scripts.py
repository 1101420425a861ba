"""A config class of a script or notebook is saved under the name that it finds again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.serialize import serialize_config, serialize_for_display
from jaxrl.errors import ConfigError
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
