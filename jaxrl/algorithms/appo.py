"""APPO, also known as IMPACT (Luo et al. 2020, https://arxiv.org/abs/1912.00167).

Asynchronous PPO with a clipped target network and a circular buffer. Names and defaults are
RLlib's, except for `num_env_runners`, which is 0 here (RLlib: 2). The target policy of V-trace and
the denominator of the surrogate's ratio are a target network, a periodically updated copy of the
policy, so that neither fluctuates with the actors' staleness.

Deviations from RLlib: `target_worker_clipping` takes effect (RLlib's loss hardcodes its default),
the KL weight adapts once per train batch instead of at every minibatch, and targets are computed
once for a whole batch, with the parameters before its first update.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.algorithms.impala import IMPALAConfig, VTraceLearner
from jaxrl.config.fields import field, fluent, non_negative, positive, unit_interval
from jaxrl.config.settings.asynchronous import AsyncTraining
from jaxrl.core.hparams import HParams, Traced
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, Rollout
from jaxrl.learners.gradients import SgdState
from jaxrl.learners.policy_gradient import PolicyGradientBatch, get_kl_metric
from jaxrl.learners.target_network import polyak_average
from jaxrl.modules.sequences import forward_rollout, split_into_sequences
from jaxrl.ops import losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class APPOTraining(AsyncTraining):
    """Settings of Luo et al. 2020; defaults are RLlib's."""

    clip_param: Traced[float] = field(
        default=0.4, doc="Clip range of the probability ratio.", check=positive
    )
    use_kl_loss: bool = field(
        default=False, doc="Add the adaptive penalty on KL(target policy, policy)."
    )
    kl_coeff: Traced[float] = field(
        default=1.0, doc="Initial weight of the KL penalty.", check=non_negative
    )
    kl_target: Traced[float] = field(
        default=0.01, doc="KL divergence that the weight adapts to.", check=positive
    )
    target_network_update_freq: Traced[float] = field(
        default=2.0,
        check=positive,
        doc="Interval between updates of the target network, in units of "
        "circular_buffer_num_batches x circular_buffer_iterations_per_batch batches learned from.",
    )
    tau: Traced[float] = field(
        default=1.0,
        check=unit_interval,
        doc="Weight of the policy in an update of the target network.",
    )
    target_worker_clipping: Traced[float] = field(
        default=2.0,
        check=positive,
        doc="Upper bound of the ratio of the acting and the target policy (rho in the paper).",
    )


@pytree
class APPOState:
    """Learner state; `target_age` counts the batches learned from since the target update."""

    sgd: SgdState
    hparams: HParams
    target: Params
    target_age: Int[Array, ""]
    kl_coeff: Float[Array, ""]


