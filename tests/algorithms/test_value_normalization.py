"""Values in units of their targets' moments, and Huber's loss, against NumPy and on large rewards."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PGConfig, PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.core.hparams import current_values
from jaxrl.core.types import Progress
from jaxrl.envs.probes import ProbeDiscount
from jaxrl.errors import ConfigError
from jaxrl.learners.bootstrap import compute_rollout_values
from jaxrl.ops.statistics import DebiasedMoments
from tests.algorithms.test_ppo import ROWS, learner_and_batch
from tests.helpers import assert_equal, small

BETA = 0.99999


def test_moments_equal_the_debiased_averages_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    moments = DebiasedMoments.empty()
    assert (moments.mean, moments.std) == (0.0, 1.0)
    m = s = d = 0.0  # moving averages of x, x² and 1, in float64
    update = jax.jit(DebiasedMoments.update)
    for i in range(30):
        x = (5000.0 + 20.0 * i + 3.0 * rng.normal(size=64)).astype(np.float32)
        mask = rng.random(64) < 0.7
        moments = update(moments, jnp.where(mask, x, jnp.nan), jnp.asarray(mask))
        kept = x[mask].astype(np.float64)
        m = BETA * m + (1 - BETA) * kept.mean()
        s = BETA * s + (1 - BETA) * (kept**2).mean()
        d = BETA * d + (1 - BETA)
        np.testing.assert_allclose(moments.mean, m / d, rtol=1e-6)
        np.testing.assert_allclose(moments.std, np.sqrt(s / d - (m / d) ** 2), rtol=1e-3)
    x = jnp.asarray([4000.0, 6000.0])
    np.testing.assert_allclose(moments.normalize(x), (x - m / d) / moments.std, rtol=1e-5)
    np.testing.assert_allclose(moments.denormalize(moments.normalize(x)), x, rtol=1e-6)


def test_moments_ignore_batches_without_rows_and_what_is_not_finite() -> None:
    moments = DebiasedMoments.empty().update(jnp.arange(4.0), jnp.ones(4, bool))
    for x, mask in ((jnp.ones(4), jnp.zeros(4, bool)), (jnp.full(4, jnp.inf), jnp.ones(4, bool))):
        assert_equal(moments.update(x, mask), moments)
    constant = DebiasedMoments.empty().update(jnp.ones(4), jnp.ones(4, bool))
    np.testing.assert_allclose(constant.std, 0.1, rtol=1e-6)  # a variance of at least 0.01


def huber(error: float, delta: float) -> float:
    size = abs(error)
    return 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"huber_delta": 2.0, "vf_clip_param": float("inf")}, float("inf")),
        ({"huber_delta": 2.0, "vf_clip_param": 5.0}, 5.0),
        ({"normalize_values": True, "vf_clip_param": 1.5}, 1.5),
        ({"normalize_values": True, "huber_delta": 0.4}, 10.0),
    ],
)
def test_the_value_loss_equals_a_plain_loop(settings: dict[str, Any], limit: float) -> None:
    learner, state, batch = learner_and_batch(lr=0.0, num_epochs=1, **settings)
    earlier = 3.0 + 2.0 * jnp.arange(8.0)
    if settings.get("normalize_values"):
        moments = state.value_moments.update(earlier, jnp.ones(8, bool))
        state = replace(state, value_moments=moments)
    vf = np.asarray(learner.module.compute_values(state.sgd.params, batch.obs))
    after, metrics = jax.jit(learner.update)(state, batch, Progress.zeros(), jax.random.key(1))
    b: Any = jax.device_get(batch)
    mean, std = 0.0, 1.0
    if settings.get("normalize_values"):  # the minibatch's own targets included
        old, new = np.asarray(earlier), b.value_targets[b.weight > 0]
        mean = (BETA * old.mean() + new.mean()) / (BETA + 1)
        square = (BETA * (old**2).mean() + (new**2).mean()) / (BETA + 1)
        std = np.sqrt(square - mean**2)
        np.testing.assert_allclose([after.value_moments.mean, after.value_moments.std], [mean, std])
    total = far = 0.0
    for i in range(ROWS):
        error = vf[i] - (b.value_targets[i] - mean) / std
        delta = settings.get("huber_delta")
        loss = error**2 if delta is None else huber(error, delta)
        far += b.weight[i] > 0 and (loss > limit or abs(error) > (delta or np.inf))
        total += b.weight[i] * min(loss, limit)
    assert 2 < far < ROWS - 5  # the limit matters here
    np.testing.assert_allclose(metrics["vf_loss"], total / ROWS, rtol=1e-4)


class LargeReward(ProbeDiscount):
    """A reward of 10,000 after two steps."""

    name = "large-reward"

    def reward(self, obs: Any, action: Any) -> Any:
        return 1e4 * super().reward(obs, action)


def learn_large_values(**training: Any) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return the values that are learned of the probe, in units of the rewards, and the right ones."""
    config: PPOConfig = small(env=LargeReward, gamma=0.8, lr=3e-3, num_epochs=4, **training)
    config.training(train_batch_size=512, minibatch_size=128, vf_clip_param=float("inf"))
    config.rl_module(model_config={"fcnet_hiddens": [16]})
    config.reporting(min_sample_timesteps_per_iteration=512 * 100)
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
        table = LargeReward().value_table(0.8)
        params = algorithm.get_weights()["default_policy"]
        values = algorithm.get_module().compute_values(params, jnp.asarray(table.obs))
        learner: Any = algorithm.state.learner
        moments = learner.value_moments
        if moments is not None:
            values = moments.denormalize(values)
    return np.asarray(values), 1e4 * np.asarray(table.values), learned


