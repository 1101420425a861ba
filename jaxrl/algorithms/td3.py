"""TD3 (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477) and DDPG, a setting of it.

A deterministic policy that learns less often than its two critics, whose targets use smoothed
actions. DDPG (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971) has one critic, no delay, no
smoothing, and an Ornstein-Uhlenbeck process as noise. TD3+BC, for recorded data, is the setting
`bc_coeff` (Fujimoto & Gu 2021, https://arxiv.org/abs/2106.06860). Names and defaults are those that
RLlib had. Deviations: exploration noise is set here instead of in `exploration_config`, its scale
is constant, and networks have 256 and 256 units like SAC's (RLlib: 400 and 300).
"""

import dataclasses
from typing import Any

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.exploration import check_exploration_sigmas
from jaxrl.config.fields import fluent
from jaxrl.config.settings.actor_critic import TD3Training
from jaxrl.config.settings.replay import APEX_REPLAY_BUFFER
from jaxrl.learners.deterministic_actor_critic import TD3Learner
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import DeterministicPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec


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
        check_exploration_sigmas(self.training_settings, self.plan().total_envs)


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
