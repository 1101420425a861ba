"""Exported policies as ONNX files that onnxruntime runs; neither JAX nor onnx is needed."""

import copy
import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.export import numpy_program as npp
from jaxrl.export.loading import load_policy

RUNTIME = "onnxruntime"
_TYPES = {"float": "float32", "double": "float64"}
"""Types of onnxruntime that NumPy names differently."""


def has_runtime() -> bool:
    """Return whether onnxruntime is installed."""
    return importlib.util.find_spec(RUNTIME) is not None


class OnnxProgram:
    """Program of an export that onnxruntime runs, with the interface of `numpy_program.Program`.

    Args:
        name: Name of the program, for error messages.
        content: Contents of the ONNX file.

    Raises:
        PolicyFileError: If it is damaged.
    """

    def __init__(self, name: str, content: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, and not printed as well
        self._name = name
        with npp.explaining(f"{name}.onnx cannot be run by onnxruntime"):
            self._session = onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
            inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
            self._specs = {node.name: _read_spec(node) for node in (*inputs, *outputs)}
            self.input_names = [node.name for node in inputs]
            self.output_names = [node.name for node in outputs]
        self._weights: Mapping[str, np.ndarray] | None = None

    def get_specs(self) -> dict[str, npp.Spec]:
        """Return the type and shape of every input and output, by name."""
        return self._specs

    def prepare(self, weights: Mapping[str, np.ndarray]) -> list[Any]:
        """Return nothing: the weights are inside the file.

        Raises:
            PolicyInputError: If they are others than before.
        """
        if self._weights is None:
            self._weights = dict(weights)
        for name, array in weights.items():
            if not np.array_equal(array, self._weights[name], equal_nan=array.dtype.kind == "f"):
                raise npp.PolicyInputError(
                    f"weights[{name!r}] cannot be replaced, because the weights of an ONNX file are "
                    "part of it: export the policy again."
                )
        return []

    def run(
        self, prepared: list[Any], batch: int, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Run the program; see `numpy_program.Program.run`."""
        del prepared, batch
        feed = {name: inputs[name] for name in self.input_names}
        results: Sequence[Any] = self._session.run(self.output_names, feed)
        return dict(zip(self.output_names, results, strict=True))

    def prune(self, outputs: Collection[str]) -> "OnnxProgram":
        """Return the program that computes only some of the outputs."""
        pruned = copy.copy(self)
        pruned.output_names = [name for name in self.output_names if name in outputs]
        return pruned

    def check_run(self, prepared: list[Any]) -> None:
        """Run the program on zeros, and check that every output is as declared.

        Raises:
            PolicyFileError: If one is not.
        """
        zeros = {
            name: np.zeros([npp.get_size(dim, 2) for dim in spec.dims], spec.dtype)
            for name, spec in self._specs.items()
        }
        with npp.explaining(f"{self._name}.onnx cannot be run by onnxruntime"):
            for name, array in self.run(prepared, 2, zeros).items():
                if (array.dtype, array.shape) != (zeros[name].dtype, zeros[name].shape):
                    raise ValueError(f"its output {name} does not have its declared type and shape")


def _read_spec(node: Any) -> npp.Spec:
    """Return the type and sizes of an input or output, of which only the first may be the batch."""
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    dims: list[npp.Dim] = [[1, 0] if dim == "b" else int(dim) for dim in node.shape]
    dtype = np.dtype(_TYPES.get(kind, kind))
    return npp.Spec(dtype, tuple(npp.get_size(dim, 1) for dim in dims), dims)


def load_onnx(
    folder: str | os.PathLike[str], *, explore: bool = False, seed: int | None = None
) -> npp.NumpyPolicy:
    """Load the ONNX files of an export as a policy with the methods of `NumpyPolicy`.

    Its weights cannot be replaced.

    Args:
        folder: Folder of the export.
        explore: Whether to sample actions.
        seed: Seed of the sampled actions.

    Raises:
        PolicyFileError: If the export is damaged or has no ONNX, or onnxruntime is not installed.
    """
    if not has_runtime():
        raise npp.PolicyFileError(f"ONNX files are run by {RUNTIME}: pip install {RUNTIME}.")

    def make_program(name: str, manifest: dict[str, Any], content: bytes) -> Any:
        program: Any = OnnxProgram(name, content)
        with npp.explaining(f"{name}.onnx does not fit {npp.MANIFEST}"):
            npp.check_signature(name, program, manifest["signature"])
        return program

    return load_policy(folder, "onnx", make_program, explore=explore, seed=seed)
