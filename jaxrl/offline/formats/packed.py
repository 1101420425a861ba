"""Columns that RLlib packed: LZ4 of a pickled array, which is read without unpickling.

Of a pickle, only the operations that build one array of numbers are interpreted; it can call nothing.
"""

import base64
import binascii
import dataclasses
import pickletools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl.errors import DataError

_MODULES = (
    "numpy",
    *("numpy.core.numeric", "numpy._core.numeric"),
    *("numpy.core.multiarray", "numpy._core.multiarray"),
)

_PUSH = frozenset(
    (
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("BININT", "BININT1", "BININT2", "LONG1"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Mark:
    """Mark on the stack of a pickle."""


@dataclasses.dataclass
class _Name:
    """Function or class that a pickle names."""

    name: str


@dataclasses.dataclass
class _Array:
    """Array under construction."""

    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    data: bytes = b""
    order: str = "C"


@dataclasses.dataclass
class _Dtype:
    """Type under construction."""

    dtype: np.dtype[Any]


def unpack_rows(texts: Sequence[str | bytes], name: str, max_bytes: int) -> list[np.ndarray]:
    """Return the arrays of packed values.

    Args:
        texts: Base64 of LZ4 of pickled arrays.
        name: Column, for error messages.
        max_bytes: Limit of the bytes of all arrays.

    Raises:
        DataError: If lz4 is not installed, or a value is not a packed array of numbers.
    """
    try:
        import lz4.frame
    except ImportError as error:
        raise DataError(
            f"{name} is LZ4-packed: pip install 'jaxrl[offline]' for lz4, or record with "
            "output_compress_columns=[]."
        ) from error
    arrays: list[np.ndarray] = []
    remaining = max_bytes
    for text in texts:
        try:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            packed = base64.b64decode(text, validate=True)
            content: bytes = decompressor.decompress(packed, max_length=remaining)
            is_whole = bool(decompressor.eof)
        except (binascii.Error, ValueError, RuntimeError, EOFError, TypeError) as error:
            raise DataError(
                f"{name} is text and no packed array: give columns of numbers."
            ) from error
        remaining -= len(content)
        if not is_whole or remaining <= 0:
            raise DataError(
                f"{name} unpacks to more than {max_bytes} bytes: raise max_group_bytes, or use "
                "smaller row groups."
            )
        try:
            arrays.append(_read_array(content))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f"{name} packs something else than an array of numbers.") from error
    return arrays


def _read_array(content: bytes) -> np.ndarray:
    """Interpret the operations of a pickle that build an array of numbers.

    Raises:
        ValueError: If there is any other operation.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for operation, argument, _ in pickletools.genops(content):
        kind = operation.name
        if kind in ("PROTO", "FRAME"):
            continue
        if kind == "STOP":
            break
        if kind in _PUSH:
            stack.append(argument)
        elif kind in _CONSTANTS:
            stack.append(_CONSTANTS[kind])
        elif kind == "MARK":
            stack.append(_Mark())
        elif kind == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif kind in ("BINPUT", "LONG_BINPUT"):
            memo[int(argument or 0)] = stack[-1]
        elif kind in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument or 0)])
        else:
            _combine(kind, argument, stack)
    (result,) = stack
    return _finish(result)


def _combine(kind: str, argument: object, stack: list[Any]) -> None:
    """Apply an operation that takes values from the stack."""
    if kind in _TUPLES:
        number = _TUPLES[kind]
        stack[-number:] = [tuple(stack[-number:])]
    elif kind == "TUPLE":
        start = max(i for i, value in enumerate(stack) if isinstance(value, _Mark))
        stack[start:] = [tuple(stack[start + 1 :])]
    elif kind == "GLOBAL":
        module, _, name = str(argument).partition(" ")
        stack.append(_find_name(module, name))
    elif kind == "STACK_GLOBAL":
        name, module = stack.pop(), stack.pop()
        stack.append(_find_name(module, name))
    elif kind == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        stack.append(_call(function, arguments))
    elif kind == "BUILD":
        state = stack.pop()
        _set_state(stack[-1], state)
    else:
        raise ValueError(f"the operation {kind}")


def _find_name(module: object, name: object) -> _Name:
    if module not in _MODULES or name not in ("dtype", "ndarray", "_frombuffer", "_reconstruct"):
        raise ValueError(f"the name {module}.{name}")
    return _Name(str(name))


def _call(function: _Name, arguments: tuple[Any, ...]) -> object:
    match function.name, arguments:
        case "dtype", (str(code), *_):
            dtype = np.dtype(code)
            if dtype.kind not in "biuf":
                raise ValueError("a type of no numbers")
            return _Dtype(dtype)
        case "_frombuffer", (bytes() | bytearray() as data, _Dtype() as kind, tuple(shape), order):
            return _Array(kind.dtype, _check_shape(shape), bytes(data), str(order))
        case "_reconstruct", (_Name("ndarray"), tuple(), bytes()):
            return _Array()
        case _:
            raise ValueError(f"a call of {function.name}")


def _set_state(target: object, state: tuple[Any, ...]) -> None:
    match target, state:
        case _Dtype(), (int(), str(order), None, None, None, *_):
            target.dtype = target.dtype.newbyteorder(">" if order == ">" else "<")
        case _Array(), (int(), tuple(shape), _Dtype() as kind, bool(is_fortran), bytes(data)):
            target.dtype, target.shape, target.data = kind.dtype, _check_shape(shape), data
            target.order = "F" if is_fortran else "C"
        case _:
            raise ValueError("a state of something else")


def _check_shape(shape: tuple[object, ...]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an invalid shape")
    return tuple(int(str(size)) for size in shape)


def _finish(result: _Array) -> np.ndarray:
    if result.dtype is None:
        raise ValueError("an array without data")
    values = np.frombuffer(result.data, result.dtype)
    order = "F" if result.order == "F" else "C"
    array = values.reshape(result.shape, order=order)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
