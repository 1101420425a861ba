"""IQL (Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169): implicit Q-learning.

For recorded data: a value function of an upper expectile of the critics takes the place of the
maximum over actions, so that no action outside of the data is ever evaluated, and the policy
imitates the rows' actions, weighted by exponentials of their advantages. Names and defaults are
RLlib's. Deviations from RLlib: `tau` is the paper's 0.005 (there 1.0), the train batch has 256 rows
(there 2000), the policy in a Box is a squashed normal, as SAC's, and the action space may be Discrete.

As there, `beta` is the scale of the advantages, the paper's inverse temperature: RLlib's 0.1 is
close to behavior cloning, and the paper has 3 (locomotion) to 10 (mazes).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.algorithms.awac import AdvantageWeighted, AdvantageWeightedState
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import Schedule, between_zero_and_one, field, fluent, non_negative
from jaxrl.config.settings.actor_critic import AdvantageWeightedTraining
from jaxrl.core.hparams import Traced
from jaxrl.core.types import Key, Metrics, Params, Transition
from jaxrl.learners.gradients import SgdState
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import VALUE, PolicyAndValueModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops.losses import exponential_weight, masked_mean
from jaxrl.ops.value_losses import expectile_loss

MAX_WEIGHT = 100.0
"""Largest weight of an action, that of the paper's code and of RLlib's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IQLTraining(AdvantageWeightedTraining):
    """Settings of Kostrikov et al. 2021; names and defaults are RLlib's."""

    value_lr: Traced[Schedule | Callable[[Any], Any]] = field(
        default=3e-4,
        check=non_negative,
        doc="Learning rate of the value function, in the same forms as actor_lr.",
    )
    expectile: Traced[float] = field(
        default=0.8,
        check=between_zero_and_one,
        doc="Expectile of the critics that the value function estimates: 0.5 is the mean over the "
        "actions of the data, towards 1 the best of them.",
    )
    beta: Traced[float] = field(
        default=0.1,
        check=non_negative,
        doc="Scale of the advantages in the exponential weights of the rows' actions, in units of "
        "1 / reward: 0 is behavior cloning, and RLlib's 0.1 is close to it; the paper has 3 to 10.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class IQLLearner(AdvantageWeighted[IQLTraining]):
    """Expectile of the critics, and a policy that imitates the actions above it."""

    module: PolicyAndValueModule
    settings: IQLTraining
    lr_names: ClassVar[Mapping[str, str]] = {**AdvantageWeighted.lr_names, VALUE: "value_lr"}

    def value_loss(
        self,
        value: Params,
        batch: Transition,
        targets: Float[Array, " N"],
        expectile: Float[Array, ""],
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute E[w |τ − 1{u < 0}| u²], u = minₖ Q'ₖ(s, a) − V(s)  (eq. 5).

        Args:
            value: Parameters of the value function, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`.
            targets: minₖ Q'ₖ(s, a).
            expectile: Expectile τ.
        """
        estimate = self.module.compute_values({VALUE: value}, batch.obs)
        loss = jnp.mean(batch.weight * expectile_loss(targets - estimate, expectile))
        mean = masked_mean(estimate, batch.weight > 0.0, self.axis_name)
        return loss, {"vf_loss": loss, "vf_mean": mean}

    def step_parts(
        self,
        state: AdvantageWeightedState,
        batch: Transition,
        values: IQLTraining,
        key: Key,
    ) -> tuple[SgdState, list[Metrics]]:
        """Step the value function, then policy and critics by the new one  (algorithm 1).

        The weights are min(exp(β A), 100), A = minₖ Q'ₖ(s, a) − V(s)  (eq. 7); the targets of the
        critics are r + γ V(s')  (eq. 6), γ being `batch.discount`. The key is unused.
        """
        del key
        taken = self.compute_taken_value(state.target.params, batch)
        sgd, value = self.step_part(
            VALUE,
            lambda value: self.value_loss(value, batch, taken, values.expectile),
            state.sgd,
            values,
        )
        advantages = taken - self.module.compute_values(sgd.params, batch.obs)
        weight = exponential_weight(advantages, values.beta, MAX_WEIGHT)
        sgd, actor = self.step_policy(sgd, batch, advantages, weight, values)
        following = self.module.compute_values(sgd.params, batch.next_obs)
        targets = batch.reward + batch.discount * following
        sgd, critic = self.step_critics(sgd, batch, targets, values)
        return sgd, [critic, actor, value]


class IQLConfig(AlgorithmConfig):
    """Configuration of IQL."""

    algo_name = "IQL"
    requires_data = True
    training_settings: IQLTraining = IQLTraining(
        actor_lr=3e-4,
        train_batch_size=256,
        tau=0.005,
        replay_buffer_config={"type": "uniform", "capacity": 1_000_000},
    )
    training = fluent("training_settings", IQLTraining)

    @property
    def notes(self) -> list[str]:
        beta = self.training_settings.beta
        if isinstance(beta, float) and 0.0 < beta < 0.5:
            note = (
                f"beta={beta} weighs advantages of 1 by {math.exp(beta):.2g}: where advantages are "
                "no larger, that is close to behavior cloning; Kostrikov et al. 2021 have 3 to 10."
            )
            return [*super().notes, note]
        return super().notes

    def get_default_learner_class(self) -> type[IQLLearner]:
        return IQLLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PolicyAndValueModule, model_config=RELU_ACTIVATIONS)
