"""Flax linen encoders and heads, with activations and initializers by name.

Convolutions are of images laid out as `[C, H, W, N]`, channels first and the batch last. On a CPU each
is one matrix product with long rows over the batch: the step of a small network takes a tenth of the
time of XLA's own convolutions, whose gradients are slow. On other platforms they are XLA's.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import Key, Params
from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.ops.losses import masked_column_moments

Activation: TypeAlias = Callable[[Array], Array]
Initializer: TypeAlias = Callable[..., Array]
ConvFilter: TypeAlias = tuple[int, tuple[int, int], tuple[int, int], str]
"""Channels, kernel, stride, and padding ("same" or "valid")."""

_init = jax.nn.initializers


def _identity(x: Array) -> Array:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "linear": _identity,
}


def get_activation(name: str | None, setting: str = "activation") -> Activation:
    """Return the activation called `name` (None is "linear").

    Raises:
        ConfigError: If it is unknown; the message names `setting` and the closest name.
    """
    if name is None:
        return _identity
    if not isinstance(name, str) or name.lower() not in ACTIVATIONS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"{setting} is {name!r}, which is not a known activation."
            f"{did_you_mean(str(name), ACTIVATIONS)} Known: {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name.lower()]


def _shift(draw: Initializer, mean: float) -> Initializer:
    """Add a constant to the values of an initializer."""

    def initialize(key: Key, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
        return mean + draw(key, shape, dtype)

    return initialize


def _default() -> Initializer:
    """Return U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's and so RLlib's default for layers."""
    return _init.variance_scaling(1.0 / 3.0, "fan_in", "uniform")


def _xavier_uniform(*, gain: float = 1.0) -> Initializer:
    return _init.variance_scaling(gain**2, "fan_avg", "uniform")


def _xavier_normal(*, gain: float = 1.0) -> Initializer:
    return _init.variance_scaling(gain**2, "fan_avg", "normal")


def orthogonal(*, gain: float = 1.0) -> Initializer:
    """Return an initializer of orthogonal rows or columns (Saxe et al. 2014).

    https://arxiv.org/abs/1312.6120. Under `jax.vmap` matrices are made one after another: batches
    of QR decompositions can deadlock the threads of XLA on the CPU (jaxlib 0.10).
    """
    draw = _init.orthogonal(gain)

    def initialize(key: Key, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
        return jax.custom_batching.sequential_vmap(lambda k: draw(k, shape, dtype))(key)

    return initialize


def _normal(*, mean: float = 0.0, std: float = 1.0) -> Initializer:
    return _shift(_init.normal(std), mean)


def _truncated_normal(
    *, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Initializer:
    """Return torch's truncated normal, cut at the values a and b.

    JAX measures its bounds from the mean, in standard deviations.
    """
    return _shift(_init.truncated_normal(std, lower=(a - mean) / std, upper=(b - mean) / std), mean)


def _uniform(*, a: float = 0.0, b: float = 1.0) -> Initializer:
    return _shift(_init.uniform(b - a), a)


def _constant(*, val: float) -> Initializer:
    return _init.constant(val)


INITIALIZERS: dict[str, Callable[..., Initializer]] = {
    "default": _default,
    "orthogonal": orthogonal,
    "xavier_uniform": _xavier_uniform,
    "glorot_uniform": _xavier_uniform,
    "xavier_normal": _xavier_normal,
    "glorot_normal": _xavier_normal,
    "kaiming_uniform": _init.he_uniform,
    "he_uniform": _init.he_uniform,
    "kaiming_normal": _init.he_normal,
    "he_normal": _init.he_normal,
    "lecun_uniform": _init.lecun_uniform,
    "lecun_normal": _init.lecun_normal,
    "normal": _normal,
    "trunc_normal": _truncated_normal,
    "truncated_normal": _truncated_normal,
    "uniform": _uniform,
    "constant": _constant,
    "zeros": lambda: _init.zeros,
    "ones": lambda: _init.ones,
}
# The others need a fan-in or orthogonal columns, which a vector does not have.
_FOR_VECTORS = (
    "normal",
    "trunc_normal",
    "truncated_normal",
    "uniform",
    "constant",
    "zeros",
    "ones",
)


def get_initializer(
    name: str | Initializer | None,
    kwargs: Mapping[str, Any] | None = None,
    setting: str = "kernel_initializer",
    *,
    for_bias: bool = False,
) -> Initializer:
    """Return the initializer called `name`; torch's spelling with a trailing "_" is accepted.

    None is torch's default for kernels and zeros for biases; "default" is torch's default for both.
    A callable `(key, shape, dtype)` is returned unchanged.

    Raises:
        ConfigError: If the name or a keyword is unknown, or the initializer cannot fill a vector.
    """
    if callable(name):
        if kwargs:
            raise ConfigError(
                f"{setting}_kwargs cannot be combined with a callable; bind them into {setting}."
            )
        return name
    if name is None:
        name = "zeros" if for_bias else "default"
    known = ("default", *_FOR_VECTORS) if for_bias else tuple(INITIALIZERS)
    normalized = name.rstrip("_").lower() if isinstance(name, str) else str(name)  # pyright: ignore[reportUnnecessaryIsInstance]
    if normalized not in known:
        problem = (
            "not an initializer of biases" if for_bias and normalized in INITIALIZERS else "unknown"
        )
        raise ConfigError(
            f"{setting} is {name!r}, which is {problem}.{did_you_mean(normalized, known)} "
            f"Known: {', '.join(known)}."
        )
    if for_bias and normalized == "default" and not kwargs:
        return torch_bias_init
    return _call_initializer(normalized, dict(kwargs or {}), setting)


def torch_bias_init(key: Key, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> Array:
    """Mark torch's default for biases, U(-1/sqrt(inputs), 1/sqrt(inputs)).

    Layers replace this marker by the initializer that `resolve_bias_init` makes, since the shape of a bias
    does not give the number of inputs.

    Raises:
        ConfigError: If it is called, by a layer that does not replace it.
    """
    raise ConfigError(
        "The bias initializer 'default' is for the dense layers and convolutions of jaxrl's own "
        "networks; in another layer use 'uniform' with explicit bounds."
    )


def resolve_bias_init(initializer: Initializer, num_inputs: int) -> Initializer:
    """Return the initializer of a layer's bias, which may depend on the number of inputs."""
    if initializer is not torch_bias_init:
        return initializer
    bound = num_inputs**-0.5
    return _uniform(a=-bound, b=bound)


