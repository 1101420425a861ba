"""Soft actor-critic learning: critics, policy and temperature, one after another (SAC and TQC)."""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParams, current_values, hyperparameters
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.distributions.base import Categorical, SquashedGaussian
from jaxrl.learners.learner import NONFINITE, SgdState, select
from jaxrl.learners.multi_optimizer import (
    CRITIC,
    LOG_ALPHA,
    POLICY,
    first_parts,
    joined,
    normal_rows,
    step_part,
)
from jaxrl.learners.target_network import Target, first_target, followed
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.ops.losses import masked_mean

LOG_PROB = "log_prob"
DISCRETE_ENTROPY = 0.98
"""Share of the largest entropy that 'auto' aims at (Christodoulou 2019, appendix; RLlib's too)."""


@pytree
class SoftState:
    """What is learned; `temperature` is log α with its optimiser, `target` that of the critics."""

    sgd: SgdState
    temperature: SgdState
    target: Target
    hparams: HParams


@dataclasses.dataclass(frozen=True, eq=False)
class SoftActorCritic(abc.ABC):
    """The base of SAC's and TQC's learners, which say what critics learn and are trusted with."""

    module: StochasticPolicyModule
    settings: Any
    axis_name: str | None = None
    log_gradients: bool = False

    @abc.abstractmethod
    def estimate(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        """The value that the policy is improved by, of the output of all critics."""

    @abc.abstractmethod
    def targets(
        self, state: SoftState, batch: Transition, alpha: Float[Array, ""], key: Key
    ) -> Float[Array, " N *n"]:
        """What the critics learn; no gradient is taken. Consumes the key."""

    @abc.abstractmethod
    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N *n"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """The mean loss of the critics, and metrics with the `td_error` `[N]`."""

    def init(self, key: Key) -> SoftState:
        params, hparams = self.module.init(key), hyperparameters(self.settings)
        values = current_values(hparams, Progress.zero())
        log_alpha = jnp.log(jnp.asarray(self.settings.initial_alpha, jnp.float32))
        return SoftState(
            sgd=first_parts(params, self.settings, values),
            temperature=first_parts({LOG_ALPHA: log_alpha}, self.settings, values),
            target=first_target(params[CRITIC]),
            hparams=hparams,
        )

    def update(
        self, state: SoftState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[SoftState, Metrics]:
        """Critics, then the policy by the new critics, then the temperature by the policy's entropy.

        If anything is non-finite, nothing changes.
        """
        target_key, actor_key = jax.random.split(key)
        values = current_values(state.hparams, progress)
        log_alpha = state.temperature.params[LOG_ALPHA]
        alpha = jnp.exp(log_alpha)
        targets = self.targets(state, batch, alpha, target_key)
        sgd, critic = step_part(
            self,
            CRITIC,
            lambda critic: self.critic_loss(critic, batch, targets),
            state.sgd,
            values,
        )
        critics = sgd.params[CRITIC]
        sgd, actor = step_part(
            self,
            POLICY,
            lambda policy: self.actor_loss(policy, critics, batch, alpha, actor_key),
            sgd,
            values,
        )
        log_prob = actor.pop(LOG_PROB)
        temperature, entropy = step_part(
            self,
            LOG_ALPHA,
            lambda log_alpha: self.alpha_loss(log_alpha, batch, log_prob),
            state.temperature,
            values,
        )
        metrics = joined(critic, actor, entropy)
        frequency = self.settings.target_network_update_freq
        target = followed(state.target, critics, metrics, progress, values["tau"], frequency)
        learned = replace(state, sgd=sgd, temperature=temperature)
        state = select(metrics[NONFINITE] < 0.5, learned, state)
        return replace(state, target=target), {
            **metrics,
            "alpha_value": alpha,
            "log_alpha_value": log_alpha,
            "curr_actor_lr": values["actor_lr"],
            "curr_critic_lr": values["critic_lr"],
        }

    def soft_value(
        self, policy: Params, critic: Params, obs: PyTree, alpha: Float[Array, ""], key: Key
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """E_a[Q(s, a) − α log π(a|s)] and E_a[log π(a|s)] of observations `[N, ...]`.

        The expectation is exact over discrete actions (Christodoulou 2019, eq. 10), and one
        reparametrised sample of continuous ones. Consumes the key.
        """
        if self.module.is_discrete:
            dist = self.module.policy_dist(policy, obs)
            assert isinstance(dist, Categorical)
            log_probs = dist.log_probs()
            probs = jnp.exp(log_probs)
            q = jnp.sum(probs * self.estimate(self.module.q_values(critic, obs)), axis=-1)
            log_prob = jnp.sum(probs * log_probs, axis=-1)
        else:
            action, log_prob = self.sample(policy, obs, key)
            q = self.estimate(self.module.q_values(critic, obs, action))
        return q - alpha * log_prob, log_prob

    def sample(
        self, policy: Params, obs: PyTree, key: Key
    ) -> tuple[Float[Array, "N ..."], Float[Array, " N"]]:
        """A continuous action for each observation, and its log density. Consumes the key."""
        dist = self.module.policy_dist(policy, obs)
        assert isinstance(dist, SquashedGaussian)
        return dist.pick_and_log_prob(normal_rows(key, dist.mean.shape, self.axis_name))

    def actor_loss(
        self,
        policy: Params,
        critic: Params,
        batch: Transition,
        alpha: Float[Array, ""],
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """E[w (α log π(a|s) − Q(s, a))], a ~ π(·|s)  (Haarnoja et al. 2018b, eq. 9).

        Args:
            policy: What the gradient is taken for.
            critic: Of all critics.
            batch: `[N, ...]`.
            alpha: The temperature.
            key: Consumed.
        """
        value, log_prob = self.soft_value(policy, critic, batch.obs, alpha, key)
        loss = -jnp.mean(batch.weight * value)
        logps = masked_mean(log_prob, batch.weight > 0.0, self.axis_name)
        return loss, {"policy_loss": loss, "logps": logps, LOG_PROB: log_prob}

    def alpha_loss(
        self, log_alpha: Float[Array, ""], batch: Transition, log_prob: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """−log α E[w (log π(a|s) + H̄)]: α falls while there is more entropy than H̄.

        Haarnoja et al. 2018b, eq. 18, with log α for α as in their code and RLlib's.

        Args:
            log_alpha: What the gradient is taken for.
            batch: `[N, ...]`.
            log_prob: Of the policy at each row.
        """
        target = self.target_entropy(batch.obs, log_prob)
        loss = -log_alpha * jnp.mean(batch.weight * (log_prob + target))
        return loss, {"alpha_loss": loss, "target_entropy": jnp.mean(target)}

    def target_entropy(self, obs: PyTree, log_prob: Float[Array, " N"]) -> Float[Array, " N"]:
        """H̄ of each row."""
        setting = self.settings.target_entropy
        if setting != "auto":
            return jnp.full_like(log_prob, setting)
        if not self.module.is_discrete:
            return jnp.full_like(log_prob, -math.prod(self.module.distribution.event_shape))
        mask = self.module.action_mask(obs)
        if mask is None:
            number = self.module.distribution.input_dim
            return jnp.full_like(log_prob, DISCRETE_ENTROPY * math.log(number))
        legal = jnp.sum(mask.astype(jnp.float32), axis=-1)
        return DISCRETE_ENTROPY * jnp.log(jnp.maximum(legal, 1.0))
