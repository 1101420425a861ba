"""Proximal Policy Optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Names and defaults are RLlib's. Those of A2C and PG are from its last version that had them, except
for their train batches, which are shared by a vector of environments. Deviations from the paper,
all RLlib's too: a separate value network by default, an adaptive KL penalty in addition to the
clipped surrogate, and a value loss that is clipped at `vf_clip_param`. A2C (Mnih et al. 2016) and
REINFORCE are other values of the same settings.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import Schedule, field, fluent, non_negative, positive, unit_interval
from jaxrl.config.settings.training import ValueTraining
from jaxrl.core.hparams import HParams, Traced
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, Rollout
from jaxrl.learners.bootstrap import compute_rollout_values
from jaxrl.learners.gradients import SgdState
from jaxrl.learners.policy_gradient import AdvantageLearner, PolicyGradientBatch, get_kl_metric
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.sequences import forward_rollout, split_into_sequences
from jaxrl.ops import losses, returns
from jaxrl.ops.statistics import DebiasedMoments


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOTraining(ValueTraining):
    """Settings of Schulman et al. 2017, section 6.1; defaults are RLlib's."""

    clip_param: Traced[float] = field(
        default=0.3, doc="Clip range of the probability ratio.", check=positive
    )
    lambda_: Traced[float] = field(default=1.0, doc="GAE's lambda.", check=unit_interval)
    use_kl_loss: bool = field(default=True, doc="Add the adaptive KL penalty.")
    kl_coeff: Traced[float] = field(
        default=0.2, doc="Initial weight of the KL penalty.", check=non_negative
    )
    kl_target: Traced[float] = field(
        default=0.01, doc="KL divergence that the weight adapts to.", check=positive
    )
    entropy_coeff: Traced[Schedule] = field(
        default=0.0, doc="Weight of the entropy bonus, or its schedule."
    )


@pytree
class PPOState:
    """Learner state.

    `kl_coeff` is the adaptive weight of the KL penalty; `value_moments` are those of value targets,
    None unless values are normalized.
    """

    sgd: SgdState
    hparams: HParams
    kl_coeff: Float[Array, ""]
    value_moments: DebiasedMoments | None = None


