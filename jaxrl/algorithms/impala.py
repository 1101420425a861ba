"""IMPALA (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561).

Names and defaults are RLlib's, except for `num_env_runners`, which is 0 here (RLlib: 2): without
Ray actors, experience comes from the compiled program or from a runner in this process. V-trace
targets are computed once for a whole train batch, with the parameters before its first update. With
one epoch over the whole batch, the default, that is the paper's loss; with several updates per
batch the targets are not recomputed.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.asynchronous import AsyncTraining
from jaxrl.core.hparams import HParams, current_values
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import SgdState
from jaxrl.learners.policy_gradient import init_sgd_and_hparams, policy_gradient_step
from jaxrl.learners.vtrace_targets import compute_vtrace_targets
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.sequences import forward_rollout, split_into_sequences
from jaxrl.ops import losses


@pytree
class IMPALAState:
    """Learner state of IMPALA."""

    sgd: SgdState
    hparams: HParams


@pytree
class IMPALABatch:
    """Train batch, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where a row is not a transition."""

    obs: PyTree
    action: PyTree
    advantages: Float[Array, "*batch"]
    value_targets: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class IMPALALearner(BaseLearner[IMPALAState]):
    """Policy gradient with V-trace advantages, value loss and entropy bonus."""

    module: RLModule
    settings: AsyncTraining

    def init(self, key: Key) -> IMPALAState:
        sgd, hparams = init_sgd_and_hparams(self, key)
        return IMPALAState(sgd=sgd, hparams=hparams)

    def prepare(
        self, state: IMPALAState, rollout: Rollout, progress: Progress
    ) -> tuple[IMPALABatch, Metrics]:
        """Compute V-trace targets (eq. 1) and advantages (section 4.2) of a train batch."""
        params, obs = state.sgd.params, rollout.obs
        out = forward_rollout(self.module, params, rollout)
        targets, metrics = compute_vtrace_targets(
            self.module,
            params,
            out,
            self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs).log_prob(rollout.action),
            rollout,
            current_values(state.hparams, progress),
            self.settings,
            self.axis_name,
        )
        batch = IMPALABatch(
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
        batch: IMPALABatch,
        values: dict[str, Float[Array, ""]],
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute L = −log π(a|s) A + c_vf ½ (v − vs)² − c_ent H (section 4.2), averaged over rows.

        Override this method for a custom loss. Means are of `batch.weight * x`, so that rows that
        are not transitions have no effect.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Current hyperparameters by name.
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
        loss = policy_loss + values["vf_loss_coeff"] * vf_loss - values["entropy_coeff"] * entropy
        return loss, {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy}

    def update(
        self, state: IMPALAState, batch: IMPALABatch, progress: Progress, key: Key
    ) -> tuple[IMPALAState, Metrics]:
        values = current_values(state.hparams, progress)
        return policy_gradient_step(self, state, batch, values, key)

    def finish(self, state: IMPALAState, metrics: Metrics, progress: Progress) -> IMPALAState:
        """Return the state unchanged: there is no target network and no adaptive penalty."""
        del metrics, progress
        return state


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

    def get_default_learner_class(self) -> type[IMPALALearner]:
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
