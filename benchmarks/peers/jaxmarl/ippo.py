"""Independent PPO with shared parameters on JaxMARL's environments.

Computes what JaxMARL's script for its particle tasks does
(https://github.com/FLAIROx/JaxMARL/blob/main/baselines/IPPO/ippo_ff_mpe.py), with its hyperparameters: the package
has the environments alone. It is used as its scripts use it: `env.step` with its auto-reset, and its wrapper
that logs returns. As there, a time limit is a termination.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

NUM_EPOCHS = 4
NUM_MINIBATCHES = 4
GAMMA = 0.99
GAE_LAMBDA = 0.95
CLIP = 0.2
ENTROPY_COEFF = 0.01
VALUE_COEFF = 0.5
MAX_GRAD_NORM = 0.5
LEARNING_RATE = 2.5e-4


class Network(nn.Module):
    """Policy and value with two layers of 64 units each."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._head(obs, self.num_actions, 0.01), self._head(obs, 1, 1.0)[..., 0]

    def _head(self, x: jax.Array, size: int, gain: float) -> jax.Array:
        for _ in range(2):
            x = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(size, kernel_init=nn.initializers.orthogonal(gain))(x)


class Rows(NamedTuple):
    """Transitions `[T, agents * envs]`."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array


class Batch(NamedTuple):
    """Rows of one minibatch with their targets."""

    rows: Rows
    advantage: jax.Array
    target: jax.Array


class IndependentTraining:
    """Training of one network that plays all agents.

    Args:
        env: JaxMARL's environment with its wrapper that logs returns.
        num_envs: Number of copies.
        num_steps: Steps of each in a train batch.
        num_updates: Train batches of a call of `train`.
    """

    def __init__(self, env: Any, num_envs: int, num_steps: int, num_updates: int) -> None:
        self.env, self.agents = env, env.agents
        self.num_envs, self.num_steps, self.num_updates = num_envs, num_steps, num_updates
        self.network = Network(env.action_space(self.agents[0]).n)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(LEARNING_RATE, eps=1e-5)
        )

    def init(self, key: jax.Array) -> Any:
        """Make the state of a run."""
        params_key, reset_key, key = jax.random.split(key, 3)
        shape = self.env.observation_space(self.agents[0]).shape
        params = self.network.init(params_key, jnp.zeros(shape))
        obs, state = jax.vmap(self.env.reset)(jax.random.split(reset_key, self.num_envs))
        return params, self.optimizer.init(params), state, obs, key

    def train(self, carry: Any) -> Any:
        """Return the state after the train batches, and the mean return of each batch's episodes.

        Returns are those of all agents, added.
        """
        return jax.lax.scan(self._update, carry, None, length=self.num_updates)

    def _batch(self, values: dict[str, jax.Array]) -> jax.Array:
        stacked = jnp.stack([values[agent] for agent in self.agents])
        return stacked.reshape(len(self.agents) * self.num_envs, *stacked.shape[2:])

    def _unbatch(self, values: jax.Array) -> dict[str, jax.Array]:
        per_agent = values.reshape(len(self.agents), self.num_envs)
        return {agent: per_agent[index] for index, agent in enumerate(self.agents)}

    def _step(self, carry: Any, _: None) -> Any:
        params, state, obs, key = carry
        key, action_key, step_key = jax.random.split(key, 3)
        seen = self._batch(obs)
        logits, value = evaluate(self.network, params, seen)
        action = jax.random.categorical(action_key, logits)
        step_keys = jax.random.split(step_key, self.num_envs)
        actions = self._unbatch(action)
        obs, state, reward, done, info = jax.vmap(self.env.step)(step_keys, state, actions)
        log_prob = pick_log_prob(logits, action)
        rows = Rows(seen, action, log_prob, value, self._batch(reward), self._batch(done))
        returned = jnp.where(info["returned_episode"], info["returned_episode_returns"], 0.0)
        totals = (returned.sum(), info["returned_episode"].sum() / len(self.agents))
        return (params, state, obs, key), (rows, totals)

    def _update(self, carry: Any, _: None) -> Any:
        params, opt_state, state, obs, key = carry
        walk = (params, state, obs, key)
        end, (rows, totals) = jax.lax.scan(self._step, walk, None, length=self.num_steps)
        state, obs, key = end[1], end[2], end[3]
        last_value = evaluate(self.network, params, self._batch(obs))[1]
        advantage = compute_gae(rows, last_value)
        whole = Batch(rows, advantage, advantage + rows.value)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), whole)
        size = flat.advantage.shape[0]

        def epoch(carry: Any, key: jax.Array) -> Any:
            order = jax.random.permutation(key, size)
            shuffled = jax.tree.map(
                lambda x: x[order].reshape(NUM_MINIBATCHES, -1, *x.shape[1:]), flat
            )
            return jax.lax.scan(self._learn, carry, shuffled)

        key, epochs_key = jax.random.split(key)
        epoch_keys = jax.random.split(epochs_key, NUM_EPOCHS)
        params, opt_state = jax.lax.scan(epoch, (params, opt_state), epoch_keys)[0]
        mean = totals[0].sum() / jnp.maximum(totals[1].sum(), 1)
        return (params, opt_state, state, obs, key), mean

    def _learn(self, carry: Any, minibatch: Batch) -> Any:
        params, opt_state = carry
        grads = jax.grad(compute_loss)(params, self.network, minibatch)
        updates, opt_state = self.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None


def evaluate(network: Network, params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute logits and values."""
    return cast(tuple[jax.Array, jax.Array], network.apply(params, obs))


def pick_log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Compute the log-probabilities of actions."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def compute_gae(rows: Rows, last_value: jax.Array) -> jax.Array:
    """Compute advantages `[T, N]` (Schulman et al. 2016)."""

    def backward(carry: Any, row: Rows) -> Any:
        advantage, next_value = carry
        goes_on = 1.0 - row.ended
        delta = row.reward + GAMMA * next_value * goes_on - row.value
        advantage = delta + GAMMA * GAE_LAMBDA * goes_on * advantage
        return (advantage, row.value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(backward, start, rows, reverse=True, unroll=8)[1]


def compute_loss(params: Any, network: Network, batch: Batch) -> jax.Array:
    """Compute PPO's loss with clipped ratios and values."""
    rows = batch.rows
    logits, value = evaluate(network, params, rows.obs)
    clipped = rows.value + jnp.clip(value - rows.value, -CLIP, CLIP)
    errors = jnp.maximum((value - batch.target) ** 2, (clipped - batch.target) ** 2)
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    ratio = jnp.exp(pick_log_prob(logits, rows.action) - rows.log_prob)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    log_probs = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return -gain.mean() + VALUE_COEFF * 0.5 * errors.mean() - ENTROPY_COEFF * entropy
