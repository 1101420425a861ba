"""Exported programs: operations as plain data, and the table that JAX's equations become them by."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsInt, TypeAlias, cast

import numpy as np
from jax import core as jax_core
from jax.extend import core as jex_core
from jax.lax import GatherScatterMode

from jaxrl.errors import ExportError
from jaxrl.export.numpy_program import evaluate

Dim: TypeAlias = "int | list[int]"
"""Size of an axis: a number, or `[k, c]` for k times the batch size plus c."""

DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
"""Types of values, which NumPy has as well."""

_MAX_FOLDED = 2**16
"""Largest number of entries of a constant that is computed while tracing."""
_LINEAR = re.compile(r"(?:(\d+)\*)?b(?: ([+-]) (\d+))?")


@dataclasses.dataclass(frozen=True)
class Value:
    """Result of an operation, or an input, by its number."""

    number: int


Operand: TypeAlias = "Value | np.ndarray"
"""Argument of an operation; an array is a constant."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation: its name, arguments, attributes, and the number of its result."""

    name: str
    inputs: tuple[int, ...]
    attributes: dict[str, Any]
    output: int


@dataclasses.dataclass(frozen=True)
class ExportedProgram:
    """Program as data.

    Attributes:
        values: Type and shape of every value, by number.
        inputs: Name and number of each input.
        constants: Number and array of each constant.
        operations: Operations in order.
        outputs: Name and number of each output.
    """

    values: list[tuple[str, list[Dim]]]
    inputs: list[tuple[str, int]]
    constants: list[tuple[int, np.ndarray]]
    operations: list[Operation]
    outputs: list[tuple[str, int]]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that are used."""
        return [name for name, _ in self.inputs]


def encode_dim(size: object) -> Dim:
    """Encode the size of an axis.

    Raises:
        ExportError: If it is not linear in the batch size.
    """
    if isinstance(size, int | np.integer):
        return int(size)
    if isinstance(size, list):
        return size
    found = _LINEAR.fullmatch(str(size))
    if found is None:
        raise ExportError(
            f"An axis has the size {size} for a batch of b observations; exported programs have "
            "sizes of the form k*b + c only."
        )
    factor, sign, offset = found.groups()
    return [int(factor or 1), int(f"{sign}{offset}") if offset else 0]


class ProgramBuilder:
    """Operations of a program while it is traced."""

    def __init__(self) -> None:
        self._values: list[tuple[str, list[Dim]]] = []
        self._inputs: list[tuple[str, int]] = []
        self._constants: list[tuple[int, np.ndarray]] = []
        self._operations: list[Operation] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        """Numbers of the constants, by their contents."""

    def _declare(self, dtype: object, shape: Iterable[object]) -> Value:
        if str(dtype) not in DTYPES:
            raise ExportError(
                f"A value has the type {dtype}, which NumPy does not have: export needs a network "
                "that computes in float32."
            )
        self._values.append((str(dtype), [encode_dim(size) for size in shape]))
        return Value(len(self._values) - 1)

    def add_input(self, name: str, dtype: object, shape: Iterable[object]) -> Value:
        """Add an input."""
        value = self._declare(dtype, shape)
        self._inputs.append((name, value.number))
        return value

    def get_dtype(self, operand: Operand) -> str:
        """Return the type of an operand."""
        if isinstance(operand, np.ndarray):
            return str(operand.dtype)
        return self._values[operand.number][0]

    def add(
        self,
        name: str,
        inputs: Sequence[Operand],
        dtype: object,
        shape: Iterable[object],
        **attributes: object,
    ) -> Operand:
        """Add an operation and return its result, computed at once if all is constant.

        Args:
            name: Name of the operation.
            inputs: Its arguments.
            dtype: Type of its result.
            shape: Shape of its result.
            **attributes: Its attributes, plain data.
        """
        arrays = [operand for operand in inputs if isinstance(operand, np.ndarray)]
        sizes = [encode_dim(size) for size in shape]
        fixed = tuple(size for size in sizes if isinstance(size, int))
        is_constant = len(arrays) == len(inputs) and len(fixed) == len(sizes)
        if is_constant and str(dtype) in DTYPES and math.prod(fixed) <= _MAX_FOLDED:
            return evaluate(name, attributes, arrays, str(dtype), fixed)
        numbers = tuple(self._get_number(operand) for operand in inputs)
        value = self._declare(dtype, sizes)
        self._operations.append(Operation(name, numbers, attributes, value.number))
        return value

    def _get_number(self, operand: Operand) -> int:
        if isinstance(operand, Value):
            return operand.number
        content = (str(operand.dtype), operand.shape, operand.tobytes())
        if content not in self._numbers:
            value = self._declare(operand.dtype, operand.shape)
            self._constants.append((value.number, operand))
            self._numbers[content] = value.number
        return self._numbers[content]

    def finish(self, outputs: Sequence[tuple[str, Operand]]) -> ExportedProgram:
        """Return the program without the operations and inputs that no output depends on.

        Args:
            outputs: Name and operand of each output.
        """
        named = [(name, self._get_number(operand)) for name, operand in outputs]
        needed = {number for _, number in named}
        kept: list[Operation] = []
        for operation in reversed(self._operations):
            if operation.output in needed:
                needed.update(operation.inputs)
                kept.append(operation)
        order = {old: new for new, old in enumerate(sorted(needed))}
        return ExportedProgram(
            values=[self._values[old] for old in sorted(needed)],
            inputs=[(name, order[i]) for name, i in self._inputs if i in needed],
            constants=[(order[i], array) for i, array in self._constants if i in needed],
            operations=[
                Operation(o.name, tuple(order[i] for i in o.inputs), o.attributes, order[o.output])
                for o in reversed(kept)
            ],
            outputs=[(name, order[i]) for name, i in named],
        )


Equation: TypeAlias = jex_core.JaxprEqn

_ELEMENTWISE = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh"),
    *("erf", "exp", "exp2", "expm1", "floor", "is_finite", "log", "log1p", "logistic", "neg"),
    *("not", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
    *("add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2"),
    *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "clamp"),
)
_ALIASES = ("copy", "copy_p", "stop_gradient", "optimization_barrier", "sharding_constraint")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
_CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin")
_POOLING = ("reduce_window_max", "reduce_window_min", "reduce_window_sum")


def get_aval(variable: jex_core.Var | jex_core.Literal) -> jax_core.ShapedArray:
    """Return the type and shape of a variable."""
    return cast(jax_core.ShapedArray, variable.aval)


def is_known(name: str) -> bool:
    """Return whether exported programs have an operation of JAX."""
    return name in _SINGLE or name in _OTHERS


def lower(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    """Add an equation's operations and return its results.

    Raises:
        ExportError: If it has a form that exported programs do not have.
    """
    name = equation.primitive.name
    for is_refused, what in _REFUSED_FORMS.get(name, ()):
        if is_refused(equation):
            raise _refuse_form(equation, what)
    if name in _OTHERS:
        return _OTHERS[name](builder, equation, operands)
    attributes = _SINGLE[name](equation.params)
    return _add(builder, equation, operands[: _NUM_OPERANDS.get(name)], name, **attributes)


def _refuse_form(equation: Equation, what: str) -> ExportError:
    return ExportError(
        f"The operation '{equation.primitive.name}' {what}, which exported programs do not have."
    )


def _add(
    builder: ProgramBuilder,
    equation: Equation,
    operands: Sequence[Operand],
    name: str,
    **attributes: object,
) -> list[Operand]:
    """Add one operation with the type and shape of the equation's only result."""
    aval = get_aval(equation.outvars[0])
    return [builder.add(_NAMES.get(name, name), operands, aval.dtype, aval.shape, **attributes)]


