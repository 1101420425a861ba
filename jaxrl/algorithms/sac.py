"""SAC (Haarnoja et al. 2018b, https://arxiv.org/abs/1812.05905), and its discrete form.

The action space selects the form: a Box is acted in with a squashed Gaussian, a Discrete space with
the probabilities of all actions (Christodoulou 2019, https://arxiv.org/abs/1910.07207). Names and
defaults are RLlib's. Deviations from RLlib: the policy is improved by the critics after their step,
as in the paper (RLlib: all gradients at the same parameters); critics take the action beside the
observation's features (RLlib: each has an encoder and a third one fuses them); importance weights
apply to all three losses; log standard deviations range from -20 to 2 (RLlib: from -5); 'auto' in a
Discrete space is 0.98 log n, as in RLlib's old API stack (new: -1).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import field, fluent
from jaxrl.config.settings.actor_critic import (
    SAC_REPLAY_BUFFER,
    TD_ERROR_LOSS_DOC,
    SoftActorCriticTraining,
    TdErrorLoss,
)
from jaxrl.core.types import Key, Metrics, Params, Transition
from jaxrl.learners.multi_optimizer import POLICY, critic_loss
from jaxrl.learners.soft_actor_critic import SoftActorCritic, SoftActorCriticState
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops import value_losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACTraining(SoftActorCriticTraining):
    """Settings of Haarnoja et al. 2018b; names and defaults are RLlib's."""

    twin_q: bool = field(
        default=True, doc="Whether to learn two critics and use the smaller value, instead of one."
    )
    td_error_loss_fn: TdErrorLoss = field(default="huber", doc=TD_ERROR_LOSS_DOC)


@dataclasses.dataclass(frozen=True, eq=False)
class SACLearner(SoftActorCritic):
    """Critics of the entropy-regularized return, of which the smallest is used."""

    settings: SACTraining

    def reduce_critics(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        return jnp.min(q, axis=0)

    def compute_td_targets(
        self, state: SoftActorCriticState, batch: Transition, alpha: Float[Array, ""], key: Key
    ) -> Float[Array, " N"]:
        """Compute y = r + γ (minₖ Q'ₖ(s', a') − α log π(a'|s')), a' ~ π(·|s')  (eq. 5-6).

        γ stands for `batch.discount`, which is 0 after a termination.
        """
        policy, target = state.sgd.params[POLICY], state.target.params
        value, _ = self.compute_soft_value(policy, target, batch.next_obs, alpha, key)
        return batch.reward + batch.discount * value

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w l(Qₖ(s, a) − y)], with l set by `td_error_loss_fn` (eq. 5 has ½ e²).

        Args:
            critic: Parameters of the critics, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`.
            targets: Targets y.
        """
        q = self.module.compute_q_values(critic, batch.obs, batch.action)
        if self.module.is_discrete:
            action = jnp.broadcast_to(batch.action[None], q.shape[:-1])
            q = value_losses.batched_index(q, action)
        loss_fn = self.settings.td_error_loss_fn
        return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)


class SACConfig(AlgorithmConfig):
    """Configuration of SAC."""

    algo_name = "SAC"
    training_settings: SACTraining = SACTraining(
        train_batch_size=256,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config=SAC_REPLAY_BUFFER,
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", SACTraining)

    def get_default_learner_class(self) -> type[SACLearner]:
        return SACLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU_ACTIVATIONS)

    def get_module_settings(self) -> dict[str, Any]:
        num_critics = 2 if self.training_settings.twin_q else 1
        return super().get_module_settings() | {"num_critics": num_critics}


class RNNSACConfig(SACConfig):
    """SAC with an LSTM, from sequences (RLlib 2.3's RNNSAC).

    The train batch of 320 rows is 16 sequences of `max_seq_len`, 20; RLlib's is 256 rows.
    """

    algo_name = "RNNSAC"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings, train_batch_size=320, zero_init_states=True
    )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        model_config = {**RELU_ACTIVATIONS, "use_lstm": True}
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=model_config)
