"""AlphaZero: a policy and values learned from searches that they guide, without human games.

Silver et al. 2018 (https://arxiv.org/abs/1712.01815), with the search and the policy target of Danihelka
et al. 2022 (https://openreview.net/forum?id=bERaNdoegnO). Deviations: some moves are drawn at random
instead of searched (`epsilon`), without which self-play settles on one line of moves; values are learned
from λ-returns of the values that searches find, since outcomes of games with such moves lie; and
minibatches are of the latest games, if `circular_buffer_num_batches` keeps no others.
"""

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import (
    Check,
    Schedule,
    count,
    field,
    fluent,
    non_negative,
    unit_interval,
)
from jaxrl.config.settings.training import CircularTraining
from jaxrl.core.hparams import Traced
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.errors import ConfigError
from jaxrl.learners.bootstrap import compute_rollout_values, compute_successor_values
from jaxrl.learners.policy_gradient import LossLearner, SgdLearnerState
from jaxrl.modules.planner import Planner, Search, find_search_problem, make_search_method
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops import losses, returns

search_check = Check(
    requirement="'gumbel', 'puct', or {'type': ..., arguments}",
    is_satisfied=lambda value: find_search_problem(value) is None,
    hint=lambda value: f" {find_search_problem(value)}",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlphaZeroTraining(CircularTraining):
    """Settings of AlphaZero; names that RLlib has are RLlib's."""

    num_simulations: int = field(
        default=32, check=count, doc="Number of steps that a search imagines for each move."
    )
    search: str | dict[str, Any] = field(
        default="gumbel",
        check=search_check,
        doc="Way of searching: 'gumbel' (Danihelka et al. 2022), 'puct' (AlphaZero's), or a dictionary "
        "of such a 'type' and its arguments: max_num_considered_actions, gumbel_scale, value_scale and "
        "rescale_values; or puct_coefficient, temperature, dirichlet_epsilon, dirichlet_noise and "
        "argmax_tree_policy.",
    )
    epsilon: Traced[Schedule] = field(
        default=[[0, 0.25], [1_000_000, 0.05]],
        check=unit_interval,
        doc="Probability of a legal move at random instead of the searched one while exploring, or its "
        "schedule. What is learned is the searched move; without others, self-play settles on one line.",
    )
    lambda_: Traced[float] = field(
        default=0.7,
        check=unit_interval,
        doc="λ of the value targets; 1 learns the outcomes of games, also those that moves at random "
        "decided.",
    )
    vf_loss_coeff: Traced[float] = field(
        default=1.0, check=non_negative, doc="Weight of the value loss."
    )

    @property
    def needs_values(self) -> bool:
        return True


@pytree
class AlphaZeroBatch:
    """Train batch, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where a row is not a transition.

    Attributes:
        obs: Observations of the module inside the planner, without the state.
        policy: Improved policy, probabilities of all joint actions.
        value_targets: λ-returns.
        weight: Weight of each row, 1 on average.
    """

    obs: PyTree
    policy: Float[Array, "*batch n"]
    value_targets: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]


def compute_entropy(policy: Float[Array, "N n"]) -> Float[Array, " N"]:
    """Compute the entropy of policies, probabilities of all actions."""
    return -jnp.sum(jax.scipy.special.xlogy(policy, policy), axis=-1)


def compute_divergence(
    policy: Float[Array, "N n"], logits: Float[Array, "N n"]
) -> Float[Array, " N"]:
    """Compute KL(π' ‖ π) of improved policies π' and those of logits; illegal actions have π' = 0."""
    log_prob = jnp.where(policy > 1e-9, jax.nn.log_softmax(logits), 0.0)
    return -jnp.sum(policy * log_prob, axis=-1) - compute_entropy(policy)


