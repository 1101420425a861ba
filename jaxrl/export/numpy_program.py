"""Exported policies in NumPy: loading, checking, and running them.

This file needs Python 3.9 or newer and NumPy, and nothing else: copy it next to a simulator.

    policy = NumpyPolicy("exported")
    policy.reset()
    action = policy.act(obs)

Every file is checked before it is used, and nothing in it is code. `PolicyFileError` says in one
sentence what is wrong with a folder, `PolicyInputError` what is wrong with an argument.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.lib import format as npy_format

FORMAT, VERSION = "jaxrl-policy", 1
MANIFEST, PROGRAM, WEIGHTS, CONSTANTS = (
    "policy.json",
    "program.json",
    "weights.npz",
    "constants.npz",
)
SHA256 = "sha256"
"""Entry of the manifest with the hash of all others."""
MAX_FILE_BYTES, MAX_JSON_BYTES = 2**31, 2**26
MAX_ELEMENTS, MAX_TOTAL_ELEMENTS = 2**27, 2**29
"""Largest value, and all values together, of a program for one observation."""
MAX_OPERATIONS, MAX_ARRAYS, MAX_DEPTH = 100_000, 10_000, 32
CHECKED_BATCHES = 2, 3
"""Sizes of batches that a program is checked with: sizes that fit both, fit all."""
BOUNDS_TOLERANCE = 1e-4
GREEDY, SAMPLE, SET_PREVIOUS_ACTION = "greedy", "sample", "set_previous_action"
"""Programs: the most likely action, a sampled one, and a past action that was another one."""

Array = np.ndarray
Function = Callable[..., Any]
Shape = tuple[int, ...]
Tree = Any
Dim = Union[int, "list[int]"]


class PolicyFileError(ValueError):
    """An exported policy that is missing, damaged, or of an unknown format."""


class PolicyInputError(ValueError):
    """An argument that does not fit the policy."""


class StepResult(NamedTuple):
    """Result of a step for a batch.

    Attributes:
        actions: Actions for the environment, structured as its action space, `[b, ...]`.
        state: State after the step, to pass to the next one.
        log_prob: Log-probability or log density of the module's actions, `[b]`.
        dist_inputs: Inputs of the action distribution, `[b, n]`.
        module_actions: Actions of the module, before their conversion for the environment.
    """

    actions: Tree
    state: list[Array]
    log_prob: Array
    dist_inputs: Array
    module_actions: Tree


# --- operations ---


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def _logistic(x: Array) -> Array:
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))


def _rsqrt(x: Array) -> Array:
    return x.dtype.type(1) / np.sqrt(x)


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.divide(x, y)
    quotient = np.floor_divide(np.abs(x), np.abs(np.where(y == 0, 1, y)))
    return (quotient * (np.sign(x) * np.sign(y))).astype(x.dtype)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


UNARY: dict[str, Function] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin,
    "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh, "cbrt": np.cbrt,
    "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "erf": _erf, "exp": np.exp,
    "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "is_finite": np.isfinite,
    "log": np.log, "log1p": np.log1p, "logistic": _logistic, "neg": np.negative,
    "not": np.invert, "round": np.rint, "rsqrt": _rsqrt, "sign": np.sign, "sin": np.sin,
    "sinh": np.sinh, "sqrt": np.sqrt, "square": np.square, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
BINARY: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": np.fmod,
    "max": np.maximum, "min": np.minimum, "pow": np.power, "atan2": np.arctan2,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
TERNARY: dict[str, Function] = {"where": np.where, "clamp": _clamp}
ELEMENTWISE = {**UNARY, **BINARY, **TERNARY}
REDUCTIONS: dict[str, Any] = {
    "reduce_sum": np.add, "reduce_max": np.maximum, "reduce_min": np.minimum,
    "reduce_prod": np.multiply, "reduce_and": np.bitwise_and, "reduce_or": np.bitwise_or,
}  # fmt: skip
CUMULATIVE: dict[str, Any] = {
    "cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum,
}  # fmt: skip
POOLING: dict[str, Any] = {
    "reduce_window_max": np.maximum, "reduce_window_min": np.minimum, "reduce_window_sum": np.add,
}  # fmt: skip


class Spec(NamedTuple):
    """Type of an operation's result, its shape for a batch of one, and its sizes."""

    dtype: np.dtype
    shape: Shape
    dims: list[Dim]


def get_size(dim: Dim, batch: int) -> int:
    """Return the size of an axis for a batch."""
    return dim if isinstance(dim, int) else dim[0] * batch + dim[1]


def _is_fixed(dims: Sequence[Dim]) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _make_shape(dims: Sequence[Dim]) -> Callable[[int], Shape]:
    fixed = tuple(dim if isinstance(dim, int) else 0 for dim in dims)
    if _is_fixed(dims):
        return lambda batch: fixed
    return lambda batch: tuple([get_size(dim, batch) for dim in dims])


