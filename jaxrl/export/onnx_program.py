"""Exported programs as ONNX: one graph for every batch size, with the weights inside."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import checker, helper, numpy_helper

from jaxrl.errors import ExportError
from jaxrl.export.program import Dim, ExportedProgram
from jaxrl.runtime.versions import get_versions

logger = logging.getLogger("jaxrl")
OPSET = 17
"""Version of the operators by default, and the lowest one."""
MAX_BYTES = 2**31 - 2**20
"""Size of the weights that a file, which is one message of less than 2 GiB, has room for."""
BATCH = "b"


_WIDER = {
    "bool": "int32",
    **dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32"),
    "uint32": "int64",
    "float16": "float32",
}
"""Types that runtimes lack arithmetic for, and those that it is done in instead."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Value of a graph: its name and type."""

    name: str
    dtype: str


def subtract(left: Dim, right: Dim) -> Dim:
    """Return the difference of two sizes."""
    (a, b), (c, d) = ([0, dim] if isinstance(dim, int) else dim for dim in (left, right))
    return b - d if a == c else [a - c, b - d]


def multiply(dims: Sequence[Dim]) -> Dim:
    """Return the product of sizes.

    Raises:
        ExportError: If two of them depend on the batch size.
    """
    fixed = math.prod(dim for dim in dims if isinstance(dim, int))
    free = [dim for dim in dims if not isinstance(dim, int)]
    if len(free) > 1:
        raise ExportError("A size grows with the square of the batch, which programs do not have.")
    return [fixed * free[0][0], fixed * free[0][1]] if free else fixed


