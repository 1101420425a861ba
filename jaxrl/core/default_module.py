"""The default module: an MLP or CNN encoder, a policy head and a value head."""

from typing import Any, cast

import flax.linen as nn
import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.action_space import ActionDistribution, action_distribution, describe_unsupported
from jaxrl.core.distributions import DiagGaussian
from jaxrl.core.model_config import DefaultModelConfig
from jaxrl.core.networks import (
    CNN,
    MLP,
    ConvFilter,
    Head,
    default_conv_filters,
    get_activation,
)
from jaxrl.core.rl_module import ACTION_MASK, RLModule, check_action_mask, has_action_mask
from jaxrl.core.types import Columns, Params, PyTree
from jaxrl.errors import ConfigError, SpaceError


class Encoder(nn.Module):
    """Scaling, optional convolutions, dense layers."""

    obs_ndim: int
    scale: float | None
    cnn: CNN | None
    mlp: MLP

    def __call__(self, obs: Float[Array, "*batch_and_obs"]) -> Float[Array, "*batch n"]:
        x = obs.astype(jnp.float32)
        if self.scale is not None:
            x = x * self.scale
        batch_shape = x.shape[: x.ndim - self.obs_ndim]
        if self.cnn is not None:
            image = x if self.obs_ndim == 3 else x[..., None]
            x = self.cnn(image)
        elif self.obs_ndim != 1:
            x = x.reshape(*batch_shape, -1)
        return self.mlp(x)


class ActorCriticNetwork(nn.Module):
    """Policy and value networks, apart or on one encoder.

    Parameters: `pi_encoder`, `pi_head`, `vf_encoder`, `vf_head`, or `encoder`, `pi_head`,
    `vf_head`; and `log_std` where it is free.
    """

    pi_encoder: Encoder | None
    vf_encoder: Encoder | None
    encoder: Encoder | None
    pi_head: Head
    vf_head: Head
    num_free_log_std: int = 0

    def setup(self) -> None:
        if self.num_free_log_std:
            self.log_std = self.param("log_std", nn.initializers.zeros, (self.num_free_log_std,))

    def __call__(self, obs: Array) -> dict[str, Array]:
        pi, vf = self._embed(obs)
        return {Columns.ACTION_DIST_INPUTS: self._act(pi), Columns.VF_PREDS: self._evaluate(vf)}

    def policy(self, obs: Array) -> Float[Array, "*batch n"]:
        """The distribution's inputs, without touching the value network."""
        encoder = self.encoder or self.pi_encoder
        return self._act(cast(Encoder, encoder)(obs))

    def value(self, obs: Array) -> Float[Array, "*batch"]:
        """The values, without touching the policy network."""
        encoder = self.encoder or self.vf_encoder
        return self._evaluate(cast(Encoder, encoder)(obs))

    def _embed(self, obs: Array) -> tuple[Array, Array]:
        if self.encoder is not None:
            embedding = self.encoder(obs)
            return embedding, embedding
        return cast(Encoder, self.pi_encoder)(obs), cast(Encoder, self.vf_encoder)(obs)

    def _act(self, embedding: Array) -> Array:
        inputs = self.pi_head(embedding)
        if not self.num_free_log_std:
            return inputs
        log_std = jnp.broadcast_to(self.log_std, (*inputs.shape[:-1], self.num_free_log_std))
        return jnp.concatenate([inputs, log_std], axis=-1)

    def _evaluate(self, embedding: Array) -> Array:
        return self.vf_head(embedding)[..., 0]


