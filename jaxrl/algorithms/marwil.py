"""MARWIL (Wang et al. 2018), and BC, behavior cloning, which is MARWIL with beta=0.

Exponentially Weighted Imitation Learning for Batched Historical Data, NeurIPS 2018: recorded
actions are imitated, weighted by the exponential of their advantages. Names and defaults are
RLlib's. Deviations from RLlib: the value of an episode's last observation is that of the current
parameters (RLlib: of those that prepared the batch); with beta=0 there is no value function at all.
"""

import abc
import dataclasses
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.modules import resolve_default_model_config
from jaxrl.config.settings.offline import BCTraining, MARWILTraining
from jaxrl.core.hparams import HParams
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Key,
    Metrics,
    Params,
    Progress,
    PyTree,
    ReturnColumns,
    Transition,
)
from jaxrl.distributions.base import DiagGaussian, Distribution, SquashedGaussian
from jaxrl.errors import ConfigError
from jaxrl.learners.bootstrap import compute_window_returns
from jaxrl.learners.gradients import (
    NUM_NONFINITE_UPDATES,
    SgdState,
    select,
    sgd_step,
    validate_loss,
)
from jaxrl.learners.learner import BaseLearner
from jaxrl.learners.policy_gradient import SgdLearnerState
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops import losses

SQD_ADV_NORM = "moving_avg_sqd_adv_norm"
"""Metric that is the moving average of squared advantages, RLlib's name."""
_SQD_ADV = "sqd_adv_mean"
"""Metric of the loss that is the mean of a batch's squared advantages."""
_ADVANTAGE_SETTINGS = (
    "lambda_",
    "vf_coeff",
    "moving_average_sqd_adv_norm_start",
    "moving_average_sqd_adv_norm_update_rate",
)
"""Settings of advantages, which behavior cloning has none of."""


S = TypeVar("S")
V = TypeVar("V", bound=BCTraining)


@dataclasses.dataclass(frozen=True, eq=False)
class ImitationLearner(BaseLearner[S], Generic[S, V], abc.ABC):
    """Base of the learners: one gradient step on the likelihood of the recorded actions."""

    module: RLModule
    settings: BCTraining

    @abc.abstractmethod
    def compute_loss(
        self, params: Params, batch: Transition, values: V, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of a minibatch, and metrics.

        Override this method for a custom loss. Means are of `batch.weight * x`, so that rows that
        are not transitions have no effect.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Settings with the values of the moment.
            key: Key for losses that draw.
        """

    def init_sgd(self, key: Key) -> tuple[SgdState, HParams]:
        """Initialize as other learners do. Consumes the key.

        Raises:
            ConfigError: If actions have no standard deviation that the settings could weigh.
        """
        family = self.module.distribution.family
        if self.settings.bc_logstd_coeff > 0.0 and family not in (DiagGaussian, SquashedGaussian):
            raise ConfigError(
                f"bc_logstd_coeff={self.settings.bc_logstd_coeff} requires normal actions in a "
                f"Box, got {self.module.action_space}; leave it out."
            )
        return super().init_sgd(key)

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
        self, sgd: SgdState, batch: Transition, values: V, key: Key
    ) -> tuple[SgdState, Metrics]:
        """Take one gradient step; a non-finite one changes nothing."""
        loss_name = f"{type(self).__name__}.compute_loss"
        stepped, metrics = sgd_step(
            lambda params: validate_loss(loss_name, self.compute_loss(params, batch, values, key)),
            self.configure_optimizer(values, sgd.params),
            sgd,
            self.axis_name,
            self.log_gradients,
        )
        return stepped, {**metrics, "curr_lr": values.lr}


@dataclasses.dataclass(frozen=True, eq=False)
class BCLearner(ImitationLearner[SgdLearnerState, BCTraining]):
    """Likelihood of the recorded actions."""

    def init(self, key: Key) -> SgdLearnerState:
        sgd, hparams = self.init_sgd(key)
        return SgdLearnerState(sgd=sgd, hparams=hparams)

    def update(
        self, state: SgdLearnerState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        values = self.settings.at(state.hparams, progress)
        sgd, metrics = self.step(state.sgd, batch, values, key)
        return replace(state, sgd=sgd), metrics

    def compute_loss(
        self, params: Params, batch: Transition, values: BCTraining, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −E[w log π(a|s)], with the term of `bc_logstd_coeff`; the key is unused."""
        del values, key
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], batch.obs)
        policy_loss = self.compute_policy_loss(dist, batch.action, batch.weight)
        return policy_loss, {"policy_loss": policy_loss}


