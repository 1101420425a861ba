"""Memory by attention over the last rows of an episode: GTrXL (Parisotto et al. 2020)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.modules.recurrent import Memory


@pytree
class GTrXLCarry:
    """Of each unit the inputs of the last rows, oldest first; zeros where the episode is younger."""

    inputs: Float[Array, "*batch units memory dim"]
    count: Float[Array, "*batch"]
    """How many of them are rows of this episode: the last ones."""


def distance_encoding(num_distances: int, dim: int) -> Float[Array, "n dim"]:
    """Sinusoids of the distances n - 1, ..., 1, 0 (Dai et al. 2019, appendix B)."""
    frequency = 10000.0 ** (-2.0 * jnp.arange((dim + 1) // 2) / dim)
    angle = jnp.arange(num_distances - 1, -1, -1.0)[:, None] * frequency[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)[:, :dim]


def place_by_distance(scores: Float[Array, "*b T n"]) -> Float[Array, "*b T n+T-1"]:
    """Moves row t of the scores t columns to the right, so that a column is a row that is seen.

    Padding, and reading the same numbers in rows that are one shorter: no gather, which would be a
    scatter in the gradient. What lies outside of the band is 0 and to be masked.
    """
    *batch, num_rows, num_distances = scores.shape
    padding = [(0, 0)] * (scores.ndim - 1) + [(0, num_rows)]
    flat = jnp.pad(scores, padding).reshape(*batch, -1)
    return flat[..., :-num_rows].reshape(*batch, num_rows, num_distances + num_rows - 1)


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions (Dai et al. 2019, section 3.3)."""

    num_heads: int
    head_dim: int

    @nn.compact
    def __call__(
        self, rows: Float[Array, "J B n"], visible: Bool[Array, "B T J"]
    ) -> Float[Array, "T B n"]:
        """What the last T of the J rows see of all.

        Args:
            rows: M remembered rows and T present ones.
            visible: The rows that each present one sees: of the M before it and itself.
        """
        dim, num_present = rows.shape[-1], visible.shape[1]
        num_distances = len(rows) - num_present + 1
        query = self._heads("query", rows[-num_present:])
        key, value = self._heads("key", rows), self._heads("value", rows)
        distance = self._heads("distance", distance_encoding(num_distances, dim))
        by_content = jnp.einsum("tbhd,jbhd->bhtj", query + self._bias("content_bias"), key)
        by_distance = jnp.einsum("tbhd,jhd->bhtj", query + self._bias("distance_bias"), distance)
        scores = (by_content + place_by_distance(by_distance)) * self.head_dim**-0.5
        scores = jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min)
        seen = jnp.einsum("bhtj,jbhd->tbhd", nn.softmax(scores), value)
        return nn.Dense(dim, use_bias=False, name="out")(seen.reshape(*seen.shape[:2], -1))

    def _heads(self, name: str, x: Float[Array, "*batch n"]) -> Float[Array, "*batch h d"]:
        y = nn.Dense(self.num_heads * self.head_dim, use_bias=False, name=name)(x)
        return y.reshape(*x.shape[:-1], self.num_heads, self.head_dim)

    def _bias(self, name: str) -> Float[Array, "1 1 h d"]:
        shape = (self.num_heads, self.head_dim)
        return self.param(name, nn.initializers.zeros, shape)[None, None]


class GRUGate(nn.Module):
    """A gate in place of a residual sum (Parisotto et al. 2020, section 3.2).

    r = σ(W_r y + U_r x), z = σ(W_z y + U_z x - b), g = (1 - z) x + z tanh(W_g y + U_g (r x)). With
    b > 0 it starts near the identity.
    """

    init_bias: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch n"], y: Float[Array, "*batch n"]
    ) -> Float[Array, "*batch n"]:
        dim = x.shape[-1]
        bias = self.param("bias", nn.initializers.constant(self.init_bias), (dim,))
        from_y = nn.Dense(3 * dim, use_bias=False, name="y")(y)
        from_x = nn.Dense(2 * dim, use_bias=False, name="x")(x)
        y_r, y_z, y_g = jnp.split(from_y, 3, axis=-1)
        x_r, x_z = jnp.split(from_x, 2, axis=-1)
        z = nn.sigmoid(y_z + x_z - bias.reshape((1,) * (x.ndim - 1) + (-1,)))
        reset = nn.sigmoid(y_r + x_r) * x
        new = jnp.tanh(y_g + nn.Dense(dim, use_bias=False, name="reset_x")(reset))
        return (1.0 - z) * x + z * new


