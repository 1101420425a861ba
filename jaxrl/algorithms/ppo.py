"""Proximal Policy Optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Names and defaults are RLlib's. Deviations from the paper, all RLlib's too: a separate value
network by default, an adaptive KL penalty beside the clipped surrogate, and a value loss that is
clipped at `vf_clip_param`. A2C (Mnih et al. 2016) and REINFORCE are values of the same settings.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import Schedule, field, fluent, non_negative, positive, unit_interval
from jaxrl.config.groups import OnPolicyTraining
from jaxrl.core.bootstrap import successor_values
from jaxrl.core.hparams import HParams, current_values, hyperparameters
from jaxrl.core.learner import SgdState, clip_gradients, make_optimizer, sgd_step
from jaxrl.core.rl_module import RLModule
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.ops import losses, returns


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOTraining(OnPolicyTraining):
    """Settings of Schulman et al. 2017, section 6.1; defaults are RLlib's."""

    clip_param: float = field(
        default=0.3, doc="Clip range of the probability ratio.", sweepable=True, check=positive
    )
    lambda_: float = field(default=1.0, doc="GAE's lambda.", sweepable=True, check=unit_interval)
    use_critic: bool = field(
        default=True, doc="Learn a value function; without it returns are Monte-Carlo."
    )
    vf_loss_coeff: float = field(
        default=1.0, doc="Weight of the value loss.", sweepable=True, check=non_negative
    )
    vf_clip_param: float = field(
        default=10.0, doc="Bound of the squared value error.", sweepable=True, check=positive
    )
    use_kl_loss: bool = field(default=True, doc="Add the adaptive KL penalty.")
    kl_coeff: float = field(
        default=0.2, doc="First weight of the KL penalty.", sweepable=True, check=non_negative
    )
    kl_target: float = field(
        default=0.01, doc="KL divergence that the weight adapts to.", sweepable=True, check=positive
    )
    entropy_coeff: Schedule = field(
        default=0.0, doc="Weight of the entropy bonus, or its schedule.", sweepable=True
    )


@pytree
class PPOState:
    """What PPO learns; `kl_coeff` is the adaptive weight of the KL penalty."""

    sgd: SgdState
    hparams: HParams
    kl_coeff: Float[Array, ""]


