"""The checker of `make test-shapes`: array annotations hold at run time, other annotations are pyright's.

`pytest --jaxtyping-packages=jaxrl,tests.shapes.check` imports jaxrl with every annotated function
checked: shapes, dtypes and equal axes of what is passed and returned, while programs are traced and
where arrays are handled outside of them.
"""

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any, TypeVar, Union, get_args, get_origin

import jax
import numpy as np
from beartype import BeartypeConf, BeartypeStrategy, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(strategy=BeartypeStrategy.O1))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the annotations of arrays alone."""
    if inspect.isclass(function) or function.__name__ == "__init__":
        return function  # leaves of a dataclass may be stacked, sharded or abstract
    annotations = function.__annotations__
    function.__annotations__ = {
        name: _widen(hint) if _is_of_arrays(hint) else Any for name, hint in annotations.items()
    }
    return _check(function)


def _widen(hint: Any) -> Any:
    """The annotation with NumPy's arrays, and numbers as scalars, where JAX takes them for its own."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        if hint.array_type is not jax.Array:
            return hint
        widened = hint.dtype[jax.Array | np.ndarray | jax.ShapeDtypeStruct, hint.dim_str]
        dims = hint.dim_str.split()
        return widened | _NUMBER if all(name.startswith("*") for name in dims) else widened
    parts = tuple(_widen(part) if part is not ... else part for part in get_args(hint))
    origin = get_origin(hint)
    if origin is tuple:
        return tuple[parts]
    return functools.reduce(operator.or_, parts) if origin in (Union, types.UnionType) else hint


_NUMBER = np.generic | float | int | bool


def _is_of_arrays(hint: Any) -> bool:
    """Return whether the annotation is an array, or a union or tuple of arrays with plain types."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    parts = [part for part in get_args(hint) if part not in (type(None), ...)]
    plain = [part for part in parts if not _is_of_arrays(part)]
    is_plain = all(inspect.isclass(part) and not isinstance(part, TypeVar) for part in plain)
    return bool(parts) and is_plain and len(plain) < len(parts)
