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
from jaxrl.core.hparams import HParams, build_hparams
from jaxrl.core.keys import draw_normal_rows
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.learners.actor_critic import (
    LR_NAMES,
    ActorCriticLearner,
    choose_critics,
    combine_metrics,
    compute_smallest_targets,
    critic_loss,
    get_part,
    replace_part,
    step_when_due,
)
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, compute_gradient_norms, select
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, DeterministicPolicyModule
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
class TD3Learner(ActorCriticLearner[TD3State]):
    """Critics with clipped double-Q targets at smoothed actions, and a delayed policy."""

    module: DeterministicPolicyModule
    settings: TD3Training
    lr_names: ClassVar[Mapping[str, str]] = {part: LR_NAMES[part] for part in (POLICY, CRITIC)}

    def init(self, key: Key) -> TD3State:
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = self.settings.at(hparams, Progress.zeros())
        names = ["total_loss", "grad_norm", NUM_NONFINITE_UPDATES]
        if self.log_gradients:
            names += compute_gradient_norms({POLICY: params[POLICY]})
        return TD3State(
            sgd=self.init_parts(params, values),
            target=init_target(params if self.settings.use_target_network else {}),
            age=jnp.zeros((), jnp.int32),
            actor={name: jnp.zeros((), jnp.float32) for name in names},
            hparams=hparams,
        )

    def without_delays(self, state: TD3State) -> TD3State:
        return replace(state, age=jnp.full_like(state.age, self.settings.policy_delay))

    def compute_next_action(
        self, policy: Params, obs: PyTree, values: TD3Training, key: Key
    ) -> Float[Array, "N ..."]:
        """Compute π'(s') + clip(ε, −c, c), ε ~ N(0, σ²), the action of the targets  (eq. 14).

        Args:
            policy: Parameters of the target network's policy, or of the policy itself.
            obs: Observations s', `[N, ...]`.
            values: Settings with the values of the moment.
            key: Key of the noise. Consumed.
        """
        action = self.module.compute_policy_action(policy, obs)
        if self.settings.smooth_target_policy:
            bound = values.target_noise_clip
            noise = values.target_noise * draw_normal_rows(key, action.shape, self.axis_name)
            action = self.module.perturb(action, jnp.clip(noise, -bound, bound))
        return action

    def compute_td_targets(
        self, next_out: Float[Array, "critics N *n"], batch: Transition
    ) -> tuple[Float[Array, " N *n"], Metrics]:
        """Compute y = r + γ minₖ Q'ₖ(s', a')  (eq. 15), see `compute_smallest_targets`.

        Args:
            next_out: Outputs of the critics of the targets at s' and a'.
            batch: Minibatch, `[N, ...]`.
        """
        support = self.module.support
        return compute_smallest_targets(next_out, batch, support, axis_name=self.axis_name)

    def critic_loss(
        self, out: Float[Array, "critics N *n"], batch: Transition, targets: Float[Array, " N *n"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w l(Qₖ(s, a) − y)], with l set by `td_error_loss_fn`, or C51's.

        Args:
            out: Outputs of the critics at the rows.
            batch: Minibatch, `[N, ...]`.
            targets: Targets y.
        """
        loss_fn, support = self.settings.td_error_loss_fn, self.module.support
        return critic_loss(out, targets, batch.weight, loss_fn, self.axis_name, support)

    def step_critics(
        self, state: TD3State, batch: Transition, values: TD3Training, key: Key
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets. Consumes the key."""
        settings, online = self.settings, state.sgd.params
        target = state.target.params if settings.use_target_network else None
        chosen, key = choose_critics(settings, key)
        policy = online[POLICY] if target is None else target[POLICY]
        action = self.compute_next_action(policy, batch.next_obs, values, key)

        def loss(
            critic: Params,
            out: Float[Array, "critics N *n"],
            next_out: Float[Array, "critics N *n"],
        ) -> tuple[Float[Array, ""], Metrics]:
            del critic
            next_out = next_out if chosen is None else next_out[chosen]
            targets, clipped = self.compute_td_targets(next_out, batch)
            value, metrics = self.critic_loss(out, batch, targets)
            return value, {**metrics, **clipped}

        critics = None if target is None else target[CRITIC]
        return self.step_bootstrapped_critics(state.sgd, critics, batch, action, loss, values)

    def compute_policy_values(
        self, critic: Params, obs: PyTree, action: Float[Array, "N ..."]
    ) -> Float[Array, " N"]:
        """Compute Q₁(s, a), or the mean of all critics where some are drawn for the targets."""
        if self.settings.draws_critics:
            return jnp.mean(self.module.compute_q_values(critic, obs, action), axis=0)
        return self.module.compute_first_q_values(critic, obs, action)

    def actor_loss(
        self, policy: Params, critic: Params, batch: Transition
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −E[w Q₁(s, π(s))].

        Its gradient is the deterministic policy gradient (Silver et al. 2014).
        """
        action = self.module.compute_policy_action(policy, batch.obs)
        q = self.compute_policy_values(critic, batch.obs, action)
        return -jnp.mean(batch.weight * q), {}

    def imitating_actor_loss(
        self, policy: Params, critic: Params, batch: Transition, coeff: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −λ E[w Q₁(s, π(s))] + E[w |π(s) − a|²], λ = coeff / E|Q₁|.

        Fujimoto & Gu 2021, eq. 3 and 5: distances are means over the action's elements, in units
        of half the action range, and λ carries no gradient.
        """
        action = self.module.compute_policy_action(policy, batch.obs)
        q = self.compute_policy_values(critic, batch.obs, action)
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
        values = self.settings.at(state.hparams, progress)
        sgd, critic = self.step_critics(state, batch, values, key)
        settings = self.settings
        skipped = DelayedUpdate(
            policy=get_part(sgd, POLICY), target=state.target, metrics=state.actor
        )

        def actor_loss(policy: Params) -> tuple[Float[Array, ""], Metrics]:
            if values.bc_coeff is None:
                return self.actor_loss(policy, sgd.params[CRITIC], batch)
            return self.imitating_actor_loss(policy, sgd.params[CRITIC], batch, values.bc_coeff)

        def policy_step() -> DelayedUpdate:
            stepped, actor = self.step_part(POLICY, actor_loss, sgd, values)
            target = state.target
            if settings.use_target_network:
                frequency, tau = settings.target_network_update_freq, values.tau
                metrics = combine_metrics(critic, actor)
                target = update_target(target, stepped.params, metrics, progress, tau, frequency)
            actor_metrics = {name: actor[name] for name in state.actor}
            return DelayedUpdate(
                policy=get_part(stepped, POLICY), target=target, metrics=actor_metrics
            )

        delayed, age = step_when_due(state.age, settings.policy_delay, policy_step, skipped)
        metrics = combine_metrics(critic, delayed.metrics)
        updated = replace(
            state,
            sgd=replace_part(sgd, POLICY, delayed.policy),
            age=age,
            actor=delayed.metrics,
        )
        state = select(metrics[NUM_NONFINITE_UPDATES] < 0.5, updated, state)
        return replace(state, target=delayed.target), {
            **metrics,
            "policy_loss": delayed.metrics["total_loss"],
            "curr_actor_lr": values.actor_lr,
            "curr_critic_lr": values.critic_lr,
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

    def validate(self) -> None:
        super().validate()
        self.training_settings.check_exploration_sigmas(self.plan().total_envs)


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