# --- equations that are one operation ---


def _to_plain(value: object) -> Any:
    """Return a number, or nested sequences of numbers, as plain data."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Sequence):
        return [_to_plain(part) for part in value]
    return int(cast(SupportsInt, value))


def _read(**names: str) -> Callable[[Mapping[str, Any]], dict[str, object]]:
    """Return the function that reads attributes from an equation's parameters of these names."""
    return lambda params: {name: _to_plain(params[source]) for name, source in names.items()}


def _read_layout(params: Mapping[str, Any]) -> dict[str, object]:
    dims = params["dimension_numbers"]
    return {"layout": _to_plain([dims.lhs_spec, dims.rhs_spec, dims.out_spec])}


_read_conv = _read(strides="window_strides", padding="padding", dilation="rhs_dilation")
_SINGLE: Mapping[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
    **dict.fromkeys((*_ELEMENTWISE, "reshape", "squeeze", "expand_dims"), _read()),
    **dict.fromkeys(_REDUCTIONS, _read(axes="axes")),
    **dict.fromkeys(_CUMULATIVE, _read(axis="axis", reverse="reverse")),
    **dict.fromkeys(
        _POOLING, _read(window="window_dimensions", strides="window_strides", padding="padding")
    ),
    **dict.fromkeys(("argmax", "argmin"), lambda params: {"axis": int(params["axes"][0])}),
    "integer_pow": _read(y="y"),
    "broadcast_in_dim": _read(dims="broadcast_dimensions"),
    "transpose": _read(axes="permutation"),
    "rev": _read(axes="dimensions"),
    "concatenate": _read(axis="dimension"),
    "stack": _read(axis="axis"),
    "tile": _read(repeats="reps"),
    "pad": _read(widths="padding_config"),
    "iota": _read(axis="dimension"),
    "sort": _read(axis="dimension"),
    "dot_general": lambda params: dict(
        zip(("contract", "batch"), _to_plain(params["dimension_numbers"]), strict=True)
    ),
    "conv_general_dilated": lambda params: {**_read_conv(params), **_read_layout(params)},
}
"""Attributes of the operation that an equation is, from the equation's parameters."""
_NAMES = {
    "squeeze": "reshape",
    "expand_dims": "reshape",
    "broadcast_in_dim": "broadcast",
    "rev": "reverse",
    "dot_general": "dot",
    "conv_general_dilated": "conv",
    "convert_element_type": "cast",
    "select_n": "where",
}
"""Operations whose names differ from JAX's."""
_NUM_OPERANDS = {"reshape": 1, "squeeze": 1, "expand_dims": 1, "broadcast_in_dim": 1, "iota": 0}
"""Numbers of the operands that are not sizes of the result."""

