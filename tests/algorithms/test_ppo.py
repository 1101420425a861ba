"""PPO's loss against a plain loop; A2C, PG and PPO on probes whose values are known."""

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.ppo import PPOBatch, PPOLearner
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Progress
from jaxrl.envs import make
from jaxrl.training.rollout import RolloutWorker
from tests import actor_critics as ac
from tests.helpers import slow_but, small

ROWS = 40


def learner_and_batch(**training: Any) -> tuple[Any, Any, PPOBatch]:
    """A learner, its state with the parameters moved, and a batch from before the move."""
    learner = assemble(small(entropy_coeff=0.02, **training)).train_step.learner
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    obs = jnp.asarray(rng.normal(size=(ROWS, 4)), jnp.float32)
    out = jax.jit(learner.module.forward_train)(state.sgd.params, {"obs": obs})
    logits = out["action_dist_inputs"]
    action = jnp.asarray(rng.integers(0, 2, ROWS), jnp.int32)
    batch = PPOBatch(
        obs=obs,
        action=action,
        log_prob=jax.nn.log_softmax(logits)[jnp.arange(ROWS), action],
        dist_inputs=logits,
        advantages=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        value_targets=jnp.asarray(rng.normal(size=ROWS) * 4, jnp.float32),
        weight=jnp.asarray(rng.random(ROWS) < 0.8, jnp.float32),
    )
    moved = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.5, jnp.float32), state.sgd.params
    )
    return learner, replace(state, sgd=replace(state.sgd, params=moved)), batch


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def test_the_loss_equals_a_plain_loop() -> None:
    learner, state, batch = learner_and_batch(vf_clip_param=9.0, kl_coeff=0.3)
    values = replace(learner.settings.at(state.hparams, Progress.zeros()), kl_coeff=state.kl_coeff)
    loss, metrics = jax.jit(lambda params, key: learner.compute_loss(params, batch, values, key))(
        state.sgd.params, jax.random.key(1)
    )
    out = learner.module.forward_train(state.sgd.params, {"obs": batch.obs})
    logits, vf = np.asarray(out["action_dist_inputs"]), np.asarray(out["vf_preds"])
    b: Any = jax.device_get(batch)
    sums = {"policy_loss": 0.0, "vf_loss": 0.0, "entropy": 0.0, "mean_kl_loss": 0.0}
    clipped = 0
    for i in range(ROWS):
        new, old = log_softmax(logits[i]), log_softmax(b.dist_inputs[i])
        ratio = np.exp(new[b.action[i]] - b.log_prob[i])
        clipped += abs(ratio - 1) > 0.3 and b.weight[i] > 0
        surrogate = min(ratio * b.advantages[i], np.clip(ratio, 0.7, 1.3) * b.advantages[i])
        sums["policy_loss"] -= b.weight[i] * surrogate
        sums["vf_loss"] += b.weight[i] * min((vf[i] - b.value_targets[i]) ** 2, 9.0)
        sums["entropy"] -= b.weight[i] * (np.exp(new) * new).sum()
        sums["mean_kl_loss"] += b.weight[i] * (np.exp(old) * (old - new)).sum()
    assert 5 < clipped < ROWS - 5  # the clip matters here
    for name, total in sums.items():
        np.testing.assert_allclose(metrics[name], total / ROWS, rtol=1e-4, atol=1e-6)
    want = (
        sums["policy_loss"]
        + 1.0 * sums["vf_loss"]
        - 0.02 * sums["entropy"]
        + 0.3 * sums["mean_kl_loss"]
    ) / ROWS
    np.testing.assert_allclose(loss, want, rtol=1e-4)


