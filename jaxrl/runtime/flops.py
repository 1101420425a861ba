"""Floating-point operations of a traced program, including trip counts of loops.

XLA's own cost analysis counts the body of a loop once; here a scan's body counts as often as it
runs. Loops whose trip count is only known at run time count once, so the figure for `CompiledRun.run_batches`
is that of one train batch.
"""

import math
from typing import cast

from jax import core as jax_core
from jax.extend import core as jex_core


def count_flops(jaxpr: jex_core.ClosedJaxpr) -> float:
    """Count the operations of one call of a traced program, over all of its devices.

    A multiply-add of a matrix product counts as two, an element of any other result as one.
    """
    return _count_jaxpr(jaxpr.jaxpr)


def _count_jaxpr(jaxpr: jex_core.Jaxpr) -> float:
    return sum(_count_equation(eqn) for eqn in jaxpr.eqns)


def _count_equation(eqn: jex_core.JaxprEqn) -> float:
    name = eqn.primitive.name
    if name == "dot_general":
        (contracting, _), _ = eqn.params["dimension_numbers"]
        shape = _get_shape(eqn.invars[0])
        return 2.0 * _size(eqn.outvars[0]) * math.prod(shape[axis] for axis in contracting)
    if name == "conv_general_dilated":
        kernel = _get_shape(eqn.invars[1])
        out_axis = eqn.params["dimension_numbers"].rhs_spec[0]
        return 2.0 * _size(eqn.outvars[0]) * math.prod(kernel) / kernel[out_axis]
    inner = [_count_jaxpr(sub) for sub in _sub_jaxprs(eqn)]
    if name == "shard_map":  # its shapes are one device's
        return eqn.params["mesh"].size * sum(inner)
    if name == "scan":
        return eqn.params["length"] * sum(inner)
    if name == "cond":
        return max(inner)
    if inner:
        return sum(inner)
    return float(_size(eqn.outvars[0])) if name in _ELEMENTWISE else 0.0


def _sub_jaxprs(eqn: jex_core.JaxprEqn) -> list[jex_core.Jaxpr]:
    found: list[jex_core.Jaxpr] = []
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, jex_core.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, jex_core.Jaxpr):
                found.append(item)
    return found


def _size(var: jex_core.Var) -> int:
    return math.prod(_get_shape(var))


def _get_shape(var: jex_core.Var | jex_core.Literal) -> tuple[int, ...]:
    return cast(jax_core.ShapedArray, var.aval).shape


_ELEMENTWISE = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "exp",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "logistic",
        "sqrt",
        "rsqrt",
        "pow",
        "integer_pow",
        "sin",
        "cos",
        "tan",
        "erf",
        "abs",
        "neg",
        "sign",
        "floor",
        "clamp",
        "select_n",
        "reduce_sum",
        "reduce_max",
        "reduce_min",
        "cumsum",
        "square",
        "atan2",
        "rem",
        "add_any",
    ]
)
