"""Shared steps of policy-gradient algorithms: initial state, advantage weights, gradient step."""

from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.hparams import HParams, HParamValues, build_hparams, current_values
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree
from jaxrl.errors import LossError
from jaxrl.learners.learner import SgdState, apply_gradients, validate_loss
from jaxrl.learners.microbatches import accumulate_gradients
from jaxrl.learners.optimizers import configure_optimizer
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops import losses

if TYPE_CHECKING:
    from jaxrl.config.settings.training import AdvantageTraining, OnPolicyTraining, Training

S = TypeVar("S")


class TrainedLearner(Protocol):
    """Learner with a module and one optimizer state for all of its parameters."""

    has_stacked_params: ClassVar[bool]

    @property
    def module(self) -> RLModule: ...
    @property
    def settings(self) -> "Training": ...


class LossLearner(Protocol):
    """Learner with one loss over minibatches that have a `weight`."""

    has_stacked_params: ClassVar[bool]

    @property
    def settings(self) -> "OnPolicyTraining": ...
    @property
    def axis_name(self) -> str | None: ...
    @property
    def log_gradients(self) -> bool: ...

    def compute_loss(
        self, params: Params, batch: PyTree, values: dict[str, Float[Array, ""]], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of a minibatch, or of a microbatch of it, and its metrics."""
        ...


class AdvantageLearner(LossLearner, Protocol):
    """Learner whose minibatches have `advantages`, too."""

    @property
    def settings(self) -> "AdvantageTraining": ...


def init_sgd_and_hparams(learner: "TrainedLearner", key: Key) -> tuple[SgdState, HParams]:
    """Initialize parameters, optimizer state and hyperparameters. Consumes the key."""
    params, hparams = learner.module.init(key), build_hparams(learner.settings)
    optimizer = configure_optimizer(learner, current_values(hparams, Progress.zeros()), params)
    return SgdState(params=params, opt_state=optimizer.init(params)), hparams


def weight_advantages(
    advantages: Float[Array, "T B"],
    mask: Bool[Array, "T B"],
    normalize: bool | str,
    axis_name: str | None,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Return a train batch's advantages, standardized if set so, and the weights of its rows.

    A weight is 0 where a row is not a transition, and 1 on average over all devices.

    Args:
        advantages: Advantage of every row.
        mask: Whether each row counts.
        normalize: Setting `normalize_advantages`; "minibatch" is left to `policy_gradient_step`.
        axis_name: Mesh axis that the environments are divided over, or None.
    """
    moments = losses.masked_moments(advantages, mask, axis_name)
    if normalize in (True, "batch"):
        advantages = losses.standardize(advantages, moments)
    return advantages, mask.astype(jnp.float32) / jnp.maximum(moments.fraction, 1e-8)


def policy_gradient_step(
    learner: AdvantageLearner,
    state: S,
    batch: PyTree,
    values: dict[str, Float[Array, ""]],
    key: Key,
) -> tuple[S, Metrics]:
    """Take one gradient step on a minibatch, `[N, ...]`, with advantages standardized if set so.

    Args:
        learner: Learner with the loss and its settings.
        state: State with parameters and optimizer state as `sgd`.
        batch: Minibatch with `advantages` and `weight`.
        values: Current hyperparameters by name.
        key: Key of losses that draw. Consumed.
    """
    if learner.settings.normalize_advantages == "minibatch":
        rows = (batch.advantages, batch.weight > 0.0)
        batch = replace(batch, advantages=losses.standardize_masked(*rows, learner.axis_name))
    return loss_step(learner, state, batch, values, key)


def loss_step(
    learner: LossLearner, state: S, batch: PyTree, values: dict[str, Float[Array, ""]], key: Key
) -> tuple[S, Metrics]:
    """Take one gradient step on a minibatch that has a `weight`.

    Args:
        learner: Learner with the loss and its settings.
        state: State with parameters and optimizer state as `sgd`.
        batch: Minibatch, `[N, ...]`.
        values: Current hyperparameters by name.
        key: Key of losses that draw. Consumed.
    """
    learner_state: PyTree = state
    named_values = HParamValues(values)
    found = accumulate_gradients(
        lambda params, rows, key: validate_loss(
            f"{type(learner).__name__}.compute_loss",
            learner.compute_loss(params, rows, named_values, key),
        ),
        learner_state.sgd.params,
        batch,
        key,
        learner.settings.microbatch_size,
    )
    optimizer = configure_optimizer(learner, values, learner_state.sgd.params)
    sgd, metrics = apply_gradients(
        found, optimizer, learner_state.sgd, learner.axis_name, learner.log_gradients
    )
    return replace(learner_state, sgd=sgd), metrics


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
