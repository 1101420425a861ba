"""CQL (Kumar et al. 2020, https://arxiv.org/abs/2006.04779): SAC with conservative critics.

For recorded data: the critics' values of actions that the data do not have are pushed down, so that
errors there do not attract the policy. Names are RLlib's. The action space selects the form: a Box
takes drawn actions, weighted by their densities, and a Discrete space all legal ones. Deviations
from RLlib: the three learning rates are 3e-4 (there 1e-4, 1e-3 and 1e-3), and with `lagrangian` the
weight is learned (its new API stack has the setting alone). Deviations of SAC from RLlib apply.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.algorithms.sac import LOG_PROB, SACLearner, SoftActorCriticState
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import count, field, finite, fluent, non_negative, positive, step_count
from jaxrl.config.settings.actor_critic import TwinTraining
from jaxrl.core.hparams import Traced
from jaxrl.core.keys import draw_normal_rows, draw_rows
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, Transition
from jaxrl.distributions.base import SquashedGaussian, mask_logits
from jaxrl.distributions.from_space import make_action_distribution
from jaxrl.errors import ConfigError
from jaxrl.learners.actor_critic import LR_NAMES, combine_metrics
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, select
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops import value_losses
from jaxrl.ops.losses import masked_mean

LOG_ALPHA_PRIME = "log_alpha_prime"
CQL_LOSS = "cql_loss"
MAX_ALPHA_PRIME = 1e6
"""Largest weight of the penalty, that of the paper's code and of RLlib's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CQLTraining(TwinTraining):
    """Settings of Kumar et al. 2020; names and defaults are RLlib's."""

    # Actions that no row has would be valued by the moments of those that rows have.
    renorms_critics: ClassVar[bool] = False

    bc_iters: Traced[int] = field(
        default=20_000,
        is_counter=True,
        check=step_count,
        doc="Number of updates at the start in which the policy imitates the rows' actions.",
    )
    temperature: Traced[float] = field(
        default=1.0,
        check=positive,
        doc="Temperature of the penalty; towards 0 only the largest value is pushed down.",
    )
    num_actions: int = field(
        default=10,
        check=count,
        doc="In a Box: number of uniform actions, of actions of the policy at the observation, and "
        "of those at the next one, per row, whose values are pushed down. Unused in a Discrete space.",
    )
    min_q_weight: Traced[float] = field(
        default=5.0, check=non_negative, doc="Weight of the penalty."
    )
    lagrangian: bool = field(
        default=False,
        doc="Whether a factor of the penalty is learned, which grows while the penalty is above "
        "lagrangian_thresh; its learning rate is critic_lr.",
    )
    lagrangian_thresh: Traced[float] = field(
        default=5.0,
        check=finite,
        doc="Penalty, weighted by min_q_weight, that the factor of `lagrangian` aims at.",
    )
    deterministic_backup: bool = field(
        default=True, doc="Whether to leave the entropy out of the targets of the critics."
    )


@pytree
class ValuedActions:
    """Actions of a Box, `[m, N, ...]`, and the log of the densities that they were drawn with."""

    action: Float[Array, "m N ..."]
    log_density: Float[Array, "m N"]


