"""DreamerV3 in one file, as a researcher would write it with jax, flax, and optax.

It learns CartPole-v1 with the sizes of jaxrl's shipped config, whose learning rates are its own, and
computes the same (`jaxrl/algorithms/dreamer.py`): every iteration is one step of all environments into a ring of
rows for each of them, then updates on sequences that are drawn from the rings. All iterations of a
call are one compiled program, on one device. As in the hand-written PPO, a time limit is a
termination. Nothing else is done: no results, no statistics but the episodes' lengths, no guard
against updates that are not finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers.handwritten_ppo import tasks

NUM_ENVS, CAPACITY, NUM_ACTIONS, OBS_SIZE = 8, 100_000, 2, 4
NUM_SEQUENCES, LENGTH, HORIZON, NUM_STARTS = 16, 32, 15, 8
UNITS, LATENTS, CLASSES = 32, 8, 8
GAMMA, LAMBDA, TAU, UNIMIX, FREE_NATS = 0.99, 0.95, 0.02, 0.01, 1.0
ENTROPY_SCALE, SCALE_DECAY, LEARNING_RATE = 3e-4, 0.99, 1e-3
CLIPS = {"world": 1000.0, "actor": 100.0, "critic": 100.0}
WARMUP_ITERATIONS = 1_000 // NUM_ENVS
"""Iterations before the first update."""

HALF = np.expm1(np.linspace(0.0, 20.0, 128))
BINS = np.concatenate([-HALF[:0:-1], HALF]).astype(np.float32)

Params = dict[str, Any]


class Hidden(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.silu(nn.LayerNorm()(nn.Dense(UNITS)(x)))


class Head(nn.Module):
    num_outputs: int
    is_zero: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.zeros if self.is_zero else nn.initializers.lecun_normal()
        return nn.Dense(self.num_outputs, kernel_init=init)(Hidden()(x))


class World(nn.Module):
    def setup(self) -> None:
        self.encoder, self.decoder = Hidden(), Head(OBS_SIZE)
        self.dynamics, self.gates = Hidden(), nn.Dense(3 * UNITS, use_bias=False)
        self.norm = nn.LayerNorm()
        self.initial_h = self.param("initial_h", nn.initializers.zeros, (UNITS,))
        self.prior_head, self.posterior_head = Head(LATENTS * CLASSES), Head(LATENTS * CLASSES)
        self.reward_head, self.continue_head = Head(len(BINS), is_zero=True), Head(1)

    def encode(self, obs: jax.Array) -> jax.Array:
        return self.encoder(symlog(obs))

    def decode(self, features: jax.Array) -> jax.Array:
        return self.decoder(features)

    def begin(self) -> jax.Array:
        return jnp.tanh(self.initial_h)

    def advance(self, h: jax.Array, z: jax.Array, action: jax.Array) -> jax.Array:
        x = self.dynamics(join(z, jax.nn.one_hot(action, NUM_ACTIONS)))
        reset, candidate, update = jnp.split(self.norm(self.gates(join(h, x))), 3, axis=-1)
        update = nn.sigmoid(update - 1.0)
        return update * jnp.tanh(nn.sigmoid(reset) * candidate) + (1.0 - update) * h

    def prior(self, h: jax.Array) -> jax.Array:
        return mix(self.prior_head(h).reshape(*h.shape[:-1], LATENTS, CLASSES))

    def posterior(self, h: jax.Array, encoded: jax.Array) -> jax.Array:
        logits = self.posterior_head(join(h, encoded))
        return mix(logits.reshape(*h.shape[:-1], LATENTS, CLASSES))

    def outcome(self, next_h: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.reward_head(next_h), self.continue_head(next_h)[..., 0]

    def __call__(self, obs: jax.Array, h: jax.Array, z: jax.Array, action: jax.Array) -> None:
        next_h = self.advance(h, z, action)
        self.prior(next_h)
        self.posterior(next_h, self.encode(obs))
        self.outcome(next_h)
        self.decode(join(h, z))


WORLD = World()
ACTOR, CRITIC = Head(NUM_ACTIONS, is_zero=True), Head(len(BINS), is_zero=True)


def call_world(params: Params, method: str, *args: jax.Array) -> Any:
    return WORLD.apply(params["world"], *args, method=method)


def join(*parts: jax.Array) -> jax.Array:
    return jnp.concatenate(parts, axis=-1)


def symlog(x: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def mix(logits: jax.Array) -> jax.Array:
    """Compute log-probabilities with 1 % of the uniform distribution."""
    return jnp.log((1.0 - UNIMIX) * jax.nn.softmax(logits) + UNIMIX / logits.shape[-1])


def draw_class(probs: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw classes with uniform numbers, by the distribution function."""
    number = probs.shape[-1]
    below = probs @ np.triu(np.ones((number, number), np.float32))
    return jnp.sum(uniform[..., None] >= below[..., :-1], axis=-1)