class GraphBuilder:
    """Nodes and constants of a graph while it is built.

    Args:
        opset: Version of the operators.

    Attributes:
        opset: Version of the operators.
        nodes: Nodes in order.
        initializers: Constants and weights.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[object, ...], Tensor] = {}
        self._sizes: dict[tuple[int, int], Tensor] = {}

    # --- nodes ---

    def add(
        self,
        operator: str,
        *inputs: Tensor,
        dtype: str | None = None,
        num_outputs: int = 1,
        **attributes: Any,
    ) -> Tensor:
        """Add a node and return its first output.

        Args:
            operator: Operator of ONNX.
            *inputs: Inputs of the node.
            dtype: Type of the output; None for that of the first input.
            num_outputs: Number of outputs that the operator has.
            **attributes: Attributes of the node.
        """
        name = f"{operator}_{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, num_outputs))]
        arguments = [tensor.name for tensor in inputs]
        self.nodes.append(helper.make_node(operator, arguments, names, name=name, **attributes))
        return Tensor(name, dtype or inputs[0].dtype)

    def rename(self, tensor: Tensor, name: str) -> None:
        """Give a tensor a name, that of an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [tensor.name], [name], name=f"to_{name}"))

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Convert a tensor to another type, if it is not of this one."""
        if tensor.dtype == dtype:
            return tensor
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", tensor, dtype=dtype, to=kind)

    def widen(self, tensor: Tensor) -> Tensor:
        """Convert a tensor to a type that runtimes have arithmetic for."""
        return self.cast(tensor, _WIDER.get(tensor.dtype, tensor.dtype))

    # --- constants ---

    def add_initializer(self, name: str, array: np.ndarray) -> Tensor:
        """Add a constant of a given name."""
        content = np.ascontiguousarray(array).reshape(array.shape)
        self.initializers.append(numpy_helper.from_array(content, name))
        return Tensor(name, str(array.dtype))

    def constant(self, array: np.ndarray) -> Tensor:
        """Return a constant."""
        content = (str(array.dtype), array.shape, array.tobytes())
        if content not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[content] = self.add_initializer(name, array)
        return self._constants[content]

    def number(self, value: float, like: Tensor) -> Tensor:
        """Return a number of the type of a tensor."""
        return self.constant(np.asarray(value, like.dtype))

    def integers(self, values: Sequence[int]) -> Tensor:
        """Return a list of integers, `int64[n]`."""
        return self.constant(np.asarray(values, np.int64).reshape(len(values)))

    # --- sizes ---

    def set_batch(self, tensor: Tensor) -> None:
        """Declare whose first axis is the batch."""
        self._batch_of = tensor

    def size(self, dim: Dim) -> Tensor:
        """Return a size, `int64[1]`."""
        if isinstance(dim, int):
            return self.integers([dim])
        factor, offset = dim
        if (factor, offset) not in self._sizes:
            self._sizes[factor, offset] = self._compute_size(factor, offset)
        return self._sizes[factor, offset]

    def _compute_size(self, factor: int, offset: int) -> Tensor:
        if (factor, offset) == (1, 0):
            return self.add("Shape", self._batch_of, dtype="int64", start=0, end=1)
        size = self.size([1, 0])
        if factor != 1:
            size = self.add("Mul", size, self.integers([factor]))
        return self.add("Add", size, self.integers([offset])) if offset else size

    def shape(self, dims: Sequence[Dim]) -> Tensor:
        """Return a shape, `int64[n]`."""
        fixed = [dim for dim in dims if isinstance(dim, int)]
        if len(fixed) == len(dims):
            return self.integers(fixed)
        return self.add("Concat", *(self.size(dim) for dim in dims), axis=0)

    def reshape(self, tensor: Tensor, dims: Sequence[Dim]) -> Tensor:
        """Return a tensor with another shape."""
        fixed = [dim if isinstance(dim, int) else -1 for dim in dims]
        if fixed.count(-1) <= 1 and 0 not in fixed:  # one size that follows from the others
            return self.add("Reshape", tensor, self.integers(fixed))
        return self.add("Reshape", tensor, self.shape(dims), allowzero=1)

    def expand(self, tensor: Tensor, dims: Sequence[Dim]) -> Tensor:
        """Return a tensor repeated along its axes of size 1."""
        return self.add("Expand", tensor, self.shape(dims))

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Return a tensor with its axes in another order."""
        if list(order) == list(range(len(order))):
            return tensor
        return self.add("Transpose", tensor, perm=list(order))

    def slice(self, tensor: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
        """Return a part of a tensor along one axis."""
        numbers = (self.integers([number]) for number in (start, end, axis, step))
        return self.add("Slice", tensor, *numbers)

    def count(self, dim: Dim) -> Tensor:
        """Return the numbers from 0 to below a size, `int64[size]`."""
        if isinstance(dim, int):
            return self.integers(range(dim))
        end = self.add("Reshape", self.size(dim), self.integers([]))
        zero, one = (self.constant(np.asarray(value, np.int64)) for value in (0, 1))
        return self.add("Range", zero, end, one)


@dataclasses.dataclass(frozen=True)
class Call:
    """Operation of a program with its arguments in the graph.

    Attributes:
        name: Name of the operation.
        inputs: Arguments, of types that runtimes have arithmetic for, unless it moves them alone.
        input_dims: Sizes of each.
        attributes: Attributes of the operation.
        dtype: Type of the result.
        dims: Sizes of the result.
    """

    name: str
    inputs: Sequence[Tensor]
    input_dims: Sequence[Sequence[Dim]]
    attributes: Mapping[str, Any]
    dtype: str
    dims: Sequence[Dim]


Rendering: TypeAlias = Callable[[GraphBuilder, Call], Tensor]
"""Function that adds the nodes of an operation and returns its result, of any type."""


def refuse(graph: GraphBuilder, call: Call, what: str) -> ExportError:
    """Return the error for a form of an operation that ONNX does not have."""
    return ExportError(
        f"The operation '{call.name}' {what}, for which ONNX's operators of version {graph.opset} "
        "have no counterpart; export with formats=('numpy',)."
    )


_ALIKE = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "log": "Log", "neg": "Neg", "round": "Round", "sign": "Sign",
    "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "add": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "where": "Where",
}  # fmt: skip
"""Operators that compute what the operation does."""
_COMPARISONS = {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}
_LARGE = 1e8
"""Number so large that 1 more is the same, in float32."""
_BITWISE_OPSET = 18


