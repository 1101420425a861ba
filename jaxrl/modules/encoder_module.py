"""Base of the library's own modules: encoders of observations, recurrent or not, and heads."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Num

from jaxrl.core.space_arrays import Choices, flatten_last_axes, get_choices, one_hot_entries
from jaxrl.core.spaces import (
    OBSERVATION_SPACE,
    LeafSpace,
    SpacePath,
    check_supported,
    get_at_path,
    get_leaf_spaces,
)
from jaxrl.core.types import (
    Columns,
    Key,
    ObsSequence,
    ObsWithCarry,
    Params,
    PyTree,
    SuccessorObs,
    map_obs,
)
from jaxrl.distributions.from_space import (
    ActionDistribution,
    describe_space,
    make_action_distribution,
)
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.modules.attention import GTrXL
from jaxrl.modules.autoregressive import make_autoregressive_distribution
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.modules.networks import (
    CNN,
    MIN_IMAGE_SIZE,
    MLP,
    AnyMLP,
    ConvFilter,
    Head,
    ResidualMLP,
    get_activation,
    get_default_conv_filters,
)
from jaxrl.modules.recurrent import RecurrentCore, make_recurrent_core
from jaxrl.modules.rl_module import (
    ACTION_MASK,
    RLModule,
    check_action_mask,
    has_action_mask,
    make_zeros,
)
from jaxrl.modules.sequences import gather_rows, swap_leading_axes

MAX_SCALED_BOUND = 2**16
"""Largest bound of integers that are scaled to [-1, 1]; above it, small ones would vanish."""


@dataclasses.dataclass(frozen=True)
class NumericPart:
    """Path of a part that is encoded as numbers, its rank, and its scale."""

    path: SpacePath
    ndim: int
    scale: float | None


@dataclasses.dataclass(frozen=True)
class ChoicePart:
    """Path of a part that is a discrete choice, and its choices."""

    path: SpacePath
    among: Choices


@dataclasses.dataclass(frozen=True)
class ObsParts:
    """Parts of an observation by kind of encoding."""

    images: tuple[LeafSpace, ...]
    numbers: tuple[NumericPart, ...]
    chosen: tuple[ChoicePart, ...]


def split_obs_parts(space: gymnasium.Space[object], *, with_images: bool = True) -> ObsParts:
    """Split the parts of a space by kind of encoding: as an image, as numbers, or as a choice.

    Args:
        space: Space of the observations.
        with_images: Whether images are encoded as such; otherwise their pixels are numbers.
    """
    images: list[LeafSpace] = []
    numbers: list[NumericPart] = []
    chosen: list[ChoicePart] = []
    for path, leaf in get_leaf_spaces(space):
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            chosen.append(ChoicePart(path, get_choices(leaf)))
        elif with_images and isinstance(leaf, spaces.Box) and is_image(leaf):
            images.append((path, leaf))
        elif np.prod(leaf.shape):
            numbers.append(NumericPart(path, len(leaf.shape), _get_scale(leaf)))
    return ObsParts(tuple(images), tuple(numbers), tuple(chosen))


def is_image(box: spaces.Box) -> bool:
    """Return whether a Box is `[H, W, C]` and large enough for a filter."""
    return len(box.shape) == 3 and min(box.shape[:2]) >= MIN_IMAGE_SIZE


def _get_scale(space: spaces.Box | spaces.MultiBinary) -> float | None:
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iu":
        return None
    largest = max(abs(int(space.low.min())), abs(int(space.high.max())))
    return 1.0 / largest if 1 < largest <= MAX_SCALED_BOUND else None


class MultiInput(nn.Module):
    """Encoder of several parts: images by one encoder each, all numbers by an MLP, choices one-hot.

    Choices may be embedded instead. Parameters: `images_0`, ... in the order of the parts, `mlp`,
    and `embedding_0`, ... for each entry of each choice, if they are embedded.
    """

    images: tuple[nn.Module, ...]
    image_paths: tuple[SpacePath, ...]
    numbers: tuple[NumericPart, ...]
    chosen: tuple[ChoicePart, ...]
    mlp: AnyMLP
    embedding_size: int | None = None

    @nn.compact
    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        features: list[Array] = []
        for encode, path in zip(self.images, self.image_paths, strict=True):
            features.append(encode(get_at_path(obs, path)))
        if self.numbers:
            features.append(self.mlp(self._concat_numbers(obs)))
        entries = [
            entry
            for part in self.chosen
            for entry in one_hot_entries(part.among, get_at_path(obs, part.path))
        ]
        if self.embedding_size is not None:
            entries = [self._embed(i, entry) for i, entry in enumerate(entries)]
        return jnp.concatenate([*features, *entries], axis=-1)

    def _embed(self, number: int, entry: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        shape = (entry.shape[-1], self.embedding_size)
        # Product with the one-hot: the gradient of a gather is a serial scatter on a CPU.
        return entry @ self.param(
            f"embedding_{number}", nn.initializers.normal(1.0), shape, jnp.float32
        )

    def _concat_numbers(self, obs: PyTree) -> Float[Array, "*batch n"]:
        vectors: list[Array] = []
        for part in self.numbers:
            vector = flatten_last_axes(get_at_path(obs, part.path), part.ndim).astype(jnp.float32)
            vectors.append(vector if part.scale is None else vector * part.scale)
        return jnp.concatenate(vectors, axis=-1)


CARRY_IN, CARRY_OUT, CARRY = "memory", "remembered", "carry"
"""Collections of the carry before and after a forward pass, and its name in both."""


class RecurrentEncoder(nn.Module):
    """Encoder followed by a recurrent core. Parameters: `features`, `memory`.

    The carry is read as `carry` from the collection "memory", and is that of an episode's start if
    it is absent. The new carry is written to the collection "remembered" if that is mutable: `[N,
    ...]` after one step, `[N, L, ...]` after each row of a sequence.
    """

    features: nn.Module
    memory: RecurrentCore

    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        """Encode observations with a carry: `ObsWithCarry`, a `Sequence` or `SuccessorObs`."""
        history: ObsWithCarry | ObsSequence | SuccessorObs = obs
        match history:
            case ObsWithCarry():
                y, carry = self.memory(
                    self._compute_features(history.obs), self._get_carry(history)
                )
                self._sow_carry(carry)
                return y
            case ObsSequence():
                y, carries = self._unroll(history)
                self._sow_carry(carries)
                return y
            case SuccessorObs():
                carry = gather_rows(self._unroll(history.sequence)[1], history.after)
                x = self._compute_features(history.obs)
                y, _ = self.memory(x.reshape(-1, x.shape[-1]), carry)
                return y.reshape(*x.shape[:-1], -1)

    def _compute_features(self, obs: PyTree) -> Float[Array, "*batch m"]:
        return self.features(obs)

    def _get_carry(self, obs: ObsWithCarry | ObsSequence) -> PyTree:
        if self.has_variable(CARRY_IN, CARRY):
            return cast(PyTree, self.get_variable(CARRY_IN, CARRY))
        return self.memory.initial_carry(jax.tree.leaves(obs.obs)[0].shape[0])

    def _sow_carry(self, carry: PyTree) -> None:
        self.sow(CARRY_OUT, CARRY, carry, reduce_fn=lambda _, new: new, init_fn=lambda: None)

    def _unroll(self, sequence: ObsSequence) -> tuple[Float[Array, "N L n"], PyTree]:
        """Compute the core's outputs and carries at every row after the burn-in."""
        carry, is_first, cut = self._get_carry(sequence), sequence.is_first, sequence.burn_in
        if cut:
            head = jax.tree.map(lambda x: x[:, :cut], sequence.obs)
            x = self._compute_features(head)
            _, carries = self.memory.sequence(swap_leading_axes(x), carry, is_first[:, :cut].T)
            carry = jax.lax.stop_gradient(jax.tree.map(lambda leaf: leaf[-1], carries))
        x = self._compute_features(sequence.rows)
        y, carries = self.memory.sequence(swap_leading_axes(x), carry, is_first[:, cut:].T)
        return swap_leading_axes(y), swap_leading_axes(carries)


