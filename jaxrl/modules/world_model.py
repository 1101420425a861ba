"""World model of DreamerV3 (Hafner et al. 2023, https://arxiv.org/abs/2301.04104), and its policy.

A recurrent state-space model (RSSM) has a deterministic state h and a discrete latent z, together the
state that the policy and the critic see:

    hₜ = GRU(hₜ₋₁, zₜ₋₁, aₜ₋₁),  zₜ ~ q(hₜ, encoded xₜ),  prior p(hₜ)

**Deviation from the paper:** reward and continuation are predicted from hₜ₊₁, a function of sₜ and aₜ,
and not from the state of the observation that arrives. Rows here are (xₜ, aₜ, rₜ, terminatedₜ), and an
episode's last observation is the start of no row, so that a head of arriving states would never see the
reward of a termination, unless each row were encoded twice. Reward and continuation may still be random:
their heads are distributions.

An episode starts at a learned h₀, which acting and learning tell from a latent of zeros before its first
row: drawn latents are one-hot. (In the authors' code, h₀ is one step of the GRU further.) A single GRU is
used at all sizes, where the authors' later code has one of 8 blocks.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.spaces import ACTION_SPACE, OBSERVATION_SPACE, check_supported
from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Columns, Key, Keys, Params, PyTree
from jaxrl.distributions.base import Distribution
from jaxrl.errors import ConfigError, SpaceError, did_you_mean
from jaxrl.modules.encoder_module import is_image
from jaxrl.modules.networks import CNN, MLP, ConvFilter, Head
from jaxrl.modules.rl_module import Moment, RLModule, has_action_mask
from jaxrl.ops.two_hot import make_symexp_bins, symlog, two_hot_mean

WORLD_MODEL, ACTOR, CRITIC = "world_model", "actor", "critic"
"""Parts of the parameters."""
UNIMIX = 0.01
"""Share of the uniform distribution in latents and in discrete policies (section "World model")."""
BINS = make_symexp_bins()
"""Bins of rewards and values."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldModelConfig:
    """Sizes of a world model, its policy and its critic, with RLlib's names; see `SIZES`.

    Attributes:
        num_gru_units: Units of the deterministic state.
        num_z_categoricals: Number of discrete latents.
        num_z_classes: Number of classes of each.
        dense_hidden_units: Units of the hidden layers.
        num_dense_layers: Hidden layers of encoder, decoder, heads, policy and critic.
        cnn_multiplier: Channels of the first convolution; each further one has twice as many.
    """

    num_gru_units: int
    num_z_categoricals: int
    num_z_classes: int
    dense_hidden_units: int
    num_dense_layers: int
    cnn_multiplier: int

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ConfigError: If a size is no whole number of at least 1.
        """
        for name, value in vars(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"model_config[{name!r}] must be a whole number of at least 1, got {value!r}."
                )


def _size(gru: int, latents: int, units: int, layers: int, cnn: int) -> WorldModelConfig:
    return WorldModelConfig(
        num_gru_units=gru,
        num_z_categoricals=latents,
        num_z_classes=latents,
        dense_hidden_units=units,
        num_dense_layers=layers,
        cnn_multiplier=cnn,
    )


SIZES: Mapping[str, WorldModelConfig] = {
    "nano": _size(16, 4, 16, 1, 2),
    "micro": _size(32, 8, 32, 1, 4),
    "mini": _size(64, 16, 64, 1, 8),
    "XXS": _size(128, 32, 128, 1, 16),
    "XS": _size(256, 32, 256, 1, 24),
    "S": _size(512, 32, 512, 2, 32),
    "M": _size(1024, 32, 640, 3, 48),
    "L": _size(2048, 32, 768, 4, 64),
    "XL": _size(4096, 32, 1024, 5, 96),
}
"""Sizes by `model_size`: those of the paper (appendix, table of model sizes), and RLlib's small ones."""


