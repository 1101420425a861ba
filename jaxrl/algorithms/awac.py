"""AWAC (Nair et al. 2020, https://arxiv.org/abs/2006.09359) and CRR, another setting of it.

The policy imitates the rows' actions, weighted by their advantages over its own actions, and the
critics evaluate that policy. AWAC weighs by exponentials, from recorded data, from an environment
or from the first to the second. CRR (Wang et al. 2020, https://arxiv.org/abs/2006.15134: critic
regularized regression) weighs by 1 where an action is better than the policy's, else by 0, from
recorded data alone; its names and defaults are those that RLlib had. Deviations: critics have one
value (CRR's paper: a distribution); exponential weights are limited (AWAC's paper: not), and not
divided by their sum over the batch (AWAC's code: they are).
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import count, field, fluent, positive
from jaxrl.config.settings.actor_critic import AdvantageWeightedTraining
from jaxrl.core.hparams import HParams, Traced, build_hparams
from jaxrl.core.keys import draw_normal_rows
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.distributions.base import Categorical, SquashedGaussian, mask_logits
from jaxrl.errors import ConfigError
from jaxrl.learners.actor_critic import LR_NAMES, ActorCriticLearner, combine_metrics, critic_loss
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, select
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops.losses import exponential_weight, masked_mean

V = TypeVar("V", bound=AdvantageWeightedTraining)

ADVANTAGES_MEAN, WEIGHTS_MEAN = "advantages_mean", "action_weights_mean"


@pytree
class AdvantageWeightedState:
    """Learner state; `target` is that of the critics."""

    sgd: SgdState
    target: TargetNetwork
    hparams: HParams


@dataclasses.dataclass(frozen=True, eq=False)
class AdvantageWeighted(ActorCriticLearner[AdvantageWeightedState], Generic[V], abc.ABC):
    """Base of learners whose policy imitates the rows' actions, weighted by their advantages."""

    module: StochasticPolicyModule
    settings: V

    lr_names: ClassVar[Mapping[str, str]] = {part: LR_NAMES[part] for part in (POLICY, CRITIC)}

    @abc.abstractmethod
    def step_parts(
        self,
        state: AdvantageWeightedState,
        batch: Transition,
        values: V,
        key: Key,
    ) -> tuple[SgdState, list[Metrics]]:
        """Step all parts, and return the metrics of each step. Consumes the key.

        Args:
            state: State before the update.
            batch: Minibatch, `[N, ...]`, or `[N, L, ...]` of sequences.
            values: Settings with the values of the moment.
            key: Key of actions that are drawn.
        """

    def init(self, key: Key) -> AdvantageWeightedState:
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = self.settings.at(hparams, Progress.zeros())
        return AdvantageWeightedState(
            sgd=self.init_parts(params, values),
            target=init_target(params[CRITIC]),
            hparams=hparams,
        )

    def update(
        self, state: AdvantageWeightedState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[AdvantageWeightedState, Metrics]:
        """Step all parts, then the targets. If anything is non-finite, nothing changes."""
        values = self.settings.at(state.hparams, progress)
        sgd, steps = self.step_parts(state, batch, values, key)
        metrics, critics = combine_metrics(*steps), sgd.params[CRITIC]
        frequency = self.settings.target_network_update_freq
        target = update_target(state.target, critics, metrics, progress, values.tau, frequency)
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
        values: AdvantageWeightedTraining,
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets, which carry no gradient."""
        loss_fn = self.settings.td_error_loss_fn

        def loss(critic: Params) -> tuple[Float[Array, ""], Metrics]:
            q = self.module.compute_taken_q_values(critic, batch.obs, batch.action)
            return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)

        return self.step_part(CRITIC, loss, sgd, values)

    def step_policy(
        self,
        sgd: SgdState,
        batch: Transition,
        advantages: Float[Array, " N"],
        action_weight: Float[Array, " N"],
        values: AdvantageWeightedTraining,
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

        return self.step_part(POLICY, loss, sgd, values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AWACTraining(AdvantageWeightedTraining):
    """Settings of Nair et al. 2020 and of Wang et al. 2020; names are those of RLlib's CRR."""

    weight_type: Literal["exp", "bin"] = field(
        default="exp",
        doc="Weights of the rows' actions: 'exp' is exp(A / temperature), at most max_weight; 'bin' "
        "is 1 where the advantage A is positive, else 0.",
    )
    temperature: Traced[float] = field(
        default=1.0,
        check=positive,
        doc="Divisor of the advantages in exponential weights, in units of the reward: Nair et al.'s "
        "lambda, Wang et al.'s beta.",
    )
    max_weight: Traced[float] = field(
        default=20.0, check=positive, doc="Largest exponential weight."
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
class AWACLearner(AdvantageWeighted[AWACTraining]):
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
        self, advantages: Float[Array, " N"], values: AWACTraining
    ) -> Float[Array, " N"]:
        """Compute the weights of the rows' actions from their advantages."""
        if self.settings.weight_type == "bin":
            return (advantages > 0.0).astype(advantages.dtype)
        return exponential_weight(advantages, 1.0 / values.temperature, values.max_weight)

    def step_parts(
        self,
        state: AdvantageWeightedState,
        batch: Transition,
        values: AWACTraining,
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
