"""DQN (Mnih et al. 2015, https://doi.org/10.1038/nature14236) and its extensions, as settings.

Double Q-learning (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step targets and
prioritized replay (Schaul et al. 2016), C51 (Bellemare et al. 2017), QR-DQN (Dabney et al. 2018),
noisy nets (Fortunato et al. 2018), Ape-X's ladder of epsilons (Horgan et al. 2018); Rainbow
(Hessel et al. 2018) is all but two of them. For recorded data, the conservative penalty of CQL
(Kumar et al. 2020). Names and defaults are RLlib's; `num_quantiles`, `epsilon_ladder` and `cql_alpha`
are additions. Deviations: with `noisy`, all dense layers are noisy, those of the encoder too, with separate noise for every row of a batch.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.replay import APEX_REPLAY_BUFFER
from jaxrl.config.settings.value import DQNTraining
from jaxrl.core.hparams import HParams
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    IS_RECORDED,
    Columns,
    Key,
    Metrics,
    Params,
    Progress,
    PyTree,
    Transition,
)
from jaxrl.distributions.base import mask_logits
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import SgdState, sgd_step, validate_loss
from jaxrl.learners.learner import BaseLearner
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.exploration import NOISE
from jaxrl.modules.model_config import TORCH_BIASES
from jaxrl.modules.q_network import ATOM_LOGITS, QUANTILES, QModule
from jaxrl.modules.rl_module import RLModule, RLModuleSpec
from jaxrl.ops import losses, value_losses


@pytree
class DQNState:
    """State of a learner of action values."""

    sgd: SgdState
    hparams: HParams
    target: TargetNetwork


def compute_action_penalties(
    module: RLModule,
    settings: DQNTraining,
    batch: Transition,
    values: Float[Array, "*n actions"],
) -> dict[str, Float[Array, "*n"]]:
    """Compute the weighted penalties that the settings ask for, by metric; none by default.

    `cql_loss` pushes down the values of the actions that the row does not have (Kumar et al. 2020),
    and `margin_loss` those above the row's less a margin, where rows are recorded (Hester et al.
    2018). Illegal actions have no part.

    Args:
        module: Module that knows which actions are legal.
        settings: Settings of the learner.
        batch: Minibatch.
        values: Values of all actions, of distributions their means.
    """
    penalties: dict[str, Array] = {}
    if settings.cql_alpha == settings.margin_coeff == 0.0:
        return penalties
    legal_values = mask_logits(values, module.action_mask(batch.obs))
    if settings.cql_alpha > 0.0:
        value = value_losses.batched_index(values, batch.action)
        gap = value_losses.conservative_gap(legal_values, value)
        penalties["cql_loss"] = settings.cql_alpha * gap
    if settings.margin_coeff > 0.0:
        loss = value_losses.large_margin(legal_values, batch.action, settings.margin)
        is_recorded = batch.extras.get(IS_RECORDED, 1.0)
        penalties["margin_loss"] = settings.margin_coeff * is_recorded * loss
    return penalties


@dataclasses.dataclass(frozen=True, eq=False)
class DQNLearner(BaseLearner[DQNState]):
    """Regression of action values, or of return distributions, onto bootstrapped targets."""

    module: QModule
    settings: DQNTraining

    def init(self, key: Key) -> DQNState:
        sgd, hparams = self.init_sgd(key)
        return DQNState(sgd=sgd, hparams=hparams, target=init_target(sgd.params))

    def compute_td_targets(
        self, params: Params, target_params: Params, batch: Transition, key: Key
    ) -> Float[Array, " N *m"]:
        """Compute the targets of the rows' actions: values, probabilities of atoms or quantiles.

        The value of `next_obs` is that of its best legal action: with `double_q` the best by the
        online network, else by the target network itself. Each forward pass draws its own noise.
        """
        selection_key, target_key = jax.random.split(key)
        target_out = self._forward(target_params, batch.next_obs, target_key)
        selection_out = target_out
        if self.settings.double_q:
            selection_out = self._forward(params, batch.next_obs, selection_key)
        selection_values = selection_out[Columns.ACTION_DIST_INPUTS]
        best = self.module.action_dist(selection_values, batch.next_obs).mode()
        reward, discount = batch.reward, batch.discount
        if ATOM_LOGITS in target_out:
            probs = jax.nn.softmax(value_losses.batched_index_rows(target_out[ATOM_LOGITS], best))
            z = self.module.support
            return value_losses.categorical_projection(reward, discount, probs, z)
        if QUANTILES in target_out:
            next_value = value_losses.batched_index_rows(target_out[QUANTILES], best)
            return reward[..., None] + discount[..., None] * next_value
        next_value = value_losses.batched_index(target_out[Columns.ACTION_DIST_INPUTS], best)
        return self.bootstrap(reward, discount, next_value)

    def compute_loss(
        self, params: Params, batch: Transition, targets: Float[Array, " N *m"], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean of `batch.weight` times the rows' losses.

        Override this method for a custom loss. `td_error`, which sets replay priorities, is the
        error of single values, and the loss itself of distributions. The key is for the network's
        noise.
        """
        out, action = self._forward(params, batch.obs, key), batch.action
        value = value_losses.batched_index(out[Columns.ACTION_DIST_INPUTS], action)
        if ATOM_LOGITS in out:
            logits = value_losses.batched_index_rows(out[ATOM_LOGITS], action)
            loss = error = value_losses.cross_entropy(logits, targets)
        elif QUANTILES in out:
            quantiles = value_losses.batched_index_rows(out[QUANTILES], action)
            loss = error = value_losses.quantile_huber_loss(quantiles, targets)
        else:
            error = value - targets
            use_huber = self.settings.td_error_loss_fn == "huber"
            loss = losses.huber_loss(error) if use_huber else jnp.square(error)
        mean = partial(losses.masked_mean, mask=batch.weight > 0.0, axis_name=self.axis_name)
        all_values = out[Columns.ACTION_DIST_INPUTS]
        penalties = compute_action_penalties(self.module, self.settings, batch, all_values)
        return jnp.mean(batch.weight * sum(penalties.values(), start=loss)), {
            "qf_mean": mean(value),
            "td_error_mean": mean(jnp.abs(error)),
            Columns.TD_ERROR: error,
            **{name: jnp.mean(batch.weight * penalty) for name, penalty in penalties.items()},
        }

    def _forward(self, params: Params, obs: PyTree, key: Key) -> dict[str, Any]:
        batch = {Columns.OBS: obs}
        if self.settings.noisy:
            num_rows = jax.tree.leaves(obs)[0].shape[0]
            batch[NOISE] = self.module.draw_noise(key, num_rows, self.axis_name)
        return self.module.forward_train(params, batch)

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
        self, state: DQNState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[DQNState, Metrics]:
        values, settings = self.settings.at(state.hparams, progress), self.settings
        target_key, loss_key = jax.random.split(key)
        targets = self.compute_td_targets(state.sgd.params, state.target.params, batch, target_key)
        loss_name = f"{type(self).__name__}.compute_loss"
        sgd, metrics = sgd_step(
            lambda params: validate_loss(
                loss_name, self.compute_loss(params, batch, targets, loss_key)
            ),
            self.configure_optimizer(values, state.sgd.params),
            state.sgd,
            self.axis_name,
            self.log_gradients,
        )
        frequency = settings.target_network_update_freq
        target = update_target(state.target, sgd.params, metrics, progress, values.tau, frequency)
        metrics = {**metrics, "curr_lr": values.lr, "curr_epsilon": values.epsilon}
        return replace(state, sgd=sgd, target=target), metrics


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
        # Zero biases make networks odd or homogeneous near 0, and plain DQN diverges on CartPole.
        return RLModuleSpec(module_class=QModule, model_config=TORCH_BIASES)

    def get_module_settings(self) -> dict[str, Any]:
        names = ("dueling", "num_atoms", "v_min", "v_max", "num_quantiles", "noisy", "sigma0")
        return super().get_module_settings() | {name: self[name] for name in names}

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
                "use_h_function=True rescales single values, got num_atoms="
                f"{training.num_atoms} and num_quantiles={training.num_quantiles}; set both to 1, "
                "or leave it out."
            )
        self._check_margin()
        training.check_support()

    def _check_margin(self) -> None:
        """Raise ConfigError if settings of recorded rows have none, or a margin no loss."""
        training = self.training_settings
        if training.margin_coeff > 0.0 and not (self.is_offline or self.is_mixed):
            raise ConfigError(
                f"margin_coeff={training.margin_coeff} is the weight of a loss on recorded rows, and "
                f"input_={self.offline_data_settings.input_!r} has none: name some, such as input_="
                "{'sampler': 0.75, 'data/': 0.25}, or leave it out."
            )
        if training.margin != type(self).training_settings.margin and training.margin_coeff == 0.0:
            raise ConfigError(
                f"margin={training.margin} has no effect with margin_coeff=0, which disables its loss: "
                "leave it out, or set margin_coeff."
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


class SimpleQConfig(DQNConfig):
    """DQN without its extensions (Mnih et al. 2015), with the defaults of RLlib's SimpleQ."""

    algo_name = "SimpleQ"
    env_runners_settings = dataclasses.replace(
        DQNConfig.env_runners_settings, rollout_fragment_length=4
    )
    training_settings: DQNTraining = dataclasses.replace(
        DQNConfig.training_settings,
        double_q=False,
        dueling=False,
        epsilon=[[0, 1.0], [10_000, 0.02]],
        replay_buffer_config={"type": "uniform", "capacity": 50_000},
    )


class ApexDQNConfig(DQNConfig):
    """Ape-X DQN (Horgan et al. 2018): a ladder of epsilons, prioritized replay, 3-step targets.

    Defaults are those of RLlib's APEX (2.3), whose 32 workers with fragments of 50 steps are 32
    environments with fragments of 16 steps here, one batch of 512.
    """

    algo_name = "APEX"
    env_runners_settings = dataclasses.replace(
        DQNConfig.env_runners_settings, num_envs_per_env_runner=32, rollout_fragment_length=16
    )
    training_settings: DQNTraining = dataclasses.replace(
        DQNConfig.training_settings,
        epsilon=0.4,
        epsilon_ladder=7.0,
        n_step=3,
        train_batch_size=512,
        training_intensity=1.0,
        target_network_update_freq=500_000,
        num_steps_sampled_before_learning_starts=50_000,
        replay_buffer_config=APEX_REPLAY_BUFFER,
    )
    reporting_settings = dataclasses.replace(
        DQNConfig.reporting_settings, min_sample_timesteps_per_iteration=25_000
    )


class R2D2Config(DQNConfig):
    """R2D2 (Kapturowski et al. 2019): DQN with an LSTM, from sequences and on rescaled values.

    Defaults are those of RLlib's R2D2 (2.3), which starts sequences at a zero state; the paper
    stores the state and sets `burn_in_len` to 40. Its capacity of 100,000 sequences of 20 rows is
    the same number of rows here.
    """

    algo_name = "R2D2"
    training_settings: DQNTraining = dataclasses.replace(
        DQNConfig.training_settings,
        zero_init_states=True,
        use_h_function=True,
        optimizer={"name": "adam", "eps": 1e-3},
        lr=1e-4,
        gamma=0.997,
        train_batch_size=1000,
        training_intensity=150.0,
        target_network_update_freq=1000,
        replay_buffer_config={"type": "uniform", "capacity": 2_000_000},
    )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=QModule, model_config={**TORCH_BIASES, "use_lstm": True})
