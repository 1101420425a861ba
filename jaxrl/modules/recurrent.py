"""Recurrent cores with one interface: LSTM, GRU, LRU, MinGRU and any cell of flax.

`__call__` is one step, as the policy acts. `sequence` is a whole `[T, B]` block, as the learner
replays it: the same parameters and results, with the carry reset wherever an episode starts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Complex, Float, Inexact

from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Key, PyTree
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.modules.networks import Initializer, orthogonal

C = TypeVar("C")
RecurrentLayer: TypeAlias = str | type[nn.RNNCellBase]
"""Name of one of `RECURRENT_CORES`, or a class with flax's cell interface."""
TWO_PI = 2.0 * math.pi


class RecurrentCore(nn.Module):
    """Base of recurrent cores; `RecurrentStack` composes several."""

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> PyTree:
        """Return the carry at an episode's start: float32 leaves `[B, ...]`, no parameters.

        It is the same for every row, whatever their number.
        """
        raise NotImplementedError

    def __call__(self, x: Float[Array, "B n"], carry: PyTree) -> tuple[Float[Array, "B m"], PyTree]:
        """Take one step: return the features of `x` and the next carry."""
        raise NotImplementedError

    def sequence(
        self, x: Float[Array, "T B n"], carry: PyTree, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], PyTree]:
        """Take T steps, each from the carry of the one before.

        Args:
            x: Consecutive rows.
            carry: Carry before row 0, leaves `[B, ...]`.
            is_first: Whether a row starts an episode: the carry before it is `initial_carry`.

        Returns:
            Features, and the carry after each row, leaves `[T, B, ...]`: `carries[t]` still belongs
                to row
            t's episode, even where row t + 1 starts another.
        """
        raise NotImplementedError


def scan_rows(
    step: Callable[[C, Array], C], initial: C, carry: C, rows: Array, is_first: Bool[Array, "T B"]
) -> C:
    """Return the carries after each row of `carry = step(initial if is_first else carry, row)`."""

    def scan_step(carry: C, inputs: tuple[Array, Array]) -> tuple[C, C]:
        row, first = inputs
        carry = step(where_rows(first, initial, carry), row)
        return carry, carry

    return jax.lax.scan(scan_step, carry, (rows, is_first))[1]


