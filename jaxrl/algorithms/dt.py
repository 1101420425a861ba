"""DT, decision transformer (Chen et al. 2021, https://arxiv.org/abs/2106.01345).

For recorded data: a causal transformer predicts the recorded actions from the rows before them and
the return-to-go, the sum of the rewards to come. In acting, the return-to-go begins at
`target_return` and the received rewards lower it, so that the policy plays for that return.

Deviations from the paper: positions are those of the rows in the context, instead of the time steps
of the episode; actions in a Box are normal and trained by their likelihood, as Zheng et al. 2022
have it (https://arxiv.org/abs/2202.05607), instead of the squared error; there is no dropout.
"""

import dataclasses
from typing import Any, ClassVar

from jaxtyping import Array, Float

from jaxrl.algorithms.marwil import BCLearner
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import count, field, finite, fluent, positive
from jaxrl.config.settings.offline import BCTraining
from jaxrl.core.types import Key, Metrics, Params, ReturnColumns, Transition
from jaxrl.errors import ConfigError
from jaxrl.modules.decision_transformer import DecisionTransformerModule
from jaxrl.modules.rl_module import RLModuleSpec

TRANSFORMER = {
    "use_attention": True,
    "attention_use_n_prev_actions": 1,
    "attention_use_n_prev_rewards": 1,
    "attention_num_transformer_units": 3,
    "attention_dim": 128,
    "attention_num_heads": 1,
    "attention_head_dim": 128,
    "attention_position_wise_mlp_dim": 512,
    "fcnet_hiddens": (),
}
"""Model settings of the paper's transformer for control tasks (appendix A.2, table 9)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DTTraining(BCTraining):
    """Settings of Chen et al. 2021."""

    context_length: int = field(
        default=20,
        check=count,
        doc="Number of rows that an action is predicted from, and of the windows that are learned "
        "from.",
    )
    target_return: float | None = field(
        default=None,
        check=finite,
        doc="Return to play for: the return-to-go at the start of an episode in acting, in units of "
        "the environment's rewards. It must be set; restoring a checkpoint with another value plays "
        "for that.",
    )
    return_scale: float = field(
        default=1.0,
        check=positive,
        doc="Divisor of returns-to-go, about the largest return of the data. Each value is another "
        "program.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class DTLearner(BCLearner):
    """Likelihood of the recorded actions, given returns-to-go and the rows before."""

    module: DecisionTransformerModule
    settings: DTTraining
    needs_returns: ClassVar[bool] = True

    def compute_loss(
        self, params: Params, batch: Transition, values: BCTraining, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −E[w log π(aₜ | R̂ₜ₋ₖ, sₜ₋ₖ, aₜ₋ₖ, ..., R̂ₜ, sₜ)]  (section 3).

        Args:
            params: Parameters of the module, which the gradient is taken for.
            batch: Windows `[N, L, ...]` of successive rows, with the extras of `ReturnColumns`.
            values: Settings with the values of the moment.
            key: Key for losses that draw; unused here.
        """
        del values, key
        returns = batch.extras[ReturnColumns.RETURN_TO_GO]
        inputs = self.module.compute_dist_inputs(params, batch.obs, returns)
        dist = self.module.action_dist(inputs, batch.obs)
        policy_loss = self.compute_policy_loss(dist, batch.action, batch.weight)
        return policy_loss, {"policy_loss": policy_loss}


class DTConfig(AlgorithmConfig):
    """Configuration of the decision transformer."""

    algo_name = "DT"
    requires_data = True
    window_setting = "context_length"
    training_settings: DTTraining = DTTraining(
        lr=1e-4,
        gamma=1.0,
        grad_clip=0.25,
        train_batch_size=1280,
        optimizer={"name": "adamw", "weight_decay": 1e-4},
    )
    training = fluent("training_settings", DTTraining)

    def get_default_learner_class(self) -> type[DTLearner]:
        return DTLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=DecisionTransformerModule, model_config=TRANSFORMER)

    def get_module_settings(self) -> dict[str, Any]:
        training = self.training_settings
        own = {name: getattr(training, name) for name in DecisionTransformerModule.required}
        return {**super().get_module_settings(), **own}

    @property
    def rows_per_window(self) -> int | None:
        return self.training_settings.context_length

    def validate(self) -> None:
        training, environment = self.training_settings, self.environment_settings
        if training.target_return is None:
            raise ConfigError(
                "DT plays for a return, and target_return=None does not say which: set it, such as "
                "training(target_return=500.0), to one that the data or their best episodes have."
            )
        if training.gamma != 1.0:
            raise ConfigError(
                f"gamma={training.gamma!r} discounts rewards, and DT's returns-to-go are plain sums: "
                "leave it at 1."
            )
        if training.burn_in_len:
            raise ConfigError(
                f"burn_in_len={training.burn_in_len} has no effect on DT, whose context is the "
                "window itself: leave it out, or raise context_length."
            )
        changes = {
            "clip_rewards": environment.clip_rewards,
            "normalize_rewards": self.env_runners_settings.normalize_rewards,
            "learner_connector": self.learners_settings.learner_connector,
        }
        for name, value in changes.items():
            if value:
                raise ConfigError(
                    f"{name}={value!r} changes the rewards that returns-to-go are sums of, and in "
                    "acting the environment's own lower them: leave it out, and set return_scale."
                )
        super().validate()