def _make_reshape(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    free = [axis for axis, dim in enumerate(out.dims) if not isinstance(dim, int)]
    if len(free) <= 1 and 0 not in out.shape:  # one size that follows from the others
        shape = tuple(-1 if axis in free else size for axis, size in enumerate(out.shape))
        return lambda batch, x: x.reshape(shape)
    get_shape = _make_shape(out.dims)
    return lambda batch, x: x.reshape(get_shape(batch))


def _make_broadcast(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    get_shape = _make_shape(out.dims)
    kept = {int(axis): place for place, axis in enumerate(attributes["dims"])}
    index = tuple(slice(None) if axis in kept else None for axis in range(len(out.dims)))
    if len(kept) != len(inputs[0].dims) or sorted(kept) != list(kept):
        raise ValueError("its axes do not fit its input")
    if None not in index:
        return lambda batch, x: np.broadcast_to(x, get_shape(batch))
    if all(out.dims[axis] == (inputs[0].dims[kept[axis]] if axis in kept else 1)
           for axis in range(len(out.dims))):  # fmt: skip
        return lambda batch, x: np.asarray(x)[index]
    return lambda batch, x: np.broadcast_to(np.asarray(x)[index], get_shape(batch))


def _make_view(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    """Make a broadcast whose new axes have size 1, for functions that expand their inputs."""
    kept = attributes["dims"]
    index = tuple(slice(None) if axis in kept else None for axis in range(len(out.dims)))
    return lambda batch, x: np.asarray(x)[index]


def _make_slice(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    starts, limits, strides = (attributes[name] for name in ("starts", "limits", "strides"))
    if not len(starts) == len(limits) == len(strides) == len(inputs[0].dims):
        raise ValueError("its axes do not fit its input")
    parts: list[slice] = []
    for start, limit, stride, dim in zip(starts, limits, strides, inputs[0].dims):
        if start == 0 and limit == dim and stride == 1:
            parts.append(slice(None))
        elif isinstance(start, int) and isinstance(limit, int):
            parts.append(slice(start, limit, stride))
        else:
            raise ValueError("it selects a part of the batch")
    index = tuple(parts)
    return lambda batch, x: x[index]


def _make_pad(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    widths, get_shape = attributes["widths"], _make_shape(out.dims)

    def pad(batch: int, x: Array, value: Array) -> Array:
        result = np.full(get_shape(batch), value, out.dtype)
        ends = [low + (size - 1) * (gap + 1) + 1 for (low, _, gap), size in zip(widths, x.shape)]
        if x.size:
            result[tuple([slice(w[0], end, w[2] + 1) for w, end in zip(widths, ends)])] = x
        return result

    return pad


def _make_iota(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    axis, get_shape = int(attributes["axis"]), _make_shape(out.dims)

    def count(batch: int) -> Array:
        shape = get_shape(batch)
        column = [1] * len(shape)
        column[axis] = -1
        return np.broadcast_to(np.arange(shape[axis], dtype=out.dtype).reshape(column), shape)

    return count


def _make_dot(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    (left, right), (left_batch, right_batch) = attributes["contract"], attributes["batch"]
    ranks = [len(spec.dims) for spec in inputs]
    if ranks == [2, 2] and (left, right, left_batch, right_batch) == ([1], [0], [], []):
        return lambda batch, x, y: np.dot(x, y)
    x_free = [axis for axis in range(ranks[0]) if axis not in (*left, *left_batch)]
    y_free = [axis for axis in range(ranks[1]) if axis not in (*right, *right_batch)]
    x_order, y_order = [*left_batch, *x_free, *left], [*right_batch, *right, *y_free]
    num_batch, num_free, num_summed = len(left_batch), len(x_free), len(left)

    def multiply(batch: int, x: Array, y: Array) -> Array:
        x, y = x.transpose(x_order), y.transpose(y_order)
        shared, rows = x.shape[:num_batch], x.shape[num_batch : num_batch + num_free]
        columns = y.shape[num_batch + num_summed :]
        depth = math.prod(x.shape[num_batch + num_free :])
        product = np.matmul(
            x.reshape((*shared, math.prod(rows), depth)),
            y.reshape((*shared, depth, math.prod(columns))),
        )
        return product.reshape((*shared, *rows, *columns))

    return multiply


def _cut_windows(
    x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Return a view of all windows over the last axes, whose entries become new last axes."""
    spread = [(size - 1) * gap + 1 for size, gap in zip(window, dilation)]
    first = x.ndim - len(window)
    axes = tuple(range(first, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view(x, spread, axis=axes)  # type: ignore
    steps = tuple([slice(None, None, step) for step in strides])
    gaps = tuple([slice(None, None, gap) for gap in dilation])
    return view[(slice(None),) * first + steps + gaps]


def _make_conv(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    strides, padding, dilation = (attributes[name] for name in ("strides", "padding", "dilation"))
    image, kernel, result = attributes["layout"]
    num = len(strides)
    restore = np.argsort(np.asarray([result[0], result[1], *result[2:]])).tolist()

    def convolve(batch: int, x: Array, w: Array) -> Array:
        x = np.pad(x.transpose(image), [(0, 0), (0, 0), *padding])  # [n, c, *space]
        w = w.transpose(kernel)  # [f, c, *window]
        views = _cut_windows(x, w.shape[2:], strides, dilation)
        axes = list(range(2 + num, 2 + 2 * num))
        y = np.tensordot(views, w, axes=([1, *axes], [1, *range(2, 2 + num)]))  # [n, *space, f]
        return np.moveaxis(y, -1, 1).transpose(restore)

    return convolve


def _make_pooling(name: str, attributes: Mapping[str, Any], out: Spec) -> Function:
    reduce, window = POOLING[name], attributes["window"]
    strides, padding, ones = attributes["strides"], attributes["padding"], [1] * len(window)
    kind, axes = out.dtype.kind, tuple(range(len(window), 2 * len(window)))
    limits: np.finfo[Any] | np.iinfo[Any] = (
        np.finfo(out.dtype) if kind == "f" else np.iinfo(out.dtype)
    )
    least, most = (-np.inf, np.inf) if kind == "f" else (limits.min, limits.max)
    fill = {np.maximum: least, np.minimum: most, np.add: 0}[reduce]

    def pool(batch: int, x: Array) -> Array:
        padded = np.pad(x, padding, constant_values=fill)
        return reduce.reduce(_cut_windows(padded, window, strides, ones), axis=axes)

    return pool


def _make_gather(attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec) -> Function:
    offset, collapsed = attributes["offset"], attributes["collapsed"]
    starts, (of_operand, of_indices) = attributes["starts"], attributes["batch"]
    sizes, fill = attributes["sizes"], attributes["fill"]
    kept = [axis for axis in range(len(sizes)) if axis not in (*collapsed, *of_operand)]
    others = [axis for axis in range(len(out.dims)) if axis not in offset]

    def gather(batch: int, x: Array, indices: Array) -> Array:
        rank = len(out.dims)

        def spread(values: Array, axes: Sequence[int]) -> Array:
            shape = [1] * rank
            for axis, size in zip(axes, values.shape):
                shape[axis] = size
            return values.reshape(shape)

        where: list[Array] = []
        is_inside = np.ones((1,) * rank, np.bool_)
        for axis, dim in enumerate(sizes):
            size = get_size(dim, batch)
            place = np.zeros((1,) * rank, np.int64)
            if axis in starts:
                start = indices[..., starts.index(axis)].astype(np.int64)
                is_inside = is_inside & spread(
                    (start >= 0) & (start <= x.shape[axis] - size), others
                )
                place = place + spread(np.clip(start, 0, x.shape[axis] - size), others)
            if axis in of_operand:
                along = of_indices[of_operand.index(axis)]
                place = place + spread(np.arange(indices.shape[along]), [others[along]])
            if axis in kept:
                place = place + spread(np.arange(size), [offset[kept.index(axis)]])
            where.append(place)
        result = x[tuple(where)]
        return result if fill is None else np.where(is_inside, result, out.dtype.type(float(fill)))

    return gather


def _make_reduction(name: str, attributes: Mapping[str, Any], out: Spec) -> Function:
    reduce, axes, dtype = REDUCTIONS[name].reduce, tuple(attributes["axes"]), out.dtype
    return lambda batch, x: reduce(x, axis=axes, dtype=dtype)


def _make_cumulative(name: str, attributes: Mapping[str, Any], out: Spec) -> Function:
    accumulate, axis, dtype = CUMULATIVE[name].accumulate, attributes["axis"], out.dtype
    if not attributes["reverse"]:
        return lambda batch, x: accumulate(x, axis=axis, dtype=dtype)
    return lambda batch, x: np.flip(accumulate(np.flip(x, axis), axis=axis, dtype=dtype), axis)


def _make_arg_reduction(name: str, attributes: Mapping[str, Any], out: Spec) -> Function:
    axis, dtype = attributes["axis"], out.dtype
    if name == "argmax":
        return lambda batch, x: x.argmax(axis).astype(dtype)
    return lambda batch, x: x.argmin(axis).astype(dtype)


def _make_simple(name: str, attributes: Mapping[str, Any], out: Spec) -> Function:
    """Make an operation that needs neither the shapes of its inputs nor the batch size."""
    dtype = out.dtype
    if name == "cast":
        return lambda batch, x: x.astype(dtype)
    if name == "integer_pow":
        power = dtype.type(attributes["y"])
        return lambda batch, x: np.power(x, power)
    if name == "transpose":
        order = attributes["axes"]
        return lambda batch, x: x.transpose(order)
    if name == "tile":
        repeats = tuple(attributes["repeats"])
        return lambda batch, x: np.tile(x, repeats)
    if name == "reverse":
        axes = tuple(attributes["axes"])
        return lambda batch, x: np.flip(x, axes)
    axis = attributes["axis"]
    if name == "concatenate":
        return lambda batch, *parts: np.concatenate(parts, axis=axis)
    if name == "stack":
        return lambda batch, *parts: np.stack(parts, axis=axis)
    return lambda batch, x: np.sort(x, axis=axis)


_SHAPED: dict[str, Function] = {
    "reshape": _make_reshape, "broadcast": _make_broadcast, "slice": _make_slice,
    "pad": _make_pad, "iota": _make_iota, "dot": _make_dot, "conv": _make_conv,
    "gather": _make_gather,
}  # fmt: skip
_NAMED: dict[str, Function] = {
    **dict.fromkeys(REDUCTIONS, _make_reduction),
    **dict.fromkeys(CUMULATIVE, _make_cumulative),
    **dict.fromkeys(POOLING, _make_pooling),
    **dict.fromkeys(("argmax", "argmin"), _make_arg_reduction),
    **dict.fromkeys(
        ("cast", "integer_pow", "transpose", "tile", "reverse", "concatenate", "stack", "sort"),
        _make_simple,
    ),
}
OPERATIONS = (*ELEMENTWISE, *_SHAPED, *_NAMED)
"""Names of all operations."""


def make_operation(
    name: str, attributes: Mapping[str, Any], inputs: Sequence[Spec], out: Spec
) -> Function:
    """Return the function of an operation, which takes the batch size and its inputs.

    Elementwise functions take their inputs alone; see `ELEMENTWISE`.
    """
    if name in ELEMENTWISE:
        number = 1 if name in UNARY else 2 if name in BINARY else 3
        if len(inputs) != number:
            raise ValueError(f"it has {len(inputs)} inputs, and takes {number}")
        return ELEMENTWISE[name]
    if name in _SHAPED:
        return _SHAPED[name](attributes, inputs, out)
    if name in _NAMED:
        return _NAMED[name](name, attributes, out)
    raise ValueError("it is unknown: a newer version of jaxrl may have it")


def evaluate(
    name: str, attributes: Mapping[str, Any], inputs: Sequence[Array], dtype: str, shape: Shape
) -> Array:
    """Compute one operation on arrays whose sizes do not depend on the batch."""
    specs = [Spec(x.dtype, x.shape, list(x.shape)) for x in inputs]
    out = Spec(np.dtype(dtype), shape, list(shape))
    function = make_operation(name, attributes, specs, out)
    with np.errstate(all="ignore"):
        result = function(*inputs) if name in ELEMENTWISE else function(0, *inputs)
    return np.asarray(result, out.dtype)


def check_growth(
    name: str, attributes: Mapping[str, Any], inputs: Sequence[Shape], out: Shape, batch: int
) -> None:
    """Check before running it that an operation's result cannot be larger than declared.

    Args:
        name: Name of the operation.
        attributes: Its attributes.
        inputs: Shapes of its inputs.
        out: Declared shape of its result.
        batch: Batch size that the shapes are for.

    Raises:
        ValueError: If it could be, or the operation is malformed.
    """
    expected = out
    if name in ELEMENTWISE:
        expected = np.broadcast_shapes(*inputs)
    elif name == "reshape":
        expected = out if math.prod(out) == math.prod(inputs[0]) else inputs[0]
    elif name == "broadcast":
        pairs = zip(inputs[0], attributes["dims"])
        expected = out if all(size in (1, out[axis]) for size, axis in pairs) else inputs[0]
    elif name == "pad":
        expected = tuple(
            low + high + max((size - 1) * (gap + 1) + 1, 0)
            for size, (low, high, gap) in zip(inputs[0], attributes["widths"])
            if min(low, high, gap) >= 0
        )
    elif name == "tile":
        expected = tuple(size * number for size, number in zip(inputs[0], attributes["repeats"]))
    elif name in ("concatenate", "stack"):
        axis, parts = attributes["axis"], [list(shape) for shape in inputs]
        whole = sum(part.pop(axis) for part in parts) if name == "concatenate" else len(parts)
        expected = (*parts[0][:axis], whole, *parts[0][axis:])
    elif name == "dot":
        (left, right), (left_batch, right_batch) = attributes["contract"], attributes["batch"]
        x, y = inputs
        shared = [x[axis] for axis in left_batch]
        rows = [size for axis, size in enumerate(x) if axis not in (*left, *left_batch)]
        columns = [size for axis, size in enumerate(y) if axis not in (*right, *right_batch)]
        expected = (*shared, *rows, *columns)
    elif name == "conv" or name in POOLING:
        expected = _get_window_shape(name, attributes, inputs)
    elif name == "gather":
        kept = [axis for axis in range(len(attributes["sizes"]))
                if axis not in (*attributes["collapsed"], *attributes["batch"][0])]  # fmt: skip
        wanted = [get_size(attributes["sizes"][axis], batch) for axis in kept]
        others = [size for axis, size in enumerate(out) if axis not in attributes["offset"]]
        found = [out[axis] for axis in attributes["offset"]]
        is_right = found == wanted and tuple(others) == tuple(inputs[1][:-1])
        expected = out if is_right else inputs[0]
    if tuple(expected) != out:
        raise ValueError(f"its result has the shape {tuple(expected)}, not {out}")


def _get_window_shape(
    name: str, attributes: Mapping[str, Any], inputs: Sequence[Shape]
) -> tuple[int, ...]:
    strides, padding = attributes["strides"], attributes["padding"]
    if name != "conv":
        return _count_windows(inputs[0], attributes["window"], [1] * len(strides), strides, padding)
    image, kernel, result = attributes["layout"]
    sizes = [inputs[0][axis] for axis in image[2:]]
    window = [inputs[1][axis] for axis in kernel[2:]]
    space = _count_windows(sizes, window, attributes["dilation"], strides, padding)
    shape = dict(zip(result, (inputs[0][image[0]], inputs[1][kernel[0]], *space)))
    return tuple(shape[axis] for axis in range(len(shape)))


def _count_windows(
    sizes: Sequence[int],
    window: Sequence[int],
    dilation: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    return tuple(
        (size + low + high - (wide - 1) * gap - 1) // stride + 1
        for size, wide, gap, stride, (low, high) in zip(sizes, window, dilation, strides, padding)
        if min(low, high, wide - 1, gap - 1, stride - 1) >= 0
    )


# --- programs ---


class Program:
    """Program of operations, compiled to a list of functions once.

    Args:
        name: Name of the program, for error messages.
        data: Program as read from JSON.
        constants: Arrays that the program refers to, by name.

    Attributes:
        input_names: Names of the inputs.
        output_names: Names of the outputs.

    Raises:
        PolicyFileError: If the program is damaged.
    """

    def __init__(self, name: str, data: Mapping[str, Any], constants: Mapping[str, Array]) -> None:
        self._name = name
        self._total = 0
        with explaining(f"{PROGRAM} has no valid program '{name}'"):
            self._specs = [self._read_value(value) for value in data["values"]]
            self._inputs = {str(key): self._check_number(at) for key, at in data["inputs"]}
            self._outputs = {str(key): self._check_number(at) for key, at in data["outputs"]}
            self._constants = [
                self._read_constant(number, value, constants) for number, value in data["constants"]
            ]
            if len(data["operations"]) > MAX_OPERATIONS:
                raise ValueError(f"it has more than {MAX_OPERATIONS} operations")
            self._prepared: list[Function] = []
            self._steps: list[Function] = []
            self._uses: list[tuple[list[int], int]] = []
            self._views = self._find_views(data["operations"])
            self._compile(data["operations"])
            self._given = {
                name: number + 1
                for name, number in self._inputs.items()
                if not name.startswith("weights/")
            }
        self.input_names, self.output_names = list(self._inputs), list(self._outputs)

    def _read_value(self, value: Sequence[Any]) -> Spec:
        dtype, dims = value
        if dtype not in _DTYPES or len(dims) > MAX_DEPTH:
            raise ValueError(f"a value has the type {dtype!r} or too many axes")
        for dim in dims:
            numbers = [dim] if isinstance(dim, int) else dim
            if not all(type(number) is int for number in numbers) or len(numbers) > 2:
                raise ValueError(f"an axis has the size {dim!r}")
        shape = tuple(get_size(dim, 1) for dim in dims)
        if min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS:
            raise ValueError(f"a value has the shape {shape}, which is too large")
        self._total += math.prod(shape)
        if self._total > MAX_TOTAL_ELEMENTS:
            raise ValueError("its values are too large together")
        return Spec(np.dtype(dtype), shape, list(dims))

    def _check_number(self, number: object) -> int:
        if type(number) is not int or not 0 <= number < len(self._specs):
            raise ValueError(f"there is no value number {number!r}")
        return number

    def _read_constant(
        self, number: Any, value: object, constants: Mapping[str, Array]
    ) -> tuple[int, Array]:
        spec = self._specs[self._check_number(number)]
        if isinstance(value, str) and value in constants:
            array = constants[value]
        else:
            array = np.asarray(float(value) if isinstance(value, str) else value, spec.dtype)
        if array.dtype != spec.dtype or array.shape != spec.shape:
            raise ValueError(f"constant {number} is not the one that was declared")
        return number, array

    def _find_views(self, operations: Sequence[Any]) -> set[int]:
        """Return the broadcasts that need not be expanded, as the functions that use them do it.

        These are elementwise, and have another input of the whole shape.
        """
        broadcasts = {op[3] for op in operations if op[0] == "broadcast"}
        views = broadcasts - set(self._outputs.values())
        for name, inputs, _, _ in operations:
            for number in views.intersection(inputs):
                dims = self._specs[number].dims
                whole = [i for i in inputs if i not in broadcasts and self._specs[i].dims == dims]
                if name not in ELEMENTWISE or not whole:
                    views.discard(number)
        return {number for number in views if not _is_fixed(self._specs[number].dims)}

    def _compile(self, operations: Sequence[Any]) -> None:
        """Sort the operations into those on weights alone, and those of every call."""
        weights = {i for name, i in self._inputs.items() if name.startswith("weights/")}
        fixed = weights | {number for number, _ in self._constants}
        known = fixed | set(self._inputs.values())
        for place, (name, inputs, attributes, output) in enumerate(operations):
            with explaining(f"{PROGRAM} has an invalid operation {place} '{name}'"):
                numbers = [self._check_number(number) for number in inputs]
                if self._check_number(output) in known or not known.issuperset(numbers):
                    raise ValueError("it uses a value before it is computed, or computes one twice")
                step = self._make_step(name, attributes, numbers, output)
            known.add(output)
            if fixed.issuperset(numbers) and _is_fixed(self._specs[output].dims):
                fixed.add(output)
                self._prepared.append(step)
            else:
                self._steps.append(step)
                self._uses.append((numbers, output))
        if not known.issuperset(self._outputs.values()):
            raise ValueError("an output is never computed")

    def _make_step(
        self, name: str, attributes: Mapping[str, Any], inputs: list[int], output: int
    ) -> Function:
        specs, out = [self._specs[number] for number in inputs], self._specs[output]
        function = make_operation(name, attributes, specs, out)
        if output in self._views:
            function = _make_view(attributes, specs, out)
        for batch in (1, *CHECKED_BATCHES):
            shapes = [tuple(get_size(dim, batch) for dim in spec.dims) for spec in specs]
            result = tuple(get_size(dim, batch) for dim in out.dims)
            check_growth(name, attributes, shapes, result, batch)
        return _make_step(function, name in ELEMENTWISE, [i + 1 for i in inputs], output + 1)

    def prepare(self, weights: Mapping[str, Array]) -> list[Any]:
        """Return the values that depend on weights alone, for `run`.

        Args:
            weights: Weights by name, checked by `check_arrays`.
        """
        values: list[Any] = [None] * (len(self._specs) + 1)
        for number, array in self._constants:
            values[number + 1] = array
        for name, number in self._inputs.items():
            if name.startswith("weights/"):
                values[number + 1] = weights[name[len("weights/") :]]
        with np.errstate(all="ignore"):
            for step in self._prepared:
                step(values)
        return values

    def run(self, prepared: list[Any], batch: int, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the program.

        Args:
            prepared: Result of `prepare`.
            batch: Batch size.
            inputs: Arrays by name; those that the program does not have are unused.
        """
        values = prepared.copy()
        values[0] = batch
        for name, number in self._given.items():
            if name in inputs:
                values[number] = inputs[name]
        with np.errstate(all="ignore"):
            for step in self._steps:
                step(values)
        return {name: values[number + 1] for name, number in self._outputs.items()}

    def prune(self, outputs: Collection[str]) -> Program:
        """Return the program that computes only some of the outputs, of the same prepared values."""
        pruned = copy.copy(self)
        pruned._outputs = {name: i for name, i in self._outputs.items() if name in outputs}
        pruned.output_names = list(pruned._outputs)
        needed, steps = set(pruned._outputs.values()), []
        for step, (inputs, output) in zip(reversed(self._steps), reversed(self._uses)):
            if output in needed:
                needed.update(inputs)
                steps.append(step)
        pruned._steps = steps[::-1]
        return pruned

    def get_specs(self) -> dict[str, Spec]:
        """Return the type and shape of every input and output, by name."""
        return {name: self._specs[i] for name, i in {**self._inputs, **self._outputs}.items()}

    def check_run(self, prepared: list[Any]) -> None:
        """Run the program on zeros, and check that every value is as declared.

        Raises:
            PolicyFileError: If one is not.
        """
        for batch in CHECKED_BATCHES:
            self._check_batch(prepared, batch)

    def _check_batch(self, prepared: list[Any], batch: int) -> None:
        values = prepared.copy()
        values[0] = batch
        for number in self._given.values():
            spec = self._specs[number - 1]
            values[number] = np.zeros(_make_shape(spec.dims)(batch), spec.dtype)
        with explaining(f"{PROGRAM} cannot run its program '{self._name}'"):
            with np.errstate(all="ignore"):
                for step in self._steps:
                    step(values)
            for number, (value, spec) in enumerate(zip(values[1:], self._specs)):
                shape = _make_shape(spec.dims)(batch)
                if number in self._views and value is not None:
                    value = np.broadcast_to(value, shape)
                if value is None or (value.dtype, value.shape) != (spec.dtype, shape):
                    raise ValueError("a value does not have its declared type and shape")


def _make_step(
    function: Function, is_elementwise: bool, inputs: list[int], output: int
) -> Function:
    """Return an operation as a function of all values, of which the first is the batch size."""
    arguments = inputs if is_elementwise else [0, *inputs]
    if len(arguments) == 1:
        (a,) = arguments

        def step_one(values: list[Any]) -> None:
            values[output] = function(values[a])

        return step_one
    if len(arguments) == 2:
        a, b = arguments

        def step_two(values: list[Any]) -> None:
            values[output] = function(values[a], values[b])

        return step_two
    if len(arguments) == 3:
        a, b, c = arguments

        def step_three(values: list[Any]) -> None:
            values[output] = function(values[a], values[b], values[c])

        return step_three

    def step_many(values: list[Any]) -> None:
        values[output] = function(*[values[i] for i in arguments])

    return step_many


# --- files ---

_DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


@contextlib.contextmanager
def explaining(problem: str) -> Generator[None]:
    """Convert errors of damaged data to a PolicyFileError."""
    try:
        yield
    except PolicyFileError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise PolicyFileError(f"{problem}: {reason[:300]}.") from error


def check_regular(path: str, max_bytes: int = MAX_FILE_BYTES) -> None:
    """Check that a path is that of a regular file of limited size: reading a pipe would wait.

    Raises:
        OSError: If there is nothing.
        ValueError: If it is something else, or larger.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes")


def hash_file(path: str) -> str:
    """Return the SHA-256 of a regular file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no file, or too large.
    """
    check_regular(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()


def hash_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a manifest says, other than its own."""
    content = {name: value for name, value in manifest.items() if name != SHA256}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(folder: str, name: str) -> dict[str, Any]:
    """Read a JSON file of limited size.

    Raises:
        PolicyFileError: If it is missing, too large, or no object.
    """
    path = os.path.join(folder, name)
    with explaining(f"{path} cannot be read as a file of an exported policy"):
        check_regular(path, MAX_JSON_BYTES)
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
    return data  # type: ignore


def read_arrays(folder: str, name: str) -> dict[str, Array]:
    """Read the arrays of an npz file, whose sizes are checked before anything is allocated.

    Raises:
        PolicyFileError: If it is missing or damaged, or has anything else than plain numbers.
    """
    path = os.path.join(folder, name)
    with explaining(f"{path} cannot be read as arrays of an exported policy"):
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ARRAYS:
                raise ValueError(f"it has more than {MAX_ARRAYS} arrays")
            return {
                entry.filename[: -len(".npy")]: _read_array(archive, entry) for entry in entries
            }


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    if entry.compress_type != zipfile.ZIP_STORED or not entry.filename.endswith(".npy"):
        raise ValueError(f"{entry.filename!r} is compressed, or no array")
    with archive.open(entry) as file:
        if npy_format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename!r} has an unknown format")
        shape, is_fortran, dtype = npy_format.read_array_header_1_0(file)
        if dtype.hasobject or str(dtype) not in _DTYPES or is_fortran:
            raise ValueError(f"{entry.filename!r} has the type {dtype}, not plain numbers")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size != entry.file_size - file.tell():
            raise ValueError(
                f"{entry.filename!r} declares the shape {shape}, which it does not have"
            )
        return np.frombuffer(file.read(size), dtype).reshape(shape)


def check_manifest(manifest: Mapping[str, Any], folder: str) -> None:
    """Check the format of an export, its own hash, and that of each of its files.

    Exports of before manifests had a hash of their own have none.

    Raises:
        PolicyFileError: If the format is unknown, or a file is missing or was changed.
    """
    if manifest.get("format") != FORMAT:
        raise PolicyFileError(
            f"{folder} is not an exported policy: {MANIFEST} is of another format."
        )
    version = manifest.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise PolicyFileError(
            f"{folder} has the format version {version!r}, but this reader knows up to {VERSION}: "
            "use the numpy_program.py of the jaxrl that wrote it."
        )
    with explaining(f"{folder} is damaged"):
        if SHA256 in manifest and hash_manifest(manifest) != manifest[SHA256]:
            raise ValueError(f"{MANIFEST} was changed after the export")
        for name, digest in manifest["files"].items():
            if os.path.basename(name) != name:
                raise ValueError(f"{name!r} is not a file of the folder")
            if hash_file(os.path.join(folder, name)) != digest:
                raise ValueError(f"{name} was changed after the export")


def check_arrays(
    arrays: Mapping[str, Any], expected: Sequence[Mapping[str, Any]], what: str
) -> dict[str, Array]:
    """Return arrays by name, contiguous copies of the expected types and shapes.

    Raises:
        PolicyInputError: If one is missing, left over, or of another type or shape.
    """
    names = [entry["name"] for entry in expected]
    different = sorted(set(names) ^ set(arrays))
    if different:
        state = "missing" if different[0] in names else "unknown"
        raise PolicyInputError(f"{what} must have the {len(names)} arrays of the export; "
                               f"{different[0]!r} is {state}.")  # fmt: skip
    checked: dict[str, Array] = {}
    for entry in expected:
        array = np.asarray(arrays[entry["name"]])
        if str(array.dtype) != entry["dtype"] or list(array.shape) != list(entry["shape"]):
            raise PolicyInputError(
                f"{what}[{entry['name']!r}] must be {entry['dtype']}{entry['shape']}, got "
                f"{array.dtype}{list(array.shape)}."
            )
        checked[entry["name"]] = np.array(array, order="C")
    return checked


# --- spaces ---


class Leaf:
    """Simple space, which checks and converts its values.

    Args:
        space: Description of a Box, Discrete, MultiDiscrete or MultiBinary.
        path: Name of the value in error messages.
        dtype: Type of the value in the program.
        shape: Shape of the value in the program.
    """

    def __init__(
        self, space: Mapping[str, Any], path: str, dtype: str, shape: Sequence[int]
    ) -> None:
        self.path, self.dtype, self.shape = path, np.dtype(dtype), tuple(shape)
        low, high = (np.asarray(space[name], np.float64) for name in ("low", "high"))
        is_box = space["kind"] == "Box"
        self.is_integral = not is_box or np.dtype(space["dtype"]).kind in "iu"
        if is_box and self.is_integral and self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            low, high = np.maximum(low, limits.min), np.minimum(high, limits.max)
        elif is_box:
            low = low - BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(low))
            high = high + BOUNDS_TOLERANCE * np.maximum(1.0, np.abs(high))
        self.low, self.high = np.broadcast_to(low, self.shape), np.broadcast_to(high, self.shape)
        self.is_bounded = bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def add_axis(self, value: object) -> Array:
        """Return one value as a batch.

        Raises:
            PolicyInputError: If it has another shape.
        """
        array = self.to_array(value)
        if array.shape != self.shape:
            raise PolicyInputError(
                f"{self.path} must have the shape {self.shape}, got {array.shape}."
            )
        return array[None]

    def to_array(self, value: object) -> Array:
        """Return a value as an array.

        Raises:
            PolicyInputError: If its parts are unequal.
        """
        try:
            return np.asarray(value)
        except ValueError:
            raise PolicyInputError(
                f"{self.path} must be an array, got a {type(value).__name__} of unequal parts."
            ) from None

    def conform(self, value: object, num: int) -> Array:
        """Return values `[num, ...]` of the program's type.

        Raises:
            PolicyInputError: If they are not in the space.
        """
        array = self.to_array(value)
        shape = (num, *self.shape)
        if array.shape != shape:
            raise PolicyInputError(f"{self.path} must have the shape {shape}, got {array.shape}.")
        if array.dtype.kind not in "biuf":
            raise PolicyInputError(f"{self.path} must be numeric, got dtype {array.dtype}.")
        if self.is_bounded:
            is_inside = (array >= self.low) & (array <= self.high)
        elif array.dtype.kind == "f":
            is_inside = ~np.isnan(array)
        else:
            is_inside = np.True_
        if self.is_integral and array.dtype.kind == "f":
            is_inside = is_inside & (array == np.floor(array))
        if not is_inside.all():
            at = tuple(int(i) for i in np.argwhere(~is_inside)[0])
            raise PolicyInputError(
                f"{self.path}{list(at)} is {array[at]}, which is not in its space."
            )
        return array.astype(self.dtype, copy=False)


def walk_space(space: Mapping[str, Any], path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Iterate over the simple spaces of a space and their paths, names of a Dict sorted."""
    if depth > MAX_DEPTH:
        raise ValueError("a space is nested too deep")
    if space["kind"] not in ("Dict", "Tuple"):
        yield path, space
        return
    is_dict = space["kind"] == "Dict"
    parts = sorted(space["spaces"]) if is_dict else list(enumerate(space["spaces"]))
    for key, part in parts:
        yield from walk_space(part, f"{path}.{key}" if is_dict else f"{path}[{key}]", depth + 1)


def check_space(space: Mapping[str, Any], path: str) -> None:
    """Check that a description is one of a space, of which a value could be made.

    Raises:
        ValueError: If it has an unknown kind, or sizes or bounds that no space has.
    """
    ignored = space.get("ignored", [])
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise ValueError(f"{path} ignores {ignored!r:.80}, which are no names of parts")
    for place, leaf in walk_space(space, path):
        kind, shape, dtype = leaf["kind"], leaf["shape"], leaf["dtype"]
        if kind not in _SPACE_KINDS:
            raise ValueError(f"{place} has the unknown kind {kind!r:.80}")
        is_shape = isinstance(shape, list) and len(shape) <= MAX_DEPTH
        if not is_shape or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{place} has the shape {shape!r:.80}")
        if math.prod(shape) > MAX_ELEMENTS or (kind == "Discrete" and shape):
            raise ValueError(f"{place} has the shape {shape!r:.80}, which it cannot have")
        if dtype not in _DTYPES:
            raise ValueError(f"{place} has the type {dtype!r:.80}")
        low, high = (np.asarray(leaf[name], np.float64) for name in ("low", "high"))
        for bound in (low, high):
            if bound.shape not in ((), tuple(shape)) or np.isnan(bound).any():
                raise ValueError(f"{place} has bounds of the shape {bound.shape}, or NaN")
        if (low > high).any() or (low == np.inf).any() or (high == -np.inf).any():
            raise ValueError(f"{place} has a lower bound above its upper one, so it has no values")
        for bound in (low, high) if kind != "Box" else ():
            if (bound != np.floor(bound)).any() or (np.abs(bound) >= 2**31).any():
                raise ValueError(f"{place} has bounds that are no whole numbers of int32")


_SPACE_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


def split_value(space: Mapping[str, Any], value: Tree, path: str) -> list[Any]:
    """Return the parts of a value that belong to the simple spaces.

    Raises:
        PolicyInputError: If it does not have the structure of the space.
    """
    if space["kind"] == "Dict":
        names = [name for name, _ in space["spaces"]]
        ignored = space.get("ignored", ())
        if not isinstance(value, Mapping) or set(value) - set(ignored) != set(names):
            raise PolicyInputError(
                f"{path} must be a dict with the keys {names}, got {value!r:.200}."
            )
        parts = [(part, value[name], f"{path}.{name}") for name, part in sorted(space["spaces"])]
    elif space["kind"] == "Tuple":
        num = len(space["spaces"])
        if not isinstance(value, (tuple, list)) or len(value) != num:
            raise PolicyInputError(f"{path} must be a tuple of length {num}, got {value!r:.200}.")
        parts = [(part, value[i], f"{path}[{i}]") for i, part in enumerate(space["spaces"])]
    else:
        return [value]
    return [leaf for part, inner, where in parts for leaf in split_value(part, inner, where)]


def join_value(space: Mapping[str, Any], leaves: Iterator[Any]) -> Tree:
    """Return the value of the parts that `split_value` returns."""
    if space["kind"] == "Dict":
        return {name: join_value(part, leaves) for name, part in sorted(space["spaces"])}
    if space["kind"] == "Tuple":
        return tuple([join_value(part, leaves) for part in space["spaces"]])
    return next(leaves)


# --- randomness ---


def draw(rng: np.random.Generator, spec: Mapping[str, Any], batch: int) -> Array:
    """Draw the random input that a specification describes, `[batch, ...]`."""
    kind, shape, dtype = spec["kind"], (batch, *spec["shape"]), np.dtype(spec["dtype"])
    if kind == "normal":
        return rng.standard_normal(shape).astype(dtype)
    if kind == "gumbel":
        return rng.gumbel(size=shape).astype(dtype)
    if kind == "exponential":
        return rng.exponential(size=shape).astype(dtype)
    low, high = spec["low"], spec["high"]
    if kind == "uniform":
        sample = (low + (high - low) * rng.random(shape)).astype(dtype)
        return np.minimum(sample, np.nextafter(dtype.type(high), dtype.type(low)))
    if kind == "randint":
        return rng.integers(low, high, shape).astype(dtype)
    if kind == "bernoulli":
        return rng.random(shape) < high
    raise PolicyFileError(f"{MANIFEST} has a random input of the unknown kind {kind!r}.")


DRAW_KINDS = ("normal", "gumbel", "exponential", "uniform", "randint", "bernoulli")


def _check_draws(specs: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError or KeyError if a random input cannot be drawn, or is too large."""
    for spec in specs:
        if spec["kind"] not in DRAW_KINDS:
            raise ValueError(f"there is no random input of the kind {spec['kind']!r}")
        if math.prod(spec["shape"]) > MAX_ELEMENTS:
            raise ValueError(f"the random input {spec['name']!r} is too large")
        draw(np.random.default_rng(0), {**spec, "shape": []}, 1)


# --- policies ---


class NumpyPolicy:
    """Exported policy, with the state of one episode.

    Observations are those of the environment and actions are for it: filters, stacked frames, masks,
    memory and the conversion of actions are inside.

    Args:
        folder: Folder of the export.
        explore: Whether to sample actions; False takes the most likely one.
        seed: Seed of the sampled actions; None takes one from the operating system.

    Attributes:
        manifest: Contents of `policy.json`.
        state_names: Names of the arrays of a state, in order.

    Raises:
        PolicyFileError: If the export is missing, damaged, or has no such program.
    """

    def __init__(
        self, folder: str | os.PathLike[str], explore: bool = False, seed: int | None = None
    ) -> None:
        path = os.fspath(folder)
        manifest = read_json(path, MANIFEST)
        check_manifest(manifest, path)
        if PROGRAM not in manifest["files"]:
            raise PolicyFileError(f"{path} has no {PROGRAM}: export with formats=('numpy',).")
        constants = read_arrays(path, CONSTANTS)
        programs = make_programs(manifest, read_json(path, PROGRAM), constants)
        self._set_up(manifest, programs, read_arrays(path, WEIGHTS), constants, explore, seed)

    @classmethod
    def from_parts(
        cls,
        manifest: Mapping[str, Any],
        program: Mapping[str, Any],
        weights: Mapping[str, Array],
        constants: Mapping[str, Array],
        explore: bool = False,
        seed: int | None = None,
    ) -> NumpyPolicy:
        """Return the policy of an export that was received as data instead of files.

        Args:
            manifest: Contents of `policy.json`; its hashes of files are not used.
            program: Contents of `program.json`.
            weights: Arrays of `weights.npz`.
            constants: Arrays of `constants.npz`.
            explore: Whether to sample actions.
            seed: Seed of the sampled actions.

        Raises:
            PolicyFileError: If they are damaged.
        """
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise PolicyFileError(f"The policy is not of the format {FORMAT}, version {VERSION}.")
        programs = make_programs(manifest, program, constants)
        return cls.from_programs(manifest, programs, weights, constants, explore, seed)

    @classmethod
    def from_programs(
        cls,
        manifest: Mapping[str, Any],
        programs: Mapping[str, Any],
        weights: Mapping[str, Array],
        constants: Mapping[str, Array],
        explore: bool = False,
        seed: int | None = None,
    ) -> NumpyPolicy:
        """Return a policy whose programs were read already; see `from_parts`."""
        policy = cls.__new__(cls)
        policy._set_up(manifest, programs, weights, constants, explore, seed)
        return policy

    def _set_up(
        self,
        manifest: Mapping[str, Any],
        programs: Mapping[str, Any],
        weights: Mapping[str, Array],
        constants: Mapping[str, Array],
        explore: bool,
        seed: int | None,
    ) -> None:
        self.manifest, self.explore, self._rng = manifest, explore, np.random.default_rng(seed)
        self._programs = dict(programs)
        with explaining(f"{MANIFEST} is damaged"):
            self._signature = signature = manifest["signature"]
            self._obs_space, self._action_space = (
                manifest["observation_space"],
                manifest["action_space"],
            )
            self._reads = list(manifest["reads"])
            self.state_names = [entry["name"] for entry in signature["state"]]
            self._leaves = _make_leaves(self._obs_space, "obs", signature["obs"])
            self._past = _make_leaves(self._action_space, "prev_action", signature["prev_action"])
            for name in ("actions", "module_actions"):
                if len(signature[name]) != len(self._past):
                    raise ValueError(f"{name} are not as many as the parts of the action space")
            self._initial = [constants[f"initial/{name}"] for name in self.state_names]
            _check_draws(signature["draws"])
        self._get_program(explore)
        self._is_random = {
            name: any(key.startswith("draws/") for key in checked.input_names)
            for name, checked in self._programs.items()
        }
        with explaining(f"{WEIGHTS} or {PROGRAM} is damaged"):
            self.set_weights(weights)
        for name, checked in self._programs.items():
            checked.check_run(self._prepared[name])
        outputs = {*signature["actions"], *(f"next/{name}" for name in self.state_names)}
        self._acting = {name: program.prune(outputs) for name, program in self._programs.items()}
        self.reset()

    def _get_program(self, explore: bool) -> str:
        name = SAMPLE if explore else GREEDY
        if name not in self._programs:
            raise PolicyFileError(
                f"The policy was exported without its program '{name}': export with "
                f"explore=(False, True), or use explore={not explore}."
            )
        return name

    # --- weights ---

    def get_weights(self) -> dict[str, Array]:
        """Return copies of the weights by name: parameters, statistics, schedules."""
        return {name: array.copy() for name, array in self._weights.items()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Replace all weights; the state of the episode and the compiled program are kept.

        Args:
            weights: Weights in the form that `get_weights` returns.

        Raises:
            PolicyInputError: If one is missing, unknown, or of another type or shape; nothing is
                changed.
        """
        weights = check_arrays(weights, self._signature["weights"], "weights")
        prepared = {name: program.prepare(weights) for name, program in self._programs.items()}
        self._weights, self._prepared = weights, prepared  # at once, for other threads

    # --- one episode ---

    @property
    def state(self) -> list[Array] | None:
        """State after the last action; None at an episode's start."""
        return self._state

    def initial_state(self, batch: int = 1) -> list[Array]:
        """Return the state at the start of an episode for every row, `[batch, ...]`."""
        return [np.repeat(array[None], batch, axis=0) for array in self._initial]

    def reset(self) -> None:
        """Reset the state: the next observation starts an episode."""
        self._state: list[Array] | None = None

    def act(self, obs: Tree, *, prev_reward: float | None = None, prev_action: Tree = None) -> Tree:
        """Compute the environment action for the next observation of the episode.

        Args:
            obs: Observation as returned by the environment.
            prev_reward: Reward of the previous step, for connectors that read it.
            prev_action: Action that the environment executed, if it is not the one computed last.

        Raises:
            PolicyInputError: If the observation is not in its space, or an input that a connector
                needs is missing, or one is not used.
        """
        out = self._run(
            self._acting,
            _add_axis(self._obs_space, self._leaves, obs, "obs"),
            self._state,
            prev_reward=None if prev_reward is None else np.asarray([prev_reward], np.float32),
            prev_action=None
            if prev_action is None
            else _add_axis(self._action_space, self._past, prev_action, "prev_action"),
        )
        self._state = self._get_next_state(out)
        actions = self._join("actions", out)
        return _map_leaves(self._action_space, lambda leaf: leaf[0], actions)

    # --- batches ---

    def step(
        self,
        obs: Tree,
        state: Sequence[Array] | None = None,
        *,
        is_first: object = None,
        prev_reward: object = None,
        prev_action: Tree = None,
        draws: Mapping[str, Array] | None = None,
        rng: np.random.Generator | None = None,
        explore: bool | None = None,
    ) -> StepResult:
        """Compute the actions for a batch of observations; the state of the policy is not used.

        Args:
            obs: Observations, structured as the observation space, `[b, ...]`.
            state: State that the previous step returned; None if all rows start an episode.
            is_first: Which rows start an episode, `[b]`; their state is replaced by the initial one.
            prev_reward: Rewards of the previous step, `[b]`, for connectors that read them.
            prev_action: Environment actions that were executed, if others than the computed ones.
            draws: Random inputs by name, in the form that `make_draws` returns.
            rng: Generator of the random inputs; None takes the policy's.
            explore: Whether to sample actions; None is as the policy was made.

        Raises:
            PolicyInputError: If an argument does not fit.
        """
        out = self._run(
            self._programs,
            obs,
            state,
            prev_reward=prev_reward,
            prev_action=prev_action,
            is_first=is_first,
            draws=draws,
            rng=rng,
            explore=explore,
        )
        return self._make_result(out)

    def step_rows(
        self,
        obs: Sequence[Array],
        state: Sequence[Array] | None = None,
        *,
        prev_reward: Array | None = None,
        explore: bool | None = None,
    ) -> StepResult:
        """Compute the actions like `step`, for arguments that were checked already.

        Args:
            obs: Arrays of the observations' simple spaces, `[b, ...]`, names of a Dict sorted.
            state: State that the previous step returned; None if all rows start an episode.
            prev_reward: Float32 rewards of the previous step, `[b]`, for connectors that read them.
            explore: Whether to sample actions; None is as the policy was made.
        """
        name, batch = self._get_program(self.explore if explore is None else explore), len(obs[0])
        inputs = {
            key: part.astype(leaf.dtype, copy=False) for (key, leaf), part in zip(self._leaves, obs)
        }
        is_first = state is None
        inputs["is_first"] = np.full(batch, is_first)
        inputs.update(zip(self.state_names, self.initial_state(batch) if is_first else state))
        if prev_reward is not None:
            inputs["state/reward"] = prev_reward
        if self._is_random[name]:
            inputs.update(self.make_draws(batch))
        return self._make_result(self._programs[name].run(self._prepared[name], batch, inputs))

    def _make_result(self, out: Mapping[str, Array]) -> StepResult:
        return StepResult(
            actions=self._join("actions", out),
            state=self._get_next_state(out),
            log_prob=out["log_prob"],
            dist_inputs=out["dist_inputs"],
            module_actions=self._join("module_actions", out),
        )

    def _run(
        self,
        programs: Mapping[str, Program],
        obs: Tree,
        state: Sequence[Array] | None,
        *,
        prev_reward: object,
        prev_action: Tree,
        is_first: object = None,
        draws: Mapping[str, Array] | None = None,
        rng: np.random.Generator | None = None,
        explore: bool | None = None,
    ) -> dict[str, Array]:
        """Return the outputs of a program; see `step` for the arguments."""
        explore = self.explore if explore is None else explore
        name = self._get_program(explore)
        parts = split_value(self._obs_space, obs, "obs")
        first_part = self._leaves[0][1].to_array(parts[0])
        batch = len(first_part) if first_part.ndim else 0
        if not batch:
            raise PolicyInputError("obs must have at least one row.")
        inputs = {key: leaf.conform(part, batch) for (key, leaf), part in zip(self._leaves, parts)}
        self._check_past(state, prev_reward, prev_action)
        first, arrays = self._read_state(state, is_first, batch)
        if prev_reward is not None:
            arrays["state/reward"] = _as_rows(prev_reward, np.float32, batch, "prev_reward")
        if prev_action is not None:
            arrays.update(self._set_previous_action(arrays, prev_action, batch))
        inputs.update(self._reset_rows(arrays, first))
        inputs["is_first"] = first
        if self._is_random[name]:
            inputs.update(self._check_draws(draws, batch) if draws else self.make_draws(batch, rng))
        return programs[name].run(self._prepared[name], batch, inputs)

    def _get_next_state(self, out: Mapping[str, Array]) -> list[Array]:
        return [out[f"next/{key}"] for key in self.state_names]

    def make_draws(self, batch: int, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Return new random inputs of a sampling step, by name."""
        rng = self._rng if rng is None else rng
        return {spec["name"]: draw(rng, spec, batch) for spec in self._signature["draws"]}

    def _check_draws(self, draws: Mapping[str, Array], batch: int) -> dict[str, Array]:
        specs = self._signature["draws"]
        if {spec["name"] for spec in specs} - set(draws):
            raise PolicyInputError(f"draws must have {[spec['name'] for spec in specs]}.")
        return {
            spec["name"]: _as_rows(
                draws[spec["name"]], spec["dtype"], batch, spec["name"], tuple(spec["shape"])
            )
            for spec in specs
        }

    def _read_state(
        self, state: Sequence[Array] | None, is_first: object, batch: int
    ) -> tuple[Array, dict[str, Array]]:
        """Return which rows start an episode, and the arrays of a state by name."""
        if state is None:
            arrays = dict(zip(self.state_names, self.initial_state(batch)))
            return np.ones(batch, np.bool_), arrays
        if len(state) != len(self._initial):
            raise PolicyInputError(
                f"state must have {len(self._initial)} arrays, as a step returns it, got "
                f"{len(state)}."
            )
        rows = np.zeros(batch, np.bool_) if is_first is None else np.asarray(is_first)
        if rows.ndim == 0:
            rows = np.full(batch, rows)
        if rows.dtype != np.bool_ or rows.shape != (batch,):
            rows = _as_rows(rows, np.bool_, batch, "is_first")
        return rows, {
            name: _as_rows(array, start.dtype, batch, "state", start.shape)
            for name, array, start in zip(self.state_names, state, self._initial)
        }

    def _reset_rows(self, arrays: Mapping[str, Array], first: Array) -> Mapping[str, Array]:
        if not arrays or not first.any():
            return arrays
        return {
            name: np.where(first.reshape(first.shape + (1,) * start.ndim), start, arrays[name])
            for name, start in zip(self.state_names, self._initial)
        }

    def _check_past(
        self, state: Sequence[Array] | None, prev_reward: object, prev_action: object
    ) -> None:
        if not self._reads and prev_reward is None and prev_action is None:
            return
        for name, value in (("prev_reward", prev_reward), ("prev_action", prev_action)):
            if value is not None and name not in self._reads:
                raise PolicyInputError(
                    f"{name} has no effect: no connector of the policy reads it."
                )
            if value is not None and state is None:
                raise PolicyInputError(f"{name} has no effect at the start of an episode.")
        if state is not None and "prev_reward" in self._reads and prev_reward is None:
            raise PolicyInputError("A connector reads the previous reward: pass prev_reward.")

    def _set_previous_action(
        self, inputs: Mapping[str, Array], action: Tree, batch: int
    ) -> dict[str, Array]:
        program = self._programs[SET_PREVIOUS_ACTION]
        parts = split_value(self._action_space, action, "prev_action")
        past = {key: leaf.conform(part, batch) for (key, leaf), part in zip(self._past, parts)}
        prepared = self._prepared[SET_PREVIOUS_ACTION]
        out = program.run(prepared, batch, {**inputs, **past})
        return {name[len("next/") :]: array for name, array in out.items()}

    def _join(self, name: str, out: Mapping[str, Array]) -> Tree:
        names = self._signature[name]
        return join_value(self._action_space, iter([out[key] for key in names]))


def _make_leaves(
    space: Mapping[str, Any], root: str, entries: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Leaf]]:
    check_space(space, root)
    spaces = list(walk_space(space, root))
    if len(spaces) != len(entries):
        raise ValueError(f"{root} has {len(entries)} arrays, but {len(spaces)} spaces")
    for (path, leaf), entry in zip(spaces, entries):
        if leaf["shape"] != entry["shape"]:
            raise ValueError(
                f"{path} has the shape {leaf['shape']}, but its array {entry['shape']}"
            )
    return [
        (entry["name"], Leaf(leaf, path, entry["dtype"], entry["shape"]))
        for (path, leaf), entry in zip(spaces, entries)
    ]


def _add_axis(
    space: Mapping[str, Any], leaves: Sequence[tuple[str, Leaf]], value: Tree, path: str
) -> Tree:
    parts = zip(leaves, split_value(space, value, path))
    return join_value(space, iter([leaf.add_axis(part) for (_, leaf), part in parts]))


def make_programs(
    manifest: Mapping[str, Any], data: Mapping[str, Any], constants: Mapping[str, Array]
) -> dict[str, Program]:
    """Return the programs of an export, checked against its signature.

    Raises:
        PolicyFileError: If one is damaged, or takes or returns something else than declared.
    """
    with explaining(f"{PROGRAM} does not fit {MANIFEST}"):
        programs = {str(name): Program(name, x, constants) for name, x in data["programs"].items()}
        for name, program in programs.items():
            check_signature(name, program, manifest["signature"])
    return programs


def check_signature(name: str, program: Program, signature: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError if a program does not take and return what is declared."""
    specs = program.get_specs()
    for key in program.input_names:
        if [str(specs[key].dtype), specs[key].dims] != _get_declared(key, signature):
            raise ValueError(f"{key} is of another type or shape than declared")
    needed = ["log_prob", "dist_inputs", *signature["actions"], *signature["module_actions"]]
    needed += [f"next/{entry['name']}" for entry in signature["state"]]
    missing = set(needed) - set(program.output_names)
    if missing and name != SET_PREVIOUS_ACTION:
        raise ValueError(f"the program '{name}' has no output {min(missing)!r}")


def _get_declared(name: str, signature: Mapping[str, Any]) -> list[Any]:
    """Return the declared type and sizes of an input."""
    group, _, rest = name.partition("/")
    if name == "is_first":
        return ["bool", [[1, 0]]]
    known = {entry["name"]: entry for entry in signature[group]}
    entry = known[rest if group == "weights" else name]
    return [entry["dtype"], ([] if group == "weights" else [[1, 0]]) + list(entry["shape"])]


def _as_rows(
    value: object, dtype: np.typing.DTypeLike, batch: int, name: str, shape: Shape = ()
) -> Array:
    array = np.asarray(value)
    if array.shape != (batch, *shape) or array.dtype.kind not in "biuf":
        raise PolicyInputError(f"{name} must be numbers {(batch, *shape)}, got {array.shape}.")
    return array.astype(dtype, copy=False)


def _map_leaves(space: Mapping[str, Any], function: Function, value: Tree) -> Tree:
    return join_value(space, iter([function(leaf) for leaf in split_value(space, value, "value")]))
