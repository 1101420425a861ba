"""Graphs of ONNX while they are built: nodes, constants, types, and sizes that follow the batch."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrl.errors import ExportError
from jaxrl.export.program import Dim

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
