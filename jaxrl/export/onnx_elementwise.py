"""Renderings of elementwise operations as nodes of ONNX."""

from collections.abc import Mapping

import numpy as np

from jaxrl.errors import ExportError
from jaxrl.export.onnx_graph import Call, GraphBuilder, Rendering, Tensor

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


def _render_alike(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add(_ALIKE[call.name], *call.inputs, dtype=call.inputs[-1].dtype)


def _render_comparison(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add(_COMPARISONS[call.name], *call.inputs, dtype="bool")


def _render_different(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add("Not", graph.add("Equal", *call.inputs, dtype="bool"))


def _render_finite(graph: GraphBuilder, call: Call) -> Tensor:
    (x,) = call.inputs
    return graph.add("Less", graph.add("Abs", x), graph.number(np.inf, x), dtype="bool")


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


def _render_cube_root(graph: GraphBuilder, call: Call) -> Tensor:
    (x,) = call.inputs
    root = graph.add("Pow", graph.add("Abs", x), graph.number(1 / 3, x))
    return graph.add("Mul", graph.add("Sign", x), root)


def _render_exp2(graph: GraphBuilder, call: Call) -> Tensor:
    (x,) = call.inputs
    return graph.add("Pow", graph.number(2, x), x)


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


def _render_logistic(graph: GraphBuilder, call: Call) -> Tensor:
    """Render 1 / (1 + exp(-x)); the operator Sigmoid is cut off at both ends in some runtimes."""
    (x,) = call.inputs
    power = graph.add("Exp", graph.add("Neg", x))
    return graph.add("Reciprocal", graph.add("Add", power, graph.number(1, x)))


def _render_rsqrt(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add("Reciprocal", graph.add("Sqrt", call.inputs[0]))


def _render_square(graph: GraphBuilder, call: Call) -> Tensor:
    return graph.add("Mul", call.inputs[0], call.inputs[0])


def _render_quotient(graph: GraphBuilder, call: Call) -> Tensor:
    """Render a quotient or remainder; integers are rounded to 0, and are 0 where the divisor is."""
    x, y = call.inputs
    if x.dtype.startswith("float"):
        return _divide(graph, call.name, x, y)
    zero = graph.number(0, y)
    is_zero = graph.add("Equal", y, zero, dtype="bool")
    divisor = graph.add("Where", is_zero, graph.number(1, y), y, dtype=y.dtype)
    result = _divide(graph, call.name, x, divisor)
    return graph.add("Where", is_zero, zero, result, dtype=x.dtype)


def _divide(graph: GraphBuilder, name: str, x: Tensor, y: Tensor) -> Tensor:
    return graph.add("Div", x, y) if name == "div" else graph.add("Mod", x, y, fmod=1)


def _render_power(graph: GraphBuilder, call: Call) -> Tensor:
    x, y = call.inputs
    return graph.add("Pow", x, graph.cast(y, x.dtype))


def _render_integer_power(graph: GraphBuilder, call: Call) -> Tensor:
    (x,) = call.inputs
    if call.attributes["y"] == 2:
        return graph.add("Mul", x, x)
    return graph.add("Pow", x, graph.number(call.attributes["y"], x))


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


def _render_clamp(graph: GraphBuilder, call: Call) -> Tensor:
    low, x, high = call.inputs
    return graph.add("Min", graph.add("Max", x, low), high)


ELEMENTWISE: Mapping[str, Rendering] = {
    **dict.fromkeys(_ALIKE, _render_alike),
    **dict.fromkeys(_COMPARISONS, _render_comparison),
    **dict.fromkeys(_LOGICAL, _render_logical),
    **dict.fromkeys(("div", "rem"), _render_quotient),
    "ne": _render_different, "is_finite": _render_finite, "not": _render_not,
    "cbrt": _render_cube_root, "exp2": _render_exp2, "expm1": _render_expm1,
    "log1p": _render_log1p, "logistic": _render_logistic, "rsqrt": _render_rsqrt,
    "square": _render_square, "pow": _render_power, "integer_pow": _render_integer_power,
    "atan2": _render_atan2, "clamp": _render_clamp,
}  # fmt: skip
"""Rendering of every elementwise operation."""
