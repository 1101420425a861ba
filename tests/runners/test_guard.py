"""The divergence guard: what is not finite is named, skipped, rolled back or raised."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOBatch, PPOLearner, PPOState
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Metrics, Progress
from jaxrl.errors import DivergenceError
from jaxrl.loggers import text
from jaxrl.runs.checkpoint import list_checkpoints
from jaxrl.training.nonfinite import mask_nonfinite, prefix_counts, warn_nonfinite
from tests.helpers import assert_equal, differs, small

FIRST_BAD, LAST_BAD = 2, 4
"""Train batches with poisoned gradients, counted from 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class PoisonedLearner(PPOLearner):
    """NaN advantages, and so NaN gradients, for three train batches."""

    def update(
        self, state: PPOState, batch: PPOBatch, progress: Progress, key: Key
    ) -> tuple[PPOState, Metrics]:
        number = progress.train_batches.low
        bad = (number >= FIRST_BAD) & (number <= LAST_BAD)
        poison = jnp.where(bad, jnp.nan, 1.0)
        return super().update(
            state, replace(batch, advantages=batch.advantages * poison), progress, key
        )


def poisoned(**fault_tolerance: Any) -> Any:
    """8 updates a train batch, so 24 bad ones in a row."""
    return small().learners(learner_class=PoisonedLearner).fault_tolerance(**fault_tolerance)


def params_of(algorithm: Any) -> Any:
    return algorithm.get_weights()["default_policy"]


def test_a_nan_reward_is_named_and_training_goes_on() -> None:
    config = small(env="jaxrl.envs.faults:FaultyEnv")
    config.environment(env_config={"env": "CartPole-v1", "at_step": 6, "fraction": 0.1})
    with config.build() as algorithm:
        for _ in range(4):
            result = algorithm.train()
        faults = result["fault_tolerance"]
        assert faults["num_nonfinite_env_steps"] > 0
        named = faults["last_nonfinite_env_step"]
        assert named["what"] == "reward"
        assert 0 <= named["env_index"] < 16
        assert 0 < named["env_step"] <= 32
        assert faults["num_nonfinite_updates"] == 0
        leaves = jax.tree.leaves(params_of(algorithm))
        assert all(np.isfinite(leaf).all() for leaf in leaves)
        before = params_of(algorithm)
        algorithm.train()
        assert differs(before, params_of(algorithm))


@pytest.mark.slow
def test_the_one_environment_and_step_that_break_are_named() -> None:
    """A NaN reward of environment 11 at its sixth step, and nowhere else."""
    config = small(env="jaxrl.envs.faults:FaultyEnv")
    config.environment(env_config={"env": "CartPole-v1", "at_step": 6, "fraction": 0.0})
    with config.build() as algorithm:
        env_state = algorithm.state.env.env
        broken = replace(env_state, breaks=env_state.breaks.at[11].set(True))
        algorithm.state = replace(algorithm.state, env=replace(algorithm.state.env, env=broken))
        for steps in (8, 16):  # once, however long the run goes on
            faults = algorithm.train()["fault_tolerance"]
            assert faults["num_nonfinite_env_steps"] == 1
            assert faults["last_nonfinite_env_step"] == {
                "env_index": 11,
                "env_step": 5,  # counted from 0, as the run's own count of each environment is
                "what": "reward",
            }
            assert faults["num_nonfinite_updates"] == 0
            np.testing.assert_array_equal(algorithm.state.env.count, np.full(16, steps))
        leaves = jax.tree.leaves(params_of(algorithm))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_bad_updates_are_skipped_and_counted() -> None:
    with poisoned(on_nonfinite="skip").build() as algorithm:
        for _ in range(FIRST_BAD):
            algorithm.train()
        before = params_of(algorithm)
        for number in range(3):
            faults = algorithm.train()["fault_tolerance"]
            assert faults["num_nonfinite_updates"] == 8 * (number + 1)
            assert faults["num_nonfinite_updates_in_a_row"] == 8 * (number + 1)
        assert faults["num_rollbacks"] == 0
        assert_equal(before, params_of(algorithm))
        faults = algorithm.train()["fault_tolerance"]
        assert faults["num_nonfinite_updates_in_a_row"] == 0
        assert differs(before, params_of(algorithm))