def get_carry_collection(obs: PyTree) -> dict[str, PyTree]:
    """Return the carry of the observations as a flax collection; empty if there is none."""
    if isinstance(obs, SuccessorObs):
        obs = obs.sequence
    has_past = isinstance(obs, ObsWithCarry | ObsSequence) and obs.carry is not None
    return {CARRY_IN: obs.carry} if has_past else {}


def make_core_from_config(config: DefaultModelConfig) -> RecurrentCore | None:
    """Build the recurrent core of the model settings; None if there is none."""
    if config.use_attention:
        return GTrXL(
            num_units=config.attention_num_transformer_units,
            dim=config.attention_dim,
            num_heads=config.attention_num_heads,
            head_dim=config.attention_head_dim,
            memory=config.attention_memory_inference,
            position_wise_mlp_dim=config.attention_position_wise_mlp_dim,
            init_gru_gate_bias=config.attention_init_gru_gate_bias,
        )
    if config.use_lstm:
        kind, layers = config.recurrent_layer_type, config.recurrent_num_layers
        return make_recurrent_core(kind, config.lstm_cell_size, layers)
    return None


class Encoder(nn.Module):
    """Encoder of scaling, optional convolutions, and dense layers.

    Observations of several parts are joined by `streams` instead. With `part`, it encodes this part
    of a Dict alone.
    """

    obs_ndim: int
    scale: float | None
    cnn: CNN | None
    mlp: AnyMLP
    streams: MultiInput | None = None
    part: str | None = None

    def __call__(self, obs: PyTree) -> Float[Array, "*batch n"]:
        obs = obs if self.part is None else obs[self.part]
        x = self._compute_features(obs) if self.streams is None else self.streams(obs)
        return self.mlp(x)

    def _compute_features(self, obs: Num[Array, "*batch_and_obs"]) -> Float[Array, "*batch n"]:
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
Role: TypeAlias = Literal["policy", "critic"]
"""Use of an encoder; that of a policy may serve values, too."""


