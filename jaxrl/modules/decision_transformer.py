"""Decision transformer (Chen et al. 2021): actions given past rows and the return that is to come."""

from typing import Any, ClassVar, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.space_arrays import get_flat_size
from jaxrl.core.spaces import ACTION_SPACE, OBSERVATION_SPACE, check_supported
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Key, ObsSequence, Params, PyTree
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.encoder_module import Encoder, EncoderModule
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.modules.networks import Head
from jaxrl.modules.rl_module import (
    ACTION_MASK,
    PREV_ACTIONS,
    PREV_REWARDS,
    RLModule,
    check_action_mask,
    make_zeros,
)

_TOKENS_PER_ROW = 3
_INITIALIZER = nn.initializers.normal(0.02)


@pytree
class Context:
    """Rows `[N, L]` that actions are predicted from, in order of time.

    `action` is the action before each row, flattened, and `return_to_go` the return from the row on.
    `episode` numbers the episodes that the rows belong to, and `place` the rows of each from 0.
    """

    obs: PyTree
    action: Float[Array, "N L a"]
    return_to_go: Float[Array, "N L"]
    episode: Int[Array, "N L"]
    place: Int[Array, "N L"]


def compute_visibility(
    episode: Int[Array, "N L"], place: Int[Array, "N L"]
) -> Bool[Array, "N 3*L 3*L"]:
    """Compute which tokens each token attends to: itself and earlier ones of its episode.

    The tokens of a row are the action before it, its return-to-go, and its observation. The action
    before the first row of a context is not part of it, and nothing attends to it.
    """
    number = jnp.repeat(episode, _TOKENS_PER_ROW, axis=1)
    is_same = number[:, :, None] == number[:, None, :]
    is_action = jnp.arange(number.shape[1], dtype=jnp.int32) % _TOKENS_PER_ROW == 0
    is_part = ~(is_action[None] & (jnp.repeat(place, _TOKENS_PER_ROW, axis=1) == 0))
    is_earlier = jnp.tril(jnp.ones(is_same.shape[1:], jnp.bool_))
    return is_same & is_earlier[None] & is_part[:, None, :]


class TransformerBlock(nn.Module):
    """Self-attention and an MLP, each normalized before and added to its input (GPT-2)."""

    num_heads: int
    head_dim: int
    mlp_dim: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "N T n"], visible: Bool[Array, "N T T"]
    ) -> Float[Array, "N T n"]:
        attention = nn.MultiHeadDotProductAttention(
            num_heads=self.num_heads,
            qkv_features=self.num_heads * self.head_dim,
            out_features=x.shape[-1],
            kernel_init=_INITIALIZER,
            name="attention",
        )
        x = x + attention(nn.LayerNorm(name="norm_attention")(x), mask=visible[:, None])
        hidden = nn.Dense(self.mlp_dim, kernel_init=_INITIALIZER, name="mlp_hidden")(
            nn.LayerNorm(name="norm_mlp")(x)
        )
        return x + nn.Dense(x.shape[-1], kernel_init=_INITIALIZER, name="mlp_out")(nn.gelu(hidden))


class DecisionTransformer(nn.Module):
    """Causal transformer over tokens of actions, returns-to-go and observations.

    Parameters: `encoder`, `embed_obs`, `embed_action`, `embed_return`, `embed_place`, `norm_in`,
    `blocks_0`, ..., `norm_out` and `pi_head`.
    """

    encoder: Encoder
    pi_head: Head
    context_length: int
    num_units: int
    dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int

    def setup(self) -> None:
        self.embed_obs, self.embed_action, self.embed_return = (
            nn.Dense(self.dim, kernel_init=_INITIALIZER) for _ in range(_TOKENS_PER_ROW)
        )
        self.embed_place = nn.Embed(self.context_length, self.dim, embedding_init=_INITIALIZER)
        self.norm_in, self.norm_out = nn.LayerNorm(), nn.LayerNorm()
        self.blocks = [
            TransformerBlock(self.num_heads, self.head_dim, self.mlp_dim)
            for _ in range(self.num_units)
        ]

    def __call__(self, context: Context) -> Float[Array, "N L m"]:
        """Compute the inputs of the distribution of each row's action."""
        tokens = [
            self.embed_action(context.action),
            self.embed_return(context.return_to_go[..., None]),
            self.embed_obs(self.encoder(context.obs)),
        ]
        x = jnp.stack(tokens, axis=2) + self.embed_place(context.place)[:, :, None]
        batch, length = context.place.shape
        x = self.norm_in(x.reshape(batch, length * _TOKENS_PER_ROW, self.dim))
        visible = compute_visibility(context.episode, context.place)
        for block in self.blocks:
            x = block(x, visible)
        last = x.reshape(batch, length, _TOKENS_PER_ROW, self.dim)[:, :, -1]
        return self.pi_head(self.norm_out(last))