def _call_initializer(name: str, kwargs: dict[str, Any], setting: str) -> Initializer:
    factory = INITIALIZERS[name]
    # JAX's own he_* and lecun_* take layout arguments, which are not settings.
    is_ours = factory.__module__ == __name__
    allowed = inspect.signature(factory).parameters if is_ours else {}
    for key, value in kwargs.items():
        if key not in allowed:
            names = ", ".join(allowed) or "none"
            raise ConfigError(
                f"{setting}_kwargs has {key!r}, which '{name}' does not take "
                f"(it takes: {names}).{did_you_mean(key, allowed)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{setting}_kwargs[{key!r}] is {value!r}; it must be a number.")
    missing = [
        key
        for key, p in allowed.items()
        if p.default is inspect.Parameter.empty and key not in kwargs
    ]
    if missing:
        raise ConfigError(f"{setting}_kwargs lacks {missing[0]!r}, which '{name}' requires.")
    return factory(**kwargs)


@pytree
class MomentRows:
    """Rows `[N, ...]` of a training step that a `BatchRenorm` computes its moments from.

    They are those of the mask on all devices of the mesh axis.
    """

    mask: Bool[Array, " N"]
    axis_name: str | None = static()


MOMENT_NAMES = ("running_mean", "running_var", "num_updates")
"""Parameters of a `BatchRenorm` that no optimizer changes."""
MOMENTS = "moments"
"""Collection of what a `BatchRenorm` has learned of the rows: its parameters after the step."""