def _render_logical(graph: GraphBuilder, call: Call) -> Tensor:
    operator = _LOGICAL[call.name]
    if call.dtype == "bool":
        return graph.add(operator, *call.inputs)
    if graph.opset < _BITWISE_OPSET:
        raise ExportError(
            f"The operation '{call.name}' of {call.dtype} needs version {_BITWISE_OPSET} of ONNX's "
            f"operators, not {graph.opset}: export_policy_model(folder, onnx={_BITWISE_OPSET})."
        )
    return graph.add(f"Bitwise{operator}", *call.inputs)


def _render_not(graph: GraphBuilder, call: Call) -> Tensor:
    (x,) = call.inputs
    if x.dtype == "bool":
        return graph.add("Not", x)
    return graph.add("Sub", graph.add("Neg", x), graph.number(1, x))  # ~x = -x - 1


def _render_expm1(graph: GraphBuilder, call: Call) -> Tensor:
    """Render exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which is exact near 0."""
    (x,) = call.inputs
    half = graph.add("Tanh", graph.add("Mul", x, graph.number(0.5, x)))
    return graph.add("Mul", half, graph.add("Add", graph.add("Exp", x), graph.number(1, x)))


def _render_log1p(graph: GraphBuilder, call: Call) -> Tensor:
    """Render log(u) x / (u - 1) with u = 1 + x, which is exact near 0 (Kahan)."""
    (x,) = call.inputs
    one = graph.number(1, x)
    u = graph.add("Add", x, one)
    d = graph.add("Sub", u, one)
    is_small = graph.add("Equal", d, graph.number(0, x), dtype="bool")
    is_large = graph.add("Greater", x, graph.number(_LARGE, x), dtype="bool")
    ratio = graph.add("Where", is_large, one, graph.add("Div", x, d), dtype=x.dtype)
    result = graph.add("Mul", graph.add("Log", u), ratio)
    return graph.add("Where", is_small, x, result, dtype=x.dtype)


def _render_quotient(graph: GraphBuilder, call: Call) -> Tensor:
    """Render a quotient or remainder; integers are rounded to 0, and are 0 where the divisor is."""
    x, y = call.inputs

    def divide(x: Tensor, y: Tensor) -> Tensor:
        is_remainder = call.name == "rem"
        return graph.add("Mod", x, y, fmod=1) if is_remainder else graph.add("Div", x, y)

    if x.dtype.startswith("float"):
        return divide(x, y)
    zero = graph.number(0, y)
    is_zero = graph.add("Equal", y, zero, dtype="bool")
    divisor = graph.add("Where", is_zero, graph.number(1, y), y, dtype=y.dtype)
    result = divide(x, divisor)
    return graph.add("Where", is_zero, zero, result, dtype=x.dtype)


def _render_atan2(graph: GraphBuilder, call: Call) -> Tensor:
    """Render the angle of (x, y), from that of y / x and the signs of both."""
    y, x = call.inputs
    zero, kind = graph.number(0, x), x.dtype
    angle = graph.add("Atan", graph.add("Div", y, x))
    # A zero is negative where its reciprocal is.
    signs = [
        graph.add("Or", graph.add("Less", part, zero, dtype="bool"),
                  graph.add("Less", graph.add("Reciprocal", part), zero, dtype="bool"))
        for part in (y, x)
    ]  # fmt: skip
    turn = graph.add("Where", signs[0], graph.number(-np.pi, x), graph.number(np.pi, x), dtype=kind)
    left = graph.add("Where", signs[1], graph.add("Add", angle, turn), angle, dtype=kind)
    flat = graph.add("Where", signs[1], turn, y, dtype=kind)
    is_flat = graph.add("Equal", y, zero, dtype="bool")
    return graph.add("Where", is_flat, flat, left, dtype=kind)


_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd", "reduce_and": "ReduceMin", "reduce_or": "ReduceMax",
}  # fmt: skip
_CUMULATIVE = {"cumprod": "Mul", "cummax": "Max", "cummin": "Min"}
_POOLING = {"reduce_window_max": "Max", "reduce_window_min": "Min", "reduce_window_sum": "Add"}
_MOVING = ("reshape", "broadcast", "transpose", "slice", "reverse", "concatenate", "stack", "cast")
"""Operations that only move numbers, of whatever type."""
_LOGIC = ("not", "and", "or", "xor")
_AXES_AS_INPUT_OPSET = 18