def draw_z(log_probs: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw one-hot latents `[..., LATENTS * CLASSES]` with straight-through gradients."""
    probs = jnp.exp(log_probs)
    hard = jax.nn.one_hot(draw_class(probs, uniform), CLASSES)
    z = hard + probs - jax.lax.stop_gradient(probs)
    return z.reshape(*z.shape[:-2], -1)


def two_hot_mean(logits: jax.Array) -> jax.Array:
    """Compute means; mirror images are added first, so that large bins cancel exactly."""
    probs, half = jax.nn.softmax(logits), len(BINS) // 2
    difference = probs[..., half + 1 :] - probs[..., :half][..., ::-1]
    return jnp.sum(difference * BINS[half + 1 :], axis=-1)


def two_hot_loss(logits: jax.Array, x: jax.Array) -> jax.Array:
    x = jnp.clip(x, BINS[0], BINS[-1])[..., None]
    below = np.concatenate([2.0 * BINS[:1] - BINS[1:2], BINS[:-1]])
    above = np.concatenate([BINS[1:], 2.0 * BINS[-1:] - BINS[-2:-1]])
    target = jnp.minimum((x - below) / (BINS - below), (above - x) / (above - BINS))
    target = jax.lax.stop_gradient(jnp.clip(target, 0.0, 1.0))
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)


def divergence(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))


class Rows(NamedTuple):
    """Rows of episodes, `[NUM_ENVS, CAPACITY / NUM_ENVS, ...]` in the rings."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    ended: jax.Array
    is_first: jax.Array


class Acting(NamedTuple):
    """Environments, with what the policy remembers of each."""

    env: tasks.CartPole
    h: jax.Array
    z: jax.Array
    action: jax.Array
    is_first: jax.Array


class State(NamedTuple):
    params: Params
    slow: Any
    opt_state: Any
    scale: jax.Array
    acting: Acting
    rows: Rows
    num_rows: jax.Array
    """Rows that each environment has written so far."""
    key: jax.Array


class Metrics(NamedTuple):
    num_episodes: jax.Array
    length_sum: jax.Array
    """Sum of the lengths of the episodes that ended."""


OPTIMIZER = optax.multi_transform(
    {
        name: optax.chain(optax.clip_by_global_norm(clip), optax.adam(LEARNING_RATE))
        for name, clip in CLIPS.items()
    },
    {name: name for name in CLIPS},
)


def init(key: jax.Array) -> State:
    """Return the state before the first step."""
    world_key, actor_key, critic_key, env_key, key = jax.random.split(key, 5)
    h, z = jnp.zeros((NUM_ENVS, UNITS)), jnp.zeros((NUM_ENVS, LATENTS * CLASSES))
    action, is_first = jnp.zeros(NUM_ENVS, jnp.int32), jnp.ones(NUM_ENVS, bool)
    env = jax.vmap(tasks.reset)(jax.random.split(env_key, NUM_ENVS))
    params = {
        "world": WORLD.init(world_key, env.physics, h, z, action),
        "actor": ACTOR.init(actor_key, join(h, z)),
        "critic": CRITIC.init(critic_key, join(h, z)),
    }
    shape = (NUM_ENVS, CAPACITY // NUM_ENVS)
    return State(
        params=params,
        slow=jax.tree.map(jnp.copy, params["critic"]),
        opt_state=OPTIMIZER.init(params),
        scale=jnp.zeros(()),
        acting=Acting(env, h, z, action, is_first),
        rows=Rows(
            obs=jnp.zeros((*shape, OBS_SIZE)),
            action=jnp.zeros(shape, jnp.int32),
            reward=jnp.zeros(shape),
            ended=jnp.zeros(shape, bool),
            is_first=jnp.zeros(shape, bool),
        ),
        num_rows=jnp.zeros((), jnp.int32),
        key=key,
    )


def train(state: State, num_iterations: int, num_updates: int) -> tuple[State, Metrics]:
    """Step all environments, then update, a number of times; metrics are `[num_iterations]`."""

    def iteration(state: State, _: None) -> tuple[State, Metrics]:
        key, act_key, update_key = jax.random.split(state.key, 3)
        state, metrics = act(state._replace(key=key), act_key)
        keys = jax.random.split(update_key, num_updates)
        return jax.lax.scan(lambda s, k: (update(s, k), None), state, keys)[0], metrics

    return jax.lax.scan(iteration, state, None, num_iterations)


def act(state: State, key: jax.Array) -> tuple[State, Metrics]:
    """Take one step of every environment, and store it."""
    params, acting = state.params, state.acting
    z_key, action_key, env_key = jax.random.split(key, 3)
    obs = acting.env.physics
    h = call_world(params, "advance", acting.h, acting.z, acting.action)
    h = jnp.where(acting.is_first[:, None], call_world(params, "begin"), h)
    posterior = call_world(params, "posterior", h, call_world(params, "encode", obs))
    z = draw_z(posterior, jax.random.uniform(z_key, (NUM_ENVS, LATENTS)))
    probs = jnp.exp(mix(apply_actor(params, join(h, z))))
    action = draw_class(probs, jax.random.uniform(action_key, (NUM_ENVS,)))
    env, reward, ended = jax.vmap(tasks.step)(
        jax.random.split(env_key, NUM_ENVS), acting.env, action
    )
    index = state.num_rows % (CAPACITY // NUM_ENVS)
    row = Rows(obs, action, reward, ended, acting.is_first)
    rows = jax.tree.map(lambda ring, x: ring.at[:, index].set(x), state.rows, row)
    state = state._replace(
        acting=Acting(env, h, z, action, ended), rows=rows, num_rows=state.num_rows + 1
    )
    length = jnp.sum(jnp.where(ended, acting.env.time + 1, 0))
    return state, Metrics(num_episodes=jnp.sum(ended), length_sum=length)


def update(state: State, key: jax.Array) -> State:
    """Take one step of all three optimizers."""
    batch_key, key = jax.random.split(key)
    batch = draw_sequences(state, batch_key)
    grads, scale = jax.grad(compute_loss, has_aux=True)(state.params, state, batch, key)
    updates, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
    params: Params = optax.apply_updates(state.params, updates)  # pyright: ignore
    slow = optax.incremental_update(params["critic"], state.slow, TAU)
    return state._replace(params=params, slow=slow, opt_state=opt_state, scale=scale)


def draw_sequences(state: State, key: jax.Array) -> Rows:
    """Draw sequences of successive rows of one environment each, `[LENGTH, NUM_SEQUENCES, ...]`."""
    env_key, start_key = jax.random.split(key)
    capacity = CAPACITY // NUM_ENVS
    size = jnp.minimum(state.num_rows, capacity)
    env = jax.random.randint(env_key, (NUM_SEQUENCES,), 0, NUM_ENVS)
    start = jax.random.randint(start_key, (NUM_SEQUENCES,), 0, size - LENGTH + 1)
    index = state.num_rows - size + start + jnp.arange(LENGTH)[:, None]
    return jax.tree.map(lambda ring: ring[env[None], index % capacity], state.rows)


def compute_loss(
    params: Params, state: State, batch: Rows, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute the sum of all losses, and the new scale of returns."""
    stop = jax.lax.stop_gradient
    z_key, start_key, key = jax.random.split(key, 3)
    uniform = jax.random.uniform(z_key, (LENGTH, NUM_SEQUENCES, LATENTS))
    h0 = jnp.broadcast_to(call_world(params, "begin"), (NUM_SEQUENCES, UNITS))

    def observe(h: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, Any]:
        encoded, action, is_first, uniform = row
        h = jnp.where(is_first[:, None], h0, h)
        posterior = call_world(params, "posterior", h, encoded)
        z = draw_z(posterior, uniform)
        next_h = call_world(params, "advance", h, z, action)
        return next_h, (h, z, posterior, next_h)

    encoded = call_world(params, "encode", batch.obs)
    _, (h, z, posterior, next_h) = jax.lax.scan(
        observe, h0, (encoded, batch.action, batch.is_first, uniform)
    )
    prior = call_world(params, "prior", h)
    decoded = call_world(params, "decode", join(h, z))
    reward_logits, continue_logit = call_world(params, "outcome", next_h)
    is_continued = 1.0 - batch.ended.astype(jnp.float32)
    world_loss = jnp.mean(
        jnp.sum(jnp.square(decoded - symlog(batch.obs)), axis=-1)
        + two_hot_loss(reward_logits, batch.reward)
        + optax.sigmoid_binary_cross_entropy(continue_logit, is_continued)
        + jnp.maximum(FREE_NATS, divergence(stop(posterior), prior))
        + 0.1 * jnp.maximum(FREE_NATS, divergence(posterior, stop(prior)))
    )
    starts = jax.random.permutation(start_key, LENGTH)[:NUM_STARTS]
    behavior_loss, scale = compute_behavior_loss(
        params,
        state,
        stop(h[starts]).reshape(-1, UNITS),
        stop(z[starts]).reshape(-1, LATENTS * CLASSES),
        key,
    )
    return world_loss + behavior_loss, scale


def compute_behavior_loss(
    params: Params, state: State, h: jax.Array, z: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Imagine trajectories, and compute the losses of actor and critic, and the new scale."""
    fixed = jax.lax.stop_gradient(params)
    uniform = jax.random.uniform(key, (HORIZON, h.shape[0], LATENTS + 1))

    def imagine(carry: tuple[jax.Array, jax.Array], uniform: jax.Array) -> Any:
        h, z = carry
        features = join(h, z)
        action = draw_class(jnp.exp(mix(apply_actor(fixed, features))), uniform[:, -1])
        h = call_world(fixed, "advance", h, z, action)
        z = draw_z(call_world(fixed, "prior", h), uniform[:, :-1])
        return (h, z), (features, action, h)

    (h, z), (features, action, next_h) = jax.lax.scan(imagine, (h, z), uniform)
    reward_logits, continue_logit = call_world(fixed, "outcome", next_h)
    reward, discount = two_hot_mean(reward_logits), GAMMA * jax.nn.sigmoid(continue_logit)

    all_features = jnp.concatenate([features, join(h, z)[None]])
    logits = apply_critic(params["critic"], all_features)
    value = jax.lax.stop_gradient(two_hot_mean(logits))

    def accumulate(later: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward, discount, value = row
        now = reward + discount * ((1.0 - LAMBDA) * value + LAMBDA * later)
        return now, now

    _, returns = jax.lax.scan(
        accumulate, value[-1], (reward, discount, value[1:]), reverse=True, unroll=HORIZON
    )
    low, high = jnp.percentile(returns, jnp.asarray([5.0, 95.0]))
    scale = SCALE_DECAY * state.scale + (1.0 - SCALE_DECAY) * (high - low)
    advantage = (returns - value[:-1]) / jnp.maximum(1.0, scale)
    weight = jnp.cumprod(discount, axis=0) / discount
    log_probs = jax.nn.log_softmax(mix(apply_actor(params, features)))
    log_prob = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    actor_loss = -jnp.mean(weight * (log_prob * advantage + ENTROPY_SCALE * entropy))
    slow = two_hot_mean(apply_critic(state.slow, features))
    critic_loss = jnp.mean(
        weight * (two_hot_loss(logits[:-1], returns) + two_hot_loss(logits[:-1], slow))
    )
    return actor_loss + critic_loss, scale


def apply_actor(params: Params, features: jax.Array) -> Any:
    return ACTOR.apply(params["actor"], features)


def apply_critic(critic: Any, features: jax.Array) -> Any:
    return CRITIC.apply(critic, features)
