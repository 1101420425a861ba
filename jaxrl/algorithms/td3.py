"""TD3 (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477) and DDPG, a setting of it.

A deterministic policy that learns less often than its two critics, whose targets use smoothed
actions. DDPG (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971) has one critic, no delay, no
smoothing, and an Ornstein-Uhlenbeck process as noise. TD3+BC, for recorded data, is the setting
`bc_coeff` (Fujimoto & Gu 2021, https://arxiv.org/abs/2106.06860). Names and defaults are those that
RLlib had. Deviations: exploration noise is set here instead of in `exploration_config`, its scale
is constant, and networks have 256 and 256 units like SAC's (RLlib: 400 and 300).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.actor_critic import TD3Training
from jaxrl.config.settings.replay import APEX_REPLAY_BUFFER
from jaxrl.config.teams import check_team, describe_team
from jaxrl.core.hparams import HParams, build_hparams, current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Metrics, Params, Progress, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import NUM_NONFINITE_UPDATES, SgdState, compute_gradient_norms, select
from jaxrl.learners.multi_optimizer import (
    CRITIC,
    LR_NAMES,
    POLICY,
    combine_metrics,
    critic_loss,
    draw_normal_rows,
    get_part,
    init_parts,
    replace_part,
    step_one,
)
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.group_policy import GroupPolicyModule
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import DeterministicPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops.losses import masked_mean


@pytree
class TD3State:
    """Learner state; `age` counts updates since the policy's last step, `actor` is its metrics."""

    sgd: SgdState
    target: TargetNetwork
    age: Int[Array, ""]
    actor: Metrics
    hparams: HParams


@pytree
class DelayedUpdate:
    """Result of a policy step: policy, target network, and metrics."""

    policy: SgdState
    target: TargetNetwork
    metrics: Metrics


