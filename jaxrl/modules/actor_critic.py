"""Modules with a policy and state values: the default one, and that of a central critic."""

from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.types import CentralObs, Columns, Key, Params, PyTree, map_obs, obs_only
from jaxrl.distributions.base import DiagGaussian
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.encoder_module import AnyEncoder, EncoderModule
from jaxrl.modules.networks import Head
from jaxrl.modules.rl_module import make_zeros


class ActorCriticNetwork(nn.Module):
    """Policy and value networks, with separate encoders or a shared one.

    Parameters: `pi_encoder`, `pi_head`, `vf_encoder`, `vf_head`, or `encoder`, `pi_head`,
    `vf_head`; and `log_std` if it is state-independent.
    """

    pi_encoder: AnyEncoder | None
    vf_encoder: AnyEncoder | None
    encoder: AnyEncoder | None
    pi_head: Head
    vf_head: Head
    num_free_log_std: int = 0

    def setup(self) -> None:
        if self.num_free_log_std:
            self.log_std = self.param(
                "log_std", nn.initializers.zeros, (self.num_free_log_std,), jnp.float32
            )

    def __call__(self, obs: Array) -> dict[str, Array]:
        pi, vf = self._encode(obs)
        return {
            Columns.ACTION_DIST_INPUTS: self._compute_dist_inputs(pi),
            Columns.VF_PREDS: self._compute_values(vf),
        }

    def policy(self, obs: Array) -> Float[Array, "*batch n"]:
        """Compute the distribution's inputs, without evaluating the value network."""
        encoder = self.encoder or self.pi_encoder
        return self._compute_dist_inputs(cast(AnyEncoder, encoder)(obs))

    def value(self, obs: Array) -> Float[Array, "*batch"]:
        """Compute the values, without evaluating the policy network."""
        encoder = self.encoder or self.vf_encoder
        return self._compute_values(cast(AnyEncoder, encoder)(obs))

    def _encode(self, obs: Array) -> tuple[Array, Array]:
        if self.encoder is not None:
            embedding = self.encoder(obs)
            return embedding, embedding
        return cast(AnyEncoder, self.pi_encoder)(obs), cast(AnyEncoder, self.vf_encoder)(obs)

    def _compute_dist_inputs(self, embedding: Array) -> Array:
        inputs = self.pi_head(embedding)
        if not self.num_free_log_std:
            return inputs
        log_std = jnp.broadcast_to(self.log_std, (*inputs.shape[:-1], self.num_free_log_std))
        return jnp.concatenate([inputs, log_std], axis=-1)

    def _compute_values(self, embedding: Array) -> Array:
        return self.vf_head(embedding)[..., 0]


class ActorCriticModule(EncoderModule):
    """Default module; `model_config` is a `DefaultModelConfig` or a dict of its settings."""

    def setup(self) -> None:
        num_free = self._num_free_log_std()
        is_shared = self.settings.vf_share_layers
        self.network = ActorCriticNetwork(
            pi_encoder=None if is_shared else self.make_policy_encoder(),
            vf_encoder=None if is_shared else self.make_encoder("critic"),
            encoder=self.make_encoder() if is_shared else None,
            pi_head=self.make_head("pi_head", self.distribution.input_dim - num_free),
            vf_head=self.make_head("vf_head", 1),
            num_free_log_std=num_free,
        )

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        out, carries = self.apply_recurrent("__call__", params, obs)
        return {**out, **carries}

    def _forward_policy(self, params: Params, obs: PyTree) -> Float[Array, "*batch n"]:
        return self.apply("policy", params, obs)

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        return self.apply("value", params, obs)

    def _num_free_log_std(self) -> int:
        if not self.settings.free_log_std:
            return 0
        if self.distribution.family is not DiagGaussian:
            raise ConfigError(
                f"free_log_std needs a continuous action space (a Box), not {self.action_space}; "
                "leave free_log_std out."
            )
        return self.distribution.input_dim // 2


class CentralCriticNetwork(ActorCriticNetwork):
    """Networks of `ActorCriticNetwork`, of which the value network has inputs of its own."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, obs: PyTree, state: Float[Array, "*batch n"]
    ) -> dict[str, Array]:
        pi = cast(AnyEncoder, self.pi_encoder)(obs)
        return {
            Columns.ACTION_DIST_INPUTS: self._compute_dist_inputs(pi),
            Columns.VF_PREDS: self.value(state),
        }


class CentralCriticModule(ActorCriticModule):
    """Module of MAPPO (Yu et al. 2021), with the networks of the default module.

    The policy sees an agent's own observation, and the value network `CentralObs.state`, a vector
    of the space `algorithm_config["critic_space"]`. Without it, for bare observations, there are
    no values. The critic has no memory, also where the policy has: it sees the state of the moment.
    """

    def setup(self) -> None:
        if self.settings.vf_share_layers:
            raise ConfigError(
                "vf_share_layers=True shares layers between policy and values, but a central critic "
                "sees something else than the policy: leave it out."
            )
        space = self.algorithm_config.get("critic_space")
        if not isinstance(space, spaces.Box):
            raise ModuleError(
                f"{type(self).__name__} needs the space of its critic's input, "
                f"algorithm_config['critic_space'], got {space!r}: use it with MAPPOConfig, for "
                "several agents."
            )
        self.critic_space: spaces.Box = space
        num_free = self._num_free_log_std()
        self.network = CentralCriticNetwork(
            pi_encoder=self.make_policy_encoder(),
            vf_encoder=self._make_box_encoder(space, self._make_fcnet("critic")),
            encoder=None,
            pi_head=self.make_head("pi_head", self.distribution.input_dim - num_free),
            vf_head=self.make_head("vf_head", 1),
            num_free_log_std=num_free,
        )

    def make_learner_obs(self, num_rows: int) -> PyTree:
        state = jnp.zeros((num_rows, *self.critic_space.shape), jnp.float32)
        return CentralObs(obs=make_zeros(self.observation_space, (num_rows,)), state=state)

    def init(self, key: Key) -> Params:
        state = jnp.zeros((1, *self.critic_space.shape), jnp.float32)
        return cast(Params, self.network.init(key, self.make_dummy_obs(), state)["params"])

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        seen = obs_only(obs)
        if isinstance(seen, CentralObs):
            out, carries = self.apply_recurrent("__call__", params, obs, seen.state)
            return {**out, **carries}
        inputs, carries = self.apply_recurrent("policy", params, obs)
        return {Columns.ACTION_DIST_INPUTS: inputs, **carries}

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        seen = obs_only(obs)
        if not isinstance(seen, CentralObs):
            raise ModuleError(
                f"The values of a {type(self).__name__} are those of CentralObs(obs=..., state=...), "
                "with what the critic sees as state: an agent's own observation has none."
            )
        variables = {"params": params}
        return cast(Array, self.network.apply(variables, seen.state, method="value"))

    def select_network_obs(self, obs: PyTree) -> PyTree:
        return super().select_network_obs(map_obs(_drop_state, obs))

    def action_mask(self, obs: PyTree | None) -> PyTree:
        return super().action_mask(None if obs is None else map_obs(_drop_state, obs))


def _drop_state(obs: PyTree) -> PyTree:
    """Return an agent's own part of its observations."""
    return obs.obs if isinstance(obs, CentralObs) else obs
