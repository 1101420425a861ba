"""Actor-critic learning from the rows' own actions, which are imitated with a weight each."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParams, build_hparams, current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, Transition
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import NUM_NONFINITE_UPDATES, SgdState, select
from jaxrl.learners.multi_optimizer import (
    CRITIC,
    LR_NAMES,
    POLICY,
    combine_metrics,
    critic_loss,
    init_parts,
    step_one,
)
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.ops.losses import masked_mean

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import AdvantageWeightedTraining

ADVANTAGES_MEAN, WEIGHTS_MEAN = "advantages_mean", "action_weights_mean"


@pytree
class AdvantageWeightedState:
    """Learner state; `target` is that of the critics."""

    sgd: SgdState
    target: TargetNetwork
    hparams: HParams


@dataclasses.dataclass(frozen=True, eq=False)
class AdvantageWeighted(BaseLearner[AdvantageWeightedState], abc.ABC):
    """Base of learners whose policy imitates the rows' actions, weighted by their advantages."""

    module: StochasticPolicyModule
    settings: "AdvantageWeightedTraining"

    lr_names: ClassVar[Mapping[str, str]] = {part: LR_NAMES[part] for part in (POLICY, CRITIC)}

    @abc.abstractmethod
    def step_parts(
        self,
        state: AdvantageWeightedState,
        batch: Transition,
        values: dict[str, Float[Array, ""]],
        key: Key,
    ) -> tuple[SgdState, list[Metrics]]:
        """Step all parts, and return the metrics of each step. Consumes the key.

        Args:
            state: State before the update.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Current hyperparameters by name.
            key: Key of actions that are drawn.
        """

    def init(self, key: Key) -> AdvantageWeightedState:
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = current_values(hparams, Progress.zeros())
        return AdvantageWeightedState(
            sgd=init_parts(self, params, values),
            target=init_target(params[CRITIC]),
            hparams=hparams,
        )

    def update(
        self, state: AdvantageWeightedState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[AdvantageWeightedState, Metrics]:
        """Step all parts, then the targets. If anything is non-finite, nothing changes."""
        values = current_values(state.hparams, progress)
        sgd, steps = self.step_parts(state, batch, values, key)
        metrics, critics = combine_metrics(*steps), sgd.params[CRITIC]
        frequency = self.settings.target_network_update_freq
        target = update_target(state.target, critics, metrics, progress, values["tau"], frequency)
        is_finite = metrics[NUM_NONFINITE_UPDATES] < 0.5
        updated = select(is_finite, replace(state, sgd=sgd), state)
        rates = {f"curr_{name}": values[name] for name in self.lr_names.values()}
        return replace(updated, target=target), {**metrics, **rates}

    def compute_taken_value(self, critic: Params, batch: Transition) -> Float[Array, " N"]:
        """Compute minₖ Qₖ(s, a) of the rows' actions."""
        q = self.module.compute_taken_q_values(critic, batch.obs, batch.action)
        return jnp.min(q, axis=0)

    def step_critics(
        self,
        sgd: SgdState,
        batch: Transition,
        targets: Float[Array, " N"],
        values: dict[str, Float[Array, ""]],
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets, which carry no gradient."""
        loss_fn = self.settings.td_error_loss_fn

        def loss(critic: Params) -> tuple[Float[Array, ""], Metrics]:
            q = self.module.compute_taken_q_values(critic, batch.obs, batch.action)
            return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)

        return step_one(self, CRITIC, loss, sgd, values)

    def step_policy(
        self,
        sgd: SgdState,
        batch: Transition,
        advantages: Float[Array, " N"],
        action_weight: Float[Array, " N"],
        values: dict[str, Float[Array, ""]],
    ) -> tuple[SgdState, Metrics]:
        """Step the policy up E[w f(A) log π(a|s)], f(A) being the weights of the rows' actions."""
        is_row = batch.weight > 0.0
        weight = jax.lax.stop_gradient(batch.weight * action_weight)

        def loss(policy: Params) -> tuple[Float[Array, ""], Metrics]:
            likelihood = self.module.policy_dist(policy, batch.obs).log_prob(batch.action)
            policy_loss = -jnp.mean(weight * likelihood)
            means = {
                "bc_logp_mean": likelihood,
                ADVANTAGES_MEAN: advantages,
                WEIGHTS_MEAN: action_weight,
            }
            metrics = {name: masked_mean(x, is_row, self.axis_name) for name, x in means.items()}
            return policy_loss, {**metrics, "policy_loss": policy_loss}

        return step_one(self, POLICY, loss, sgd, values)