@pytree
class APPOBatch(PolicyGradientBatch):
    """Train batch; `log_prob` is the acting policy's, what begins with `target` the target's."""

    log_prob: Float[Array, "*batch"]
    target_log_prob: Float[Array, "*batch"]
    target_inputs: Float[Array, "*batch n"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class APPOLearner(VTraceLearner[APPOState]):
    """Clipped surrogate against a target network, with value loss, entropy bonus and KL penalty."""

    settings: APPOTraining

    def init(self, key: Key) -> APPOState:
        sgd, hparams = self.init_sgd(key)
        return APPOState(
            sgd=sgd,
            hparams=hparams,
            target=jax.tree.map(jnp.copy, sgd.params),
            target_age=jnp.zeros((), jnp.int32),
            kl_coeff=jnp.asarray(self.settings.kl_coeff, jnp.float32),
        )

    def prepare(
        self, state: APPOState, rollout: Rollout, progress: Progress
    ) -> tuple[APPOBatch, Metrics]:
        """Compute V-trace targets of the target policy, with the current value function."""
        params, obs = state.sgd.params, rollout.obs
        target = forward_rollout(self.module, state.target, rollout)
        target_inputs = target[Columns.ACTION_DIST_INPUTS]
        target_log_prob = self.module.action_dist(target_inputs, obs).log_prob(rollout.action)
        out = forward_rollout(self.module, params, rollout)
        values = self.settings.at(state.hparams, progress)
        targets, metrics = self.compute_vtrace_targets(
            params, out, target_log_prob, rollout, values
        )
        batch = APPOBatch(
            obs=obs,
            action=rollout.action,
            log_prob=rollout.extras[Columns.ACTION_LOGP],
            target_log_prob=target_log_prob,
            target_inputs=target_inputs if self.settings.use_kl_loss else None,
            advantages=targets.advantages,
            value_targets=targets.value_targets,
            weight=targets.weight,
        )
        metrics["target_age"] = state.target_age.astype(jnp.float32)
        if self.settings.use_kl_loss:
            metrics["curr_kl_coeff"] = state.kl_coeff
        return split_into_sequences(self.module, batch, rollout, out), metrics

    def compute_loss(
        self,
        params: Params,
        batch: APPOBatch,
        values: APPOTraining,
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute L = −L_clip(min(μ / π_target, ρ) π / μ) + c_vf ½ (v − vs)² − c_ent H + c_kl KL.

        μ is the policy that acted. Override this method for a custom loss. Means are of
        `batch.weight * x`, so that rows that are not transitions have no effect.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Settings with the values of the moment, with the adaptive `kl_coeff`.
            key: Key for losses that draw; unused here.
        """
        del key
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], batch.obs)

        def mean(x: Float[Array, " N"]) -> Float[Array, ""]:
            return jnp.mean(batch.weight * x)

        is_ratio = jnp.exp(batch.log_prob - batch.target_log_prob)
        is_ratio = jnp.minimum(is_ratio, values.target_worker_clipping)
        ratio = is_ratio * jnp.exp(dist.log_prob(batch.action) - batch.log_prob)
        clip = values.clip_param
        policy_loss = mean(losses.clipped_surrogate(ratio, batch.advantages, clip))
        vf_loss = mean(0.5 * jnp.square(out[Columns.VF_PREDS] - batch.value_targets))
        entropy = mean(dist.entropy())
        loss = policy_loss + values.vf_loss_coeff * vf_loss - values.entropy_coeff * entropy
        metrics = {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": entropy,
            "mean_IS": mean(is_ratio),
            "clip_fraction": mean(jnp.abs(ratio - 1.0) > clip),
        }
        if batch.target_inputs is not None:
            target = self.module.action_dist(batch.target_inputs, batch.obs)
            metrics["mean_kl_loss"] = mean(target.kl(dist))
            loss = loss + values.kl_coeff * metrics["mean_kl_loss"]
        return loss, metrics

    def update(
        self, state: APPOState, batch: APPOBatch, progress: Progress, key: Key
    ) -> tuple[APPOState, Metrics]:
        values = replace(self.settings.at(state.hparams, progress), kl_coeff=state.kl_coeff)
        return self.step(state, batch, values, key)

    def finish(self, state: APPOState, metrics: Metrics, progress: Progress) -> APPOState:
        """Update the target network when due, and adapt the KL penalty."""
        values, settings = self.settings.at(state.hparams, progress), self.settings
        unit = settings.circular_buffer_num_batches * settings.circular_buffer_iterations_per_batch
        age = state.target_age + 1
        is_due = age >= values.target_network_update_freq * unit
        kl_coeff = state.kl_coeff
        if settings.use_kl_loss:
            kl, kl_target = get_kl_metric(metrics), values.kl_target
            kl_coeff = losses.adapt_kl_coeff(kl_coeff, kl, kl_target)
        return replace(
            state,
            target=polyak_average(is_due, values.tau, state.sgd.params, state.target),
            target_age=jnp.where(is_due, 0, age),
            kl_coeff=kl_coeff,
        )


class APPOConfig(IMPALAConfig):
    """Configuration of APPO."""

    algo_name = "APPO"
    training_settings: APPOTraining = APPOTraining(  # pyright: ignore[reportIncompatibleVariableOverride]
        lr=5e-4,
        grad_clip=40.0,
        train_batch_size=500,
        num_epochs=1,
        minibatch_size=None,
        normalize_advantages=False,
        circular_buffer_num_batches=8,
        circular_buffer_iterations_per_batch=2,
    )
    training = fluent("training_settings", APPOTraining)

    def get_default_learner_class(self) -> type[APPOLearner]:
        return APPOLearner
