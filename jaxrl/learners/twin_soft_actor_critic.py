"""Soft actor-critic learning with one value per critic, of which the smallest counts."""

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Key, Metrics, Params, Transition
from jaxrl.learners.multi_optimizer import POLICY, critic_loss
from jaxrl.learners.soft_actor_critic import SoftActorCritic, SoftActorCriticState

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import TwinTraining


@dataclasses.dataclass(frozen=True, eq=False)
class TwinSoftActorCritic(SoftActorCritic):
    """Critics of the entropy-regularized return, of which the smallest is used."""

    settings: "TwinTraining"

    def reduce_critics(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        return jnp.min(q, axis=0)

    def compute_td_targets(
        self, state: SoftActorCriticState, batch: Transition, alpha: Float[Array, ""], key: Key
    ) -> Float[Array, " N"]:
        """Compute y = r + γ (minₖ Q'ₖ(s', a') − α log π(a'|s')), a' ~ π(·|s').

        Haarnoja et al. 2018b, eq. 5-6. γ stands for `batch.discount`, which is 0 after a termination.
        """
        policy, target = state.sgd.params[POLICY], state.target.params
        value, _ = self.compute_soft_value(policy, target, batch.next_obs, alpha, key)
        return batch.reward + batch.discount * value

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w l(Qₖ(s, a) − y)], with l set by `td_error_loss_fn` (there, eq. 5, ½ e²).

        Args:
            critic: Parameters of the critics, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`.
            targets: Targets y.
        """
        q = self.module.compute_taken_q_values(critic, batch.obs, batch.action)
        loss_fn = self.settings.td_error_loss_fn
        return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)
