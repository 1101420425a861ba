"""SAC (Haarnoja et al. 2018b, https://arxiv.org/abs/1812.05905), and its discrete form.

The action space says which: a Box is acted in with a squashed Gaussian, a Discrete space with the
probabilities of all actions (Christodoulou 2019, https://arxiv.org/abs/1910.07207). Names and
defaults are RLlib's. Deviations from RLlib: the policy is improved by the critics after their step,
as in the paper (there all gradients are of the same parameters); critics take the action beside
the observation's features (there each has an encoder and a third one fuses them); importance
weights are those of all three losses; log standard deviations reach from -20 to 2 (there from -5);
'auto' in a Discrete space is 0.98 log n, as in RLlib's older stack (there -1).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import field, fluent
from jaxrl.config.settings.actor_critic import (
    BUFFER_OF_A_MILLION,
    TD_ERROR_LOSS_DOC,
    SoftTraining,
    TdErrorLoss,
)
from jaxrl.core.types import Key, Metrics, Params, Transition
from jaxrl.learners.multi_optimizer import POLICY, critic_loss
from jaxrl.learners.soft_actor_critic import SoftActorCritic, SoftState
from jaxrl.modules.model_config import RELU
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops import value_losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACTraining(SoftTraining):
    """Settings of Haarnoja et al. 2018b; names and defaults are RLlib's."""

    twin_q: bool = field(
        default=True, doc="Two critics, of which the smaller value counts, instead of one."
    )
    td_error_loss_fn: TdErrorLoss = field(default="huber", doc=TD_ERROR_LOSS_DOC)


@dataclasses.dataclass(frozen=True, eq=False)
class SACLearner(SoftActorCritic):
    """Critics of the entropy-regularised return, of which the smallest counts."""

    def estimate(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        return jnp.min(q, axis=0)

    def targets(
        self, state: SoftState, batch: Transition, alpha: Float[Array, ""], key: Key
    ) -> Float[Array, " N"]:
        """The y = r + γ (minₖ Q'ₖ(s', a') − α log π(a'|s')), a' ~ π(·|s')  (eq. 5-6)."""
        policy, target = state.sgd.params[POLICY], state.target.params
        value, _ = self.soft_value(policy, target, batch.next_obs, alpha, key)
        return batch.reward + batch.discount * value

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Σₖ E[w l(Qₖ(s, a) − y)], l as `td_error_loss_fn` says (eq. 5 has ½ e²).

        Args:
            critic: What the gradient is taken for.
            batch: `[N, ...]`.
            targets: y.
        """
        q = self.module.q_values(critic, batch.obs, batch.action)
        if self.module.is_discrete:
            action = jnp.broadcast_to(batch.action[None], q.shape[:-1])
            q = value_losses.at_action(q, action)
        loss_fn = self.settings.td_error_loss_fn
        return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)


class SACConfig(AlgorithmConfig):
    """Configuration of SAC."""

    algo_name = "SAC"
    training_settings: SACTraining = SACTraining(
        train_batch_size=256,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config=BUFFER_OF_A_MILLION,
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", SACTraining)

    def get_default_learner_class(self) -> type[SACLearner]:
        return SACLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU)

    def module_settings(self) -> dict[str, Any]:
        num_critics = 2 if self.training_settings.twin_q else 1
        return super().module_settings() | {"num_critics": num_critics}