class ActorCriticModule(RLModule):
    """The default module; `model_config` is a `DefaultModelConfig` or a dict of its settings.

    Observations are a Box: images `[H, W, C]` go through convolutions, anything else is
    flattened; integer ones are scaled by their upper bound. A Dict of an `action_mask` and one
    Box is understood too: the mask (0 or 1 for each action, the choices of a MultiDiscrete one
    after another) goes to the distribution.
    """

    settings: DefaultModelConfig

    def make_distribution(self) -> ActionDistribution:
        config: Any = self.model_config
        if not isinstance(config, DefaultModelConfig):
            config = DefaultModelConfig.from_dict(config)
        self.settings = config
        return action_distribution(self.action_space, log_std_clip=config.log_std_clip_param)

    def setup(self) -> None:
        config, box = self.settings, self._observed_box()
        num_free = self._num_free_log_std()
        filters = self._conv_filters(box)
        shared = config.vf_share_layers
        self.network = ActorCriticNetwork(
            pi_encoder=None if shared else self._encoder(box, filters),
            vf_encoder=None if shared else self._encoder(box, filters),
            encoder=self._encoder(box, filters) if shared else None,
            pi_head=self._head("pi_head", self.distribution.input_dim - num_free),
            vf_head=self._head("vf_head", 1),
            num_free_log_std=num_free,
        )

    def init(self, key: Any) -> Params:
        obs = np.zeros((1, *self._observed_box().shape), np.float32)
        return cast(Params, self.network.init(key, jnp.asarray(obs))["params"])

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        return self._apply("__call__", params, obs)

    def _forward_policy(self, params: Params, obs: PyTree) -> Float[Array, "*batch n"]:
        return self._apply("policy", params, obs)

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        return self._apply("value", params, obs)

    def _apply(self, method: str, params: Params, obs: PyTree) -> Any:
        return self.network.apply({"params": params}, self._observed(obs), method=method)

    def _observed(self, obs: PyTree) -> Array:
        if not isinstance(self.observation_space, spaces.Dict):
            return obs
        return next(value for name, value in obs.items() if name != ACTION_MASK)

    def _encoder(self, box: spaces.Box, filters: tuple[ConvFilter, ...]) -> Encoder:
        config = self.settings
        cnn = CNN(
            filters=filters,
            activation=get_activation(config.conv_activation),
            kernel_init=config.initializer("conv_kernel_initializer"),
            bias_init=config.initializer("conv_bias_initializer"),
            use_layernorm=config.conv_use_layernorm,
        )
        mlp = MLP(
            hiddens=tuple(config.fcnet_hiddens),
            activation=get_activation(config.fcnet_activation),
            kernel_init=config.initializer("fcnet_kernel_initializer"),
            bias_init=config.initializer("fcnet_bias_initializer"),
            use_layernorm=config.fcnet_use_layernorm,
        )
        integer = not np.issubdtype(box.dtype, np.floating)
        return Encoder(
            obs_ndim=len(box.shape),
            scale=1.0 / max(float(np.max(box.high)), 1.0) if integer else None,
            cnn=cnn if filters else None,
            mlp=mlp,
        )

    def _head(self, name: str, num_outputs: int) -> Head:
        config = self.settings
        hidden = MLP(
            hiddens=tuple(config.head_fcnet_hiddens),
            activation=get_activation(config.head_fcnet_activation),
            kernel_init=config.initializer("head_fcnet_kernel_initializer"),
            bias_init=config.initializer("head_fcnet_bias_initializer"),
            use_layernorm=config.head_fcnet_use_layernorm,
        )
        output_init = config.initializer(f"{name}_kernel_initializer")
        return Head(num_outputs=num_outputs, hidden=hidden, kernel_init=output_init)

    def _conv_filters(self, box: spaces.Box) -> tuple[ConvFilter, ...]:
        """The convolutions to build; none for vectors.

        Raises:
            ConfigError: For an image of a size without a default, filters for a vector, or
                filters that leave nothing of the image.
        """
        filters, shape = self.settings.conv_filters, box.shape
        if filters is None:
            filters = default_conv_filters(shape) if len(shape) == 3 else ()
            if filters is None:
                raise ConfigError(
                    f"There are no default conv_filters for observations of shape {shape} (there "
                    "are for 84 x 84, 64 x 64 and 3 x 3 to 20 x 20 images); set conv_filters, such "
                    "as [[16, 4, 2], [32, 4, 2], [64, 4, 2]], or [] to flatten the image."
                )
        elif filters and len(shape) not in (2, 3):
            raise ConfigError(
                f"conv_filters need images [H, W, C] or [H, W], but observations have the shape "
                f"{shape}; leave conv_filters out."
            )
        _check_filters_fit(filters, shape)
        return filters

    def _num_free_log_std(self) -> int:
        if not self.settings.free_log_std:
            return 0
        if self.distribution.family is not DiagGaussian:
            raise ConfigError(
                f"free_log_std needs a continuous action space (a Box), not {self.action_space}; "
                "leave free_log_std out."
            )
        return self.distribution.input_dim // 2

    def _observed_box(self) -> spaces.Box:
        space: gymnasium.Space[Any] = self.observation_space
        if isinstance(space, spaces.Dict) and has_action_mask(space):
            check_action_mask(self)
            others = [part for name, part in space.spaces.items() if name != ACTION_MASK]
            if len(others) == 1 and isinstance(others[0], spaces.Box):
                return others[0]
        if not isinstance(space, spaces.Box):
            raise SpaceError(
                f"The default module observes a Box, not {describe_unsupported(space)}; flatten "
                "it with the FlattenObservations connector, or write a module for it."
            )
        return space


def _check_filters_fit(filters: tuple[ConvFilter, ...], shape: tuple[int, ...]) -> None:
    """Refuse "valid" filters that are larger than what the layers before leave."""
    size = tuple(shape[:2])
    for i, (_, kernel, stride, padding) in enumerate(filters):
        if padding == "same":
            size = tuple(-(-n // s) for n, s in zip(size, stride, strict=True))
        else:
            size = tuple((n - k) // s + 1 for n, k, s in zip(size, kernel, stride, strict=True))
        if min(size) < 1:
            raise ConfigError(
                f"conv_filters[{i}] leaves nothing of the {shape[0]} x {shape[1]} image; use fewer "
                "or smaller filters, or 'same' padding."
            )
