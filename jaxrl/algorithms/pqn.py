"""PQN (Gallici et al. 2024, https://arxiv.org/abs/2407.04811): Q-learning from fresh batches.

Many parallel environments replace the replay buffer, and a network with layer norm the target
network. Defaults are those of the authors' Atari runs (https://github.com/mttga/purejaxql).
Deviations from their code: truncated episodes bootstrap from their final observation (there every
end is a termination), and so does each row from its own successor (there the last row but one takes
the value of the last row's).
"""

import dataclasses
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import Schedule, field, fluent, unit_interval
from jaxrl.config.settings.training import OnPolicyTraining
from jaxrl.core.hparams import Traced
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.learners.bootstrap import compute_successor_values
from jaxrl.learners.policy_gradient import LossLearner, SgdLearnerState
from jaxrl.modules.q_network import QModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.modules.sequences import attach_final_carries, forward_rollout, split_into_sequences
from jaxrl.ops import losses, returns
from jaxrl.ops.value_losses import batched_index


@dataclasses.dataclass(frozen=True, kw_only=True)
class PQNTraining(OnPolicyTraining):
    """Settings of Gallici et al. 2024."""

    lambda_: Traced[float] = field(default=0.65, doc="λ of the Q(λ) targets.", check=unit_interval)
    epsilon: Traced[Schedule] = field(
        default=[[0, 1.0], [100_000, 0.05]],
        check=unit_interval,
        doc="Probability of a random action, or its schedule.",
    )


@pytree
class PQNBatch:
    """Train batch, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where a row is not a transition."""

    obs: PyTree
    action: Int[Array, "*batch"]
    targets: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class PQNLearner(LossLearner[SgdLearnerState]):
    """Squared error to Q(λ) targets."""

    settings: PQNTraining

    def init(self, key: Key) -> SgdLearnerState:
        sgd, hparams = self.init_sgd(key)
        return SgdLearnerState(sgd=sgd, hparams=hparams)

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[PQNBatch, Metrics]:
        """Compute Peng's Q(λ) targets of a train batch.

            Gₜ = rₜ + γₜ ((1 − λ) maxₐ Q(sₜ, a) + λ Gₜ₊₁),  γₜ = γ (1 − terminatedₜ)

        The maximum is over legal actions. Actions that are not greedy do not cut the return. The
        values of states that were acted in are those computed for acting.
        """
        values = self.settings.at(state.hparams, progress)
        acting_values, params = rollout.extras[Columns.ACTION_DIST_INPUTS], state.sgd.params
        out = forward_rollout(self.module, params, rollout) if self.module.is_stateful else {}
        next_values = compute_successor_values(
            partial(self._compute_max_values, params),
            attach_final_carries(rollout, out),
            self._max_over_legal(acting_values, rollout.obs),
            rollout.mask,
        )
        ends = (rollout.terminated, rollout.truncated, rollout.mask)
        targets = returns.lambda_returns(
            rollout.reward, next_values, *ends, values.gamma, values.lambda_
        )
        moments = losses.masked_moments(targets, rollout.mask, self.axis_name)
        batch = PQNBatch(
            obs=rollout.obs,
            action=rollout.action,
            targets=targets,
            weight=rollout.mask.astype(jnp.float32) / jnp.maximum(moments.fraction, 1e-8),
        )
        return split_into_sequences(self.module, batch, rollout, out), {
            "curr_lr": values.lr,
            "curr_epsilon": values.epsilon,
            "qf_target_mean": moments.mean,
            "qf_explained_var": losses.explained_variance(
                targets, batched_index(acting_values, rollout.action), rollout.mask, self.axis_name
            ),
        }

    def _compute_max_values(self, params: Params, obs: PyTree) -> Float[Array, " N"]:
        out = self.module.forward_train(params, {Columns.OBS: obs})
        return self._max_over_legal(out[Columns.ACTION_DIST_INPUTS], obs)

    def _max_over_legal(self, q: Float[Array, "*batch n"], obs: PyTree) -> Float[Array, "*batch"]:
        """Compute maxₐ Q(s, a) over the legal actions."""
        return batched_index(q, self.module.action_dist(q, obs).mode())

    def compute_loss(
        self,
        params: Params,
        batch: PQNBatch,
        values: PQNTraining,
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute L = ½ (Q(s, a) − G)², averaged over the rows.

        Override this method for a custom loss. Means are of `batch.weight * x`, so that rows that
        are not transitions have no effect.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Settings with the values of the moment.
            key: Key for losses that draw; unused here.
        """
        del values, key
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        q = batched_index(out[Columns.ACTION_DIST_INPUTS], batch.action)
        loss = jnp.mean(batch.weight * 0.5 * jnp.square(q - batch.targets))
        return loss, {"qf_loss": loss, "qf_mean": jnp.mean(batch.weight * q)}

    def update(
        self, state: SgdLearnerState, batch: PQNBatch, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        return self.step(state, batch, self.settings.at(state.hparams, progress), key)


class PQNConfig(AlgorithmConfig):
    """Configuration of PQN."""

    algo_name = "PQN"
    env_runners_settings = dataclasses.replace(
        AlgorithmConfig.env_runners_settings, rollout_fragment_length=32
    )
    training_settings: PQNTraining = PQNTraining(
        lr=2.5e-4,
        grad_clip=10.0,
        optimizer="radam",
        train_batch_size=4096,
        num_epochs=2,
        minibatch_size=128,
    )
    training = fluent("training_settings", PQNTraining)

    def get_default_learner_class(self) -> type[PQNLearner]:
        return PQNLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the spec of a Q network with layer norm after every layer."""
        return RLModuleSpec(
            module_class=QModule,
            model_config={
                "fcnet_activation": "relu",
                "fcnet_use_layernorm": True,
                "conv_use_layernorm": True,
                "fusionnet_activation": "relu",
                "fusionnet_use_layernorm": True,
                "head_fcnet_use_layernorm": True,
            },
        )