@pytree
class DecisionCarry:
    """Latest rows of an episode, `[B, L, ...]`, oldest first, of which the last `count` are there.

    `return_to_go` is the return that was still to come in the latest row, before its reward.
    """

    obs: PyTree
    action: Float[Array, "B L a"]
    returns_to_go: Float[Array, "B L"]
    return_to_go: Float[Array, " B"]
    count: Int[Array, " B"]


class DecisionTransformerModule(EncoderModule):
    """Policy that is conditioned on a return, for observations with the previous action and reward.

    `algorithm_config` has `context_length`, the number of rows that an action is predicted from,
    `target_return`, the return-to-go at the start of an episode in acting, which the received
    rewards lower, and `return_scale`, which divides returns-to-go. The sizes of the transformer are
    the settings `attention_...` of `model_config`, and `fcnet_...` and `conv_...` encode the
    observation.
    """

    required: ClassVar[tuple[str, ...]] = ("context_length", "target_return", "return_scale")

    def setup(self) -> None:
        missing = [name for name in self.required if name not in self.algorithm_config]
        if missing:
            raise ModuleError(
                f"{type(self).__name__} needs {' and '.join(missing)} in algorithm_config, which "
                "DTConfig sets: use it with that algorithm."
            )
        settings = self.settings
        _check_settings(settings)
        self.context_length: int = self.algorithm_config["context_length"]
        self.network = DecisionTransformer(
            encoder=self.make_feature_encoder(),
            pi_head=self.make_head("pi_head", self.distribution.input_dim),
            context_length=self.context_length,
            num_units=settings.attention_num_transformer_units,
            dim=settings.attention_dim,
            num_heads=settings.attention_num_heads,
            head_dim=settings.attention_head_dim,
            mlp_dim=settings.attention_position_wise_mlp_dim,
        )

    @property
    def is_stateful(self) -> bool:
        """True: the rows before are part of the context."""
        return True

    def init(self, key: Key) -> Params:
        obs = make_zeros(self.observation_space, (1, self.context_length))
        context = self._make_context(
            obs,
            jnp.zeros((1, self.context_length), jnp.float32),
            jnp.zeros((1, self.context_length), jnp.bool_),
        )
        return cast(Params, self.network.init(key, context)["params"])

    def initial_carry(self, batch_size: int) -> DecisionCarry:
        shape = batch_size, self.context_length
        obs, action, _ = self._split(make_zeros(self.observation_space, shape))
        target = float(self.algorithm_config["target_return"])
        return DecisionCarry(
            obs=obs,
            action=action,
            returns_to_go=jnp.zeros(shape, jnp.float32),
            return_to_go=jnp.full((batch_size,), target, jnp.float32),
            count=jnp.zeros((batch_size,), jnp.int32),
        )

    def compute_dist_inputs(
        self, params: Params, sequence: ObsSequence, return_to_go: Float[Array, "N L"]
    ) -> Float[Array, "N L m"]:
        """Compute the inputs of the distribution of every row's action in one forward pass.

        Args:
            params: Parameters of the module.
            sequence: Consecutive observations `[N, L, ...]`; rows see those before them in the
                same episode.
            return_to_go: Return from each row on.
        """
        context = self._make_context(sequence.obs, return_to_go, sequence.is_first)
        return cast(Array, self.network.apply({"params": params}, context))

    def _forward_step(self, params: Params, obs: PyTree, carry: DecisionCarry) -> dict[str, Any]:
        latest, action, reward = self._split(obs)
        return_to_go = carry.return_to_go - reward  # no reward came before an episode's first row
        rows = jax.tree.map(
            _push,
            (carry.obs, carry.action, carry.returns_to_go),
            (latest, action, return_to_go),
        )
        count = jnp.minimum(carry.count + 1, self.context_length)
        place = (
            jnp.arange(self.context_length, dtype=jnp.int32)[None]
            - (self.context_length - count)[:, None]
        )
        context = Context(
            obs=rows[0],
            action=rows[1],
            return_to_go=self._scale(rows[2]),
            episode=jnp.where(place >= 0, 0, -1),
            place=jnp.maximum(place, 0),
        )
        out = self.network.apply({"params": params}, context)
        after = DecisionCarry(
            obs=rows[0],
            action=rows[1],
            returns_to_go=rows[2],
            return_to_go=return_to_go,
            count=count,
        )
        return {Columns.ACTION_DIST_INPUTS: cast(Array, out)[:, -1], Columns.STATE_OUT: after}

    def _dispatch_forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        return RLModule._dispatch_forward(self, params, obs)

    def unroll(self, params: Params, sequence: ObsSequence) -> dict[str, Any]:
        return RLModule.unroll(self, params, sequence)

    def get_network_obs_space(self) -> gymnasium.Space[Any]:
        check_action_mask(self)
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            parts = {name: space.spaces[name] for name in self._names}
            space = parts[self._names[0]] if len(parts) == 1 else spaces.Dict(parts)
        else:
            assert isinstance(space, spaces.Box)
            size = space.shape[0] - self._num_past_entries
            space = spaces.Box(space.low[:size], space.high[:size], dtype=space.dtype.type)
        check_supported(space, OBSERVATION_SPACE)
        return space

    @property
    def _names(self) -> tuple[str, ...]:
        """Names of the parts of a Dict that are encoded."""
        assert isinstance(self.observation_space, spaces.Dict)
        others = (PREV_ACTIONS, PREV_REWARDS, ACTION_MASK)
        return tuple(name for name in self.observation_space.spaces if name not in others)

    @property
    def _num_past_entries(self) -> int:
        """Number of entries of a vector that are the previous action and reward, the last ones."""
        return get_flat_size(self.action_space, ACTION_SPACE) + 1

    def _split(self, obs: PyTree) -> tuple[PyTree, Float[Array, "*b a"], Float[Array, "*b"]]:
        """Return what is encoded of observations, the action before them, and the reward."""
        if isinstance(self.observation_space, spaces.Dict):
            parts = {name: obs[name] for name in self._names}
            kept = parts[self._names[0]] if len(parts) == 1 else parts
            return kept, obs[PREV_ACTIONS], obs[PREV_REWARDS][..., 0]
        size = obs.shape[-1] - self._num_past_entries
        return obs[..., :size], obs[..., size:-1], obs[..., -1]

    def _make_context(
        self, obs: PyTree, return_to_go: Float[Array, "N L"], is_first: Bool[Array, "N L"]
    ) -> Context:
        """Return the rows of sequences, which may run over several episodes."""
        kept, action, _ = self._split(obs)
        row = jnp.arange(is_first.shape[1], dtype=jnp.int32)[None]
        first = jax.lax.cummax(jnp.where(is_first, row, 0), axis=1)
        return Context(
            obs=kept,
            action=action,
            return_to_go=self._scale(return_to_go),
            episode=jnp.cumsum(is_first, axis=1, dtype=jnp.int32),
            place=row - first,
        )

    def _scale(self, return_to_go: Float[Array, "*b"]) -> Float[Array, "*b"]:
        return return_to_go / self.algorithm_config["return_scale"]


