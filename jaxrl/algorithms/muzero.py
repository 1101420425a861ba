"""MuZero: AlphaZero's learning with a model that is learned beside policy and values.

Schrittwieser et al. 2020 (https://arxiv.org/abs/1911.08265), with the search and the policy target of
Danihelka et al. 2022 (https://openreview.net/forum?id=bERaNdoegnO). Deviations: value targets are
λ-returns; minibatches are windows of the latest train batches, if `circular_buffer_num_batches` keeps no
others; and there is no Reanalyse.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.algorithms.alpha_zero import (
    AlphaZeroTraining,
    SearchLearner,
    compute_divergence,
    compute_entropy,
    search_of,
)
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import count, field, fluent, non_negative
from jaxrl.core.hparams import Traced
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.distributions.base import mask_logits
from jaxrl.errors import ConfigError
from jaxrl.learners.policy_gradient import SgdLearnerState
from jaxrl.modules.latent_planner import LatentModule, LatentPlanner, categorical_loss
from jaxrl.modules.planner import Search
from jaxrl.modules.rl_module import RLModuleSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuZeroTraining(AlphaZeroTraining):
    """Settings of MuZero."""

    unroll_steps: int = field(
        default=5,
        check=count,
        doc="Number of steps that the model is unrolled for from each observation while it learns.",
    )
    reward_loss_coeff: Traced[float] = field(
        default=1.0, check=non_negative, doc="Weight of the reward loss."
    )


@pytree
class Windows:
    """Targets of the steps 0 to K after each row, `[T, B, K + 1]`, and whether each is known.

    Attributes:
        action: Action at each step.
        policy: Improved policy, probabilities of all actions.
        reward: Reward that follows the action.
        value: λ-return.
        has_policy: Whether the episode has come to a move there.
        has_value: Whether it has, or has terminated before: values and rewards are then 0.
    """

    action: Int[Array, "*batch k"]
    policy: Float[Array, "*batch k n"]
    reward: Float[Array, "*batch k"]
    value: Float[Array, "*batch k"]
    has_policy: Bool[Array, "*batch k"]
    has_value: Bool[Array, "*batch k"]


@pytree
class MuZeroBatch:
    """Train batch, `[T, B, ...]` or `[N, ...]`; `weight` is 0 where a row is not a transition."""

    obs: PyTree
    windows: Windows
    weight: Float[Array, "*batch"]


def make_windows(
    rollout: Rollout,
    policy: Float[Array, "T B n"],
    value: Float[Array, "T B"],
    unroll_steps: int,
) -> Windows:
    """Make the windows of a rollout's rows.

    After a termination, rewards and values are 0; after a truncation, and after the last row, nothing is
    known.

    Args:
        rollout: Rollout `[T, B]`.
        policy: Improved policy of each row.
        value: Value target of each row.
        unroll_steps: Number K of steps after a row.
    """
    num_steps = value.shape[0]
    time = jnp.arange(num_steps, dtype=jnp.int32)
    is_live = rollout.mask
    is_over = jnp.zeros_like(is_live)
    steps: list[Windows] = []
    for k in range(unroll_steps + 1):
        rows = jnp.minimum(time + k, num_steps - 1)
        is_live = is_live & rollout.mask[rows] & (time + k < num_steps)[:, None]
        terminated = rollout.terminated[rows]
        steps.append(
            Windows(
                action=rollout.action[rows],
                policy=policy[rows],
                reward=jnp.where(is_live, rollout.reward[rows], 0.0),
                value=jnp.where(is_live, value[rows], 0.0),
                has_policy=is_live,
                has_value=is_live | is_over,
            )
        )
        is_over = is_over | (is_live & terminated)
        is_live = is_live & ~terminated & ~rollout.truncated[rows]
    return jax.tree.map(lambda *xs: jnp.stack(xs, axis=2), *steps)


@dataclasses.dataclass(frozen=True, eq=False)
class MuZeroLearner(SearchLearner):
    """Losses of policy, value and reward along the unrolled model (section 3, equation 1)."""

    module: LatentPlanner
    settings: MuZeroTraining

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[MuZeroBatch, Metrics]:
        """Compute the targets of a batch, and the windows of them that follow each row."""
        batch, metrics = self.compute_targets(state, rollout, progress)
        windows = make_windows(
            rollout, batch.policy, batch.value_targets, self.settings.unroll_steps
        )
        return MuZeroBatch(obs=batch.obs, windows=windows, weight=batch.weight), metrics

    def compute_loss(
        self, params: Params, batch: MuZeroBatch, values: MuZeroTraining, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of unrolled windows (appendix G).

        The losses of the K imagined steps have the weight 1 / K each, and half of the gradient of a step
        goes on to the one before, as in the paper's pseudocode.
        """
        del key
        module, windows = self.module.inner, batch.windows
        number = self.settings.unroll_steps
        zero = jnp.zeros((), jnp.float32)
        losses = {"policy_loss": zero, "vf_loss": zero, "reward_loss": zero, "target_entropy": zero}

        def mean(x: Float[Array, " N"], is_known: Bool[Array, " N"]) -> Float[Array, ""]:
            return jnp.mean(batch.weight * jnp.where(is_known, x, 0.0))

        state = module.represent(params, batch.obs)
        for k in range(number + 1):
            at = jax.tree.map(lambda x, k=k: x[:, k], windows)
            weight = 1.0 if k == 0 else 1.0 / number
            logits, value = module.predict(params, state)
            if k == 0:
                logits = mask_logits(logits, module.action_mask(batch.obs))
            found = {
                "policy_loss": mean(compute_divergence(at.policy, logits), at.has_policy),
                "vf_loss": mean(categorical_loss(value, at.value), at.has_value),
            }
            if k < number:
                if k > 0:
                    state = 0.5 * (state + jax.lax.stop_gradient(state))
                state, reward = module.step(params, state, at.action)
                losses["reward_loss"] += (
                    mean(categorical_loss(reward, at.reward), at.has_value) / number
                )
            if k == 0:
                losses["target_entropy"] = mean(compute_entropy(at.policy), at.has_policy)
            for name, loss in found.items():
                losses[name] += weight * loss
        total = (
            losses["policy_loss"]
            + values.vf_loss_coeff * losses["vf_loss"]
            + values.reward_loss_coeff * losses["reward_loss"]
        )
        return total, losses


