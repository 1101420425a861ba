"""Small learners with a policy and critics, rows to learn from, and their networks in NumPy."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Progress, ReturnColumns, Transition
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES

ROWS, ACTIONS, SIZE = 24, 3, 2
BOX = spaces.Box(np.float32([-1.0, -2.0]), np.float32([1.0, 4.0]))
OBSERVED = spaces.Box(-1.0, 1.0, (4,))
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(ACTIONS), "obs": OBSERVED})


def learner_of(
    config: Any, action_space: Any = BOX, observation_space: Any = OBSERVED, **settings: Any
) -> Any:
    """The learner of a config with small networks, for given spaces."""
    config.training(**settings).rl_module(model_config={"fcnet_hiddens": [8, 8]})
    module = config.get_rl_module_spec(observation_space, action_space).build()
    learner_class = config.get_learner_class()
    return learner_class(module=module, settings=config.training_settings, log_gradients=True)


def state_of(learner: Any) -> Any:
    """A state whose networks, and whose targets, differ from one another."""
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(1)

    def moved(x: Any) -> Any:
        return x + jnp.asarray(rng.normal(size=x.shape) * 0.4, jnp.float32)

    params, target = jax.tree.map(moved, (state.sgd.params, state.target.params))
    return replace(
        state, sgd=replace(state.sgd, params=params), target=replace(state.target, params=target)
    )


def batch_of(action_space: Any = BOX, *, masked: bool = False) -> Transition:
    """Rows of which some end and some weigh nothing; with a mask, each has an illegal action."""
    rng = np.random.default_rng(2)

    def observed() -> Any:
        obs = jnp.asarray(rng.normal(size=(ROWS, 4)), jnp.float32)
        if not masked:
            return obs
        illegal = rng.integers(0, ACTIONS, ROWS)
        mask = (np.arange(ACTIONS)[None] != illegal[:, None]).astype(np.int8)
        return {"action_mask": jnp.asarray(mask), "obs": obs}

    action: Any = jnp.asarray(rng.integers(0, ACTIONS, ROWS), jnp.int32)
    if isinstance(action_space, spaces.Box):
        action = jnp.asarray(rng.uniform(BOX.low, BOX.high, (ROWS, SIZE)), jnp.float32)
    return Transition(
        obs=observed(),
        action=action,
        reward=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        discount=jnp.asarray(0.9 * (rng.random(ROWS) < 0.8), jnp.float32),
        next_obs=observed(),
        weight=jnp.asarray(rng.choice([0.0, 0.5, 1.0], ROWS), jnp.float32),
    )


def on_probe(config: Any, env: str, **training: Any) -> Any:
    """6000 steps of 8 environments on a probe, 16 updates of 32 rows for each 64 steps."""
    config.environment(env).env_runners(num_envs_per_env_runner=8, rollout_fragment_length=8)
    given = {
        "train_batch_size": 32,
        "training_intensity": 8.0,
        "num_steps_sampled_before_learning_starts": 256,
        "replay_buffer_config": {"type": "uniform", "capacity": 4000},
        **training,
    }
    config.training(**given).rl_module(model_config={"fcnet_hiddens": [16]})
    config.reporting(min_sample_timesteps_per_iteration=6000)
    return config.debugging(loggers=["json"]).learners(num_devices=1)


@functools.cache
def compiled(learner: Any) -> Any:
    """The learner's update, compiled once for all tests."""
    return jax.jit(learner.update)


def updated(learner: Any, state: Any, batch: Transition, seed: int = 3) -> tuple[Any, Any]:
    """One update, at the run's start."""
    return compiled(learner)(state, batch, Progress.zeros(), jax.random.key(seed))


def with_values(state: Any, **values: float) -> Any:
    """The state with other hyperparameters."""
    leaves = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    return replace(state, hparams={**state.hparams, **leaves})


def with_rewards(batch: Transition, where: Any, value: float) -> Transition:
    """The rows with another reward, and return if they have one, where told."""
    changed = replace(batch, reward=jnp.where(where, value, batch.reward))
    if ReturnColumns.RETURN_TO_GO not in batch.extras:
        return changed
    returns = jnp.where(where, value, batch.extras[ReturnColumns.RETURN_TO_GO])
    return replace(changed, extras={**batch.extras, ReturnColumns.RETURN_TO_GO: returns})


METRICS_OF_ROWS = (
    *("qf_mean", "td_error_mean", "policy_loss", "vf_loss", "cql_loss", "vf_explained_var"),
    *("bc_logp_mean", "advantages_mean", "logps", "moving_avg_sqd_adv_norm"),
)


def assert_hidden_rows_change_nothing(
    learner: Any, state: Any, batch: Transition, update: Callable[..., Any] = updated
) -> None:
    """Rows that weigh nothing may have other rewards and observations."""
    hidden = batch.weight == 0.0
    obs = jax.tree.map(lambda x: jnp.where(hidden[:, None], x[::-1], x), batch.obs)
    other = replace(with_rewards(batch, hidden, 1e6), obs=obs)
    (first, metrics), (second, others) = (update(learner, state, b) for b in (batch, other))
    assert metrics[NUM_NONFINITE_UPDATES] == others[NUM_NONFINITE_UPDATES] == 0.0
    assert_trees_close(first, second)
    for name in metrics.keys() & {*METRICS_OF_ROWS}:
        np.testing.assert_allclose(metrics[name], others[name], rtol=1e-5, atol=1e-6, err_msg=name)


