"""TD3 (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477) and DDPG, which is a value of it.

A deterministic policy that learns less often than its two critics, whose targets are of smoothed
actions. DDPG (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971) is one critic, no delay, no
smoothing, and noise that is a process. Names and defaults are those that RLlib had; deviations: the
noise of exploration is set here and not in `exploration_config`, its scale does not fall, and
networks are of 256 and 256 units like SAC's (there 400 and 300).
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import at_least_one, field, fluent, non_negative, unit_interval
from jaxrl.config.settings.actor_critic import TD_ERROR_LOSS_DOC, ActorCriticTraining, TdErrorLoss
from jaxrl.core.hparams import HParams, current_values, hyperparameters
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, Transition
from jaxrl.learners.learner import NONFINITE, SgdState, select, tensor_norms
from jaxrl.learners.multi_optimizer import (
    CRITIC,
    POLICY,
    critic_loss,
    first_parts,
    joined,
    normal_rows,
    part_of,
    step_part,
    with_part,
)
from jaxrl.learners.target_network import Target, first_target, followed
from jaxrl.modules.model_config import RELU
from jaxrl.modules.policy_and_critics import DeterministicPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3Training(ActorCriticTraining):
    """Settings of Fujimoto et al. 2018; all noise is counted in halves of the action range."""

    twin_q: bool = field(
        default=True, doc="Two critics, of which the smaller value counts, instead of one."
    )
    policy_delay: int = field(
        default=2,
        check=at_least_one,
        doc="Updates of the critics for each of the policy and of the target networks.",
    )
    smooth_target_policy: bool = field(
        default=True, doc="Noise on the actions that targets are of."
    )
    target_noise: float = field(
        default=0.2,
        sweepable=True,
        check=non_negative,
        doc="Standard deviation of that noise, in halves of the action range.",
    )
    target_noise_clip: float = field(
        default=0.5, sweepable=True, check=non_negative, doc="Bound of that noise, likewise."
    )
    exploration_noise: Literal["gaussian", "ou"] = field(
        default="gaussian",
        doc="Noise on actions to explore: 'gaussian' is drawn anew at every step, 'ou' an "
        "Ornstein-Uhlenbeck process that starts at 0 in every episode.",
    )
    exploration_sigma: float = field(
        default=0.1, sweepable=True, check=non_negative, doc="Standard deviation of its draws."
    )
    ou_theta: float = field(
        default=0.15,
        sweepable=True,
        check=unit_interval,
        doc="Share of the Ornstein-Uhlenbeck process that is lost at every step.",
    )
    td_error_loss_fn: TdErrorLoss = field(default="mse", doc=TD_ERROR_LOSS_DOC)


@pytree
class TD3State:
    """What is learned; `age` counts updates since the policy's latest step, `actor` its metrics."""

    sgd: SgdState
    target: Target
    age: Int[Array, ""]
    actor: Metrics
    hparams: HParams


@pytree
class Delayed:
    """What the policy's step changes, and its metrics."""

    policy: SgdState
    target: Target
    metrics: Metrics