class MuZeroConfig(AlgorithmConfig):
    """Configuration of MuZero, for a single agent in any environment."""

    algo_name = "MuZero"
    training_settings: MuZeroTraining = MuZeroTraining(
        gamma=0.997,
        lr=1e-3,
        epsilon=0.0,
        lambda_=0.95,
        vf_loss_coeff=0.25,
        train_batch_size=2048,
        minibatch_size=256,
        num_epochs=2,
    )
    training = fluent("training_settings", MuZeroTraining)

    def get_default_learner_class(self) -> type[MuZeroLearner]:
        return MuZeroLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=LatentModule)

    def get_planner(self) -> Search | None:
        return search_of(self.training_settings)

    def validate(self) -> None:
        super().validate()
        if self.is_multi_agent:
            raise ConfigError(
                "MuZero learns a model for a single agent: use AlphaZero for games of two in turns."
            )
        if self.environment_settings.observe_state:
            raise ConfigError(
                "observe_state=True is for a search in the environment, and MuZero searches in the model "
                "that it learns: leave it out, or use AlphaZero."
            )
        steps, length = self.training_settings.unroll_steps, self.plan().rollout_fragment_length
        if steps >= length:
            raise ConfigError(
                f"unroll_steps={steps} needs rollouts that are longer, but rollout_fragment_length is "
                f"{length}: set it to {steps + 1} at least, or fewer unroll_steps."
            )
