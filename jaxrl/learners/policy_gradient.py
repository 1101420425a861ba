"""What algorithms that learn from advantages have in common: the first state, weights, the step."""

from typing import Any, Protocol, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.hparams import HParams, Values, current_values, hyperparameters
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Metrics, Params, Progress
from jaxrl.learners.learner import SgdState, checked_loss, optimizer_of, step_along
from jaxrl.learners.microbatches import gradients
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops import losses

S = TypeVar("S")


class LossLearner(Protocol):
    """A Learner with one loss over minibatches that have a `weight`."""

    @property
    def settings(self) -> Any: ...
    @property
    def axis_name(self) -> str | None: ...
    @property
    def log_gradients(self) -> bool: ...

    def compute_loss(
        self, params: Params, batch: Any, values: dict[str, Float[Array, ""]], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """The mean loss of a minibatch's rows, or of a part of them, and its metrics."""
        ...


def first_state(module: RLModule, settings: Any, key: Key) -> tuple[SgdState, HParams]:
    """First parameters with their optimiser, and the hyperparameters. Consumes the key."""
    params, hparams = module.init(key), hyperparameters(settings)
    optimizer = optimizer_of(settings, current_values(hparams, Progress.zero()))
    return SgdState(params=params, opt_state=optimizer.init(params)), hparams


def weighted_advantages(
    advantages: Float[Array, "T B"],
    mask: Bool[Array, "T B"],
    normalize: bool | str,
    axis_name: str | None,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """A train batch's advantages, standardised if it is its turn, and the weights of its rows.

    A weight is 0 where no transition is, and 1 on average over all devices.

    Args:
        advantages: Of every row.
        mask: Which rows count.
        normalize: The setting `normalize_advantages`; "minibatch" is left to `descend`.
        axis_name: Mesh axis that the environments are divided over, or None.
    """
    moments = losses.masked_moments(advantages, mask, axis_name)
    if normalize in (True, "batch"):
        advantages = losses.standardize(advantages, moments)
    return advantages, mask.astype(jnp.float32) / jnp.maximum(moments.fraction, 1e-8)


def descend(
    learner: LossLearner, state: S, batch: Any, values: dict[str, Float[Array, ""]], key: Key
) -> tuple[S, Metrics]:
    """The state after one step down the learner's loss of a minibatch, `[N, ...]`.

    Args:
        learner: Its loss and settings.
        state: With the parameters and optimiser as `sgd`.
        batch: With `advantages` and `weight`.
        values: Current hyperparameters by name.
        key: For losses that draw. Consumed.
    """
    if learner.settings.normalize_advantages == "minibatch":
        rows = (batch.advantages, batch.weight > 0.0)
        batch = replace(batch, advantages=losses.standardized(*rows, learner.axis_name))
    return step_down(learner, state, batch, values, key)


def step_down(
    learner: LossLearner, state: S, batch: Any, values: dict[str, Float[Array, ""]], key: Key
) -> tuple[S, Metrics]:
    """`descend` for minibatches that have a `weight`, and no advantages to standardise."""
    holder: Any = state
    named = Values(values)
    found = gradients(
        lambda params, rows, key: checked_loss(
            f"{type(learner).__name__}.compute_loss",
            learner.compute_loss(params, rows, named, key),
        ),
        holder.sgd.params,
        batch,
        key,
        learner.settings.microbatch_size,
    )
    optimizer = optimizer_of(learner.settings, values)
    sgd, metrics = step_along(
        found, optimizer, holder.sgd, learner.axis_name, learner.log_gradients
    )
    return replace(holder, sgd=sgd), metrics
