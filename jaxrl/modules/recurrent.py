"""What a policy remembers within an episode: recurrent layers with one interface for every kind.

`__call__` is one step, as the policy acts. `sequence` is a whole `[T, B]` block, as the learner
replays it: the same parameters, the same numbers, with a fresh memory wherever an episode starts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Key, PyTree
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.modules.networks import Initializer, orthogonal

C = TypeVar("C")
FULL_CIRCLE = 2.0 * math.pi


class Memory(nn.Module):
    """The base of memories; `Stack` puts several one after another."""

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> PyTree:
        """What is remembered at an episode's start: float32 leaves `[B, ...]`, no parameters.

        It is the same for every row, whatever their number.
        """
        raise NotImplementedError

    def __call__(self, x: Float[Array, "B n"], carry: PyTree) -> tuple[Float[Array, "B m"], PyTree]:
        """One step: the features of `x`, and what is remembered after it."""
        raise NotImplementedError

    def sequence(
        self, x: Float[Array, "T B n"], carry: PyTree, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], PyTree]:
        """T steps, each from the carry that the one before left.

        Args:
            x: Consecutive rows.
            carry: What was remembered before row 0, leaves `[B, ...]`.
            is_first: Rows that start an episode: the carry is `initial_carry` before them.

        Returns:
            The features, and the carry after each row, leaves `[T, B, ...]`: `carries[t]` still
            belongs to row t's episode, also where row t + 1 starts another.
        """
        raise NotImplementedError


def scan_rows(
    step: Callable[[C, Array], C], initial: C, carry: C, rows: Array, is_first: Bool[Array, "T B"]
) -> C:
    """The carries after each row of `carry = step(initial if is_first else carry, row)`."""

    def one_row(carry: C, inputs: tuple[Array, Array]) -> tuple[C, C]:
        row, first = inputs
        carry = step(where_rows(first, initial, carry), row)
        return carry, carry

    return jax.lax.scan(one_row, carry, (rows, is_first))[1]


def gate_blocks(initializer: Callable[..., Array], num_gates: int) -> Callable[..., Array]:
    """Initialises a kernel `[n, num_gates * size]` block by block, as so many kernels `[n, size]`."""

    def initialise(key: Key, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
        block = (shape[0], shape[1] // num_gates)
        keys = jax.random.split(key, num_gates)
        return jnp.concatenate([initializer(k, block, dtype) for k in keys], axis=-1)

    return initialise


@pytree
class LSTMCarry:
    """The cell and the hidden state of an LSTM."""

    cell: Float[Array, "*batch m"]
    hidden: Float[Array, "*batch m"]


def _forget_gate_is_open(key: Key, shape: tuple[int], dtype: Any = jnp.float32) -> Array:
    """Biases of the gates i, f, g, o: 1 for f, else 0."""
    del key
    return jnp.repeat(jnp.array([0.0, 1.0, 0.0, 0.0], dtype), shape[0] // 4)


def lstm_step(
    kernel: Float[Array, "m 4*m"], carry: LSTMCarry, row: Float[Array, "B 4*m"]
) -> LSTMCarry:
    """One step: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c')  for i, f, g, o = row + h U."""
    i, f, g, o = jnp.split(row + carry.hidden @ kernel, 4, axis=-1)
    cell = nn.sigmoid(f) * carry.cell + nn.sigmoid(i) * jnp.tanh(g)
    return LSTMCarry(cell=cell, hidden=nn.sigmoid(o) * jnp.tanh(cell))