@pytree
class PPOBatch:
    """Rows to learn from, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where no transition is."""

    obs: PyTree
    action: PyTree
    log_prob: Float[Array, "*batch"]
    dist_inputs: Float[Array, "*batch n"] | None
    advantages: Float[Array, "*batch"]
    value_targets: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class PPOLearner:
    """The clipped surrogate with value loss, entropy bonus and adaptive KL penalty."""

    module: RLModule
    settings: PPOTraining
    axis_name: str | None = None
    log_gradients: bool = False

    def init(self, key: Key) -> PPOState:
        params = self.module.init(key)
        hparams = hyperparameters(self.settings)
        opt_state = self._optimizer(current_values(hparams, Progress.zero())).init(params)
        return PPOState(
            sgd=SgdState(params=params, opt_state=opt_state),
            hparams=hparams,
            kl_coeff=jnp.asarray(self.settings.kl_coeff, jnp.float32),
        )

    def _optimizer(self, values: dict[str, Float[Array, ""]]) -> Any:
        clip = clip_gradients(self.settings.grad_clip_by, values.get("grad_clip"))
        return make_optimizer(self.settings.optimizer, values["lr"], clip)

    def prepare(
        self, state: PPOState, rollout: Rollout, progress: Progress
    ) -> tuple[PPOBatch, Metrics]:
        """Advantages (GAE, Schulman et al. 2016, eq. 16) and value targets of a train batch."""
        values = current_values(state.hparams, progress)
        mask, estimates, next_estimates = rollout.mask, *self._values(state.sgd.params, rollout)
        advantages = returns.gae(
            rollout.reward,
            estimates,
            next_estimates,
            rollout.terminated,
            rollout.truncated,
            mask,
            values["gamma"],
            values["lambda_"] if self.settings.use_critic else jnp.ones(()),
        )
        if not self.settings.use_critic:
            mask = mask & returns.return_is_known(rollout.terminated, rollout.truncated)
        targets = advantages + estimates
        moments = losses.masked_moments(advantages, mask, self.axis_name)
        if self.settings.normalize_advantages in (True, "batch"):
            advantages = (advantages - moments.mean) / jnp.maximum(moments.std, 1e-4)
        batch = PPOBatch(
            obs=rollout.obs,
            action=rollout.action,
            log_prob=rollout.extras[Columns.ACTION_LOGP],
            dist_inputs=(
                rollout.extras[Columns.ACTION_DIST_INPUTS] if self.settings.use_kl_loss else None
            ),
            advantages=advantages,
            value_targets=targets,
            weight=mask.astype(jnp.float32) / jnp.maximum(moments.fraction, 1e-8),
        )
        metrics = {"curr_lr": values["lr"], "curr_entropy_coeff": values["entropy_coeff"]}
        if self.settings.use_kl_loss:
            metrics["curr_kl_coeff"] = state.kl_coeff
        if self.settings.use_critic:
            metrics["vf_explained_var"] = losses.explained_variance(
                targets, estimates, mask, self.axis_name
            )
        return batch, metrics

    def _values(
        self, params: Params, rollout: Rollout
    ) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
        if not self.settings.use_critic:
            zeros = jnp.zeros_like(rollout.reward)
            return zeros, zeros
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.obs)
        estimates = self.module.compute_values(params, flat).reshape(rollout.reward.shape)

        def value_fn(obs: PyTree) -> Float[Array, " N"]:
            return self.module.compute_values(params, obs)

        return estimates, successor_values(value_fn, rollout, estimates)

    def compute_loss(
        self,
        params: Params,
        batch: PPOBatch,
        values: dict[str, Float[Array, ""]],
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """L = -L_clip + c_kl KL + c_vf L_vf - c_ent H (eq. 9, with section 4's penalty).

        The override point for a custom loss: use `jnp.mean(batch.weight * x)` for means, so that
        rows that are no transitions count for nothing.

        Args:
            params: The module's parameters, which the gradient is taken for.
            batch: A minibatch, `[N, ...]`.
            values: Current hyperparameters by name, with the adaptive `kl_coeff`.
            key: For losses that draw; PPO does not.
        """
        del key
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], batch.obs)
        weight = batch.weight
        log_ratio = dist.log_prob(batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        policy_loss = jnp.mean(
            weight * losses.clipped_surrogate(ratio, batch.advantages, values["clip_param"])
        )
        entropy = jnp.mean(weight * dist.entropy())
        loss = policy_loss - values["entropy_coeff"] * entropy
        metrics = {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": jnp.mean(weight * (ratio - 1.0 - log_ratio)),
            "clip_fraction": jnp.mean(weight * (jnp.abs(ratio - 1.0) > values["clip_param"])),
        }
        if self.settings.use_critic:
            vf_loss = jnp.mean(
                weight
                * losses.clipped_value_loss(
                    out[Columns.VF_PREDS], batch.value_targets, values["vf_clip_param"]
                )
            )
            loss = loss + values["vf_loss_coeff"] * vf_loss
            metrics["vf_loss"] = vf_loss
        if self.settings.use_kl_loss:
            kl = jnp.mean(weight * self.module.action_dist(batch.dist_inputs, batch.obs).kl(dist))
            loss = loss + values["kl_coeff"] * kl
            metrics["mean_kl_loss"] = kl
        return loss, metrics

    def update(
        self, state: PPOState, batch: PPOBatch, progress: Progress, key: Key
    ) -> tuple[PPOState, Metrics]:
        values = {**current_values(state.hparams, progress), "kl_coeff": state.kl_coeff}
        if self.settings.normalize_advantages == "minibatch":
            batch = replace(batch, advantages=self._standardized(batch))
        sgd, metrics = sgd_step(
            lambda params: self.compute_loss(params, batch, values, key),
            self._optimizer(values),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        return replace(state, sgd=sgd), metrics

    def _standardized(self, batch: PPOBatch) -> Float[Array, " N"]:
        moments = losses.masked_moments(batch.advantages, batch.weight > 0.0, self.axis_name)
        return (batch.advantages - moments.mean) / jnp.maximum(moments.std, 1e-4)

    def finish(self, state: PPOState, metrics: Metrics, progress: Progress) -> PPOState:
        """Adapt the KL penalty: x1.5 above twice the target, x0.5 below half of it (section 4)."""
        if not self.settings.use_kl_loss:
            return state
        kl, target = metrics["mean_kl_loss"], current_values(state.hparams, progress)["kl_target"]
        factor = jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
        return replace(state, kl_coeff=state.kl_coeff * factor)


class PPOConfig(AlgorithmConfig):
    """Configuration of PPO."""

    algo_name = "PPO"
    training_settings: PPOTraining = PPOTraining(
        lr=5e-5, train_batch_size=4000, num_epochs=30, minibatch_size=128
    )
    training = fluent("training_settings", PPOTraining)

    def get_default_learner_class(self) -> type[PPOLearner]:
        return PPOLearner


class A2CConfig(PPOConfig):
    """Advantage actor-critic (Mnih et al. 2016): one step per batch, where the ratio is 1."""

    algo_name = "A2C"
    training_settings: PPOTraining = PPOTraining(
        lr=1e-3,
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

    Rows whose return is not known because the episode was cut are left out of the loss, so the
    environment's episodes must terminate.
    """

    algo_name = "PG"
    training_settings: PPOTraining = dataclasses.replace(
        A2CConfig.training_settings, use_critic=False, entropy_coeff=0.0
    )
