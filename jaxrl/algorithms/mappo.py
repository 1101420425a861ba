"""MAPPO (Yu et al. 2021, https://arxiv.org/abs/2103.01955): PPO with critics of the whole state.

Policies act on what their agents observe; the critic, which is needed for training alone, sees the
global state (section 4 of the paper). Defaults are those of the authors' code
(https://github.com/marlbenchmark/on-policy, `config.py`): normalized values, Huber's loss,
orthogonal initial weights, one minibatch. Deviations from it: the value's change is not clipped, the
policy and the critic share an optimizer and the norm that clips gradients, features are not
normalized by layers, and truncated episodes bootstrap from their final state, where the code takes
every end for a termination.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.ppo import PPOConfig, PPOTraining
from jaxrl.config.fields import field, fluent
from jaxrl.config.settings.training import CriticKind
from jaxrl.errors import ConfigError
from jaxrl.modules.actor_critic import CentralCriticModule
from jaxrl.modules.rl_module import RLModuleSpec

MODEL_CONFIG: Mapping[str, Any] = {
    "fcnet_hiddens": (64, 64),
    "fcnet_activation": "relu",
    "fcnet_kernel_initializer": "orthogonal",
    "fcnet_kernel_initializer_kwargs": {"gain": math.sqrt(2.0)},
    "pi_head_kernel_initializer": "orthogonal",
    "pi_head_kernel_initializer_kwargs": {"gain": 0.01},
    "vf_head_kernel_initializer": "orthogonal",
}
"""Networks of the authors' code."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MAPPOTraining(PPOTraining):
    """Settings of Yu et al. 2021, and those of PPO."""

    critic_input: CriticKind = field(
        default="state",
        doc="What the critic sees: the environment's global state ('state'), the observations of all "
        "agents ('joint'), or the global state and the agent's own observation ('agent_specific'). "
        "If agents share a module, it also sees a one-hot id of the agent.",
    )

    @property
    def central_critic(self) -> CriticKind | None:
        return self.critic_input


class MAPPOConfig(PPOConfig):
    """Configuration of MAPPO."""

    algo_name = "MAPPO"
    training_settings: MAPPOTraining = MAPPOTraining(  # pyright: ignore[reportIncompatibleVariableOverride]
        lr=5e-4,
        train_batch_size=4000,
        num_epochs=15,
        minibatch_size=None,
        optimizer={"name": "adam", "eps": 1e-5},
        grad_clip=10.0,
        clip_param=0.2,
        lambda_=0.95,
        entropy_coeff=0.01,
        vf_clip_param=math.inf,
        huber_delta=10.0,
        normalize_values=True,
        use_kl_loss=False,
    )
    training = fluent("training_settings", MAPPOTraining)

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=CentralCriticModule, model_config=dict(MODEL_CONFIG))

    def get_module_settings(self) -> dict[str, Any]:
        return super().get_module_settings() | {"critic_space": self.critic_space}

    def validate(self) -> None:
        training, env = self.training_settings, self.environment_settings.env
        if not training.use_critic:
            raise ConfigError(
                "use_critic=False leaves MAPPO without the critic that it is about: use PGConfig."
            )
        if env is not None and self.module_id is None and not self.is_multi_agent:
            raise ConfigError(
                f"critic_input={training.critic_input!r} is of several agents, but the environment "
                "has a single one, whose critic sees what it observes: use PPOConfig."
            )
        super().validate()
