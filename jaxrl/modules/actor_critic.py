"""Default module: an MLP or CNN encoder, a policy head and a value head."""

from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Columns, Params, PyTree
from jaxrl.distributions.base import DiagGaussian
from jaxrl.errors import ConfigError
from jaxrl.modules.encoder_module import AnyEncoder, EncoderModule
from jaxrl.modules.networks import Head


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