def test_large_values_are_learned() -> None:
    values, want, learned = learn_large_values(normalize_values=True)
    np.testing.assert_allclose(values, want, atol=600.0)
    assert learned["vf_explained_var"] > 0.9
    assert 7e3 < learned["curr_vf_target_mean"] < 1e4  # of 8,000 and 10,000


@pytest.mark.slow
def test_without_moments_they_are_not() -> None:
    values, want, _ = learn_large_values()
    assert (np.abs(values - want) > 5e3).all()


def test_values_of_rollouts_are_in_units_of_rewards() -> None:
    """The value bias is one normalized unit: advantages and targets see it in units of rewards."""
    runner: Any = assemble(small(normalize_values=True, lambda_=1.0, gamma=0.5)).run
    made: Any = assemble(small()).made
    state = jax.jit(runner.init)(jax.random.key(0), made.params)
    moments = DebiasedMoments.empty().update(jnp.asarray([100.0, 140.0]), jnp.ones(2, bool))
    learner = replace(state.learner, value_moments=moments)
    _, _, rollout, _ = runner.rollout_worker.rollout(
        runner.make_actor_state(state), state.env, state.carry, state.env_params, 4
    )
    values, after = compute_rollout_values(
        runner.learning.learner.module, learner.sgd.params, rollout, {}, moments
    )
    plain = runner.learning.learner.module.compute_values(learner.sgd.params, rollout.obs)
    np.testing.assert_allclose(values, 20.0 * plain + 120.0, rtol=1e-5)
    np.testing.assert_allclose(after[:-1][~rollout.truncated[:-1]][0], values[1][0], rtol=1e-5)
    batch, metrics = runner.learning.learner.prepare(learner, rollout, Progress.zeros())
    discounts = 0.5 ** np.arange(1, 5)[::-1]  # of the value after the last row
    rewards = [sum(0.5**k for k in range(4 - t)) for t in range(4)]
    whole = ~np.asarray(rollout.terminated | rollout.truncated).any(axis=0)
    want = np.asarray(rewards)[:, None] + discounts[:, None] * np.asarray(after)[-1]
    np.testing.assert_allclose(batch.value_targets[:, whole], want[:, whole], rtol=1e-4)
    assert (metrics["curr_vf_target_mean"], metrics["curr_vf_target_std"]) == (120.0, 20.0)


@pytest.mark.slow
def test_both_work_with_memory() -> None:
    config: PPOConfig = small(normalize_values=True, huber_delta=1.0)
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
        learner: Any = algorithm.state.learner
        moments = learner.value_moments
    assert np.isfinite(learned["vf_loss"])
    assert moments.mean > 1.0  # of rewards of 1


def test_hyperparameters_are_traced() -> None:
    learner: Any = assemble(small(huber_delta=2.0)).train_step.learner
    state = jax.jit(learner.init)(jax.random.key(0))
    assert current_values(state.hparams, Progress.zeros())["huber_delta"] == 2.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            PPOConfig().training(normalize_values=True, use_critic=False),
            "normalize_values=True has no effect with use_critic=False",
        ),
        (
            PGConfig().training(huber_delta=2.0),
            "huber_delta=2.0 has no effect with use_critic",
        ),
    ],
)
def test_wrong_settings_are_refused(config: PPOConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.environment("CartPole-v1").validate()
