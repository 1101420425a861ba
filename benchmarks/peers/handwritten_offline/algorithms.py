"""TD3+BC, IQL and CQL in one file, as a researcher would write them with jax and optax.

All rows are on the device, and a program is `jit` of `lax.scan` over updates, each of which draws its
rows with replacement. Sources: Fujimoto & Gu 2021 (https://arxiv.org/abs/2106.06860), Fujimoto et al.
2018 (https://arxiv.org/abs/1802.09477), Kostrikov et al. 2021 (https://arxiv.org/abs/2110.06169) and
Kumar et al. 2020 (https://arxiv.org/abs/2006.04779). Actions are in [-1, 1].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.settings import OfflineSetting

POLICY_DELAY, POLICY_NOISE, NOISE_CLIP, BC_COEFF = 2, 0.2, 0.5, 2.5
"""TD3+BC: critic updates per policy update, smoothing of target actions, and the paper's alpha."""
EXPECTILE, BETA, MAX_WEIGHT = 0.8, 3.0, 100.0
"""IQL: expectile, scale of the advantages, and largest weight."""
NUM_ACTIONS, PENALTY_WEIGHT = 10, 5.0
"""CQL: actions of each of three kinds per row, and weight of the penalty."""

Params = Any


class Rows(NamedTuple):
    """Recorded transitions; `discount` is gamma, or 0 after a termination."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    discount: jax.Array


class State(NamedTuple):
    """Parameters, slow copies of them, moments of the optimizer, key, and number of updates."""

    params: dict[str, Params]
    target: dict[str, Params]
    moments: dict[str, optax.OptState]
    key: jax.Array
    step: jax.Array


Update = Callable[[State, Rows], State]


def load(path: str, gamma: float) -> Rows:
    """Load D4RL's columns, without rows after which an episode was cut: its successor is another's."""
    arrays = np.load(path)
    ended = arrays["terminals"] | arrays["timeouts"]
    kept = ~arrays["timeouts"] & (np.arange(ended.size) < ended.size - 1)
    rows = Rows(
        obs=arrays["observations"][kept],
        action=arrays["actions"][kept],
        reward=arrays["rewards"][kept],
        next_obs=np.roll(arrays["observations"], -1, axis=0)[kept],
        discount=(gamma * (1.0 - arrays["terminals"])).astype(np.float32)[kept],
    )
    return jax.tree.map(jnp.asarray, rows)


def init_mlp(key: jax.Array, sizes: tuple[int, ...]) -> Params:
    layers: list[tuple[jax.Array, jax.Array]] = []
    for number, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights = jax.nn.initializers.lecun_normal()(
            jax.random.fold_in(key, number), (rows, columns)
        )
        layers.append((weights, jnp.zeros(columns)))
    return layers


def apply_mlp(layers: Params, x: jax.Array) -> jax.Array:
    for weights, bias in layers[:-1]:
        x = jax.nn.relu(x @ weights + bias[None])
    weights, bias = layers[-1]
    return x @ weights + bias[None]


def apply_critics(critics: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Return the values `[2, N]` of both critics."""
    x = jnp.concatenate([obs, action], axis=-1)
    return jax.vmap(lambda critic: apply_mlp(critic, x)[:, 0])(critics)


def act(policy: Params, obs: jax.Array) -> jax.Array:
    """Return the action of the mean; CQL's network also has the scales, after the means."""
    mean = apply_mlp(policy["net"], obs)
    return jnp.tanh(mean if "log_std" in policy else jnp.split(mean, 2, axis=-1)[0])


