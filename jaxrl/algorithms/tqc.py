"""TQC (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269): SAC with truncated quantiles.

Names and defaults are RLlib's. Deviations from RLlib are SAC's, and the critics' loss is the paper's
mean over pairs of quantiles (there a sum: with Adam, only grad_clip tells them apart).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import at_least_one, field, fluent, non_negative
from jaxrl.config.settings.actor_critic import BUFFER_OF_A_MILLION, SoftTraining
from jaxrl.core.types import Key, Metrics, Params, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.multi_optimizer import POLICY, critic_metrics
from jaxrl.learners.soft_actor_critic import SoftActorCritic, SoftState
from jaxrl.modules.model_config import RELU
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops import value_losses
from jaxrl.ops.search import smallest


@dataclasses.dataclass(frozen=True, kw_only=True)
class TQCTraining(SoftTraining):
    """Settings of Kuznetsov et al. 2020; names and defaults are RLlib's."""

    n_quantiles: int = field(
        default=25, check=at_least_one, doc="Quantiles of the return that each critic learns."
    )
    n_critics: int = field(default=2, check=at_least_one, doc="Number of critics.")
    top_quantiles_to_drop_per_net: int = field(
        default=2,
        check=non_negative,
        doc="Times n_critics, the number of the largest of all quantiles that targets leave out.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TQCLearner(SoftActorCritic):
    """Critics of the return's distribution, without its most optimistic part in the targets."""

    def estimate(self, q: Float[Array, "critics N quantiles"]) -> Float[Array, " N"]:
        """The mean over all quantiles of all critics (eq. 12)."""
        return jnp.mean(q, axis=(0, 2))

    def targets(
        self, state: SoftState, batch: Transition, alpha: Float[Array, ""], key: Key
    ) -> Float[Array, "N kept"]:
        """The yᵢ = r + γ (z₍ᵢ₎(s', a') − α log π(a'|s')) of the smallest atoms z₍ᵢ₎  (eq. 10).

        The atoms of all target critics are sorted together.
        """
        action, log_prob = self.sample(state.sgd.params[POLICY], batch.next_obs, key)
        atoms = self.module.q_values(state.target.params, batch.next_obs, action)
        num_critics, num_rows, num_quantiles = atoms.shape
        pooled = jnp.moveaxis(atoms, 0, 1).reshape(num_rows, num_critics * num_quantiles)
        kept = num_critics * (num_quantiles - self.settings.top_quantiles_to_drop_per_net)
        value = smallest(pooled, kept) - alpha * log_prob[:, None]
        return batch.reward[:, None] + batch.discount[:, None] * value

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, "N kept"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Σₖ E[w mean ρ_τ(y − θₖ)], ρ the Huber quantile loss (eq. 8-9), over pairs (i, j).

        The TD error of a row is the distance of the means.

        Args:
            critic: What the gradient is taken for.
            batch: `[N, ...]`.
            targets: y.
        """
        atoms = self.module.q_values(critic, batch.obs, batch.action)
        common = jnp.broadcast_to(targets[None], (atoms.shape[0], *targets.shape))
        each = value_losses.quantile_huber_loss(atoms, common) / atoms.shape[-1]
        loss = jnp.sum(jnp.mean(batch.weight[None] * each, axis=1))
        value = self.estimate(atoms)
        td_error = jnp.abs(value - jnp.mean(targets, axis=-1))
        return loss, critic_metrics(loss, value, td_error, batch.weight, self.axis_name)


class TQCConfig(AlgorithmConfig):
    """Configuration of TQC."""

    algo_name = "TQC"
    training_settings: TQCTraining = TQCTraining(
        train_batch_size=256,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config=BUFFER_OF_A_MILLION,
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", TQCTraining)

    def get_default_learner_class(self) -> type[TQCLearner]:
        return TQCLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU)

    def module_settings(self) -> dict[str, Any]:
        training = self.training_settings
        return super().module_settings() | {
            "num_critics": training.n_critics,
            "num_quantiles": training.n_quantiles,
        }

    def validate(self) -> None:
        super().validate()
        training = self.training_settings
        dropped, number = training.top_quantiles_to_drop_per_net, training.n_quantiles
        if dropped >= number:
            raise ConfigError(
                f"top_quantiles_to_drop_per_net={dropped} leaves nothing of n_quantiles={number}; "
                f"use at most {number - 1}."
            )