def render_operation(graph: GraphBuilder, call: Call) -> Tensor:
    """Add the nodes of an operation and return its result.

    Raises:
        ExportError: If ONNX has no counterpart.
    """
    if call.name not in RENDERINGS:
        raise ExportError(
            f"The operation '{call.name}' has no rendering in ONNX; export with formats=('numpy',)."
        )
    if "uint64" in (call.dtype, *(tensor.dtype for tensor in call.inputs)):
        raise refuse(graph, call, "computes with uint64")
    keeps_types = call.name in _MOVING or (call.name in _LOGIC and call.dtype == "bool")
    num_kept = len(call.inputs) if keeps_types else int(call.name == "where")
    widened = [graph.widen(tensor) for tensor in call.inputs[num_kept:]]
    call = dataclasses.replace(call, inputs=[*call.inputs[:num_kept], *widened])
    return graph.cast(RENDERINGS[call.name](graph, call), call.dtype)


# --- shapes ---


def _render_broadcast(graph: GraphBuilder, call: Call) -> Tensor:
    kept = dict(zip(call.attributes["dims"], call.input_dims[0], strict=True))
    column = [kept.get(axis, 1) for axis in range(len(call.dims))]
    (x,) = call.inputs
    x = x if column == list(call.input_dims[0]) else graph.reshape(x, column)
    return x if column == list(call.dims) else graph.expand(x, call.dims)


def _render_slice(graph: GraphBuilder, call: Call) -> Tensor:
    starts, limits, strides = (call.attributes[name] for name in ("starts", "limits", "strides"))
    (x,) = call.inputs
    parts = zip(starts, limits, strides, call.input_dims[0], strict=True)
    for axis, (start, limit, stride, dim) in enumerate(parts):
        if (start, limit, stride) == (0, dim, 1):
            continue
        if not isinstance(start, int) or not isinstance(limit, int):
            raise refuse(graph, call, "selects a part of the batch")
        x = graph.slice(x, axis, start, limit, stride)
    return x


def _render_reverse(graph: GraphBuilder, call: Call) -> Tensor:
    (x,) = call.inputs
    for axis in call.attributes["axes"]:
        x = graph.slice(x, axis, -1, np.iinfo(np.int64).min, -1)
    return x


def _render_pad(graph: GraphBuilder, call: Call) -> Tensor:
    x, value = call.inputs
    widths, dims = call.attributes["widths"], list(call.input_dims[0])
    for axis, (_, _, gap) in enumerate(widths):
        if gap:  # entries between the others: each is padded by itself, and the last gap is cut
            spread = [*dims[: axis + 1], 1, *dims[axis + 1 :]]
            x = _pad(graph, graph.reshape(x, spread), axis + 1, (0, gap), len(spread), value)
            dims[axis] = multiply([dims[axis], gap + 1])
            x = graph.slice(graph.reshape(x, dims), axis, 0, -gap)
            dims[axis] = subtract(dims[axis], gap)
    for axis, (low, high, _) in enumerate(widths):
        if low or high:
            x = _pad(graph, x, axis, (low, high), len(dims), value)
    return x


def _pad(
    graph: GraphBuilder, x: Tensor, axis: int, width: tuple[int, int], rank: int, value: Tensor
) -> Tensor:
    widths = np.zeros((2, rank), np.int64)
    widths[:, axis] = width
    return graph.add("Pad", x, graph.integers(widths.ravel().tolist()), value)


def _render_iota(graph: GraphBuilder, call: Call) -> Tensor:
    axis, dims = call.attributes["axis"], call.dims
    column = [dim if i == axis else 1 for i, dim in enumerate(dims)]
    numbers = graph.reshape(graph.cast(graph.count(dims[axis]), call.dtype), column)
    return graph.expand(numbers, dims)


# --- sums ---