def draw(policy: Params, obs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Turn normal noise `[m, N, A]` into actions of CQL's policy, with log-densities `[m, N]`."""
    mean, log_std = jnp.split(apply_mlp(policy["net"], obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -20.0, 2.0)
    unsquashed = mean[None] + jnp.exp(log_std)[None] * noise
    slope = 2.0 * (jnp.log(2.0) - unsquashed - jax.nn.softplus(-2.0 * unsquashed))
    density = jax.scipy.stats.norm.logpdf(noise) - log_std[None] - slope
    return jnp.tanh(unsquashed), density.sum(axis=-1)


class Learner:
    """Algorithm of a setting.

    Args:
        setting: Setting, with the algorithm "TD3+BC", "IQL" or "CQL".
        obs_size: Numbers of an observation.
        action_size: Numbers of an action.
    """

    def __init__(self, setting: OfflineSetting, obs_size: int, action_size: int) -> None:
        self.setting, self.sizes = setting, (obs_size, action_size)
        self.optimizer = optax.adam(setting.lr)
        self.update: Update = {
            "TD3+BC": self._update_td3_bc,
            "IQL": self._update_iql,
            "CQL": self._update_cql,
        }[setting.algorithm]

    def init(self, key: jax.Array) -> State:
        hidden = (self.setting.hidden_size,) * 2
        obs_size, action_size = self.sizes
        policy, critics, value, run = jax.random.split(key, 4)
        params: dict[str, Params] = {
            "policy": {
                "net": init_mlp(policy, (obs_size, *hidden, action_size)),
                "log_std": jnp.zeros(action_size),
            },
            "critics": jax.vmap(lambda k: init_mlp(k, (obs_size + action_size, *hidden, 1)))(
                jax.random.split(critics)
            ),
        }
        if self.setting.algorithm == "IQL":
            params["value"] = init_mlp(value, (obs_size, *hidden, 1))
        if self.setting.algorithm == "CQL":
            params["policy"] = {"net": init_mlp(policy, (obs_size, *hidden, 2 * action_size))}
            params["log_alpha"] = jnp.zeros(())
        moments = {name: self.optimizer.init(part) for name, part in params.items()}
        target = {name: jax.tree.map(jnp.copy, params[name]) for name in ("policy", "critics")}
        return State(params, target, moments, run, jnp.zeros((), jnp.int32))

    def train(self, state: State, rows: Rows) -> State:
        """Make `num_updates` updates."""

        def one(state: State, _: None) -> tuple[State, None]:
            key, draw = jax.random.split(state.key)
            number = rows.reward.shape[0]
            index = jax.random.randint(draw, (self.setting.batch_size,), 0, number)
            batch = jax.tree.map(lambda x: x[index], rows)
            state = self.update(state._replace(key=key), batch)
            return state._replace(step=state.step + 1), None

        return jax.lax.scan(one, state, None, length=self.setting.num_updates)[0]

    def _step(self, state: State, name: str, loss: Callable[[Params], jax.Array]) -> State:
        """Take a step of one part of the parameters."""
        gradient = jax.grad(loss)(state.params[name])
        change, moments = self.optimizer.update(gradient, state.moments[name])
        part = optax.apply_updates(state.params[name], change)
        return state._replace(
            params=state.params | {name: part}, moments=state.moments | {name: moments}
        )

    def _follow(self, state: State, *names: str) -> State:
        """Move the slow copies of parts towards them."""
        moved = {
            name: optax.incremental_update(state.params[name], state.target[name], self.setting.tau)
            for name in names
        }
        return state._replace(target=state.target | moved)

    def _update_td3_bc(self, state: State, batch: Rows) -> State:
        noise_key = jax.random.fold_in(state.key, 1)
        noise = POLICY_NOISE * jax.random.normal(noise_key, batch.action.shape)
        noise = jnp.clip(noise, -NOISE_CLIP, NOISE_CLIP)
        next_action = jnp.clip(act(state.target["policy"], batch.next_obs) + noise, -1.0, 1.0)
        next_values = apply_critics(state.target["critics"], batch.next_obs, next_action)
        targets = batch.reward + batch.discount * next_values.min(axis=0)

        def critic_loss(critics: Params) -> jax.Array:
            values = apply_critics(critics, batch.obs, batch.action)
            return jnp.square(values - targets[None]).mean(axis=-1).sum()

        def policy_loss(policy: Params) -> jax.Array:
            action = act(policy, batch.obs)
            values = apply_critics(state.params["critics"], batch.obs, action)[0]
            scale = BC_COEFF / jnp.abs(jax.lax.stop_gradient(values)).mean()
            return jnp.square(action - batch.action).mean() - scale * values.mean()

        state = self._step(state, "critics", critic_loss)
        return jax.lax.cond(
            state.step % POLICY_DELAY == 0,
            lambda state: self._follow(
                self._step(state, "policy", policy_loss), "policy", "critics"
            ),
            lambda state: state,
            state,
        )

    def _update_iql(self, state: State, batch: Rows) -> State:
        best = apply_critics(state.target["critics"], batch.obs, batch.action).min(axis=0)

        def value_loss(value: Params) -> jax.Array:
            advantage = best - apply_mlp(value, batch.obs)[:, 0]
            weight = jnp.abs(EXPECTILE - (advantage < 0.0))
            return (weight * jnp.square(advantage)).mean()

        state = self._step(state, "value", value_loss)
        value = state.params["value"]
        advantage = best - apply_mlp(value, batch.obs)[:, 0]
        weight = jnp.minimum(jnp.exp(BETA * advantage), MAX_WEIGHT)

        def policy_loss(policy: Params) -> jax.Array:
            std = jnp.exp(jnp.clip(policy["log_std"], -5.0, 2.0))[None]
            log_prob = jax.scipy.stats.norm.logpdf(batch.action, act(policy, batch.obs), std).sum(
                axis=-1
            )
            return -(weight * log_prob).mean()

        targets = batch.reward + batch.discount * apply_mlp(value, batch.next_obs)[:, 0]

        def critic_loss(critics: Params) -> jax.Array:
            values = apply_critics(critics, batch.obs, batch.action)
            return jnp.square(values - targets[None]).mean(axis=-1).sum()

        state = self._step(state, "policy", policy_loss)
        return self._follow(self._step(state, "critics", critic_loss), "critics")

    def _update_cql(self, state: State, batch: Rows) -> State:
        noise_key, draw_key = jax.random.split(jax.random.fold_in(state.key, 1))
        here, after = jax.random.normal(noise_key, (2, 1, *batch.action.shape))
        before = state.params["policy"]
        surplus = draw(before, batch.obs, here)[1].mean() - self.sizes[1]
        state = self._step(state, "log_alpha", lambda log_alpha: -log_alpha * surplus)
        alpha = jnp.exp(state.params["log_alpha"])

        def policy_loss(policy: Params) -> jax.Array:
            action, log_density = draw(policy, batch.obs, here)
            values = apply_critics(state.params["critics"], batch.obs, action[0]).min(axis=0)
            return (alpha * log_density[0] - values).mean()

        next_action = draw(before, batch.next_obs, after)[0][0]
        next_values = apply_critics(state.target["critics"], batch.next_obs, next_action)
        targets = batch.reward + batch.discount * next_values.min(axis=0)
        drawn, drawn_density = self._draw_three_kinds(before, batch, draw_key)

        def critic_loss(critics: Params) -> jax.Array:
            values = apply_critics(critics, batch.obs, batch.action)
            others = jax.vmap(lambda action: apply_critics(critics, batch.obs, action))(drawn)
            pushed_down = jax.nn.logsumexp(others - drawn_density[:, None], axis=0)
            penalty = PENALTY_WEIGHT * (pushed_down - values)
            return (jnp.square(values - targets[None]) + penalty).mean(axis=-1).sum()

        stepped = self._step(state, "policy", policy_loss)
        return self._follow(self._step(stepped, "critics", critic_loss), "critics")

    def _draw_three_kinds(
        self, policy: Params, batch: Rows, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draw uniform actions, and the policy's at the observations and at the next ones."""
        uniform_key, noise_key = jax.random.split(key)
        shape = (NUM_ACTIONS, *batch.action.shape)
        uniform = jax.random.uniform(uniform_key, shape, minval=-1.0, maxval=1.0)
        noise = jax.random.normal(noise_key, (2, *shape))
        here, here_density = draw(policy, batch.obs, noise[0])
        after, after_density = draw(policy, batch.next_obs, noise[1])
        density = jnp.full(shape[:2], -self.sizes[1] * jnp.log(2.0))
        return (
            jnp.concatenate([uniform, here, after]),
            jnp.concatenate([density, here_density, after_density]),
        )