class BatchRenorm(nn.Module):
    """Batch renormalization with running moments: x̂ = (x − μ) r / σ + d, y = scale x̂ + bias.

    Ioffe 2017, https://arxiv.org/abs/1702.03275, algorithm 1: μ and σ are of the rows of a training
    step, r = clip(σ / σ̄, 1/3, 3) and d = clip((μ − μ̄) / σ̄, ±5) carry no gradient, and μ̄, σ̄² are
    running means that move by 0.01 of the difference. As in CrossQ's code (Bhatt et al. 2024), r = 1
    and d = 0 in the first `WARM_UP` steps, which is batch normalization. Without rows x̂ is
    (x − μ̄) / σ̄.

    `running_mean`, `running_var` and `num_updates` are parameters without a gradient, so that they are
    copied, stored and reported as the others. Their new values are in the collection `MOMENTS`.
    """

    MOMENTUM: ClassVar[float] = 0.99
    EPSILON: ClassVar[float] = 1e-3
    R_MAX: ClassVar[float] = 3.0
    D_MAX: ClassVar[float] = 5.0
    WARM_UP: ClassVar[int] = 100_000

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch n"], rows: MomentRows | None = None
    ) -> Float[Array, "*batch n"]:
        def widen(vector: Float[Array, " n"]) -> Float[Array, "... n"]:
            return vector.reshape((1,) * (x.ndim - 1) + (-1,))

        size = x.shape[-1:]
        mean = self.param("running_mean", _init.zeros, size, jnp.float32)
        var = self.param("running_var", _init.ones, size, jnp.float32)
        num_updates = self.param("num_updates", _init.zeros, (), jnp.float32)
        mean, var, num_updates = jax.lax.stop_gradient((mean, var, num_updates))
        deviation = jnp.sqrt(var + self.EPSILON)
        if rows is None:
            normalized = (x - widen(mean)) / widen(deviation)
        else:
            row_mean, row_var = masked_column_moments(x, rows.mask, rows.axis_name)
            row_deviation = jnp.sqrt(row_var + self.EPSILON)
            is_warm = num_updates >= self.WARM_UP
            r = jnp.clip(row_deviation / deviation, 1.0 / self.R_MAX, self.R_MAX)
            d = jnp.clip((row_mean - mean) / deviation, -self.D_MAX, self.D_MAX)
            r, d = jax.lax.stop_gradient((jnp.where(is_warm, r, 1.0), jnp.where(is_warm, d, 0.0)))
            normalized = (x - widen(row_mean)) / widen(row_deviation) * widen(r) + widen(d)
            updated = (
                mean + (1.0 - self.MOMENTUM) * (row_mean - mean),
                var + (1.0 - self.MOMENTUM) * (row_var - var),
                jnp.minimum(num_updates + 1.0, self.WARM_UP),  # exact in float32
            )
            for name, value in zip(MOMENT_NAMES, updated, strict=True):
                self.put_variable(MOMENTS, name, value)
        scale = self.param("scale", _init.ones, size, jnp.float32)
        bias = self.param("bias", _init.zeros, size, jnp.float32)
        return normalized * widen(scale) + widen(bias)


