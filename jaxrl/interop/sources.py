"""Reading of weights: files without code in them, and state dicts of the caller's."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from jaxrl.errors import DataError, ModuleError
from jaxrl.offline.formats.hdf5 import open_hdf5, read_node
from jaxrl.offline.part_files import NPZ_ERRORS

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, object]
"""A file (`.npz`, `.safetensors`, `.h5`), or arrays and tensors by name."""
Arrays: TypeAlias = dict[str, np.ndarray]

_MAX_BYTES = 2**34
"""Limit of the arrays of a file of HDF5, whose compression may declare any size."""
_PICKLES = (".zip", ".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".msgpack")
_CONVERSION = (
    "state = {name: tensor.numpy() for name, tensor in model.policy.state_dict().items()}; "
    "numpy.savez('policy.npz', **state)"
)


def read_arrays(source: Source) -> Arrays:
    """Read the arrays of a file or state dict, as float32 by name.

    Nothing in a file is executed: pickles, and formats that contain them, are refused.

    Args:
        source: Path of a `.npz`, `.safetensors` or `.h5` file, or a state dict with NumPy arrays or
            tensors of torch. One that is nested under a single name, such as RLlib's
            `{"default_policy": {...}}`, is taken from there. Weights that Keras saved have the
            names and layouts of torch, `fc_1.weight`.

    Raises:
        ModuleError: If the file cannot be read, or a value is not an array of finite numbers.
    """
    if isinstance(source, str | os.PathLike):
        return _check_all(_read_file(Path(source)), str(source))
    if not isinstance(source, Mapping):
        raise ModuleError(
            "weights must be the path of a .npz, .safetensors or .h5 file, or a state dict (arrays or "
            f"tensors by name), got {type(source).__name__}."
        )
    return _check_all(_enter_single_module(source), "the state dict")


def _enter_single_module(source: Mapping[str, object]) -> Mapping[str, object]:
    if len(source) == 1:
        only = next(iter(source.values()))
        if isinstance(only, Mapping):
            return cast("Mapping[str, object]", only)
    return source


def _read_file(path: Path) -> Mapping[str, object]:
    suffix = path.suffix.lower()
    if suffix in _PICKLES or (path.is_file() and suffix not in _READERS):
        raise ModuleError(
            f"{path} is not read, because such files may contain pickled code; convert it in the "
            f"environment that wrote it, by `{_CONVERSION}`, and pass policy.npz."
        )
    if not path.is_file():
        raise ModuleError(f"There is no file {path}; pass a .npz, .safetensors or .h5 file.")
    return _READERS[suffix](path)


def _read_npz(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except NPZ_ERRORS as error:
        raise ModuleError(f"{path} is not an .npz file of plain arrays: {error}.") from error


def _read_safetensors(path: Path) -> Mapping[str, object]:
    try:
        import safetensors
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ModuleError(
            f"Reading {path} needs safetensors: pip install 'jaxrl[weights]', or pass a .npz file."
        ) from error
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, KeyError) as error:
        raise ModuleError(f"{path} is not a readable safetensors file: {error}.") from error


def _read_hdf5(path: Path) -> Mapping[str, object]:
    try:
        with open_hdf5(path) as file:
            tree = read_node(file, path, _MAX_BYTES)
    except DataError as error:
        raise ModuleError(str(error)) from error
    return dict(_name_keras_array(names, array) for names, array in _flatten(tree, ()))


def _flatten(tree: object, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    if isinstance(tree, Mapping):
        for name, value in cast("Mapping[str, object]", tree).items():
            yield from _flatten(value, (*names, name))
    else:
        yield names, cast(np.ndarray, tree)


def _name_keras_array(names: tuple[str, ...], array: np.ndarray) -> tuple[str, np.ndarray]:
    """Return an array of Keras by torch's name and layout: `fc_1/policy/fc_1/kernel:0` and others."""
    last, is_keras, _ = names[-1].partition(":")
    if not is_keras or len(names) < 2 or last not in ("kernel", "bias"):
        return "/".join(names), array
    if last == "bias":
        return f"{names[-2]}.bias", array
    inputs_first = array.ndim - 2  # axes before inputs and outputs
    axes = (inputs_first + 1, inputs_first, *range(inputs_first))
    return f"{names[-2]}.weight", array.transpose(axes)


_READERS: Mapping[str, Callable[[Path], Mapping[str, object]]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
}


def _check_all(values: Mapping[str, object], where: str) -> Arrays:
    if not values:
        raise ModuleError(f"There are no arrays in {where}.")
    return {str(name): _to_array(str(name), value, where) for name, value in values.items()}


def _to_array(name: str, value: object, where: str) -> np.ndarray:
    """Convert an array, or a tensor by its own methods: torch is never imported."""
    for method in ("detach", "cpu", "float"):
        convert: Callable[[], object] | None = getattr(value, method, None)
        value = value if convert is None or isinstance(value, np.ndarray) else convert()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise ModuleError(f"{name} in {where} is not an array of numbers, but {array.dtype}.")
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ModuleError(f"{name} in {where} has NaN or infinite values; nothing was imported.")
    return array