@dataclasses.dataclass(frozen=True, eq=False)
class TD3Learner(BaseLearner[TD3State]):
    """Critics with clipped double-Q targets at smoothed actions, and a delayed policy."""

    module: DeterministicPolicyModule
    settings: TD3Training
    lr_names: ClassVar[Mapping[str, str]] = {part: LR_NAMES[part] for part in (POLICY, CRITIC)}

    def init(self, key: Key) -> TD3State:
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = current_values(hparams, Progress.zeros())
        names = ["total_loss", "grad_norm", NUM_NONFINITE_UPDATES]
        if self.log_gradients:
            names += compute_gradient_norms({POLICY: params[POLICY]})
        return TD3State(
            sgd=init_parts(self, params, values),
            target=init_target(params),
            age=jnp.zeros((), jnp.int32),
            actor={name: jnp.zeros((), jnp.float32) for name in names},
            hparams=hparams,
        )

    def without_delays(self, state: TD3State) -> TD3State:
        return replace(state, age=jnp.full_like(state.age, self.settings.policy_delay))

    def compute_td_targets(
        self, target: Params, batch: Transition, values: dict[str, Float[Array, ""]], key: Key
    ) -> Float[Array, " N"]:
        """Compute y = r + γ minₖ Q'ₖ(s', π'(s') + clip(ε, −c, c)), ε ~ N(0, σ²)  (eq. 14-15).

        γ stands for `batch.discount`, which is 0 after a termination.
        """
        q = self.compute_next_values(target, batch, values, key)
        return batch.reward + batch.discount * jnp.min(q, axis=0)

    def compute_next_values(
        self, target: Params, batch: Transition, values: dict[str, Float[Array, ""]], key: Key
    ) -> Float[Array, "critics N *m"]:
        """Compute the target critics' values of the target policy's actions, smoothed by noise."""
        action = self.module.compute_policy_action(target[POLICY], batch.next_obs)
        if self.settings.smooth_target_policy:
            bound = values["target_noise_clip"]
            noise = values["target_noise"] * draw_normal_rows(key, action.shape, self.axis_name)
            action = self.module.perturb(action, jnp.clip(noise, -bound, bound))
        return self.module.compute_q_values(target[CRITIC], batch.next_obs, action)

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w l(Qₖ(s, a) − y)], with l set by `td_error_loss_fn`."""
        q = self.module.compute_q_values(critic, batch.obs, batch.action)
        loss_fn = self.settings.td_error_loss_fn
        return critic_loss(q, targets, batch.weight, loss_fn, self.axis_name)

    def actor_loss(
        self, policy: Params, critic: Params, batch: Transition
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −E[w Q₁(s, π(s))].

        Its gradient is the deterministic policy gradient (Silver et al. 2014).
        """
        action = self.module.compute_policy_action(policy, batch.obs)
        q = self.module.compute_first_q_values(critic, batch.obs, action)
        return -jnp.mean(batch.weight * q), {}

    def imitating_actor_loss(
        self, policy: Params, critic: Params, batch: Transition, coeff: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −λ E[w Q₁(s, π(s))] + E[w |π(s) − a|²], λ = coeff / E|Q₁|.

        Fujimoto & Gu 2021, eq. 3 and 5: distances are means over the action's elements, in units
        of half the action range, and λ carries no gradient.
        """
        action = self.module.compute_policy_action(policy, batch.obs)
        q = self.module.compute_first_q_values(critic, batch.obs, action)
        size = masked_mean(jnp.abs(jax.lax.stop_gradient(q)), batch.weight > 0.0, self.axis_name)
        if self.axis_name is not None:
            size = jax.lax.pmean(size, self.axis_name)
        distance = self.module.compute_distance(action, batch.action)
        scale = coeff / jnp.maximum(size, 1e-8)
        return jnp.mean(batch.weight * (distance - scale * q)), {}

    def update(
        self, state: TD3State, batch: Transition, progress: Progress, key: Key
    ) -> tuple[TD3State, Metrics]:
        """Step the critics and, when due, the policy.

        If anything is non-finite, nothing changes.
        """
        values = current_values(state.hparams, progress)
        targets = self.compute_td_targets(state.target.params, batch, values, key)
        sgd, critic = step_one(
            self,
            CRITIC,
            lambda critic: self.critic_loss(critic, batch, targets),
            state.sgd,
            values,
        )
        settings = self.settings
        age, delay = state.age + 1, settings.policy_delay
        skipped = DelayedUpdate(
            policy=get_part(sgd, POLICY), target=state.target, metrics=state.actor
        )

        def actor_loss(policy: Params) -> tuple[Float[Array, ""], Metrics]:
            if settings.bc_coeff is None:
                return self.actor_loss(policy, sgd.params[CRITIC], batch)
            coeff = values["bc_coeff"]
            return self.imitating_actor_loss(policy, sgd.params[CRITIC], batch, coeff)

        def policy_step() -> DelayedUpdate:
            stepped, actor = step_one(self, POLICY, actor_loss, sgd, values)
            frequency = settings.target_network_update_freq
            metrics, tau = combine_metrics(critic, actor), values["tau"]
            target = update_target(state.target, stepped.params, metrics, progress, tau, frequency)
            actor_metrics = {name: actor[name] for name in state.actor}
            return DelayedUpdate(
                policy=get_part(stepped, POLICY), target=target, metrics=actor_metrics
            )

        # A `cond`, so that a policy step that is not due costs nothing.
        delayed = (
            policy_step()
            if delay == 1
            else jax.lax.cond(age >= delay, policy_step, lambda: skipped)
        )
        metrics = combine_metrics(critic, delayed.metrics)
        updated = replace(
            state,
            sgd=replace_part(sgd, POLICY, delayed.policy),
            age=jnp.where(age >= delay, 0, age),
            actor=delayed.metrics,
        )
        state = select(metrics[NUM_NONFINITE_UPDATES] < 0.5, updated, state)
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
        return RLModuleSpec(module_class=DeterministicPolicyModule, model_config=RELU_ACTIVATIONS)

    def get_module_settings(self) -> dict[str, Any]:
        noise = self.training_settings.exploration_noise
        return super().get_module_settings() | {"exploration_noise": noise}


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


@dataclasses.dataclass(frozen=True, eq=False)
class MADDPGLearner(TD3Learner):
    """A policy and critics for every member of a team, each with the member's own rewards.

    Lowe et al. 2017, https://arxiv.org/abs/1706.02275. A member that does not act neither learns nor
    is bootstrapped from.
    """

    module: GroupPolicyModule  # pyright: ignore[reportIncompatibleVariableOverride]

    def compute_td_targets(
        self, target: Params, batch: Transition, values: dict[str, Float[Array, ""]], key: Key
    ) -> Float[Array, "N m"]:
        """Compute yᵢ = rᵢ + γ minₖ Q'ᵢₖ(x', π'₁(o'₁), ..., π'ₘ(o'ₘ))  (eq. 6).

        The actions are smoothed by noise if the settings say so, as in TD3.
        """
        module, next_obs = self.module, batch.next_obs
        rewards, acts = module.get_member_rewards(next_obs), module.members.acting(next_obs)
        next_values = jnp.min(self.compute_next_values(target, batch, values, key), axis=0)
        return rewards + jnp.where(acts, batch.discount[:, None] * next_values, 0.0)

    def critic_loss(
        self, critic: Params, batch: Transition, targets: Float[Array, "N m"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σᵢ Σₖ E[w l(Qᵢₖ(x, a) − yᵢ)] over the members that act."""
        acts = self.module.members.acting(batch.obs).astype(jnp.float32)
        q = self.module.compute_q_values(critic, batch.obs, batch.action)
        weight, loss_fn = batch.weight[:, None] * acts, self.settings.td_error_loss_fn
        loss, metrics = critic_loss(q, targets, weight, loss_fn, self.axis_name)
        loss = self.module.members.size * loss
        errors = jnp.sum(metrics[Columns.TD_ERROR] * acts, axis=1)
        td_error = errors / jnp.maximum(acts.sum(axis=1), 1.0)
        return loss, {**metrics, "qf_loss": loss, Columns.TD_ERROR: td_error}

    def actor_loss(
        self, policy: Params, critic: Params, batch: Transition
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −Σᵢ E[w Qᵢ(x, a₁, ..., πᵢ(oᵢ), ..., aₘ)], the other actions as taken  (eq. 5)."""
        acts = self.module.members.acting(batch.obs).astype(jnp.float32)
        own = self.module.compute_policy_action(policy, batch.obs)
        q = self.module.compute_own_q_values(critic, batch.obs, batch.action, own)
        return -jnp.mean(batch.weight * jnp.sum(acts * q, axis=1)), {}


class ApexDDPGConfig(DDPGConfig):
    """Ape-X DPG (Horgan et al. 2018): DDPG with prioritized replay and 3-step targets.

    Defaults are those of RLlib 2.3, except that target networks are copied every 100 batches, as in
    the paper's appendix D.
    """

    algo_name = "APEX_DDPG"
    env_runners_settings = dataclasses.replace(
        DDPGConfig.env_runners_settings, num_envs_per_env_runner=32, rollout_fragment_length=16
    )
    training_settings: TD3Training = dataclasses.replace(
        DDPGConfig.training_settings,
        n_step=3,
        train_batch_size=512,
        training_intensity=1.0,
        tau=1.0,
        target_network_update_freq=51_200,
        num_steps_sampled_before_learning_starts=50_000,
        replay_buffer_config=APEX_REPLAY_BUFFER,
    )
    reporting_settings = dataclasses.replace(
        DDPGConfig.reporting_settings, min_sample_timesteps_per_iteration=25_000
    )


_NOT_FOR_MEMBERS: dict[str, tuple[tuple[object, ...], str]] = {
    "n_step": ((1, (1, 1)), "rewards of members are those of single steps"),
    "bc_coeff": ((None,), "a team learns from what it samples"),
    "clip_rewards": ((None, False), "members learn from the rewards of the environment"),
    "normalize_rewards": ((False,), "members learn from the rewards of the environment"),
    "observation_filter": (("NoFilter",), "it would also change the members' rewards"),
}
"""Settings with the values that a team has, and the reason."""


class MADDPGConfig(TD3Config):
    """Configuration of MADDPG (Lowe et al. 2017): DDPG for a team of agents with central critics.

    Defaults are those of the paper's appendix and of RLlib's MADDPG (2.2), but actions are those of a
    Box with Gaussian noise.
    """

    algo_name = "MADDPG"
    groups_agents = True
    learns_member_rewards = True
    training_settings: TD3Training = dataclasses.replace(
        TD3Config.training_settings,
        twin_q=False,
        policy_delay=1,
        smooth_target_policy=False,
        actor_lr=1e-2,
        critic_lr=1e-2,
        gamma=0.95,
        tau=0.01,
        train_batch_size=1024,
        grad_clip=0.5,
        num_steps_sampled_before_learning_starts=25_600,
        initial_random_timesteps=0,
    )

    @property
    def notes(self) -> list[str]:
        """Notes on old names and on values without effect, and on who is grouped."""
        return [*describe_team(self), *super().notes]

    def get_default_learner_class(self) -> type[MADDPGLearner]:
        return MADDPGLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=GroupPolicyModule, model_config=RELU_ACTIVATIONS)

    def validate(self) -> None:
        """Check the constraints between settings.

        Raises:
            ConfigError: If settings contradict each other, or have no effect on a team.
        """
        check_team(self)
        super().validate()
        for name, (allowed, reason) in _NOT_FOR_MEMBERS.items():
            if self[name] not in allowed:
                raise ConfigError(
                    f"{name}={self[name]!r} is not supported by {self.algo_name}: {reason}; set "
                    f"{allowed[0]!r}."
                )


class MATD3Config(MADDPGConfig):
    """Configuration of MATD3 (Ackermann et al. 2019): MADDPG with the three changes of TD3."""

    algo_name = "MATD3"
    training_settings: TD3Training = dataclasses.replace(
        MADDPGConfig.training_settings, twin_q=True, policy_delay=2, smooth_target_policy=True
    )