def test_after_enough_in_a_row_the_last_good_state_returns() -> None:
    with poisoned(on_nonfinite="rollback", nonfinite_updates_tolerance=16).build() as algorithm:
        algorithm.train()
        good = params_of(algorithm)  # where the last wholly good train batch starts
        algorithm.train()
        latest = params_of(algorithm)
        assert algorithm.train()["fault_tolerance"]["num_rollbacks"] == 0  # 8 in a row
        assert_equal(latest, params_of(algorithm))
        faults = algorithm.train()["fault_tolerance"]  # 16 in a row
        assert faults["num_rollbacks"] == 1
        assert faults["num_nonfinite_updates_in_a_row"] == 0
        assert_equal(good, params_of(algorithm))
        steps = algorithm.train()["num_env_steps_sampled_lifetime"]
        assert steps == 5 * 128  # keys and counters went on
        algorithm.train()
        assert differs(good, params_of(algorithm))


@pytest.mark.slow
def test_raise_stops_the_loop_saves_and_says_where() -> None:
    config = poisoned(on_nonfinite="raise", nonfinite_updates_tolerance=8)
    config.reporting(min_sample_timesteps_per_iteration=128 * 1000)
    with config.build() as algorithm:
        with pytest.raises(DivergenceError, match="8 updates in a row") as caught:
            algorithm.train()
        saved = list_checkpoints(Path(algorithm.run_dir) / "checkpoints")
        assert str(saved[-1]) in str(caught.value)
        assert int(algorithm.state.progress.env_steps) == 128 * (FIRST_BAD + 1)
        leaves = jax.tree.leaves(params_of(algorithm))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


class LogOfZero(PPOLearner):
    """A term that is infinite."""

    def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
        loss, metrics = super().compute_loss(params, batch, values, key)
        term = jnp.log(0.0 * jnp.mean(batch.weight))
        return loss + term, {**metrics, "my_loss": term}


class RootOfZero(PPOLearner):
    """A finite loss whose gradient is not."""

    def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
        loss, metrics = super().compute_loss(params, batch, values, key)
        return loss + jnp.sqrt(0.0 * jnp.sum(params["vf_head"]["out"]["bias"])), metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "log_gradients", "words"),
    [
        (LogOfZero, False, "not finite: my_loss; check their divisors"),
        (RootOfZero, True, "the gradient of vf_head.out.bias, of a finite loss"),
    ],
)
def test_what_is_not_finite_is_told_once_and_by_name(
    learner: Any, log_gradients: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = small().learners(learner_class=learner, num_devices=1).debugging(loggers=[])
    with config.reporting(log_gradients=log_gradients).build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
        algorithm.train()
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert words in told[0]
    assert told[0].startswith("Updates that were skipped: 8; ")
    assert np.isnan(learned["policy_loss"])
    assert not [name for name in learned if name.startswith("nonfinite/")]
    assert "policy loss nan" in text.format_line({"learners": {"default_policy": learned}})


def test_means_of_finite_updates_stay_where_others_were_skipped() -> None:
    table = jnp.array([[1.0, 2.0], [jnp.nan, 2.0], [3.0, jnp.inf]])
    skipped = jnp.array([False, True, True])
    counts = mask_nonfinite(table, skipped).sum(axis=0)
    assert prefix_counts(["a", "b"], counts) == {"nonfinite/a": 1.0, "nonfinite/b": 1.0}
    assert mask_nonfinite(table, jnp.zeros(3, bool)).sum() == 0


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            {"grad_norm": 2.0, "vf_loss": 0.0},
            "the gradient, of a finite loss; check square roots",
        ),
        ({"total_loss": 1.0, "grad_norm": 1.0}, "total_loss, while every other metric was finite"),
        ({"total_loss": 2.0, "a": 1.0, "b": 2.0}, "not finite: b, a; check their divisors"),
    ],
)
def test_the_words_for_what_is_not_finite(
    counts: dict[str, float], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_nonfinite(counts, 3, "skip")
    assert words in caplog.text
    assert "skipped: 3; " in caplog.text


@pytest.mark.slow
def test_what_is_not_finite_is_told_of_replayed_rows_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = small("DQN").learners(num_devices=1).debugging(loggers=[])
    with config.build() as algorithm:
        weights = jax.tree.map(lambda x: x * np.nan, algorithm.get_weights())
        algorithm.set_weights(weights)
        learned = algorithm.train()["learners"]["default_policy"]
    assert np.isnan(learned["total_loss"])
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "qf_mean" in told[0]
