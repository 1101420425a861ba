"""AWAC (Nair et al. 2020, https://arxiv.org/abs/2006.09359) and CRR, another setting of it.

The policy imitates the rows' actions, weighted by their advantages over its own actions, and the
critics evaluate that policy. AWAC weighs by exponentials, from recorded data, from an environment
or from the first to the second. CRR (Wang et al. 2020, https://arxiv.org/abs/2006.15134: critic
regularized regression) weighs by 1 where an action is better than the policy's, else by 0, from
recorded data alone; its names and defaults are those that RLlib had. Deviations: critics have one
value (CRR's paper: a distribution); exponential weights are limited (AWAC's paper: not), and not
divided by their sum over the batch (AWAC's code: they are).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import count, field, fluent, positive
from jaxrl.config.settings.actor_critic import AdvantageWeightedTraining
from jaxrl.core.types import Key, Metrics, Params, PyTree, Transition
from jaxrl.distributions.base import Categorical, SquashedGaussian, mask_logits
from jaxrl.errors import ConfigError
from jaxrl.learners.advantage_weighted import AdvantageWeighted, AdvantageWeightedState
from jaxrl.learners.learner import SgdState
from jaxrl.learners.multi_optimizer import CRITIC, POLICY, draw_normal_rows
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops.losses import exponential_weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class AWACTraining(AdvantageWeightedTraining):
    """Settings of Nair et al. 2020 and of Wang et al. 2020; names are those of RLlib's CRR."""

    weight_type: Literal["exp", "bin"] = field(
        default="exp",
        doc="Weights of the rows' actions: 'exp' is exp(A / temperature), at most max_weight; 'bin' "
        "is 1 where the advantage A is positive, else 0.",
    )
    temperature: float = field(
        default=1.0,
        sweepable=True,
        check=positive,
        doc="Divisor of the advantages in exponential weights, in units of the reward: Nair et al.'s "
        "lambda, Wang et al.'s beta.",
    )
    max_weight: float = field(
        default=20.0, sweepable=True, check=positive, doc="Largest exponential weight."
    )
    advantage_type: Literal["mean", "max"] = field(
        default="mean",
        doc="Value that advantages are above: 'mean' or 'max' of the critics over the policy's "
        "actions; those of a Discrete space are all legal ones.",
    )
    n_action_sample: int = field(
        default=1,
        check=count,
        doc="In a Box: number of the policy's actions per row that this value is computed from.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class AWACLearner(AdvantageWeighted):
    """Critics of the policy, which imitates actions that they value more than its own."""

    settings: AWACTraining

    def compute_policy_values(
        self, policy: Params, critic: Params, obs: PyTree, num_actions: int, key: Key
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Compute mean and maximum of minₖ Qₖ(s, a) over the policy's actions. Consumes the key.

        They are exact over the legal actions of a Discrete space, the mean by their probabilities.

        Args:
            policy: Parameters of the policy.
            critic: Parameters of the critics.
            obs: Observations, `[N, ...]`.
            num_actions: Number of actions that are drawn from a Box.
            key: Key of the draws.
        """
        dist = self.module.policy_dist(policy, obs)
        if self.module.is_discrete:
            assert isinstance(dist, Categorical)
            q = jnp.min(self.module.compute_q_values(critic, obs), axis=0)
            legal = mask_logits(q, self.module.action_mask(obs))
            return jnp.sum(dist.probs() * q, axis=-1), jnp.max(legal, axis=-1)
        assert isinstance(dist, SquashedGaussian)
        rows, *event = dist.mean.shape
        noise = draw_normal_rows(key, (rows, num_actions, *event), self.axis_name)
        actions = jax.vmap(dist.from_noise, in_axes=1)(noise)
        q = jax.vmap(lambda action: self.module.compute_q_values(critic, obs, action))(actions)
        q = jnp.min(q, axis=1)
        return jnp.mean(q, axis=0), jnp.max(q, axis=0)

    def compute_weights(
        self, advantages: Float[Array, " N"], values: dict[str, Float[Array, ""]]
    ) -> Float[Array, " N"]:
        """Compute the weights of the rows' actions from their advantages."""
        if self.settings.weight_type == "bin":
            return (advantages > 0.0).astype(advantages.dtype)
        return exponential_weight(advantages, 1.0 / values["temperature"], values["max_weight"])

    def step_parts(
        self,
        state: AdvantageWeightedState,
        batch: Transition,
        values: dict[str, Float[Array, ""]],
        key: Key,
    ) -> tuple[SgdState, list[Metrics]]:
        """Step the critics, then the policy by the new critics.

        The targets of the critics are r + γ minₖ Q'ₖ(s', a'), a' ~ π(·|s')  (Nair et al. 2020,
        eq. 8); advantages are minₖ Qₖ(s, a) less the policy's value  (Wang et al. 2020, eq. 4-7).
        """
        critic_key, policy_key = jax.random.split(key)
        policy = state.sgd.params[POLICY]
        following, _ = self.compute_policy_values(
            policy, state.target.params, batch.next_obs, 1, critic_key
        )
        targets = batch.reward + batch.discount * following
        sgd, critic = self.step_critics(state.sgd, batch, targets, values)
        new_critics, number = sgd.params[CRITIC], self.settings.n_action_sample
        mean, most = self.compute_policy_values(policy, new_critics, batch.obs, number, policy_key)
        value = mean if self.settings.advantage_type == "mean" else most
        advantages = self.compute_taken_value(new_critics, batch) - value
        weight = self.compute_weights(advantages, values)
        sgd, actor = self.step_policy(sgd, batch, advantages, weight, values)
        return sgd, [critic, actor]


class AWACConfig(AlgorithmConfig):
    """Configuration of AWAC."""

    algo_name = "AWAC"
    training_settings: AWACTraining = AWACTraining(
        actor_lr=3e-4,
        train_batch_size=1024,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config={"type": "uniform", "capacity": 1_000_000},
    )
    training = fluent("training_settings", AWACTraining)

    def validate(self) -> None:
        super().validate()
        for name in (
            ("temperature", "max_weight") if self.training_settings.weight_type == "bin" else ()
        ):
            if self[name] != type(self)()[name]:
                raise ConfigError(
                    f"{name}={self[name]} has no effect with weight_type='bin', whose weights are 0 and 1: "
                    "leave it out, or set weight_type='exp'."
                )

    def get_default_learner_class(self) -> type[AWACLearner]:
        return AWACLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU_ACTIVATIONS)


class CRRConfig(AWACConfig):
    """Configuration of CRR: AWAC with weights 0 and 1, and four actions per value."""

    algo_name = "CRR"
    requires_data = True
    training_settings: AWACTraining = dataclasses.replace(
        AWACConfig.training_settings,
        weight_type="bin",
        n_action_sample=4,
        train_batch_size=256,
        actor_lr=3e-4,
        critic_lr=3e-4,
    )
