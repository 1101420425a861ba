"""Exported programs as ONNX: one graph for every batch size, with the weights inside."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import checker, helper

from jaxrl.errors import ExportError
from jaxrl.export.onnx_graph import GraphBuilder, Tensor
from jaxrl.export.onnx_operations import Call, render_operation
from jaxrl.export.program import Dim, ExportedProgram
from jaxrl.runtime.versions import get_versions

logger = logging.getLogger("jaxrl")

OPSET = 17
"""Version of the operators by default, and the lowest one."""
MAX_BYTES = 2**31 - 2**20
"""Size of the weights that a file, which is one message of less than 2 GiB, has room for."""
BATCH = "b"


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
    num_bytes = sum(weights[key].nbytes for key in _get_weights(program))
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


def _get_weights(program: ExportedProgram) -> list[str]:
    return [key.partition("/")[2] for key in program.input_names if key.startswith("weights/")]


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
