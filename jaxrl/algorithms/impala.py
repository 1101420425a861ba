"""IMPALA (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561).

Names and defaults are RLlib's, except for `num_env_runners`, which is 0 here (RLlib: 2): without
Ray actors, experience comes from the compiled program or from a runner in this process. V-trace
targets are computed once for a whole train batch, with the parameters before its first update. With
one epoch over the whole batch, the default, that is the paper's loss; with several updates per
batch the targets are not recomputed.
"""

import abc
import dataclasses
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.asynchronous import AsyncTraining
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, Rollout
from jaxrl.learners.bootstrap import compute_successor_values
from jaxrl.learners.policy_gradient import AdvantageLearner, PolicyGradientBatch, SgdLearnerState
from jaxrl.modules.sequences import attach_final_carries, forward_rollout, split_into_sequences
from jaxrl.ops import losses, returns

S = TypeVar("S")

ROUNDING = 1e-5
"""Relative error up to which a ratio counts as not clipped: on-policy, all would be near 1."""


@pytree
class VTraceTargets:
    """Targets of every row; `weight` is 0 where a row is not a transition, and 1 on average."""

    value_targets: Float[Array, "T B"]
    advantages: Float[Array, "T B"]
    weight: Float[Array, "T B"]


@dataclasses.dataclass(frozen=True, eq=False)
class VTraceLearner(AdvantageLearner[S], abc.ABC):
    """Base of IMPALA's and APPO's learners, whose targets are V-trace's."""

    settings: AsyncTraining

    def compute_vtrace_targets(
        self,
        params: Params,
        out: dict[str, Any],
        log_prob: Float[Array, "T B"],
        rollout: Rollout,
        values: AsyncTraining,
    ) -> tuple[VTraceTargets, Metrics]:
        """Compute the targets and advantages of Espeholt et al. 2018 (eq. 1, section 4.2).

        Episodes are cut at terminations and truncations; a truncated row, and the last one, bootstraps
        from the value of its final observation. Statistics are returned as metrics.

        Args:
            params: Parameters of the module.
            out: Outputs of `forward_rollout` with the same parameters.
            log_prob: Log-probability log π(a|s) of the target policy, in ρ = π / μ; that of the acting
                policy, log μ(a|s), is in the rollout.
            rollout: Transitions `[T, B, ...]`, holding the module's observations.
            values: Settings with the values of the moment; without `vtrace`, ρ is 1, as if the target
                policy had acted.
        """
        log_ratio = log_prob - rollout.extras[Columns.ACTION_LOGP]
        rho = jnp.exp(log_ratio) if values.vtrace else jnp.ones_like(log_ratio)
        estimates, seen = out[Columns.VF_PREDS], attach_final_carries(rollout, out)
        mask, clip_rho = rollout.mask, values.vtrace_clip_rho_threshold
        value_targets, advantages = returns.vtrace(
            rollout.reward,
            estimates,
            compute_successor_values(partial(self.module.compute_values, params), seen, estimates),
            rho,
            rollout.terminated,
            rollout.truncated,
            mask,
            values.gamma,
            values.lambda_,
            clip_rho,
            values.vtrace_clip_pg_rho_threshold,
        )
        advantages, weight = self.weight_advantages(advantages, mask)

        def mean(x: Float[Array, "T B"]) -> Float[Array, ""]:
            return losses.masked_moments(x, mask, self.axis_name).mean

        targets = VTraceTargets(
            value_targets=value_targets,
            advantages=advantages,
            weight=weight,
        )
        return targets, {
            "mean_rho": mean(jnp.minimum(rho, clip_rho)),
            "rho_clip_fraction": mean((rho > (1.0 + ROUNDING) * clip_rho).astype(jnp.float32)),
            "vf_explained_var": losses.explained_variance(
                value_targets, estimates, mask, self.axis_name
            ),
            "curr_lr": values.lr,
            "curr_entropy_coeff": values.entropy_coeff,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class IMPALALearner(VTraceLearner[SgdLearnerState]):
    """Policy gradient with V-trace advantages, value loss and entropy bonus."""

    def init(self, key: Key) -> SgdLearnerState:
        sgd, hparams = self.init_sgd(key)
        return SgdLearnerState(sgd=sgd, hparams=hparams)

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[PolicyGradientBatch, Metrics]:
        """Compute V-trace targets (eq. 1) and advantages (section 4.2) of a train batch."""
        params, obs = state.sgd.params, rollout.obs
        out = forward_rollout(self.module, params, rollout)
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
        values = self.settings.at(state.hparams, progress)
        targets, metrics = self.compute_vtrace_targets(
            params, out, dist.log_prob(rollout.action), rollout, values
        )
        batch = PolicyGradientBatch(
            obs=obs,
            action=rollout.action,
            advantages=targets.advantages,
            value_targets=targets.value_targets,
            weight=targets.weight,
        )
        return split_into_sequences(self.module, batch, rollout, out), metrics

    def compute_loss(
        self,
        params: Params,
        batch: PolicyGradientBatch,
        values: AsyncTraining,
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute L = −log π(a|s) A + c_vf ½ (v − vs)² − c_ent H (section 4.2), averaged over rows.

        Override this method for a custom loss. Means are of `batch.weight * x`, so that rows that
        are not transitions have no effect.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Settings with the values of the moment.
            key: Key for losses that draw; unused here.
        """
        del key
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], batch.obs)

        def mean(x: Float[Array, " N"]) -> Float[Array, ""]:
            return jnp.mean(batch.weight * x)

        log_prob = dist.log_prob(batch.action)
        policy_loss = mean(losses.policy_gradient_loss(log_prob, batch.advantages))
        vf_loss = mean(0.5 * jnp.square(out[Columns.VF_PREDS] - batch.value_targets))
        entropy = mean(dist.entropy())
        loss = policy_loss + values.vf_loss_coeff * vf_loss - values.entropy_coeff * entropy
        return loss, {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy}

    def update(
        self, state: SgdLearnerState, batch: PolicyGradientBatch, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        return self.step(state, batch, self.settings.at(state.hparams, progress), key)


class IMPALAConfig(AlgorithmConfig):
    """Configuration of IMPALA."""

    algo_name = "IMPALA"
    is_async = True
    env_runners_settings = dataclasses.replace(
        AlgorithmConfig.env_runners_settings, rollout_fragment_length=50
    )
    training_settings: AsyncTraining = AsyncTraining(
        lr=5e-4,
        grad_clip=40.0,
        train_batch_size=500,
        num_epochs=1,
        minibatch_size=None,
        normalize_advantages=False,
    )
    training = fluent("training_settings", AsyncTraining)

    def get_default_learner_class(self) -> type[VTraceLearner[Any]]:
        return IMPALALearner


class A3CConfig(IMPALAConfig):
    """A3C (Mnih et al. 2016) as IMPALA with both clips at 1, and the defaults of RLlib's A3C (2.3).

    V-trace corrects for the lag between actors and learner, which A3C accepts; without lag the
    gradient is the same. Gradients are computed by the learner, from 50 environments at once.
    """

    algo_name = "A3C"
    env_runners_settings = dataclasses.replace(
        IMPALAConfig.env_runners_settings, rollout_fragment_length=10
    )
    training_settings: AsyncTraining = dataclasses.replace(IMPALAConfig.training_settings, lr=1e-4)
