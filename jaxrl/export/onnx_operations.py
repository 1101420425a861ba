"""Table of renderings: operations of an exported program as nodes of ONNX."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl.errors import ExportError
from jaxrl.export.onnx_elementwise import ELEMENTWISE
from jaxrl.export.onnx_graph import (
    Call,
    GraphBuilder,
    Rendering,
    Tensor,
    multiply,
    refuse,
    subtract,
)
from jaxrl.export.program import Dim

_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd", "reduce_and": "ReduceMin", "reduce_or": "ReduceMax",
}  # fmt: skip
_CUMULATIVE = {"cumprod": "Mul", "cummax": "Max", "cummin": "Min"}
_POOLING = {"reduce_window_max": "Max", "reduce_window_min": "Min", "reduce_window_sum": "Add"}
_MOVING = ("reshape", "broadcast", "transpose", "slice", "reverse", "concatenate", "stack", "cast")
"""Operations that only move numbers, of whatever type."""
_OF_TRUTH = ("not", "and", "or", "xor")
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
    num_kept = len(call.inputs) if _keeps_types(call) else int(call.name == "where")
    widened = [graph.widen(tensor) for tensor in call.inputs[num_kept:]]
    call = dataclasses.replace(call, inputs=[*call.inputs[:num_kept], *widened])
    return graph.cast(RENDERINGS[call.name](graph, call), call.dtype)


def _keeps_types(call: Call) -> bool:
    return call.name in _MOVING or (call.name in _OF_TRUTH and call.dtype == "bool")


# --- shapes ---


def _render_cast(graph: GraphBuilder, call: Call) -> Tensor:
    return call.inputs[0]


def _render_reshape(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.reshape(call.inputs[0], call.dims)


def _render_broadcast(graph: GraphBuilder, call: Call) -> Tensor:
    kept = dict(zip(call.attributes["dims"], call.input_dims[0], strict=True))
    column = [kept.get(axis, 1) for axis in range(len(call.dims))]
    (x,) = call.inputs
    x = x if column == list(call.input_dims[0]) else graph.reshape(x, column)
    return x if column == list(call.dims) else graph.expand(x, call.dims)


def _render_transpose(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.transpose(call.inputs[0], call.attributes["axes"])


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


def _render_concatenate(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add("Concat", *call.inputs, axis=call.attributes["axis"])


def _render_stack(graph: GraphBuilder, call: Call) -> Tensor:
    axis = call.attributes["axis"]
    parts = [graph.add("Unsqueeze", x, graph.integers([axis])) for x in call.inputs]
    return graph.add("Concat", *parts, axis=axis)


def _render_tile(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add("Tile", call.inputs[0], graph.integers(call.attributes["repeats"]))


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
    x, y = (graph.cast(tensor, _get_product_type(call)) for tensor in call.inputs)
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


def _get_product_type(call: Call) -> str:
    kinds = [tensor.dtype for tensor in call.inputs]
    return str(np.result_type(*kinds))


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


def _render_arg_reduction(graph: GraphBuilder, call: Call) -> Tensor:
    operator = "ArgMax" if call.name == "argmax" else "ArgMin"
    axis = call.attributes["axis"]
    return graph.add(operator, call.inputs[0], dtype="int64", axis=axis, keepdims=0)


def _render_cumsum(graph: GraphBuilder, call: Call) -> Tensor:
    axis = graph.constant(np.asarray(call.attributes["axis"], np.int64))
    return graph.add("CumSum", call.inputs[0], axis, reverse=int(call.attributes["reverse"]))


def _render_cumulative(graph: GraphBuilder, call: Call) -> Tensor:
    """Render what is cumulative by doubling: windows of 1, 2, 4, ... entries are combined."""
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


def _render_sort(graph: GraphBuilder, call: Call) -> Tensor:
    axis = call.attributes["axis"]
    num = graph.size(call.dims[axis])
    return graph.add("TopK", call.inputs[0], num, num_outputs=2, axis=axis, largest=0, sorted=1)


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


RENDERINGS: Mapping[str, Rendering] = {
    **ELEMENTWISE,
    **dict.fromkeys(_REDUCTIONS, _render_reduction),
    **dict.fromkeys(_CUMULATIVE, _render_cumulative),
    **dict.fromkeys(_POOLING, _render_pooling),
    **dict.fromkeys(("argmax", "argmin"), _render_arg_reduction),
    "cast": _render_cast, "reshape": _render_reshape, "broadcast": _render_broadcast,
    "transpose": _render_transpose, "slice": _render_slice, "reverse": _render_reverse,
    "concatenate": _render_concatenate, "stack": _render_stack, "tile": _render_tile,
    "pad": _render_pad, "iota": _render_iota, "dot": _render_dot, "conv": _render_conv,
    "cumsum": _render_cumsum, "sort": _render_sort, "gather": _render_gather,
}  # fmt: skip
"""Rendering of every operation."""
