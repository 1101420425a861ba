"""DQN (Mnih et al. 2015, https://doi.org/10.1038/nature14236) and what was added to it, as settings.

Double Q-learning (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step targets and
prioritised replay (Schaul et al. 2016), C51 (Bellemare et al. 2017), QR-DQN (Dabney et al. 2018),
noisy nets (Fortunato et al. 2018), Ape-X's ladder of epsilons (Horgan et al. 2018); Rainbow
(Hessel et al. 2018) is all but two of them. Names and defaults are RLlib's; `num_quantiles` and
`epsilon_ladder` are ours. Deviations: with `noisy`, all dense layers are noisy, those of the encoder
too, with noise of its own for every row of a batch.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.value import DQNTraining
from jaxrl.core.hparams import HParams, current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.learner import SgdState, checked_loss, optimizer_of, sgd_step
from jaxrl.learners.policy_gradient import first_state
from jaxrl.learners.target_network import Target, first_target, followed
from jaxrl.modules.exploration import NOISE
from jaxrl.modules.model_config import TORCH_BIASES
from jaxrl.modules.q_network import ATOM_LOGITS, QUANTILES, QModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops import losses, value_losses


@pytree
class DQNState:
    """What DQN learns."""

    sgd: SgdState
    hparams: HParams
    target: Target


@dataclasses.dataclass(frozen=True, eq=False)
class DQNLearner:
    """The distance of action values, or of distributions of returns, from their targets."""

    module: QModule
    settings: DQNTraining
    axis_name: str | None = None
    log_gradients: bool = False

    def init(self, key: Key) -> DQNState:
        sgd, hparams = first_state(self.module, self.settings, key)
        return DQNState(sgd=sgd, hparams=hparams, target=first_target(sgd.params))

    def targets(
        self, params: Params, target_params: Params, batch: Transition, key: Key
    ) -> Float[Array, " N *m"]:
        """What is learned for the rows' actions: values, probabilities of atoms or quantiles.

        The value of next_obs is that of its best legal action, by the learned network with
        `double_q`, else by the target network itself. Networks have noise of their own.
        """
        choice_key, target_key = jax.random.split(key)
        out = self._forward(target_params, batch.next_obs, target_key)
        choosing = out
        if self.settings.double_q:
            choosing = self._forward(params, batch.next_obs, choice_key)
        ranking = choosing[Columns.ACTION_DIST_INPUTS]
        best = self.module.action_dist(ranking, batch.next_obs).mode()
        reward, discount = batch.reward, batch.discount
        if ATOM_LOGITS in out:
            probs = jax.nn.softmax(value_losses.rows_at_action(out[ATOM_LOGITS], best))
            z = self.module.support
            return value_losses.categorical_projection(reward, discount, probs, z)
        if QUANTILES in out:
            following = value_losses.rows_at_action(out[QUANTILES], best)
            return reward[..., None] + discount[..., None] * following
        following = value_losses.at_action(out[Columns.ACTION_DIST_INPUTS], best)
        if not self.settings.use_h_function:
            return reward + discount * following
        epsilon = self.settings.h_function_epsilon
        following = value_losses.unscaled(following, epsilon)
        return value_losses.rescaled(reward + discount * following, epsilon)

    def compute_loss(
        self, params: Params, batch: Transition, targets: Float[Array, " N *m"], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """The mean of `batch.weight` times the rows' losses.

        The override point for a custom loss. `td_error`, by which rows are replayed, is that of
        single values, and the loss itself of distributions. The key is for the network's noise.
        """
        out, action = self._forward(params, batch.obs, key), batch.action
        value = value_losses.at_action(out[Columns.ACTION_DIST_INPUTS], action)
        if ATOM_LOGITS in out:
            logits = value_losses.rows_at_action(out[ATOM_LOGITS], action)
            loss = error = value_losses.cross_entropy(logits, targets)
        elif QUANTILES in out:
            quantiles = value_losses.rows_at_action(out[QUANTILES], action)
            loss = error = value_losses.quantile_huber_loss(quantiles, targets)
        else:
            error = value - targets
            huber = self.settings.td_error_loss_fn == "huber"
            loss = losses.huber_loss(error) if huber else jnp.square(error)
        mean = partial(losses.masked_mean, mask=batch.weight > 0.0, axis_name=self.axis_name)
        return jnp.mean(batch.weight * loss), {
            "qf_mean": mean(value),
            "td_error_mean": mean(jnp.abs(error)),
            Columns.TD_ERROR: error,
        }

    def update(
        self, state: DQNState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[DQNState, Metrics]:
        values, settings = current_values(state.hparams, progress), self.settings
        target_key, loss_key = jax.random.split(key)
        targets = self.targets(state.sgd.params, state.target.params, batch, target_key)
        what = f"{type(self).__name__}.compute_loss"
        sgd, metrics = sgd_step(
            lambda params: checked_loss(what, self.compute_loss(params, batch, targets, loss_key)),
            optimizer_of(settings, values),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        frequency = settings.target_network_update_freq
        target = followed(state.target, sgd.params, metrics, progress, values["tau"], frequency)
        metrics = {**metrics, "curr_lr": values["lr"], "curr_epsilon": values["epsilon"]}
        return replace(state, sgd=sgd, target=target), metrics

    def _forward(self, params: Params, obs: PyTree, key: Key) -> dict[str, Any]:
        batch = {Columns.OBS: obs}
        if self.settings.noisy:
            num_rows = jax.tree.leaves(obs)[0].shape[0]
            batch[NOISE] = self.module.draw_noise(key, num_rows, self.axis_name)
        return self.module.forward_train(params, batch)


class DQNConfig(AlgorithmConfig):
    """Configuration of DQN."""

    algo_name = "DQN"
    training_settings: DQNTraining = DQNTraining(
        lr=5e-4,
        grad_clip=40.0,
        target_network_update_freq=500,
        replay_buffer_config={"type": "prioritized", "capacity": 50_000, "alpha": 0.6, "beta": 0.4},
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", DQNTraining)

    def get_default_learner_class(self) -> type[DQNLearner]:
        return DQNLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        # With zeros, networks are odd or homogeneous near 0, and plain DQN diverges on CartPole.
        return RLModuleSpec(module_class=QModule, model_config=TORCH_BIASES)

    def module_settings(self) -> dict[str, Any]:
        names = ("dueling", "num_atoms", "v_min", "v_max", "num_quantiles", "noisy", "sigma0")
        return super().module_settings() | {name: self[name] for name in names}

    def validate(self) -> None:
        super().validate()
        training = self.training_settings
        if training.num_atoms > 1 and training.num_quantiles > 1:
            raise ConfigError(
                f"num_atoms={training.num_atoms} (C51) and num_quantiles={training.num_quantiles} "
                "(QR-DQN) exclude each other; set one of them to 1."
            )
        if training.use_h_function and max(training.num_atoms, training.num_quantiles) > 1:
            raise ConfigError(
                f"use_h_function=True rescales single values, got num_atoms={training.num_atoms} and "
                f"num_quantiles={training.num_quantiles}; set both to 1, or leave it out."
            )
        if training.v_min >= training.v_max:
            raise ConfigError(
                f"v_min must be below v_max, got {training.v_min} and {training.v_max}; they "
                "bound the returns of C51."
            )


class RainbowConfig(DQNConfig):
    """DQN with the values of Hessel et al. 2018, table 1."""

    algo_name = "Rainbow"
    training_settings: DQNTraining = dataclasses.replace(
        DQNConfig.training_settings,
        num_atoms=51,
        noisy=True,
        epsilon=0.0,
        n_step=3,
        lr=6.25e-5,
        optimizer={"name": "adam", "eps": 1.5e-4},
        grad_clip=10.0,
        num_steps_sampled_before_learning_starts=20_000,
        training_intensity=8.0,  # a batch of 32 every 4 steps
        target_network_update_freq=8000,
        replay_buffer_config={
            "type": "prioritized",
            "capacity": 1_000_000,
            "alpha": 0.5,
            "beta": [[0, 0.4], [50_000_000, 1.0]],
        },
    )