@pytree
class PPOBatch(PolicyGradientBatch):
    """Train batch with the log-probability and the distribution that rows were acted with."""

    log_prob: Float[Array, "*batch"]
    dist_inputs: Float[Array, "*batch n"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class PPOLearner(AdvantageLearner[PPOState]):
    """Clipped surrogate with value loss, entropy bonus and adaptive KL penalty."""

    module: RLModule
    settings: PPOTraining

    def init(self, key: Key) -> PPOState:
        sgd, hparams = self.init_sgd(key)
        return PPOState(
            sgd=sgd,
            hparams=hparams,
            kl_coeff=jnp.asarray(self.settings.kl_coeff, jnp.float32),
            value_moments=DebiasedMoments.empty() if self.settings.normalize_values else None,
        )

    def prepare(
        self, state: PPOState, rollout: Rollout, progress: Progress
    ) -> tuple[PPOBatch, Metrics]:
        """Compute advantages (GAE, Schulman et al. 2016, eq. 16) and value targets of a batch."""
        values = self.settings.at(state.hparams, progress)
        mask, estimates = rollout.mask, jnp.zeros_like(rollout.reward)
        next_estimates = estimates
        module = self.module
        out = forward_rollout(module, state.sgd.params, rollout) if module.is_stateful else {}
        if self.settings.use_critic:
            estimates, next_estimates = compute_rollout_values(
                module, state.sgd.params, rollout, out, state.value_moments
            )
        lambda_ = values.lambda_ if self.settings.use_critic else 1.0
        ends = (rollout.terminated, rollout.truncated, mask)
        advantages = returns.gae(
            rollout.reward, estimates, next_estimates, *ends, values.gamma, lambda_
        )
        if not self.settings.use_critic:
            mask = mask & returns.is_return_known(*ends)
        targets = advantages + estimates
        advantages, weight = self.weight_advantages(advantages, mask)
        batch = PPOBatch(
            obs=rollout.obs,
            action=rollout.action,
            log_prob=rollout.extras[Columns.ACTION_LOGP],
            dist_inputs=(
                rollout.extras[Columns.ACTION_DIST_INPUTS] if self.settings.use_kl_loss else None
            ),
            advantages=advantages,
            value_targets=targets,
            weight=weight,
        )
        metrics = {"curr_lr": values.lr, "curr_entropy_coeff": values.entropy_coeff}
        if self.settings.use_kl_loss:
            metrics["curr_kl_coeff"] = state.kl_coeff
        if state.value_moments is not None:
            metrics["curr_vf_target_mean"] = state.value_moments.mean
            metrics["curr_vf_target_std"] = state.value_moments.std
        if self.settings.use_critic:
            metrics["vf_explained_var"] = losses.explained_variance(
                targets, estimates, mask, self.axis_name
            )
        return split_into_sequences(module, batch, rollout, out), metrics

    def compute_loss(
        self,
        params: Params,
        batch: PPOBatch,
        values: PPOTraining,
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute L = −L_clip + c_kl KL + c_vf L_vf − c_ent H (eq. 9, with section 4's penalty).

        Override this method for a custom loss. Means are of `batch.weight * x`, so that rows that
        are not transitions have no effect.

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

        log_ratio = dist.log_prob(batch.action) - batch.log_prob
        ratio, clip = jnp.exp(log_ratio), values.clip_param
        policy_loss = mean(losses.clipped_surrogate(ratio, batch.advantages, clip))
        entropy = mean(dist.entropy())
        loss = policy_loss - values.entropy_coeff * entropy
        metrics = {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": mean(ratio - 1.0 - log_ratio),
            "clip_fraction": mean(jnp.abs(ratio - 1.0) > clip),
        }
        if self.settings.use_critic:
            value_loss = self.compute_value_loss(out[Columns.VF_PREDS], batch.value_targets, values)
            metrics["vf_loss"] = mean(value_loss)
            loss = loss + values.vf_loss_coeff * metrics["vf_loss"]
        if batch.dist_inputs is not None:
            acting_dist = self.module.action_dist(batch.dist_inputs, batch.obs)
            metrics["mean_kl_loss"] = mean(acting_dist.kl(dist))
            loss = loss + values.kl_coeff * metrics["mean_kl_loss"]
        return loss, metrics

    def compute_value_loss(
        self, value: Float[Array, "*n"], target: Float[Array, "*n"], values: PPOTraining
    ) -> Float[Array, "*n"]:
        """Compute min(l(v − G), c), the square or Huber's loss bounded by `vf_clip_param`.

        Args:
            value: Values v of the module.
            target: Targets G, in units of their moments if values are normalized.
            values: Settings with the values of the moment.
        """
        if values.huber_delta is None:
            return losses.clipped_value_loss(value, target, values.vf_clip_param)
        huber = losses.huber_loss(value - target, values.huber_delta)
        return jnp.minimum(huber, values.vf_clip_param)

    def update(
        self, state: PPOState, batch: PPOBatch, progress: Progress, key: Key
    ) -> tuple[PPOState, Metrics]:
        values = replace(self.settings.at(state.hparams, progress), kl_coeff=state.kl_coeff)
        if (moments := state.value_moments) is not None:
            targets = batch.value_targets
            moments = moments.update(targets, batch.weight > 0.0, self.axis_name)
            state = replace(state, value_moments=moments)
            batch = replace(batch, value_targets=(targets - moments.mean) / moments.std)
        return self.step(state, batch, values, key)

    def finish(self, state: PPOState, metrics: Metrics, progress: Progress) -> PPOState:
        """Adapt the KL penalty (section 4)."""
        if not self.settings.use_kl_loss:
            return state
        kl_target = self.settings.at(state.hparams, progress).kl_target
        kl = get_kl_metric(metrics)
        return replace(state, kl_coeff=losses.adapt_kl_coeff(state.kl_coeff, kl, kl_target))


class PPOConfig(AlgorithmConfig):
    """Configuration of PPO."""

    algo_name = "PPO"
    training_settings: PPOTraining = PPOTraining(
        lr=5e-5, train_batch_size=4000, num_epochs=30, minibatch_size=128
    )
    training = fluent("training_settings", PPOTraining)

    def get_default_learner_class(self) -> type[PPOLearner]:
        return PPOLearner

    def validate(self) -> None:
        self.training_settings.check_values()
        super().validate()


class A2CConfig(PPOConfig):
    """Advantage actor-critic (Mnih et al. 2016): one step per batch, where the ratio is 1."""

    algo_name = "A2C"
    training_settings: PPOTraining = PPOTraining(
        lr=1e-4,
        grad_clip=40.0,
        train_batch_size=500,
        num_epochs=1,
        minibatch_size=None,
        use_kl_loss=False,
        vf_clip_param=float("inf"),
        vf_loss_coeff=0.5,
        entropy_coeff=0.01,
        normalize_advantages=False,
    )


class PGConfig(A2CConfig):
    """REINFORCE (Williams 1992): Monte-Carlo returns, no value function.

    Rows whose return is unknown because the episode was cut are excluded from the loss, so the
    environment's episodes must terminate.
    """

    algo_name = "PG"
    training_settings: PPOTraining = dataclasses.replace(
        A2CConfig.training_settings,
        lr=4e-4,
        grad_clip=None,
        use_critic=False,
        entropy_coeff=0.0,
    )


class DDPPOConfig(PPOConfig):
    """DD-PPO (Wijmans et al. 2020): PPO with data-parallel gradients and without a KL penalty.

    PPO on several devices or learners is data-parallel already; defaults are those of RLlib's DDPPO
    (2.3). Straggler mitigation is not implemented, as there.
    """

    algo_name = "DDPPO"
    env_runners_settings = dataclasses.replace(
        PPOConfig.env_runners_settings, num_envs_per_env_runner=5, rollout_fragment_length=100
    )
    training_settings: PPOTraining = dataclasses.replace(
        PPOConfig.training_settings,
        train_batch_size=500,
        num_epochs=10,
        minibatch_size=50,
        use_kl_loss=False,
    )
