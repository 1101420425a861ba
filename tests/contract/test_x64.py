"""Programs of 32 bits also where the user's process has `jax_enable_x64`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.multi_agent import assemble_multi_agent
from jaxrl.config.load import load_config
from jaxrl.envs.space_checks import check_struct
from jaxrl.errors import EnvError
from tests.helpers import every_algorithm, small

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = [
    "classic/cartpole-rainbow",
    "classic/pendulum-td3",
    "curriculum/frozenlake-ppo",
    "memory/proberecall-ppo",
    "memory/statelesscartpole-rnnsac",
    "minatar/asterix-ppo",
    "multi_agent/foraging-mappo",
    "multi_agent/rockpaperscissors-lstm-ppo",
    "multi_agent/speakerlistener-mappo",
    "multi_agent/tictactoe-league-ppo",
    "multi_agent/twostepand-qmix",
    "spaces/threeparts-ppo",
]
"""Files whose parts differ from those of the algorithms' defaults."""


def describe(config: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each leaf of the first state, of that after a batch, and of its metrics."""
    assembly: Any = (assemble_multi_agent if config.is_multi_agent else assemble)(config)
    step = assembly.run
    state = jax.eval_shape(step.init, jax.random.key(0), assembly.made.params)
    leaves, _ = jax.tree_util.tree_flatten_with_path((state, jax.eval_shape(step.step, state)))
    return {jax.tree_util.keystr(path): (leaf.shape, str(leaf.dtype)) for path, leaf in leaves}


def check_types(config: Any) -> None:
    expected = describe(config)
    with jax.enable_x64(True):
        assert describe(config) == expected
    assert len(expected) > 50


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("algo", every_algorithm())
def test_algorithms(algo: str) -> None:
    check_types(small(algo))


@pytest.mark.allow_key_reuse
@pytest.mark.representatives(
    "memory/proberecall-ppo", "multi_agent/speakerlistener-mappo", "spaces/threeparts-ppo"
)
@pytest.mark.parametrize("name", FILES)
def test_files(name: str) -> None:
    check_types(load_config(CONFIGS / f"{name}.yaml"))


def test_a_default_of_an_environment_is_explained() -> None:
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    with jax.enable_x64(True):
        value = jax.eval_shape(lambda: jnp.zeros(3))
        with pytest.raises(EnvError, match=r"float64.*jax_enable_x64: state dtype=jnp\.float32\.$"):
            check_struct("obs", space, value)
        with pytest.raises(EnvError, match=r"got float64 of shape \(3,\)\.$"):
            check_struct("obs", spaces.Discrete(3), value)
