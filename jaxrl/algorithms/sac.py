"""SAC (Haarnoja et al. 2018b, https://arxiv.org/abs/1812.05905), and its discrete form.

The action space selects the form: a Box is acted in with a squashed Gaussian, a Discrete space with
the probabilities of all actions (Christodoulou 2019, https://arxiv.org/abs/1910.07207). Names and
defaults are RLlib's. Deviations from RLlib: the policy is improved by the critics after their step,
as in the paper (RLlib: all gradients at the same parameters); critics take the action beside the
observation's features (RLlib: each has an encoder and a third one fuses them); importance weights
apply to all three losses; log standard deviations range from -20 to 2 (RLlib: from -5); 'auto' in a
Discrete space is 0.98 log n, as in RLlib's old API stack (new: -1).
"""

import dataclasses

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.actor_critic import SAC_REPLAY_BUFFER, TwinTraining
from jaxrl.learners.twin_soft_actor_critic import TwinSoftActorCritic
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACTraining(TwinTraining):
    """Settings of Haarnoja et al. 2018b; names and defaults are RLlib's."""


@dataclasses.dataclass(frozen=True, eq=False)
class SACLearner(TwinSoftActorCritic):
    """Critics of the entropy-regularized return, of which the smallest is used."""

    settings: SACTraining


UNIFORM_BUFFER = {**SAC_REPLAY_BUFFER, "type": "uniform"}
"""Buffer of the papers that SAC's presets are from."""


class SACConfig(AlgorithmConfig):
    """Configuration of SAC."""

    algo_name = "SAC"
    training_settings: SACTraining = SACTraining(
        train_batch_size=256,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config=SAC_REPLAY_BUFFER,
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", SACTraining)

    def get_default_learner_class(self) -> type[SACLearner]:
        return SACLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU_ACTIVATIONS)


class RNNSACConfig(SACConfig):
    """SAC with an LSTM, from sequences (RLlib 2.3's RNNSAC).

    The train batch of 320 rows is 16 sequences of `max_seq_len`, 20; RLlib's is 256 rows.
    """

    algo_name = "RNNSAC"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings, train_batch_size=320, zero_init_states=True
    )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        model_config = {**RELU_ACTIVATIONS, "use_lstm": True}
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=model_config)


class CrossQConfig(SACConfig):
    """SAC with batch-renormalized wide critics and no target network (Bhatt et al. 2024).

    https://arxiv.org/abs/1902.05605. Values are those of the authors' code. Deviations from it: the
    policy is not renormalized, and b1 is 0.5 for the temperature too.
    """

    algo_name = "CrossQ"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings,
        use_target_network=False,
        policy_delay=3,
        optimizer={"name": "adam", "b1": 0.5},
        actor_lr=1e-3,
        critic_lr=1e-3,
        alpha_lr=1e-3,
        td_error_loss_fn="mse",
        num_steps_sampled_before_learning_starts=5000,
        initial_random_timesteps=5000,
        replay_buffer_config=UNIFORM_BUFFER,
    )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        model_config = {
            **RELU_ACTIVATIONS,
            "critic_use_batchrenorm": True,
            "critic_fcnet_hiddens": [2048, 2048],
        }
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=model_config)


class REDQConfig(SACConfig):
    """SAC with ten critics, two of which give the targets, and 20 updates per step (Chen et al. 2021).

    https://arxiv.org/abs/2101.05982. Values are those of the authors' code: the policy learns with every
    20th update, and the target entropy is the one number that differs, which is theirs by environment.
    """

    algo_name = "REDQ"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings,
        num_critics=10,
        num_target_critics=2,
        policy_delay=20,
        training_intensity=5120.0,  # 20 batches of 256 for every step
        actor_lr=3e-4,
        critic_lr=3e-4,
        alpha_lr=3e-4,
        td_error_loss_fn="mse",
        num_steps_sampled_before_learning_starts=5000,
        initial_random_timesteps=5000,
        replay_buffer_config=UNIFORM_BUFFER,
    )
