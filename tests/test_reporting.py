"""Effects of reporting and debugging settings on a result."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.helpers import small

BATCH, SMOOTHING = 128, 30


@pytest.fixture(scope="module")
def algorithm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Iterations of three train batches; means over the last thirty episodes."""
    config = small().reporting(
        min_train_timesteps_per_iteration=2 * BATCH + 1,
        metrics_num_episodes_for_smoothing=SMOOTHING,
    )
    config.debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as built:
        yield built


@pytest.mark.slow
def test_an_iteration_trains_on_as_many_steps_as_were_asked_for(algorithm: Any) -> None:
    before = int(algorithm.state.progress.env_steps)
    result = algorithm.train()
    assert result["num_env_steps_trained_lifetime"] - before == 3 * BATCH
    assert result["env_runners"]["num_env_steps_sampled"] == 3 * BATCH
    assert algorithm.config.reporting_settings.min_sample_timesteps_per_iteration == 0


def test_means_are_over_the_last_episodes(algorithm: Any) -> None:
    for _ in range(3):
        result = algorithm.train()["env_runners"]
    assert result["num_episodes"] < SMOOTHING < result["num_episodes_lifetime"]
    ring = algorithm.state.ring
    size = ring.env_index.shape[1]
    assert int(np.asarray(ring.count).max()) <= size  # nothing was overwritten
    held = np.arange(size)[None, :] < np.asarray(ring.count)[:, None]
    steps = np.asarray(ring.env_step)[held].astype(int)
    newest = np.argsort(-steps, kind="stable")[:SMOOTHING]
    returns = np.asarray(ring.episode_return)[held][newest]
    np.testing.assert_allclose(result["episode_return_mean"], returns.mean(), rtol=1e-6)
    assert result["episode_return_max"] == returns.max()
    assert result["num_episodes_lifetime"] == int(np.asarray(ring.count).sum())
    everything = np.asarray(ring.episode_return)[held].mean()
    assert not np.isclose(result["episode_return_mean"], everything)


def test_system_usage_is_reported_unless_switched_off(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = algorithm.train()["system"]
    assert system["load_1min"] >= 0.0
    assert system["cpu_time_s"] > 0.0
    assert 1e7 < system["peak_memory_bytes"] < 1e13
    quiet = algorithm.config.copy(copy_frozen=False).debugging(log_sys_usage=False)
    monkeypatch.setattr(algorithm, "config", quiet)
    assert "system" not in algorithm.train()