@dataclasses.dataclass(frozen=True, eq=False)
class SearchLearner(LossLearner[SgdLearnerState], abc.ABC):
    """Base of learners from searches, whose targets are improved policies and λ-returns."""

    module: Planner
    settings: AlphaZeroTraining

    def init(self, key: Key) -> SgdLearnerState:
        sgd, hparams = self.init_sgd(key)
        return SgdLearnerState(sgd=sgd, hparams=hparams)

    def compute_targets(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[AlphaZeroBatch, Metrics]:
        """Compute the targets of a rollout, with λ-returns in each player's own time.

        Targets of the values are (1 − λ) νₜ + λ Gₜ with Gₜ = rₜ + γ ((1 − λ) νₜ₊₁ + λ Gₜ₊₁) and the
        values ν that the searches found, which know of better moves than those that were explored.
        Between two moves of a player are those of the other one, whose rewards to it count.
        """
        values, mask = self.settings.at(state.hparams, progress), rollout.mask
        module, params = self.module, state.sgd.params
        estimates, _ = compute_rollout_values(module, params, rollout, {}, None)
        value_fn = functools.partial(module.compute_values, params)
        found = rollout.extras[Columns.SEARCH_VALUE]
        next_found = compute_successor_values(value_fn, rollout, found, mask)
        ends = (rollout.terminated, rollout.truncated, mask)
        advantages = returns.gae(
            rollout.reward, found, next_found, *ends, values.gamma, values.lambda_
        )
        targets = found + values.lambda_ * advantages
        fraction = losses.masked_moments(targets, mask, self.axis_name).fraction
        batch = AlphaZeroBatch(
            obs=self.module.get_seen(rollout.obs),
            policy=jnp.exp(rollout.extras[Columns.ACTION_DIST_INPUTS]),
            value_targets=targets,
            weight=mask.astype(jnp.float32) / jnp.maximum(fraction, 1e-8),
        )
        return batch, {
            "curr_lr": values.lr,
            "curr_epsilon": values.epsilon,
            "vf_explained_var": losses.explained_variance(targets, estimates, mask, self.axis_name),
        }

    def update(
        self, state: SgdLearnerState, batch: AlphaZeroBatch, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        return self.step(state, batch, self.settings.at(state.hparams, progress), key)


@dataclasses.dataclass(frozen=True, eq=False)
class AlphaZeroLearner(SearchLearner):
    """Divergence from the improved policy, and squared error of the values."""

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[AlphaZeroBatch, Metrics]:
        return self.compute_targets(state, rollout, progress)

    def compute_loss(
        self, params: Params, batch: AlphaZeroBatch, values: AlphaZeroTraining, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute KL(π' ‖ π) + c (v − G)² (Silver et al. 2018, equation 1, without decay).

        The gradient of the divergence is that of the cross-entropy −Σₐ π'(a) log π(a).
        """
        del key
        module = self.module.inner
        out = module.forward_train(params, {Columns.OBS: batch.obs})
        inputs, mask = out[Columns.ACTION_DIST_INPUTS], module.action_mask(batch.obs)
        logits = self.module.joint.combine_logits(inputs, mask)

        def mean(x: Float[Array, " N"]) -> Float[Array, ""]:
            return jnp.mean(batch.weight * x)

        policy_loss = mean(compute_divergence(batch.policy, logits))
        value_loss = mean(jnp.square(out[Columns.VF_PREDS] - batch.value_targets))
        return policy_loss + values.vf_loss_coeff * value_loss, {
            "policy_loss": policy_loss,
            "vf_loss": value_loss,
            "target_entropy": mean(compute_entropy(batch.policy)),
        }


def search_of(settings: AlphaZeroTraining) -> Search:
    """Return the search that settings describe."""
    return Search(
        num_simulations=settings.num_simulations,
        method=make_search_method(settings.search),
        gamma=vars(settings)["gamma"],
    )


class AlphaZeroConfig(AlgorithmConfig):
    """Configuration of AlphaZero, for games of two in turns and environments of a single agent."""

    algo_name = "AlphaZero"
    environment_settings = dataclasses.replace(
        AlgorithmConfig.environment_settings, observe_state=True
    )
    training_settings: AlphaZeroTraining = AlphaZeroTraining(
        gamma=1.0, lr=1e-3, train_batch_size=4096, minibatch_size=512, num_epochs=2
    )
    training = fluent("training_settings", AlphaZeroTraining)

    def get_default_learner_class(self) -> type[AlphaZeroLearner]:
        return AlphaZeroLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the spec of a network that policy and values share, as in the papers."""
        return RLModuleSpec(model_config={"vf_share_layers": True})

    def get_planner(self) -> Search | None:
        return search_of(self.training_settings)

    def validate(self) -> None:
        super().validate()
        if not self.environment_settings.observe_state:
            raise ConfigError(
                "observe_state=False leaves the state out of observations, and AlphaZero searches from "
                "it: leave it at True."
            )
        environment = self.environment_settings
        for name in ("curriculum", "env_task_fn"):
            if value := vars(environment)[name]:
                raise ConfigError(
                    f"{name}={value!r} changes the environment during the run, and AlphaZero searches in "
                    "the one that the run began with: leave it out."
                )
        for name in ("clip_rewards", "normalize_rewards", "intrinsic_reward"):
            if value := self[name]:
                raise ConfigError(
                    f"{name}={value!r} changes the rewards that values learn from, and AlphaZero's search "
                    "imagines those of the environment: leave it out, and scale rewards in the environment."
                )