@dataclasses.dataclass(frozen=True, eq=False)
class TD3Learner:
    """Critics on the smaller target value of smoothed actions, and a delayed policy."""

    module: DeterministicPolicyModule
    settings: TD3Training
    axis_name: str | None = None
    log_gradients: bool = False

    def init(self, key: Key) -> TD3State:
        params, hparams = self.module.init(key), hyperparameters(self.settings)
        values = current_values(hparams, Progress.zero())
        names = ["total_loss", "grad_norm", NONFINITE]
        if self.log_gradients:
            names += tensor_norms({POLICY: params[POLICY]})
        return TD3State(
            sgd=first_parts(params, self.settings, values),
            target=first_target(params),
            age=jnp.zeros((), jnp.int32),
            actor={name: jnp.zeros((), jnp.float32) for name in names},
            hparams=hparams,
        )

    def targets(
        self, target: Params, batch: Transition, values: dict[str, Float[Array, ""]], key: Key
    ) -> Float[Array, " N"]:
        """The y = r + γ minₖ Q'ₖ(s', π'(s') + clip(ε, −c, c)), ε ~ N(0, σ²)  (eq. 14-15)."""
        action = self.module.policy_action(target[POLICY], batch.next_obs)
        if self.settings.smooth_target_policy:
            bound = values["target_noise_clip"]
            noise = values["target_noise"] * normal_rows(key, action.shape, self.axis_name)
            action = self.module.perturbed(action, jnp.clip(noise, -bound, bound))
        q = self.module.q_values(target[CRITIC], batch.next_obs, action)
        return batch.reward + batch.discount * jnp.min(q, axis=0)

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Σₖ E[w l(Qₖ(s, a) − y)], l by `td_error_loss_fn`."""
        q = self.module.q_values(critic, batch.obs, batch.action)
        loss_fn = self.settings.td_error_loss_fn
        return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)

    def actor_loss(
        self, policy: Params, critic: Params, batch: Transition
    ) -> tuple[Float[Array, ""], Metrics]:
        """−E[w Q₁(s, π(s))]: its gradient is the deterministic policy gradient (Silver 2014)."""
        action = self.module.policy_action(policy, batch.obs)
        q = self.module.first_q_values(critic, batch.obs, action)
        return -jnp.mean(batch.weight * q), {}

    def update(
        self, state: TD3State, batch: Transition, progress: Progress, key: Key
    ) -> tuple[TD3State, Metrics]:
        """The critics' step and, where it is due, the policy's; all of it or, if non-finite, none."""
        values = current_values(state.hparams, progress)
        targets = self.targets(state.target.params, batch, values, key)
        sgd, critic = step_part(
            self,
            CRITIC,
            lambda critic: self.critic_loss(critic, batch, targets),
            state.sgd,
            values,
        )
        age, delay = state.age + 1, self.settings.policy_delay
        before = Delayed(policy=part_of(sgd, POLICY), target=state.target, metrics=state.actor)

        def step() -> Delayed:
            after, actor = step_part(
                self,
                POLICY,
                lambda policy: self.actor_loss(policy, sgd.params[CRITIC], batch),
                sgd,
                values,
            )
            frequency = self.settings.target_network_update_freq
            metrics, tau = joined(critic, actor), values["tau"]
            target = followed(state.target, after.params, metrics, progress, tau, frequency)
            kept = {name: actor[name] for name in state.actor}
            return Delayed(policy=part_of(after, POLICY), target=target, metrics=kept)

        # A branch: where the policy is not due, it costs nothing.
        delayed = step() if delay == 1 else jax.lax.cond(age >= delay, step, lambda: before)
        metrics = joined(critic, delayed.metrics)
        learned = replace(
            state,
            sgd=with_part(sgd, POLICY, delayed.policy),
            age=jnp.where(age >= delay, 0, age),
            actor=delayed.metrics,
        )
        state = select(metrics[NONFINITE] < 0.5, learned, state)
        return replace(state, target=delayed.target), {
            **metrics,
            "policy_loss": delayed.metrics["total_loss"],
            "curr_actor_lr": values["actor_lr"],
            "curr_critic_lr": values["critic_lr"],
        }


class TD3Config(AlgorithmConfig):
    """Configuration of TD3."""

    algo_name = "TD3"
    training_settings: TD3Training = TD3Training(
        actor_lr=1e-3,
        critic_lr=1e-3,
        train_batch_size=100,
        tau=0.005,
        num_steps_sampled_before_learning_starts=10_000,
        initial_random_timesteps=10_000,
        replay_buffer_config={"type": "uniform", "capacity": 1_000_000, "alpha": 0.6, "beta": 0.4},
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", TD3Training)

    def get_default_learner_class(self) -> type[TD3Learner]:
        return TD3Learner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=DeterministicPolicyModule, model_config=RELU)

    def module_settings(self) -> dict[str, Any]:
        training = self.training_settings
        return super().module_settings() | {
            "num_critics": 2 if training.twin_q else 1,
            "exploration_noise": training.exploration_noise,
        }


class DDPGConfig(TD3Config):
    """Configuration of DDPG: TD3 without its three changes, with the noise of Lillicrap et al."""

    algo_name = "DDPG"
    training_settings: TD3Training = dataclasses.replace(
        TD3Config.training_settings,
        twin_q=False,
        policy_delay=1,
        smooth_target_policy=False,
        exploration_noise="ou",
        exploration_sigma=0.2,
        tau=0.002,
        train_batch_size=256,
        num_steps_sampled_before_learning_starts=1500,
        initial_random_timesteps=1000,
    )