def _render_dot(graph: GraphBuilder, call: Call) -> Tensor:
    (left, right), (left_batch, right_batch) = call.attributes["contract"], call.attributes["batch"]
    kind = str(np.result_type(*(tensor.dtype for tensor in call.inputs)))
    x, y = (graph.cast(tensor, kind) for tensor in call.inputs)
    x_dims, y_dims = call.input_dims
    x_free = [axis for axis in range(len(x_dims)) if axis not in (*left, *left_batch)]
    y_free = [axis for axis in range(len(y_dims)) if axis not in (*right, *right_batch)]
    x = graph.transpose(x, [*left_batch, *x_free, *left])
    y = graph.transpose(y, [*right_batch, *right, *y_free])
    shared = [x_dims[axis] for axis in left_batch]
    rows, columns = [x_dims[axis] for axis in x_free], [y_dims[axis] for axis in y_free]
    depth = multiply([x_dims[axis] for axis in left])
    if (len(rows), len(left), len(columns)) == (1, 1, 1):
        return graph.add("MatMul", x, y)
    x = graph.reshape(x, [*shared, multiply(rows), depth])
    y = graph.reshape(y, [*shared, depth, multiply(columns)])
    return graph.reshape(graph.add("MatMul", x, y), [*shared, *rows, *columns])


def _render_conv(graph: GraphBuilder, call: Call) -> Tensor:
    image, kernel, result = call.attributes["layout"]
    if not call.dtype.startswith("float"):
        raise refuse(graph, call, f"computes with {call.dtype}")
    padding = call.attributes["padding"]
    y = graph.add(
        "Conv",
        graph.transpose(call.inputs[0], image),
        graph.transpose(call.inputs[1], kernel),
        strides=call.attributes["strides"],
        dilations=call.attributes["dilation"],
        pads=[low for low, _ in padding] + [high for _, high in padding],
    )
    return graph.transpose(y, np.argsort(np.asarray(result)).tolist())


def _render_pooling(graph: GraphBuilder, call: Call) -> Tensor:
    """Render pooling axis by axis, as that of the windows' first entries, second entries, ..."""
    (x,) = call.inputs
    window, strides, padding = (call.attributes[n] for n in ("window", "strides", "padding"))
    fill = graph.number(_get_least(call.name, x.dtype), x)
    dims = call.input_dims[0]
    for axis, (wide, step, (low, high)) in enumerate(zip(window, strides, padding, strict=True)):
        if (wide, step, low, high) == (1, 1, 0, 0):
            continue
        num = call.dims[axis]
        if not isinstance(num, int):
            raise refuse(graph, call, "pools rows of the batch")
        if low or high:
            x = _pad(graph, x, axis, (low, high), len(dims), fill)
        span = (num - 1) * step + 1
        parts = [graph.slice(x, axis, start, start + span, step) for start in range(wide)]
        x = parts[0]
        for part in parts[1:]:
            x = graph.add(_POOLING[call.name], x, part)
    return x


def _get_least(name: str, dtype: str) -> float:
    """Return the number that changes no maximum, minimum or sum."""
    if name.endswith("_sum"):
        return 0
    sign = -1 if name.endswith("_max") else 1
    if dtype.startswith("float"):
        return sign * math.inf
    limits = np.iinfo(dtype)
    return limits.min if sign < 0 else limits.max


def _render_reduction(graph: GraphBuilder, call: Call) -> Tensor:
    (x,), axes, operator = call.inputs, list(call.attributes["axes"]), _REDUCTIONS[call.name]
    if call.name in ("reduce_and", "reduce_or") and call.dtype != "bool":
        raise refuse(graph, call, "combines the bits of integers")
    if not axes:
        return x
    if operator == "ReduceSum" or graph.opset >= _AXES_AS_INPUT_OPSET:
        return graph.add(operator, x, graph.integers(axes), keepdims=0)
    return graph.add(operator, x, axes=axes, keepdims=0)


