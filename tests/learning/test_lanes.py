"""Ten lanes of a sweep learn as ten runs by themselves do: their returns have one distribution."""

from typing import Any

import pytest
from scipy.stats import ks_2samp

from tests.helpers import RATES, REPLAYS, every_algorithm, small

pytestmark = [pytest.mark.slow, pytest.mark.allow_key_reuse]

NUM_RUNS = 10
STEPS = 19_200


def learning(algo: str) -> Any:
    """Long enough that most algorithms have begun to learn, and chance has parted the runs."""
    config = small(algo).debugging(loggers=[]).checkpointing(checkpoint_at_end=False)
    config.rl_module(model_config={"fcnet_hiddens": [32]})
    if algo in REPLAYS:
        config.training(training_intensity=16)
    if hasattr(config.training_settings, "epsilon"):
        config.training(epsilon=[[0, 1.0], [5_000, 0.05]])
    return config.training(**{RATES.get(algo, "lr"): 3e-3}).reporting(
        min_sample_timesteps_per_iteration=STEPS
    )


def return_of(result: dict[str, Any]) -> float:
    return result["env_runners"]["episode_return_mean"]


def of_lanes(config: Any) -> list[float]:
    with config.sweep(seeds=NUM_RUNS).build() as sweep:
        result = sweep.train()
    assert not result["diverged"]
    return [return_of(one) for one in result["lanes"].values()]


def of_runs(config: Any) -> list[float]:
    found: list[float] = []
    for seed in range(NUM_RUNS):
        with config.copy().debugging(seed=seed).build() as alone:
            found.append(return_of(alone.train()))
    return found


@pytest.mark.parametrize("algo", every_algorithm(slow=()))
def test_lanes_and_runs_have_one_distribution(algo: str) -> None:
    lanes, runs = of_lanes(learning(algo)), of_runs(learning(algo))
    found = ks_2samp(lanes, runs)
    print(f"\n{algo}: lanes {sorted(map(round, lanes))}, runs {sorted(map(round, runs))}: {found}")
    assert len(set(lanes)) > NUM_RUNS // 2
    assert found.pvalue > 0.01


@pytest.mark.parametrize("algo", ["PPO", "DQN"])
def test_lanes_that_do_not_learn_have_another(algo: str) -> None:
    """The comparison would tell."""
    lanes, runs = of_lanes(learning(algo).training(lr=1e-9)), of_runs(learning(algo))
    assert ks_2samp(lanes, runs).pvalue < 0.01
