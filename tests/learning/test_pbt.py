"""Population based training finds rates that no lane of a sweep began with."""

from typing import Any

import pytest

from jaxrl import PopulationBasedTraining, PPOConfig, loguniform

pytestmark = [pytest.mark.slow, pytest.mark.allow_key_reuse]


def returns_of(scheduler: Any, seed: int) -> list[float]:
    """The mean return of each of eight lanes that all begin with a rate at which nothing moves."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=3e-6, lambda_=0.95)
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .reporting(min_sample_timesteps_per_iteration=2048)
        .checkpointing(checkpoint_at_end=False)
        .debugging(loggers=[], seed=seed)
        .learners(num_devices=1)
        .sweep(seeds=8, scheduler=scheduler)
    )
    sweep: Any = config.build()
    with sweep:
        result = sweep.fit({"training_iteration": 40})
    return sorted(x["env_runners"]["episode_return_mean"] for x in result["lanes"].values())


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_bad_rates_are_left(seed: int) -> None:
    scheduler = PopulationBasedTraining(
        hyperparam_mutations={"lr": loguniform(1e-6, 1e-2)}, perturbation_interval=3
    )
    returns = returns_of(scheduler, seed)
    print(f"\nseed {seed}: {[round(x) for x in returns]}")
    assert returns[-1] >= 200
    assert returns[4] >= 150
    if seed == 0:
        assert max(returns_of(None, seed)) < 60