class LSTM(Memory):
    """Long short-term memory with a forget gate (Gers et al. 2000); features are its hidden state.

    Recurrent kernels start orthogonal, gate by gate (Saxe et al. 2014), and the forget gate's bias
    at 1 (Jozefowicz et al. 2015, section 2.2). Inputs are projected for all rows at once, so a step
    of the scan is one product and what is elementwise.
    """

    size: int

    def setup(self) -> None:
        width = 4 * self.size
        self.inputs = nn.Dense(width, bias_init=_forget_gate_is_open)
        blocks = gate_blocks(orthogonal(), 4)
        self.recurrent_kernel = self.param("recurrent_kernel", blocks, (self.size, width))

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> LSTMCarry:
        zeros = jnp.zeros((batch_size, self.size))
        return LSTMCarry(cell=zeros, hidden=zeros)

    def __call__(
        self, x: Float[Array, "B n"], carry: LSTMCarry
    ) -> tuple[Float[Array, "B m"], LSTMCarry]:
        carry = lstm_step(self.recurrent_kernel, carry, self.inputs(x))
        return carry.hidden, carry

    def sequence(
        self, x: Float[Array, "T B n"], carry: LSTMCarry, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], LSTMCarry]:
        step = partial(lstm_step, self.recurrent_kernel)
        initial = self.initial_carry(x.shape[1])
        carries = scan_rows(step, initial, carry, self.inputs(x), is_first)
        return carries.hidden, carries


def gru_step(
    kernel: Float[Array, "m 3*m"],
    bias: Float[Array, " m"],
    hidden: Float[Array, "B m"],
    row: Float[Array, "B 3*m"],
) -> Float[Array, "B m"]:
    """One step: h' = (1 - z) tanh(n + r (h U_n + b)) + z h  with gates r, z = σ(row + h U)."""
    size = hidden.shape[-1]
    recurrent = hidden @ kernel
    r, z = jnp.split(nn.sigmoid(row[:, : 2 * size] + recurrent[:, : 2 * size]), 2, axis=-1)
    new = jnp.tanh(row[:, 2 * size :] + r * (recurrent[:, 2 * size :] + bias[None]))
    return (1.0 - z) * new + z * hidden


class GRU(Memory):
    """Gated recurrent unit (Cho et al. 2014), the reset gate after the product as in cuDNN.

    Recurrent kernels start orthogonal, gate by gate (Saxe et al. 2014). Inputs are projected for
    all rows at once.
    """

    size: int

    def setup(self) -> None:
        width = 3 * self.size
        self.inputs = nn.Dense(width)
        blocks = gate_blocks(orthogonal(), 3)
        self.recurrent_kernel = self.param("recurrent_kernel", blocks, (self.size, width))
        self.recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,))

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> Float[Array, "B m"]:
        return jnp.zeros((batch_size, self.size))

    def __call__(
        self, x: Float[Array, "B n"], carry: Float[Array, "B m"]
    ) -> tuple[Float[Array, "B m"], Float[Array, "B m"]]:
        hidden = gru_step(self.recurrent_kernel, self.recurrent_bias, carry, self.inputs(x))
        return hidden, hidden

    def sequence(
        self, x: Float[Array, "T B n"], carry: Float[Array, "B m"], is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], Float[Array, "T B m"]]:
        step = partial(gru_step, self.recurrent_kernel, self.recurrent_bias)
        initial = self.initial_carry(x.shape[1])
        hidden = scan_rows(step, initial, carry, self.inputs(x), is_first)
        return hidden, hidden


@pytree
class LRUCarry:
    """The complex state of a linear recurrent unit."""

    real: Float[Array, "*batch m"]
    imag: Float[Array, "*batch m"]


