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
    runner, params = assembly.train_step, assembly.made.params
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


def test_a_broken_advantage_fails_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threshold means something: with the advantages' sign lost it is not reached."""
    from jaxrl.ops import losses

    honest = losses.clipped_surrogate
    monkeypatch.setattr(
        losses, "clipped_surrogate", lambda ratio, adv, clip: honest(ratio, abs(adv), clip)
    )
    scores = [evaluated("classic/cartpole-ppo", 500_000, seed) for seed in range(2)]
    assert max(scores) < 450


def test_impalas_threshold_fails_without_the_advantages_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxrl.ops import losses

    honest = losses.policy_gradient_loss
    monkeypatch.setattr(
        losses, "policy_gradient_loss", lambda log_prob, adv: honest(log_prob, abs(adv))
    )
    assert evaluated("classic/cartpole-impala", 2_000_000, 0) < 450


def test_appos_threshold_fails_without_the_advantages_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxrl.ops import losses

    honest = losses.clipped_surrogate
    monkeypatch.setattr(
        losses, "clipped_surrogate", lambda ratio, adv, clip: honest(ratio, abs(adv), clip)
    )
    assert evaluated("classic/pendulum-appo", 500_000, 0) < -300
