"""The decision transformer on CartPole data of a controller and of a random agent: five seeds.

`python -m pytest -m slow tests/learning/test_dt.py -s` prints every seed.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl import Algorithm, BCConfig, DTConfig, RandomAgentConfig, RLModuleSpec, ScriptedModule
from tests.learning.test_thresholds import SEEDS

pytestmark = pytest.mark.slow

MODEL = {
    "attention_dim": 32,
    "attention_head_dim": 32,
    "attention_num_transformer_units": 2,
    "attention_position_wise_mlp_dim": 64,
}


class Balance(ScriptedModule):
    """Linear controller whose episodes have 500 steps."""

    def choose_actions(self, obs: Any) -> Any:
        place, speed, angle, turn = jnp.moveaxis(obs, -1, 0)
        return (0.05 * place + 0.1 * speed + angle + 0.5 * turn > 0.0).astype(jnp.int32)


def record(folder: Path, num_steps: int, seed: int, module: Any = None) -> str:
    """Record a policy that is not trained."""
    config = RandomAgentConfig().environment("CartPole-v1").debugging(seed=seed, loggers=[])
    config.env_runners(num_envs_per_env_runner=16).offline_data(output=str(folder))
    if module is not None:
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module))
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < num_steps:
            algorithm.train()
    return str(folder)


@pytest.fixture(scope="session", name="mixed")
def record_mixed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Record four times as many random steps as good ones."""
    root = tmp_path_factory.mktemp("mixed")
    good = record(root / "good", 20_000, 0, Balance)
    return [good, record(root / "random", 80_000, 1)]


def make_config(cls: Any, data: list[str], seed: int, **training: Any) -> Any:
    config = cls().environment("CartPole-v1").debugging(seed=seed, loggers=[])
    config.offline_data(input_=data, num_updates_per_iteration=1500)
    config.training(train_batch_size=512, lr=1e-3, **training)
    return config.evaluation(evaluation_config={"explore": True})


def play(algorithm: Algorithm) -> float:
    return algorithm.evaluate(num_episodes=32)["env_runners"]["episode_return_mean"]


def test_returns_are_those_that_are_asked_for(mixed: list[str], tmp_path: Path) -> None:
    """Behavior cloning of the same data has the returns of the mixture."""
    returns: dict[float, list[float]] = {500.0: [], 250.0: [], 25.0: []}
    for seed in SEEDS:
        training = {"context_length": 8, "target_return": 500.0, "return_scale": 500.0}
        config = make_config(DTConfig, mixed, seed, **training).rl_module(model_config=MODEL)
        with config.build() as algorithm:
            algorithm.train()
            path = algorithm.save(tmp_path / str(seed))
        for target, played in returns.items():
            with Algorithm.from_checkpoint(path, target_return=target) as restored:
                played.append(play(restored))
    cloned = []
    for seed in SEEDS:
        with make_config(BCConfig, mixed, seed).build() as algorithm:
            algorithm.train()
            cloned.append(play(algorithm))
    print(f"\nDT by target: {returns}; BC: {cloned}")
    assert min(returns[500.0]) >= 400.0
    assert max(cloned) <= 150.0
    assert all(200.0 <= played <= 300.0 for played in returns[250.0])
    assert max(returns[25.0]) <= 60.0