class MLP(nn.Module):
    """Dense layers, each followed by an optional LayerNorm and the activation.

    `dense` is the class of the layers, called like `flax.linen.Dense`. With `use_batchrenorm`, the
    input and every activation are renormalized, by the moments of `rows` in a training step.
    """

    hiddens: tuple[int, ...]
    activation: Activation = jnp.tanh
    kernel_init: Initializer = _default()
    bias_init: Initializer = _init.zeros
    use_layernorm: bool = False
    dense: Callable[..., nn.Module] = nn.Dense
    use_batchrenorm: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch n"], rows: MomentRows | None = None
    ) -> Float[Array, "*batch m"]:
        if self.use_batchrenorm:
            x = BatchRenorm(name="renorm_in")(x, rows)
        for i, size in enumerate(self.hiddens):
            x = self.dense(
                size,
                kernel_init=self.kernel_init,
                bias_init=resolve_bias_init(self.bias_init, x.shape[-1]),
                name=f"dense_{i}",
            )(x)
            if self.use_layernorm:
                x = nn.LayerNorm(name=f"norm_{i}")(x)
            x = self.activation(x)
            if self.use_batchrenorm:
                x = BatchRenorm(name=f"renorm_{i}")(x, rows)
        return x


class ResidualMLP(nn.Module):
    """Residual blocks of SimBa (Lee et al. 2024, section 4, https://arxiv.org/abs/2410.09754).

    A linear embedding, then x + W₂ a(W₁ LN(x)) for each entry of `hiddens`, which are equal and
    whose hidden layer is 4 times as wide, and a LayerNorm at the end. `kernel_init=None` is the
    authors' code: orthogonal for the embedding, He et al.'s normal for the blocks.
    """

    hiddens: tuple[int, ...]
    activation: Activation = jax.nn.relu
    kernel_init: Initializer | None = None
    bias_init: Initializer = _init.zeros
    dense: Callable[..., nn.Module] = nn.Dense

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        size, he_normal = self.hiddens[0], _init.he_normal()
        x = self._apply_dense("embedding", size, orthogonal(), x)
        for i in range(len(self.hiddens)):
            hidden = nn.LayerNorm(name=f"norm_{i}")(x)
            hidden = self._apply_dense(f"expansion_{i}", 4 * size, he_normal, hidden)
            x = x + self._apply_dense(f"dense_{i}", size, he_normal, self.activation(hidden))
        return nn.LayerNorm(name="norm")(x)

    def _apply_dense(self, name: str, size: int, kernel_init: Initializer, x: Array) -> Array:
        layer = self.dense(
            size,
            kernel_init=self.kernel_init or kernel_init,
            bias_init=resolve_bias_init(self.bias_init, x.shape[-1]),
            name=name,
        )
        return layer(x)


AnyMLP: TypeAlias = MLP | ResidualMLP


Pair = tuple[int, int]

MAX_PRODUCT_BYTES = 2**28
"""Maximum bytes of the matrix made of an image batch; larger convolutions use XLA's."""


class Conv(nn.Module):
    """Convolution with the parameters of `flax.linen.Conv`, over images `[C, H, W, N]`."""

    features: int
    kernel_size: Pair
    strides: Pair
    padding: str
    kernel_init: Callable[..., Array]
    bias_init: Callable[..., Array]

    @nn.compact
    def __call__(self, x: Float[Array, "c h w n"]) -> Float[Array, "f h2 w2 n"]:
        shape = (*self.kernel_size, x.shape[0], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        options = {"strides": self.strides, "padding": self.padding.upper()}
        y = lax.platform_dependent(
            x,
            kernel,
            cpu=partial(convolve_on_cpu, **options),
            default=partial(convolve_with_xla, **options),
        )
        return y + bias[:, None, None, None]


def convolve_on_cpu(
    x: Float[Array, "c h w n"], kernel: Float[Array, "i j c f"], strides: Pair, padding: str
) -> Float[Array, "f h2 w2 n"]:
    """Convolve by a matrix product, or by XLA if its matrix would be too large.

    A program that is traced for any batch size has the matrix product.
    """
    rows, columns = _output_size(x, kernel, strides, padding)
    size = math.prod(kernel.shape[:3]) * rows * columns * x.shape[3] * x.dtype.itemsize
    is_small = not isinstance(size, int) or size <= MAX_PRODUCT_BYTES  # no int for any batch size
    convolve = convolve_by_matmul if is_small else convolve_with_xla
    return convolve(x, kernel, strides, padding)


def convolve_with_xla(
    x: Float[Array, "c h w n"], kernel: Float[Array, "i j c f"], strides: Pair, padding: str
) -> Float[Array, "f h2 w2 n"]:
    """Convolve with XLA's convolution."""
    layout = ("CHWN", "HWIO", "CHWN")
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=layout)