class LRU(Memory):
    """Linear recurrent unit (Orvieto et al. 2023), its rows computed in parallel over time.

    A block of the paper's figure 1: the recurrence on normalised features, a gated linear unit
    after it, which makes it nonlinear, and the features added to that. Eigenvalues start uniform
    on the ring between the radii: with the defaults, a unit remembers 10 to 1000 steps.
    """

    size: int
    min_radius: float = 0.9
    max_radius: float = 0.999
    max_phase: float = FULL_CIRCLE

    def setup(self) -> None:
        n, normal = self.size, nn.initializers.normal
        decay = log_decay_in_ring(self.min_radius, self.max_radius)
        self.log_decay = self.param("log_decay", decay, (n,), jnp.float32)
        phase = log_phase_below(self.max_phase)
        self.log_phase = self.param("log_phase", phase, (n,), jnp.float32)
        self.log_gamma = self.param("log_gamma", lambda _: log_normaliser(self.log_decay))
        self.features = nn.Dense(n)
        self.norm = nn.LayerNorm()
        self.to_state = nn.Dense(2 * n, use_bias=False, kernel_init=normal((2 * n) ** -0.5))
        self.from_state = nn.Dense(n, use_bias=False, kernel_init=normal(n**-0.5))
        self.skip = self.param("skip", normal(1.0), (n,))
        self.gate = nn.Dense(2 * n)

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> LRUCarry:
        zeros = jnp.zeros((batch_size, self.size))
        return LRUCarry(real=zeros, imag=zeros)

    def __call__(
        self, x: Float[Array, "B n"], carry: LRUCarry
    ) -> tuple[Float[Array, "B m"], LRUCarry]:
        features = self.features(x)
        decay = eigenvalues(self.log_decay, self.log_phase)[None]
        state = decay * jax.lax.complex(carry.real, carry.imag) + self._drive(features)
        return self._read(features, state)

    def sequence(
        self, x: Float[Array, "T B n"], carry: LRUCarry, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], LRUCarry]:
        features = self.features(x)
        decay = eigenvalues(self.log_decay, self.log_phase)
        before = jax.lax.complex(carry.real, carry.imag)
        states = diagonal_recurrence(decay, self._drive(features), before, is_first)
        return self._read(features, states)

    def _drive(self, features: Float[Array, "*batch m"]) -> Complex[Array, "*batch m"]:
        """γ B u, what each row adds to the state."""
        real, imag = jnp.split(self.to_state(self.norm(features)), 2, axis=-1)
        gamma = jnp.exp(self.log_gamma).reshape((1,) * (features.ndim - 1) + (-1,))
        return jax.lax.complex(gamma * real, gamma * imag)

    def _read(
        self, features: Float[Array, "*batch m"], state: Complex[Array, "*batch m"]
    ) -> tuple[Float[Array, "*batch m"], LRUCarry]:
        """The features u + GLU(gelu(Re(C x) + D u)), and the state x as a carry."""
        carry = LRUCarry(real=state.real, imag=state.imag)
        skip = self.skip.reshape((1,) * (features.ndim - 1) + (-1,)) * self.norm(features)
        y = self.from_state(jnp.concatenate([carry.real, carry.imag], axis=-1)) + skip
        value, gate = jnp.split(self.gate(nn.gelu(y)), 2, axis=-1)
        return features + value * nn.sigmoid(gate), carry


class Cell(Memory):
    """Any recurrent cell of flax's interface, a custom one included, scanned over the rows.

    Every episode starts from what its `initialize_carry` makes for one row, of a fixed key.
    """

    cell: nn.RNNCellBase

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> PyTree:
        row = self.cell.initialize_carry(jax.random.key(0), (1, 1))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch_size, *x.shape[1:])), row)

    def __call__(self, x: Float[Array, "B n"], carry: PyTree) -> tuple[Float[Array, "B m"], PyTree]:
        carry, y = cast(Any, self.cell)(carry, x)
        return y, carry

    def sequence(
        self, x: Float[Array, "T B n"], carry: PyTree, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], PyTree]:
        initial = self.initial_carry(x.shape[1])

        def one_row(cell: Any, carry: PyTree, inputs: tuple[Array, Array]) -> Any:
            row, first = inputs
            carry, y = cell(where_rows(first, initial, carry), row)
            return carry, (y, carry)

        scan: Any = nn.scan(one_row, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.cell, carry, (x, is_first))[1]


class Stack(Memory):
    """Memories one after another: each takes the features of the one before."""

    layers: tuple[Memory, ...]

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> tuple[PyTree, ...]:
        return tuple(layer.initial_carry(batch_size) for layer in self.layers)

    def __call__(
        self, x: Float[Array, "B n"], carry: tuple[PyTree, ...]
    ) -> tuple[Float[Array, "B m"], tuple[PyTree, ...]]:
        after: list[PyTree] = []
        for layer, before in zip(self.layers, carry, strict=True):
            x, new = layer(x, before)
            after.append(new)
        return x, tuple(after)

    def sequence(
        self, x: Float[Array, "T B n"], carry: tuple[PyTree, ...], is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], tuple[PyTree, ...]]:
        carries: list[PyTree] = []
        for layer, before in zip(self.layers, carry, strict=True):
            x, new = layer.sequence(x, before, is_first)
            carries.append(new)
        return x, tuple(carries)


