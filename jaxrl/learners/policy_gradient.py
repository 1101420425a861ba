"""Learners with one loss over minibatches of a train batch, and those with advantages."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.hparams import HParams
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree
from jaxrl.errors import LossError
from jaxrl.learners.gradients import SgdState, accumulate_gradients, apply_gradients, validate_loss
from jaxrl.learners.learner import BaseLearner
from jaxrl.ops import losses

if TYPE_CHECKING:
    from jaxrl.config.settings.training import AdvantageTraining, OnPolicyTraining

S = TypeVar("S")


@pytree
class SgdLearnerState:
    """Learner state: parameters, optimizer and hyperparameters."""

    sgd: SgdState
    hparams: HParams


@pytree
class PolicyGradientBatch:
    """Train batch, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where a row is not a transition."""

    obs: PyTree
    action: PyTree
    advantages: Float[Array, "*batch"]
    value_targets: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class LossLearner(BaseLearner[S], abc.ABC):
    """Base of learners with one loss over minibatches that have a `weight`."""

    settings: "OnPolicyTraining"

    @abc.abstractmethod
    def compute_loss(
        self, params: Params, batch: PyTree, values: Any, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of a minibatch, or of a microbatch of it, and its metrics."""

    def step(
        self, state: S, batch: PyTree, values: "OnPolicyTraining", key: Key
    ) -> tuple[S, Metrics]:
        """Take one gradient step on a minibatch, `[N, ...]`.

        Args:
            state: State with parameters and optimizer state as `sgd`.
            batch: Minibatch.
            values: Settings with the values of the moment.
            key: Key of losses that draw. Consumed.
        """
        batch = self.prepare_minibatch(batch)
        learner_state: PyTree = state
        sgd, name = learner_state.sgd, f"{type(self).__name__}.compute_loss"
        found = accumulate_gradients(
            lambda params, rows, key: validate_loss(
                name, self.compute_loss(params, rows, values, key)
            ),
            sgd.params,
            batch,
            key,
            self.settings.microbatch_size,
        )
        optimizer = self.configure_optimizer(values, sgd.params)
        sgd, metrics = apply_gradients(found, optimizer, sgd, self.axis_name, self.log_gradients)
        return replace(learner_state, sgd=sgd), metrics

    def prepare_minibatch(self, batch: PyTree) -> PyTree:
        """Return the minibatch of a gradient step, here unchanged."""
        return batch

    def finish(self, state: S, metrics: Metrics, progress: Progress) -> S:
        """Return the state after a train batch, here unchanged."""
        del metrics, progress
        return state


@dataclasses.dataclass(frozen=True, eq=False)
class AdvantageLearner(LossLearner[S], abc.ABC):
    """Base of learners whose minibatches have `advantages`, too."""

    settings: "AdvantageTraining"

    def weight_advantages(
        self, advantages: Float[Array, "T B"], mask: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
        """Return a train batch's advantages, standardized if set so, and the weights of its rows.

        A weight is 0 where a row is not a transition, and 1 on average over all devices.

        Args:
            advantages: Advantage of every row.
            mask: Whether each row counts.
        """
        moments = losses.masked_moments(advantages, mask, self.axis_name)
        if self.settings.normalize_advantages in (True, "batch"):
            advantages = losses.standardize(advantages, moments)
        return advantages, mask.astype(jnp.float32) / jnp.maximum(moments.fraction, 1e-8)

    def prepare_minibatch(self, batch: PyTree) -> PyTree:
        """Standardize the advantages over the minibatch, if set so."""
        if self.settings.normalize_advantages != "minibatch":
            return batch
        rows = (batch.advantages, batch.weight > 0.0)
        return replace(batch, advantages=losses.standardize_masked(*rows, self.axis_name))


def get_kl_metric(metrics: Metrics) -> Float[Array, ""]:
    """Return the divergence that adapts `kl_coeff`.

    Raises:
        LossError: If the loss did not return it.
    """
    if "mean_kl_loss" not in metrics:
        raise LossError(
            "The loss returns no metric 'mean_kl_loss', which adapts kl_coeff: return it, or set "
            "training(use_kl_loss=False)."
        )
    return metrics["mean_kl_loss"]