_DILATED = (
    (lambda e: max(*e.params["base_dilation"], *e.params["window_dilation"]) > 1, "is dilated"),
)
_REFUSED_FORMS: Mapping[str, Sequence[tuple[Callable[[Equation], bool], str]]] = {
    "round": [(lambda e: int(e.params["rounding_method"]) != 1, "rounds halves away from zero")],
    "reshape": [(lambda e: e.params.get("dimensions") is not None, "transposes")],
    "pad": [(lambda e: any(min(w[:2]) < 0 for w in e.params["padding_config"]), "removes rows")],
    "sort": [(lambda e: len(e.invars) != 1, "sorts by a key")],
    "select_n": [
        (
            lambda e: len(e.invars) != 3 or str(get_aval(e.invars[0]).dtype) != "bool",
            "selects by a number",
        )
    ],
    "conv_general_dilated": [
        (
            lambda e: (
                e.params["batch_group_count"] != 1
                or e.params["feature_group_count"] != 1
                or max(e.params["lhs_dilation"]) > 1
            ),
            "has groups or a dilated input",
        ),
        (lambda e: any(min(pair) < 0 for pair in e.params["padding"]), "has negative padding"),
    ],
    **dict.fromkeys(_POOLING, _DILATED),
}
"""Forms of operations that exported programs do not have, with the end of the sentence on them."""


# --- other equations ---


