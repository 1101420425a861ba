"""Every shipped file fits its environment, and runs where its environment is."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import assemble
from jaxrl.config.load import load_experiment
from jaxrl.learners.optimizers import make_base_optimizer

CONFIGS = Path(__file__).parents[2] / "configs"
EXTRAS = {"lunarlander": ("box2d", "Box2D"), "pong": ("atari", "ale_py")}
ON_HOST = [
    path for suite in ("atari", "envpool", "gymnasium") for path in CONFIGS.glob(f"{suite}/*.yaml")
]
IN_GRAPH = [
    path
    for suite in ("classic", "curriculum", "minatar", "multi_agent", "recommender", "spaces")
    for path in CONFIGS.glob(f"{suite}/*.yaml")
]


@pytest.mark.parametrize(
    "path", sorted(ON_HOST), ids=lambda path: f"{path.parent.stem}-{path.stem}"
)
def test_host_configs_fit(path: Path) -> None:
    extra, module = EXTRAS.get(path.stem.split("-")[0], ("", "gymnasium"))
    if path.parent.stem == "envpool":
        extra = module = "envpool"
    pytest.importorskip(module, reason=f"needs jaxrl[{extra}]")
    assembly = assemble(load_experiment(path).config)
    assert not assembly.is_in_graph
    assert assembly.plan.notes == ()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("offline/*.yaml")), ids=lambda path: path.stem)
def test_configs_of_recorded_data_fit(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy can be restored where its data have not been made."""
    monkeypatch.setenv("JAXRL_DATASETS_DIR", str(tmp_path))
    assembly = assemble(load_experiment(path).config)
    assert assembly.is_offline != assembly.is_in_graph
    assert assembly.plan.notes == ()


@pytest.mark.parametrize("path", sorted(IN_GRAPH), ids=lambda path: path.stem)
def test_in_graph_configs_fit(path: Path) -> None:
    assembly = assemble(load_experiment(path).config)
    assert assembly.is_in_graph
    plan = assembly.plan
    assert assembly.run.batch_steps == plan.total_envs * plan.rollout_fragment_length


def test_minatars_dqn_steps_as_pytorchs_rmsprop_does() -> None:
    """Centred, with eps added to the root, as in the authors' examples/dqn.py."""
    settings = load_experiment(CONFIGS / "minatar" / "breakout-dqn.yaml").config.training_settings
    optimizer = make_base_optimizer(settings.optimizer, jnp.float32(2.5e-4))
    gradients = np.random.default_rng(0).normal(size=(50, 3)) * [1e-3, 1e-2, 1.0]
    state = optimizer.init(jnp.zeros(3))
    square, mean = np.zeros(3), np.zeros(3)
    for gradient in gradients:
        square = 0.95 * square + 0.05 * gradient**2
        mean = 0.95 * mean + 0.05 * gradient
        want = -2.5e-4 * gradient / (np.sqrt(square - mean**2) + 0.01)
        got, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state)
        np.testing.assert_allclose(got, want, rtol=2e-3)