def test_the_gradient_is_that_of_the_formula() -> None:
    """Slopes in logits and values, in float64."""
    learner, state, batch = learner_and_batch(vf_clip_param=9.0, kl_coeff=0.3)
    values = replace(learner.settings.at(state.hparams, Progress.zeros()), kl_coeff=state.kl_coeff)
    out = learner.module.forward_train(state.sgd.params, {"obs": batch.obs})
    found = ac.loss_slopes(learner, out, batch, values)
    b, logits = jax.device_get(batch), out["action_dist_inputs"]
    slopes = (
        ac.surrogate_slopes(logits, b.action, b.log_prob, b.advantages, 0.3)
        - 0.02 * ac.entropy_slopes(logits)
        + 0.3 * ac.kl_slopes(b.dist_inputs, logits)
    )
    weight = np.asarray(b.weight, np.float64) / ROWS
    expected = weight[:, None] * slopes
    np.testing.assert_allclose(found["action_dist_inputs"], expected, rtol=1e-4, atol=1e-7)
    error = np.asarray(out["vf_preds"], np.float64) - b.value_targets
    is_cut = np.square(error) > 9.0
    assert 3 < is_cut.sum() < ROWS - 3
    expected = weight * np.where(is_cut, 0.0, 2.0 * error)
    np.testing.assert_allclose(found["vf_preds"], expected, rtol=1e-4, atol=1e-7)


def test_rows_without_weight_have_no_gradient() -> None:
    learner, state, batch = learner_and_batch()
    hidden = batch.weight == 0.0
    assert bool(hidden.any())
    other = replace(
        batch,
        advantages=jnp.where(hidden, 1e3, batch.advantages),
        value_targets=jnp.where(hidden, -1e3, batch.value_targets),
    )
    update = jax.jit(learner.update)
    key = jax.random.key(2)
    first, _ = update(state, batch, Progress.zeros(), key)
    second, _ = update(state, other, Progress.zeros(), jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, first.sgd.params, second.sgd.params)


@pytest.mark.parametrize(("kl", "factor"), [(0.05, 1.5), (0.001, 0.5), (0.012, 1.0)])
def test_the_penalty_adapts(kl: float, factor: float) -> None:
    learner, state, _ = learner_and_batch(kl_coeff=0.2, kl_target=0.01)
    after = learner.finish(state, {"mean_kl_loss": jnp.float32(kl)}, Progress.zeros())
    np.testing.assert_allclose(after.kl_coeff, 0.2 * factor, rtol=1e-6)


@pytest.mark.allow_key_reuse
def test_advantages_are_normalised_over_the_whole_batch() -> None:
    for setting, want in ((True, 1.0), ("batch", 1.0), (False, None)):
        assembly = assemble(small(normalize_advantages=setting))
        runner = assembly.run
        state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)

        def prepare(
            state: Any, runner: Any = runner, sampler: RolloutWorker = assembly.rollout_worker
        ) -> Any:
            rolled = sampler.rollout(
                runner.make_actor_state(state),
                state.env,
                state.carry,
                state.env_params,
                runner.learning.num_steps,
            )
            return runner.learning.learner.prepare(state.learner, rolled[2], state.progress)[0]

        advantages = np.asarray(jax.jit(prepare)(state).advantages)
        if want is None:
            assert abs(advantages.mean()) > 0.1
        else:
            np.testing.assert_allclose(advantages.std(), want, rtol=1e-3)
            np.testing.assert_allclose(advantages.mean(), 0.0, atol=1e-4)


# --- probes ---

LEARNS = {
    "PPO": {"lr": 3e-3, "lambda_": 0.95, "num_epochs": 4},
    "A2C": {"lr": 1e-2},
    "PG": {"lr": 1e-2},
}


def trained(algo: str, env: str, batches: int, **training: Any) -> Any:
    """The algorithm after `batches` train batches of 512 steps on a probe."""
    config = small(algo, env=f"jaxrl:{env}", **{**LEARNS[algo], **training})
    config.training(train_batch_size=512)
    if algo == "PPO":
        config.training(minibatch_size=128)
    config.rl_module(model_config={"fcnet_hiddens": [16]})
    config.reporting(min_sample_timesteps_per_iteration=512 * batches)
    algorithm = config.build()
    algorithm.train()
    return algorithm


