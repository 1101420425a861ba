"""Operations of an exported program, as plain data: values, operations on them, inputs, outputs."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

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