class EncoderModule(RLModule):
    """Base of modules with an encoder; `model_config` is a `DefaultModelConfig` or a dict.

    Of a Box, images `[H, W, C]` pass through convolutions, anything else is flattened; integers are
    scaled by their upper bound. For any other space, every part is encoded by its kind, and dense
    layers join them (`MultiInput`). If a Dict has an `action_mask` (0 or 1 for each action, the
    choices of a MultiDiscrete concatenated), the mask goes to the distribution, and the rest is
    observed. A subclass builds its network in `setup` from `make_policy_encoder()`,
    `make_encoder()` for values and `make_head(...)`, and calls it by `apply`.
    """

    model_config_class: ClassVar[type[Any] | None] = DefaultModelConfig
    without_critic: ClassVar[str | None] = None
    """Reason why no part of an observation can be for a critic alone, None where one can."""
    renorms_critics: ClassVar[bool] = False
    """True if the setting `critic_use_batchrenorm` has an effect."""

    settings: DefaultModelConfig

    def make_distribution(self) -> ActionDistribution:
        config = self.model_config
        if not isinstance(config, DefaultModelConfig):
            config = DefaultModelConfig.from_dict(config)
        self.settings = config
        self._check_critic_only()
        if config.critic_use_batchrenorm and not self.renorms_critics:
            refuse_batchrenorm(f"{type(self).__name__} has none")
        if config.autoregressive_actions:
            return make_autoregressive_distribution(
                self.action_space, log_std_clip=config.log_std_clip_param
            )
        return make_action_distribution(self.action_space, log_std_clip=config.log_std_clip_param)

    @property
    def critic_only_observations(self) -> tuple[str, ...]:
        return tuple(self.settings.critic_only_observations)

    def _check_critic_only(self) -> None:
        names = self.critic_only_observations
        if names and self.without_critic is not None:
            raise ConfigError(
                f"critic_only_observations={list(names)} has no effect on {self.without_critic}."
            )
        if names and self.settings.vf_share_layers:
            raise ConfigError(
                f"vf_share_layers=True shows the policy what the values see, {names[0]!r} of "
                "critic_only_observations included: set only one of them."
            )

    def init(self, key: Key) -> Params:
        return cast(Params, self.network.init(key, self.make_dummy_obs())["params"])

    def make_dummy_obs(self) -> PyTree:
        """Return zeros shaped like the network's input for one observation.

        For a recurrent network they come as `ObsWithCarry`.
        """
        space = self.get_network_obs_space()
        is_box = isinstance(space, spaces.Box)
        obs = jnp.zeros((1, *space.shape), jnp.float32) if is_box else make_zeros(space, (1,))
        return ObsWithCarry(obs=obs, carry=None) if self.is_stateful else obs

    @property
    def is_stateful(self) -> bool:
        """Return whether the encoders have a recurrent core."""
        return self.settings.is_recurrent

    def initial_carry(self, batch_size: int) -> PyTree:
        """Return the carries of the network's encoders at an episode's start, by encoder name."""
        if not self.is_stateful:
            return None
        return {
            name: {CARRY: encoder.memory.initial_carry(batch_size)}
            for name, encoder in vars(self.network).items()
            if isinstance(encoder, RecurrentEncoder)
        }

    def _forward_step(self, params: Params, obs: PyTree, carry: PyTree) -> dict[str, Any]:
        return self._forward(params, ObsWithCarry(obs=obs, carry=carry))

    def unroll(self, params: Params, sequence: ObsSequence) -> dict[str, Any]:
        return self._forward(params, sequence)

    def _dispatch_forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        return self._forward(params, obs)

    def apply(
        self, method: str, params: Params, obs: PyTree, *args: PyTree, **collections: PyTree
    ) -> PyTree:
        """Apply a method of the network to the observations and further arguments."""
        variables = {"params": params, **get_carry_collection(obs), **collections}
        return self.network.apply(variables, self.select_network_obs(obs), *args, method=method)

    def apply_recurrent(
        self, method: str, params: Params, obs: PyTree, *args: PyTree, **collections: PyTree
    ) -> tuple[Any, dict[str, PyTree]]:
        """Apply a method of the network and return its result and carry.

        The carry is in a dict as `STATE_OUT`, which is empty for a network without one.
        """
        if not isinstance(obs, ObsWithCarry | ObsSequence):
            return self.apply(method, params, obs, *args, **collections), {}
        variables = {"params": params, **get_carry_collection(obs), **collections}
        out, collections_out = self.network.apply(
            variables, self.select_network_obs(obs), *args, method=method, mutable=[CARRY_OUT]
        )
        return out, {Columns.STATE_OUT: collections_out[CARRY_OUT]}

    def select_network_obs(self, obs: PyTree) -> PyTree:
        """Return the part of the observations that the network sees."""
        return map_obs(self._drop_action_mask, obs)

    def _drop_action_mask(self, obs: PyTree) -> PyTree:
        if not has_action_mask(self.observation_space):
            return obs
        unmasked = {name: value for name, value in obs.items() if name != ACTION_MASK}
        return unmasked if len(unmasked) > 1 else next(iter(unmasked.values()))

    def get_network_obs_space(self) -> gymnasium.Space[Any]:
        """Return the space of what the network sees.

        Raises:
            SpaceError: If a part of it is not supported.
        """
        space: gymnasium.Space[Any] = self.observation_space
        if isinstance(space, spaces.Dict) and has_action_mask(space):
            check_action_mask(self)
            unmasked = {name: part for name, part in space.spaces.items() if name != ACTION_MASK}
            space = next(iter(unmasked.values())) if len(unmasked) == 1 else spaces.Dict(unmasked)
        check_supported(space, OBSERVATION_SPACE)
        return space

    def make_dense(self) -> Callable[..., nn.Module]:
        """Return the dense layer class of encoders and heads, called like `flax.linen.Dense`."""
        return nn.Dense

    def make_encoder(self, role: Role = "policy") -> AnyEncoder:
        """Build an encoder of the observations, with a recurrent core if the settings have one."""
        return self._add_memory(self.make_feature_encoder(role))

    def make_policy_encoder(self) -> AnyEncoder:
        """Build an encoder like `make_encoder`, without the parts that are for critics alone.

        A single part that is left is encoded as if it were the whole observation.

        Raises:
            ConfigError: If the observations have no such part, or no other.
        """
        hidden, space = self.critic_only_observations, self.get_network_obs_space()
        if not hidden:
            return self.make_encoder()
        if not isinstance(space, spaces.Dict):
            raise ConfigError(
                f"critic_only_observations={list(hidden)} names parts of a Dict, but the module "
                f"observes {describe_space(space)}: leave it out, or observe a Dict, without "
                "flatten_observations and connectors that join its parts."
            )
        unknown = next((name for name in hidden if name not in space.spaces), None)
        if unknown is not None:
            raise ConfigError(
                f"critic_only_observations names {unknown!r}, and the module observes no such part."
                f"{did_you_mean(unknown, space.spaces)} Its parts are {', '.join(space.spaces)}."
            )
        seen = {name: part for name, part in space.spaces.items() if name not in hidden}
        if not seen:
            raise ConfigError(
                f"critic_only_observations={list(hidden)} leaves the policy nothing to observe: name "
                "fewer parts."
            )
        if len(seen) > 1 or (self.settings.conv_filters and not _has_image(seen)):
            return self._add_memory(self._make_feature_encoder(spaces.Dict(seen), "policy"))
        ((name, part),) = seen.items()
        return self._add_memory(self._make_feature_encoder(part, "policy").clone(part=name))

    def _add_memory(self, features: Encoder) -> AnyEncoder:
        memory = make_core_from_config(self.settings)
        return features if memory is None else RecurrentEncoder(features, memory)

    def make_feature_encoder(self, role: Role = "policy") -> Encoder:
        """Build an encoder of single observations from the model settings.

        Raises:
            ConfigError: If the settings do not fit the observations.
            SpaceError: If a part of the observations is not supported.
        """
        space = self.get_network_obs_space()
        if isinstance(space, spaces.Box):
            self._refuse_embedding(space)
            self._refuse_fusionnet(space)
        else:
            self._check_parts(space)
        return self._make_feature_encoder(space, role)

    def _make_feature_encoder(self, space: gymnasium.Space[Any], role: Role) -> Encoder:
        if isinstance(space, spaces.Box):
            return self._make_box_encoder(space, self._make_fcnet(role))
        return Encoder(
            obs_ndim=0,
            scale=None,
            cnn=None,
            mlp=self._make_mlp("fusionnet"),
            streams=self._make_multi_input(space, role),
        )

    def _make_fcnet(self, role: Role) -> AnyMLP:
        """Build the layers of an encoder: dense ones, or residual blocks."""
        config = self.settings
        mlp = self._make_mlp("fcnet")
        if role == "critic" and config.critic_fcnet_hiddens is not None:
            mlp = mlp.clone(hiddens=tuple(config.critic_fcnet_hiddens))
        if config.fcnet_block == "mlp" or not mlp.hiddens:
            return mlp
        return ResidualMLP(
            hiddens=mlp.hiddens,
            activation=mlp.activation,
            kernel_init=None if config.fcnet_kernel_initializer is None else mlp.kernel_init,
            bias_init=mlp.bias_init,
            dense=mlp.dense,
        )

    def _make_mlp(self, name: str) -> MLP:
        """Build dense layers from the settings that begin with a name."""
        config = self.settings
        return MLP(
            hiddens=tuple(config[f"{name}_hiddens"]),
            activation=get_activation(config[f"{name}_activation"]),
            kernel_init=config.make_initializer(f"{name}_kernel_initializer"),
            bias_init=config.make_initializer(f"{name}_bias_initializer"),
            use_layernorm=config[f"{name}_use_layernorm"],
            dense=self.make_dense(),
        )

    def _make_multi_input(self, space: gymnasium.Space[Any], role: Role) -> MultiInput:
        parts = split_obs_parts(space, with_images=self.settings.conv_filters != ())
        return MultiInput(
            images=tuple(
                self._make_box_encoder(box, self._make_fcnet(role)) for _, box in parts.images
            ),
            image_paths=tuple(path for path, _ in parts.images),
            numbers=parts.numbers,
            chosen=parts.chosen,
            mlp=self._make_fcnet(role),
            embedding_size=self.settings.embedding_size,
        )

    def _check_parts(self, space: gymnasium.Space[Any]) -> None:
        """Raise ConfigError for settings of kinds of parts that the observation does not have."""
        parts = split_obs_parts(space)
        if self.settings.conv_filters and not parts.images:
            raise ConfigError(
                f"conv_filters need an image [H, W, C] among the parts of the observation, but "
                f"they are {describe_space(space)}; leave conv_filters out."
            )
        if not parts.chosen:
            self._refuse_embedding(space)

    def _refuse_embedding(self, space: gymnasium.Space[Any]) -> None:
        size = self.settings.embedding_size
        if size is not None:
            raise ConfigError(
                f"embedding_size={size} embeds the Discrete and MultiDiscrete parts of a Dict or "
                f"Tuple, but the module observes {describe_space(space)} (a Discrete space "
                "alone reaches it one-hot); leave embedding_size out."
            )

    def _refuse_fusionnet(self, box: spaces.Box) -> None:
        hiddens = list(self.settings.fusionnet_hiddens)
        if hiddens != list(DefaultModelConfig.fusionnet_hiddens):
            raise ConfigError(
                f"fusionnet_hiddens={hiddens} join the parts of a Dict or Tuple, but the module "
                f"observes {describe_space(box)}; set fcnet_hiddens instead."
            )

    def _make_box_encoder(self, box: spaces.Box, mlp: AnyMLP) -> Encoder:
        config = self.settings
        filters = self._resolve_conv_filters(box)
        cnn = CNN(
            filters=filters,
            activation=get_activation(config.conv_activation),
            kernel_init=config.make_initializer("conv_kernel_initializer"),
            bias_init=config.make_initializer("conv_bias_initializer"),
            use_layernorm=config.conv_use_layernorm,
        )
        is_integer = not np.issubdtype(box.dtype, np.floating)
        return Encoder(
            obs_ndim=len(box.shape),
            scale=1.0 / max(float(np.max(box.high)), 1.0) if is_integer else None,
            cnn=cnn if filters else None,
            mlp=mlp,
        )

    def make_head(self, name: str, num_outputs: int) -> Head:
        """Build a head whose output layer is initialized by `<name>_kernel_initializer`."""
        return Head(
            num_outputs=num_outputs,
            hidden=self._make_mlp("head_fcnet"),
            kernel_init=self.settings.make_initializer(f"{name}_kernel_initializer"),
            dense=self.make_dense(),
        )

    def _resolve_conv_filters(self, box: spaces.Box) -> tuple[ConvFilter, ...]:
        """Return the convolutions to build; none for vectors.

        Raises:
            ConfigError: If an image has no default filters, a vector is given filters, or the
                filters leave nothing of the image.
        """
        filters, shape = self.settings.conv_filters, box.shape
        if filters is None:
            filters = get_default_conv_filters(shape) if is_image(box) else ()
            if filters is None:
                raise ConfigError(
                    f"There are no default conv_filters for observations of shape {shape} (there "
                    "are for 84 x 84, 64 x 64 and 3 x 3 to 20 x 20 images); set conv_filters, such "
                    "as [[16, 4, 2], [32, 4, 2], [64, 4, 2]], or [] to flatten the image."
                    f"{explain_axes(shape)}"
                )
        elif filters and len(shape) not in (2, 3):
            raise ConfigError(
                f"conv_filters need images [H, W, C] or [H, W], but observations have the shape "
                f"{shape}; leave conv_filters out."
            )
        _check_filters_fit(filters, shape)
        return filters


def _has_image(parts: dict[str, gymnasium.Space[Any]]) -> bool:
    return bool(split_obs_parts(spaces.Dict(parts)).images)


def refuse_batchrenorm(reason: str) -> NoReturn:
    """Raise ConfigError: there are no critics that could be renormalized."""
    raise ConfigError(
        "critic_use_batchrenorm=True is for critics Q(s, a) of SAC, TQC, TD3 and DDPG on single rows, "
        f"and {reason}: leave it out."
    )


def explain_axes(shape: tuple[int, ...]) -> str:
    """Return a sentence on observations that seem to have their channels first, or nothing."""
    if len(shape) == 3 and shape[0] <= 4 and shape[0] < min(shape[1:]):
        moved = (*shape[1:], shape[0])
        return f" Images are [H, W, C]: move the first axis to the end, {moved}."
    return ""


def _check_filters_fit(filters: tuple[ConvFilter, ...], shape: tuple[int, ...]) -> None:
    """Raise if a "valid" filter is larger than the output of the layers before it."""
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