class GTrXLUnit(nn.Module):
    """Attention and a position-wise MLP, each normalised before and gated after."""

    num_heads: int
    head_dim: int
    position_wise_mlp_dim: int
    init_gru_gate_bias: float

    @nn.compact
    def __call__(
        self, rows: Float[Array, "J B n"], visible: Bool[Array, "B T J"]
    ) -> Float[Array, "T B n"]:
        x = rows[-visible.shape[1] :]
        attention = RelativeAttention(self.num_heads, self.head_dim, name="attention")
        seen = attention(nn.LayerNorm(name="norm_attention")(rows), visible)
        y = GRUGate(self.init_gru_gate_bias, name="gate_attention")(x, nn.relu(seen))
        hidden = nn.Dense(self.position_wise_mlp_dim, name="mlp_hidden")(
            nn.LayerNorm(name="norm_mlp")(y)
        )
        out = nn.Dense(x.shape[-1], name="mlp_out")(nn.relu(hidden))
        return GRUGate(self.init_gru_gate_bias, name="gate_mlp")(y, nn.relu(out))


class GTrXL(Memory):
    """Gated Transformer-XL: each row sees itself and the `memory` rows before it of its episode.

    Units see further together, since each remembers its own inputs. A sequence is computed in
    parallel over time; its scores are `[T, memory + T]` for each head. The carries of a sequence
    are windows of `memory` inputs for each row: index or reduce them in the same program, which
    then makes only those that are used.

    No gradient is stopped. The paper's stop at the memory of earlier segments follows from the
    carry being an input.
    """

    num_units: int = 1
    dim: int = 64
    num_heads: int = 1
    head_dim: int = 32
    memory: int = 50
    position_wise_mlp_dim: int = 32
    init_gru_gate_bias: float = 2.0

    def setup(self) -> None:
        self.features = nn.Dense(self.dim)
        self.units = [
            GTrXLUnit(
                num_heads=self.num_heads,
                head_dim=self.head_dim,
                position_wise_mlp_dim=self.position_wise_mlp_dim,
                init_gru_gate_bias=self.init_gru_gate_bias,
            )
            for _ in range(self.num_units)
        ]

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> GTrXLCarry:
        shape = (batch_size, self.num_units, self.memory, self.dim)
        return GTrXLCarry(inputs=jnp.zeros(shape), count=jnp.zeros(batch_size))

    def __call__(
        self, x: Float[Array, "B n"], carry: GTrXLCarry
    ) -> tuple[Float[Array, "B m"], GTrXLCarry]:
        starts = jnp.zeros((1, len(x)), bool)
        after: Any = self.sequence(x[None], carry, starts)
        return jax.tree.map(lambda leaf: leaf[0], after)

    def sequence(
        self, x: Float[Array, "T B n"], carry: GTrXLCarry, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], GTrXLCarry]:
        episode = jnp.cumsum(is_first, axis=0, dtype=jnp.int32)
        owner = jnp.concatenate([self._remembered_episode(carry.count), episode])
        y = self.features(x)
        inputs: list[Array] = []
        visible = self._visible(owner, episode)
        for i, unit in enumerate(self.units):
            inputs.append(jnp.concatenate([jnp.moveaxis(carry.inputs[:, i], 1, 0), y]))
            y = unit(inputs[-1], visible)
        return y, self._windows(jnp.stack(inputs, axis=2), owner, episode)

    def _remembered_episode(self, count: Float[Array, " B"]) -> Array:
        """Episode 0, the one before any start, for the last `count` rows of the memory; else -1."""
        age = jnp.arange(self.memory, 0, -1)[:, None]
        return jnp.where(age <= count[None], 0, -1)

    def _visible(self, owner: Array, episode: Array) -> Bool[Array, "B T J"]:
        """Whether row t sees row j: of the same episode, and no more than `memory` rows older."""
        ahead = jnp.arange(len(owner))[None] - jnp.arange(len(episode))[:, None]
        near = (ahead >= 0) & (ahead <= self.memory)
        return near[None] & (episode.T[:, :, None] == owner.T[:, None, :])

    def _windows(
        self, inputs: Float[Array, "J B units dim"], owner: Array, episode: Array
    ) -> GTrXLCarry:
        """What is remembered after each row: the last `memory` inputs, where of its episode."""
        rows = jnp.arange(len(episode))[:, None] + 1 + jnp.arange(self.memory)[None]
        mine = owner[rows] == episode[:, None]
        windows = jnp.where(mine[..., None, None], inputs[rows], 0.0)
        count = jnp.sum(mine, axis=1, dtype=jnp.float32)
        return GTrXLCarry(inputs=windows.transpose(0, 2, 3, 1, 4), count=count)
