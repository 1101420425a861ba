"""VDN and QMIX without memory on JaxMARL's environments.

VDN computes what JaxMARL's script for its particle tasks does
(https://github.com/FLAIROx/JaxMARL/blob/main/baselines/QLearning/vdn_ff.py), with its hyperparameters, its wrapper
that batches environments, and flashbax's buffer; without the greedy evaluations during training. Its QMIX
(`qmix_rnn.py` beside it) has a memory; here, its mixing network takes the place of the sum.
"""

from __future__ import annotations

from typing import Any

import flashbax as fbx  # pyright: ignore[reportMissingImports]
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.settings import TeamQ

MAX_GRAD_NORM = 25.0


class Network(nn.Module):
    """Action values of one agent, whose observation ends with its one-hot id."""

    num_actions: int
    hidden_size: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return nn.Dense(self.num_actions)(nn.relu(nn.Dense(self.hidden_size)(obs)))


class Weights(nn.Module):
    """Hypernetwork with one hidden layer."""

    hidden_size: int
    num_outputs: int

    @nn.compact
    def __call__(self, state: jax.Array) -> jax.Array:
        return make_dense(self.num_outputs)(nn.relu(make_dense(self.hidden_size)(state)))


class Mixer(nn.Module):
    """Mixing network of QMIX: from the members' values `[agents, N]` to the team's, `[N]`."""

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        size, width = values.shape[0], TeamQ.mixing_embed_dim
        first = jnp.abs(Weights(TeamQ.hypernet_embed, width * size)(state)).reshape(-1, size, width)
        second = jnp.abs(Weights(TeamQ.hypernet_embed, width)(state))
        hidden = nn.elu(jnp.einsum("an,naw->nw", values, first) + make_dense(width)(state))
        return (hidden * second).sum(-1) + Weights(width, 1)(state)[:, 0]


def make_dense(size: int) -> nn.Dense:
    """Make a layer of the mixing network, with its small initial weights."""
    return nn.Dense(size, kernel_init=nn.initializers.orthogonal(0.001))


class TeamTraining:
    """Training of a team.

    Args:
        env: JaxMARL's environment.
        num_envs: Number of copies.
        num_updates: Updates of a call of `train`.
        mixes: Whether QMIX's network mixes the members' values, which VDN adds.
    """

    def __init__(self, env: Any, num_envs: int, num_updates: int, *, mixes: bool) -> None:
        from jaxmarl.wrappers.baselines import CTRolloutManager  # pyright: ignore

        self.num_envs, self.num_updates, self.mixes = num_envs, num_updates, mixes
        self.agents = env.agents
        self.manager: Any = CTRolloutManager(env, batch_size=num_envs)
        self.network = Network(int(self.manager.max_action_space), TeamQ.hidden_size)
        self.mixer = Mixer()
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(MAX_GRAD_NORM), optax.radam(TeamQ.learning_rate)
        )
        self.buffer: Any = fbx.make_flat_buffer(
            max_length=TeamQ.capacity,
            min_length=TeamQ.batch_size,
            sample_batch_size=TeamQ.batch_size,
            add_sequences=False,
            add_batch_size=num_envs * TeamQ.num_steps,
        )

    def init(self, key: jax.Array) -> Any:
        """Make the state of a run."""
        params_key, reset_key, step_key, key = jax.random.split(key, 4)
        obs, state = self.manager.batch_reset(reset_key)
        agents_key, mixer_key = jax.random.split(params_key)
        params = {"agents": self.network.init(agents_key, jnp.zeros((1, self.manager.obs_size)))}
        if self.mixes:
            nothing = jnp.zeros((len(self.agents), self.num_envs))
            params["mixer"] = self.mixer.init(mixer_key, nothing, obs["__all__"])
        _, rows = self._step((params, obs, state, 1.0, step_key), None)
        stored = self.buffer.init(jax.tree.map(lambda x: x[0], rows))
        target, opt_state = jax.tree.map(jnp.copy, params), self.optimizer.init(params)
        return params, target, opt_state, stored, obs, state, jnp.zeros((), jnp.int32), key

    def train(self, carry: Any) -> Any:
        """Return the state after the updates, and the mean reward of the steps of each."""
        return jax.lax.scan(self._update, carry, None, length=self.num_updates)

    def _values(self, params: Any, obs: dict[str, jax.Array]) -> Any:
        return jax.vmap(self.network.apply, in_axes=(None, 0))(params["agents"], self._batch(obs))

    def _join(self, params: Any, values: jax.Array, obs: dict[str, jax.Array]) -> Any:
        if not self.mixes:
            return values.sum(0)
        return self.mixer.apply(params["mixer"], values, obs["__all__"])

    def _batch(self, values: dict[str, jax.Array]) -> jax.Array:
        return jnp.stack([values[agent] for agent in self.agents])

    def _step(self, carry: Any, _: None) -> Any:
        params, obs, state, epsilon, key = carry
        key, action_key, explore_key, step_key = jax.random.split(key, 4)
        greedy = jnp.argmax(self._values(params, obs), -1)
        random = jax.random.randint(action_key, greedy.shape, 0, self.manager.max_action_space)
        explores = jax.random.uniform(explore_key, greedy.shape) < epsilon
        chosen = jnp.where(explores, random, greedy)
        actions = {agent: chosen[index] for index, agent in enumerate(self.agents)}
        new_obs, state, reward, done, _ = self.manager.batch_step(step_key, state, actions)
        ends = {"reward": reward["__all__"], "done": done["__all__"]}
        return (params, new_obs, state, epsilon, key), {"obs": obs, "actions": actions, **ends}

    def _compute_loss(self, params: Any, target: Any, first: Any, second: Any) -> jax.Array:
        actions = self._batch(first["actions"])[..., None]
        chosen = jnp.take_along_axis(self._values(params, first["obs"]), actions, -1)[..., 0]
        following = self._values(target, second["obs"]).max(-1)
        best = self._join(target, following, second["obs"])
        goal = first["reward"] + (1 - first["done"]) * TeamQ.gamma * best
        return jnp.mean((self._join(params, chosen, first["obs"]) - goal) ** 2)

    def _update(self, carry: Any, _: None) -> Any:
        params, target, opt_state, stored, obs, state, count, key = carry
        key, walk_key, sample_key = jax.random.split(key, 3)
        epsilon = jnp.interp(count, jnp.array([0.0, TeamQ.epsilon_updates]), jnp.array([1.0, 0.05]))
        walk = (params, obs, state, epsilon, walk_key)
        end, rows = jax.lax.scan(self._step, walk, None, length=TeamQ.num_steps)
        obs, state = end[1], end[2]
        stored = self.buffer.add(stored, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows))
        drawn = self.buffer.sample(stored, sample_key).experience
        starts = count * self.num_envs * TeamQ.num_steps > TeamQ.learning_starts

        def learn(carry: Any) -> Any:
            params, opt_state = carry
            grads = jax.grad(self._compute_loss)(params, target, drawn.first, drawn.second)
            updates, opt_state = self.optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        params, opt_state = jax.lax.cond(starts, learn, lambda x: x, (params, opt_state))
        copies = count % TeamQ.target_updates == 0
        target = jax.tree.map(lambda new, old: jnp.where(copies, new, old), params, target)
        carry = (params, target, opt_state, stored, obs, state, count + 1, key)
        return carry, rows["reward"].mean()
