"""Soft actor-critic learning, shared by SAC and TQC: critics, policy and temperature in turn."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParams, build_hparams, current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.distributions.base import Categorical, SquashedGaussian
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import NUM_NONFINITE_UPDATES, SgdState, select
from jaxrl.learners.multi_optimizer import (
    CRITIC,
    LOG_ALPHA,
    LR_NAMES,
    POLICY,
    combine_metrics,
    draw_normal_rows,
    init_parts,
    step_one,
)
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.ops.losses import masked_mean

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import SoftActorCriticTraining

LOG_PROB = "log_prob"
DISCRETE_ENTROPY_FRACTION = 0.98
"""Fraction of the maximum entropy that 'auto' aims at.

Christodoulou 2019, appendix; RLlib uses the same.
"""


@pytree
class SoftActorCriticState:
    """Learner state; `temperature` is log α with its optimizer, `target` that of the critics."""

    sgd: SgdState
    temperature: SgdState
    target: TargetNetwork
    hparams: HParams


@dataclasses.dataclass(frozen=True, eq=False)
class SoftActorCritic(BaseLearner[SoftActorCriticState], abc.ABC):
    """Base of SAC's and TQC's learners, which define the critics' targets and value estimate."""

    module: StochasticPolicyModule
    settings: "SoftActorCriticTraining"

    lr_names: ClassVar[Mapping[str, str]] = LR_NAMES

    @abc.abstractmethod
    def reduce_critics(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        """Reduce the outputs of all critics to the value that the policy maximizes."""

    @abc.abstractmethod
    def compute_td_targets(
        self, state: SoftActorCriticState, batch: Transition, alpha: Float[Array, ""], key: Key
    ) -> Float[Array, " N *n"]:
        """Compute the targets of the critics; they carry no gradient. Consumes the key."""

    @abc.abstractmethod
    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N *n"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of the critics, and metrics with the `td_error` `[N]`."""

    def init(self, key: Key) -> SoftActorCriticState:
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = current_values(hparams, Progress.zeros())
        log_alpha = jnp.log(jnp.asarray(self.settings.initial_alpha, jnp.float32))
        return SoftActorCriticState(
            sgd=init_parts(self, params, values),
            temperature=init_parts(self, {LOG_ALPHA: log_alpha}, values),
            target=init_target(params[CRITIC]),
            hparams=hparams,
        )

    def update(
        self, state: SoftActorCriticState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[SoftActorCriticState, Metrics]:
        """Step the critics, then the policy by the new critics, then the temperature.

        If anything is non-finite, nothing changes.
        """
        critic_key, actor_key = jax.random.split(key)
        values = self.collect_values(state, progress)
        log_alpha = state.temperature.params[LOG_ALPHA]
        alpha = jnp.exp(log_alpha)
        sgd, critic = self.step_critics(state, batch, alpha, values, critic_key)
        critics = sgd.params[CRITIC]
        sgd, actor = self.step_policy(replace(state, sgd=sgd), batch, alpha, values, actor_key)
        log_prob = actor.pop(LOG_PROB)
        temperature, entropy = step_one(
            self,
            LOG_ALPHA,
            lambda log_alpha: self.alpha_loss(log_alpha, batch, log_prob),
            state.temperature,
            values,
        )
        metrics = combine_metrics(critic, actor, entropy)
        frequency = self.settings.target_network_update_freq
        target = update_target(state.target, critics, metrics, progress, values["tau"], frequency)
        updated = replace(state, sgd=sgd, temperature=temperature)
        state = select(metrics[NUM_NONFINITE_UPDATES] < 0.5, updated, state)
        return replace(state, target=target), {
            **metrics,
            "alpha_value": alpha,
            "log_alpha_value": log_alpha,
            "curr_actor_lr": values["actor_lr"],
            "curr_critic_lr": values["critic_lr"],
        }

    def collect_values(self, state: SoftActorCriticState, progress: Progress) -> dict[str, Any]:
        """Return the current hyperparameters by name, for the steps of an update."""
        return current_values(state.hparams, progress)

    def step_critics(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: dict[str, Any],
        key: Key,
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets. Consumes the key."""
        targets = self.compute_td_targets(state, batch, alpha, key)
        return step_one(
            self,
            CRITIC,
            lambda critic: self.critic_loss(critic, batch, targets),
            state.sgd,
            values,
        )

    def step_policy(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: dict[str, Any],
        key: Key,
    ) -> tuple[SgdState, Metrics]:
        """Step the policy by the critics of the state. Consumes the key.

        The metrics have the log-probability of each row as `LOG_PROB`.
        """
        critics = state.sgd.params[CRITIC]
        return step_one(
            self,
            POLICY,
            lambda policy: self.actor_loss(policy, critics, batch, alpha, key),
            state.sgd,
            values,
        )

    def compute_soft_value(
        self, policy: Params, critic: Params, obs: PyTree, alpha: Float[Array, ""], key: Key
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Compute E_a[Q(s, a) − α log π(a|s)] and E_a[log π(a|s)] of observations `[N, ...]`.

        The expectation is exact over discrete actions (Christodoulou 2019, eq. 10), and one
        reparameterized sample of continuous ones. Consumes the key.
        """
        if self.module.is_discrete:
            dist = self.module.policy_dist(policy, obs)
            assert isinstance(dist, Categorical)
            log_probs = dist.log_probs()
            probs = jnp.exp(log_probs)
            q = jnp.sum(
                probs * self.reduce_critics(self.module.compute_q_values(critic, obs)), axis=-1
            )
            log_prob = jnp.sum(probs * log_probs, axis=-1)
        else:
            action, log_prob = self.sample_action(policy, obs, key)
            q = self.reduce_critics(self.module.compute_q_values(critic, obs, action))
        return q - alpha * log_prob, log_prob

    def sample_action(
        self, policy: Params, obs: PyTree, key: Key
    ) -> tuple[Float[Array, "N ..."], Float[Array, " N"]]:
        """Sample a continuous action and its log density per observation. Consumes the key."""
        dist = self.module.policy_dist(policy, obs)
        assert isinstance(dist, SquashedGaussian)
        return dist.from_noise_and_log_prob(draw_normal_rows(key, dist.mean.shape, self.axis_name))

    def actor_loss(
        self,
        policy: Params,
        critic: Params,
        batch: Transition,
        alpha: Float[Array, ""],
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute E[w (α log π(a|s) − Q(s, a))], a ~ π(·|s)  (Haarnoja et al. 2018b, eq. 9).

        Args:
            policy: Policy parameters, which the gradient is taken for.
            critic: Parameters of all critics.
            batch: Minibatch, `[N, ...]`.
            alpha: Temperature.
            key: Key of the action samples. Consumed.
        """
        value, log_prob = self.compute_soft_value(policy, critic, batch.obs, alpha, key)
        loss = -jnp.mean(batch.weight * value)
        logps = masked_mean(log_prob, batch.weight > 0.0, self.axis_name)
        return loss, {"policy_loss": loss, "logps": logps, LOG_PROB: log_prob}

    def alpha_loss(
        self, log_alpha: Float[Array, ""], batch: Transition, log_prob: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −log α E[w (log π(a|s) + H̄)]: α falls while the entropy exceeds H̄.

        Haarnoja et al. 2018b, eq. 18, with log α for α as in their code and RLlib's.

        Args:
            log_alpha: Log temperature, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`.
            log_prob: Log-probability of the policy at each row.
        """
        target = self.compute_target_entropy(batch.obs, log_prob)
        loss = -log_alpha * jnp.mean(batch.weight * (log_prob + target))
        return loss, {"alpha_loss": loss, "target_entropy": jnp.mean(target)}

    def compute_target_entropy(
        self, obs: PyTree, log_prob: Float[Array, " N"]
    ) -> Float[Array, " N"]:
        """Compute the target entropy H̄ of each row."""
        setting = self.settings.target_entropy
        if setting != "auto":
            return jnp.full_like(log_prob, setting)
        if not self.module.is_discrete:
            return jnp.full_like(log_prob, -math.prod(self.module.distribution.event_shape))
        mask = self.module.action_mask(obs)
        if mask is None:
            num_actions = self.module.distribution.input_dim
            return jnp.full_like(log_prob, DISCRETE_ENTROPY_FRACTION * math.log(num_actions))
        num_legal = jnp.sum(mask.astype(jnp.float32), axis=-1)
        return DISCRETE_ENTROPY_FRACTION * jnp.log(jnp.maximum(num_legal, 1.0))