MEMORIES: dict[str, Callable[[int], Memory]] = {"lstm": LSTM, "gru": GRU, "lru": LRU}


def make_memory(kind: str | type[nn.RNNCellBase], size: int, num_layers: int = 1) -> Memory:
    """`num_layers` recurrent layers of `size` features, one after another.

    Args:
        kind: A name of `MEMORIES`, or a class of flax's cell interface, made as
            `kind(features=size)`.
        size: Features of each layer.
        num_layers: A single layer is no `Stack`: its carry is no tuple.

    Raises:
        ConfigError: If there is no such kind, or its class cannot be made so.
    """
    layers = tuple(_layer(kind, size) for _ in range(num_layers))
    return layers[0] if num_layers == 1 else Stack(layers)


def _layer(kind: Any, size: int) -> Memory:
    if isinstance(kind, type) and issubclass(kind, nn.RNNCellBase):
        try:
            return Cell(cast(Any, kind)(features=size))
        except TypeError as error:
            raise ConfigError(
                f"recurrent_layer_type is {kind.__name__}, which cannot be made with features={size} "
                f"alone ({error}); give a subclass whose other fields have defaults."
            ) from error
    if not isinstance(kind, str) or kind not in MEMORIES:
        raise ConfigError(
            f"recurrent_layer_type is {kind!r}, which is no known recurrent layer."
            f"{did_you_mean(str(kind), MEMORIES)} Known: {', '.join(MEMORIES)}, and subclasses of "
            "flax.linen.RNNCellBase."
        )
    return MEMORIES[kind](size)


def diagonal_recurrence(
    decay: Complex[Array, " m"],
    inputs: Complex[Array, "T B m"],
    state: Complex[Array, "B m"],
    is_first: Bool[Array, "T B"],
) -> Complex[Array, "T B m"]:
    """xₜ = λ xₜ₋₁ + uₜ for all rows at once, from `state`, and from 0 where an episode starts.

    A start is a factor of 0 in place of λ: the operator of Lu et al. 2023, which sets
    the state anew there, for a new state of 0.
    """
    factors = jnp.where(is_first[..., None], 0.0, decay[None, None])
    inputs = inputs.at[0].add(factors[0] * state)

    def one_after_another(
        earlier: tuple[Array, Array], later: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        (a, u), (b, v) = earlier, later
        return b * a, b * u + v

    return jax.lax.associative_scan(one_after_another, (factors, inputs))[1]


def log_decay_in_ring(min_radius: float, max_radius: float) -> Initializer:
    """Initialises ν with exp(-exp(ν)) = |λ|, λ uniform on the ring between the radii.

    Orvieto et al. 2023, lemma 3.2.
    """

    def initialise(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, " m"]:
        inner, outer = min_radius**2, max_radius**2
        squared = jax.random.uniform(key, shape, dtype, inner, outer)
        return jnp.log(-0.5 * jnp.log(squared))

    return initialise


def log_phase_below(max_phase: float) -> Initializer:
    """Initialises θ with exp(θ) = arg λ, uniform between 0 and `max_phase`."""

    def initialise(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, " m"]:
        smallest = 1e-6 * max_phase  # log(0) would be no parameter
        return jnp.log(jax.random.uniform(key, shape, dtype, smallest, max_phase))

    return initialise


def eigenvalues(
    log_decay: Float[Array, " m"], log_phase: Float[Array, " m"]
) -> Complex[Array, " m"]:
    """λ = exp(-exp(ν) + i exp(θ)): inside of the unit circle whatever the parameters are."""
    return jnp.exp(jax.lax.complex(-jnp.exp(log_decay), jnp.exp(log_phase)))


def log_normaliser(log_decay: Float[Array, " m"]) -> Float[Array, " m"]:
    """The logarithm of γ = sqrt(1 - |λ|²), with which states have the inputs' variance."""
    return 0.5 * jnp.log(-jnp.expm1(-2.0 * jnp.exp(log_decay)))