def resolve_world_model_config(model_size: str, model_config: object) -> WorldModelConfig:
    """Return the sizes of a `model_size`, with those of `model_config` instead where it has any.

    Raises:
        ConfigError: If `model_config` has anything else than sizes.
    """
    if isinstance(model_config, WorldModelConfig):
        return model_config
    base, names = SIZES[model_size], [f.name for f in dataclasses.fields(WorldModelConfig)]
    if not isinstance(model_config, Mapping):
        raise ConfigError(
            f"model_config of a world model must be a dictionary of {', '.join(names)}, got "
            f"{model_config!r}."
        )
    given = dict(cast(Mapping[str, Any], model_config))
    for name in given:
        if name in ("use_lstm", "use_attention"):
            raise ConfigError(
                f"model_config[{name!r}]={given[name]!r} adds a memory, and the world model is one "
                "already: leave it out, and set num_gru_units for its size."
            )
        if name not in names:
            raise ConfigError(
                f"model_config has {name!r}, but the sizes of a world model are {', '.join(names)}; "
                f"activations and normalization are the paper's.{did_you_mean(name, names)}"
            )
    return dataclasses.replace(base, **given)


@pytree
class Latents:
    """State of a world model: h `[*batch, d]`, and the discrete latents z `[*batch, k * n]`."""

    h: Float[Array, "*batch d"]
    z: Float[Array, "*batch k*n"]

    @property
    def features(self) -> Float[Array, "*batch f"]:
        """Input of the policy and the critic."""
        return jnp.concatenate([self.h, self.z], axis=-1)


@pytree
class WorldCarry:
    """State and action before an observation; zeros before the first one of an episode."""

    latents: Latents
    action: Float[Array, "B a"]


@pytree
class ObservedSequence:
    """States of sequences, `[L, N, ...]` in order of time, and what they were drawn from.

    Attributes:
        latents: States of the rows.
        posterior: Log-probabilities of z given the observation, `[L, N, k, n]`.
        prior: Log-probabilities of z without it.
        next_h: Deterministic states after the rows' actions.
    """

    latents: Latents
    posterior: Float[Array, "L N k n"]
    prior: Float[Array, "L N k n"]
    next_h: Float[Array, "L N d"]


class LayerNormGRU(nn.Module):
    """GRU with one normalized product for its gates, which tends to keep its state."""

    units: int

    @nn.compact
    def __call__(
        self, h: Float[Array, "*batch d"], x: Float[Array, "*batch m"]
    ) -> Float[Array, "*batch d"]:
        gates = nn.Dense(3 * self.units, use_bias=False, name="gates")(
            jnp.concatenate([h, x], axis=-1)
        )
        reset, candidate, update = jnp.split(nn.LayerNorm(name="norm")(gates), 3, axis=-1)
        update = nn.sigmoid(update - 1.0)
        return update * jnp.tanh(nn.sigmoid(reset) * candidate) + (1.0 - update) * h


