"""The part that modules of the library's own networks share: an MLP or CNN encoder, heads."""

from collections.abc import Callable
from typing import Any, ClassVar, cast

import flax.linen as nn
import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.action_space import ActionDistribution, action_distribution, describe_unsupported
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
from jaxrl.core.types import Key, Params, PyTree
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


class EncoderModule(RLModule):
    """The base of modules with an encoder; `model_config` is a `DefaultModelConfig` or a dict.

    Observations are a Box: images `[H, W, C]` go through convolutions, anything else is
    flattened; integer ones are scaled by their upper bound. A Dict of an `action_mask` and one
    Box is understood too: the mask (0 or 1 for each action, the choices of a MultiDiscrete one
    after another) goes to the distribution. A subclass makes its network in `setup` of
    `make_encoder()` and `make_head(...)`, and calls it by `apply`.
    """

    model_config_class: ClassVar[type[Any] | None] = DefaultModelConfig

    settings: DefaultModelConfig

    def make_distribution(self) -> ActionDistribution:
        config: Any = self.model_config
        if not isinstance(config, DefaultModelConfig):
            config = DefaultModelConfig.from_dict(config)
        self.settings = config
        return action_distribution(self.action_space, log_std_clip=config.log_std_clip_param)

    def init(self, key: Key) -> Params:
        obs = np.zeros((1, *self.observed_box().shape), np.float32)
        return cast(Params, self.network.init(key, jnp.asarray(obs))["params"])

    def apply(
        self, method: str, params: Params, obs: PyTree, *args: PyTree, **collections: PyTree
    ) -> Any:
        """What the network's method gives for the observations and further arguments."""
        variables = {"params": params, **collections}
        return self.network.apply(variables, self.observed(obs), *args, method=method)

    def observed(self, obs: PyTree) -> Array:
        """The part of the observations that the network sees."""
        if not isinstance(self.observation_space, spaces.Dict):
            return obs
        return next(value for name, value in obs.items() if name != ACTION_MASK)

    def make_dense(self) -> Callable[..., nn.Module]:
        """What makes the dense layers of encoders and heads; called as `flax.linen.Dense` is."""
        return nn.Dense

    def make_encoder(self) -> Encoder:
        """An encoder of the observations, as the model settings say.

        Raises:
            ConfigError: The convolutions do not fit the observations.
            SpaceError: The observations are no Box.
        """
        config, box = self.settings, self.observed_box()
        filters = self._conv_filters(box)
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
            dense=self.make_dense(),
        )
        integer = not np.issubdtype(box.dtype, np.floating)
        return Encoder(
            obs_ndim=len(box.shape),
            scale=1.0 / max(float(np.max(box.high)), 1.0) if integer else None,
            cnn=cnn if filters else None,
            mlp=mlp,
        )

    def make_head(self, name: str, num_outputs: int) -> Head:
        """A head whose output layer starts as `<name>_kernel_initializer` says."""
        config = self.settings
        hidden = MLP(
            hiddens=tuple(config.head_fcnet_hiddens),
            activation=get_activation(config.head_fcnet_activation),
            kernel_init=config.initializer("head_fcnet_kernel_initializer"),
            bias_init=config.initializer("head_fcnet_bias_initializer"),
            use_layernorm=config.head_fcnet_use_layernorm,
            dense=self.make_dense(),
        )
        return Head(
            num_outputs=num_outputs,
            hidden=hidden,
            kernel_init=config.initializer(f"{name}_kernel_initializer"),
            dense=self.make_dense(),
        )

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

    def observed_box(self) -> spaces.Box:
        """The space of what the network sees.

        Raises:
            SpaceError: It is no Box.
        """
        space: gymnasium.Space[Any] = self.observation_space
        if isinstance(space, spaces.Dict) and has_action_mask(space):
            check_action_mask(self)
            others = [part for name, part in space.spaces.items() if name != ACTION_MASK]
            if len(others) == 1 and isinstance(others[0], spaces.Box):
                return others[0]
        if not isinstance(space, spaces.Box):
            raise SpaceError(
                f"{type(self).__name__} observes a Box, not {describe_unsupported(space)}; flatten "
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