def assert_nonfinite_updates_change_nothing(
    learner: Any, state: Any, batch: Transition, update: Callable[..., Any] = updated
) -> None:
    """An update by a reward that is no number is counted and leaves everything as it was."""
    where = jnp.arange(batch.reward.shape[0]) == jnp.argmax(batch.weight)
    for value in (jnp.inf, jnp.nan):
        after, metrics = update(learner, state, with_rewards(batch, where, value))
        assert metrics[NUM_NONFINITE_UPDATES] == 1.0
        assert_trees_equal(after, state)


def assert_trees_close(x: Any, y: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), x, y)


def assert_trees_equal(x: Any, y: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, x, y)


# --- the networks in float64 ---


def dense(layer: Any, x: Any) -> np.ndarray:
    kernel, bias = (np.asarray(layer[name], np.float64) for name in ("kernel", "bias"))
    return np.asarray(x, np.float64) @ kernel + bias


def layers(params: Any, x: Any) -> np.ndarray:
    for name in sorted(params):
        x = np.maximum(dense(params[name], x), 0.0)
    return x


def policy_output(policy: Any, obs: Any) -> np.ndarray:
    return dense(policy["head"]["out"], layers(policy["encoder"]["mlp"], obs))


def critic_output(critic: Any, obs: Any, action: Any) -> np.ndarray:
    """Return the `[n]` outputs of one critic, of which a Box's scalar critic has one."""
    if "joint" in critic:
        hidden = layers(critic["joint"], np.concatenate([obs, action]))
    else:
        hidden = layers(critic["encoder"]["mlp"], obs)
    return dense(critic["head"]["out"], hidden)


def critics_output(critics: Any, obs: Any, action: Any = None) -> np.ndarray:
    """Return the `[critics, n]` outputs of all critics."""
    return np.stack([critic_output(critics[name], obs, action) for name in sorted(critics)])


def squashed(inputs: np.ndarray, noise: Any) -> tuple[np.ndarray, float]:
    """The action that the noise chooses and its log density, by the textbook formula."""
    mean, log_std = inputs[:SIZE], np.clip(inputs[SIZE:], -20.0, 2.0)
    low, high = np.asarray(BOX.low, np.float64), np.asarray(BOX.high, np.float64)
    log_prob, u = 0.0, mean + np.exp(log_std) * np.asarray(noise, np.float64)
    for i in range(SIZE):
        z = (u[i] - mean[i]) / np.exp(log_std[i])
        log_prob += -0.5 * z * z - log_std[i] - 0.5 * np.log(2.0 * np.pi)
        log_prob -= np.log((1.0 - np.tanh(u[i]) ** 2) * (high[i] - low[i]) / 2.0)
    return low + (high - low) * (np.tanh(u) + 1.0) / 2.0, log_prob


def normal(key: Any) -> np.ndarray:
    """Draw the noise of all rows as a learner does with this key."""
    return np.asarray(jax.random.normal(key, (ROWS, SIZE), jnp.float32))


def softmax(logits: np.ndarray, mask: Any) -> np.ndarray:
    legal = np.where(np.asarray(mask) > 0, np.exp(logits - logits.max()), 0.0)
    return legal / legal.sum()


def huber(error: float) -> float:
    return 0.5 * error * error if abs(error) <= 1.0 else abs(error) - 0.5


# --- gradients of losses of outputs, in float64 ---


class _Outputs:
    """A module whose parameters are its outputs, and which is otherwise another module."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def forward_train(self, params: Any, batch: Any) -> Any:
        return {**params}


def loss_slopes(learner: Any, out: Any, batch: Any, values: Any) -> dict[str, np.ndarray]:
    """Slopes of a learner's loss in the logits and values that its module returns."""
    other = dataclasses.replace(learner, module=_Outputs(learner.module))
    named = {name: out[name] for name in ("action_dist_inputs", "vf_preds")}

    def loss(named: Any) -> Any:
        return other.compute_loss(named, batch, values, jax.random.key(0))[0]

    return jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(named))


def log_softmax(logits: Any) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def surrogate_slopes(
    logits: Any, action: Any, acted: Any, advantage: Any, clip: float, factor: Any = 1.0
) -> np.ndarray:
    """Slopes of −min(r A, clip(r) A), r = factor π(a) / μ(a), in the logits of π.

    `acted` is log μ(a).
    """
    log_pi = log_softmax(logits)
    action, advantage = np.asarray(action), np.asarray(advantage, np.float64)
    taken = np.take_along_axis(log_pi, action[..., None], axis=-1)[..., 0]
    ratio = factor * np.exp(taken - np.asarray(acted, np.float64))
    is_cut = np.where(advantage > 0, ratio > 1 + clip, ratio < 1 - clip)
    one = np.eye(log_pi.shape[-1])[action]
    return -np.where(is_cut, 0.0, ratio * advantage)[..., None] * (one - np.exp(log_pi))


def entropy_slopes(logits: Any) -> np.ndarray:
    """Slopes of the entropy in the logits."""
    log_pi = log_softmax(logits)
    entropy = -(np.exp(log_pi) * log_pi).sum(axis=-1, keepdims=True)
    return -np.exp(log_pi) * (log_pi + entropy)


def kl_slopes(other: Any, logits: Any) -> np.ndarray:
    """Slopes of KL(other | π) in the logits of π."""
    return np.exp(log_softmax(logits)) - np.exp(log_softmax(other))
