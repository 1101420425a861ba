"""QMIX (Rashid et al. 2018, https://arxiv.org/abs/1803.11485) and VDN, a setting of it.

The agents of an environment are a team with one reward. Each member acts on values of its own
observation, and what is learned by DQN is the value of the team: a monotonic function of the members'
values that depends on the global state, or their sum (VDN; Sunehag et al. 2018, at
arxiv.org/abs/1706.05296), so that what is best for each member is best for the team.
`mixer=None` is independent Q-learning from the team's reward.

Names and defaults are those of RLlib's QMIX (2.2), whose network has a GRU: here
`model_config={"use_lstm": True, "recurrent_layer_type": "gru"}`. `hypernet_embed`, `obs_agent_id`
and `team_reward` are additions. Members that do not act add 0 to the team's value, and their choices
are ignored; the paper's tasks leave their values in.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.algorithms.dqn import DQNConfig, DQNLearner
from jaxrl.config.fields import count, field, fluent
from jaxrl.config.settings.value import DQNTraining
from jaxrl.config.teams import GroupReward, check_team, describe_team
from jaxrl.core.types import Columns, Key, Metrics, Params, Transition
from jaxrl.errors import ConfigError
from jaxrl.modules.model_config import TORCH_BIASES
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.modules.teams import GroupQModule
from jaxrl.ops import losses
from jaxrl.ops.value_losses import batched_index

_NOT_FOR_TEAMS: dict[str, tuple[object, str]] = {
    "num_atoms": (1, "a mixer takes single values"),
    "num_quantiles": (1, "a mixer takes single values"),
    "noisy": (False, "members explore by epsilon"),
    "cql_alpha": (0.0, "a team learns from what it samples"),
    "margin_coeff": (0.0, "a team learns from what it samples"),
}
"""Settings of DQN with the only value that a team has, and the reason."""
_OF_THE_MIXER = ("mixing_embed_dim", "hypernet_embed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QMIXTraining(DQNTraining):
    """Settings of QMIX."""

    mixer: Literal["qmix", "vdn"] | None = field(
        default="qmix",
        doc="How the members' values become that of the team: 'qmix' is a monotonic network of them, "
        "'vdn' their sum; None learns each from the team's reward by itself.",
    )
    mixing_embed_dim: int = field(
        default=32, check=count, doc="Number of hidden units of QMIX's mixer."
    )
    hypernet_embed: int | None = field(
        default=None,
        check=count,
        doc="Number of hidden units of the networks that give the mixer its weights; None is linear "
        "ones, as in the paper.",
    )
    obs_agent_id: bool = field(
        default=True,
        doc="Whether members, which share one network, observe a one-hot of which member they are.",
    )
    team_reward: GroupReward = field(
        default="sum",
        doc="Reward of the team: the 'sum' or 'mean' of the members' rewards, or 'same' where all "
        "have the same.",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class QMIXLearner(DQNLearner):
    """Regression of a team's value onto bootstrapped targets."""

    module: GroupQModule
    settings: QMIXTraining

    def compute_td_targets(
        self, params: Params, target_params: Params, batch: Transition, key: Key
    ) -> Float[Array, "*n k"]:
        """Compute y = r + γ Q_tot(s', a'; θ⁻), with a' each member's best legal action.

        It is the best by the online network with `double_q`, else by the target network. Without a
        mixer there is a target for each member, else one, `k = 1`.
        """
        del key
        module, next_obs = self.module, batch.next_obs
        target_values = module.compute_member_values(target_params, next_obs)
        values = target_values
        if self.settings.double_q:
            values = module.compute_member_values(params, next_obs)
        chosen = batched_index(target_values, module.choose_best(values, next_obs))
        next_value = module.mix(target_params, chosen, next_obs)
        return self.bootstrap(batch.reward[..., None], batch.discount[..., None], next_value)

    def compute_loss(
        self, params: Params, batch: Transition, targets: Float[Array, "*n k"], key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean of `batch.weight` times the losses of Q_tot(s, a) − y.

        Override this method for a custom loss. Without a mixer a row's loss is the mean of those of
        the members that act. `td_error`, which sets replay priorities, is the mean of absolute
        errors.
        """
        del key
        module = self.module
        values = module.compute_member_values(params, batch.obs)
        total = module.mix(params, batched_index(values, batch.action), batch.obs)
        shares = module.weigh_values(batch.obs)
        error = total - jax.lax.stop_gradient(targets)
        use_huber = self.settings.td_error_loss_fn == "huber"
        loss = losses.huber_loss(error) if use_huber else jnp.square(error)
        loss, size, value = (jnp.sum(x * shares, axis=-1) for x in (loss, jnp.abs(error), total))
        mean = partial(losses.masked_mean, mask=batch.weight > 0.0, axis_name=self.axis_name)
        return jnp.mean(batch.weight * loss), {
            "qf_mean": mean(value),
            "td_error_mean": mean(size),
            Columns.TD_ERROR: size,
        }


class QMIXConfig(DQNConfig):
    """Configuration of QMIX."""

    algo_name = "QMIX"
    groups_agents = True
    training_settings: QMIXTraining = QMIXTraining(  # pyright: ignore[reportIncompatibleVariableOverride]
        lr=5e-4,
        grad_clip=10.0,
        optimizer={"name": "rmsprop", "decay": 0.99, "eps": 1e-5},
        td_error_loss_fn="mse",
        dueling=False,
        epsilon=[[0, 1.0], [40_000, 0.01]],
        target_network_update_freq=500,
        replay_buffer_config={"type": "uniform", "capacity": 50_000},
    )
    training = fluent("training_settings", QMIXTraining)

    @property
    def notes(self) -> list[str]:
        """Notes on old names and on values without effect, and on who is grouped."""
        return [*describe_team(self), *super().notes]

    def resolve_team_reward(self) -> GroupReward:
        return self.training_settings.team_reward

    @property
    def team_reads_state(self) -> bool:
        """True with QMIX's mixer: sums, and values by themselves, are those of observations."""
        return self.training_settings.mixer == "qmix"

    def get_default_learner_class(self) -> type[QMIXLearner]:
        return QMIXLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=GroupQModule, model_config=TORCH_BIASES)

    def get_module_settings(self) -> dict[str, Any]:
        names = ("mixer", "mixing_embed_dim", "hypernet_embed", "obs_agent_id")
        return super().get_module_settings() | {name: self[name] for name in names}

    def validate(self) -> None:
        """Check the constraints between settings.

        Raises:
            ConfigError: If settings contradict each other, or have no effect on a team.
        """
        check_team(self)
        for name, (value, reason) in _NOT_FOR_TEAMS.items():
            if self[name] != value:
                raise ConfigError(
                    f"{name}={self[name]!r} is not supported by {self.algo_name}: {reason}; set "
                    f"{value!r}."
                )
        super().validate()
        mixer = self.training_settings.mixer
        given = [name for name in _OF_THE_MIXER if name in self.explicit]
        if mixer != "qmix" and given:
            raise ConfigError(
                f"{given[0]}={self[given[0]]!r} has no effect with mixer={mixer!r}, which has no "
                "network: leave it out, or set mixer='qmix'."
            )


class VDNConfig(QMIXConfig):
    """Configuration of VDN: QMIX with the sum of values in place of its mixer."""

    algo_name = "VDN"
    training_settings: QMIXTraining = dataclasses.replace(QMIXConfig.training_settings, mixer="vdn")
