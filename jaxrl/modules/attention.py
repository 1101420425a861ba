"""Attention over the last rows of an episode: GTrXL (Parisotto et al. 2020)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.modules.recurrent import RecurrentCore


@pytree
class GTrXLCarry:
    """Inputs of the last rows for each unit, oldest first; zeros before the episode's start."""

    inputs: Float[Array, "*batch units memory dim"]
    count: Float[Array, "*batch"]
    """Number of rows that belong to this episode, which are the last ones."""


def encode_distances(num_distances: int, dim: int) -> Float[Array, "n dim"]:
    """Compute sinusoids of the distances n - 1, ..., 1, 0 (Dai et al. 2019, appendix B)."""
    frequency = 10000.0 ** (-2.0 * jnp.arange((dim + 1) // 2, dtype=jnp.float32) / dim)
    angle = jnp.arange(num_distances - 1, -1, -1.0, dtype=jnp.float32)[:, None] * frequency[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)[:, :dim]


def shift_by_distance(scores: Float[Array, "*b T n"]) -> Float[Array, "*b T n+T-1"]:
    """Shift row t of the scores t columns to the right, so that columns are attended rows.

    This pads the scores and reads the same numbers in rows that are one shorter: unlike a gather,
    it is not a scatter in the gradient. Entries outside of the band are 0 and must be masked.
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
        """Attend from the last T of the J rows to all rows.

        Args:
            rows: M rows of the carry followed by T present rows.
            visible: Rows that each present row attends to, among the M before it and itself.
        """
        dim, num_present = rows.shape[-1], visible.shape[1]
        num_distances = len(rows) - num_present + 1
        query = self._heads("query", rows[-num_present:])
        key, value = self._heads("key", rows), self._heads("value", rows)
        distance = self._heads("distance", encode_distances(num_distances, dim))
        by_content = jnp.einsum("tbhd,jbhd->bhtj", query + self._bias("content_bias"), key)
        by_distance = jnp.einsum("tbhd,jhd->bhtj", query + self._bias("distance_bias"), distance)
        scores = (by_content + shift_by_distance(by_distance)) * self.head_dim**-0.5
        scores = jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min)
        attended = jnp.einsum("bhtj,jbhd->tbhd", nn.softmax(scores), value)
        return nn.Dense(dim, use_bias=False, name="out")(attended.reshape(*attended.shape[:2], -1))

    def _heads(self, name: str, x: Float[Array, "*batch n"]) -> Float[Array, "*batch h d"]:
        y = nn.Dense(self.num_heads * self.head_dim, use_bias=False, name=name)(x)
        return y.reshape(*x.shape[:-1], self.num_heads, self.head_dim)

    def _bias(self, name: str) -> Float[Array, "1 1 h d"]:
        shape = (self.num_heads, self.head_dim)
        return self.param(name, nn.initializers.zeros, shape, jnp.float32)[None, None]


class GRUGate(nn.Module):
    """Gate that replaces a residual sum (Parisotto et al. 2020, section 3.2).

    r = σ(W_r y + U_r x), z = σ(W_z y + U_z x - b), g = (1 - z) x + z tanh(W_g y + U_g (r x)). With
    b > 0 it starts near the identity.
    """

    init_bias: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch n"], y: Float[Array, "*batch n"]
    ) -> Float[Array, "*batch n"]:
        dim = x.shape[-1]
        bias = self.param("bias", nn.initializers.constant(self.init_bias), (dim,), jnp.float32)
        from_y = nn.Dense(3 * dim, use_bias=False, name="y")(y)
        from_x = nn.Dense(2 * dim, use_bias=False, name="x")(x)
        y_r, y_z, y_g = jnp.split(from_y, 3, axis=-1)
        x_r, x_z = jnp.split(from_x, 2, axis=-1)
        z = nn.sigmoid(y_z + x_z - bias.reshape((1,) * (x.ndim - 1) + (-1,)))
        reset = nn.sigmoid(y_r + x_r) * x
        new = jnp.tanh(y_g + nn.Dense(dim, use_bias=False, name="reset_x")(reset))
        return (1.0 - z) * x + z * new


class GTrXLUnit(nn.Module):
    """Attention and a position-wise MLP, each normalized before and gated after."""

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
        attended = attention(nn.LayerNorm(name="norm_attention")(rows), visible)
        y = GRUGate(self.init_gru_gate_bias, name="gate_attention")(x, nn.relu(attended))
        hidden = nn.Dense(self.position_wise_mlp_dim, name="mlp_hidden")(
            nn.LayerNorm(name="norm_mlp")(y)
        )
        out = nn.Dense(x.shape[-1], name="mlp_out")(nn.relu(hidden))
        return GRUGate(self.init_gru_gate_bias, name="gate_mlp")(y, nn.relu(out))


class GTrXL(RecurrentCore):
    """Gated Transformer-XL: each row attends to itself and up to `memory` earlier ones.

    Only rows of the same episode are attended to.

    Stacked units look back further, since each keeps its own inputs. A sequence is computed in
    parallel over time; its scores are `[T, memory + T]` for each head. The carries of a sequence
    are windows of `memory` inputs for each row: index or reduce them in the same program, so that
    only those that are used are computed.

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
        return GTrXLCarry(
            inputs=jnp.zeros(shape, jnp.float32), count=jnp.zeros(batch_size, jnp.float32)
        )

    def __call__(
        self, x: Float[Array, "B n"], carry: GTrXLCarry
    ) -> tuple[Float[Array, "B m"], GTrXLCarry]:
        starts = jnp.zeros((1, x.shape[0]), bool)
        output = self.sequence(x[None], carry, starts)
        return jax.tree.map(lambda leaf: leaf[0], output)

    def sequence(
        self, x: Float[Array, "T B n"], carry: GTrXLCarry, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], GTrXLCarry]:
        episode = jnp.cumsum(is_first, axis=0, dtype=jnp.int32)
        row_episode = jnp.concatenate([self._get_memory_episode(carry.count), episode])
        y = self.features(x)
        inputs: list[Array] = []
        visible = self._compute_visibility(row_episode, episode)
        for i, unit in enumerate(self.units):
            inputs.append(jnp.concatenate([jnp.moveaxis(carry.inputs[:, i], 1, 0), y]))
            y = unit(inputs[-1], visible)
        return y, self._make_carry(jnp.stack(inputs, axis=2), row_episode, episode)

    def _get_memory_episode(self, count: Float[Array, " B"]) -> Array:
        """Return episode 0, that before any start, for the last `count` rows of the memory.

        The other rows belong to no episode, which is -1.
        """
        age = jnp.arange(self.memory, 0, -1, dtype=jnp.int32)[:, None]
        return jnp.where(age <= count[None], 0, -1)

    def _compute_visibility(self, row_episode: Array, episode: Array) -> Bool[Array, "B T J"]:
        """Return whether row t attends to row j: same episode, at most `memory` rows older."""
        ahead = (
            jnp.arange(len(row_episode), dtype=jnp.int32)[None]
            - jnp.arange(len(episode), dtype=jnp.int32)[:, None]
        )
        is_near = (ahead >= 0) & (ahead <= self.memory)
        return is_near[None] & (episode.T[:, :, None] == row_episode.T[:, None, :])

    def _make_carry(
        self, inputs: Float[Array, "J B units dim"], row_episode: Array, episode: Array
    ) -> GTrXLCarry:
        """Return the carry after each row: the last `memory` inputs of its episode."""
        rows = (
            jnp.arange(len(episode), dtype=jnp.int32)[:, None]
            + 1
            + jnp.arange(self.memory, dtype=jnp.int32)[None]
        )
        is_same_episode = row_episode[rows] == episode[:, None]
        windows = jnp.where(is_same_episode[..., None, None], inputs[rows], 0.0)
        count = jnp.sum(is_same_episode, axis=1, dtype=jnp.float32)
        return GTrXLCarry(inputs=windows.transpose(0, 2, 3, 1, 4), count=count)