def _render_cumulative(graph: GraphBuilder, call: Call) -> Tensor:
    """Render a cumulative operation by doubling: windows of 1, 2, 4, ... entries are combined."""
    (x,), axis, is_reverse = call.inputs, call.attributes["axis"], call.attributes["reverse"]
    operator, num = _CUMULATIVE[call.name], call.dims[axis]
    if not isinstance(num, int):
        raise refuse(graph, call, "goes over the rows of the batch")
    step = 1
    while step < num:
        head, tail = graph.slice(x, axis, 0, num - step), graph.slice(x, axis, step, num)
        both = graph.add(operator, head, tail)
        if is_reverse:
            x = graph.add("Concat", both, graph.slice(x, axis, num - step, num), axis=axis)
        else:
            x = graph.add("Concat", graph.slice(x, axis, 0, step), both, axis=axis)
        step *= 2
    return x


# --- indices ---


def _render_gather(graph: GraphBuilder, call: Call) -> Tensor:
    """Render a gather as one index of the operand for every entry of the result."""
    attributes, dims, (x, _) = call.attributes, call.dims, call.inputs
    rank, inside = len(dims), list[Tensor]()
    kept = [axis for axis in range(len(attributes["sizes"]))
            if axis not in (*attributes["collapsed"], *attributes["batch"][0])]  # fmt: skip
    places: list[Tensor] = []
    for axis in range(len(attributes["sizes"])):
        parts = _locate(graph, call, axis, inside)
        if axis in kept:
            along = attributes["offset"][kept.index(axis)]
            parts.append(_spread(graph, graph.count(dims[along]), [dims[along]], [along], rank))
        place = parts[0] if parts else graph.constant(np.zeros((1,) * rank, np.int64))
        for part in parts[1:]:
            place = graph.add("Add", place, part)
        places.append(graph.add("Unsqueeze", graph.expand(place, dims), graph.integers([rank])))
    if not places:
        return graph.reshape(x, dims)
    index = graph.add("Concat", *places, axis=rank)
    result = graph.add("GatherND", x, index, dtype=x.dtype)
    if attributes["fill"] is None:
        return result
    fill = graph.number(float(attributes["fill"]), x)
    for is_inside in inside:
        result = graph.add("Where", is_inside, result, fill, dtype=x.dtype)
    return result


def _locate(graph: GraphBuilder, call: Call, axis: int, inside: list[Tensor]) -> list[Tensor]:
    """Return where the parts of a gather start along an axis; whether inside is added to a list."""
    attributes, rank = call.attributes, len(call.dims)
    others = [i for i in range(rank) if i not in attributes["offset"]]
    of_operand, of_indices = attributes["batch"]
    indices, index_dims = graph.cast(call.inputs[1], "int64"), list(call.input_dims[1])
    parts: list[Tensor] = []
    if axis in attributes["starts"]:
        which = graph.constant(np.asarray(attributes["starts"].index(axis), np.int64))
        start = graph.add("Gather", indices, which, axis=len(index_dims) - 1)
        start = _spread(graph, start, index_dims[:-1], others, rank)
        room = graph.size(subtract(call.input_dims[0][axis], attributes["sizes"][axis]))
        zero = graph.number(0, start)
        if not rank:
            room = graph.reshape(room, [])
        for operator, bound in (("GreaterOrEqual", zero), ("LessOrEqual", room)):
            inside.append(graph.add(operator, start, bound, dtype="bool"))
        parts.append(graph.add("Min", graph.add("Max", start, zero), room))
    if axis in of_operand:
        along = of_indices[of_operand.index(axis)]
        dim = index_dims[along]
        parts.append(_spread(graph, graph.count(dim), [dim], [others[along]], rank))
    return parts


def _spread(
    graph: GraphBuilder, x: Tensor, dims: Sequence[Dim], axes: Sequence[int], rank: int
) -> Tensor:
    """Return a tensor whose axes are some of those of a result, all others of size 1."""
    sizes = dict(zip(axes, dims, strict=True))
    return graph.reshape(x, [sizes.get(axis, 1) for axis in range(rank)])


def _make_node(operator: str, dtype: str | None = None) -> Rendering:
    """Return the rendering by one operator, whose result has the type of the last input or another."""
    return lambda g, c: g.add(operator, *c.inputs, dtype=dtype or c.inputs[-1].dtype)


