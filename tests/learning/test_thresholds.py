"""Learning from the shipped files: five seeds each, deterministic evaluation, fixed budgets.

`python -m pytest -m slow tests/learning -s` prints every seed.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import assemble
from jaxrl.config.load import load_experiment
from jaxrl.ops import losses
from jaxrl.sweeps.statistics import interquartile_mean

CONFIGS = Path(__file__).parents[2] / "configs"
SEEDS = range(5)

pytestmark = pytest.mark.slow


def evaluated(name: str, steps: int, seed: int, change: Any = None) -> float:
    """The greedy policy's mean return over 100 episodes after exactly the budget."""
    config = load_experiment(CONFIGS / f"{name}.yaml").config
    config.debugging(seed=seed, loggers=[])
    if change is not None:
        change(config)
    config.evaluation(evaluation_config={"explore": False})
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < steps:
            algorithm.train()
        assert int(algorithm.state.progress.env_steps) < steps * 1.02
        return algorithm.evaluate(num_episodes=100)["env_runners"]["episode_return_mean"]


def all_seeds(name: str, steps: int, change: Any = None) -> list[float]:
    scores = [evaluated(name, steps, seed, change) for seed in SEEDS]
    shown = ", ".join(f"{score:.1f}" for score in scores)
    print(f"\n{name} at {steps}: {shown}; IQM {interquartile_mean(scores):.1f}")
    return scores


def test_ppo_cartpole() -> None:
    scores = all_seeds("classic/cartpole-ppo", 500_000)
    assert interquartile_mean(scores) >= 490
    assert min(scores) >= 450


def test_ppo_pendulum() -> None:
    assert interquartile_mean(all_seeds("classic/pendulum-ppo", 400_000)) >= -300


def test_impala_cartpole() -> None:
    scores = all_seeds("classic/cartpole-impala", 2_000_000)
    assert interquartile_mean(scores) >= 475
    assert min(scores) >= 450


def test_appo_cartpole() -> None:
    scores = all_seeds("classic/cartpole-appo", 1_000_000)
    assert interquartile_mean(scores) >= 475
    assert min(scores) >= 450


def test_appo_pendulum() -> None:
    assert interquartile_mean(all_seeds("classic/pendulum-appo", 500_000)) >= -300


def shared_by(devices: int) -> Any:
    """16 environments in 8 shards on so many devices, at a rate that suits this width."""

    def change(config: Any) -> None:
        config.env_runners(num_envs_per_env_runner=16)
        config.training(lr=[[0, 1e-3], [500_000, 0.0]])
        config.learners(num_devices=devices, num_shards=8)

    return change


def test_eight_devices_learn_as_one_does() -> None:
    for devices in (1, 8):
        scores = all_seeds("classic/cartpole-ppo", 500_000, shared_by(devices))
        assert interquartile_mean(scores) >= 475


@pytest.mark.allow_key_reuse
def test_vmapped_seeds_learn_as_single_ones_do() -> None:
    config = load_experiment(CONFIGS / "classic" / "cartpole-ppo.yaml").config
    assembly = assemble(config)
    runner, params = assembly.run, assembly.made.params
    batches = jnp.int32(500_000 // runner.batch_steps)

    def run(key: Any) -> Any:
        start = runner.init(key, params)
        return jax.lax.fori_loop(0, batches, lambda _, state: runner.step(state)[0], start)

    keys = jax.vmap(jax.random.key)(jnp.arange(5))
    ring = jax.device_get(jax.jit(jax.vmap(run))(keys).ring)
    scores = []
    for lane in range(5):
        newest = np.argsort(-ring.env_step[lane].astype(np.int64).reshape(-1))[:100]
        scores.append(float(ring.episode_return[lane].reshape(-1)[newest].mean()))
    print(f"\nvmapped, training returns: {scores}; IQM {interquartile_mean(scores):.1f}")
    assert interquartile_mean(scores) >= 475


@pytest.mark.parametrize(
    ("loss", "config", "num_steps", "seeds", "limit"),
    [
        ("clipped_surrogate", "classic/cartpole-ppo", 500_000, 2, 450),
        ("policy_gradient_loss", "classic/cartpole-impala", 2_000_000, 1, 450),
        ("clipped_surrogate", "classic/pendulum-appo", 500_000, 1, -300),
    ],
    ids=["PPO", "IMPALA", "APPO"],
)
def test_a_threshold_fails_without_the_advantages_sign(
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    config: str,
    num_steps: int,
    seeds: int,
    limit: float,
) -> None:
    """The threshold means something: with the advantages' sign lost it is not reached."""
    honest = getattr(losses, loss)
    monkeypatch.setattr(losses, loss, lambda x, adv, *rest: honest(x, abs(adv), *rest))
    assert max(evaluated(config, num_steps, seed) for seed in range(seeds)) < limit