@dataclasses.dataclass(frozen=True, eq=False)
class CQLLearner(SACLearner):
    """Critics whose values are lower bounds for actions outside of the data."""

    settings: CQLTraining
    lr_names: ClassVar[Mapping[str, str]] = {**LR_NAMES, LOG_ALPHA_PRIME: "critic_lr"}
    delayed_metrics: ClassVar[tuple[str, ...]] = (
        *SACLearner.delayed_metrics,
        "bc_logp_mean",
    )

    def init(self, key: Key) -> SoftActorCriticState:
        """Create SAC's state; with `lagrangian`, log α' is a part of the temperature."""
        number = self.settings.num_actions
        if self.module.is_discrete and number != CQLTraining().num_actions:
            raise ConfigError(
                f"num_actions={number} has no effect in {self.module.action_space}, where the values of "
                "all legal actions are pushed down: leave it out."
            )
        state = super().init(key)
        if not self.settings.lagrangian:
            return state
        values = self.settings.at(state.hparams, Progress.zeros())
        parts = {**state.temperature.params, LOG_ALPHA_PRIME: jnp.zeros((), jnp.float32)}
        return replace(state, temperature=self.init_parts(parts, values))

    def step_critics(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: CQLTraining,
        key: Key,
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets and against the penalty (eq. 4).

        The targets are SAC's, without the entropy if `deterministic_backup`.
        """
        target_key, draw_key = jax.random.split(key)
        drawn = None
        if not self.module.is_discrete:
            drawn = self.draw_valued_actions(state.sgd.params[POLICY], batch, draw_key)

        def penalize(critic: Params) -> tuple[Float[Array, ""], Metrics]:
            penalty = values.min_q_weight * self.compute_gaps(critic, batch, drawn, values)
            metrics = {CQL_LOSS: jnp.mean(penalty)}
            if self.settings.lagrangian:
                threshold = values.lagrangian_thresh
                factor = self.compute_factor(state.temperature.params[LOG_ALPHA_PRIME])
                penalty = factor * (penalty - threshold * jnp.mean(batch.weight))
            return jnp.sum(penalty), metrics

        weight = jnp.zeros_like(alpha) if self.settings.deterministic_backup else alpha
        return self.approach_targets(state, batch, weight, values, target_key, penalize)

    def draw_valued_actions(self, policy: Params, batch: Transition, key: Key) -> ValuedActions:
        """Draw uniform actions, and actions of the policy at s and at s'. Consumes the key."""
        uniform_key, here_key, next_key = jax.random.split(key, 3)
        here = self.module.policy_dist(policy, batch.obs)
        after = self.module.policy_dist(policy, batch.next_obs)
        assert isinstance(here, SquashedGaussian)
        assert isinstance(after, SquashedGaussian)
        num_actions, rows = self.settings.num_actions, here.mean.shape[0]
        shape = (rows, num_actions, *here.mean.shape[1:])
        box = make_action_distribution(self.module.action_space, continuous="uniform")
        uniform = box.from_inputs(jnp.zeros((*batch.reward.shape, box.input_dim), jnp.float32))
        unit = draw_rows(jax.random.uniform, uniform_key, shape, self.axis_name)
        actions = [jax.vmap(uniform.from_noise, in_axes=1)(unit)]
        log_densities = [jnp.repeat(-uniform.entropy()[None], num_actions, axis=0)]
        for dist, dist_key in ((here, here_key), (after, next_key)):
            noise = draw_normal_rows(dist_key, shape, self.axis_name)
            action, log_density = jax.vmap(dist.from_noise_and_log_prob, in_axes=1)(noise)
            actions.append(action)
            log_densities.append(log_density)
        return ValuedActions(
            action=jnp.concatenate(actions), log_density=jnp.concatenate(log_densities)
        )

    def compute_gaps(
        self,
        critic: Params,
        batch: Transition,
        drawn: ValuedActions | None,
        values: CQLTraining,
    ) -> Float[Array, " critics"]:
        """Compute E[w (τ log Σⱼ exp(Qₖ(s, aⱼ) / τ) − Qₖ(s, a))] of each critic k.

        The sum is over legal actions or, in a Box, over drawn ones with Qₖ − log p in place of Qₖ,
        as in the paper's code: log of the number of draws is not subtracted.

        Args:
            critic: Parameters of the critics, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`.
            drawn: Actions of a Box; None for discrete ones.
            values: Settings with the values of the moment.
        """
        if drawn is None:
            all_values = self.module.compute_q_values(critic, batch.obs)
            action = jnp.broadcast_to(batch.action[None], all_values.shape[:-1])
            value = value_losses.batched_index(all_values, action)
            mask = self.module.action_mask(batch.obs)
            all_values = mask_logits(all_values, None if mask is None else mask[None])
        else:
            value = self.module.compute_q_values(critic, batch.obs, batch.action)
            drawn_values = jax.vmap(
                lambda action: self.module.compute_q_values(critic, batch.obs, action)
            )(drawn.action)
            corrected = drawn_values - drawn.log_density[:, None]
            all_values = jnp.moveaxis(corrected, 0, -1)
        gap = value_losses.conservative_gap(all_values, value, values.temperature)
        return jnp.mean(batch.weight[None] * gap, axis=tuple(range(1, gap.ndim)))

    def step_policy(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: CQLTraining,
        progress: Progress,
        key: Key,
    ) -> tuple[SgdState, Metrics]:
        """Step the policy by the critics or, in the first updates, by the rows' actions."""
        critics = state.sgd.params[CRITIC]
        is_cloning = progress.updates.is_below(values.bc_iters)

        def loss(policy: Params) -> tuple[Float[Array, ""], Metrics]:
            soft_loss, metrics = self.actor_loss(policy, critics, batch, alpha, key)
            likelihood = self.module.policy_dist(policy, batch.obs).log_prob(batch.action)
            cloned = jnp.mean(batch.weight * (alpha * metrics[LOG_PROB] - likelihood))
            total = jnp.where(is_cloning, cloned, soft_loss)
            is_row = batch.weight > 0.0
            bc_logp = masked_mean(likelihood, is_row, self.axis_name)
            return total, {**metrics, "policy_loss": total, "bc_logp_mean": bc_logp}

        return self.step_part(POLICY, loss, state.sgd, values)

    def compute_factor(self, log_alpha_prime: Float[Array, ""]) -> Float[Array, ""]:
        """Compute α', the learned factor of the penalty."""
        return jnp.minimum(jnp.exp(log_alpha_prime), MAX_ALPHA_PRIME)

    def update(
        self, state: SoftActorCriticState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[SoftActorCriticState, Metrics]:
        """Take SAC's steps, then the step of α' up the mean over the critics of penalty − thresh.

        If anything is non-finite, nothing changes.
        """
        updated, metrics = super().update(state, batch, progress, key)
        if not self.settings.lagrangian:
            return updated, metrics
        values, penalty = self.settings.at(state.hparams, progress), metrics[CQL_LOSS]
        threshold = values.lagrangian_thresh

        def loss(log_alpha_prime: Float[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
            factor = self.compute_factor(log_alpha_prime)
            value = -factor * (penalty - threshold * jnp.mean(batch.weight))
            return value, {"alpha_prime_loss": value, "alpha_prime_value": factor}

        temperature, step = self.step_part(LOG_ALPHA_PRIME, loss, updated.temperature, values)
        metrics = combine_metrics(metrics, step)
        updated = replace(updated, temperature=temperature)
        return select(metrics[NUM_NONFINITE_UPDATES] < 0.5, updated, state), metrics


class CQLConfig(AlgorithmConfig):
    """Configuration of CQL."""

    algo_name = "CQL"
    requires_data = True
    training_settings: CQLTraining = CQLTraining(
        actor_lr=3e-4,
        critic_lr=3e-4,
        alpha_lr=3e-4,
        train_batch_size=256,
        tau=0.005,
        td_error_loss_fn="mse",
        replay_buffer_config={"type": "uniform", "capacity": 1_000_000},
    )
    training = fluent("training_settings", CQLTraining)

    def validate(self) -> None:
        super().validate()
        training, threshold = self.training_settings, type(self).training_settings.lagrangian_thresh
        if training.lagrangian_thresh != threshold and not training.lagrangian:
            raise ConfigError(
                f"lagrangian_thresh={training.lagrangian_thresh} has no effect with lagrangian=False, "
                "which learns no factor of the penalty: leave it out, or set lagrangian=True."
            )

    def get_default_learner_class(self) -> type[CQLLearner]:
        return CQLLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU_ACTIVATIONS)
