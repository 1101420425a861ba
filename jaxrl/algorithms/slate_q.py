"""SlateQ (Ie et al. 2019, https://arxiv.org/abs/1905.12767): Q-learning of slates by their items.

A slate of k items is recommended, and the user chooses at most one. Where reward and next state depend
on the slate through what is chosen alone, the value of a slate is the mean of its items' long-term
values by the probabilities of their choice, so that values of single items are learned, of what was
chosen, and a model of the choice beside them (section 4).

Names and defaults are those of RLlib's SlateQ (2.3). Deviations from RLlib: reward is the environment's
(there the `watch_time` of what was clicked); the null item has a long-term value, as in the paper,
because a session goes on after no click (there it is worth 0, and rows without a click are not
learned from); values of successors are those of their own observation, with the learned choice
model and double Q (there of the observation before, with a fixed model); one network is
shared by all candidates (there one for each position), and the choice model is bilinear (there it has
two numbers); replay is uniform (there prioritized), and the optimizer Adam.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.algorithms.dqn import DQNLearner, DQNState
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import Check, Schedule, field, fluent, non_negative, positive
from jaxrl.config.settings.replay import parse_n_step
from jaxrl.config.settings.value import EpsilonGreedyTraining
from jaxrl.core.hparams import Traced
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.optimizers import Optimizers
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.modules.slate import CHOICE, VALUES, SlateModule
from jaxrl.ops import losses
from jaxrl.ops.slates import choose_best_slates, compute_slate_values, take_shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlateQTraining(EpsilonGreedyTraining):
    """Settings of SlateQ."""

    fcnet_hiddens_per_candidate: list[int] = field(
        default=[256, 32],
        check=Check(
            "a list of numbers of units of at least 1", lambda sizes: all(n >= 1 for n in sizes)
        ),
        doc="Numbers of units of the hidden layers of the network that values an item of a user, and of "
        "the one that values no click.",
    )
    lr_choice_model: Traced[Schedule | Callable[[Any], Any]] = field(
        default=1e-3,
        check=non_negative,
        doc="Learning rate of the choice model, in the same forms as lr, which is that of the values.",
    )
    use_huber: bool = field(
        default=False,
        doc="Whether the loss of values is Huber's; otherwise it is the squared error.",
    )
    huber_threshold: float = field(
        default=1.0,
        check=positive,
        doc="Error at which Huber's loss becomes linear; each value is another program.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class SlateQLearner(DQNLearner):
    """Regression of the values of chosen items onto bootstrapped targets, and of the choices."""

    module: SlateModule  # pyright: ignore[reportIncompatibleVariableOverride]
    settings: SlateQTraining  # pyright: ignore[reportIncompatibleVariableOverride]
    lr_names: ClassVar[Mapping[str, str]] = {VALUES: "lr", CHOICE: "lr_choice_model"}

    def configure_optimizers_for_module(self, module_id: str, values: SlateQTraining) -> Optimizers:
        """Return the optimizers of the values and of the choice model, by part."""
        return super().configure_optimizers_for_module(module_id, values)

    def compute_td_targets(
        self, params: Params, target_params: Params, batch: Transition, key: Key
    ) -> Float[Array, " N"]:
        """Compute y = r + γ Σ P(j | s', A') Q(s', j; θ⁻) over the best slate A' and the null item.

        It is the best by the online values with `double_q`, else by those of the target network. The
        choice model P, which is not bootstrapped, is always the online one.
        """
        del key
        values, scores = self.module.compute_items(params, batch.next_obs)
        target_values, _ = self.module.compute_items(target_params, batch.next_obs)
        selection = values if self.settings.double_q else target_values
        best = choose_best_slates(scores, selection, self.module.slate_size)
        next_value = compute_slate_values(scores, target_values, best)
        return batch.reward + batch.discount * next_value

    def compute_loss(
        self, params: Params, batch: Transition, targets: Float[Array, " N"], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean of `batch.weight` times the rows' losses of values and choices.

        Override this method for a custom loss. Of the values, only that of the item that was chosen, or
        of the null item, has an error: Q(s, i) − y. The loss of the choice model is the cross-entropy
        of what was chosen among what was shown. `td_error`, which sets replay priorities, is the error
        of the values.
        """
        del key
        values, scores = self.module.compute_items(params, batch.obs)
        chosen = self.module.read_choices(batch.next_obs)
        value = jnp.sum(chosen * take_shown(values, batch.action), axis=-1)
        log_probs = jax.nn.log_softmax(take_shown(scores, batch.action), axis=-1)
        choice_loss = -jnp.sum(chosen * log_probs, axis=-1)
        error = value - targets
        loss = jnp.square(error)
        if self.settings.use_huber:
            loss = losses.huber_loss(error, self.settings.huber_threshold)
        mean = partial(losses.masked_mean, mask=batch.weight > 0.0, axis_name=self.axis_name)
        return jnp.mean(batch.weight * (loss + choice_loss)), {
            "qf_mean": mean(value),
            "td_error_mean": mean(jnp.abs(error)),
            "choice_loss": mean(choice_loss),
            "click_rate": mean(1.0 - chosen[..., -1]),
            Columns.TD_ERROR: error,
        }

    def update(
        self, state: DQNState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[DQNState, Metrics]:
        rate = self.settings.at(state.hparams, progress).lr_choice_model
        state, metrics = super().update(state, batch, progress, key)
        return state, {**metrics, "curr_lr_choice_model": rate}


class SlateQConfig(AlgorithmConfig):
    """Configuration of SlateQ."""

    algo_name = "SlateQ"
    env_runners_settings = dataclasses.replace(
        AlgorithmConfig.env_runners_settings, rollout_fragment_length=4
    )
    training_settings: SlateQTraining = SlateQTraining(
        lr=2.5e-4,
        epsilon=[[0, 1.0], [20_000, 1.0], [270_000, 0.01]],
        num_steps_sampled_before_learning_starts=20_000,
        target_network_update_freq=3200,
        replay_buffer_config={"type": "uniform", "capacity": 100_000},
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", SlateQTraining)

    def get_default_learner_class(self) -> type[SlateQLearner]:
        return SlateQLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=SlateModule)

    def get_module_settings(self) -> dict[str, Any]:
        hiddens = self.training_settings.fcnet_hiddens_per_candidate
        return super().get_module_settings() | {"fcnet_hiddens_per_candidate": hiddens}

    def validate(self) -> None:
        """Check the constraints between settings.

        Raises:
            ConfigError: If settings contradict each other, or have no effect.
        """
        super().validate()
        training = self.training_settings
        if parse_n_step(training.n_step) != (1, 1):
            raise ConfigError(
                f"n_step={training.n_step!r} is not supported by SlateQ, whose targets are of the item "
                "that was chosen in a single step; set n_step=1."
            )
        default = type(self).training_settings.huber_threshold
        if training.huber_threshold != default and not training.use_huber:
            raise ConfigError(
                f"huber_threshold={training.huber_threshold} has no effect with use_huber=False; "
                "leave it out, or set use_huber=True."
            )