def make_per_gate_init(initializer: Callable[..., Array], num_gates: int) -> Callable[..., Array]:
    """Return an initializer of kernels `[n, num_gates * size]` that draws gate by gate."""

    def initialize(key: Key, shape: tuple[int, int], dtype: DTypeLike = jnp.float32) -> Array:
        block = (shape[0], shape[1] // num_gates)
        keys = jax.random.split(key, num_gates)
        return jnp.concatenate([initializer(k, block, dtype) for k in keys], axis=-1)

    return initialize


@pytree
class LSTMCarry:
    """Cell and hidden state of an LSTM."""

    cell: Float[Array, "*batch m"]
    hidden: Float[Array, "*batch m"]


def _init_forget_bias(key: Key, shape: tuple[int], dtype: DTypeLike = jnp.float32) -> Array:
    """Initialize the biases of the gates i, f, g, o: 1 for f, else 0."""
    del key
    return jnp.repeat(jnp.array([0.0, 1.0, 0.0, 0.0], dtype), shape[0] // 4)


def lstm_step(
    kernel: Float[Array, "m 4*m"], carry: LSTMCarry, row: Float[Array, "B 4*m"]
) -> LSTMCarry:
    """Compute c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c')  for i, f, g, o = row + h U."""
    i, f, g, o = jnp.split(row + carry.hidden @ kernel, 4, axis=-1)
    cell = nn.sigmoid(f) * carry.cell + nn.sigmoid(i) * jnp.tanh(g)
    return LSTMCarry(cell=cell, hidden=nn.sigmoid(o) * jnp.tanh(cell))


class LSTM(RecurrentCore):
    """Long short-term memory with a forget gate (Gers et al. 2000); features are its hidden state.

    Recurrent kernels start orthogonal, gate by gate (Saxe et al. 2014), and the forget gate's bias
    at 1 (Jozefowicz et al. 2015, section 2.2). Inputs are projected for all rows at once, so a step
    of the scan is one matrix product and elementwise operations.
    """

    size: int

    def setup(self) -> None:
        width = 4 * self.size
        self.inputs = nn.Dense(width, bias_init=_init_forget_bias)
        blocks = make_per_gate_init(orthogonal(), 4)
        self.recurrent_kernel = self.param(
            "recurrent_kernel", blocks, (self.size, width), jnp.float32
        )

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> LSTMCarry:
        zeros = jnp.zeros((batch_size, self.size), jnp.float32)
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
    """Compute h' = (1 - z) tanh(n + r (h U_n + b)) + z h  with gates r, z = σ(row + h U)."""
    size = hidden.shape[-1]
    recurrent = hidden @ kernel
    r, z = jnp.split(nn.sigmoid(row[:, : 2 * size] + recurrent[:, : 2 * size]), 2, axis=-1)
    new = jnp.tanh(row[:, 2 * size :] + r * (recurrent[:, 2 * size :] + bias[None]))
    return (1.0 - z) * new + z * hidden


class GRU(RecurrentCore):
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the product as in cuDNN.

    Recurrent kernels start orthogonal, gate by gate (Saxe et al. 2014). Inputs are projected for
    all rows at once.
    """

    size: int

    def setup(self) -> None:
        width = 3 * self.size
        self.inputs = nn.Dense(width)
        blocks = make_per_gate_init(orthogonal(), 3)
        self.recurrent_kernel = self.param(
            "recurrent_kernel", blocks, (self.size, width), jnp.float32
        )
        self.recurrent_bias = self.param(
            "recurrent_bias", nn.initializers.zeros, (self.size,), jnp.float32
        )

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> Float[Array, "B m"]:
        return jnp.zeros((batch_size, self.size), jnp.float32)

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
    """Complex state of a linear recurrent unit."""

    real: Float[Array, "*batch m"]
    imag: Float[Array, "*batch m"]


class LRU(RecurrentCore):
    """Linear recurrent unit (Orvieto et al. 2023), computed in parallel over time.

    A block of the paper's figure 1: the recurrence on normalized features, a gated linear unit
    after it, which makes it nonlinear, and a residual connection. Eigenvalues start uniform on the
    ring between the radii: with the defaults, the time scales are 10 to 1000 steps.
    """

    size: int
    min_radius: float = 0.9
    max_radius: float = 0.999
    max_phase: float = TWO_PI

    def setup(self) -> None:
        n, normal = self.size, nn.initializers.normal
        decay = make_log_decay_init(self.min_radius, self.max_radius)
        self.log_decay = self.param("log_decay", decay, (n,), jnp.float32)
        phase = make_log_phase_init(self.max_phase)
        self.log_phase = self.param("log_phase", phase, (n,), jnp.float32)
        self.log_gamma = self.param("log_gamma", lambda _: compute_log_normalizer(self.log_decay))
        self.features = nn.Dense(n)
        self.norm = nn.LayerNorm()
        self.to_state = nn.Dense(2 * n, use_bias=False, kernel_init=normal((2 * n) ** -0.5))
        self.from_state = nn.Dense(n, use_bias=False, kernel_init=normal(n**-0.5))
        self.skip = self.param("skip", normal(1.0), (n,), jnp.float32)
        self.gate = nn.Dense(2 * n)

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> LRUCarry:
        zeros = jnp.zeros((batch_size, self.size), jnp.float32)
        return LRUCarry(real=zeros, imag=zeros)

    def __call__(
        self, x: Float[Array, "B n"], carry: LRUCarry
    ) -> tuple[Float[Array, "B m"], LRUCarry]:
        features = self.features(x)
        decay = compute_eigenvalues(self.log_decay, self.log_phase)[None]
        state = decay * jax.lax.complex(carry.real, carry.imag) + self._project_inputs(features)
        return self._read_out(features, state)

    def sequence(
        self, x: Float[Array, "T B n"], carry: LRUCarry, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], LRUCarry]:
        features = self.features(x)
        decay = compute_eigenvalues(self.log_decay, self.log_phase)[None, None]
        state = jax.lax.complex(carry.real, carry.imag)
        states = scan_diagonal_recurrence(decay, self._project_inputs(features), state, is_first)
        return self._read_out(features, states)

    def _project_inputs(self, features: Float[Array, "*batch m"]) -> Complex[Array, "*batch m"]:
        """Compute γ B u, the input that each row adds to the state."""
        real, imag = jnp.split(self.to_state(self.norm(features)), 2, axis=-1)
        gamma = jnp.exp(self.log_gamma).reshape((1,) * (features.ndim - 1) + (-1,))
        return jax.lax.complex(gamma * real, gamma * imag)

    def _read_out(
        self, features: Float[Array, "*batch m"], state: Complex[Array, "*batch m"]
    ) -> tuple[Float[Array, "*batch m"], LRUCarry]:
        """Compute the features u + GLU(gelu(Re(C x) + D u)), and convert the state x to a carry."""
        carry = LRUCarry(real=state.real, imag=state.imag)
        skip = self.skip.reshape((1,) * (features.ndim - 1) + (-1,)) * self.norm(features)
        y = self.from_state(jnp.concatenate([carry.real, carry.imag], axis=-1)) + skip
        value, gate = jnp.split(self.gate(nn.gelu(y)), 2, axis=-1)
        return features + value * nn.sigmoid(gate), carry


class MinGRU(RecurrentCore):
    """Minimal gated recurrent unit (Feng et al. 2024, section 3.1), parallel over time.

    hₜ = (1 - zₜ) hₜ₋₁ + zₜ h̃ₜ  with zₜ = σ(W xₜ + b) and h̃ₜ = V xₜ + c: a GRU's update gate without
    its tanh, its reset gate and its recurrent kernels. Features are its hidden state. The gates'
    biases start at -log u, so that time scales 1 / z are 1 + u, for u log-uniform from 1 to
    `max_time` (after Tallec & Ollivier 2018, section 2); with biases of 0, half is forgotten at
    every step.
    """

    size: int
    max_time: float = 100.0

    def setup(self) -> None:
        self.inputs = nn.Dense(2 * self.size, bias_init=self._init_bias)

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> Float[Array, "B m"]:
        return jnp.zeros((batch_size, self.size), jnp.float32)

    def __call__(
        self, x: Float[Array, "B n"], carry: Float[Array, "B m"]
    ) -> tuple[Float[Array, "B m"], Float[Array, "B m"]]:
        gate, candidate = self._project_inputs(x)
        hidden = (1.0 - gate) * carry + gate * candidate
        return hidden, hidden

    def sequence(
        self, x: Float[Array, "T B n"], carry: Float[Array, "B m"], is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], Float[Array, "T B m"]]:
        gate, candidate = self._project_inputs(x)
        hidden = scan_diagonal_recurrence(1.0 - gate, gate * candidate, carry, is_first)
        return hidden, hidden

    def _init_bias(self, key: Key, shape: tuple[int], dtype: DTypeLike = jnp.float32) -> Array:
        bias = jax.random.uniform(key, (self.size,), dtype, -math.log(self.max_time), 0.0)
        return jnp.pad(bias, (0, self.size))

    def _project_inputs(
        self, x: Float[Array, "*batch n"]
    ) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch m"]]:
        """Compute the gate z and the candidate h̃ of each row."""
        gate, candidate = jnp.split(self.inputs(x), 2, axis=-1)
        return nn.sigmoid(gate), candidate


class FlaxCell(RecurrentCore):
    """Any recurrent cell with flax's interface, custom ones included, scanned over the rows.

    Every episode starts from the carry that `initialize_carry` makes for one row with a fixed key.
    """

    cell: nn.RNNCellBase

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> PyTree:
        row = self.cell.initialize_carry(jax.random.key(0), (1, 1))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch_size, *x.shape[1:])), row)

    def __call__(self, x: Float[Array, "B n"], carry: PyTree) -> tuple[Float[Array, "B m"], PyTree]:
        carry, y = self.cell(carry, x)
        return y, carry

    def sequence(
        self, x: Float[Array, "T B n"], carry: PyTree, is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], PyTree]:
        initial = self.initial_carry(x.shape[1])

        def scan_step(
            cell: nn.RNNCellBase, carry: PyTree, inputs: tuple[Array, Array]
        ) -> tuple[PyTree, tuple[Array, PyTree]]:
            row, first = inputs
            carry, y = cell(where_rows(first, initial, carry), row)
            return carry, (y, carry)

        scan = nn.scan(scan_step, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.cell, carry, (x, is_first))[1]


class RecurrentStack(RecurrentCore):
    """Sequence of recurrent cores: each takes the features of the one before."""

    layers: tuple[RecurrentCore, ...]

    @nn.nowrap
    def initial_carry(self, batch_size: int) -> tuple[PyTree, ...]:
        return tuple(layer.initial_carry(batch_size) for layer in self.layers)

    def __call__(
        self, x: Float[Array, "B n"], carry: tuple[PyTree, ...]
    ) -> tuple[Float[Array, "B m"], tuple[PyTree, ...]]:
        carries: list[PyTree] = []
        for layer, layer_carry in zip(self.layers, carry, strict=True):
            x, new_carry = layer(x, layer_carry)
            carries.append(new_carry)
        return x, tuple(carries)

    def sequence(
        self, x: Float[Array, "T B n"], carry: tuple[PyTree, ...], is_first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B m"], tuple[PyTree, ...]]:
        carries: list[PyTree] = []
        for layer, layer_carry in zip(self.layers, carry, strict=True):
            x, layer_carries = layer.sequence(x, layer_carry, is_first)
            carries.append(layer_carries)
        return x, tuple(carries)


RECURRENT_CORES: dict[str, Callable[[int], RecurrentCore]] = {
    "lstm": LSTM,
    "gru": GRU,
    "lru": LRU,
    "mingru": MinGRU,
}


def make_recurrent_core(kind: RecurrentLayer, size: int, num_layers: int = 1) -> RecurrentCore:
    """Build `num_layers` recurrent layers of `size` features, one after another.

    Args:
        kind: A name of `RECURRENT_CORES`, or a class with flax's cell interface, constructed as
            `kind(features=size)`.
        size: Number of features of each layer.
        num_layers: Number of layers. One layer is not wrapped in a `RecurrentStack`: its carry is not a
            tuple.

    Raises:
        ConfigError: If the kind is unknown, or its class cannot be constructed that way.
    """
    layers = tuple(_make_layer(kind, size) for _ in range(num_layers))
    return layers[0] if num_layers == 1 else RecurrentStack(layers)


def _make_layer(kind: object, size: int) -> RecurrentCore:
    if isinstance(kind, type) and issubclass(kind, nn.RNNCellBase):
        try:
            return FlaxCell(cast(Any, kind)(features=size))
        except TypeError as error:
            raise ConfigError(
                f"recurrent_layer_type is {kind.__name__}, which cannot be constructed with "
                f"features={size} alone ({error}); use a subclass whose other fields have defaults."
            ) from error
    if not isinstance(kind, str) or kind not in RECURRENT_CORES:
        raise ConfigError(
            f"recurrent_layer_type is {kind!r}, which is not a known recurrent layer."
            f"{did_you_mean(str(kind), RECURRENT_CORES)} Known: {', '.join(RECURRENT_CORES)}, and subclasses of "
            "flax.linen.RNNCellBase."
        )
    return RECURRENT_CORES[kind](size)


def scan_diagonal_recurrence(
    decay: Inexact[Array, "#T #B m"],
    inputs: Inexact[Array, "T B m"],
    state: Inexact[Array, "B m"],
    is_first: Bool[Array, "T B"],
) -> Inexact[Array, "T B m"]:
    """Compute xₜ = λₜ xₜ₋₁ + uₜ for all rows at once, from `state`, and from 0 at episode starts.

    At a start, λₜ is replaced by 0: the operator of Lu et al. 2023, which resets the state there,
    for a reset to 0.
    """
    factors = jnp.where(is_first[..., None], 0.0, decay)
    inputs = inputs.at[0].add(factors[0] * state)

    def compose(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, u), (b, v) = earlier, later
        return b * a, b * u + v

    return jax.lax.associative_scan(compose, (factors, inputs))[1]


def make_log_decay_init(min_radius: float, max_radius: float) -> Initializer:
    """Return an initializer of ν with exp(-exp(ν)) = |λ|, λ uniform on the ring between the radii.

    Orvieto et al. 2023, lemma 3.2.
    """

    def initialize(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, " m"]:
        inner, outer = min_radius**2, max_radius**2
        squared = jax.random.uniform(key, shape, dtype, inner, outer)
        return jnp.log(-0.5 * jnp.log(squared))

    return initialize


def make_log_phase_init(max_phase: float) -> Initializer:
    """Return an initializer of θ with exp(θ) = arg λ, uniform between 0 and `max_phase`."""

    def initialize(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, " m"]:
        smallest = 1e-6 * max_phase  # avoids log(0)
        return jnp.log(jax.random.uniform(key, shape, dtype, smallest, max_phase))

    return initialize


def compute_eigenvalues(
    log_decay: Float[Array, " m"], log_phase: Float[Array, " m"]
) -> Complex[Array, " m"]:
    """Compute λ = exp(-exp(ν) + i exp(θ)), inside the unit circle for any parameters."""
    return jnp.exp(jax.lax.complex(-jnp.exp(log_decay), jnp.exp(log_phase)))


def compute_log_normalizer(log_decay: Float[Array, " m"]) -> Float[Array, " m"]:
    """Compute log γ for γ = sqrt(1 - |λ|²), which gives states the variance of the inputs."""
    return 0.5 * jnp.log(-jnp.expm1(-2.0 * jnp.exp(log_decay)))
