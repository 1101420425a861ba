"""MADDPG (Lowe et al. 2017, https://arxiv.org/abs/1706.02275) and MATD3, a setting of it.

The agents of an environment are a team of policies on their own observations, whose critics see what
all observe and do while learning, with the rewards of each. Names of settings are TD3's.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.algorithms.td3 import TD3Config, TD3Learner
from jaxrl.config.settings.actor_critic import TD3Training
from jaxrl.config.teams import check_team, describe_team
from jaxrl.core.types import Columns, Metrics, Params, Transition
from jaxrl.errors import ConfigError
from jaxrl.learners.actor_critic import critic_loss
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.modules.teams import GroupPolicyModule


@dataclasses.dataclass(frozen=True, eq=False)
class MADDPGLearner(TD3Learner):
    """A policy and critics for every member of a team, each with the member's own rewards.

    Lowe et al. 2017, https://arxiv.org/abs/1706.02275. A member that does not act neither learns nor
    is bootstrapped from.
    """

    module: GroupPolicyModule  # pyright: ignore[reportIncompatibleVariableOverride]
    has_stacked_params = True

    def compute_td_targets(
        self, next_out: Float[Array, "critics N m"], batch: Transition
    ) -> tuple[Float[Array, "N m"], Metrics]:
        """Compute yᵢ = rᵢ + γ minₖ Q'ᵢₖ(x', π'₁(o'₁), ..., π'ₘ(o'ₘ))  (eq. 6).

        The actions are smoothed by noise if the settings say so, as in TD3.
        """
        module, next_obs = self.module, batch.next_obs
        rewards, acts = module.get_member_rewards(next_obs), module.members.acting(next_obs)
        next_values = batch.discount[:, None] * jnp.min(next_out, axis=0)
        return rewards + jnp.where(acts, next_values, 0.0), {}

    def critic_loss(
        self, out: Float[Array, "critics N m"], batch: Transition, targets: Float[Array, "N m"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σᵢ Σₖ E[w l(Qᵢₖ(x, a) − yᵢ)] over the members that act."""
        acts = self.module.members.acting(batch.obs).astype(jnp.float32)
        weight, loss_fn = batch.weight[:, None] * acts, self.settings.td_error_loss_fn
        loss, metrics = critic_loss(out, targets, weight, loss_fn, self.axis_name)
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


_NOT_FOR_MEMBERS: dict[str, tuple[tuple[object, ...], str]] = {
    "n_step": ((1, (1, 1)), "rewards of members are those of single steps"),
    "bc_coeff": ((None,), "a team learns from what it samples"),
    "num_atoms": ((1,), "critics of members have single values"),
    "num_target_critics": ((None,), "a member's policy follows its first critic"),
    "use_target_network": ((True,), "critics of members are bootstrapped from slower copies"),
    "clip_rewards": ((None, False), "members learn from the rewards of the environment"),
    "normalize_rewards": ((False,), "members learn from the rewards of the environment"),
    "observation_filter": (("NoFilter",), "it would also change the members' rewards"),
}
"""Settings with the values that a team has, and the reason."""


class MADDPGConfig(TD3Config):
    """Configuration of MADDPG (Lowe et al. 2017): DDPG for a team of agents with central critics.

    Defaults are those of the paper's appendix and of RLlib's MADDPG (2.2), but actions are those of a
    Box with Gaussian noise. As there, gradients are clipped by member and tensor.
    """

    algo_name = "MADDPG"
    groups_agents = True
    learns_member_rewards = True
    training_settings: TD3Training = TD3Training(
        twin_q=False,
        policy_delay=1,
        smooth_target_policy=False,
        actor_lr=1e-2,
        critic_lr=1e-2,
        gamma=0.95,
        tau=0.01,
        train_batch_size=1024,
        grad_clip=0.5,
        grad_clip_by="norm",
        num_steps_sampled_before_learning_starts=25_600,
        replay_buffer_config={"type": "uniform", "capacity": 1_000_000, "alpha": 0.6, "beta": 0.4},
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