def _push(rows: Array, latest: Array) -> Array:
    """Append a row to `[B, L, ...]` and drop the oldest."""
    return jnp.concatenate([rows[:, 1:], latest[:, None].astype(rows.dtype)], axis=1)


_ONE_NETWORK = "the transformer is one network without values"
_UNUSED = {
    "critic_only_observations": _ONE_NETWORK,
    "attention_memory_inference": "context_length is how far back actions look",
    "attention_init_gru_gate_bias": "there are no gates",
    "free_log_std": "the head has the log standard deviations",
    "max_seq_len": "windows have context_length rows",
    "critic_fcnet_hiddens": _ONE_NETWORK,
    "vf_share_layers": _ONE_NETWORK,
}


def _check_settings(settings: DefaultModelConfig) -> None:
    """Raise ConfigError for settings that the transformer does not have, or cannot be without."""
    for name, reason in _UNUSED.items():
        if settings[name] != getattr(DefaultModelConfig, name):
            raise ConfigError(
                f"{name}={settings[name]!r} has no effect on a decision transformer: {reason}; leave "
                "it out."
            )
    if not settings.use_attention:
        raise ConfigError(
            "use_attention=False leaves nothing of a decision transformer: leave it out."
        )
    for name in ("attention_use_n_prev_actions", "attention_use_n_prev_rewards"):
        if settings[name] != 1:
            raise ConfigError(
                f"{name}={settings[name]} contradicts a decision transformer, whose rows have one "
                "each: leave it out."
            )