def convolve_by_matmul(
    x: Float[Array, "c h w n"], kernel: Float[Array, "i j c f"], strides: Pair, padding: str
) -> Float[Array, "f h2 w2 n"]:
    """Convolve by one product of the kernel and the patches that it covers."""
    rows, columns = _output_size(x, kernel, strides, padding)
    x = jnp.pad(x, ((0, 0), *_get_padding(x, kernel, strides, padding), (0, 0)))

    def slice_patch_entry(i: int, j: int) -> Array:
        """Slice what the kernel's entry (i, j) covers, `[C, rows, columns, N]`."""
        last = (i + (rows - 1) * strides[0] + 1, j + (columns - 1) * strides[1] + 1)
        return lax.slice(x, (0, i, j, 0), (x.shape[0], *last, x.shape[3]), (1, *strides, 1))

    height, width, _, features = kernel.shape
    patches = jnp.stack([slice_patch_entry(i, j) for i in range(height) for j in range(width)])
    y = kernel.reshape(-1, features).T @ patches.reshape(-1, rows * columns * x.shape[3])
    return y.reshape(features, rows, columns, x.shape[3])


def _output_size(x: Array, kernel: Array, strides: Pair, padding: str) -> Pair:
    """Return the rows and columns of the result."""
    pads = _get_padding(x, kernel, strides, padding)
    rows, columns = (
        (size + sum(pad) - covered) // stride + 1
        for size, pad, covered, stride in zip(
            x.shape[1:3], pads, kernel.shape[:2], strides, strict=True
        )
    )
    return rows, columns


def _get_padding(x: Array, kernel: Array, strides: Pair, padding: str) -> list[Pair]:
    return lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)


class CNN(nn.Module):
    """Convolutions over `[..., H, W, C]`, flattened at the end (channel by channel).

    An optional LayerNorm over the channels follows each of them, before the activation.
    """

    filters: tuple[ConvFilter, ...]
    activation: Activation = jax.nn.relu
    kernel_init: Initializer = _default()
    bias_init: Initializer = _init.zeros
    use_layernorm: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch m"]:
        batch_shape = x.shape[:-3]
        x = x.reshape(-1, *x.shape[-3:]).transpose(3, 1, 2, 0)
        for i, (channels, kernel, stride, padding) in enumerate(self.filters):
            x = Conv(
                channels,
                kernel_size=kernel,
                strides=stride,
                padding=padding,
                kernel_init=self.kernel_init,
                bias_init=resolve_bias_init(self.bias_init, math.prod(kernel) * x.shape[0]),
                name=f"conv_{i}",
            )(x)
            if self.use_layernorm:
                x = nn.LayerNorm(reduction_axes=0, feature_axes=0, name=f"norm_{i}")(x)
            x = self.activation(x)
        return x.reshape(-1, x.shape[-1]).T.reshape(*batch_shape, -1)


class Head(nn.Module):
    """Optional hidden layers and a linear output layer."""

    num_outputs: int
    hidden: MLP
    kernel_init: Initializer = _default()
    dense: Callable[..., nn.Module] = nn.Dense

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        x = self.hidden(x)
        return self.dense(self.num_outputs, kernel_init=self.kernel_init, name="out")(x)


