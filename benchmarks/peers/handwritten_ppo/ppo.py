"""PPO in one file, as a researcher would write it with jax, flax, and optax.

There are two forms. The *plain* one draws a full `jax.random.permutation` per epoch and runs on one
device. The *tuned* one differs in two ways: minibatches come from a keyed bijection on the indices
instead of a sort, and the CPU's cores are devices, each with its share of the environments and of
every minibatch, with averaged gradients.

As in PureJaxRL, a time limit is treated as a termination: there is no bootstrap from the value of
the final observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.peers.handwritten_ppo import tasks
from benchmarks.settings import Setting

AXIS = "devices"


class MLP(nn.Module):
    hidden_size: int
    num_outputs: int
    output_scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.tanh(
                nn.Dense(self.hidden_size, kernel_init=nn.initializers.orthogonal(2**0.5))(x)
            )
        return nn.Dense(
            self.num_outputs, kernel_init=nn.initializers.orthogonal(self.output_scale)
        )(x)


class Batch(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array
    episode_return: jax.Array


class Env(NamedTuple):
    state: Any
    episode_return: jax.Array


class State(NamedTuple):
    params: Any
    opt_state: Any
    env: Env
    key: jax.Array


class Metrics(NamedTuple):
    loss: jax.Array
    return_sum: jax.Array
    num_episodes: jax.Array


def gae(
    reward: jax.Array,
    value: jax.Array,
    ended: jax.Array,
    last_value: jax.Array,
    gamma: float,
    gae_lambda: float,
) -> jax.Array:
    """Compute advantages `[T, B]` (Schulman et al. 2016); `ended[t]` cuts after step `t`."""

    def backward_step(
        carry: tuple[jax.Array, jax.Array], row: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = carry
        reward, value, ended = row
        alive = 1.0 - ended
        delta = reward + gamma * alive * next_value - value
        advantage = delta + gamma * gae_lambda * alive * advantage
        return (advantage, value), advantage

    rows = (reward, value, ended.astype(jnp.float32))
    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(backward_step, start, rows, reverse=True, unroll=16)[1]


def shuffle_index(noise: jax.Array, index: jax.Array, size: int) -> jax.Array:
    """Map indices by a random bijection on `range(size)`, without a sort.

    There are four rounds of multiplication by an odd number, addition, and xor-shift, modulo a
    power of two. Indices outside the range are mapped again until they are inside (cycle walking).

    Args:
        noise: Random 32-bit integers `[2, 4]`, which determine the bijection.
        index: Indices.
        size: Size of the range.
    """
    num_bits = max(1, (size - 1).bit_length())
    mask = jnp.uint32(2**num_bits - 1)
    factors, terms = noise

    def scramble(i: jax.Array) -> jax.Array:
        for r in range(4):
            i = (i * (factors[r] | 1) + terms[r]) & mask
            i = i ^ (i >> (num_bits // 2 + 1))
        return i

    index = scramble(index.astype(jnp.uint32))
    if size != 2**num_bits:
        index = jax.lax.while_loop(
            lambda i: jnp.any(i >= size), lambda i: jnp.where(i >= size, scramble(i), i), index
        )
    return index.astype(jnp.int32)


class PPO:
    """Traced functions for one setting.

    Args:
        setting: Setting.
        mesh: Mesh of devices, for the tuned form only.
    """

    def __init__(self, setting: Setting, mesh: jax.sharding.Mesh | None = None) -> None:
        self.setting = setting
        self.mesh = mesh
        self.num_shards = 1 if mesh is None else mesh.size
        self.task = tasks.make_task(setting.env)
        self.actor = MLP(setting.hidden_size, self.task.num_actions, 0.01)
        self.critic = MLP(setting.hidden_size, 1, 1.0)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(setting.max_grad_norm),
            optax.adam(setting.lr, eps=setting.adam_eps),
        )

    def init(self, key: jax.Array) -> State:
        key_actor, key_critic, key_env, key = jax.random.split(key, 4)
        num_envs = self.setting.num_envs
        state = jax.vmap(self.task.reset)(jax.random.split(key_env, num_envs))
        obs = jax.vmap(self.task.observe)(state)[:1]
        actor = self.actor.init(key_actor, obs)
        if self.task.is_continuous:
            actor = (actor, jnp.zeros(self.task.num_actions))
        params = (actor, self.critic.init(key_critic, obs))
        env = Env(state, jnp.zeros(num_envs))
        return State(params, self.optimizer.init(params), env, key)

    def train(self, state: State) -> tuple[State, Metrics]:
        """Train on `num_updates` train batches; metrics are `[num_updates]`."""
        if self.mesh is None:
            return self._train(state)
        specs, replicated = self._get_specs(), PartitionSpec()
        # check_vma is off because the gradients are averaged by hand, once per minibatch.
        return jax.shard_map(
            self._train,
            mesh=self.mesh,
            in_specs=(specs,),
            out_specs=(specs, replicated),
            check_vma=False,
        )(state)

    def get_shardings(self) -> Any:
        """Return how the state is laid out on the devices; None on one device."""
        mesh = self.mesh
        if mesh is None:
            return None
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), self._get_specs())

    def _get_specs(self) -> State:
        replicated, split = cast(Any, PartitionSpec()), cast(Any, PartitionSpec(AXIS))
        return State(replicated, replicated, split, replicated)

    def _train(self, state: State) -> tuple[State, Metrics]:
        return jax.lax.scan(
            lambda state, _: self._train_iteration(state), state, None, self.setting.num_updates
        )

    def _train_iteration(self, state: State) -> tuple[State, Metrics]:
        key, key_shared = jax.random.split(state.key)
        key_own = key_shared
        if self.mesh is not None:
            key_own = jax.random.fold_in(key_shared, jax.lax.axis_index(AXIS))
        key_rollout, key_shuffle = jax.random.split(key_own)
        env, rollout = self._rollout(state.params, state.env, key_rollout)
        batch = self._compute_targets(state.params, env, rollout)
        params, opt_state, loss = self._update_epochs(
            state.params, state.opt_state, batch, key_shuffle
        )
        metrics = Metrics(
            self._pmean(loss),
            self._psum(jnp.sum(rollout.episode_return * rollout.ended)),
            self._psum(jnp.sum(rollout.ended)),
        )
        return State(params, opt_state, env, key), metrics

    def _rollout(self, params: Any, env: Env, key: jax.Array) -> tuple[Env, Transition]:
        num_envs = self.setting.num_envs // self.num_shards

        def one_step(env: Env, key: jax.Array) -> tuple[Env, Transition]:
            key_act, key_env = jax.random.split(key)
            obs = jax.vmap(self.task.observe)(env.state)
            action = self._draw(params, obs, key_act)
            log_prob = self._compute_log_prob(params, obs, action)[0]
            value = self._compute_value(params, obs)
            keys = jax.random.split(key_env, num_envs)
            state, reward, ended = jax.vmap(self.task.step)(keys, env.state, action)
            episode_return = env.episode_return + reward
            next_env = Env(state, jnp.where(ended, 0.0, episode_return))
            return next_env, Transition(obs, action, log_prob, value, reward, ended, episode_return)

        return jax.lax.scan(one_step, env, jax.random.split(key, self.setting.num_steps))

    def _compute_targets(self, params: Any, env: Env, rollout: Transition) -> Batch:
        """Compute advantages, normalized over the train batch, and value targets `[T * B, ...]`."""
        last_value = self._compute_value(params, jax.vmap(self.task.observe)(env.state))
        advantage = gae(
            rollout.reward,
            rollout.value,
            rollout.ended,
            last_value,
            self.setting.gamma,
            self.setting.gae_lambda,
        )
        mean = self._pmean(jnp.mean(advantage))
        std = jnp.sqrt(self._pmean(jnp.mean((advantage - mean) ** 2)))
        batch = Batch(
            rollout.obs,
            rollout.action,
            rollout.log_prob,
            (advantage - mean) / (std + 1e-8),
            advantage + rollout.value,
        )
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), batch)

    def _update_epochs(
        self, params: Any, opt_state: Any, batch: Batch, key: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        def minibatch_step(
            carry: tuple[Any, Any], minibatch: Batch
        ) -> tuple[tuple[Any, Any], jax.Array]:
            params, opt_state = carry
            loss, grads = jax.value_and_grad(self._compute_loss)(params, minibatch)
            updates, opt_state = self.optimizer.update(self._pmean(grads), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        def epoch(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
            if self.mesh is None:
                return self._train_permuted_epoch(minibatch_step, carry, batch, key)
            return self._train_bijective_epoch(minibatch_step, carry, batch, key)

        keys = jax.random.split(key, self.setting.num_epochs)
        (params, opt_state), loss = jax.lax.scan(epoch, (params, opt_state), keys)
        return params, opt_state, jnp.mean(loss)

    def _train_permuted_epoch(
        self, minibatch_step: Callable[..., Any], carry: Any, batch: Batch, key: jax.Array
    ) -> Any:
        permutation = jax.random.permutation(key, batch.obs.shape[0])
        minibatches = jax.tree.map(
            lambda x: x[permutation].reshape((self.setting.num_minibatches, -1, *x.shape[1:])),
            batch,
        )
        return jax.lax.scan(minibatch_step, carry, minibatches)

    def _train_bijective_epoch(
        self, minibatch_step: Callable[..., Any], carry: Any, batch: Batch, key: jax.Array
    ) -> Any:
        size = batch.obs.shape[0]
        part = size // self.setting.num_minibatches
        noise = jax.random.bits(key, (2, 4), jnp.uint32)

        def gather_and_step(carry: Any, start: jax.Array) -> Any:
            index = shuffle_index(noise, start + jnp.arange(part), size)
            return minibatch_step(carry, jax.tree.map(lambda x: x[index], batch))

        return jax.lax.scan(gather_and_step, carry, jnp.arange(0, size, part))

    def _compute_loss(self, params: Any, batch: Batch) -> jax.Array:
        """Compute equation 9 of Schulman et al. 2017 with the clipped objective, equation 7."""
        log_prob, entropies = self._compute_log_prob(params, batch.obs, batch.action)
        ratio = jnp.exp(log_prob - batch.log_prob)
        clip = self.setting.clip_param
        clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
        policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
        value = self._compute_value(params, batch.obs)
        value_loss = 0.5 * jnp.mean((value - batch.target) ** 2)
        entropy = jnp.mean(entropies)
        setting = self.setting
        return policy_loss + setting.vf_loss_coeff * value_loss - setting.entropy_coeff * entropy

    def _draw(self, params: Any, obs: jax.Array, key: jax.Array) -> jax.Array:
        if not self.task.is_continuous:
            return jax.random.categorical(key, self._apply_actor(params[0], obs))
        mean = self._apply_actor(params[0][0], obs)
        return mean + jnp.exp(params[0][1]) * jax.random.normal(key, mean.shape)

    def _compute_log_prob(
        self, params: Any, obs: jax.Array, action: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute log-probabilities of the actions, and entropies, of all rows."""
        if not self.task.is_continuous:
            log_probs = jax.nn.log_softmax(self._apply_actor(params[0], obs))
            chosen = jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]
            return chosen, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        mean, log_std = self._apply_actor(params[0][0], obs), params[0][1]
        noise = (action - mean) * jnp.exp(-log_std)
        constant = 0.5 * jnp.log(2 * jnp.pi)
        log_prob = -jnp.sum(0.5 * noise**2 + log_std + constant, axis=-1)
        return log_prob, jnp.broadcast_to(jnp.sum(log_std + constant + 0.5), log_prob.shape)

    def _apply_actor(self, params: Any, obs: jax.Array) -> jax.Array:
        return cast(jax.Array, self.actor.apply(params, obs))

    def _compute_value(self, params: Any, obs: jax.Array) -> jax.Array:
        return cast(jax.Array, self.critic.apply(params[1], obs))[:, 0]

    def _pmean(self, tree: Any) -> Any:
        return tree if self.mesh is None else jax.lax.pmean(tree, AXIS)

    def _psum(self, tree: Any) -> Any:
        return tree if self.mesh is None else jax.lax.psum(tree, AXIS)


def make_device_mesh(setting: Setting) -> jax.sharding.Mesh:
    """Return a mesh of the most devices that divide the environments and the minibatches."""
    devices = jax.devices()
    count = max(
        n
        for n in range(1, len(devices) + 1)
        if setting.num_envs % n == 0 and setting.minibatch_size % n == 0
    )
    return jax.sharding.Mesh(np.array(devices[:count]), (AXIS,))
