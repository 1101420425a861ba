"""Soft actor-critic learning with one value per critic, of which the smallest counts."""

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.types import Key, Metrics, Transition
from jaxrl.learners.bootstrapped_critics import choose_critics, compute_smallest_targets
from jaxrl.learners.multi_optimizer import critic_loss
from jaxrl.learners.soft_actor_critic import DrawnActions, SoftActorCritic

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import TwinTraining


@dataclasses.dataclass(frozen=True, eq=False)
class TwinSoftActorCritic(SoftActorCritic):
    """Critics of the entropy-regularized return, of which the smallest is used."""

    settings: "TwinTraining"

    def reduce_critics(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        """Compute the smallest value, or where some critics are drawn for the targets the mean.

        The mean is that of Chen et al. 2021, algorithm 1.
        """
        reduce = jnp.mean if self.settings.draws_critics else jnp.min
        return reduce(q, axis=0)

    def choose_critics(self, key: Key) -> tuple[Int[Array, " chosen"] | None, Key]:
        return choose_critics(self.settings, key)

    def compute_td_targets(
        self,
        next_out: Float[Array, "critics N *n"],
        batch: Transition,
        drawn: DrawnActions,
        alpha: Float[Array, ""],
    ) -> tuple[Float[Array, " N *atoms"], Metrics]:
        """Compute y = r + γ (minₖ Q'ₖ(s', a') − α log π(a'|s')), a' ~ π(·|s').

        Haarnoja et al. 2018b, eq. 5-6, see `compute_smallest_targets`.
        """
        cost, support = alpha * drawn.log_prob, self.module.support
        return compute_smallest_targets(
            next_out, batch, support, cost, drawn.probs, axis_name=self.axis_name
        )

    def critic_loss(
        self, out: Float[Array, "critics N *n"], batch: Transition, targets: Float[Array, " N *n"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w l(Qₖ(s, a) − y)], with l set by `td_error_loss_fn`, or C51's.

        In Haarnoja et al. 2018b, eq. 5, l is ½ e².
        """
        out, loss_fn = self.module.select_taken(out, batch.action), self.settings.td_error_loss_fn
        support = self.module.support
        return critic_loss(out, targets, batch.weight, loss_fn, self.axis_name, support)