def values_of(algorithm: Any, obs: np.ndarray) -> np.ndarray:
    params = algorithm.get_weights()["default_policy"]
    return np.asarray(algorithm.get_module().compute_values(params, jnp.asarray(obs)))


VALUE_PROBES = ["probe-value-v0", "probe-obs-value-v0", "probe-discount-v0"]
ACTION_PROBES = [
    "probe-action-v0",
    "probe-obs-action-v0",
    "probe-multidiscrete-v0",
    "probe-obs-action-continuous-v0",
]


@pytest.mark.slow
@pytest.mark.parametrize("algo", slow_but("PPO", of=["PPO", "A2C"]))
@pytest.mark.parametrize("env", VALUE_PROBES)
def test_values_are_learned(algo: str, env: str) -> None:
    gamma = 0.8
    with trained(algo, env, 150, gamma=gamma) as algorithm:
        table = make(f"jaxrl:{env}").env.value_table(gamma)  # pyright: ignore
        np.testing.assert_allclose(values_of(algorithm, table.obs), table.values, atol=0.08)


@pytest.mark.representatives("probe-obs-action-continuous-v0-PPO")
@pytest.mark.parametrize("algo", slow_but("PPO", of=["PPO", "A2C", "PG"]))
@pytest.mark.parametrize("env", ACTION_PROBES)
def test_actions_are_learned(algo: str, env: str) -> None:
    with trained(algo, env, 150) as algorithm:
        table = make(f"jaxrl:{env}").env.value_table(0.99)  # pyright: ignore
        actions = algorithm.compute_actions(list(table.obs), explore=False)
        tolerance = 0.25 if "continuous" in env else 0.0  # untrained it is off by 0.5
        np.testing.assert_allclose(actions, table.actions, atol=tolerance)


@pytest.mark.parametrize("algo", slow_but("PPO", of=["PPO", "A2C"]))
def test_truncation_is_not_termination(algo: str) -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    gamma = 0.9
    with trained(algo, "probe-truncation-v0", 400, gamma=gamma, vf_clip_param=1e9) as algorithm:
        value = values_of(algorithm, np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(value, 1.0 / (1.0 - gamma), rtol=0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("truncation_is_termination")
def test_a_runner_that_takes_truncation_for_termination_fails_that_test() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_truncation_is_not_termination("PPO")


# --- the examples of the guides ---


@dataclasses.dataclass(frozen=True, eq=False)
class WithoutClipLearner(PPOLearner):
    """A custom loss: the plain surrogate."""

    def compute_loss(self, params: Any, batch: PPOBatch, values: Any, key: Any) -> Any:
        out = self.module.forward_train(params, {"obs": batch.obs})
        dist = self.module.action_dist(out["action_dist_inputs"], batch.obs)
        ratio = jnp.exp(dist.log_prob(batch.action) - batch.log_prob)
        loss = -jnp.mean(batch.weight * ratio * batch.advantages)
        vf_error = jnp.square(out["vf_preds"] - batch.value_targets)
        return loss + jnp.mean(batch.weight * vf_error), {"my_loss": loss, "mean_kl_loss": loss}


def test_a_custom_loss_is_used_and_reported() -> None:
    config: PPOConfig = small(env="jaxrl:probe-action-v0").learners(
        learner_class=WithoutClipLearner
    )
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
        assert "my_loss" in learned
        assert "policy_loss" not in learned


@pytest.mark.slow
def test_log_gradients_names_every_tensor() -> None:
    with small().reporting(log_gradients=True).build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
        names = [name for name in learned if name.startswith("grad_norm/")]
        assert "grad_norm/pi_head.out.kernel" in names
        assert len(names) == len(jax.tree.leaves(algorithm.get_weights()))
        assert any(learned[name] > 0 for name in names)