def _make_arg_reduction(operator: str) -> Rendering:
    return lambda g, c: g.add(
        operator, c.inputs[0], dtype="int64", axis=c.attributes["axis"], keepdims=0
    )


RENDERINGS: Mapping[str, Rendering] = {
    **{name: _make_node(operator) for name, operator in _ALIKE.items()},
    **{name: _make_node(operator, "bool") for name, operator in _COMPARISONS.items()},
    **dict.fromkeys(_LOGICAL, _render_logical),
    **dict.fromkeys(("div", "rem"), _render_quotient),
    **dict.fromkeys(_REDUCTIONS, _render_reduction),
    **dict.fromkeys(_CUMULATIVE, _render_cumulative),
    **dict.fromkeys(_POOLING, _render_pooling),
    "ne": lambda g, c: g.add("Not", g.add("Equal", *c.inputs, dtype="bool")),
    "is_finite": lambda g, c: g.add(
        "Less", g.add("Abs", c.inputs[0]), g.number(np.inf, c.inputs[0]), dtype="bool"
    ),
    "not": _render_not,
    "cbrt": lambda g, c: g.add(
        "Mul",
        g.add("Sign", c.inputs[0]),
        g.add("Pow", g.add("Abs", c.inputs[0]), g.number(1 / 3, c.inputs[0])),
    ),
    "exp2": lambda g, c: g.add("Pow", g.number(2, c.inputs[0]), c.inputs[0]),
    "expm1": _render_expm1,
    "log1p": _render_log1p,
    # 1 / (1 + exp(-x)): the operator Sigmoid is cut off at both ends in some runtimes.
    "logistic": lambda g, c: g.add(
        "Reciprocal",
        g.add("Add", g.add("Exp", g.add("Neg", c.inputs[0])), g.number(1, c.inputs[0])),
    ),
    "rsqrt": lambda g, c: g.add("Reciprocal", g.add("Sqrt", c.inputs[0])),
    "square": lambda g, c: g.add("Mul", c.inputs[0], c.inputs[0]),
    "pow": lambda g, c: g.add("Pow", c.inputs[0], g.cast(c.inputs[1], c.inputs[0].dtype)),
    "integer_pow": lambda g, c: (
        g.add("Mul", c.inputs[0], c.inputs[0])
        if c.attributes["y"] == 2
        else g.add("Pow", c.inputs[0], g.number(c.attributes["y"], c.inputs[0]))
    ),
    "atan2": _render_atan2,
    "clamp": lambda g, c: g.add("Min", g.add("Max", c.inputs[1], c.inputs[0]), c.inputs[2]),
    "cast": lambda g, c: c.inputs[0],  # every result is cast to its type
    "reshape": lambda g, c: g.reshape(c.inputs[0], c.dims),
    "broadcast": _render_broadcast,
    "transpose": lambda g, c: g.transpose(c.inputs[0], c.attributes["axes"]),
    "slice": _render_slice,
    "reverse": _render_reverse,
    "concatenate": lambda g, c: g.add("Concat", *c.inputs, axis=c.attributes["axis"]),
    "stack": lambda g, c: g.add(
        "Concat",
        *(g.add("Unsqueeze", x, g.integers([c.attributes["axis"]])) for x in c.inputs),
        axis=c.attributes["axis"],
    ),
    "tile": lambda g, c: g.add("Tile", c.inputs[0], g.integers(c.attributes["repeats"])),
    "pad": _render_pad,
    "iota": _render_iota,
    "dot": _render_dot,
    "conv": _render_conv,
    "argmax": _make_arg_reduction("ArgMax"),
    "argmin": _make_arg_reduction("ArgMin"),
    "cumsum": lambda g, c: g.add(
        "CumSum",
        c.inputs[0],
        g.constant(np.asarray(c.attributes["axis"], np.int64)),
        reverse=int(c.attributes["reverse"]),
    ),
    "sort": lambda g, c: g.add(
        "TopK",
        c.inputs[0],
        g.size(c.dims[c.attributes["axis"]]),
        num_outputs=2,
        axis=c.attributes["axis"],
        largest=0,
        sorted=1,
    ),
    "gather": _render_gather,
}
"""Rendering of every operation."""