class ImageDecoder(nn.Module):
    """Transposed convolutions, the mirror image of `CNN` with filters of padding "same"."""

    shape: tuple[int, int, int]
    filters: tuple[ConvFilter, ...]

    @nn.compact
    def __call__(self, features: Float[Array, "*batch f"]) -> Float[Array, "*batch h w c"]:
        sizes = [self.shape[:2]]
        for _, _, stride, _ in self.filters:
            sizes.append((-(-sizes[-1][0] // stride[0]), -(-sizes[-1][1] // stride[1])))
        height, width = sizes[-1]
        channels = [self.shape[2], *(filters[0] for filters in self.filters)]
        x = nn.Dense(height * width * channels[-1], name="dense")(features)
        batch_shape = x.shape[:-1]
        x = x.reshape(-1, height, width, channels[-1])
        for i in reversed(range(len(self.filters))):
            _, kernel, stride, _ = self.filters[i]
            x = nn.silu(nn.LayerNorm(name=f"norm_{i}")(x))
            x = nn.ConvTranspose(channels[i], kernel, stride, padding="SAME", name=f"conv_{i}")(x)
            x = x[:, : sizes[i][0], : sizes[i][1]]
        return x.reshape(*batch_shape, *self.shape)


class WorldModel(nn.Module):
    """RSSM with encoder, decoder and the heads of reward and continuation.

    Parameters: `encoder`, `image_encoders_0`, ..., `decoder`, `image_decoders_0`, ..., `dynamics_in`,
    `gru`, `initial_h`, `prior_head`, `posterior_head`, `reward_head` and `continue_head`.
    """

    config: WorldModelConfig
    vector_size: int
    image_shapes: tuple[tuple[int, int, int], ...]

    def setup(self) -> None:
        config = self.config
        filters = [get_filters(shape, config.cnn_multiplier) for shape in self.image_shapes]
        if self.vector_size:
            self.encoder = make_mlp(config)
            self.decoder = make_dreamer_head(config, self.vector_size)
        self.image_encoders = [
            CNN(filters=each, activation=nn.silu, use_layernorm=True) for each in filters
        ]
        self.image_decoders = [
            ImageDecoder(shape, each)
            for shape, each in zip(self.image_shapes, filters, strict=True)
        ]
        self.dynamics_in = make_mlp(config, num_layers=1)
        self.gru = LayerNormGRU(config.num_gru_units)
        self.initial_h = self.param(
            "initial_h", nn.initializers.zeros, (config.num_gru_units,), jnp.float32
        )
        num_latents = config.num_z_categoricals * config.num_z_classes
        self.prior_head, self.posterior_head = (
            make_dreamer_head(config, num_latents, num_layers=1) for _ in range(2)
        )
        self.reward_head = make_dreamer_head(config, len(BINS), is_zero=True)
        self.continue_head = make_dreamer_head(config, 1)

    def encode(
        self, vector: Float[Array, "*batch n"], images: tuple[Array, ...]
    ) -> Float[Array, "*batch e"]:
        """Encode what is observed: a symlogged vector, and images between 0 and 1."""
        features = [self.encoder(vector)] if self.vector_size else []
        for encoder, image in zip(self.image_encoders, images, strict=True):
            features.append(encoder(image))
        return jnp.concatenate(features, axis=-1)

    def decode(self, latents: Latents) -> tuple[Array | None, tuple[Array, ...]]:
        """Predict what is observed; the vector is None where there is none."""
        features = latents.features
        vector = self.decoder(features) if self.vector_size else None
        return vector, tuple(decoder(features) for decoder in self.image_decoders)

    def advance(
        self, latents: Latents, action: Float[Array, "*batch a"]
    ) -> Float[Array, "*batch d"]:
        """Compute the deterministic state after an action."""
        action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
        x = self.dynamics_in(jnp.concatenate([latents.z, action], axis=-1))
        return self.gru(latents.h, x)

    def begin(self) -> Float[Array, " d"]:
        """Return the deterministic state of the first row of an episode."""
        return jnp.tanh(self.initial_h)

    def enter(self, latents: Latents, action: Float[Array, "*batch a"]) -> Float[Array, "*batch d"]:
        """Compute the deterministic state of an observation, after an action or at a start."""
        has_begun = jnp.any(latents.z > 0.5, axis=-1, keepdims=True)
        h = self.advance(latents, action)
        return jnp.where(has_begun, h, jnp.broadcast_to(self.begin(), h.shape))

    def prior(self, h: Float[Array, "*batch d"]) -> Float[Array, "*batch k n"]:
        """Compute the log-probabilities of z from the deterministic state alone."""
        return self._mix(self.prior_head(h))

    def posterior(
        self, h: Float[Array, "*batch d"], encoded: Float[Array, "*batch e"]
    ) -> Float[Array, "*batch k n"]:
        """Compute the log-probabilities of z with the encoded observation."""
        return self._mix(self.posterior_head(jnp.concatenate([h, encoded], axis=-1)))

    def _mix(self, logits: Float[Array, "*batch m"]) -> Float[Array, "*batch k n"]:
        shape = (*logits.shape[:-1], self.config.num_z_categoricals, self.config.num_z_classes)
        return mix_uniform(logits.reshape(shape))

    def predict_outcome(
        self, next_h: Float[Array, "*batch d"]
    ) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch"]]:
        """Compute the logits of the reward's bins, and of a continuation, after an action."""
        return self.reward_head(next_h), self.continue_head(next_h)[..., 0]

    def __call__(
        self,
        vector: Float[Array, "*batch n"],
        images: tuple[Array, ...],
        latents: Latents,
        action: Float[Array, "*batch a"],
    ) -> None:
        """Run all parts, which makes their parameters."""
        next_h = self.enter(latents, action)
        self.posterior(next_h, self.encode(vector, images))
        self.prior(next_h)
        self.predict_outcome(next_h)
        self.decode(latents)


def make_mlp(config: WorldModelConfig, num_layers: int | None = None) -> MLP:
    """Make hidden layers, each with a LayerNorm and SiLU."""
    layers = config.num_dense_layers if num_layers is None else num_layers
    hiddens = (config.dense_hidden_units,) * layers
    return MLP(hiddens=hiddens, activation=nn.silu, use_layernorm=True)


def make_dreamer_head(
    config: WorldModelConfig,
    num_outputs: int,
    *,
    num_layers: int | None = None,
    is_zero: bool = False,
) -> Head:
    """Make a head; one of `is_zero` gives zeros at first, as those of rewards and values should."""
    initializer = nn.initializers.zeros if is_zero else nn.initializers.lecun_normal()
    return Head(
        num_outputs=num_outputs, hidden=make_mlp(config, num_layers), kernel_init=initializer
    )


def get_filters(shape: tuple[int, ...], multiplier: int) -> tuple[ConvFilter, ...]:
    """Return convolutions of stride 2 that leave about 4 x 4 of an image."""
    number = max(1, math.floor(math.log2(min(shape[:2]) / 4)))
    return tuple((multiplier * 2**i, (4, 4), (2, 2), "same") for i in range(number))


def mix_uniform(logits: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """Compute the log-probabilities of 99 % of a distribution and 1 % of the uniform one."""
    return jnp.log((1.0 - UNIMIX) * jax.nn.softmax(logits) + UNIMIX / logits.shape[-1])


def draw_latents(
    log_probs: Float[Array, "*batch k n"], uniform: Float[Array, "*batch k"] | None
) -> Float[Array, "*batch k*n"]:
    """Draw one-hot latents whose gradient is that of their probabilities (straight-through).

    Args:
        log_probs: Log-probabilities of the classes.
        uniform: Uniform numbers in [0, 1), one for each latent; None for the most likely classes.
    """
    probs, number = jnp.exp(log_probs), log_probs.shape[-1]
    if uniform is None:
        index = jnp.argmax(probs, axis=-1)
    else:
        below = probs @ np.triu(np.ones((number, number), np.float32))
        index = jnp.sum(uniform[..., None] >= below[..., :-1], axis=-1)
    hard = jax.nn.one_hot(index, number, dtype=jnp.float32)
    z = hard + probs - jax.lax.stop_gradient(probs)
    return z.reshape(*z.shape[:-2], -1)


@pytree
class DreamerDraws:
    """Random draws of acting for each environment: of the latents `[B, k]`, and of the action."""

    latents: Float[Array, "B k"]
    action: PyTree


class DreamerModule(RLModule):
    """Policy on the states of a world model, which is its memory.

    Observations are vectors, images `[H, W, C]` and discrete parts, alone or in a Dict or Tuple; all but
    images are one symlogged vector. `algorithm_config` has `model_size`, and `model_config` may have
    sizes of `WorldModelConfig`. Exploring actions are drawn, and inference takes the most likely latents
    and action. A Box is acted in with a Gaussian whose mean is bounded to [-1, 1] by tanh, and its
    standard deviation to [0.1, 1].
    """

    config: WorldModelConfig

    def setup(self) -> None:
        """Build the networks.

        Raises:
            ConfigError: If `model_config` has anything else than sizes.
            SpaceError: If observations have an action mask, or an unsupported part.
        """
        size = self.algorithm_config.get("model_size", "XS")
        self.config = resolve_world_model_config(size, self.model_config)
        space = self.observation_space
        check_supported(space, OBSERVATION_SPACE)
        if has_action_mask(space):
            raise SpaceError(
                "Observations have an 'action_mask', and states that a world model imagines have none: "
                "set action_mask_key=None to observe it, or use an algorithm without a model."
            )
        self._images, self._vector_space = _split_space(space)
        self._vector_size = 0 if self._vector_space is None else get_flat_size(self._vector_space)
        self._action_size = get_flat_size(self.action_space, ACTION_SPACE)
        self.world = WorldModel(
            config=self.config,
            vector_size=self._vector_size,
            image_shapes=tuple(cast(Any, box.shape) for _, box in self._images),
        )
        self.actor = make_dreamer_head(self.config, self.distribution.input_dim, is_zero=True)
        self.critic = make_dreamer_head(self.config, len(BINS), is_zero=True)

    @property
    def is_stateful(self) -> bool:
        """True: the world model has a state."""
        return True

    def init(self, key: Key) -> Params:
        world_key, actor_key, critic_key = jax.random.split(key, 3)
        carry = self.initial_carry(1)
        vector = jnp.zeros((1, self._vector_size), jnp.float32)
        images = tuple(jnp.zeros((1, *box.shape), jnp.float32) for _, box in self._images)
        world = self.world.init(world_key, vector, images, carry.latents, carry.action)
        features = carry.latents.features
        return {
            WORLD_MODEL: world["params"],
            ACTOR: self.actor.init(actor_key, features)["params"],
            CRITIC: self.critic.init(critic_key, features)["params"],
        }

    def initial_carry(self, batch_size: int) -> WorldCarry:
        num_latents = self.config.num_z_categoricals * self.config.num_z_classes
        return WorldCarry(
            latents=Latents(
                h=jnp.zeros((batch_size, self.config.num_gru_units), jnp.float32),
                z=jnp.zeros((batch_size, num_latents), jnp.float32),
            ),
            action=jnp.zeros((batch_size, self._action_size), jnp.float32),
        )

    def apply_world(self, params: Params, method: str, *args: PyTree) -> PyTree:
        """Apply a method of the world model."""
        return self.world.apply({"params": params[WORLD_MODEL]}, *args, method=method)

    def split_obs(self, obs: PyTree) -> tuple[Float[Array, "*batch n"], tuple[Array, ...]]:
        """Return what the world model encodes and decodes: a symlogged vector, and images."""
        images = tuple(
            _scale_image(box, obs if key is None else obs[key]) for key, box in self._images
        )
        if self._vector_space is None:
            shape = images[0].shape[:-3]
            return jnp.zeros((*shape, 0), jnp.float32), images
        return symlog(flatten(self._vector_space, obs)), images

    def flatten_action(self, action: PyTree) -> Float[Array, "*batch a"]:
        """Return actions as the world model sees them."""
        return flatten(self.action_space, action)

    def compute_dist_inputs(
        self, params: Params, features: Float[Array, "*batch f"]
    ) -> Float[Array, "*batch m"]:
        """Compute the inputs of the distribution of actions in states."""
        outputs = cast(Array, self.actor.apply({"params": params[ACTOR]}, features))
        if isinstance(self.action_space, spaces.Discrete):
            return mix_uniform(outputs)
        if isinstance(self.action_space, spaces.Box):
            mean, spread = jnp.split(outputs, 2, axis=-1)
            std = 0.1 + 0.9 * nn.sigmoid(spread + 2.0)
            return jnp.concatenate([jnp.tanh(mean), jnp.log(std)], axis=-1)
        return outputs

    def compute_value_logits(
        self, critic: Params, features: Float[Array, "*batch f"]
    ) -> Float[Array, "*batch m"]:
        """Compute the logits of the bins of states' values, of the critic's parameters alone."""
        return cast(Array, self.critic.apply({"params": critic}, features))

    def observe(
        self,
        params: Params,
        encoded: Float[Array, "L N e"],
        action: Float[Array, "L N a"],
        is_first: Bool[Array, "L N"],
        uniform: Float[Array, "L N k"],
    ) -> ObservedSequence:
        """Compute the states of sequences, which start at that of an episode's start.

        Args:
            params: Parameters of the module.
            encoded: Encoded observations in order of time.
            action: Actions of the rows, flat.
            is_first: True in the first row of an episode, before which the state is reset.
            uniform: Uniform numbers that latents are drawn with.
        """
        h0 = jnp.broadcast_to(
            self.apply_world(params, "begin"), (is_first.shape[1], self.config.num_gru_units)
        )

        def step(h: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
            encoded, action, is_first, uniform = row
            h = where_rows(is_first, h0, h)
            posterior = self.apply_world(params, "posterior", h, encoded)
            z = draw_latents(posterior, uniform)
            next_h = self.apply_world(params, "advance", Latents(h=h, z=z), action)
            return next_h, (h, z, posterior, next_h)

        rows = (encoded, action, is_first, uniform)
        _, (h, z, posterior, next_h) = jax.lax.scan(step, h0, rows)
        prior = self.apply_world(params, "prior", h)
        return ObservedSequence(
            latents=Latents(h=h, z=z), posterior=posterior, prior=prior, next_h=next_h
        )

    def _see(
        self, params: Params, obs: PyTree, carry: WorldCarry, uniform: Float[Array, "B k"] | None
    ) -> tuple[Latents, Distribution, Float[Array, "B m"]]:
        """Compute the state of an observation, and the distribution of the action with its inputs."""
        h = self.apply_world(params, "enter", carry.latents, carry.action)
        encoded = self.apply_world(params, "encode", *self.split_obs(obs))
        z = draw_latents(self.apply_world(params, "posterior", h, encoded), uniform)
        latents = Latents(h=h, z=z)
        inputs = self.compute_dist_inputs(params, latents.features)
        return latents, self.action_dist(inputs), inputs

    def _remember(self, latents: Latents, action: PyTree) -> WorldCarry:
        return WorldCarry(latents=latents, action=self.flatten_action(action))

    def _forward_step(self, params: Params, obs: PyTree, carry: WorldCarry) -> dict[str, Any]:
        latents, distribution, inputs = self._see(params, obs, carry, None)
        actions = distribution.mode()
        logits = self.compute_value_logits(params[CRITIC], latents.features)
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.VF_PREDS: two_hot_mean(logits, jnp.asarray(BINS)),
            Columns.STATE_OUT: self._remember(latents, actions),
        }

    def draw(self, keys: Keys) -> DreamerDraws:
        def draw_one(key: Key) -> DreamerDraws:
            latent_key, action_key = jax.random.split(key)
            shape = (self.config.num_z_categoricals,)
            return DreamerDraws(
                latents=jax.random.uniform(latent_key, shape, jnp.float32),
                action=self.distribution.sample_noise(action_key),
            )

        return jax.vmap(draw_one)(keys)

    def _infer(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        del draws
        return self._forward_step(params, obs, carry)

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: DreamerDraws, moment: Moment
    ) -> dict[str, Any]:
        del moment
        latents, distribution, inputs = self._see(params, obs, carry, draws.latents)
        actions = distribution.from_noise(draws.action)
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: distribution.log_prob(actions),
            Columns.STATE_OUT: self._remember(latents, actions),
        }


def _split_space(
    space: gymnasium.Space[Any],
) -> tuple[list[tuple[str | None, spaces.Box]], gymnasium.Space[Any] | None]:
    """Return the images of a space by their keys, and the space of everything else, if any."""
    if isinstance(space, spaces.Box):
        return ([(None, space)], None) if is_image(space) else ([], space)
    if not isinstance(space, spaces.Dict):
        return [], space
    images: list[tuple[str | None, spaces.Box]] = []
    others: dict[str, gymnasium.Space[Any]] = {}
    for name, part in space.spaces.items():
        if isinstance(part, spaces.Box) and is_image(part):
            images.append((name, part))
        else:
            others[name] = part
    return images, spaces.Dict(others) if others else None


def _scale_image(box: spaces.Box, image: Array) -> Float[Array, "*batch h w c"]:
    """Scale an image's integers to [0, 1]."""
    scale = (
        1.0 if np.issubdtype(box.dtype, np.floating) else 1.0 / max(float(np.max(box.high)), 1.0)
    )
    return image.astype(jnp.float32) * scale
