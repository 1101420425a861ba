"""Modules under their old names."""

import importlib
import subprocess
import sys

import pytest

from jaxrl.config.imports import OWN, load_object
from jaxrl.modules.rl_module import RLModule
from jaxrl.moved import MOVED, find_new_name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_module_itself(old: str) -> None:
    new = importlib.import_module(f"jaxrl.{MOVED[old]}")
    if find_new_name(f"jaxrl.{old}") is None or old == "policy":  # a room of today has this name
        return
    spec = new.__spec__
    assert importlib.import_module(f"jaxrl.{old}") is new
    assert new.__spec__ is spec
    assert new.__name__ == f"jaxrl.{MOVED[old]}"


def test_names_that_did_not_move() -> None:
    for name in ("jaxrl.algorithm", "jaxrl.policy.inference", "jaxrl.loggers.csv_sink", "os"):
        assert find_new_name(name) is None
    assert find_new_name("jaxrl.logging.csv_sink") == "jaxrl.loggers.csv_sink"
    assert find_new_name("jaxrl.policy.missing") is None


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_a_path_in_a_checkpoint_is_found() -> None:
    assert load_object("jaxrl.core.rl_module:RLModule", "rl_module", trust=OWN) is RLModule


def test_a_script_of_before_is_told(tmp_path) -> None:
    code = (
        "from jaxrl.core.rl_module import RLModule, RLModuleSpec\n"
        "from jaxrl.core import networks\n"
        "from jaxrl.policy import Policy\n"
        "from jaxrl.logging import RunFolder\n"
        "from jaxrl.runners import devices\n"
        "import jaxrl\n"
        "assert RLModule is jaxrl.RLModule and Policy is jaxrl.Policy\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "jaxrl.core.networks is now jaxrl.modules.networks" in done.stderr
    assert "jaxrl.core.rl_module is now" not in done.stderr  # RLlib has a package of this name
