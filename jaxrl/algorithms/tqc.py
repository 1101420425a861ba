"""TQC (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269): SAC with truncated quantiles.

Names and defaults are RLlib's. Deviations from RLlib are SAC's, and that the critics' loss is the
paper's mean over pairs of quantiles (RLlib: a sum; with Adam the two differ only through
grad_clip).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.algorithms.sac import DrawnActions, SACConfig, SoftActorCritic
from jaxrl.config.fields import at_least_one, field, fluent, non_negative
from jaxrl.config.settings.actor_critic import SAC_REPLAY_BUFFER, SoftActorCriticTraining
from jaxrl.core.types import Metrics, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.actor_critic import compute_critic_metrics
from jaxrl.ops import value_losses
from jaxrl.ops.search import smallest_k


@dataclasses.dataclass(frozen=True, kw_only=True)
class TQCTraining(SoftActorCriticTraining):
    """Settings of Kuznetsov et al. 2020; names and defaults are RLlib's."""

    n_quantiles: int = field(
        default=25,
        check=at_least_one,
        doc="Number of quantiles of the return that each critic learns.",
    )
    n_critics: int = field(default=2, check=at_least_one, doc="Number of critics.")
    top_quantiles_to_drop_per_net: int = field(
        default=2,
        check=non_negative,
        doc="Number of quantiles to drop per critic; targets omit the largest of all critics.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TQCLearner(SoftActorCritic):
    """Critics of the return distribution, whose targets drop the most optimistic quantiles."""

    settings: TQCTraining

    def reduce_critics(self, q: Float[Array, "critics N quantiles"]) -> Float[Array, " N"]:
        """Compute the mean over all quantiles of all critics (eq. 12)."""
        return jnp.mean(q, axis=(0, 2))

    def compute_td_targets(
        self,
        next_out: Float[Array, "critics N quantiles"],
        batch: Transition,
        drawn: DrawnActions,
        alpha: Float[Array, ""],
    ) -> tuple[Float[Array, "N kept"], Metrics]:
        """Compute yᵢ = r + γ (z₍ᵢ₎(s', a') − α log π(a'|s')) of the smallest atoms z₍ᵢ₎  (eq. 10).

        The atoms of all target critics are sorted together. γ stands for `batch.discount`, which is
        0 after a termination.
        """
        num_critics, num_rows, num_quantiles = next_out.shape
        pooled = jnp.moveaxis(next_out, 0, 1).reshape(num_rows, num_critics * num_quantiles)
        num_kept = num_critics * (num_quantiles - self.settings.top_quantiles_to_drop_per_net)
        value = smallest_k(pooled, num_kept) - alpha * drawn.log_prob[:, None]
        return batch.reward[:, None] + batch.discount[:, None] * value, {}

    def critic_loss(
        self,
        out: Float[Array, "critics N quantiles"],
        batch: Transition,
        targets: Float[Array, "N kept"],
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w mean ρ_τ(y − θₖ)], ρ the Huber quantile loss (eq. 8-9), over pairs (i, j).

        The TD error of a row is the distance of the means.

        Args:
            out: Quantiles θₖ of the critics at the rows.
            batch: Minibatch, `[N, ...]`.
            targets: Targets y.
        """
        shared_targets = jnp.broadcast_to(targets[None], (out.shape[0], *targets.shape))
        losses = value_losses.quantile_huber_loss(out, shared_targets) / out.shape[-1]
        loss = jnp.sum(jnp.mean(batch.weight[None] * losses, axis=1))
        value = self.reduce_critics(out)
        td_error = jnp.abs(value - jnp.mean(targets, axis=-1))
        return loss, compute_critic_metrics(loss, value, td_error, batch.weight, self.axis_name)


class TQCConfig(SACConfig):
    """Configuration of TQC."""

    algo_name = "TQC"
    training_settings: TQCTraining = TQCTraining(  # pyright: ignore[reportIncompatibleVariableOverride]
        train_batch_size=256,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config=SAC_REPLAY_BUFFER,
    )
    training = fluent("training_settings", TQCTraining)

    def get_default_learner_class(self) -> type[TQCLearner]:
        return TQCLearner

    def get_module_settings(self) -> dict[str, Any]:
        training = self.training_settings
        return super().get_module_settings() | {
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
