"""DQN (Mnih et al. 2015) with double Q-learning and a target network."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import Schedule, field, fluent
from jaxrl.config.replay_groups import OffPolicyTraining
from jaxrl.core.hparams import HParams, current_values
from jaxrl.core.learner import SgdState, optimizer_of, sgd_step
from jaxrl.core.off_policy import mixed
from jaxrl.core.policy_gradient import first_state
from jaxrl.core.q_module import QModule
from jaxrl.core.rl_module import RLModuleSpec
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, Transition
from jaxrl.ops import losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DQNTraining(OffPolicyTraining):
    """Settings of DQN; names and defaults are RLlib's."""

    epsilon: Schedule = field(
        default=[[0, 1.0], [10000, 0.05]],
        sweepable=True,
        doc="Probability of a random action, or its schedule.",
    )
    double_q: bool = field(
        default=True, doc="The learned network picks the action that the target network values."
    )
    dueling: bool = field(default=True, doc="Values and advantages have heads of their own.")
    td_error_loss_fn: Literal["huber", "mse"] = field(
        default="huber", doc="The loss of a TD error."
    )


@pytree
class DQNState:
    """What DQN learns; `target_age` is when the target network was renewed, in env steps."""

    sgd: SgdState
    hparams: HParams
    target: Params
    target_renewed: UInt32[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class DQNLearner:
    """The TD error's loss, and a target network."""

    module: QModule
    settings: DQNTraining
    axis_name: str | None = None
    log_gradients: bool = False

    def init(self, key: Key) -> DQNState:
        sgd, hparams = first_state(self.module, self.settings, key)
        return DQNState(
            sgd=sgd,
            hparams=hparams,
            target=jax.tree.map(jnp.copy, sgd.params),
            target_renewed=jnp.zeros((), jnp.uint32),
        )

    def _targets(self, state: DQNState, batch: Transition) -> Float[Array, " N"]:
        following = {Columns.OBS: batch.next_obs}
        values = self.module.forward_train(state.target, following)[Columns.ACTION_DIST_INPUTS]
        choosing = values
        if self.settings.double_q:
            out = self.module.forward_train(state.sgd.params, following)
            choosing = out[Columns.ACTION_DIST_INPUTS]
        best = self.module.action_dist(choosing, batch.next_obs).mode()
        value = jnp.take_along_axis(values, best[:, None], axis=-1)[:, 0]
        return batch.reward + batch.discount * value

    def compute_loss(
        self, params: Params, batch: Transition, targets: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        out = self.module.forward_train(params, {Columns.OBS: batch.obs})
        values = out[Columns.ACTION_DIST_INPUTS]
        value = jnp.take_along_axis(values, batch.action[:, None], axis=-1)[:, 0]
        td_error = value - targets
        huber = self.settings.td_error_loss_fn == "huber"
        loss = losses.huber_loss(td_error) if huber else 0.5 * jnp.square(td_error)
        return jnp.mean(batch.weight * loss), {
            "qf_mean": jnp.mean(value),
            Columns.TD_ERROR: td_error,
        }

    def update(
        self, state: DQNState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[DQNState, Metrics]:
        del key
        values, settings = current_values(state.hparams, progress), self.settings
        targets = self._targets(state, batch)
        sgd, metrics = sgd_step(
            lambda params: self.compute_loss(params, batch, targets),
            optimizer_of(settings, values),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        age = progress.env_steps.low - state.target_renewed
        due = age >= settings.target_network_update_freq
        return replace(
            state,
            sgd=sgd,
            target=mixed(due, values["tau"], sgd.params, state.target),
            target_renewed=jnp.where(due, progress.env_steps.low, state.target_renewed),
        ), metrics


class DQNConfig(AlgorithmConfig):
    """Configuration of DQN."""

    algo_name = "DQN"
    training_settings: DQNTraining = DQNTraining(
        lr=5e-4, grad_clip=40.0, target_network_update_freq=500
    )
    training = fluent("training_settings", DQNTraining)

    def get_default_learner_class(self) -> type[DQNLearner]:
        return DQNLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=QModule, model_config={"fcnet_activation": "relu"})

    def module_settings(self) -> dict[str, Any]:
        return {**super().module_settings(), "dueling": self.training_settings.dueling}