@pytree
class MARWILState(SgdLearnerState):
    """Learner state; `sqd_adv_norm` is the moving average of squared advantages.

    `sqd_adv_norm_rest` is what a float32 of its size does not hold. At the default rate, an update
    moves the average by less than half of its last digit.
    """

    sqd_adv_norm: Float[Array, ""]
    sqd_adv_norm_rest: Float[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class MARWILLearner(ImitationLearner[MARWILState, MARWILTraining]):
    """Likelihood of the recorded actions, weighted by exponentials of their advantages."""

    settings: MARWILTraining
    needs_returns: ClassVar[bool] = True

    def init(self, key: Key) -> MARWILState:
        sgd, hparams = self.init_sgd(key)
        start = self.settings.moving_average_sqd_adv_norm_start
        return MARWILState(
            sgd=sgd,
            hparams=hparams,
            sqd_adv_norm=jnp.asarray(start, jnp.float32),
            sqd_adv_norm_rest=jnp.zeros((), jnp.float32),
        )

    def compute_loss(
        self, params: Params, batch: Transition, values: MARWILTraining, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −E[w exp(β A / c) log π(a|s)] + c_vf ½ E[w A²], A = G − V(s)  (eq. 6, section 3).

        c² is the moving average of E[A²], to which this batch is added first, G the return.

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Minibatch with the extras of `ReturnColumns`.
            values: Settings with the values of the moment; `moving_average_sqd_adv_norm_start` is c²
                before the step.
            key: Key for losses that draw; unused here.
        """
        del key
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], batch.obs)
        value, is_row = out[Columns.VF_PREDS], batch.weight > 0.0
        targets = self.compute_value_targets(params, batch, out, values)
        advantages = targets - value
        mean_square = self.compute_mean_square(advantages, is_row)
        rate = values.moving_average_sqd_adv_norm_update_rate
        norm = values.moving_average_sqd_adv_norm_start
        norm = norm + rate * (mean_square - norm)
        scale = values.beta / (1e-8 + jnp.sqrt(norm))
        # Other rows may have any advantage, and 0 times an infinite weight is no number.
        weight = losses.exponential_weight(jnp.where(is_row, advantages, 0.0), scale)
        policy_loss = self.compute_policy_loss(dist, batch.action, batch.weight * weight)
        vf_loss = 0.5 * jnp.mean(batch.weight * jnp.square(advantages))
        explained = losses.explained_variance(targets, value, is_row, self.axis_name)
        return policy_loss + values.vf_coeff * vf_loss, {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "vf_explained_var": explained,
            SQD_ADV_NORM: norm,
            _SQD_ADV: mean_square,
        }

    def compute_value_targets(
        self,
        params: Params,
        batch: Transition,
        out: dict[str, PyTree],
        values: MARWILTraining,
    ) -> Float[Array, " N"]:
        """Compute the return of each row, bootstrapped from the end of its recorded part.

        With `lambda_` below 1, it is the λ-return within the row's window.

        Args:
            params: Parameters of the module.
            batch: Minibatch.
            out: Outputs of the module for the minibatch.
            values: Settings with the values of the moment.
        """
        if self.settings.lambda_ < 1.0:
            value_fn = partial(self.module.compute_values, jax.lax.stop_gradient(params))
            return compute_window_returns(value_fn, batch, out, values.gamma, self.settings.lambda_)
        extras = batch.extras
        end_value = self.module.compute_values(params, extras[ReturnColumns.END_OBS])
        return jax.lax.stop_gradient(
            extras[ReturnColumns.RETURN_TO_GO] + extras[ReturnColumns.END_DISCOUNT] * end_value
        )

    def compute_mean_square(
        self, advantages: Float[Array, " N"], is_row: Bool[Array, " N"]
    ) -> Float[Array, ""]:
        """Compute E[A²] over the rows of all devices, without a gradient."""
        squares = jnp.square(jax.lax.stop_gradient(advantages))
        mean_square = losses.masked_mean(squares, is_row, self.axis_name)
        if self.axis_name is not None:
            mean_square = jax.lax.pmean(mean_square, self.axis_name)
        return mean_square

    def update(
        self, state: MARWILState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[MARWILState, Metrics]:
        values = replace(
            self.settings.at(state.hparams, progress),
            moving_average_sqd_adv_norm_start=state.sqd_adv_norm,
        )
        sgd, metrics = self.step(state.sgd, batch, values, key)
        mean_square = metrics.pop(_SQD_ADV)
        rate = values.moving_average_sqd_adv_norm_update_rate
        moved = move_average(state.sqd_adv_norm, state.sqd_adv_norm_rest, mean_square, rate)
        before = (state.sqd_adv_norm, state.sqd_adv_norm_rest)
        norm, rest = select(metrics[NUM_NONFINITE_UPDATES] < 0.5, moved, before)
        return replace(state, sgd=sgd, sqd_adv_norm=norm, sqd_adv_norm_rest=rest), metrics


def move_average(
    average: Float[Array, ""],
    rest: Float[Array, ""],
    value: Float[Array, ""],
    rate: Float[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Compute m ← m + rate (x − m) with compensated summation  (Kahan 1965).

    Args:
        average: Average m, as far as float32 holds it.
        rest: Rest of it.
        value: Value x.
        rate: Weight of the value.

    Returns:
        The average and its rest.
    """
    change = rate * ((value - average) - rest) + rest
    moved = average + change
    return moved, change - (moved - average)


class BCConfig(AlgorithmConfig):
    """Configuration of behavior cloning."""

    algo_name = "BC"
    requires_data = True
    learns_in_epochs = True
    training_settings: BCTraining = BCTraining(lr=1e-4)
    training = fluent("training_settings", BCTraining)

    def get_default_learner_class(self) -> type[BCLearner]:
        return BCLearner


class MARWILConfig(AlgorithmConfig):
    """Configuration of MARWIL."""

    algo_name = "MARWIL"
    requires_data = True
    learns_in_epochs = True
    training_settings: MARWILTraining = MARWILTraining(lr=1e-4)
    training = fluent("training_settings", MARWILTraining)

    def get_default_learner_class(self) -> type[ImitationLearner[Any, Any]]:
        return MARWILLearner if self.training_settings.needs_values else BCLearner

    @property
    def needs_returns(self) -> bool:
        return super().needs_returns and not self._has_windows

    @property
    def rows_per_window(self) -> int | None:
        model = resolve_default_model_config(self)
        has_memory = model is not None and model.is_recurrent
        return (
            self.training_settings.window_length if self._has_windows and not has_memory else None
        )

    @property
    def _has_windows(self) -> bool:
        """True if advantages are computed within windows of successive rows."""
        return self.training_settings.needs_values and self.training_settings.lambda_ < 1.0

    def validate(self) -> None:
        super().validate()
        training = self.training_settings
        for name in () if training.needs_values else _ADVANTAGE_SETTINGS:
            if self[name] != type(self)()[name]:
                raise ConfigError(
                    f"{name}={self[name]} has no effect with beta=0, which has no advantages and learns "
                    "no values: leave it out, or set beta above 0."
                )
        if training.window_length != type(training)().window_length and not self.rows_per_window:
            why = (
                "with memory: set max_seq_len" if self._has_windows else "unless lambda_ is below 1"
            )
            raise ConfigError(
                f"window_length={training.window_length} has no effect {why}; leave it out."
            )