def _add_cast(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    aval = get_aval(equation.outvars[0])
    if builder.get_dtype(operands[0]) == str(aval.dtype):
        return list(operands)
    return _add(builder, equation, operands, "cast")


def _add_where(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    which, otherwise, chosen = operands
    return _add(builder, equation, [which, chosen, otherwise], "where")


def _slice(
    builder: ProgramBuilder,
    operand: Operand,
    dtype: object,
    starts: Sequence[Any],
    limits: Sequence[Any],
    strides: Sequence[int] | None = None,
) -> Operand:
    strides = strides or [1] * len(starts)
    shape = [
        (limit - start + stride - 1) // stride if stride > 1 else limit - start
        for start, limit, stride in zip(starts, limits, strides, strict=True)
    ]
    return builder.add(
        "slice",
        [operand],
        dtype,
        shape,
        starts=[encode_dim(start) for start in starts],
        limits=[encode_dim(limit) for limit in limits],
        strides=_to_plain(strides),
    )


def _add_slice(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    aval = get_aval(equation.outvars[0])
    p = equation.params
    starts, limits, strides = p["start_indices"], p["limit_indices"], p["strides"]
    return [_slice(builder, operands[0], aval.dtype, starts, limits, strides)]


def _add_dynamic_slice(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    operand, *starts = operands
    if not all(isinstance(start, np.ndarray) for start in starts):
        raise _refuse_form(equation, "starts at a computed index")
    source = get_aval(equation.invars[0])
    aval = get_aval(equation.outvars[0])
    first = [
        min(max(int(np.asarray(start)), 0), size - wide) if isinstance(size - wide, int) else 0
        for start, size, wide in zip(starts, source.shape, aval.shape, strict=True)
    ]
    limits = [start + size for start, size in zip(first, aval.shape, strict=True)]
    return [_slice(builder, operand, aval.dtype, first, limits)]


def _add_split(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    source = get_aval(equation.invars[0])
    axis, results, start = int(equation.params["axis"]), [], 0
    for size in _to_plain(equation.params["sizes"]):
        starts = [start if i == axis else 0 for i in range(len(source.shape))]
        limits = [start + size if i == axis else wide for i, wide in enumerate(source.shape)]
        results.append(_slice(builder, operands[0], source.dtype, starts, limits))
        start += size
    return results


def _add_gather(
    builder: ProgramBuilder, equation: Equation, operands: Sequence[Operand]
) -> list[Operand]:
    p = equation.params
    dims, mode = p["dimension_numbers"], p["mode"]
    operand, indices = operands
    if isinstance(indices, np.ndarray) and indices.ndim == 1 and not dims.operand_batching_dims:
        return _gather_at_constant(builder, equation, operand, indices)
    is_filled = mode == GatherScatterMode.FILL_OR_DROP
    fill = p["fill_value"]
    if is_filled and fill is None:
        kind = np.dtype(builder.get_dtype(operand)).kind
        fill = {"f": float("nan"), "b": True}.get(kind)
        if fill is None:
            limits = np.iinfo(builder.get_dtype(operand))
            fill = int(limits.min if kind == "i" else limits.max)
    return _add(
        builder,
        equation,
        operands,
        "gather",
        offset=_to_plain(dims.offset_dims),
        collapsed=_to_plain(dims.collapsed_slice_dims),
        starts=_to_plain(dims.start_index_map),
        batch=[_to_plain(dims.operand_batching_dims), _to_plain(dims.start_indices_batching_dims)],
        sizes=[encode_dim(size) for size in p["slice_sizes"]],
        fill=None if not is_filled else str(float(fill)),
    )


def _gather_at_constant(
    builder: ProgramBuilder, equation: Equation, operand: Operand, indices: np.ndarray
) -> list[Operand]:
    """Add the slice that a gather at one constant position is."""
    p = equation.params
    source = get_aval(equation.invars[0])
    aval = get_aval(equation.outvars[0])
    starts: list[int] = [0] * len(source.shape)
    for axis, index in zip(p["dimension_numbers"].start_index_map, indices.tolist(), strict=True):
        room = source.shape[axis] - p["slice_sizes"][axis]
        if not isinstance(room, int):
            raise _refuse_form(equation, "selects rows of the batch")
        if not 0 <= index <= room and p["mode"] == GatherScatterMode.FILL_OR_DROP:
            raise _refuse_form(equation, "reads beyond the end of an array")
        starts[axis] = min(max(int(index), 0), room)
    limits = [start + size for start, size in zip(starts, p["slice_sizes"], strict=True)]
    part = _slice(builder, operand, aval.dtype, starts, limits)
    return _add(builder, equation, [part], "reshape")


_OTHERS: Mapping[str, Callable[[ProgramBuilder, Equation, Sequence[Operand]], list[Operand]]] = {
    **dict.fromkeys(_ALIASES, lambda builder, equation, operands: list(operands)),
    "convert_element_type": _add_cast,
    "select_n": _add_where,
    "slice": _add_slice,
    "dynamic_slice": _add_dynamic_slice,
    "split": _add_split,
    "gather": _add_gather,
}
"""Functions that add the operations of an equation and return its results."""