def check_opset(opset: object) -> int:
    """Return a version of ONNX's operators to write: the lowest one for older ones, with a warning.

    Raises:
        ExportError: If it is none that can be written.
    """
    newest = onnx.defs.onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not 1 <= opset <= newest:
        raise ExportError(
            f"onnx={opset!r} must be a version of ONNX's operators from {OPSET} to {newest}, which "
            f"is the newest that onnx {onnx.__version__} knows."
        )
    if opset < OPSET:
        logger.warning(
            "onnx=%s: operators of version %s are written, the oldest that have all that is needed.",
            opset,
            OPSET,
        )
    return max(opset, OPSET)


def render_program(
    name: str,
    program: ExportedProgram,
    weights: Mapping[str, np.ndarray],
    batch: tuple[str, str, Sequence[Dim]],
    opset: int = OPSET,
) -> bytes:
    """Return a program as an ONNX model.

    Its inputs and outputs have the names of `policy.json`; `b` is the batch size.

    Args:
        name: Name of the program.
        program: Operations.
        weights: Weights by name.
        batch: Name, type and sizes of an input with an axis for the batch, which is one of the
            model's inputs if no other has such an axis.
        opset: Version of the operators.

    Raises:
        ExportError: If an operation has no counterpart, or the weights are too large.
    """
    num_bytes = sum(
        weights[key.partition("/")[2]].nbytes
        for key in program.input_names
        if key.startswith("weights/")
    )
    if num_bytes > MAX_BYTES:
        raise ExportError(
            f"The weights have {num_bytes} bytes, and an ONNX file has room for {MAX_BYTES}: export "
            "with formats=('numpy',)."
        )
    graph, inputs = GraphBuilder(opset), list[onnx.ValueInfoProto]()
    tensors: dict[int, Tensor] = {}
    for key, number in program.inputs:
        dtype, dims = program.values[number]
        if key.startswith("weights/"):
            tensors[number] = graph.add_initializer(key, weights[key.partition("/")[2]])
        else:
            tensors[number] = Tensor(key, dtype)
            inputs.append(_declare(key, dtype, dims))
    if not inputs:
        inputs.append(_declare(*batch))
    graph.set_batch(Tensor(inputs[0].name, ""))
    for number, array in program.constants:
        tensors[number] = graph.constant(array)
    _render_operations(graph, program, tensors)
    for key, number in program.outputs:
        graph.rename(tensors[number], key)
    outputs = [_declare(key, *program.values[number]) for key, number in program.outputs]
    return _serialize(name, graph, inputs, outputs)


def _render_operations(
    graph: GraphBuilder, program: ExportedProgram, tensors: dict[int, Tensor]
) -> None:
    for operation in program.operations:
        dtype, dims = program.values[operation.output]
        call = Call(
            name=operation.name,
            inputs=[tensors[number] for number in operation.inputs],
            input_dims=[program.values[number][1] for number in operation.inputs],
            attributes=operation.attributes,
            dtype=dtype,
            dims=dims,
        )
        tensors[operation.output] = render_operation(graph, call)


def _declare(name: str, dtype: str, dims: Sequence[Dim]) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, [_name_dim(dim) for dim in dims])


def _name_dim(dim: Dim) -> int | str:
    if isinstance(dim, int):
        return dim
    return BATCH if dim == [1, 0] else f"{dim[0]}*{BATCH}+{dim[1]}"


def _serialize(
    name: str,
    graph: GraphBuilder,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> bytes:
    read = {key for node in graph.nodes for key in node.input}
    used = [constant for constant in graph.initializers if constant.name in read]
    opset = helper.make_opsetid("", graph.opset)
    model = helper.make_model(
        helper.make_graph(graph.nodes, name, inputs, outputs, used),
        producer_name="jaxrl",
        producer_version=get_versions()["jaxrl"],
        opset_imports=[opset],
        ir_version=helper.find_min_ir_version_for([opset]),
    )
    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise ExportError(f"The program '{name}' is not valid ONNX: {reason[:300]}.") from error
    return model.SerializeToString(deterministic=True)
