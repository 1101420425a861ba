"""Fitted Q evaluation (Le, Voloshin & Yue 2019): the Q function of a policy from recorded data."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.config.settings.offline import FQESettings
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Params, PyTree
from jaxrl.modules.policy_and_critics import CRITIC, StochasticPolicyModule
from jaxrl.modules.rl_module import RLModule

_BLOCK_ROWS = 2**13


@pytree
class FQERows:
    """N transitions of episodes, whose M observations include those after the ends.

    Attributes:
        obs: Observations, `[M, ...]`.
        target: Probabilities `[M, n]`, or actions `[M, K, ...]`, of the target policy.
        index: Observation of each transition; its successor is the next one.
        action: Recorded actions.
        reward: Rewards.
        terminated: Whether the episode was terminated.
    """

    obs: PyTree
    target: Float[Array, "M ..."]
    index: Int[Array, " N"]
    action: PyTree
    reward: Float[Array, " N"]
    terminated: Bool[Array, " N"]


@pytree
class _Fit:
    critic: Params
    target: Params
    optimizer: Any


class FittedQ:
    """Q function of the target policy.

    Its network is that of SAC's critic, with the default model settings.

    Args:
        module: Module of the target policy, for its spaces.
        settings: Settings of the fits.
    """

    def __init__(self, module: RLModule, settings: FQESettings) -> None:
        space = module.action_space
        if isinstance(space, spaces.Box):  # the values of the bounds matter to a policy alone
            space = spaces.Box(-1.0, 1.0, space.shape, np.float32)
        self.module = StochasticPolicyModule(
            observation_space=module.observation_space,
            action_space=space,
            algorithm_config={"num_critics": 1},
        )
        self._settings = settings
        self._optimizer = optax.adam(settings.lr)
        self._fit = jax.jit(self._run)
        self._evaluate = jax.jit(self._compute_block)

    def fit(self, rows: FQERows, chosen: Int[np.ndarray, " k"], gamma: float, key: Key) -> Params:
        """Fit the critic to some of the transitions.

        Args:
            rows: All transitions; rewards are scaled by the caller.
            chosen: Indices of the transitions to learn from.
            gamma: Discount factor.
            key: Key, which is consumed.
        """
        padded = np.zeros(len(rows.reward), np.int32)
        padded[: len(chosen)] = chosen
        return self._fit(rows, padded, np.int32(len(chosen)), np.float32(gamma), key)

    def compute(
        self, critic: Params, rows: FQERows
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " M"]]:
        """Compute Q of the transitions, and V of the observations for the target policy."""
        number = len(rows.target)
        q_value, value = np.zeros(len(rows.reward)), np.zeros(number)
        index = np.asarray(rows.index)
        # Each observation that was acted on has its action; the others take any.
        owner = np.zeros(number, np.int32)
        owner[index] = np.arange(len(index))
        for first in range(0, number, _BLOCK_ROWS):
            block = np.minimum(np.arange(first, first + _BLOCK_ROWS), number - 1).astype(np.int32)
            q, v = jax.device_get(self._evaluate(critic, rows, block, owner[block]))
            size = min(_BLOCK_ROWS, number - first)
            value[first : first + size] = v[:size]
            at = np.flatnonzero((index >= first) & (index < first + size))
            q_value[at] = q[index[at] - first]
        return q_value, value

    def _run(
        self,
        rows: FQERows,
        chosen: Int[Array, " N"],
        num_chosen: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> Params:
        init_key, run_key = jax.random.split(key)
        critic = self.module.init(init_key)[CRITIC]
        start = _Fit(critic=critic, target=critic, optimizer=self._optimizer.init(critic))

        def update(i: Int[Array, ""], fit: _Fit) -> _Fit:
            drawn = jax.random.randint(
                jax.random.fold_in(run_key, i),
                (self._settings.batch_size,),
                0,
                num_chosen,
                jnp.int32,
            )
            at = chosen[drawn]
            after = rows.index[at] + 1
            value = self._compute_values(fit.target, rows, after)
            goal = rows.reward[at] + gamma * jnp.where(rows.terminated[at], 0.0, value)

            def loss(critic: Params) -> Float[Array, ""]:
                return jnp.mean((self._compute_q(critic, rows, rows.index[at], at) - goal) ** 2)

            grads = jax.grad(loss)(fit.critic)
            updates, optimizer = self._optimizer.update(grads, fit.optimizer)
            critic = cast(Params, optax.apply_updates(fit.critic, updates))
            target = optax.incremental_update(critic, fit.target, self._settings.tau)
            return _Fit(critic=critic, target=cast(Params, target), optimizer=optimizer)

        return jax.lax.fori_loop(0, self._settings.num_updates, update, start).critic

    def _compute_block(
        self, critic: Params, rows: FQERows, block: Int[Array, " n"], owner: Int[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return self._compute_q(critic, rows, block, owner), self._compute_values(
            critic, rows, block
        )

    def _compute_q(
        self, critic: Params, rows: FQERows, index: Int[Array, " n"], at: Int[Array, " n"]
    ) -> Float[Array, " n"]:
        """Compute Q of recorded actions: observation `index`, transition `at`."""
        obs = jax.tree.map(lambda x: x[index], rows.obs)
        action = rows.action[at]
        if not self.module.is_discrete:
            return self.module.compute_first_q_values(critic, obs, action)
        q_values = self.module.compute_first_q_values(critic, obs)
        return jnp.take_along_axis(q_values, action[:, None].astype(jnp.int32), axis=1)[:, 0]

    def _compute_values(
        self, critic: Params, rows: FQERows, index: Int[Array, " n"]
    ) -> Float[Array, " n"]:
        """Compute V for the target policy: the mean of Q over its actions."""
        obs = jax.tree.map(lambda x: x[index], rows.obs)
        target = rows.target[index]
        if self.module.is_discrete:
            return jnp.sum(target * self.module.compute_first_q_values(critic, obs), axis=-1)
        compute = partial(self.module.compute_first_q_values, critic, obs)
        return jnp.mean(jax.vmap(compute, in_axes=1)(target), axis=0)


def scale_rewards(rows: FQERows, scale: float) -> FQERows:
    """Return the rows with rewards divided by a scale."""
    return replace(rows, reward=np.asarray(rows.reward / scale, np.float32))
