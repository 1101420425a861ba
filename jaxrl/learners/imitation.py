"""Base of learners that imitate recorded actions: the likelihood, and its gradient step."""

import abc
import dataclasses
from typing import TYPE_CHECKING, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParams, HParamValues, current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.distributions.base import DiagGaussian, Distribution, SquashedGaussian
from jaxrl.errors import ConfigError
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import SgdState, sgd_step, validate_loss
from jaxrl.learners.optimizers import configure_optimizer
from jaxrl.learners.policy_gradient import init_sgd_and_hparams
from jaxrl.modules.rl_module import RLModule

if TYPE_CHECKING:
    from jaxrl.config.settings.offline_training import BCTraining

S = TypeVar("S")


@pytree
class ImitationState:
    """Learner state: parameters, optimizer and hyperparameters."""

    sgd: SgdState
    hparams: HParams


@dataclasses.dataclass(frozen=True, eq=False)
class ImitationLearner(BaseLearner[S], abc.ABC):
    """Base of the learners: one gradient step on the likelihood of the recorded actions."""

    module: RLModule
    settings: "BCTraining"

    @abc.abstractmethod
    def compute_loss(
        self, params: Params, batch: Transition, values: dict[str, Float[Array, ""]], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of a minibatch, and metrics.

        Override this method for a custom loss. Means are of `batch.weight * x`, so that rows that
        are not transitions have no effect.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Current hyperparameters by name.
            key: Key for losses that draw.
        """

    def init_sgd(self, key: Key) -> tuple[SgdState, HParams]:
        """Initialize parameters, optimizer state and hyperparameters. Consumes the key.

        Raises:
            ConfigError: If actions have no standard deviation that the settings could weigh.
        """
        family = self.module.distribution.family
        if self.settings.bc_logstd_coeff > 0.0 and family not in (DiagGaussian, SquashedGaussian):
            raise ConfigError(
                f"bc_logstd_coeff={self.settings.bc_logstd_coeff} requires normal actions in a "
                f"Box, got {self.module.action_space}; leave it out."
            )
        return init_sgd_and_hparams(self, key)

    def compute_policy_loss(
        self, dist: Distribution, action: PyTree, weight: Float[Array, " N"]
    ) -> Float[Array, ""]:
        """Compute −E[w (log π(a|s) + c mean log σ(s))], c set by `bc_logstd_coeff`."""
        likelihood = dist.log_prob(action)
        if self.settings.bc_logstd_coeff > 0.0:
            assert isinstance(dist, DiagGaussian | SquashedGaussian)
            axes = tuple(range(likelihood.ndim, dist.log_std.ndim))
            spread = jnp.mean(dist.log_std, axis=axes)
            likelihood = likelihood + self.settings.bc_logstd_coeff * spread
        return -jnp.mean(weight * likelihood)

    def step(
        self, sgd: SgdState, batch: Transition, values: dict[str, Float[Array, ""]], key: Key
    ) -> tuple[SgdState, Metrics]:
        """Take one gradient step; a non-finite one changes nothing."""
        named_values, loss_name = HParamValues(values), f"{type(self).__name__}.compute_loss"
        stepped, metrics = sgd_step(
            lambda params: validate_loss(
                loss_name, self.compute_loss(params, batch, named_values, key)
            ),
            configure_optimizer(self, values, sgd.params),
            sgd,
            self.axis_name,
            self.log_gradients,
        )
        return stepped, {**metrics, "curr_lr": values["lr"]}


@dataclasses.dataclass(frozen=True, eq=False)
class LikelihoodLearner(ImitationLearner[ImitationState], abc.ABC):
    """Base of learners that keep nothing but parameters, optimizer and hyperparameters."""

    def init(self, key: Key) -> ImitationState:
        sgd, hparams = self.init_sgd(key)
        return ImitationState(sgd=sgd, hparams=hparams)

    def update(
        self, state: ImitationState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[ImitationState, Metrics]:
        values = current_values(state.hparams, progress)
        sgd, metrics = self.step(state.sgd, batch, values, key)
        return replace(state, sgd=sgd), metrics
