"""The part that modules of the library's own networks share: an MLP or CNN encoder, heads."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, cast

import flax.linen as nn
import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.spaces import OBSERVATION_SPACE, check_supported
from jaxrl.core.types import Columns, Key, Params, PyTree, Remembered, Sequence, map_obs
from jaxrl.distributions.from_space import (
    ActionDistribution,
    action_distribution,
    describe_unsupported,
)
from jaxrl.errors import ConfigError
from jaxrl.modules.autoregressive import autoregressive_distribution
from jaxrl.modules.encoders import (
    CARRY,
    REMEMBERED,
    MultiInput,
    RecurrentEncoder,
    is_image,
    memory_of,
    parts_of,
    remembered_before,
)
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.modules.networks import (
    CNN,
    MLP,
    ConvFilter,
    Head,
    default_conv_filters,
    get_activation,
)
from jaxrl.modules.rl_module import (
    ACTION_MASK,
    RLModule,
    check_action_mask,
    has_action_mask,
    zeros_of,
)


class Encoder(nn.Module):
    """Scaling, optional convolutions, dense layers; of several parts, `streams` joins them."""

    obs_ndim: int
    scale: float | None
    cnn: CNN | None
    mlp: MLP
    streams: MultiInput | None = None

    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        x = self._features(obs) if self.streams is None else self.streams(obs)
        return self.mlp(x)

    def _features(self, obs: Float[Array, "*batch_and_obs"]) -> Float[Array, "*batch n"]:
        x = obs.astype(jnp.float32)
        if self.scale is not None:
            x = x * self.scale
        batch_shape = x.shape[: x.ndim - self.obs_ndim]
        if self.cnn is not None:
            image = x if self.obs_ndim == 3 else x[..., None]
            x = self.cnn(image)
        elif self.obs_ndim != 1:
            x = x.reshape(*batch_shape, -1)
        return x


AnyEncoder: TypeAlias = Encoder | RecurrentEncoder


class EncoderModule(RLModule):
    """The base of modules with an encoder; `model_config` is a `DefaultModelConfig` or a dict.

    Of a Box, images `[H, W, C]` go through convolutions, anything else is flattened; integers are
    scaled by their upper bound. Of any other space every part is encoded by its kind, and dense
    layers join them (`MultiInput`). Of a Dict with an `action_mask` (0 or 1 for each action, the
    choices of a MultiDiscrete one after another) the mask goes to the distribution, and the rest
    is observed. A subclass makes its network in `setup` of `make_encoder()` and `make_head(...)`,
    and calls it by `apply`.
    """

    model_config_class: ClassVar[type[Any] | None] = DefaultModelConfig

    settings: DefaultModelConfig

    def make_distribution(self) -> ActionDistribution:
        config: Any = self.model_config
        if not isinstance(config, DefaultModelConfig):
            config = DefaultModelConfig.from_dict(config)
        self.settings = config
        if config.autoregressive_actions:
            return autoregressive_distribution(
                self.action_space, log_std_clip=config.log_std_clip_param
            )
        return action_distribution(self.action_space, log_std_clip=config.log_std_clip_param)

    def init(self, key: Key) -> Params:
        return cast(Params, self.network.init(key, self.blank_obs())["params"])

    def blank_obs(self) -> PyTree:
        """Zeros for what the network sees of one observation, with a past if it remembers."""
        space = self.observed_space()
        is_box = isinstance(space, spaces.Box)
        obs = jnp.zeros((1, *space.shape), jnp.float32) if is_box else zeros_of(space, (1,))
        return Remembered(obs=obs, carry=None) if self.is_stateful else obs

    @property
    def is_stateful(self) -> bool:
        """Whether the encoders have a memory."""
        return self.settings.remembers

    def initial_carry(self, batch_size: int) -> PyTree:
        """The memories of the network's encoders at an episode's start, by the encoders' names."""
        if not self.is_stateful:
            return None
        return {
            name: {CARRY: part.memory.initial_carry(batch_size)}
            for name, part in vars(self.network).items()
            if isinstance(part, RecurrentEncoder)
        }

    def _forward_step(self, params: Params, obs: PyTree, carry: PyTree) -> dict[str, Any]:
        return self._forward(params, Remembered(obs=obs, carry=carry))

    def unroll(self, params: Params, sequence: Sequence) -> dict[str, Any]:
        return self._forward(params, sequence)

    def _outputs(self, params: Params, obs: PyTree) -> dict[str, Any]:
        return self._forward(params, obs)

    def apply(
        self, method: str, params: Params, obs: PyTree, *args: PyTree, **collections: PyTree
    ) -> Any:
        """What the network's method gives for the observations and further arguments."""
        variables = {"params": params, **remembered_before(obs), **collections}
        return self.network.apply(variables, self.observed(obs), *args, method=method)

    def recall(
        self, method: str, params: Params, obs: PyTree, *args: PyTree, **collections: PyTree
    ) -> tuple[Any, dict[str, PyTree]]:
        """`apply`, and what is remembered then as `STATE_OUT` if the network remembers."""
        if not isinstance(obs, Remembered | Sequence):
            return self.apply(method, params, obs, *args, **collections), {}
        variables = {"params": params, **remembered_before(obs), **collections}
        out, after = self.network.apply(
            variables, self.observed(obs), *args, method=method, mutable=[REMEMBERED]
        )
        return out, {Columns.STATE_OUT: after[REMEMBERED]}

    def observed(self, obs: PyTree) -> PyTree:
        """The part of the observations that the network sees."""
        return map_obs(self._seen_part, obs)

    def _seen_part(self, obs: PyTree) -> PyTree:
        if not has_action_mask(self.observation_space):
            return obs
        beside = {name: value for name, value in obs.items() if name != ACTION_MASK}
        return beside if len(beside) > 1 else next(iter(beside.values()))

    def observed_space(self) -> gymnasium.Space[Any]:
        """The space of what the network sees.

        Raises:
            SpaceError: A part of it is not supported.
        """
        space: gymnasium.Space[Any] = self.observation_space
        if isinstance(space, spaces.Dict) and has_action_mask(space):
            check_action_mask(self)
            beside = {name: part for name, part in space.spaces.items() if name != ACTION_MASK}
            space = next(iter(beside.values())) if len(beside) == 1 else spaces.Dict(beside)
        check_supported(space, OBSERVATION_SPACE)
        return space

    def make_dense(self) -> Callable[..., nn.Module]:
        """What makes the dense layers of encoders and heads; called as `flax.linen.Dense` is."""
        return nn.Dense

    def make_encoder(self) -> AnyEncoder:
        """An encoder of the observations, with a memory if the model settings say so."""
        features = self.make_features()
        memory = memory_of(self.settings)
        return features if memory is None else RecurrentEncoder(features, memory)

    def make_features(self) -> Encoder:
        """An encoder of single observations, as the model settings say.

        Raises:
            ConfigError: The settings do not fit the observations.
            SpaceError: A part of the observations is not supported.
        """
        space = self.observed_space()
        if isinstance(space, spaces.Box):
            self._refuse_embedding(space)
            self._refuse_joining(space)
            return self._box_encoder(space, self._make_mlp("fcnet"))
        return Encoder(
            obs_ndim=0,
            scale=None,
            cnn=None,
            mlp=self._make_mlp("fusionnet"),
            streams=self._make_streams(space),
        )

    def _make_mlp(self, name: str) -> MLP:
        """Dense layers by the settings that begin with a name."""
        config = self.settings
        return MLP(
            hiddens=tuple(config[f"{name}_hiddens"]),
            activation=get_activation(config[f"{name}_activation"]),
            kernel_init=config.initializer(f"{name}_kernel_initializer"),
            bias_init=config.initializer(f"{name}_bias_initializer"),
            use_layernorm=config[f"{name}_use_layernorm"],
            dense=self.make_dense(),
        )

    def _make_streams(self, space: gymnasium.Space[Any]) -> MultiInput:
        parts = parts_of(space, with_images=self.settings.conv_filters != ())
        if self.settings.conv_filters and not parts.images:
            raise ConfigError(
                f"conv_filters need an image [H, W, C] among the parts of the observation, but "
                f"they are {describe_unsupported(space)}; leave conv_filters out."
            )
        if not parts.chosen:
            self._refuse_embedding(space)
        return MultiInput(
            images=tuple(
                self._box_encoder(box, self._make_mlp("fcnet")) for _, box in parts.images
            ),
            image_paths=tuple(path for path, _ in parts.images),
            numbers=parts.numbers,
            chosen=parts.chosen,
            mlp=self._make_mlp("fcnet"),
            embedding_size=self.settings.embedding_size,
        )

    def _refuse_embedding(self, space: gymnasium.Space[Any]) -> None:
        size = self.settings.embedding_size
        if size is not None:
            raise ConfigError(
                f"embedding_size={size} embeds the Discrete and MultiDiscrete parts of a Dict or "
                f"Tuple, but the module observes {describe_unsupported(space)} (a Discrete space "
                "alone reaches it one-hot); leave embedding_size out."
            )

    def _refuse_joining(self, box: spaces.Box) -> None:
        hiddens = list(self.settings.fusionnet_hiddens)
        if hiddens != list(DefaultModelConfig.fusionnet_hiddens):
            raise ConfigError(
                f"fusionnet_hiddens={hiddens} join the parts of a Dict or Tuple, but the module "
                f"observes {describe_unsupported(box)}; set fcnet_hiddens instead."
            )

    def _box_encoder(self, box: spaces.Box, mlp: MLP) -> Encoder:
        config = self.settings
        filters = self._conv_filters(box)
        cnn = CNN(
            filters=filters,
            activation=get_activation(config.conv_activation),
            kernel_init=config.initializer("conv_kernel_initializer"),
            bias_init=config.initializer("conv_bias_initializer"),
            use_layernorm=config.conv_use_layernorm,
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
        return Head(
            num_outputs=num_outputs,
            hidden=self._make_mlp("head_fcnet"),
            kernel_init=self.settings.initializer(f"{name}_kernel_initializer"),
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
            filters = default_conv_filters(shape) if is_image(box) else ()
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