_NATURE = ((32, 8, 4, "valid"), (64, 4, 2, "valid"), (64, 3, 1, "valid"))
_DREAMER = ((16, 4, 2, "same"), (32, 4, 2, "same"), (64, 4, 2, "same"), (128, 4, 2, "same"))
_SMALL = ((16, 3, 1, "valid"),)
MIN_IMAGE_SIZE, MAX_SMALL_IMAGE_SIZE = 3, 20


def get_default_conv_filters(shape: tuple[int, ...]) -> tuple[ConvFilter, ...] | None:
    """Return filters for an image `[H, W, C]`; None if there is no default for its size.

    84 x 84: Mnih et al. 2015. 64 x 64: as in DreamerV3 and RLlib. 3 to 20 pixels: one layer of
    16 3 x 3 filters (Young & Tian 2019, for MinAtar's 10 x 10).
    """
    height, width = shape[:2]
    if (height, width) == (84, 84):
        filters = _NATURE
    elif (height, width) == (64, 64):
        filters = _DREAMER
    elif min(height, width) >= MIN_IMAGE_SIZE and max(height, width) <= MAX_SMALL_IMAGE_SIZE:
        filters = _SMALL
    else:
        return None
    return tuple((c, (k, k), (s, s), padding) for c, k, s, padding in filters)


def parse_conv_filters(value: object, setting: str = "conv_filters") -> tuple[ConvFilter, ...]:
    """Parse RLlib's lists `[channels, kernel, stride(, "same" | "valid")]`, "same" by default.

    Raises:
        ConfigError: If an entry has another form.
    """
    if not isinstance(value, list | tuple):
        raise ConfigError(
            f"{setting} is {value!r}; it must be a list of [channels, kernel, stride] lists, such "
            "as [[16, 4, 2], [32, 4, 2]]."
        )
    filters: list[ConvFilter] = []
    for i, row in enumerate(cast(list[Any], value)):
        parsed = _parse_filter(row)
        if parsed is None:
            raise ConfigError(
                f"{setting}[{i}] is {row!r}; it must be [channels, kernel, stride] with positive "
                "whole numbers (kernel and stride may be pairs), optionally followed by 'same' or "
                "'valid'."
            )
        filters.append(parsed)
    return tuple(filters)


def _parse_filter(row: object) -> ConvFilter | None:
    if not isinstance(row, list | tuple) or len(cast(list[Any], row)) not in (3, 4):
        return None
    parts: list[Any] = [*cast(list[Any], row), "same"]
    channels, padding = parts[0], parts[3]
    kernel, stride = _parse_pair(parts[1]), _parse_pair(parts[2])
    is_valid = _is_positive_int(channels) and padding in ("same", "valid")
    return (channels, kernel, stride, padding) if is_valid and kernel and stride else None


def _parse_pair(value: object) -> tuple[int, int] | None:
    pair: list[Any] = list(value) if isinstance(value, list | tuple) else [value, value]
    return (pair[0], pair[1]) if len(pair) == 2 and all(map(_is_positive_int, pair)) else None


def _is_positive_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def format_parameter_table(title: str, params: Params) -> str:
    """Format a table of parameters (or their shapes), one row per array, with totals."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    rows = [("layer", "parameter", "shape", "number", "trainable")]
    trainable = total = 0
    for path, leaf in leaves:
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        size = int(np.prod(leaf.shape, dtype=np.int64))
        is_trainable = jnp.issubdtype(leaf.dtype, jnp.floating) and names[-1] not in MOMENT_NAMES
        total += size
        trainable += size if is_trainable else 0
        shape = " x ".join(map(str, leaf.shape)) or "scalar"
        layer = "/".join(names[:-1]) or "-"
        rows.append((layer, names[-1], shape, f"{size:,}", "yes" if is_trainable else "no"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    rule = "-" * (sum(widths) + 8)
    totals = f"{total:,} parameters: {trainable:,} trainable, {total - trainable:,} not trainable"
    return "\n".join([title, rule, lines[0], rule, *lines[1:], rule, totals])
