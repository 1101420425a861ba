"""Base of learners that regress action values onto targets of a target network."""

import dataclasses
from typing import TYPE_CHECKING

import jax
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParams, current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, Transition
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import SgdState, sgd_step, validate_loss
from jaxrl.learners.optimizers import configure_optimizer
from jaxrl.learners.policy_gradient import init_sgd_and_hparams
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.ops import value_losses

if TYPE_CHECKING:
    from jaxrl.config.settings.value import DQNTraining


@pytree
class ValueState:
    """State of a learner of action values."""

    sgd: SgdState
    hparams: HParams
    target: TargetNetwork


@dataclasses.dataclass(frozen=True, eq=False)
class ValueLearner(BaseLearner[ValueState]):
    """Gradient steps on a loss to targets that a target network bootstraps, as in DQN.

    A subclass defines `compute_td_targets` and `compute_loss`.
    """

    settings: "DQNTraining"

    def init(self, key: Key) -> ValueState:
        sgd, hparams = init_sgd_and_hparams(self, key)
        return ValueState(sgd=sgd, hparams=hparams, target=init_target(sgd.params))

    def compute_td_targets(
        self, params: Params, target_params: Params, batch: Transition, key: Key
    ) -> Float[Array, "*n"]:
        """Compute the targets of the rows' actions, through which no gradient flows."""
        raise NotImplementedError

    def compute_loss(
        self, params: Params, batch: Transition, targets: Float[Array, "*n"], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the loss of a minibatch, and metrics with the rows' `td_error`."""
        raise NotImplementedError

    def bootstrap(
        self,
        reward: Float[Array, "*n"],
        discount: Float[Array, "*n"],
        next_value: Float[Array, "*n"],
    ) -> Float[Array, "*n"]:
        """Compute the targets r + γ V of single values, rescaled if the settings say so."""
        if not self.settings.use_h_function:
            return reward + discount * next_value
        epsilon = self.settings.h_function_epsilon
        next_value = value_losses.signed_parabolic(next_value, epsilon)
        return value_losses.signed_hyperbolic(reward + discount * next_value, epsilon)

    def update(
        self, state: ValueState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[ValueState, Metrics]:
        values, settings = current_values(state.hparams, progress), self.settings
        target_key, loss_key = jax.random.split(key)
        targets = self.compute_td_targets(state.sgd.params, state.target.params, batch, target_key)
        loss_name = f"{type(self).__name__}.compute_loss"
        sgd, metrics = sgd_step(
            lambda params: validate_loss(
                loss_name, self.compute_loss(params, batch, targets, loss_key)
            ),
            configure_optimizer(self, values, state.sgd.params),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        frequency = settings.target_network_update_freq
        target = update_target(
            state.target, sgd.params, metrics, progress, values["tau"], frequency
        )
        metrics = {**metrics, "curr_lr": values["lr"], "curr_epsilon": values["epsilon"]}
        return replace(state, sgd=sgd, target=target), metrics
